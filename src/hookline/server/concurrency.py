"""Limit and order concurrent work: slots for runs, and one lock per key."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager


class RunSlots:
    """A semaphore for running runs. Callers take turns, so that the many runs of one do not delay those of others.

    The runs of one caller get their slots in the order in which they asked. Runs that go on come before all others.

    A run that waits for a person releases its slot and takes it back with :meth:`acquire_now` when it continues.
    For a while there may then be more running runs than slots, but no run gets stuck.

    Args:
        count: the number of slots.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._begun: deque[asyncio.Future[None]] = deque()
        self._queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """The runs of each caller that wait. The caller whose turn is next comes first."""

    async def acquire(self, caller: str, *, begun: bool = False) -> None:
        """Wait for a slot.

        Args:
            caller: the owner of the run.
            begun: whether the run goes on after it was interrupted.
        """
        if self._free > 0:
            self._free -= 1
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        (self._begun if begun else self._queues.setdefault(caller, deque())).append(granted)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():  # cancelled after the slot was granted
                self.release()
            raise

    def acquire_now(self) -> None:
        """Take a slot even if none is free."""
        self._free -= 1

    def release(self) -> None:
        """Release a slot."""
        self._free += 1
        while self._free > 0 and (granted := self._next()) is not None:
            if not granted.done():
                self._free -= 1
                granted.set_result(None)

    def _next(self) -> asyncio.Future[None] | None:
        """Remove and return the one whose turn it is."""
        if self._begun:
            return self._begun.popleft()
        if not self._queues:
            return None
        caller, queue = self._queues.popitem(last=False)
        granted = queue.popleft()
        if queue:
            self._queues[caller] = queue
        return granted


class KeyedLocks:
    """One lock per key, created when needed. Waiters get the lock in the order in which they asked."""

    def __init__(self) -> None:
        self._locks: dict[Hashable, tuple[asyncio.Lock, list[None]]] = {}

    @asynccontextmanager
    async def hold(self, key: Hashable) -> AsyncIterator[None]:
        """Hold the lock of a key inside the block."""
        lock, users = self._locks.setdefault(key, (asyncio.Lock(), []))
        users.append(None)
        try:
            async with lock:
                yield
        finally:
            users.pop()
            if not users:
                self._locks.pop(key, None)
