"""Helpers for asyncio tasks: time limits that a task cannot ignore, and exits that do not break the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, Never


class StillRunningError(Exception):
    """The time limit passed and the awaited work has not finished."""


async def with_timeout(seconds: float, awaitable: Awaitable[Any], shielded: bool = False) -> Any:
    """Await something for at most ``seconds``, then cancel and abandon it, even if it ignores the cancellation.

    ``asyncio.wait_for`` would wait until the cancelled work ends. With ``shielded``, a cancellation of the caller does
    not interrupt the work; the caller must check for its own cancellation afterwards.

    Raises:
        StillRunningError: the work has not finished.
    """
    task, end = asyncio.ensure_future(capture_exit(awaitable)), time.monotonic() + seconds
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
            raise StillRunningError
    return raise_exit(task.result())


class _Exit:
    def __init__(self, error: BaseException) -> None:
        self.error = error


async def capture_exit(awaitable: Awaitable[Any]) -> Any:
    """Await something in a separate task, and return ``KeyboardInterrupt`` and ``SystemExit`` as a value.

    If a task raised one of them, asyncio would stop the whole event loop. :func:`raise_exit` raises it in the caller.
    """
    try:
        return await awaitable
    except (KeyboardInterrupt, SystemExit) as error:
        return _Exit(error)


def raise_exit(result: Any) -> Any:
    """Return the result of :func:`capture_exit`, or raise the exit that it captured."""
    if isinstance(result, _Exit):
        raise result.error
    return result


def abandon(task: asyncio.Future[Any]) -> None:
    """Cancel a task and ignore its result."""
    task.cancel()
    task.add_done_callback(lambda late: late.cancelled() or late.exception())


async def forever() -> Never:
    """Wait until the task is cancelled."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("the future never gets a result")


def wake_from_thread(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    """Set an event of an event loop from another thread."""
    with suppress(RuntimeError):  # the loop has been closed
        loop.call_soon_threadsafe(event.set)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread, or ``None``."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
