"""``hookline mcp-gateway``: guards in front of an MCP server."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Annotated

import typer

from .errors import print_note
from .help import Command

EPILOG = """
Examples:
  hookline mcp-gateway --rules rules.py -- npx -y @modelcontextprotocol/server-filesystem /srv/files
  hookline mcp-gateway --rules hookline.toml --name git -- uvx mcp-server-git

Write this command into the settings of an MCP client, in place of the server's own. RULES are the same as for
hookline agent-hook: FILE.py, FILE.py:name, module:name, the name of a built-in hook, or a hookline.toml.

Hooks see the tools of the server by their names, and also: read_resource (uri), get_prompt (name, arguments), and
what the server asks of the client: sampling and elicitation. The tools are used as they were when they were
approved: see hookline mcp-pins.

Exit codes:
  0    the client has closed its end
  2    the rules cannot be loaded, or the server cannot be started
  else the server has ended by itself, with this code, or 1
"""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("mcp-gateway", cls=Command, epilog=EPILOG)(mcp_gateway)


def mcp_gateway(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="The command that starts the server.")],
    rules: Annotated[list[str] | None, typer.Option("--rules", metavar="RULES", help="The hooks. Repeatable.")] = None,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="The name of the server for people. [default: from its command]")
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
    """Guard an MCP server: hooks judge the calls of its tools, and changed tools are hidden."""
    from ..adapters.mcp_gateway.guards import Guards
    from ..adapters.mcp_gateway.stdio import serve
    from ..tools._mcp import default_name

    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="hookline: %(message)s")
    guards = Guards.load(rules or (), runs=False if runs == "none" else runs or None)
    for unused in guards.not_called():
        print_note(f"this has no effect in front of an MCP server: {unused}")
    shown = name or default_name(command)
    return asyncio.run(serve(command, shown, guards, ask_first=ask_first, max_message=max_message * 2**20))
