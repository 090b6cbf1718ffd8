"""Conversations side by side, each in order."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Generic, TypeVar

log = logging.getLogger("hookline")

T = TypeVar("T")

CANCEL_SECONDS = 5.0
"""How long to wait for what is broken off: code that takes no notice of that is left alone."""


class _Lane(Generic[T]):
    __slots__ = ("busy", "queue", "task")

    def __init__(self) -> None:
        self.queue: deque[T] = deque()
        self.busy: T | None = None
        self.task: asyncio.Task[None] | None = None


class Lanes(Generic[T]):
    """A queue for each key: what is in one is worked off one by one, those of different keys side by side.

    Args:
        work: does one thing. What it raises is logged, and the lane goes on.
        limit: how many may be worked on at once, in all lanes; one that waits for its turn in its lane holds no place.
        changed: is told of each lane in which something else is worked on, or waits.
    """

    def __init__(
        self, work: Callable[[str, T], Awaitable[None]], *, limit: int | None = None,
        changed: Callable[[str], None] = lambda key: None,
    ) -> None:  # fmt: skip
        self._work, self._changed, self._context = work, changed, contextvars.copy_context()
        self._slots: AbstractAsyncContextManager[object] = nullcontext() if limit is None else asyncio.Semaphore(limit)
        self._lanes: dict[str, _Lane[T]] = {}
        self._paused = False
        self._waiting = self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def waiting(self) -> int:
        """How many things wait, in all lanes."""
        return self._waiting

    @property
    def running(self) -> int:
        """How many things are being worked on."""
        return self._running

    @property
    def count(self) -> int:
        """How many lanes there are: one that is empty is gone."""
        return len(self._lanes)

    def __contains__(self, key: str) -> bool:
        return key in self._lanes

    @property
    def keys(self) -> list[str]:
        """Whose lanes there are."""
        return list(self._lanes)

    def waiting_in(self, key: str) -> int:
        """How many things wait in one lane."""
        return len(self._lanes[key].queue) if key in self._lanes else 0

    def busy_in(self, key: str) -> T | None:
        """What is being worked on in one lane."""
        return self._lanes[key].busy if key in self._lanes else None

    def all_in(self, key: str) -> list[T]:
        """What is being worked on in one lane, and what waits there."""
        busy = self.busy_in(key)
        return [*([] if busy is None else [busy]), *(self._lanes[key].queue if key in self._lanes else ())]

    def put(self, key: str, item: T) -> None:
        """Put something at the end of a lane."""
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane()
            if not self._paused:
                self._idle.clear()
        lane.queue.append(item)
        self._waiting += 1
        if lane.task is None and not self._paused:
            # Not in the context of whoever puts it there: that may be a hook, or a request that is soon over.
            lane.task = asyncio.create_task(self._work_off(key, lane), context=self._context.copy())
        self._changed(key)

    def put_first(self, key: str, items: Sequence[T]) -> None:
        """Put things before all that wait in a lane that is being worked on."""
        for item in reversed(items):
            self._lanes[key].queue.appendleft(item)
            self._waiting += 1
        self._changed(key)

    def drop(self, key: str) -> list[T]:
        """Take everything out that waits in a lane."""
        if key not in self._lanes:
            return []
        dropped = list(self._lanes[key].queue)
        self._lanes[key].queue.clear()
        self._waiting -= len(dropped)
        self._changed(key)
        return dropped

    async def let_go(self, keys: Iterable[str], seconds: float) -> None:
        """Forget what waits in these lanes; what is being worked on there is broken off after so many seconds."""
        tasks = set()
        for key in keys:
            self.drop(key)
            if key in self._lanes and (task := self._lanes[key].task) is not None:
                tasks.add(task)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=seconds)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=CANCEL_SECONDS)

    def lend(self) -> None:
        """One that is being worked on only waits now: another may have its place."""
        if isinstance(self._slots, asyncio.Semaphore):
            self._slots.release()

    async def take_back(self) -> None:
        """Have the place back that was lent, as soon as one is free."""
        if isinstance(self._slots, asyncio.Semaphore):
            await self._slots.acquire()

    def pause(self) -> None:
        """Begin nothing more; what is being worked on goes on."""
        self._paused = True
        if not self._running:
            self._idle.set()

    async def settled(self) -> None:
        """Wait until nothing is left; when paused, until nothing is being worked on."""
        await self._idle.wait()

    async def stop(self) -> None:
        """Break off what is being worked on. What waits is forgotten."""
        self.pause()
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_SECONDS)
        self._lanes.clear()
        self._idle.set()

    async def _work_off(self, key: str, lane: _Lane[T]) -> None:
        try:
            while lane.queue and not self._paused:
                async with self._slots:
                    if not lane.queue or self._paused:
                        break
                    lane.busy = lane.queue.popleft()
                    self._waiting, self._running = self._waiting - 1, self._running + 1
                    self._changed(key)
                    try:
                        await self._work(key, lane.busy)
                    except Exception:
                        log.exception("conversation %s", key)
                    finally:
                        lane.busy = None
                        self._running -= 1
                        self._changed(key)
        finally:
            lane.task = None
            if not lane.queue:
                self._lanes.pop(key, None)
            if not self._lanes or (self._paused and not self._running):
                self._idle.set()
