"""A served run as an A2A task: its events, in order, become states, progress and the reply."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from a2a.types import (
    Artifact,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp

from ...stores.approvals import ApprovalRow
from ...stores.runs import RunRecord, StoredEvent

Update = TaskStatusUpdateEvent | TaskArtifactUpdateEvent
Key = tuple[str, str]
"""A call that waits: the run that asks, and the call's id there."""

SUBMITTED, WORKING = TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING
WAITING = TaskState.TASK_STATE_INPUT_REQUIRED

STATES: dict[str, TaskState] = {
    "queued": SUBMITTED,
    "running": WORKING,
    "waiting": WAITING,
    "completed": TaskState.TASK_STATE_COMPLETED,
    "failed": TaskState.TASK_STATE_FAILED,
    "stopped": TaskState.TASK_STATE_FAILED,
    "interrupted": TaskState.TASK_STATE_FAILED,
    "cancelled": TaskState.TASK_STATE_CANCELED,
    "ended": TaskState.TASK_STATE_REJECTED,
}
"""What the states of a run are called in the protocol. Only a run that is done is ``COMPLETED``."""

MAX_DEPTH = 40
"""How deep data may be nested to be sent as data; deeper data is sent as text."""

_WHY = {
    "failed": "The run failed",
    "stopped": "The agent stopped before it was done",
    "interrupted": "The run was interrupted",
    "cancelled": "The run was cancelled",
    "ended": "The request was rejected",
}
_PHASES = {"tool_started": "tool_start", "tool_progressed": "progress", "tool_ended": "tool_end"}


class Waiting(msgspec.Struct, frozen=True):
    """A call that waits for approval: the event, and the row in the file of approvals if it is there."""

    asked: Mapping[str, Any]
    row: ApprovalRow | None

    def data(self) -> dict[str, Any]:
        """What a program needs to decide about it."""
        found = {"tool": self.asked["tool"], "arguments": self.asked["arguments"], "digest": self.asked["digest"]}
        found |= {"questions": list(self.asked["questions"]), "call_id": self.asked["call_id"]}
        if self.row is not None:
            found |= {"approval": self.row.id, "expires": self.row.expires}
        return found

    def text(self) -> str:
        """The same for people."""
        arguments = json.dumps(self.asked["arguments"], ensure_ascii=False)
        asking = "".join(f" {question}" for question in self.asked["questions"])
        return f"The agent wants to call {self.asked['tool']} with {arguments}.{asking}"


