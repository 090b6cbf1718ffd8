"""``hookline mcp-gateway``: guards in front of MCP servers."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .._base.errors import HooklineError
from .errors import print_note
from .help import Command

if TYPE_CHECKING:
    from ..adapters.mcp_gateway.guards import Guards
    from ..adapters.mcp_gateway.hub import ServerSettings

EPILOG = """
Examples:
  hookline mcp-gateway --rules rules.py -- npx -y @modelcontextprotocol/server-filesystem /srv/files
  hookline mcp-gateway --rules hookline.toml --name git -- uvx mcp-server-git
  hookline mcp-gateway --rules rules.py --servers mcp.json --http 8430

Write this command into the settings of an MCP client, in place of the server's own. RULES are the same as for
hookline agent-hook: FILE.py, FILE.py:name, module:name, the name of a built-in hook, or a hookline.toml.

Hooks see the tools of the server by their names, and also: read_resource (uri), get_prompt (name, arguments), and
what the server asks of the client: sampling and elicitation. The tools are used as they were when they were
approved: see hookline mcp-pins.

With --servers, several servers are behind one: the names of their tools and prompts begin with NAME__. FILE has
mcpServers in the form that most clients use. With --http, clients connect to http://127.0.0.1:PORT/mcp. Callers from
other machines need a key (hookline keys add NAME --scope run), and all callers as soon as there is one.

Exit codes:
  0    the client has closed its end
  2    the rules cannot be loaded, or the server cannot be started
  else the server has ended by itself, with this code, or 1
"""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("mcp-gateway", cls=Command, epilog=EPILOG)(mcp_gateway)


def mcp_gateway(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- COMMAND...]", help="The command that starts the server.")
    ] = None,
    rules: Annotated[list[str] | None, typer.Option("--rules", metavar="RULES", help="The hooks. Repeatable.")] = None,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="The name of the server for people. [default: from its command]")
    ] = "",
    servers: Annotated[
        str, typer.Option(metavar="FILE", help="Guard all servers of this file, instead of one command.")
    ] = "",
    http: Annotated[
        str, typer.Option(metavar="[HOST:]PORT", help="Serve clients over HTTP, instead of the one on stdin.")
    ] = "",
    keys: Annotated[
        str, typer.Option(metavar="FILE", help="The API keys for --http. [default: keys.db in the user's data folder]")
    ] = "",
    runs: Annotated[
        str,
        typer.Option(metavar="PLACE", help="Where sessions are listed: a SQLite file, a PostgreSQL address, or none."),
    ] = "",
    ask_first: Annotated[
        bool, typer.Option("--ask-first", help="Hide the tools of a server never seen, until they are approved.")
    ] = False,
    max_message: Annotated[
        int, typer.Option(min=1, metavar="MB", help="Cut off a server that sends a larger message.")
    ] = 64,
) -> int:
    """Guard MCP servers: hooks judge the calls of their tools, and changed tools are hidden."""
    from ..adapters.mcp_gateway.guards import Guards
    from ..adapters.mcp_gateway.hub import ServerSettings, read_servers
    from ..adapters.mcp_gateway.stdio import serve, serve_several
    from ..tools._mcp import default_name

    if bool(command) == bool(servers):
        raise typer.BadParameter("give either a command after --, or --servers FILE")
    several = read_servers(Path(servers)) if servers else []
    if command and http:
        several = [ServerSettings(name or "server", tuple(command))]
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="hookline: %(message)s")
    guards = Guards.load(rules or (), runs=False if runs == "none" else runs or None)
    for unused in guards.not_called():
        print_note(f"this has no effect in front of an MCP server: {unused}")
    size = max_message * 2**20
    if http:
        return asyncio.run(_serve_http(several, guards, _address(http), keys, ask_first=ask_first, max_message=size))
    if several:
        return asyncio.run(serve_several(several, guards, ask_first=ask_first, max_message=size))
    shown = name or default_name(command or ())
    return asyncio.run(serve(command or (), shown, guards, ask_first=ask_first, max_message=size))


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdecimal():
        raise typer.BadParameter(f"--http takes a port, or HOST:PORT, not {text!r:.80}")
    return host.strip("[]") or "127.0.0.1", int(port)


async def _serve_http(
    servers: Sequence[ServerSettings],
    guards: Guards,
    address: tuple[str, int],
    keys: str,
    *,
    ask_first: bool,
    max_message: int,
) -> int:
    from .._base.files import user_folder
    from ..adapters.mcp_gateway.http import PATH, Endpoint, start
    from ..stores.keys import KeyStore

    store = KeyStore(keys or user_folder("data") / "keys.db")
    endpoint = Endpoint(servers, guards, store, ask_first=ask_first, max_message=max_message)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    try:
        server = await start(endpoint, *address, max_message=max_message)
    except HooklineError:
        store.close()
        raise
    sys.stderr.write(f"hookline: MCP servers behind {server.url}{PATH}: {', '.join(each.name for each in servers)}\n")
    await stopped.wait()
    await endpoint.close()
    await server.stop()
    store.close()
    return 0
