"""Work that starts in a run and must end with it: nested runs and subagents."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

from .._base.tasks import StillRunningError, with_timeout
from .cancellation import Cancellation


class Children:
    """The unfinished work that started in a run. It keeps the run open.

    Args:
        cancellation: of the run; it knows how much time is left at the end of the run.
    """

    def __init__(self, cancellation: Cancellation) -> None:
        self._cancellation = cancellation
        self._cancels: dict[Future[None], Callable[[str], None]] = {}

    def __len__(self) -> int:
        return len(self._cancels)

    def add(self, cancel: Callable[[str], None]) -> Future[None]:
        """Keep the run open until the returned future has a result.

        When the run ends, it calls ``cancel(reason)`` if the future has no result yet, and waits for a short time.
        """
        child: Future[None] = Future()
        self._cancels[child] = cancel
        child.add_done_callback(lambda done: self._cancels.pop(done, None))
        return child

    async def cancel(self) -> None:
        """Cancel the unfinished work, and wait for it."""
        children = dict(self._cancels)
        for cancel in children.values():
            cancel("the run has ended")
        if waiting := [asyncio.wrap_future(child) for child in children if not child.done()]:
            with suppress(StillRunningError):  # the other half of the grace period is for hooks
                await with_timeout(self._cancellation.grace_left / 2, asyncio.wait(waiting), shielded=True)