class Story:
    """What is known of a run after so many of its events.

    Args:
        run: the run.
    """

    def __init__(self, run: RunRecord) -> None:
        self.run, self.seq, self.over = run, 0, False
        self.state, self.at = SUBMITTED, run.created
        self.said: Message | None = None
        self.waiting: dict[Key, Waiting] = {}
        self.deciders: set[str] = set()
        self.text = ""
        self._history = [_message(run, 0, [text_part(run.task)], Role.ROLE_USER)]
        self._more: dict[str, Any] = {}
        self._rows: Mapping[Key, ApprovalRow | None] = {}
        self._chunk = ""
        self._anew = False

    def take(self, events: Sequence[StoredEvent], rows: Mapping[Key, ApprovalRow | None]) -> list[Update]:
        """The next events; what they change for those who look on. Pieces of text that follow one another are one.

        Args:
            events: in order.
            rows: the calls in these events that wait for approval, by key; one that is not here does not wait any more.
        """
        made: list[Update] = []
        self._rows = rows
        for event in events:
            self.seq = event.seq
            if event.type in _TELLING:
                data, agent = opened(event)
                act = (_INNER if agent else _ACTS).get(data["type"])
                if act is not None:
                    act(self, made, {**data, "agent": agent}, event)
        self._flush(made)
        return made

    def answered(self, key: Key) -> None:
        """A call does not wait any more, though the event that says so is not there yet."""
        if self.waiting.pop(key, None) is not None and not self.waiting:
            self.state, self.said = WORKING, None

    def task(self) -> Task:
        """The task as it is now."""
        artifacts = [self._artifact(self.text)] if self.text else []
        return Task(
            id=self.run.id, context_id=self.run.session, status=self._status(self.said, self.at), artifacts=artifacts,
            history=self._history, metadata=struct({**about(self.run), **self._more}),
        )  # fmt: skip

    def words(self, text: str) -> TaskStatusUpdateEvent:
        """Something to tell whoever asked, without a change."""
        note = _message(self.run, self.seq, [text_part(text), *self._calls()], suffix="-note")
        return self._told(note, self.at, {"seq": self.seq})

    # What events do.

    def _started(self, made: list[Update], data: Mapping[str, Any], event: StoredEvent) -> None:
        self._anew = True
        self._turn(made, WORKING, None, event)

    def _step(self, made: list[Update], data: Mapping[str, Any], event: StoredEvent) -> None:
        self._anew = True

    def _delta(self, made: list[Update], data: Mapping[str, Any], event: StoredEvent) -> None:
        if data["purpose"] != "step" or not data["text"]:
            return
        if self._anew:
            self._flush(made)
            self.text, self._anew = "", False
        self.text += data["text"]
        self._chunk += data["text"]

    def _discarded(self, made: list[Update], data: Mapping[str, Any], event: StoredEvent) -> None:
        if data["purpose"] == "step" and self.text:
            self._chunk, self.text = "", ""
            made.append(self._changed("", append=False))

    def _steered(self, made: list[Update], data: Mapping[str, Any], event: StoredEvent) -> None:
        self._history.append(_message(self.run, event.seq, [text_part(data["text"])], Role.ROLE_USER))

    def _tool(self, made: list[Update], data: Mapping[str, Any], event: StoredEvent) -> None:
        phase, tool = _PHASES[data["type"]], data["tool"]
        told = {"phase": phase, "tool": tool, "call_id": data["call_id"], "attempt": data["attempt"]}
        told |= {name: data[name] for name in ("fraction", "outcome") if data.get(name) is not None}
        if data["agent"]:
            told["agent"] = data["agent"]
        fallback = {"tool_start": "started", "progress": "goes on", "tool_end": "ended"}[phase]
        self._flush(made)
        note = _message(self.run, event.seq, [text_part(data["message"] or f"{tool} {fallback}")])
        if not self.waiting:
            self.state, self.said, self.at = WORKING, note, event.at
        made.append(self._told(note, event.at, {**told, "seq": event.seq}))

    def _asked(self, made: list[Update], data: Mapping[str, Any], event: StoredEvent) -> None:
        key = data["run_id"], data["call_id"]
        if key in self._rows:
            self.waiting[key] = Waiting({name: data[name] for name in _ASKED}, self._rows[key])
            self._wait(made, event)

    def _wait(self, made: list[Update], event: StoredEvent) -> None:
        parts = [text_part("\n".join(each.text() for each in self.waiting.values())), *self._calls()]
        note = _message(self.run, event.seq, parts)
        self._turn(made, WAITING, note, event, {"phase": "approval_asked"})

    def _decided(self, made: list[Update], data: Mapping[str, Any], event: StoredEvent) -> None:
        self.waiting.pop((data["run_id"], data["call_id"]), None)
        if not data["by"].startswith("grant "):  # a permission answers before anybody is asked
            self.deciders.add(data["by"])
        if self.waiting:
            self._wait(made, event)
            return
        by = f" by {data['by']}" if data["by"] else ""
        note = _message(self.run, event.seq, [text_part(f"The call was {data['decision']}{by}.")])
        told = {"phase": "approval_decided", "decision": data["decision"], "call_id": data["call_id"]}
        self._turn(made, WORKING, note, event, told)

    def _closed(self, made: list[Update], data: Mapping[str, Any], event: StoredEvent) -> None:
        self._flush(made)
        status, before = data["status"], self.text
        self.over, self.text = True, data["reply"] if status != "ended" else ""
        self.waiting.clear()
        if self.text and self.text == before:
            made.append(self._changed("", append=True, last=True))
        elif self.text or before:
            made.append(self._changed(self.text, append=False, last=True))
        said = why(status, data)
        note = _message(self.run, event.seq, [text_part(said)]) if said else None
        self._more = {"status": status, "usage": data["usage"], "cost": data["cost"]}
        self._turn(made, STATES[status], note, event, self._more)

    # What comes of it.

    def _turn(
        self, made: list[Update], state: TaskState, note: Message | None, event: StoredEvent,
        told: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self._flush(made)
        self.state, self.said, self.at = state, note, event.at
        made.append(self._told(note, event.at, {**(told or {}), "seq": event.seq}))

    def _flush(self, made: list[Update]) -> None:
        if self._chunk:
            chunk, self._chunk = self._chunk, ""
            made.append(self._changed(chunk, append=len(self.text) > len(chunk)))

    def _changed(self, text: str, *, append: bool, last: bool = False) -> TaskArtifactUpdateEvent:
        return TaskArtifactUpdateEvent(
            task_id=self.run.id, context_id=self.run.session, artifact=self._artifact(text), append=append,
            last_chunk=last,
        )  # fmt: skip

    def _artifact(self, text: str) -> Artifact:
        return Artifact(artifact_id=f"{self.run.id}-reply", name="reply", parts=[text_part(text)])

    def _calls(self) -> list[Part]:
        return [data_part(each.data()) for each in self.waiting.values()]

    def _status(self, note: Message | None, at: float) -> TaskStatus:
        return TaskStatus(state=self.state, message=note, timestamp=timestamp(at))

    def _told(self, note: Message | None, at: float, told: Mapping[str, Any]) -> TaskStatusUpdateEvent:
        ids = {"run_id": self.run.id, "correlation_id": self.run.correlation_id}
        return TaskStatusUpdateEvent(
            task_id=self.run.id, context_id=self.run.session, status=self._status(note, at),
            metadata=struct({**ids, **told}),
        )  # fmt: skip


_Act = Callable[[Story, list[Update], dict[str, Any], StoredEvent], None]
_ASKED = ("tool", "arguments", "questions", "digest", "call_id")


_INNER: dict[str, _Act] = {
    "tool_started": Story._tool,
    "tool_progressed": Story._tool,
    "tool_ended": Story._tool,
    "approval_asked": Story._asked,
    "approval_decided": Story._decided,
}
_ACTS: dict[str, _Act] = {
    **_INNER,
    "run_started": Story._started,
    "step_started": Story._step,
    "text_delta": Story._delta,
    "discarded": Story._discarded,
    "steered": Story._steered,
    "run_closed": Story._closed,
}
_TELLING = frozenset((*_ACTS, "subagent_event"))


def opened(event: StoredEvent) -> tuple[dict[str, Any], str]:
    """An event in its fields; one of a subagent as it was there, with the name of that agent."""
    data: dict[str, Any] = msgspec.json.decode(event.data)
    if event.type != "subagent_event":
        return data, ""
    return data["event"], data["ids"].get("agent") or "?"


def asks_in(events: Iterable[StoredEvent]) -> dict[Key, str]:
    """The calls that these events leave waiting for approval, with their digests."""
    found: dict[Key, str] = {}
    for event in events:
        if event.type in ("approval_asked", "approval_decided", "subagent_event"):
            data, _ = opened(event)
            key = data["run_id"], data.get("call_id", "")
            if data["type"] == "approval_asked":
                found[key] = data["digest"]
            elif data["type"] == "approval_decided":
                found.pop(key, None)
    return found


def told_of(run: RunRecord) -> Task:
    """A task from what is known of its run alone: without what was said to it later, or what it does just now."""
    story = Story(run)
    if run.is_over:
        usage = {"input_tokens": run.input_tokens, "output_tokens": run.output_tokens}
        fields = {
            "status": run.status, "reply": run.reply, "error": run.error, "reason": run.reason, "cost": run.cost,
            "usage": {**usage, "cached_tokens": run.cached_tokens},
        }  # fmt: skip
        story._closed([], fields, StoredEvent(run.id, run.last_seq, "run_closed", run.ended or 0.0, b""))
    else:
        story.state, story.at = STATES[run.status], run.started or run.created
    return story.task()


def why(status: str, data: Mapping[str, Any]) -> str:
    """Why a run ended as it did, for people; empty if it is simply done."""
    if status == "ended":
        return str(data["reply"] or data["reason"] or f"{_WHY[status]}.")
    said = data["error"] or (data["reason"] if status != "completed" else "")
    if status == "completed":
        return str(said)
    return f"{_WHY[status]}: {said}" if said else f"{_WHY[status]}."


def about(run: RunRecord) -> dict[str, Any]:
    """What every task says of its run."""
    return {"run_id": run.id, "correlation_id": run.correlation_id, "agent": run.agent}


def struct(value: dict[str, Any]) -> Struct:
    """Plain JSON as the protocol's own kind of object."""
    return ParseDict(value, Struct())


def text_part(text: str) -> Part:
    """A piece of text."""
    return Part(text=text)


def data_part(value: Any) -> Part:
    """Data; as text where the protocol cannot carry it: nested too deep, or a number that is too large."""
    if _depth(value) <= MAX_DEPTH:
        try:
            return Part(data=ParseDict(value, Value()))
        except (ValueError, OverflowError, TypeError):
            pass  # it has more digits than a float has room for
    return Part(text=json.dumps(value, ensure_ascii=False), media_type="application/json")


def timestamp(at: float) -> Timestamp:
    """A moment in Unix time."""
    found = Timestamp()
    found.FromNanoseconds(int(at * 1e6) * 1000)
    return found


def _message(
    run: RunRecord, seq: int, parts: Sequence[Part], role: Role = Role.ROLE_AGENT, suffix: str = ""
) -> Message:
    return Message(
        message_id=f"{run.id}-{seq}{suffix}", role=role, parts=parts, task_id=run.id, context_id=run.session
    )  # fmt: skip


def _depth(value: Any) -> int:
    deep, level = 0, [value]
    while level and deep <= MAX_DEPTH:
        deep += 1
        inner = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, (dict, list))]
        level = [part for each in inner for part in each]
    return deep
