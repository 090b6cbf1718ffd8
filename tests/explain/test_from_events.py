"""The view of a run from its events."""

from contextlib import suppress

import msgspec
import pytest

from hookline import Agent, HookResult, ScriptedModel, call, guard, hook, reply, tool
from hookline.errors import RunFailedError
from hookline.explain.from_events import EventsView
from hookline.explain.view import EventView, ModelCall, NestedRun, ToolCallView, explain
from hookline.points import AFTER_LLM, BEFORE_LLM, BEFORE_STEP, BEFORE_TOOL
from hookline.records.reading import read_runs
from hookline.server.events import RunClosed

from . import office


def built(agent, task="Do it"):
    """Run the agent, and return the view of its events."""
    made = EventsView()
    events = []
    with suppress(RunFailedError):
        agent.run(task, sinks=[events.append])
    for event in events:
        made.add(msgspec.json.decode(event.to_json()))
    return made


@pytest.fixture
def both(tmp_path):
    """The view of one run from its events, and from its record."""
    made = built(office.agent(tmp_path), office.TASK)
    return made.view, explain(list(read_runs([tmp_path]))[-1])


def calls_of(view):
    return [item for _, step, _ in view.all_steps() for item in step.items if isinstance(item, ToolCallView)]


def decisions_of(view):
    return [(m.point, d.hook, d.verb, d.reason) for m in view.moments() for d in m.decisions if d.verb != "cont"]


def test_events_and_record_tell_the_same_story(both):
    events, record = both
    for name in ("id", "agent", "model", "status", "why", "reply"):
        assert getattr(events, name) == getattr(record, name), name
    assert [(step.index, depth) for _, step, depth in events.all_steps() if step.index >= 0] == [
        (step.index, depth) for _, step, depth in record.all_steps() if step.index >= 0
    ]
    assert [(c.id, c.tool, c.arguments, c.outcome, c.result) for c in calls_of(events)] == [
        (c.id, c.tool, c.arguments, c.outcome, c.result) for c in calls_of(record)
    ]
    assert sorted(decisions_of(events)) == sorted(decisions_of(record))


def test_the_events_do_not_contain_what_hooks_hid(both):
    events, record = both
    assert "4111-1111" not in str(events)
    assert "4111-1111" in str(record)


def test_the_difference_of_the_arguments_belongs_to_the_hook_that_changed_them(both):
    (mail,) = [each for each in calls_of(both[0]) if each.tool == "send_mail"]
    (sign,) = [d for m in mail.moments for d in m.decisions if d.hook == "sign"]
    assert [change.field for change in sign.changes] == ["arguments.body"]
    assert ("+", "\n\nSent by an assistant.") in sign.changes[0].parts
    assert (mail.decision, mail.decided_by) == ("approved", "ann")


def test_a_nested_run_is_in_the_call_that_started_it(both):
    (delegate,) = [each for each in calls_of(both[0]) if each.tool == "delegate"]
    (nested,) = delegate.runs
    assert (nested.agent, nested.status) == ("researcher", "completed")
    assert not any(isinstance(item, NestedRun) for step in both[0].steps for item in step.items)


def test_a_rejected_reply_is_not_shown(both):
    (rejected,) = [
        item
        for step in both[0].steps
        for item in step.items
        if isinstance(item, ModelCall) and item.finish_reason == "discarded"
    ]
    assert rejected.text == ""
    assert "I guarantee" not in str(both[0])


def test_a_rejected_reply_has_its_tokens_and_what_the_model_was_told(both):
    @guard(AFTER_LLM)
    def no_codes(ctx, answer):
        return HookResult.retry("No codes.") if "4711" in answer.content else None

    view = built(Agent("x", llm=ScriptedModel(["It is 4711.", "Done."]), hooks=[no_codes])).view
    models = [item for step in view.steps for item in step.items if isinstance(item, ModelCall)]
    assert len(models) == 2
    assert sum(model.input_tokens + model.output_tokens for model in models) == view.input_tokens + view.output_tokens
    (decision,) = [each for moment in models[0].moments for each in moment.decisions]
    assert decision.value == "No codes."


@pytest.mark.parametrize("reason", ["retry", "replaced", "rejected", "interrupted"])
def test_text_that_was_withdrawn_is_gone(reason):
    made = EventsView()
    made.add({"type": "model_called", "model": "m", "at": 1.0})
    made.add({"type": "text_delta", "text": "secret", "at": 2.0})
    assert "secret" in str(made.view)
    made.add({"type": "discarded", "reason": reason, "at": 3.0})
    made.add({"type": "text_delta", "text": "public", "at": 4.0})
    assert "secret" not in str(made.view)
    assert ("public" in str(made.view)) == (reason == "replaced")


