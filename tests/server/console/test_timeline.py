"""Where the bars of a run begin and end."""

import pytest

from hookline.explain.totals import SubagentTotals
from hookline.explain.view import DecisionView, ModelCall, MomentView, RunView, StepView, ToolCallView, count_totals
from hookline.server.console.timeline import WIDTH, Timeline, step_line


def bars(item, until=10.0, is_open=False):
    return [
        (bar.kind, bar.x, bar.width, bar.is_open) for bar in Timeline(RunView("r", until=until), is_open).item(item)
    ]


@pytest.mark.parametrize(
    ("until", "total"), [(0.0, 0.01), (0.3, 0.5), (7.0, 10), (10.0, 10), (3601, 7200), (100_000, 115_200)]
)
def test_the_line_is_a_round_number_of_seconds_long(until, total):
    assert Timeline(RunView("r", until=until), False).total == total


def test_a_model_call_and_a_tool_call_are_bars():
    assert bars(ModelCall(1.0, "m", answered=True, duration=2.0)) == [("model", 100.0, 200.0, False)]
    assert bars(ToolCallView("c", "t", 1.0, began=2.0, outcome="ok", duration=3.0)) == [("tool", 200.0, 300.0, False)]


def test_a_call_without_an_end_reaches_to_the_end_of_an_open_line():
    assert bars(ModelCall(4.0, "m"), is_open=True) == [("model", 400.0, 600.0, True)]
    assert bars(ToolCallView("c", "t", 1.0, began=4.0), until=8.0) == [("tool", 400.0, 400.0, False)]
    assert bars(ModelCall(4.0)) == []  # a hook spoke, and nothing was sent


def test_waiting_for_a_person_is_a_bar_of_its_own():
    moments = [MomentView(1, "approval_requested", 2.0), MomentView(2, "approval_decided", 5.0)]
    call = ToolCallView("c", "t", 1.0, began=5.0, outcome="ok", duration=1.0, moments=moments)
    assert bars(call) == [("wait", 200.0, 300.0, False), ("tool", 500.0, 100.0, False)]
    del moments[1]
    assert bars(ToolCallView("c", "t", 1.0, moments=moments), is_open=True) == [("wait", 200.0, 800.0, True)]


def test_the_bar_of_a_recorded_call_ends_with_its_result():
    call = ToolCallView("c", "t", 1.0, outcome="ok", duration=2.0, moments=[MomentView(1, "after_tool", 6.0)])
    assert bars(call) == [("tool", 400.0, 200.0, False)]


def test_verdicts_are_marks_that_name_the_hook():
    said = DecisionView("no_deleting", "guard", "block")
    call = ToolCallView(
        "c", "t", 1.0, outcome="blocked", moments=[MomentView(1, "before_tool", 10.0, decisions=[said])]
    )
    (mark,) = Timeline(RunView("r", until=10.0), False).item(call)
    assert (mark.kind, mark.title) == ("red", "before_tool: blocked by no_deleting")
    assert mark.x + mark.width <= WIDTH


def test_the_line_of_a_step_counts_tokens_and_names_calls_and_verdicts():
    said = DecisionView("g", "guard", "block")
    moment = MomentView(1, "before_tool", 1.0, decisions=[said])
    items = [
        ModelCall(0.0, "m", answered=True, input_tokens=10, output_tokens=5, cost=0.5),
        *(ToolCallView(str(n), "t", 1.0, moments=[moment]) for n in range(7)),
    ]
    line = step_line(StepView(2, 0.0, 3.0, items))
    assert (line.title, line.tokens, line.cost, line.took) == ("Step 3", 15, 0.5, 3.0)
    assert (len(line.calls), line.more_calls) == (5, 2)
    assert [(each.verb, each.hook) for each in line.verdicts] == [("block", "g")]


def test_totals_contain_nested_runs_and_an_unknown_cost_stays_unknown():
    inner = RunView(
        "n", status="running", steps=[StepView(0, 0.0, items=[ModelCall(answered=True, input_tokens=7, cost=None)])]
    )
    step = StepView(
        0,
        0.0,
        items=[ModelCall(answered=True, input_tokens=3, cost=1.0), ToolCallView("c", "t", outcome="ok", runs=[inner])],
    )
    count_totals(found := RunView("r", steps=[step]))
    assert (found.input_tokens, found.tool_calls, found.cost) == (10, 1, None)
    assert found.subagents == SubagentTotals(1, 1, 0)
