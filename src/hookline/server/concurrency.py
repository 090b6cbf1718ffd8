"""Limit and order concurrent work: slots for runs, and one lock per key."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager, suppress


class RunSlots:
    """A semaphore for running runs, first come, first served.

    A run that waits for a person releases its slot and takes it back with :meth:`acquire_now` when it continues.
    For a while there may then be more running runs than slots, but no run gets stuck.

    Args:
        count: the number of slots.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._queue: deque[asyncio.Future[None]] = deque()

    async def acquire(self) -> None:
        """Wait for a slot."""
        if self._free > 0 and not self._queue:
            self._free -= 1
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(granted)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():  # cancelled after the slot was granted
                self.release()
            with suppress(ValueError):
                self._queue.remove(granted)
            raise

    def acquire_now(self) -> None:
        """Take a slot even if none is free."""
        self._free -= 1

    def release(self) -> None:
        """Release a slot."""
        self._free += 1
        while self._free > 0 and self._queue:
            granted = self._queue.popleft()
            if not granted.done():
                self._free -= 1
                granted.set_result(None)


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
