"""Where the tasks of a run continue while it is recorded or repeated (DESIGN 6.11)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from .._base.tasks import finish, running_loop

STALL_SECONDS = 60.0
"""A replay or a recovery ends if a task has waited this long for an entry of the log that does not occur again."""


class Awake:
    """The tasks that have continued at an entry of a log and have not waited since, by lane.

    Where such a task goes on after a hook needs no wakeup: the entry says where.
    """

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[Any] | None] = {}

    def continued(self, lane: str) -> None:
        """The current task continues at an entry of this lane."""
        self._tasks[lane] = asyncio.current_task()

    def waits(self, lane: str) -> None:
        """A task of this lane waits."""
        self._tasks.pop(lane, None)

    def is_asleep(self, lane: str) -> bool:
        """Return whether the current task has not continued at an entry of this lane since it began to wait."""
        return self._tasks.get(lane) is not asyncio.current_task()


class Waiter(NamedTuple):
    """A task that waits until everything before a position of the log has happened again.

    ``wakeup_in`` is the lane that continues there if the position is that of a wakeup.
    """

    position: int
    woken: asyncio.Future[None]
    wakeup_in: str | None = None


class Waiters:
    """The tasks that wait for positions of a log, in any event loop."""

    def __init__(self) -> None:
        self._waiting: list[Waiter] = []

    async def wait(self, position: int, wakeup_in: str | None = None) -> None:
        """Wait until :meth:`wake` chooses this task."""
        waiter = Waiter(position, asyncio.get_running_loop().create_future(), wakeup_in)
        self._waiting.append(waiter)
        try:
            await waiter.woken
        finally:
            self._waiting.remove(waiter)

    def wake(self, may_continue: Callable[[Waiter], bool]) -> None:
        """Wake the tasks that may continue, in the order of the log."""
        for waiter in sorted(self._waiting, key=lambda each: each.position) if self._waiting else ():
            if not may_continue(waiter):
                continue
            loop = waiter.woken.get_loop()
            if loop is running_loop():
                finish(waiter.woken)
            elif not loop.is_closed():  # that of a run that a hook started in another thread
                loop.call_soon_threadsafe(finish, waiter.woken)

    async def watch(self, progress: Callable[[], int], stalled: Callable[[], object]) -> None:
        """Call ``stalled()`` if a task waits and ``progress()`` has been the same for a long time.

        If no task waits for its position, no entry is overdue: a hook is still running, and hooks may be slow.
        """
        before = -1
        while True:
            now = progress() if self._waiting else -1
            if now == before != -1:
                stalled()
                return
            before = now
            await asyncio.sleep(STALL_SECONDS)
