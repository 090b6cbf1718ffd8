"""Run a server or a gateway until a signal stops it."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from rich.table import Table
from rich.text import Text

from .text import printable


class Stoppable(Protocol):
    """What is started and stopped: a gateway, or a server."""

    async def start(self) -> None:
        """Begin; it returns as soon as it has."""
        ...

    async def stop(self, *, grace: float | None = None) -> None:
        """Stop; what is under way gets so many seconds."""
        ...

    async def wait(self) -> None:
        """Go on until it is stopped."""
        ...


async def run_until_stopped(program: Stoppable, view: Any, begun: Callable[[], object]) -> None:
    """Start it, show it, and go on until Ctrl-C or SIGTERM, of which a second one does not wait for what is under way.

    Args:
        program: the program.
        view: shows it: ``stopping(again)`` and ``async watch()``.
        begun: called once it has begun.
    """
    loop = asyncio.get_running_loop()
    stops: list[asyncio.Task[None]] = []

    def stop() -> None:
        stops.append(loop.create_task(program.stop(grace=0 if stops else None)))
        view.stopping(again=len(stops) > 1)

    with suppress(NotImplementedError):  # not on Windows: there Ctrl-C is a KeyboardInterrupt
        for name in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(name, stop)
    await program.start()
    begun()
    watching = asyncio.create_task(view.watch())
    try:
        await program.wait()
    finally:
        watching.cancel()
        await asyncio.wait([watching, *stops])


def logged(line: str) -> Any:
    """A line with the time before it; what does not fit goes on below its beginning."""
    row = Table.grid(padding=(0, 1, 0, 0))
    row.add_row(Text(time.strftime("%H:%M:%S"), style="dim", no_wrap=True), Text(printable(line)))
    return row
