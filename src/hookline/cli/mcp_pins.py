"""``hookline mcp-pins``: the approved tools of MCP servers, and what differs from them."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from .._base.errors import HooklineError
from ..adapters.mcp_gateway.pins import PinFile, PinStore, diff_of, pins_folder, read_pins
from .errors import CANCELLED, COMPLETED
from .help import Command
from .output import print_table
from .text import counted, printable

EPILOG = """
Examples:
  hookline mcp-pins
  hookline mcp-pins files
  hookline mcp-pins files --approve
  hookline mcp-pins files --approve --tool read_file
  hookline mcp-pins files --forget

hookline mcp-gateway approves the tools of a server when it sees it for the first time (with --ask-first, it does not),
with the descriptions, schemas and annotations that they have then, and the server's instructions. What changes later,
or is new, is hidden and refused until you approve it here.
"""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("mcp-pins", cls=Command, epilog=EPILOG)(mcp_pins)


def mcp_pins(
    server: Annotated[
        str,
        typer.Argument(metavar="SERVER", show_default=False, help="The name of a server, or a word of its command."),
    ] = "",
    approve: Annotated[bool, typer.Option("--approve", help="Approve what is new or has changed.")] = False,
    tool: Annotated[
        list[str] | None, typer.Option("--tool", metavar="NAME", help="Approve this tool only. Repeatable.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    forget: Annotated[
        bool, typer.Option("--forget", help="Forget the server: its next start counts as the first.")
    ] = False,
) -> int:
    """Show the approved tools of MCP servers, and approve what is new or has changed."""
    found = _found(server)
    if not server:
        _list(found)
        return COMPLETED
    if len(found) != 1:
        names = ", ".join(printable(" ".join(each.server), keep="") for each, _ in found) or "none"
        raise HooklineError(f"{server!r:.80} must name one server; it names: {names}")
    ((pins, store),) = found
    wanted = [name for name in sorted(pins.waiting) if not tool or name in tool]
    for name in wanted:
        state = "has changed" if name in pins.approved else "is new"
        sys.stdout.write(
            f"{printable(name, keep='')} {state}:\n{diff_of(pins.approved.get(name), pins.waiting[name])}\n"
        )
    if not wanted:
        sys.stdout.write(f"{counted(len(pins.approved), 'entry')} approved, and nothing waits for approval.\n")
    if forget:
        store.forget()
        sys.stderr.write("Forgotten.\n")
    elif approve and wanted:
        if not yes and not _confirmed(len(wanted)):
            sys.stderr.write("Not approved.\n")
            return CANCELLED
        store.approve(wanted, _user(), {name: pins.waiting[name].digest for name in wanted})
        sys.stderr.write(f"Approved: {counted(len(wanted), 'entry')}.\n")
    return COMPLETED


def _found(server: str) -> list[tuple[PinFile, PinStore]]:
    folder, found = pins_folder(), []
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        pins = read_pins(path)
        if not server or server == pins.name or server in pins.server:
            found.append((pins, PinStore(pins.server, pins.name)))
    return found


def _list(found: list[tuple[PinFile, PinStore]]) -> None:
    rows = []
    for pins, _ in found:
        first = min((pin.at for pin in pins.approved.values()), default=0.0)
        since = time.strftime("%Y-%m-%d", time.localtime(first)) if first else "never"
        waiting = ", ".join(printable(name, keep="") for name in sorted(pins.waiting))
        command = printable(" ".join(pins.server), keep="")
        rows.append((printable(pins.name, keep=""), str(len(pins.approved)), since, waiting or "nothing", command))
    if not rows:
        sys.stdout.write(f"No MCP server was started through hookline mcp-gateway yet ({Path(pins_folder())}).\n")
        return
    print_table(("server", "approved", "since", "waits for approval", "command"), rows)


def _confirmed(number: int) -> bool:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise HooklineError("there is no terminal to ask at: read the differences above, then add --yes")
    sys.stderr.write(f"Approve {counted(number, 'entry')} as shown? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _user() -> str:
    return os.environ.get("USER") or os.environ.get("USERNAME") or "the user"
