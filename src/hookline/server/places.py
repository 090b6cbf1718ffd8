"""Room for so many runs at once."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress


class Places:
    """So many places, for which others queue. Who waits for a person gives its place up meanwhile, and has it back
    at once when it goes on: then there may be more runs than places for a while, but none hangs.

    Args:
        most: how many.
    """

    def __init__(self, most: int) -> None:
        self._free = most
        self._queue: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Wait for a place; those who came first have it first."""
        if self._free > 0 and not self._queue:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was this one's turn already
                self.give_back()
            with suppress(ValueError):
                self._queue.remove(turn)
            raise

    def take_at_once(self) -> None:
        """Take a place, also if none is free."""
        self._free -= 1

    def give_back(self) -> None:
        """Give a place back."""
        self._free += 1
        while self._free > 0 and self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                self._free -= 1
                turn.set_result(None)
