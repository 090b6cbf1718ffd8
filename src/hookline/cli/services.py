"""Run a server or a gateway until a signal stops it."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, Self

from . import startup
from .text import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..server.logs import LogFormat


class Service(Protocol):
    """A server or gateway that can be started and stopped."""

    async def start(self) -> None:
        """Start, and return once it is up."""
        ...

    async def stop(self, *, grace: float | None = None) -> None:
        """Stop; running work gets ``grace`` seconds to finish."""
        ...

    async def wait(self) -> None:
        """Wait until it has stopped."""
        ...


class ServiceLog:
    """Print log lines to stderr while a service runs.

    Args:
        logs: the format: ``json``, ``text`` or ``auto``.
        debug: whether to print everything.
    """

    def __init__(self, logs: LogFormat, *, debug: bool) -> None:
        self._logs: LogFormat = logs
        self._debug = debug

    def __enter__(self) -> Self:
        from ..server.logs import setup_logs

        self._undo = setup_logs(self._logs, debug=self._debug)
        return self

    def __exit__(self, *_: object) -> None:
        self._undo()

    async def watch(self) -> None:
        """Do nothing: the log shows what happens."""


async def run_until_stopped(service: Service, view: Any, on_started: Callable[[], object]) -> None:
    """Run a service until Ctrl-C or SIGTERM. A second signal stops it without waiting for running work.

    Args:
        service: the server or gateway.
        view: shows the service, with methods ``stopping(again)`` and ``async watch()``.
        on_started: called once the service is up.
    """
    loop = asyncio.get_running_loop()
    stops: list[asyncio.Task[None]] = []

    def stop() -> None:
        stops.append(loop.create_task(service.stop(grace=0 if stops else None)))
        view.stopping(again=len(stops) > 1)

    with suppress(NotImplementedError):  # on Windows, Ctrl-C raises KeyboardInterrupt instead
        for name in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(name, stop)
    await service.start()
    startup.finish()
    on_started()
    watching = asyncio.create_task(view.watch())
    try:
        await service.wait()
    finally:
        watching.cancel()
        await asyncio.wait([watching, *stops])


def timestamped(line: str | RenderableType) -> Any:
    """Return a line with the current time before it; a long line wraps below its text, not below the time."""
    from rich.table import Table  # most services print log lines only, and Rich takes time to import
    from rich.text import Text

    row = Table.grid(padding=(0, 1, 0, 0))
    shown = Text(printable(line)) if isinstance(line, str) else line
    row.add_row(Text(time.strftime("%H:%M:%S"), style="dim", no_wrap=True), shown)
    return row
