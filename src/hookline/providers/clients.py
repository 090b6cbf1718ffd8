"""One HTTP client for each event loop: its connections belong to the loop they were opened in."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Any
from weakref import finalize

from .._base.workers import in_thread

Keeper = AsyncGenerator[None, None]
Kept = dict[asyncio.AbstractEventLoop, tuple[Any, Keeper]]

_closing: set[asyncio.Task[None]] = set()


class LoopClients:
    """The clients of one model, made when a loop first needs one, closed when that loop ends or the model is gone.

    Args:
        make: makes a client (one with ``is_closed()`` and ``await close()``); it runs in a worker thread,
            because it imports the vendor's package.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make, self._lock = make, threading.Lock()
        self._kept: Kept = {}
        finalize(self, _close_soon, self._kept).atexit = False

    async def get(self) -> Any:
        """The client of the running loop."""
        loop = asyncio.get_running_loop()
        client = self._open_in(loop)
        if client is not None:
            return client
        made = await in_thread(self._make)
        keeper = _closed_with_its_loop(made)
        await anext(keeper)
        with self._lock:
            client = self._open_in(loop)
            if client is None:
                for old in [old for old in self._kept if old.is_closed()]:
                    del self._kept[old]
                self._kept[loop] = made, keeper
                return made
        await keeper.aclose()  # another task of this loop was quicker
        return client

    def _open_in(self, loop: asyncio.AbstractEventLoop) -> Any:
        client, _ = self._kept.get(loop, (None, None))
        return client if client is not None and not client.is_closed() else None


async def _closed_with_its_loop(client: Any) -> Keeper:
    """A loop closes the async generators that are open in it before it ends."""
    try:
        yield
    finally:
        await client.close()


def _close_soon(kept: Kept) -> None:
    """Close clients that nobody needs any more, each in its loop."""
    for loop, (_, keeper) in kept.items():
        with suppress(RuntimeError):  # the loop is closed, and so is the client
            loop.call_soon_threadsafe(_start, loop, keeper)


def _start(loop: asyncio.AbstractEventLoop, keeper: Keeper) -> None:
    task = loop.create_task(_close(keeper))
    _closing.add(task)
    task.add_done_callback(_closing.discard)


async def _close(keeper: Keeper) -> None:
    await keeper.aclose()
