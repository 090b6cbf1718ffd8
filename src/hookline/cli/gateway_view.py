"""What a gateway is doing, while it does it."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

from .text import counted, printable
from .view import is_capable

if TYPE_CHECKING:
    from rich.text import Text

    from ..channels.gateway import Gateway, Status

REFRESH = 0.5
"""Seconds between two looks."""


def view_of(gateway: Gateway, *, debug: bool = False) -> PlainView:
    """The view for this terminal; lines where there is none, or where the conversation itself takes place there."""
    talks_here = any(map(_talks_here, gateway.channels.values()))
    kind = LiveView if is_capable(sys.stdout.isatty()) and not talks_here else PlainView
    return kind(gateway, debug=debug)


def _talks_here(channel: object) -> bool:
    return type(channel).__name__ == "ConsoleChannel"


class PlainView(logging.Handler):
    """Lines on stderr: where it listens, what changes, and what the library logs."""

    def __init__(self, gateway: Gateway, *, debug: bool) -> None:
        super().__init__(logging.INFO if debug else logging.WARNING)
        self._gateway, self._debug = gateway, debug
        self._was: dict[str, bool] = {}
        self.has_begun = False

    def __enter__(self) -> Self:
        logger = logging.getLogger("hookline")
        logger.addHandler(self)
        self._before = logger.level, logger.propagate
        logger.setLevel(self.level)
        logger.propagate = False
        return self

    def __exit__(self, *_: object) -> None:
        logger = logging.getLogger("hookline")
        logger.removeHandler(self)
        logger.setLevel(self._before[0])
        logger.propagate = self._before[1]
        if not self.has_begun:
            return  # the error says why
        status = self._gateway.status()
        self.say(
            f"stopped: {counted(status.received, 'message')} received, {status.sent} sent"
            + (f", {status.refused} refused" if status.refused else "")
            + (f", {status.failed} failed" if status.failed else "")
            + (f", {status.waiting} waiting for the next start" if status.waiting else "")
        )

    def emit(self, record: logging.LogRecord) -> None:
        """Show what was logged."""
        text = record.getMessage()
        if self._debug and record.exc_info:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
        self.say(f"{record.levelname.lower()}: {text}")

    def say(self, line: str) -> None:
        """A line."""
        with ExitStack() as apart:
            for channel in self._gateway.channels.values():
                if _talks_here(channel):
                    apart.enter_context(channel.aside())  # type: ignore[attr-defined]
            sys.stderr.write(f"{time.strftime('%H:%M:%S')} {printable(line)}\n")
            sys.stderr.flush()

    def stopping(self, *, again: bool) -> None:
        """Say that it is about to stop."""
        self.say("stopping now" if again else "stopping: what is running may finish; Ctrl-C again stops at once")

    async def watch(self) -> None:
        """Say where it listens, and then what changes."""
        names = ", ".join(self._gateway.channels)
        urls = "".join(f", at {url}" for url in self._gateway.urls)
        self.say(f"listening on {counted(len(self._gateway.channels), 'channel')}: {names}{urls}")
        while True:
            self.look(self._gateway.status())
            await asyncio.sleep(REFRESH)

    def look(self, status: Status) -> None:
        """Say what has changed."""
        for name, health in status.channels.items():
            if self._was.get(name, True) != health.ok:
                self.say(f"{name}: {'works again' if health.ok else health.detail or 'does not work'}")
            self._was[name] = health.ok


class LiveView(PlainView):
    """The same, with a small table below that shows how it is now."""

    def __enter__(self) -> Self:
        from rich.console import Console
        from rich.live import Live

        self._live = Live(console=Console(highlight=False), auto_refresh=False, transient=True)
        self._live.start()
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        super().__exit__()

    def say(self, line: str) -> None:
        """A line above the table."""
        if self._live.is_started:
            self._live.console.print(logged(line))
        else:
            super().say(line)

    def look(self, status: Status) -> None:
        """Draw the table."""
        self._live.update(drawn(status), refresh=True)


def logged(line: str) -> Any:
    """A line with the time before it; what does not fit goes on below its beginning."""
    from rich.table import Table
    from rich.text import Text

    row = Table.grid(padding=(0, 1, 0, 0))
    row.add_row(Text(time.strftime("%H:%M:%S"), style="dim", no_wrap=True), Text(printable(line)))
    return row


def drawn(status: Status) -> Any:
    """The table of channels, and the numbers below it."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    channels = Table.grid(padding=(0, 2, 0, 0))
    for name, health in status.channels.items():
        mark = Text("● ", style="green") if health.ok else Text("✗ ", style="red")
        detail = health.detail or ("ok" if health.ok else "does not work")
        channels.add_row(
            mark + Text(printable(name, keep=""), style="bold"),
            Text(printable(detail, keep=""), style="dim" if health.ok else "red"),
        )
    now = [("conversations", status.conversations), ("running", status.running), ("waiting", status.waiting)]
    now += [("unsent", status.unsent), ("received", status.received), ("sent", status.sent)]
    wrong = [("refused", status.refused), ("retried", status.retried), ("failed", status.failed)]
    numbers = [_numbers(now, "bold"), *([_numbers(bad, "yellow")] if (bad := [one for one in wrong if one[1]]) else [])]
    return Group(Text(), channels, *numbers, Text("Ctrl-C stops it", style="dim"))


def _numbers(items: list[tuple[str, int]], style: str) -> Text:
    from rich.text import Text

    parts = [Text.assemble((f"{label} ", "dim"), (f"{value:,}", style if value else "dim")) for label, value in items]
    return Text(" · ", style="dim").join(parts)
