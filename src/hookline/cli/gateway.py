"""``hookline gateway``: let people reach an agent through channels."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Self

import msgspec
import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .._kernel.events import Event
from .._run.events import AllEventsExcept, RunFinished, RunStarted, TextDelta, ToolProgressed
from ..config.errors import ConfigError
from ..config.sources import FILE, Configuration
from .errors import COMPLETED
from .event_lines import EventFormatter, Line
from .help import Command
from .hook_line import is_ascii
from .options import DURABLE, service_option, with_settings, with_table
from .output import print_table
from .rendering import LineRenderer
from .services import run_until_stopped, timestamped
from .terminal import can_move_cursor
from .text import counted, printable, short_id

if TYPE_CHECKING:
    from rich.text import Text

    from ..channels.gateway import Gateway, Status
    from ..plugins.manager import PluginManager
    from ..stores.sql import Database


EPILOG = """
Examples:
  hookline gateway
  hookline gateway --config bot.toml --durable
  hookline gateway list
  hookline gateway pair K7QM-2XHD
  hookline gateway revoke telegram 123456789

Set the channels in the configuration file, as in channels = ["web"]. Ctrl-C stops the gateway after the current runs;
it answers the remaining messages after its next start. Ctrl-C again stops it at once.
"""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("gateway", cls=Command, epilog=EPILOG)(with_settings()(gateway))


def gateway(
    config: Configuration,
    action: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="list | pair CODE | revoke CHANNEL SENDER",
            help="List paired senders, pair a sender by code, or revoke one. Without an action, run the gateway.",
            show_default=False,
        ),
    ] = None,
    durable: Annotated[bool | None, service_option(DURABLE, "--durable/--no-durable")] = None,
) -> int:
    """Connect the agent to channels such as Slack, Telegram or a web page."""
    config = with_table(config, "gateway", {"durable": durable})
    match action or []:
        case []:
            return _build_and_run(config)
        case ["list"]:
            return _list(_database(config))
        case ["pair", code]:
            return _pair(_database(config), code)
        case ["revoke", channel, sender]:
            return _revoke(_database(config), channel, sender)
        case given:
            raise ConfigError(f"gateway {' '.join(given)}: expected list, pair CODE or revoke CHANNEL SENDER")


def _build_and_run(config: Configuration) -> int:
    from .._run.run_hooks import redactions_of
    from ..channels.factory import build_gateway
    from ..server.logs import cleaned_for
    from .runner import unattended_agent
    from .weights import prepare_model

    watcher = RunWatcher()
    with unattended_agent(config, watcher, record=True) as (answerer, agent, plugins):
        gateway = build_gateway(
            config.settings, answerer, home=config.home, offered=plugins.channels, file=config.file or FILE
        )
        prepare_model(agent.model)
        with cleaned_for(partial(redactions_of, answerer)):
            return asyncio.run(_run_until_stopped(gateway, config, plugins, watcher))


async def _run_until_stopped(
    gateway: Gateway, config: Configuration, plugins: PluginManager, watcher: RunWatcher
) -> int:
    from ..channels.factory import follow_plugins

    with make_view(gateway, debug=config.settings.debug) as view:
        watcher.show = view.show_run_line

        def on_started() -> None:
            view.is_started = True
            follow_plugins(gateway, plugins, config.settings, home=config.home)

        await run_until_stopped(gateway, view, on_started)
    return COMPLETED


def _database(config: Configuration) -> Database:
    from ..channels.factory import database_path
    from ..stores.mailbox import gateway_database

    return gateway_database(database_path(config.settings, config.home))


def _list(database: Database) -> int:
    from datetime import datetime

    from ..stores.pairing import people

    found = people(database)
    if not found:
        sys.stdout.write("No senders are paired, and no pairing codes are open.\n")
        return COMPLETED
    rows = []
    for person in found:
        at = datetime.fromtimestamp(person.until or person.since).astimezone()
        state = f"code valid until {at:%H:%M}" if person.until else f"paired {at:%Y-%m-%d %H:%M}"
        rows.append((person.channel, person.sender, state))
    print_table(("channel", "sender", "state"), rows, keep=("channel", "sender"))
    return COMPLETED


def _pair(database: Database, code: str) -> int:
    from ..stores.pairing import pair

    person = pair(database, code)
    sys.stdout.write(f"{printable(person.sender, keep='')} may now talk to the agent through {person.channel}.\n")
    return COMPLETED


def _revoke(database: Database, channel: str, sender: str) -> int:
    from ..stores.errors import StoreError
    from ..stores.pairing import revoke

    if not revoke(database, channel, sender):
        raise StoreError(f"{sender!r} is not paired with {channel!r}: hookline gateway list shows the paired senders")
    sys.stdout.write(f"Revoked. Further messages of {printable(sender, keep='')} are rejected.\n")
    return COMPLETED


_HIDDEN_KINDS = ("step", "says", "speaker")
"""Kinds of lines that a gateway does not print: it shows many runs, and what they say is private."""

REFRESH = 0.5
"""Refresh interval in seconds."""


class RunWatcher:
    """A hook that describes what happens in runs, in the lines of ``hookline run`` without the texts of the model."""

    name = "gateway view"
    points = ("on_run_end",)
    phase = "observe"
    events = AllEventsExcept(TextDelta, ToolProgressed)

    def __init__(self) -> None:
        self.show: Callable[[Line], object] = lambda line: None
        """Called with each line; its ``agent`` is the agent and the beginning of the id of the run."""
        self._runs: dict[str, tuple[str, EventFormatter]] = {}

    def __call__(self, point: str, ctx: Any, payload: Any) -> None:
        """Do nothing: the events tell what happens."""

    def on_event(self, event: Event) -> None:
        """Show the lines of an event."""
        if isinstance(event, RunStarted):
            self._runs[event.run_id] = f"{event.ids.agent} {short_id(event.run_id)}", EventFormatter()
        name, formatter = self._runs.get(event.run_id, ("", None))
        if formatter is None:
            return  # the run began before the gateway did
        for line in formatter.format(event):
            if line.kind not in _HIDDEN_KINDS:
                self.show(msgspec.structs.replace(line, agent=printable(name, keep="")))
        if isinstance(event, RunFinished):
            del self._runs[event.run_id]


def make_view(gateway: Gateway, *, debug: bool = False) -> GatewayLog:
    """Return a live view on a terminal; log lines elsewhere, or if a console channel uses the terminal."""
    talks_here = any(map(_is_console, gateway.channels.values()))
    kind = GatewayScreen if can_move_cursor(sys.stdout.isatty()) and not talks_here else GatewayLog
    return kind(gateway, debug=debug)


def _is_console(channel: object) -> bool:
    return type(channel).__name__ == "ConsoleChannel"


class GatewayLog(logging.Handler):
    """Print lines to stderr: the channels, changes of their health, and log records."""

    def __init__(self, gateway: Gateway, *, debug: bool) -> None:
        super().__init__(logging.INFO if debug else logging.WARNING)
        self._gateway, self._debug = gateway, debug
        self._was: dict[str, bool] = {}
        self._lines = LineRenderer(ascii=is_ascii(sys.stdout))
        self.is_started = False

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
        if not self.is_started:
            return  # the gateway did not start, and an error is printed
        status = self._gateway.status()
        self.print(
            f"stopped: {counted(status.received, 'message')} received, {status.sent} sent"
            + (f", {status.refused} refused" if status.refused else "")
            + (f", {status.failed} failed" if status.failed else "")
            + (f", {status.waiting} waiting for the next start" if status.waiting else "")
        )

    def emit(self, record: logging.LogRecord) -> None:
        """Print a log record."""
        text = record.getMessage()
        if self._debug and record.exc_info:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
        self.print(f"{record.levelname.lower()}: {text}")

    def print(self, line: str) -> None:
        """Print a line."""
        with ExitStack() as apart:
            for channel in self._gateway.channels.values():
                if _is_console(channel):
                    apart.enter_context(channel.aside())  # type: ignore[attr-defined]
            sys.stderr.write(f"{time.strftime('%H:%M:%S')} {printable(line)}\n")
            sys.stderr.flush()

    def show_run_line(self, line: Line) -> None:
        """Print a line about a run, only if ``debug`` is set: a log is kept, and runs contain private data."""
        if self._debug:
            self.print(f"{line.agent}: {line.text}")

    def stopping(self, *, again: bool) -> None:
        """Announce the shutdown."""
        self.print("stopping now" if again else "stopping after the current runs; Ctrl-C again stops at once")

    async def watch(self) -> None:
        """Print the channels, then changes of their health."""
        names = ", ".join(self._gateway.channels)
        urls = "".join(f", at {url}" for url in self._gateway.urls)
        self.print(f"listening on {counted(len(self._gateway.channels), 'channel')}: {names}{urls}")
        while True:
            self.update(self._gateway.status())
            await asyncio.sleep(REFRESH)

    def update(self, status: Status) -> None:
        """Print changes of the channels' health."""
        for name, health in status.channels.items():
            if self._was.get(name, True) != health.ok:
                self.print(f"{name}: {'working again' if health.ok else health.detail or 'not working'}")
            self._was[name] = health.ok


class GatewayScreen(GatewayLog):
    """Print the same lines above a live table of channels and counters."""

    def __enter__(self) -> Self:

        self._live = Live(console=Console(highlight=False), auto_refresh=False, transient=True)
        self._live.start()
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        super().__exit__()

    def print(self, line: str) -> None:
        """Print a line above the table."""
        if self._live.is_started:
            self._live.console.print(timestamped(line))
        else:
            super().print(line)

    def show_run_line(self, line: Line) -> None:
        """Print a line about a run above the table."""
        if self._live.is_started:
            self._live.console.print(timestamped(self._lines.render(line)))

    def update(self, status: Status) -> None:
        """Draw the table."""
        self._live.update(status_table(status), refresh=True)


def status_table(status: Status) -> Any:
    """Return the table of channels with the counters below it."""
    channels = Table.grid(padding=(0, 2, 0, 0))
    for name, health in status.channels.items():
        mark = Text("● ", style="green") if health.ok else Text("✗ ", style="red")
        detail = health.detail or ("ok" if health.ok else "not working")
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

    parts = [Text.assemble((f"{label} ", "dim"), (f"{value:,}", style if value else "dim")) for label, value in items]
    return Text(" · ", style="dim").join(parts)
