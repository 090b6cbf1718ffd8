"""``hookline gateway``: an agent that people reach through channels."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ..config.errors import ConfigError
from ..config.sources import FILE, Configuration
from .exits import COMPLETED
from .help import Command
from .options import takes_settings

if TYPE_CHECKING:
    from ..channels.gateway import Gateway
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
    """Let people reach the agent through channels."""
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
    from ..config.plugins import build_plugins
    from .plugins import close_plugins
    from .recording import recorded, recorder
    from .speaking import answering_unattended
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
    from .gateway_view import view_of
    from .stopping import run_until_stopped

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
    from .screen import table

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
    from .text import printable

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
