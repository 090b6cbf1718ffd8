"""The start of something that serves: it fails, or is stopped on its way, without leaving anything behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from .http_server import WebError

BREAK_OFF = 1.0
"""Seconds to wait for the end of a start that is broken off; one that takes no notice is left alone."""


class Starting:
    """One start, which happens once."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._broken_off = False

    async def go(self, begin: Callable[[], Coroutine[Any, Any, None]], stop: Callable[[], Awaitable[None]]) -> bool:
        """Begin; false if it was broken off, before or meanwhile.

        Args:
            begin: does it.
            stop: undoes what has begun, if that does not come to its end.

        Raises:
            WebError: it was started before.
            Exception: what ``begin`` raised.
        """
        if self._task is not None:
            raise WebError("it was started already, and is started once: make another")
        if self._broken_off:
            return False
        task = self._task = asyncio.create_task(begin())
        try:
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()
                return True
        except BaseException:
            await stop()
            raise
        await stop()
        return False

    async def break_off(self) -> None:
        """Let it not come to its end, or not begin."""
        self._broken_off = True
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task], timeout=BREAK_OFF)