def test_only_changed_steps_are_marked(tmp_path):
    made, events = EventsView(), []
    office.agent(tmp_path).run(office.TASK, sinks=[events.append])
    marked = []
    for event in events:
        made.add(msgspec.json.decode(event.to_json()))
        marked.append(set(made.changed))
        made.changed.clear()
        assert made.changed == set()
    assert all(len(each) <= 2 for each in marked)
    assert set.union(*marked) == set(range(len(made.view.steps)))


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def test_arguments_that_validation_changed_are_shown_without_a_hook():
    made = built(Agent("x", llm=ScriptedModel([call("add", a="1", b=2), reply("3")]), tools=[add]))
    (found,) = calls_of(made.view)
    (moment,) = found.moments
    assert [change.field for change in moment.checked] == ["arguments.a"]


def test_a_hook_that_answers_instead_of_the_model_is_its_source():
    @hook(BEFORE_LLM)
    def canned(ctx, request):
        return HookResult.answer("canned")

    made = built(Agent("x", llm=ScriptedModel([]), hooks=[canned]))
    (model,) = [item for step in made.view.steps for item in step.items if isinstance(item, ModelCall)]
    assert (model.source, model.text, model.answered) == ("canned", "canned", True)


@pytest.mark.parametrize("point", [BEFORE_STEP, AFTER_LLM, BEFORE_TOOL])
def test_the_hook_that_ended_a_run_is_named(point):
    @guard(point)
    def enough(ctx, payload):
        return HookResult.end("Stop.", reason="it is late")

    model = ScriptedModel([call("add", a=1, b=2), reply("3")])
    view = built(Agent("x", llm=model, tools=[add], hooks=[enough])).view
    assert (view.status, view.why) == ("ended", f"The hook enough ended the run at {point}: it is late.")


def test_a_model_that_fails_is_reported():
    view = built(Agent("x", llm=ScriptedModel([ConnectionError("no network")]))).view
    (model,) = [item for step in view.steps for item in step.items if isinstance(item, ModelCall)]
    assert "no network" in model.error
    assert (view.status, view.why) == ("failed", "It failed: ConnectionError: no network")


@pytest.mark.parametrize(
    ("closed", "why"),
    [
        (RunClosed(status="cancelled", reason="by ann"), "The run was cancelled: by ann."),
        (RunClosed(status="interrupted", reason="the server stopped"), "It was interrupted: the server stopped."),
        (RunClosed(status="failed", error="ValueError: x"), "It failed: ValueError: x"),
    ],
)
def test_a_run_that_never_started_has_a_reason(closed, why):
    made = EventsView()
    made.add({"type": "run_accepted", "seq": 1, "at": 5.0, "run_id": "run_1"})
    made.add({**closed.payload, "type": "run_closed", "seq": 2})
    assert (made.view.status, made.view.why) == (closed.status, why)


def test_a_handoff_continues_in_the_same_view():
    made = EventsView()
    for seq, (id, agent) in enumerate((("run_1", "desk"), ("run_2", "expert"))):
        made.add({"type": "run_started", "at": 1.0 + seq, "run_id": id, "ids": {"run_id": id, "agent": agent}})
        made.add({"type": "step_started", "at": 1.0 + seq, "run_id": id, "index": 0})
    assert [step.index for step in made.view.steps] == [-1, 0, -1, 0]
    (note,) = [item for step in made.view.steps for item in step.items if isinstance(item, EventView)]
    assert note.text == "Handed over to expert"


def test_events_of_other_types_and_without_fields_are_ignored():
    made = EventsView()
    for kind in ("custom", "model_replied", "tool_settled", "hook_executed", "failed", "run_finished", ""):
        made.add({"type": kind, "at": 1.0})
    assert made.seq == 7


def test_long_texts_are_cut_and_say_so():
    made = EventsView(limit=10)
    made.add({"type": "model_called", "model": "m", "at": 1.0})
    made.add({"type": "model_replied", "content": "x" * 1000, "at": 2.0})
    (model,) = [item for step in made.view.steps for item in step.items]
    assert model.text == "xxxxxxxxxx… (990 more characters)"
