"""``hookline gateway``: let people reach an agent through channels."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..config.errors import ConfigError
from ..config.sources import FILE, Configuration
from .errors import COMPLETED
from .help import Command
from .options import takes_settings
from .output import table
from .services import logged, run_until_stopped
from .terminal import is_capable
from .text import counted, printable

if TYPE_CHECKING:
    from rich.text import Text

    from ..channels.gateway import Gateway, Status
    from ..plugins.manager import PluginManager
    from ..stores.sqlite import Database


EPILOG = """
Examples:
  hookline gateway
  hookline gateway --config bot.toml
  hookline gateway list
  hookline gateway pair K7QM-2XHD
  hookline gateway revoke telegram 123456789

Its channels are in the configuration file, as in channels = ["web"]. Ctrl-C stops it: runs may finish, and what is
not answered then is answered by the next one. Ctrl-C again stops it at once.
"""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("gateway", cls=Command, epilog=EPILOG)(takes_settings()(gateway))


def gateway(
    config: Configuration,
    action: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="list | pair CODE | revoke CHANNEL SENDER",
            help="Show who may talk to it, let somebody in by their code, or no longer; without these, run it.",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Connect the agent to channels such as Telegram, MQTT or a web page."""
    match action or []:
        case []:
            return _run(config)
        case ["list"]:
            return _list(_database(config))
        case ["pair", code]:
            return _pair(_database(config), code)
        case ["revoke", channel, sender]:
            return _revoke(_database(config), channel, sender)
        case given:
            raise ConfigError(f"gateway {' '.join(given)}: expected list, pair CODE or revoke CHANNEL SENDER")


def _run(config: Configuration) -> int:
    from ..channels.factory import build_gateway
    from ..config.build import build_plugins
    from .plugins import close_plugins
    from .runner import answering_unattended, recorded, recorder
    from .weights import make_ready

    recorders, plugins = recorder(config.settings), build_plugins(config.settings, config.home)
    try:
        answerer, agent = answering_unattended(config, recorders, plugins)
        gateway = build_gateway(
            config.settings, answerer, home=config.home, offered=plugins.channels, file=config.file or FILE
        )
        make_ready(agent.model)
        return asyncio.run(_serve(gateway, config, plugins))
    finally:
        close_plugins(plugins)
        recorded(recorders)


async def _serve(gateway: Gateway, config: Configuration, plugins: PluginManager) -> int:
    from ..channels.factory import follow_plugins

    with view_of(gateway, debug=config.settings.debug) as view:

        def begun() -> None:
            view.has_begun = True
            follow_plugins(gateway, plugins, config.settings, home=config.home)

        await run_until_stopped(gateway, view, begun)
    return COMPLETED


def _database(config: Configuration) -> Database:
    from ..channels.factory import database_path
    from ..channels.options import GatewayOptions
    from ..stores.mailbox import gateway_database

    return gateway_database(database_path(GatewayOptions.of(config.settings.gateway), config.home))


def _list(database: Database) -> int:
    from datetime import datetime

    from ..stores.pairing import people

    found = people(database)
    if not found:
        sys.stdout.write("Nobody was let in by a code, and nobody has one.\n")
        return COMPLETED
    rows = []
    for person in found:
        at = datetime.fromtimestamp(person.until or person.since).astimezone()
        state = f"has a code until {at:%H:%M}" if person.until else f"let in {at:%Y-%m-%d %H:%M}"
        rows.append((person.channel, person.sender, state))
    table(("channel", "sender", "state"), rows, keep=("channel", "sender"))
    return COMPLETED


def _pair(database: Database, code: str) -> int:
    from ..stores.pairing import pair

    person = pair(database, code)
    sys.stdout.write(f"{printable(person.sender, keep='')} may talk to the channel {person.channel} now.\n")
    return COMPLETED


def _revoke(database: Database, channel: str, sender: str) -> int:
    from ..stores.errors import StoreError
    from ..stores.pairing import revoke

    if not revoke(database, channel, sender):
        raise StoreError(f"{sender!r} was not let in to {channel!r}: hookline gateway list shows who was")
    sys.stdout.write("Done: from the next message on they are not let in.\n")
    return COMPLETED


REFRESH = 0.5
"""Seconds between two looks."""


def view_of(gateway: Gateway, *, debug: bool = False) -> GatewayLog:
    """The view for this terminal; lines where there is none, or where the conversation itself takes place there."""
    talks_here = any(map(_talks_here, gateway.channels.values()))
    kind = GatewayScreen if is_capable(sys.stdout.isatty()) and not talks_here else GatewayLog
    return kind(gateway, debug=debug)


def _talks_here(channel: object) -> bool:
    return type(channel).__name__ == "ConsoleChannel"


class GatewayLog(logging.Handler):
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


class GatewayScreen(GatewayLog):
    """The same, with a small table below that shows how it is now."""

    def __enter__(self) -> Self:

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
        self._live.update(status_table(status), refresh=True)


def status_table(status: Status) -> Any:
    """The table of channels, and the numbers below it."""
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

    parts = [Text.assemble((f"{label} ", "dim"), (f"{value:,}", style if value else "dim")) for label, value in items]
    return Text(" · ", style="dim").join(parts)
