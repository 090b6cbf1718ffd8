"""Daemon threads for sync code: a thread that hangs can be abandoned, and never delays the exit of the program."""

from __future__ import annotations

import asyncio
import contextvars
import os
import queue
import threading
from collections.abc import Callable
from typing import Any

_jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
_lock = threading.Lock()
_idle = 0


def _reset() -> None:
    """Start without threads: a forked process has none of its parent's."""
    global _jobs, _lock, _idle
    _jobs, _lock, _idle = queue.SimpleQueue(), threading.Lock(), 0


def after_fork_in_child(fn: Callable[[], object]) -> None:
    """Register ``fn`` to be called in every forked child process, on systems that can fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=fn)


after_fork_in_child(_reset)


def _work() -> None:
    global _idle
    while True:
        job = _jobs.get()
        job()
        del job  # it keeps its arguments alive
        with _lock:
            _idle += 1


def _submit(job: Callable[[], None]) -> None:
    global _idle
    with _lock:
        if _idle:
            _idle -= 1
        else:
            threading.Thread(target=_work, name="hookline-worker", daemon=True).start()
    _jobs.put(job)


async def in_thread(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Run ``fn`` in a worker thread with the caller's context variables. Cancelling abandons the thread.

    If ``fn`` returns an awaitable, it is awaited in the caller's event loop.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def set_outcome(setter: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            setter(value)

    def job() -> None:
        try:
            setter, value = future.set_result, context.run(fn, *args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - the awaiting code gets it
            if isinstance(error, (StopIteration, GeneratorExit)):  # they would control the awaiting coroutine
                error = RuntimeError(f"{type(error).__name__}: {error}")
            setter, value = future.set_exception, error
        try:
            loop.call_soon_threadsafe(set_outcome, setter, value)
        except RuntimeError:
            pass  # the loop is closed, so no code awaits the result

    _submit(job)
    result = await future
    return await result if hasattr(result, "__await__") else result


def call_in_thread(fn: Callable[[], object], done: Callable[[BaseException | None], object]) -> None:
    """Run ``fn`` in a worker thread, then call ``done`` in the caller's event loop with the error, or with ``None``.

    This takes fewer turns of the event loop than :func:`in_thread`.
    """
    loop = asyncio.get_running_loop()

    def job() -> None:
        error: BaseException | None = None
        try:
            fn()
        except BaseException as raised:  # noqa: BLE001 - the caller gets it
            error = raised
        try:
            loop.call_soon_threadsafe(done, error)
        except RuntimeError:
            pass  # the loop is closed

    _submit(job)
