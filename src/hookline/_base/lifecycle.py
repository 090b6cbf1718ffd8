"""Start, run and gracefully shut down a long-lived component, such as a server or a gateway."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Literal

from .tasks import StillRunningError, with_timeout
from .text import describe

log = logging.getLogger("hookline")

State = Literal["new", "starting", "running", "stopping", "stopped"]

CANCEL_START_SECONDS = 1.0
"""Seconds that a shutdown waits for a cancelled start. A start that ignores the cancellation is abandoned."""
STOP_SECONDS = 15.0
"""Default timeout of :func:`stop_component` in seconds."""


class Lifecycle:
    """Run the start and the shutdown of a component, each at most once.

    The component owns a lifecycle and gives it two coroutine functions::

        class Server:
            def __init__(self) -> None:
                self._lifecycle = Lifecycle(self._start, self._stop, grace=30)

            async def start(self) -> None:
                await self._lifecycle.start()

            async def stop(self, grace: float | None = None) -> None:
                await self._lifecycle.stop(grace)

            async def _stop(self, grace: float) -> None:
                await self._lifecycle.wait_within_grace(grace, self._requests_finished())
                await stop_component("the database", self._database.close)

    :attr:`state` only moves forward: ``new``, ``starting``, ``running``, ``stopping``, ``stopped``.

    - Stopped before it was started: the shutdown runs, and a later :meth:`start` does nothing.
    - Stopped while it starts: the start is cancelled, then the shutdown runs.
    - The start fails or its caller is cancelled: the shutdown runs without grace, then the error is raised.
    - Stopped by several callers: the shutdown runs once and all of them wait for its end. A caller that passes
      ``grace=0`` ends the grace period of the others.
    - A caller of :meth:`stop` is cancelled: the shutdown continues in its own task, without grace.

    Args:
        start: starts the component.
        stop: shuts it down; it gets the grace period in seconds and must cope with a start that did not finish.
        grace: the default grace period in seconds.
    """

    def __init__(
        self,
        start: Callable[[], Coroutine[Any, Any, None]],
        stop: Callable[[float], Coroutine[Any, Any, None]],
        *,
        grace: float,
    ) -> None:
        self._start = start
        self._stop = stop
        self._grace = grace
        self.state: State = "new"
        self._starting: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._no_grace = asyncio.Event()
        self._stopped = asyncio.Event()

    @property
    def is_stopping(self) -> bool:
        """Whether the shutdown has begun or is complete."""
        return self.state in ("stopping", "stopped")

    async def start(self) -> bool:
        """Start the component and return true once it runs, or false if it was stopped before that.

        Raises:
            RuntimeError: it was started before.
            Exception: the error of a failed start, raised after the shutdown.
        """
        if self._starting is not None:
            raise RuntimeError("started already: a component can be started once, so create another one")
        if self.is_stopping:
            return False
        self.state = "starting"
        self._starting = asyncio.create_task(self._start())
        try:
            await asyncio.wait([self._starting])
            if not self._starting.cancelled():
                self._starting.result()
        except BaseException:
            await self.stop(grace=0)
            raise
        if self._stopping is None and not self._starting.cancelled():
            self.state = "running"
            return True
        await self.stop()
        return False

    async def stop(self, grace: float | None = None) -> None:
        """Shut the component down and wait until that is done.

        Args:
            grace: how many seconds running work may take to finish; the default of the lifecycle if left out.
                Zero also ends the grace period of a shutdown in progress.

        Raises:
            Exception: the error of a failed shutdown, for every caller.
        """
        grace = self._grace if grace is None else grace
        if grace <= 0:
            self._no_grace.set()
        if self._stopping is None:
            self.state = "stopping"
            self._stopping = asyncio.create_task(self._shut_down(grace))
        try:
            await asyncio.shield(self._stopping)
        except asyncio.CancelledError:
            self._no_grace.set()
            raise

    async def wait(self) -> None:
        """Wait until the component has stopped. Cancelling this call stops it."""
        try:
            await self._stopped.wait()
        finally:
            await self.stop()

    async def wait_within_grace(self, seconds: float, work: Awaitable[object]) -> None:
        """Wait for ``work`` for at most ``seconds``, and no longer once a caller stops without grace.

        Unfinished work is cancelled.
        """
        tasks = asyncio.ensure_future(work), asyncio.ensure_future(self._no_grace.wait())
        try:
            await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if tasks[0].done():
                tasks[0].result()
        finally:
            for task in tasks:
                task.cancel()

    async def _shut_down(self, grace: float) -> None:
        try:
            if self._starting is not None and not self._starting.done():
                self._starting.cancel()
                await asyncio.wait([self._starting], timeout=CANCEL_START_SECONDS)
            await self._stop(grace)
        finally:
            self.state = "stopped"
            self._stopped.set()


async def stop_component(name: str, stop: Callable[[], Awaitable[object]], *, timeout: float = STOP_SECONDS) -> None:
    """Stop one part of a component. A part that hangs or fails is logged, so that the other parts still stop.

    Args:
        name: names the part in the log.
        stop: stops it.
        timeout: how many seconds it gets before it is abandoned.
    """
    try:
        await with_timeout(timeout, stop())
    except StillRunningError:
        log.error("%s did not stop within %g s and was abandoned", name, timeout)
    except Exception as error:  # noqa: BLE001 - the other parts must still be stopped
        log.error("%s failed to stop: %s", name, describe(error))
