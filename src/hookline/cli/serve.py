"""``hookline serve``: agents that other programs call."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from ..config.settings import KEYS
from ..config.sources import Configuration
from .exits import COMPLETED
from .help import Command
from .options import takes_settings

if TYPE_CHECKING:
    from ..config.settings import Settings
    from ..server.app import Server

EPILOG = """
Examples:
  hookline serve
  hookline serve --port 9000 --config agents.toml
  hookline keys add ci --scope read,run
  hookline approvals --watch

Then, from another terminal:
  curl -s http://127.0.0.1:8420/runs -H 'Content-Type: application/json' -d '{"task": "Say hello."}'

It listens to this machine alone, unless [server] in the configuration file, or --host, says otherwise; then callers
need keys. Ctrl-C stops it: runs may finish. Ctrl-C again stops it at once.
"""

_NOT_HERE = ("hosts",)  # its option is --host, which is another thing here
_OURS = "Server"


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    keys = [name for name in KEYS if name not in _NOT_HERE]
    app.command("serve", cls=Command, epilog=EPILOG)(takes_settings(*keys)(serve))


def serve(
    config: Configuration,
    host: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Listen at this address. [default: 127.0.0.1]", show_default=False,
            rich_help_panel=_OURS,
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Listen at this port; 0 for any that is free. [default: 8420]", show_default=False,
            rich_help_panel=_OURS,
        ),
    ] = None,
    grace: Annotated[
        float | None,
        typer.Option(
            metavar="S", help="Runs get S seconds to finish when it is stopped. [default: 30]", show_default=False,
            rich_help_panel=_OURS,
        ),
    ] = None,
) -> int:  # fmt: skip
    """Let other programs call the agent over HTTP: a JSON API, A2A, and OpenAI's chat."""
    given = {name: value for name, value in (("host", host), ("port", port), ("grace", grace)) if value is not None}
    settings = msgspec.structs.replace(config.settings, server={**config.settings.server, **given})
    return _run(msgspec.structs.replace(config, settings=settings))


def _run(config: Configuration) -> int:
    from ..config.plugins import build_plugins
    from ..server.build import build_server
    from ..server.options import ServerOptions
    from .plugins import close_plugins
    from .recording import recorded, recorder
    from .speaking import answering_unattended
    from .weights import make_ready

    ServerOptions.of(config.settings.server)  # before anything is loaded for it
    recorders, plugins = recorder(config.settings), build_plugins(config.settings, config.home)
    try:
        answerer, agent = answering_unattended(config, recorders, plugins)
        server = build_server(config.settings, answerer, home=config.home)
        make_ready(agent.model)
        return asyncio.run(_serve(server, config.settings))
    finally:
        close_plugins(plugins)
        recorded(recorders)


async def _serve(server: Server, settings: Settings) -> int:
    from .serve_view import view_of
    from .stopping import run_until_stopped

    with view_of(server, debug=settings.debug) as view:
        await run_until_stopped(server, view, view.begun)
    return COMPLETED
