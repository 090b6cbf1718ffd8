"""Helpers for asyncio tasks: time limits that a task cannot ignore, and exits that do not break the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import Context
from types import coroutine
from typing import Any, Never, TypeVar

T = TypeVar("T")

SETTLE_ROUNDS = 100
"""Iterations of the event loop to wait for. A task starts within one; a cancellation reaches nested tasks in a few."""


class StillRunningError(Exception):
    """The time limit passed and the awaited work has not finished."""


async def with_timeout(seconds: float | None, awaitable: Awaitable[Any], shielded: bool = False) -> Any:
    """Await something for at most ``seconds``, then cancel and abandon it, even if it ignores the cancellation.

    ``asyncio.wait_for`` would wait until the cancelled work ends. With ``shielded``, a cancellation of the caller does
    not interrupt the work; the caller must check for its own cancellation afterwards. ``None`` is no limit.

    Raises:
        StillRunningError: the work has not finished.
    """
    if seconds is None:
        return await awaitable
    task, end = start_task(awaitable), time.monotonic() + seconds
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


async def uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """Run work to completion even if the caller is cancelled. A cancelled caller does not get the result."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(lambda late: late.cancelled() or late.exception())
        raise


async def defer_cancellation(awaitable: Awaitable[T]) -> T:
    """Await something to its end. A cancellation of the caller meanwhile comes at the next ``await`` after it."""
    work, cancelled = start_task(awaitable), False
    while not work.done():
        try:
            await asyncio.wait({work})
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        task = asyncio.current_task()
        assert task is not None
        task.uncancel()  # so that it counts once
        task.cancel()
    result: T = raise_exit(work.result())
    return result


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


def start_task(awaitable: Awaitable[Any], context: Context | None = None) -> asyncio.Task[Any]:
    """Await something in a separate task; see :func:`capture_exit`.

    A task that is cancelled before it begins never awaits the coroutine, which is closed then: Python would warn.
    """
    task = asyncio.get_running_loop().create_task(capture_exit(awaitable), context=context)
    if isinstance(awaitable, Coroutine):
        task.add_done_callback(lambda _: awaitable.close())
    return task


def raise_exit(result: Any) -> Any:
    """Return the result of :func:`capture_exit`, or raise the exit that it captured."""
    if isinstance(result, _Exit):
        raise result.error
    return result


def abandon(task: asyncio.Future[Any]) -> None:
    """Cancel a task and ignore its result."""
    task.cancel()
    task.add_done_callback(lambda late: late.cancelled() or late.exception())


def finish(future: asyncio.Future[None]) -> None:
    """Wake the task that awaits a future, unless it has been woken or cancelled."""
    if not future.done():
        future.set_result(None)


async def forever() -> Never:
    """Wait until the task is cancelled."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("the future never gets a result")


async def settle() -> None:
    """Run the event loop until all tasks that can make progress have done so: tasks start, cancellations arrive."""
    for _ in range(SETTLE_ROUNDS):
        await asyncio.sleep(0)


@coroutine
def watch_await(
    work: Awaitable[T],
    *,
    suspended: Callable[[], object] | None = None,
    cancelled: Callable[[], object] | None = None,
) -> Generator[Any, Any, T]:
    """Await ``work``, and notice what happens to the task meanwhile.

    An ``except CancelledError`` around ``work`` would come last: after all that ``work`` does about the cancellation.

    Args:
        work: what to await.
        suspended: called whenever the task waits, so that other tasks run.
        cancelled: called whenever the task is cancelled, before ``work`` sees the exception.
    """
    steps: Generator[Any, Any, T] = work if isinstance(work, Generator) else work.__await__()  # it may be watched twice
    step: Callable[[Any], Any] = steps.send
    given: Any = None
    while True:
        try:
            awaited = step(given)
        except StopIteration as done:
            result: T = done.value
            return result
        if suspended is not None:
            suspended()
        try:
            given = yield awaited
            step = steps.send
        except GeneratorExit:
            steps.close()
            raise
        except BaseException as error:  # noqa: BLE001 - for the work
            if cancelled is not None and isinstance(error, asyncio.CancelledError):
                cancelled()
            given, step = error, steps.throw


async def wait_at_most(event: asyncio.Event, seconds: float) -> bool:
    """Wait until an event is set, for at most some seconds. Return whether it is set.

    ``asyncio.wait_for`` of Python 3.11 loses a cancellation that arrives together with the event.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


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
