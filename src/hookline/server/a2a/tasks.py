"""Convert a served run to an A2A task: its events become states, progress updates and the reply."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
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

from ...stores.approvals import ApprovalRow, ApprovalStore
from ...stores.callers import Caller
from ...stores.runs import RunRecord, StoredEvent
from ..live_run import EventReader
from .history import History, ReceivedMessage

Update = TaskStatusUpdateEvent | TaskArtifactUpdateEvent
CallKey = tuple[str, str]
"""A waiting call: the id of the run that asks, and the id of the call there."""

SUBMITTED, WORKING = TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING
INPUT_REQUIRED = TaskState.TASK_STATE_INPUT_REQUIRED

STATES: dict[str, TaskState] = {
    "queued": SUBMITTED,
    "running": WORKING,
    "waiting": INPUT_REQUIRED,
    "completed": TaskState.TASK_STATE_COMPLETED,
    "failed": TaskState.TASK_STATE_FAILED,
    "stopped": TaskState.TASK_STATE_FAILED,
    "interrupted": TaskState.TASK_STATE_FAILED,
    "cancelled": TaskState.TASK_STATE_CANCELED,
    "ended": TaskState.TASK_STATE_REJECTED,
}
"""The protocol's state for each status of a run. Only a run that reached its goal is ``COMPLETED``."""

MAX_DEPTH = 40
"""Data nested deeper than this is sent as text."""

APPROVAL_SECONDS = 3.0
"""Seconds to wait for a waiting call to appear in the approval store."""
MAX_CALLS = 1000
"""Maximum number of calls of a run that are looked up in the approval store."""
_POLL_SECONDS = 0.02

_STATUS_TEXT = {
    "failed": "The run failed",
    "stopped": "The agent stopped before it had finished",
    "interrupted": "The run was interrupted",
    "cancelled": "The run was cancelled",
    "ended": "The request was rejected",
}
_PHASES = {"tool_started": "tool_start", "tool_progressed": "progress", "tool_ended": "tool_end"}


class WaitingCall(msgspec.Struct, frozen=True):
    """A call that waits for approval: fields of its event, and its row in the approval store if it is there."""

    asked: Mapping[str, Any]
    row: ApprovalRow | None

    def data(self) -> dict[str, Any]:
        """Return the call as data, with everything that a program needs to decide."""
        found = {"tool": self.asked["tool"], "arguments": self.asked["arguments"], "digest": self.asked["digest"]}
        found |= {"questions": list(self.asked["questions"]), "call_id": self.asked["call_id"]}
        if self.row is not None:
            found |= {"approval": self.row.id, "expires": self.row.expires}
        return found

    def text(self) -> str:
        """Return the call as text for people."""
        arguments = json.dumps(self.asked["arguments"], ensure_ascii=False)
        questions = "".join(f" {question}" for question in self.asked["questions"])
        return f"The agent wants to call {self.asked['tool']} with {arguments}.{questions}"


