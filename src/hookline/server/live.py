"""A run that goes on here: what is known of it, and those who read its events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from .._kernel.events import Event, HookExecuted, PointFired
from .._run.events import (
    ApprovalAsked,
    ApprovalDecided,
    RunFinished,
    Steered,
    StepStarted,
    SubagentEvent,
    ToolEnded,
    ToolStarted,
    is_silent,
)
from .._run.run import Run
from ..stores.runs import RunRecord, StoredEvent
from .outcome import closing
from .places import Places

KEEP = 256
"""How many events are held for readers though they are in the file already."""
KEEP_BYTES = 500_000
"""How many bytes of them."""

Put = Callable[[RunRecord | None, StoredEvent | None], None]


class Live:
    """A served run of this program. It belongs to the loop of the service.

    Its events are numbered anew: a run that handed over is followed by another, in one list, which begins and ends with
    an event of the service's own. Readers are given what is in the file, so that whatever they saw is still there when
    this program is gone; if the file cannot be written, they are given all the same what there is.

    Args:
        record: what is known of the run.
        put: has a run, or an event of it, stored.
        stuck: whether the file cannot be written now.
    """

    def __init__(self, record: RunRecord, put: Put, stuck: Callable[[], bool] = lambda: False) -> None:
        self.record = record
        self.run: Run[Any] | None = None
        self.task: asyncio.Task[None] | None = None
        self.stopping = ""
        """Why it is to stop."""
        self.ending = ""
        """The state that it is to end in, whatever becomes of it."""
        self.closed = False
        self.unread = 0
        """How many messages of callers it has not taken in yet."""
        self.pending: dict[tuple[str, str], str] = {}
        self._steps = 0
        self._tools: dict[tuple[str, str], str] = {}
        self._put, self._stuck = put, stuck
        self._places: Places | None = None
        self._has_place = False
        self._stored = 0
        self._tail: list[StoredEvent] = []
        self._held = 0
        self._first = 1
        self._waiting: list[asyncio.Future[None]] = []

    def change(self, **fields: Any) -> None:
        """Change what is known of the run, and have that stored."""
        self.record = msgspec.structs.replace(self.record, **fields)
        self._put(self.record, None)

    def take(self, event: Event) -> None:
        """A sink: number an event, and have it stored.

        That a point fired, and that a hook there said nothing, is left out: these would be most of the events.
        """
        if self.closed:  # what does not let itself be cancelled may go on for a while
            return
        inner = event.event if isinstance(event, SubagentEvent) else event
        if isinstance(inner, PointFired) or (isinstance(inner, HookExecuted) and is_silent(inner)):
            return
        seq = self.record.last_seq + 1
        if isinstance(event, RunFinished):  # what was said is in the events before, and in the session
            event = event.replace(result=event.result.replace(messages=(), steps=()))
        data = (event if event.seq == seq else event.replace(seq=seq)).to_json()
        stored = StoredEvent(self.record.id, seq, str(event.__struct_config__.tag), event.at, data)
        self.record = msgspec.structs.replace(self.record, last_seq=seq)
        self._look(event)
        self._tail.append(stored)
        self._held += len(data)
        self._put(None, stored)
        if self._stuck():
            self.wake()

    @property
    def doing(self) -> str:
        """What it does now, for people."""
        if self.pending:
            return f"asks for {', '.join(self.pending.values())}"
        return ", ".join(self._tools.values()) or (f"step {self._steps}" if self._steps else "")

    def _look(self, event: Event) -> None:
        """What an event means for the state of the run; calls of runs inside it wait for approval too."""
        match event.event if isinstance(event, SubagentEvent) else event:
            case StepStarted():
                self._steps += not isinstance(event, SubagentEvent)
            case Steered():
                self.unread = max(0, self.unread - 1)
            case ToolStarted() as started:
                self._tools[started.run_id, started.call_id] = started.tool
            case ToolEnded() as ended:
                self._tools.pop((ended.run_id, ended.call_id), None)
            case ApprovalAsked() as asked:
                self.pending[asked.run_id, asked.call_id] = asked.tool
                self._wait()
            case ApprovalDecided() as decided:
                self.pending.pop((decided.run_id, decided.call_id), None)
                self._wait()

    def _wait(self) -> None:
        """It waits for a person, or does so no longer."""
        self.change(status="waiting" if self.pending else "running")
        if self._places is not None and self._has_place is bool(self.pending):
            (self._places.give_back if self.pending else self._places.take_at_once)()
            self._has_place = not self.pending

    @asynccontextmanager
    async def place(self, places: Places) -> AsyncIterator[None]:
        """Inside the block it has a place, but while it waits for a person."""
        await places.take()
        self._places, self._has_place = places, True
        try:
            yield
        finally:
            self._places = None
            if self._has_place:
                places.give_back()

    def committed(self, seq: int) -> None:
        """All up to this one is in the file: wake those who read."""
        self._stored = seq
        self.wake()
        many = min(seq, self.record.last_seq - KEEP) + 1 - self._first
        drop = many if many > KEEP else 0
        self._held -= sum(len(event.data) for event in self._tail[:drop])
        while self._held > KEEP_BYTES and self._first + drop <= seq:
            self._held -= len(self._tail[drop].data)
            drop += 1
        del self._tail[:drop]
        self._first += drop

    def after(self, seq: int, limit: int) -> Sequence[StoredEvent] | None:
        """The events after that one; ``None`` if they are only in the file."""
        start = seq + 1 - self._first
        last = self.record.last_seq if self._stuck() else self._stored
        return None if start < 0 else self._tail[start : min(start + limit, last + 1 - self._first)]

    def is_read(self, seq: int) -> bool:
        """Whether nothing follows that number."""
        return self.closed and seq >= self.record.last_seq

    def finish(self, status: str, **fields: Any) -> None:
        """The run is over; only the first word on how counts."""
        if self.closed:
            return
        self.run, ended = None, time.time()
        self.take(closing(msgspec.structs.replace(self.record, status=status, ended=ended, **fields)))
        started = self.record.started
        self.change(status=status, ended=ended, elapsed=None if started is None else ended - started, **fields)
        self.closed = True
        self.wake()

    def stop(self, reason: str) -> None:
        """Have the run end; one that has not begun is over at once."""
        if self.stopping:
            return
        self.stopping = reason
        if self.run is not None:
            self.run.cancel(reason)
            return
        self.finish(self.ending or "cancelled", reason=reason)
        if self.task is not None:
            self.task.cancel()  # it may not even have begun

    def break_off(self) -> None:
        """The same, because the server stops."""
        self.ending = "interrupted"
        self.stop("the server stopped")

    async def changed(self, timeout: float | None) -> bool:
        """Wait for an event, or the end; false if time ran out."""
        flag: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(flag)
        try:
            done, _ = await asyncio.wait([flag], timeout=timeout)
        finally:
            if not flag.done():
                self._waiting = [each for each in self._waiting if each is not flag]
        return bool(done)

    def wake(self) -> None:
        """Have those who read look again."""
        waiting, self._waiting = self._waiting, []
        for flag in waiting:
            if not flag.done():
                flag.set_result(None)
