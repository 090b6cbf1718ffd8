"""``hookline serve``: let programs call an agent over HTTP."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..config.settings import KEYS
from ..config.sources import Configuration
from ..config.trust import reference_files
from ..plugins.trust import trust_named
from .errors import COMPLETED
from .help import Command
from .options import DURABLE, service_option, with_settings, with_table
from .server_log import ServerLog
from .services import run_until_stopped
from .terminal import can_move_cursor

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

The server accepts requests from this machine only, unless --host or [server] in the configuration file sets another
address; callers then need API keys. Ctrl-C stops it after the current runs. Ctrl-C again stops it at once.
"""

_EXCLUDED = ("hosts",)  # its option --host has another meaning here
_PANEL = "Server"


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    keys = [name for name in KEYS if name not in _EXCLUDED]
    app.command("serve", cls=Command, epilog=EPILOG)(with_settings(*keys)(serve))


def serve(
    config: Configuration,
    host: Annotated[
        str | None, service_option("Address to listen on. [default: 127.0.0.1]", metavar="ADDRESS", panel=_PANEL)
    ] = None,
    port: Annotated[
        int | None, service_option("Port to listen on; 0 for any free port. [default: 8420]", metavar="N", panel=_PANEL)
    ] = None,
    socket: Annotated[
        str | None,
        service_option(
            "Unix socket to listen on as well, for programs of this user, in a folder that nobody else can enter.",
            metavar="PATH",
            panel=_PANEL,
        ),
    ] = None,
    durable: Annotated[bool | None, service_option(DURABLE, "--durable/--no-durable", panel=_PANEL)] = None,
    execute: Annotated[
        bool | None,
        service_option(
            "Execute durable runs here, or leave them to hookline worker. [default: execute]",
            "--execute/--no-execute",
            panel=_PANEL,
        ),
    ] = None,
    rules: Annotated[
        list[str] | None,
        service_option(
            "File of hooks that can be tried on recorded runs in the console. Repeatable.",
            metavar="FILE",
            panel=_PANEL,
        ),
    ] = None,
    grace: Annotated[
        float | None,
        service_option("Seconds that runs get to finish at shutdown. [default: 30]", metavar="S", panel=_PANEL),
    ] = None,
) -> int:
    """Serve the agent over HTTP: a JSON API, A2A, and OpenAI's chat API."""
    options: dict[str, Any] = {"host": host, "port": port, "durable": durable, "execute": execute, "grace": grace}
    options["socket"] = None if socket is None else os.path.abspath(socket)
    if rules:
        trust_named(*reference_files(rules, Path.cwd()))
        options["rules"] = [*config.settings.server.get("rules", ()), *map(os.path.abspath, rules)]
    return _build_and_serve(with_table(config, "server", options))


def _build_and_serve(config: Configuration) -> int:
    from ..server.build import build_server
    from ..server.options import ServerOptions
    from .runner import unattended_agent
    from .weights import prepare_model

    ServerOptions.of(config.settings.server)  # with those of the command line, before the model is loaded
    with unattended_agent(config) as (answerer, agent, _):
        server = build_server(config.settings, answerer, home=config.home)
        prepare_model(agent.model)
        return asyncio.run(_serve(server, config.settings))


async def _serve(server: Server, settings: Settings) -> int:
    with make_view(server, debug=settings.debug) as view:
        await run_until_stopped(server, view, view.on_started)
    return COMPLETED


def make_view(server: Server, *, debug: bool = False) -> ServerLog:
    """Return a live view on a terminal; log lines elsewhere, or if logs are to be JSON."""
    if not can_move_cursor(sys.stderr.isatty()) or server.options.logs == "json":
        return ServerLog(server, debug=debug)
    from .server_screen import ServerScreen  # Rich takes time to import, and a server in the background draws nothing

    return ServerScreen(server, debug=debug)
