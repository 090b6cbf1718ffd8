"""A worker: executes the durable runs that servers accept. It answers no requests, except for its metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from .._base.lifecycle import Lifecycle, State, stop_component
from .._base.workers import in_thread
from .health import MetricsServer
from .options import ServerOptions
from .runs import RunService


class Worker:
    """Execute durable runs, in the running event loop. Signals are left to the program.

    Example::

        worker = build_worker(settings, agent)
        await worker.start()
        await worker.wait()

    Args:
        service: executes the runs.
        options: limits and time limits.
        metrics: serves the metrics while the worker runs.
        closing: called after the worker has stopped, to close its stores.
    """

    def __init__(
        self,
        service: RunService,
        options: ServerOptions,
        *,
        metrics: MetricsServer | None = None,
        closing: Iterable[Callable[[], object]] = (),
    ) -> None:
        self.service = service
        self.options = options
        self.metrics_url = ""
        """Address of the metrics, once the worker runs."""
        self._metrics = metrics
        self._closing = tuple(closing)
        self._lifecycle = Lifecycle(self._open, self._stop, grace=options.grace)

    @property
    def state(self) -> State:
        """``new``, ``starting``, ``running``, ``stopping`` or ``stopped``."""
        return self._lifecycle.state

    async def start(self) -> None:
        """Start to execute runs.

        Raises:
            StoreError: the database cannot be used.
            RuntimeError: the worker was started before.
        """
        await self._lifecycle.start()

    async def stop(self, grace: float | None = None) -> None:
        """Suspend the runs after their calls in flight, so that other processes resume them, and close everything.

        Args:
            grace: how many seconds calls in flight may take; ``options.grace`` if left out. Zero also ends the grace
                period of a shutdown in progress.
        """
        await self._lifecycle.stop(grace)

    async def _open(self) -> None:
        if self._metrics is not None:
            self.metrics_url = self._metrics.start()
        await self.service.open()
        self.service.start_tidying()

    async def _stop(self, grace: float) -> None:
        await self._lifecycle.wait_within_grace(grace, self.service.drain())
        if self._metrics is not None:
            await stop_component("the metrics", partial(in_thread, self._metrics.stop))
        await self.service.close(grace=0)
        for close in self._closing:
            await stop_component("a store", partial(in_thread, close))

    async def wait(self) -> None:
        """Wait until the worker has stopped. Cancelling this call stops it."""
        await self._lifecycle.wait()
