"""One queue per conversation: items of a conversation are processed in order, conversations run concurrently."""

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
"""Time in seconds to wait for cancelled work. Work that ignores the cancellation is abandoned."""


class _Queue(Generic[T]):
    __slots__ = ("current", "held", "is_resumed", "task", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[T] = deque()
        self.current: T | None = None
        self.task: asyncio.Task[None] | None = None
        self.held: T | None = None
        """The item that was put back and is not processed again yet."""
        self.is_resumed = False
        """Whether the held item may be processed again."""

    @property
    def may_go_on(self) -> bool:
        return self.held is None or self.is_resumed


class ConversationQueues(Generic[T]):
    """Process items one at a time per conversation, and several conversations at once.

    Args:
        process: processes one item. An exception is logged, and the queue continues with the next item.
        limit: maximum number of items, of all conversations, that are processed at once. Waiting items hold no slot.
        changed: called with the key of a conversation whenever its current item or its number of waiting items changes.
    """

    def __init__(
        self,
        process: Callable[[str, T], Awaitable[None]],
        *,
        limit: int | None = None,
        changed: Callable[[str], None] = lambda key: None,
    ) -> None:
        self._process = process
        self._changed = changed
        self._context = contextvars.copy_context()
        self._slots: AbstractAsyncContextManager[object] = nullcontext() if limit is None else asyncio.Semaphore(limit)
        self._queues: dict[str, _Queue[T]] = {}
        self._paused = False
        self._waiting = 0
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def waiting(self) -> int:
        """Number of waiting items in all conversations."""
        return self._waiting

    @property
    def running(self) -> int:
        """Number of items that are being processed."""
        return self._running

    @property
    def keys(self) -> list[str]:
        """Conversations with a waiting or current item."""
        return list(self._queues)

    def __contains__(self, key: str) -> bool:
        return key in self._queues

    def __len__(self) -> int:
        return len(self._queues)

    def waiting_in(self, key: str) -> int:
        """Return number of waiting items in one conversation."""
        return len(self._queues[key].waiting) if key in self._queues else 0

    def current(self, key: str) -> T | None:
        """Return the item of a conversation that is being processed."""
        return self._queues[key].current if key in self._queues else None

    def items(self, key: str) -> list[T]:
        """Return the current item of a conversation and its waiting items, in order."""
        current = self.current(key)
        return [*([] if current is None else [current]), *(self._queues[key].waiting if key in self._queues else ())]

    def put(self, key: str, item: T) -> None:
        """Append an item to the queue of a conversation."""
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _Queue()
            if not self._paused:
                self._idle.clear()
        queue.waiting.append(item)
        self._waiting += 1
        self._start(key, queue)
        self._changed(key)

    def _start(self, key: str, queue: _Queue[T]) -> None:
        if queue.task is None and queue.may_go_on and not self._paused:
            # The caller may be a hook or a web request: its context variables must not leak into the work.
            queue.task = asyncio.create_task(self._drain(key, queue), context=self._context.copy())

    def put_first(self, key: str, items: Sequence[T]) -> None:
        """Insert items before all waiting items of a conversation that is being processed."""
        for item in reversed(items):
            self._queues[key].waiting.appendleft(item)
            self._waiting += 1
        self._changed(key)

    def hold(self, key: str, item: T) -> None:
        """Put the current item of a conversation back; it and those after it wait until :meth:`resume`."""
        self.put_first(key, [item])
        self._queues[key].held, self._queues[key].is_resumed = item, False

    def resume(self, key: str) -> None:
        """Process the item that :meth:`hold` put back, and those after it."""
        queue = self._queues.get(key)
        if queue is not None:
            queue.is_resumed = True
            self._start(key, queue)

    def is_held(self, key: str) -> bool:
        """Whether :meth:`hold` has put back an item of a conversation that is not processed again yet."""
        return key in self._queues and self._queues[key].held is not None

    def take(self, key: str, is_wanted: Callable[[T], bool]) -> list[T]:
        """Remove and return waiting items of a conversation."""
        if key not in self._queues:
            return []
        queue = self._queues[key]
        taken = [item for item in queue.waiting if is_wanted(item)]
        queue.waiting = deque(item for item in queue.waiting if not is_wanted(item))
        if queue.held is not None and is_wanted(queue.held):
            queue.held = None
        self._waiting -= len(taken)
        self._changed(key)
        return taken

    def clear(self, key: str) -> list[T]:
        """Remove and return the waiting items of a conversation, except one that :meth:`hold` put back."""
        held = self._queues[key].held if key in self._queues else None
        return self.take(key, lambda item: item is not held)

    async def cancel(self, keys: Iterable[str], timeout: float) -> None:
        """Drop the waiting items of these conversations, and cancel their current items after ``timeout`` seconds."""
        tasks = set()
        for key in keys:
            self.resume(key)
            self.take(key, lambda item: True)
            if key in self._queues and (task := self._queues[key].task) is not None:
                tasks.add(task)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=timeout)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=CANCEL_SECONDS)

    def release_slot(self) -> None:
        """Let another item run while a current item only waits, for example for an approval."""
        if isinstance(self._slots, asyncio.Semaphore):
            self._slots.release()

    async def reacquire_slot(self) -> None:
        """Take a slot again after :meth:`release_slot`, as soon as one is free."""
        if isinstance(self._slots, asyncio.Semaphore):
            await self._slots.acquire()

    def pause(self) -> None:
        """Start no more items. Current items continue."""
        self._paused = True
        if not self._running:
            self._idle.set()

    async def wait_until_idle(self) -> None:
        """Wait until all queues are empty; when paused, until no item is being processed."""
        await self._idle.wait()

    async def stop(self) -> None:
        """Cancel the current items and drop the waiting ones."""
        self.pause()
        tasks = [queue.task for queue in self._queues.values() if queue.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_SECONDS)
        self._queues.clear()
        self._idle.set()

    async def _drain(self, key: str, queue: _Queue[T]) -> None:
        try:
            while queue.waiting and queue.may_go_on and not self._paused:
                async with self._slots:
                    if not queue.waiting or self._paused:
                        break
                    queue.current = queue.waiting.popleft()
                    if queue.current is queue.held:
                        queue.held = None
                    self._waiting -= 1
                    self._running += 1
                    self._changed(key)
                    try:
                        await self._process(key, queue.current)
                    except Exception:
                        log.exception("an item of the conversation %s failed", key)
                    finally:
                        queue.current = None
                        self._running -= 1
                        self._changed(key)
        finally:
            queue.task = None
            if not queue.waiting:
                self._queues.pop(key, None)
            if not self._queues or (self._paused and not self._running):
                self._idle.set()
