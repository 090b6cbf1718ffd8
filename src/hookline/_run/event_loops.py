"""Event loops in threads of their own, for runs that are started or awaited where none is running."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from .._base.tasks import running_loop

NESTED: contextvars.ContextVar[bool] = contextvars.ContextVar("hookline_nested", default=False)
_lock = threading.Lock()
_shared: tuple[asyncio.AbstractEventLoop, threading.Thread] | None = None


def background_loop() -> asyncio.AbstractEventLoop:
    """The loop, in a daemon thread, of all runs started outside one."""
    global _shared
    with _lock:
        if _shared is None or not _shared[1].is_alive():  # a forked process has no thread of its own yet
            aio = asyncio.new_event_loop()
            _shared = aio, threading.Thread(target=aio.run_forever, name="hookline-loop", daemon=True)
            _shared[1].start()
        return _shared[0]


@contextmanager
def own_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop in a thread of its own, for one blocking run inside a running loop.

    Not the shared loop: the caller may be a sync hook that keeps that very loop waiting.
    """
    aio = asyncio.new_event_loop()
    thread = threading.Thread(target=aio.run_forever, name="hookline-run", daemon=True)
    thread.start()
    try:
        yield aio
    finally:
        asyncio.run_coroutine_threadsafe(aio.shutdown_asyncgens(), aio).result(timeout=5)
        aio.call_soon_threadsafe(aio.stop)
        thread.join(timeout=5)
        if not aio.is_running():
            aio.close()


def must_nest() -> bool:
    """Whether a blocking run needs a loop of its own: see :func:`own_loop`."""
    return running_loop() is not None or NESTED.get()
