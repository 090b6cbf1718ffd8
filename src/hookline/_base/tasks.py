"""Help with asyncio tasks: a time limit that cannot be ignored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Any


class OutOfTime(Exception):
    """What was awaited is still running."""


async def within(seconds: float, awaitable: Awaitable[Any], shielded: bool = False) -> Any:
    """Await for so long; then it is cancelled and abandoned, even if it ignores the cancellation.

    ``shielded``: being cancelled meanwhile does not cut it short; the caller looks at that later.

    Raises:
        OutOfTime: it is still running.
    """
    task, end = asyncio.ensure_future(carry(awaitable)), time.monotonic() + seconds
    while not task.done():
        try:
            done, _ = await asyncio.wait({task}, timeout=max(0.0, end - time.monotonic()))
        except asyncio.CancelledError:
            if shielded:
                continue
            abandon(task)
            raise
        if not done:
            abandon(task)
            raise OutOfTime
    return unpack(task.result())


class _Exit:
    def __init__(self, error: BaseException) -> None:
        self.error = error


async def carry(awaitable: Awaitable[Any]) -> Any:
    """Await in a task of its own what may try to leave the program: asyncio would take the loop down with it."""
    try:
        return await awaitable
    except (KeyboardInterrupt, SystemExit) as error:
        return _Exit(error)


def unpack(result: Any) -> Any:
    """What :func:`carry` brought; an exit is raised here."""
    if isinstance(result, _Exit):
        raise result.error
    return result


def abandon(task: asyncio.Future[Any]) -> None:
    """Cancel a task and drop whatever it still does."""
    task.cancel()
    task.add_done_callback(lambda late: late.cancelled() or late.exception())


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The loop that runs in this thread, if there is one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
