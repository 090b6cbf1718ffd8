"""A part of a run that took time, and where it is drawn."""

from itertools import pairwise

from hookline.explain.totals import SubagentTotals
from hookline.explain.view import DecisionView, ModelCall, MomentView, RunView, StepView, ToolCallView, count_totals
from hookline.server.console.lines import Fires
from hookline.server.console.timeline import spans
from hookline.server.console.tree import Strip, Tree


def drawn(*items, until=10.0, is_open=False):
    view = RunView("r", until=until, steps=[StepView(0, 0.0, items=list(items))])
    return Strip(Tree(view, "r", Fires(()), is_open=is_open), until)


def bars(strip):
    return [(bar.kind, bar.x, bar.width) for bar in strip.bars]


def waits(begin, end=None):
    moments = [MomentView(1, "approval_requested", begin)]
    return moments if end is None else [*moments, MomentView(2, "approval_decided", end)]


def test_the_strip_is_as_long_as_the_run():
    model = ModelCall(1.0, "m", answered=True, duration=2.0)
    tool = ToolCallView("c", "t", 1.0, began=2.0, outcome="ok", duration=3.0)
    assert bars(drawn(model, tool)) == [("model", 10.0, 20.0), ("tool", 20.0, 30.0)]
    assert bars(drawn(model, until=3.0)) == [("model", 33.33, 66.67)]


def test_a_call_without_an_end_reaches_to_the_end():
    assert bars(drawn(ModelCall(4.0, "m"), is_open=True)) == [("model", 40.0, 60.0)]
    assert bars(drawn(ToolCallView("c", "t", 1.0, began=4.0), until=8.0)) == [("tool", 50.0, 50.0)]
    assert bars(drawn(ModelCall(4.0))) == []  # a hook spoke, and nothing was sent


def test_waiting_for_a_person_takes_time():
    call = ToolCallView("c", "t", 1.0, began=5.0, outcome="ok", duration=1.0, moments=waits(2.0, 5.0))
    assert list(spans(call)) == [("wait", 2.0, 5.0), ("tool", 5.0, 6.0)]
    assert list(spans(ToolCallView("c", "t", 1.0, moments=waits(2.0)))) == [("wait", 2.0, None)]


def test_a_long_wait_for_a_person_is_folded():
    model = ModelCall(0.0, "m", answered=True, duration=10.0)
    call = ToolCallView("c", "t", 10.0, began=3610.0, outcome="ok", duration=10.0, moments=waits(10.0, 3610.0))
    strip = drawn(model, call, until=3620.0)
    (fold,) = strip.folds
    assert fold.seconds == 3600.0
    assert fold.width < 10
    (before, after) = [(x, width) for kind, x, width in bars(strip) if kind in ("model", "tool")]
    assert before[1] == after[1] > 45
    assert after[0] + after[1] == 100


def test_the_bar_of_a_recorded_call_ends_with_its_result():
    call = ToolCallView("c", "t", 1.0, outcome="ok", duration=2.0, moments=[MomentView(1, "after_tool", 6.0)])
    assert list(spans(call)) == [("tool", 4.0, 6.0)]


def test_a_long_run_has_no_more_bars_than_a_screen_has_points():
    items = [ToolCallView(str(n), "t", n / 100, began=n / 100, outcome="ok", duration=0.009) for n in range(5000)]
    assert len(drawn(*items, until=50.0).bars) < 1000


def test_verdicts_are_marks_that_name_the_hook_and_lead_to_the_row():
    said = [DecisionView("no_deleting", "guard", "block", "rule 3", refused=True)]
    calls = [
        ToolCallView(str(n), "t", 1.0, outcome="blocked", moments=[MomentView(n, "before_tool", 1.0, decisions=said)])
        for n in range(3)
    ]
    marks = drawn(*calls).marks
    assert [(mark.state, mark.key, mark.title) for mark in marks] == [
        ("blocked", f"0.{n}", "t: blocked by no_deleting: rule 3") for n in range(3)
    ]
    assert marks[0].x < marks[1].x < marks[2].x  # they do not lie on one another


def test_a_long_run_has_no_more_marks_than_can_be_told_apart_and_keeps_those_that_matter_most():
    changed = [DecisionView("tidy", "rewrite", "replace", refused=False)]
    blocked = [DecisionView("no_deleting", "guard", "block", "rule 3", refused=True)]
    calls = [
        ToolCallView(str(n), "t", n / 10, moments=[MomentView(n, "before_tool", n / 10, decisions=said)])
        for n, said in enumerate(blocked if n % 100 == 50 else changed for n in range(1000))
    ]
    marks = drawn(*calls, until=100.0).marks
    assert len(marks) <= 81
    assert sum(mark.state == "blocked" for mark in marks) == 10
    assert "no_deleting: rule 3 · 12 more here" in next(mark.title for mark in marks if mark.state == "blocked")
    gaps = [b.x - a.x for a, b in pairwise(marks)]
    assert min(gaps) > 1.0


def test_the_row_of_a_step_counts_tokens_and_verdicts_inside_it():
    moment = MomentView(1, "before_tool", 1.0, decisions=[DecisionView("g", "guard", "block", refused=True)])
    items = [
        ModelCall(0.0, "m", answered=True, input_tokens=10, output_tokens=5, cost=0.5, duration=2.0),
        *(ToolCallView(str(n), "t", 1.0, moments=[moment]) for n in range(7)),
    ]
    (row,) = Tree(RunView("r", steps=[StepView(2, 0.0, 3.0, items)]), "r", Fires(()), is_open=False).rows
    assert (row.name, row.tokens, row.cost, row.took, row.brief) == ("Step 3", 15, 0.5, 2.0, "t \u00d7 7")
    assert (row.inner, row.opened, len(row.kids)) == ({"blocked": 7}, True, 7)


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
