"""Daemon threads for sync code, so that a hung one can be abandoned and never holds up the exit."""

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


def _after_fork() -> None:
    """A forked process has none of the threads."""
    global _jobs, _lock, _idle
    _jobs, _lock, _idle = queue.SimpleQueue(), threading.Lock(), 0


def in_forked_child(fn: Callable[[], object]) -> None:
    """Have ``fn`` called in every process that is forked from this one, on systems that fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=fn)


in_forked_child(_after_fork)


def _work() -> None:
    global _idle
    while True:
        job = _jobs.get()
        job()
        del job  # it holds what it worked on
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
    """Run ``fn`` in a worker thread with the caller's context variables; cancelling abandons it.

    If it gives back an awaitable, that is awaited here.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(how: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            how(value)

    def job() -> None:
        try:
            how, value = future.set_result, context.run(fn, *args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever awaits
            if isinstance(error, (StopIteration, GeneratorExit)):  # they have a meaning of their own in a coroutine
                error = RuntimeError(f"{type(error).__name__}: {error}")
            how, value = future.set_exception, error
        try:
            loop.call_soon_threadsafe(settle, how, value)
        except RuntimeError:
            pass  # the loop is closed: nobody waits any more

    _submit(job)
    result = await future
    return await result if hasattr(result, "__await__") else result
