"""Conversion of events to tasks and updates."""

import json
from itertools import cycle

import msgspec
import pytest
from a2a.types import StreamResponse, TaskArtifactUpdateEvent
from google.protobuf.json_format import MessageToDict
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hookline.server.a2a.tasks import STATES, TaskProgress, data_part, task_from_record
from hookline.stores.runs import OPEN_STATES, RunRecord, StoredEvent
from hookline.stores.runs import STATES as RUN_STATES
from tests.properties import examples

from .rig import assemble, reply_of, state

RUN = RunRecord("run_1", "helper", "me", "talk", "s", "run_1", "corr", "a2a", "hi", created=1.0)


def tool(kind, **more):
    return {"type": kind, "call_id": "c", "tool": "look", "attempt": 1, "message": "", **more}


def delta(text, purpose="step"):
    return {"type": "text_delta", "text": text, "purpose": purpose, "hop": 0}


def closed(status, reply):
    outcome = {"error": "", "reason": "", "usage": {}, "cost": None}
    return {"type": "run_closed", "status": status, "reply": reply, **outcome}


texts = st.text(max_size=4)
steps = st.one_of(
    texts.map(delta),
    texts.map(lambda text: delta(text, "judge")),
    st.just({"type": "discarded", "purpose": "step"}),
    st.just({"type": "step_started", "index": 1}),
    st.just({"type": "run_started"}),
    st.just({"type": "run_finished"}),
    texts.map(lambda text: {"type": "steered", "text": text}),
    st.sampled_from(["tool_started", "tool_progressed", "tool_ended"]).map(tool),
    st.just({"type": "subagent_event", "event": tool("tool_started", run_id="run_2"), "ids": {"agent": "eye"}}),
    st.just({"type": "subagent_event", "event": {"type": "text_delta", "text": "x", "purpose": "step"}, "ids": {}}),
    st.just(
        {"type": "approval_asked", "call_id": "c", "tool": "look", "arguments": {}, "questions": [], "digest": "d"}
    ),
    st.just({"type": "approval_decided", "call_id": "c", "decision": "approved", "by": ""}),
)
ends = st.builds(closed, st.sampled_from([each for each in RUN_STATES if each not in OPEN_STATES]), texts)


def stored(events):
    found = [{"type": "run_accepted"}, *events]
    return [
        StoredEvent("run_1", seq, event["type"], float(seq), msgspec.json.encode({"run_id": "run_1", **event}))
        for seq, event in enumerate(found, 1)
    ]


def response(update):
    if isinstance(update, TaskArtifactUpdateEvent):
        return StreamResponse(artifact_update=update)
    return StreamResponse(status_update=update)


ROWS = {("run_1", "c"): None}


@settings(max_examples=examples(60))
@example([delta("a"), {"type": "discarded", "purpose": "step"}, delta("b")], closed("completed", "b"), 3, [1])
@given(st.lists(steps, max_size=12), ends, st.integers(1, 14), st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_updates_add_up_to_the_task_from_any_start_and_in_any_batches(middle, end, at, sizes):
    events, whole, story = stored([*middle, end]), TaskProgress(RUN), TaskProgress(RUN)
    for event in events:
        whole.add_events([event], ROWS)
    story.add_events(events[:at], ROWS)
    seen = [StreamResponse(task=story.task())]
    for size in cycle(sizes):
        if at >= len(events):
            break
        seen += [response(update) for update in story.add_events(events[at : at + size], ROWS)]
        at += size
    assert story.task() == whole.task()
    together = assemble(seen)
    assert (together.status, reply_of(together)) == (whole.task().status, reply_of(whole.task()))
    assert (state(together) == "COMPLETED") == (end["status"] == "completed")
    assert reply_of(together) == ("" if end["status"] == "ended" else end["reply"])


@pytest.mark.parametrize("status", RUN_STATES)
def test_every_run_status_maps_to_a_state_and_only_completed_to_completed(status):
    run = msgspec.structs.replace(RUN, status=status, reply="words", reason="because", ended=2.0, started=1.5)
    task = task_from_record(run, [])
    assert task.status.state == STATES[status]
    assert (state(task) == "COMPLETED") == (status == "completed")
    if status in ("failed", "stopped", "cancelled", "interrupted"):
        assert "because" in task.status.message.parts[0].text


def nested(levels):
    value = 1
    for _ in range(levels):
        value = {"a": [value]}
    return value


@pytest.mark.parametrize("value", [{"n": 10**400}, nested(30), nested(200)])
def test_arguments_that_the_protocol_cannot_represent_are_sent_as_text(value):
    part = data_part(value)
    assert json.loads(part.text) == value


def test_arguments_that_the_protocol_can_represent_are_sent_as_data():
    assert MessageToDict(data_part({"a": [1, "x", None, True]}).data) == {"a": [1, "x", None, True]}
