"""A run that goes on here: what is known of it, and those who read its events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ..base.event import Event
from ..run.events import ApprovalAsked, ApprovalDecided, RunFinished, SubagentEvent
from ..run.handle import Run
from ..stores.run_log import ServedRun, StoredEvent

KEEP = 256
"""How many events are held for readers though they are in the file already."""

Put = Callable[[ServedRun | None, StoredEvent | None], None]


class Live:
    """A served run of this program. It belongs to the loop of the service.

    Its events are numbered anew: a run that handed over is followed by another, in one list, which begins and ends with
    an event of the service's own.
    """

    def __init__(self, record: ServedRun, put: Put) -> None:
        self.record = record
        self.run: Run | None = None
        self.task: asyncio.Task[None] | None = None
        self.stopping = ""
        """Why it is to stop."""
        self.ending = ""
        """The state that it is to end in, whatever becomes of it."""
        self.closed = False
        self.pending: set[tuple[str, str]] = set()
        self._put = put
        self._tail: list[StoredEvent] = []
        self._first = 1
        self._waiting: list[asyncio.Future[None]] = []

    def change(self, **fields: Any) -> None:
        """Change what is known of the run, and have that stored."""
        self.record = msgspec.structs.replace(self.record, **fields)
        self._put(self.record, None)

    def take(self, event: Event) -> None:
        """A sink: number an event, store it, and wake those who read."""
        seq = self.record.last_seq + 1
        self.record = msgspec.structs.replace(self.record, last_seq=seq)
        self._look(event)
        if isinstance(event, RunFinished):  # what was said is in the events before, and in the session
            event = event.replace(result=event.result.replace(messages=(), steps=()))
        data = (event if event.seq == seq else event.replace(seq=seq)).to_json()
        stored = StoredEvent(self.record.id, seq, str(event.__struct_config__.tag), event.at, data)
        self._tail.append(stored)
        self._put(None, stored)
        self._wake()

    def _look(self, event: Event) -> None:
        """What an event means for the state of the run; calls of runs inside it wait for approval too."""
        inner = event.event if isinstance(event, SubagentEvent) else event
        if not isinstance(inner, (ApprovalAsked, ApprovalDecided)):
            return
        key = inner.run_id, inner.call_id
        (self.pending.add if isinstance(inner, ApprovalAsked) else self.pending.discard)(key)
        self.change(status="waiting" if self.pending else "running")

    def committed(self, seq: int) -> None:
        """All up to this one is in the file."""
        keep_from = min(seq, self.record.last_seq - KEEP) + 1
        if keep_from - self._first > KEEP:
            del self._tail[: keep_from - self._first]
            self._first = keep_from

    def after(self, seq: int, limit: int) -> Sequence[StoredEvent] | None:
        """The events after that one; ``None`` if they are only in the file."""
        start = seq + 1 - self._first
        return None if start < 0 else self._tail[start : start + limit]

    def close(self) -> None:
        """No more events follow."""
        self.closed = True
        self._wake()

    async def changed(self, timeout: float | None) -> bool:
        """Wait for an event, or the end; false if time ran out."""
        flag: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(flag)
        done, _ = await asyncio.wait([flag], timeout=timeout)
        if not done:
            self._waiting = [each for each in self._waiting if each is not flag]
        return bool(done)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for flag in waiting:
            if not flag.done():
                flag.set_result(None)
