"""Help with asyncio tasks: a time limit that cannot be ignored, and what a cancellation really is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any


class OutOfTime(Exception):
    """What was awaited is still running."""


async def within(seconds: float, awaitable: Awaitable[Any]) -> Any:
    """Await for so long; then it is cancelled and abandoned, even if it ignores the cancellation.

    Raises:
        OutOfTime: it is still running.
    """
    task = asyncio.ensure_future(awaitable)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    except BaseException:
        abandon(task)
        raise
    if done:
        return task.result()
    abandon(task)
    raise OutOfTime


def abandon(task: asyncio.Future[Any]) -> None:
    """Cancel a task and drop whatever it still does."""
    task.cancel()
    task.add_done_callback(lambda late: late.cancelled() or late.exception())


def is_cancelled() -> bool:
    """Whether the current task is really being cancelled (a hook may raise CancelledError itself)."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