class TaskProgress:
    """The task of a run, updated with one event after another.

    Args:
        run: the run.
    """

    def __init__(self, run: RunRecord) -> None:
        self.run = run
        self.seq = 0
        self.over = False
        self.state = SUBMITTED
        self.at = run.created
        """When the state changed last."""
        self.status_message: Message | None = None
        self.waiting: dict[CallKey, WaitingCall] = {}
        self.deciders: set[str] = set()
        """The people and hooks that have decided about calls so far."""
        self.text = ""
        self._steered: list[tuple[int, str]] = []
        self._outcome: dict[str, Any] = {}
        self._rows: Mapping[CallKey, ApprovalRow | None] = {}
        self._chunk = ""  # text that is not in an update yet
        self._new_step = False  # whether the next text replaces the text of the step before

    def add_events(self, events: Sequence[StoredEvent], rows: Mapping[CallKey, ApprovalRow | None]) -> list[Update]:
        """Process the next events and return updates for clients. Consecutive pieces of text become one update.

        Args:
            events: the events, in order.
            rows: the calls in these events that wait for approval; a call that is missing here no longer waits.
        """
        updates: list[Update] = []
        self._rows = rows
        for event in events:
            self.seq = event.seq
            if event.type in _RELEVANT:
                data, agent = event_fields(event)
                handle = (_SUBAGENT_HANDLERS if agent else _HANDLERS).get(data["type"])
                if handle is not None:
                    handle(self, updates, {**data, "agent": agent}, event)
        self._flush(updates)
        return updates

    def mark_decided(self, key: CallKey) -> None:
        """Mark a call as decided before its event arrives."""
        if self.waiting.pop(key, None) is not None and not self.waiting:
            self.state, self.status_message = WORKING, None

    def task(self, received: Sequence[ReceivedMessage] = ()) -> Task:
        """Return the current task.

        Args:
            received: the messages of its callers as they were sent; others are known as text only.
        """
        artifacts = [self._artifact(self.text)] if self.text else []
        return Task(
            id=self.run.id,
            context_id=self.run.session,
            status=self._status(self.status_message, self.at),
            artifacts=artifacts,
            history=self._history(received),
            metadata=struct({**run_metadata(self.run), **self._outcome}),
        )

    def _history(self, received: Sequence[ReceivedMessage]) -> list[Message]:
        """Return the messages of callers in the order in which the run got them.

        A message that came through another API is made of its text.
        """
        found: list[tuple[float, Message]] = []
        if not received or received[0].event_seq:
            found.append((0, _message(self.run, 0, [text_part(self.run.task)], Role.ROLE_USER)))
        unread = [each for each in received if each.steered]
        for seq, text in self._steered:
            same = next((each for each in unread if each.text == text and each.event_seq < seq), None)
            if same is not None:
                unread.remove(same)
            own = _message(self.run, seq, [text_part(text)], Role.ROLE_USER)
            found.append((seq, own if same is None else same.message))
        found += [(each.event_seq, each.message) for each in received if not each.steered]
        found += [(math.inf, each.message) for each in unread]
        return [message for _, message in sorted(found, key=itemgetter(0))]

    def note(self, text: str) -> TaskStatusUpdateEvent:
        """Return a status update with a message for the caller and an unchanged state."""
        note = _message(self.run, self.seq, [text_part(text), *self._calls()], suffix="-note")
        return self._status_update(note, self.at, {"seq": self.seq})

    # Event handlers

    def _on_run_started(self, updates: list[Update], data: Mapping[str, Any], event: StoredEvent) -> None:
        self._new_step = True
        self._set_state(updates, WORKING, None, event)

    def _on_step_started(self, updates: list[Update], data: Mapping[str, Any], event: StoredEvent) -> None:
        self._new_step = True

    def _on_text(self, updates: list[Update], data: Mapping[str, Any], event: StoredEvent) -> None:
        if data["purpose"] != "step" or not data["text"]:
            return
        if self._new_step:
            self._flush(updates)
            self.text, self._new_step = "", False
        self.text += data["text"]
        self._chunk += data["text"]

    def _on_discarded(self, updates: list[Update], data: Mapping[str, Any], event: StoredEvent) -> None:
        if data["purpose"] == "step" and self.text and not self._new_step:
            self._chunk, self.text = "", ""
            updates.append(self._artifact_update("", append=False))

    def _on_steered(self, updates: list[Update], data: Mapping[str, Any], event: StoredEvent) -> None:
        self._steered.append((event.seq, data["text"]))

    def _on_tool(self, updates: list[Update], data: Mapping[str, Any], event: StoredEvent) -> None:
        phase, tool = _PHASES[data["type"]], data["tool"]
        metadata = {"phase": phase, "tool": tool, "call_id": data["call_id"], "attempt": data["attempt"]}
        metadata |= {name: data[name] for name in ("fraction", "outcome") if data.get(name) is not None}
        if data["agent"]:
            metadata["agent"] = data["agent"]
        fallback = {"tool_start": "started", "progress": "goes on", "tool_end": "ended"}[phase]
        self._flush(updates)
        note = _message(self.run, event.seq, [text_part(data["message"] or f"{tool} {fallback}")])
        if not self.waiting:
            self.state, self.status_message, self.at = WORKING, note, event.at
        updates.append(self._status_update(note, event.at, {**metadata, "seq": event.seq}))

    def _on_approval_asked(self, updates: list[Update], data: Mapping[str, Any], event: StoredEvent) -> None:
        key = data["run_id"], data["call_id"]
        if key in self._rows:
            self.waiting[key] = WaitingCall({name: data[name] for name in _CALL_FIELDS}, self._rows[key])
            self._set_waiting(updates, event)

    def _set_waiting(self, updates: list[Update], event: StoredEvent) -> None:
        parts = [text_part("\n".join(each.text() for each in self.waiting.values())), *self._calls()]
        note = _message(self.run, event.seq, parts)
        self._set_state(updates, INPUT_REQUIRED, note, event, {"phase": "approval_asked"})

    def _on_approval_decided(self, updates: list[Update], data: Mapping[str, Any], event: StoredEvent) -> None:
        self.waiting.pop((data["run_id"], data["call_id"]), None)
        if not data["by"].startswith("grant "):  # a standing permission decides before any person is asked
            self.deciders.add(data["by"])
        if self.waiting:
            self._set_waiting(updates, event)
            return
        by = f" by {data['by']}" if data["by"] else ""
        note = _message(self.run, event.seq, [text_part(f"The call was {data['decision']}{by}.")])
        metadata = {"phase": "approval_decided", "decision": data["decision"], "call_id": data["call_id"]}
        self._set_state(updates, WORKING, note, event, metadata)

    def _on_run_closed(self, updates: list[Update], data: Mapping[str, Any], event: StoredEvent) -> None:
        self._flush(updates)
        status, before = data["status"], self.text
        self.over, self.text = True, data["reply"] if status != "ended" else ""
        self.waiting.clear()
        if self.text and self.text == before:
            updates.append(self._artifact_update("", append=True, last=True))
        elif self.text or before:
            updates.append(self._artifact_update(self.text, append=False, last=True))
        explanation = explain_end(status, data)
        note = _message(self.run, event.seq, [text_part(explanation)]) if explanation else None
        self._outcome = {"status": status, "usage": data["usage"], "cost": data["cost"]}
        self._set_state(updates, STATES[status], note, event, self._outcome)

    # Updates

    def _set_state(
        self,
        updates: list[Update],
        state: TaskState,
        note: Message | None,
        event: StoredEvent,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self._flush(updates)
        self.state, self.status_message, self.at = state, note, event.at
        updates.append(self._status_update(note, event.at, {**(metadata or {}), "seq": event.seq}))

    def _flush(self, updates: list[Update]) -> None:
        if self._chunk:
            chunk, self._chunk = self._chunk, ""
            updates.append(self._artifact_update(chunk, append=len(self.text) > len(chunk)))

    def _artifact_update(self, text: str, *, append: bool, last: bool = False) -> TaskArtifactUpdateEvent:
        return TaskArtifactUpdateEvent(
            task_id=self.run.id,
            context_id=self.run.session,
            artifact=self._artifact(text),
            append=append,
            last_chunk=last,
        )

    def _artifact(self, text: str) -> Artifact:
        return Artifact(artifact_id=f"{self.run.id}-reply", name="reply", parts=[text_part(text)])

    def _calls(self) -> list[Part]:
        return [data_part(each.data()) for each in self.waiting.values()]

    def _status(self, note: Message | None, at: float) -> TaskStatus:
        return TaskStatus(state=self.state, message=note, timestamp=timestamp(at))

    def _status_update(self, note: Message | None, at: float, metadata: Mapping[str, Any]) -> TaskStatusUpdateEvent:
        ids = {"run_id": self.run.id, "correlation_id": self.run.correlation_id}
        return TaskStatusUpdateEvent(
            task_id=self.run.id,
            context_id=self.run.session,
            status=self._status(note, at),
            metadata=struct({**ids, **metadata}),
        )


_Handler = Callable[[TaskProgress, list[Update], dict[str, Any], StoredEvent], None]
_CALL_FIELDS = ("tool", "arguments", "questions", "digest", "call_id")
_SUBAGENT_HANDLERS: dict[str, _Handler] = {
    "tool_started": TaskProgress._on_tool,
    "tool_progressed": TaskProgress._on_tool,
    "tool_ended": TaskProgress._on_tool,
    "approval_asked": TaskProgress._on_approval_asked,
    "approval_decided": TaskProgress._on_approval_decided,
}
_HANDLERS: dict[str, _Handler] = {
    **_SUBAGENT_HANDLERS,
    "run_started": TaskProgress._on_run_started,
    "step_started": TaskProgress._on_step_started,
    "text_delta": TaskProgress._on_text,
    "discarded": TaskProgress._on_discarded,
    "steered": TaskProgress._on_steered,
    "run_closed": TaskProgress._on_run_closed,
}
_RELEVANT = frozenset((*_HANDLERS, "subagent_event"))


Page = tuple[Sequence[StoredEvent], Mapping[CallKey, ApprovalRow | None]]
"""Events, and the calls in them that wait for approval."""


class TaskFollower:
    """Read the events of a run and keep its task up to date.

    Args:
        run: the run.
        reader: a reader of its events, from the first one on.
        approvals: the store of calls that wait for approval.
        history: has the messages of the callers of the run.
        caller: who reads the task.
    """

    def __init__(
        self, run: RunRecord, reader: EventReader, approvals: ApprovalStore, history: History, caller: Caller
    ) -> None:
        self.progress = TaskProgress(run)
        self._reader = reader
        self._approvals = approvals
        self._history = history
        self._caller = caller
        self._kept: Page | None = None

    async def task(self) -> Task:
        """Return the current task, with the messages of its callers as they were sent.

        Raises:
            StoreError: a file cannot be read.
        """
        run = self.progress.run
        return self.progress.task((await self._history.read([run], self._caller))[run.id])

    async def read_first(self) -> None:
        """Process the first event only, which every run has.

        Raises:
            StoreError: a file cannot be read.
        """
        page = await self.next_page()
        if page is not None:
            events, rows = page
            self.progress.add_events(events[:1], rows)
            self._kept = (events[1:], rows) if events[1:] else None

    async def catch_up(self) -> None:
        """Process all events that exist now.

        Raises:
            StoreError: a file cannot be read.
        """
        while (page := await self.next_page(timeout=0)) is not None and page[0]:
            self.progress.add_events(*page)

    async def next_updates(self) -> list[Update] | None:
        """Wait for the next events and return their updates; ``None`` after the last event.

        Raises:
            StoreError: a file cannot be read.
        """
        page = await self.next_page()
        return None if page is None else self.progress.add_events(*page)

    async def settle(self) -> None:
        """Process events until the run has finished or a call waits for approval.

        Raises:
            StoreError: a file cannot be read.
        """
        while not self.progress.over and not self.progress.waiting and await self.next_updates() is not None:
            pass

    async def next_page(self, timeout: float | None = None) -> Page | None:
        """Wait for the next events and return them, unprocessed, with their waiting calls.

        After a timeout there are no events; after the last event, ``None`` is returned.

        Raises:
            StoreError: a file cannot be read.
        """
        kept, self._kept = self._kept, None
        if kept is not None:
            return kept
        events = await self._reader.more(timeout)
        if events is None:
            return None
        digests = waiting_calls(events)
        return events, await self._find_rows(digests) if digests else {}

    async def _find_rows(self, digests: Mapping[CallKey, str]) -> dict[CallKey, ApprovalRow | None]:
        """Return the rows of the calls that still wait; ``None`` for a call that is not in the store."""
        deadline = asyncio.get_running_loop().time() + APPROVAL_SECONDS
        while True:
            rows = await asyncio.to_thread(self._approvals.rows, root_id=self.progress.run.id, limit=MAX_CALLS)
            by_call = {(row.run_id, row.call_id, row.digest): row for row in reversed(rows)}  # the last attempt
            found = {key: by_call.get((*key, digest)) for key, digest in digests.items()}
            if None not in found.values() or asyncio.get_running_loop().time() >= deadline:
                break
            await asyncio.sleep(_POLL_SECONDS)
        return {key: row for key, row in found.items() if row is None or row.status == "pending"}


def event_fields(event: StoredEvent) -> tuple[dict[str, Any], str]:
    """Return the fields of an event, and the name of the subagent if it is the event of one."""
    data: dict[str, Any] = msgspec.json.decode(event.data)
    if event.type != "subagent_event":
        return data, ""
    return data["event"], data["ids"].get("agent") or "?"


def waiting_calls(events: Iterable[StoredEvent]) -> dict[CallKey, str]:
    """Return the digests of the calls that wait for approval after these events."""
    found: dict[CallKey, str] = {}
    for event in events:
        if event.type in ("approval_asked", "approval_decided", "subagent_event"):
            data, _ = event_fields(event)
            key = data["run_id"], data.get("call_id", "")
            if data["type"] == "approval_asked":
                found[key] = data["digest"]
            elif data["type"] == "approval_decided":
                found.pop(key, None)
    return found


def task_from_record(run: RunRecord, received: Sequence[ReceivedMessage]) -> Task:
    """Return a task made from the record of its run and the messages to it, without current activity."""
    progress = TaskProgress(run)
    if run.is_over:
        usage = {"input_tokens": run.input_tokens, "output_tokens": run.output_tokens}
        fields = {
            "status": run.status,
            "reply": run.reply,
            "error": run.error,
            "reason": run.reason,
            "cost": run.cost,
            "usage": {**usage, "cached_tokens": run.cached_tokens},
        }
        progress._on_run_closed([], fields, StoredEvent(run.id, run.last_seq, "run_closed", run.ended or 0.0, b""))
    else:
        progress.state, progress.at = STATES[run.status], run.started or run.created
    return progress.task(received)


def explain_end(status: str, data: Mapping[str, Any]) -> str:
    """Return why a run ended, for people; empty for a normal end."""
    if status == "ended":
        return str(data["reply"] or data["reason"] or f"{_STATUS_TEXT[status]}.")
    reason = data["error"] or (data["reason"] if status != "completed" else "")
    if status == "completed":
        return str(reason)
    return f"{_STATUS_TEXT[status]}: {reason}" if reason else f"{_STATUS_TEXT[status]}."


def run_metadata(run: RunRecord) -> dict[str, Any]:
    """Return the metadata of every task."""
    return {"run_id": run.id, "correlation_id": run.correlation_id, "agent": run.agent}


def struct(value: dict[str, Any]) -> Struct:
    """Convert a JSON object to the protocol's type."""
    return ParseDict(value, Struct())


def text_part(text: str) -> Part:
    """Return a text part of a message."""
    return Part(text=text)


def data_part(value: Any) -> Part:
    """Return a data part of a message; a text part if the data is nested too deep or has a number that is too large."""
    if _depth(value) <= MAX_DEPTH:
        try:
            return Part(data=ParseDict(value, Value()))
        except (ValueError, OverflowError, TypeError):
            pass  # a number is too large for a float
    return Part(text=json.dumps(value, ensure_ascii=False), media_type="application/json")


def timestamp(at: float) -> Timestamp:
    """Convert a Unix time to the protocol's type."""
    found = Timestamp()
    found.FromNanoseconds(int(at * 1e6) * 1000)
    return found


def _message(
    run: RunRecord, seq: int, parts: Sequence[Part], role: Role = Role.ROLE_AGENT, suffix: str = ""
) -> Message:
    return Message(message_id=f"{run.id}-{seq}{suffix}", role=role, parts=parts, task_id=run.id, context_id=run.session)


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level and depth <= MAX_DEPTH:
        depth += 1
        inner = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, (dict, list))]
        level = [part for each in inner for part in each]
    return depth
