"""Follow the events of all runs that a caller may see, in one stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence

from ..stores.run_queries import event_counts
from ..stores.runs import PAGE_SIZE, RunStore, StoredEvent

INTERVAL = 0.5
"""Seconds between two looks at the store."""
OVERLAP = 10.0
"""Seconds by which a stream begins earlier than where the last one ended: events are stored after they happened."""


class FeedReader:
    """Return the new events of runs, each run's in their order. Call :meth:`close` when done.

    A reader holds the numbers of the last events, and no events, so slow readers cost little memory. It looks at the
    store, because other processes execute runs too.

    Args:
        store: the store of runs and events.
        owner: only the runs of this caller; ``None`` for all.
        types: only events of these types; all if empty.
        after: the Unix time after which events are wanted; 0 for those from now on. Some earlier ones come too.
        is_stopping: whether the server stops.
        on_close: called once, when the reader is closed.
    """

    def __init__(
        self,
        store: RunStore,
        owner: str | None,
        types: Collection[str],
        after: float,
        is_stopping: Callable[[], bool],
        on_close: Callable[[], None],
    ) -> None:
        self._store = store
        self._owner = owner
        self._types = frozenset(types)
        self._from = after - OVERLAP if after else time.time()
        self._is_stopping = is_stopping
        self._on_close: Callable[[], None] | None = on_close
        self._read: dict[str, int] | None = None
        self._waiting: dict[str, int] = {}
        self._looked = 0.0
        self.last = after
        """The time of the last event so far: where another stream can continue."""

    async def more(self, timeout: float) -> Sequence[StoredEvent] | None:
        """Wait for the next events of one run. Return an empty list after ``timeout`` seconds, ``None`` at the end.

        Raises:
            StoreError: the file cannot be read.
        """
        deadline = time.monotonic() + timeout
        while not self._is_stopping():
            while self._waiting:
                found = await asyncio.to_thread(self._next)
                if found:
                    self.last = max(self.last, found[-1].at)
                    return found
            pause = min(self._looked + INTERVAL, deadline) - time.monotonic()
            if pause > 0:
                await asyncio.sleep(pause)
            if time.monotonic() >= deadline:
                return ()
            await asyncio.to_thread(self._look)
        return None

    def close(self) -> None:
        """Stop reading. Later calls are ignored."""
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()

    def _look(self) -> None:
        """Find the runs that have new events."""
        now, self._looked = time.time(), time.monotonic()
        if self._read is None:
            self._read = event_counts(self._store, self._owner, self._from - OVERLAP, self._from)
        counts = event_counts(self._store, self._owner, self._from - OVERLAP)
        self._read = {run_id: self._read.get(run_id, 0) for run_id in counts}
        self._waiting = {run_id: last for run_id, last in counts.items() if last > self._read[run_id]}
        self._from = now

    def _next(self) -> list[StoredEvent]:
        """Return the next events of a run that has new ones."""
        assert self._read is not None
        run_id, last = next(iter(self._waiting.items()))
        found = self._store.events(run_id, self._read[run_id], size=PAGE_SIZE // 10)
        if found:
            self._read[run_id] = found[-1].seq
        if not found or found[-1].seq >= last:
            del self._waiting[run_id]
        return [each for each in found if not self._types or each.type in self._types]
