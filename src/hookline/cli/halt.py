"""``hookline halt``: stop all runs of a project or a fleet, and release them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from ..config.errors import ConfigError
from ..config.sources import Configuration
from .approval_prompt import current_user
from .errors import COMPLETED, STOPPED, print_note
from .help import Command
from .options import AsJson, with_settings
from .output import short_path, time_text, write_json
from .text import printable

if TYPE_CHECKING:
    from .._run.halt import Halt
    from ..stores.halts import HaltStore

EPILOG = """
Within seconds, no run begins a model call or a tool call: runs of hookline run, chat, serve, worker and gateway in this
project, or at all machines that share its PostgreSQL database. Durable runs wait and go on after the release. Other
runs that are in progress stop. Calls that are running already are not interrupted. Everybody sees the reason.

If the database cannot be read for 10 seconds, nothing new begins either.

Examples:
  hookline halt "the payment API charges twice"
  hookline halt --status
  hookline halt --release

Exit codes:
  0    done; with --status: runs are not halted
  3    with --status: runs are halted, or nobody knows
"""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    settings = with_settings("runs", "database", "audit", "audit_index", "debug")
    app.command("halt", cls=Command, epilog=EPILOG)(settings(halt))


def halt(
    config: Configuration,
    reason: Annotated[
        list[str] | None,
        typer.Argument(metavar="REASON", help="Why, in words that everybody sees.", show_default=False),
    ] = None,
    release: Annotated[bool, typer.Option("--release", help="Release the runs again.")] = False,
    status: Annotated[bool, typer.Option("--status", help="Only show whether runs are halted.")] = False,
    json: AsJson = False,
) -> int:
    """Stop all runs of the project or the fleet at once, until you release them."""
    from ..config.factory import audit_log, halts_of
    from ..stores.halts import audit_halt

    halts = halts_of(config.settings)
    if halts is None:
        raise ConfigError("there is no database of runs (runs = none), so there is no stop switch: set runs")
    if (reason and (release or status)) or (release and status):
        raise ConfigError("give a reason, --release or --status, and nothing else")
    if status:
        return _show(halts, json=json)
    if release:
        done = halts.release(by=current_user())
    else:
        done = halts.halt(" ".join(" ".join(reason or ()).split()), by=current_user())
    if done is None:
        print_note("runs are not halted" if release else "runs are halted already: that halt and its reason stay")
    elif (log := audit_log(config.settings)) is not None:
        audit_halt(log, done)
        log.flush()
    _show(halts, json=json)
    return COMPLETED


def _show(halts: HaltStore, *, json: bool) -> int:
    found = halts.current()
    if json:
        write_json({"halted": found is not None, **({} if found is None else msgspec.structs.asdict(found))})
    else:
        typer.echo(halt_text(found, halts.place))
    return COMPLETED if found is None else STOPPED


def halt_text(halt: Halt | None, place: str) -> str:
    """Return whether runs are halted, in one line for a terminal."""
    where = short_path(place)
    if halt is None:
        return printable(f"Runs are not halted ({where}).", keep="")
    if halt.problem:
        return printable(f"Runs are halted, because the stop switch cannot be read: {halt.problem}", keep="")
    since = f" since {time_text(halt.at)}, by {halt.by}" if halt.by else f" since {time_text(halt.at)}"
    why = f": {halt.reason}" if halt.reason else ""
    return printable(f"Runs are halted{since}{why} ({where}). Release them with: hookline halt --release", keep="")
