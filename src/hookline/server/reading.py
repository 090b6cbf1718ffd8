"""Reads the events of a run, from any number on, at the reader's own pace."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from ..stores.runs import RunRecord, RunStore, StoredEvent, limit_bytes
from .live import Live

PAGE = 200
"""Events returned at once."""
PAGE_BYTES = 256_000
"""Bytes of events returned at once: for a client that does not read, no more than that and one event is held."""
LOOK = 0.5
"""Polling interval in seconds, for a run of another process."""


class Reader:
    """Returns the events of a run after a number, without loss or repeats, until the run has ended.

    It holds no events, so slow readers cost no memory. Call :meth:`close` when done, also before the end.
    """

    def __init__(
        self, run: RunRecord, after: int, store: RunStore, live: Callable[[str], Live | None],
        look: Callable[[str], Awaitable[RunRecord]], close: Callable[[], None], stops: Callable[[], bool],
    ) -> None:  # fmt: skip
        self.run_id, self.seq = run.id, max(0, after)
        self._store, self._find, self._look, self._close, self._stops = store, live, look, close, stops
        self._live: Live | None = None

    async def more(self, timeout: float | None = None) -> Sequence[StoredEvent] | None:
        """Further events, as soon as there are some; none after ``timeout`` seconds; ``None`` after the last event.

        ``None`` is also returned when the server stops while the run goes on in another process. Events that have
        happened, but are not in the file yet, are waited for regardless of the timeout.

        Raises:
            StoreError: the file cannot be read.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            self._live = self._live or self._find(self.run_id)
            left = None if until is None else until - time.monotonic()
            found = await self._from_file() if self._live is None else self._live.after(self.seq, PAGE)
            if found is None:
                found = await self._from_file()
            if found:
                found = limit_bytes(found, PAGE_BYTES)
                self.seq = found[-1].seq
                return found
            if self._live is not None:
                if self._live.is_read(self.seq):
                    return None
                if self._live.record.last_seq > self.seq:  # further events are being written
                    left = None
                if (left is not None and left <= 0) or not await self._live.changed(left):
                    return ()
                continue
            run = await self._look(self.run_id)
            if run.last_seq <= self.seq if run.is_over else self._stops():
                return None
            if left is not None and left <= 0:
                return ()
            if not run.is_over:
                await asyncio.sleep(LOOK if left is None else min(LOOK, left))

    async def _from_file(self) -> Sequence[StoredEvent]:
        return await asyncio.to_thread(self._store.events, self.run_id, self.seq, PAGE, PAGE_BYTES)

    async def __aiter__(self) -> AsyncIterator[StoredEvent]:
        """Each event."""
        while (found := await self.more()) is not None:
            for event in found:
                yield event

    def close(self) -> None:
        """Stop reading."""
        close, self._close = self._close, _nothing
        close()


def _nothing() -> None:
    """Do nothing: the reader is closed already."""
