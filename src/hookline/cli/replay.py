"""``hookline replay``: what these hooks make of runs that were recorded."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.text import Text

from ..config.sources import Configuration
from .errors import COMPLETED, FAILED, quiet_logs, say_note
from .help import Command
from .options import takes_settings
from .output import show, table
from .text import counted, printable, summary

if TYPE_CHECKING:
    from ..tape._replay import Replay
    from ..tape.tape import Tape

EPILOG = """
Examples:
  hookline run "What is in this folder?" --tape monday.tape
  hookline replay monday.tape --show
  hookline replay tapes/*.tape --hooks new_rules.py

No model, tool or approver is asked: the tape has their answers. Hooks are called, and do what they do.

Exit codes:
  0    every decision is the same as it was then
  1    something is different
  2    bad input or setup, such as a file that is no tape
"""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    with_settings = takes_settings("hooks", "folder", "write", "shell", "skills", "debug")
    app.command("replay", cls=Command, epilog=EPILOG)(with_settings(replay))


def replay(
    config: Configuration,
    tapes: Annotated[list[str], typer.Argument(metavar="TAPE...", help="What hookline run --tape wrote.")],
    show: Annotated[bool, typer.Option("--show", help="Only show what happened then, as it looked then.")] = False,
    loose: Annotated[
        bool,
        typer.Option("--loose", help="Go on where the model would have been sent something else, with what it said."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="As JSON, one object a tape.")] = False,
) -> int:
    """Replay recorded runs under other hooks, and show which decisions differ."""
    from ..tape._replay import replay as play
    from ..tape.tape import Tape

    quiet_logs(config.settings.debug)
    found = [Tape.load(path) for path in tapes]
    if show:
        for tape in found:
            _show(tape, alone=len(found) == 1)
        return COMPLETED
    if config.settings.plugins:
        say_note(f"plugins take no part in a replay: {', '.join(config.settings.plugins)}")
    replays = [play(tape, _hooks(config), strict=not loose) for tape in found]
    if json:
        for each in replays:
            sys.stdout.write(f"{_as_json(each)}\n")
    else:
        _tell(replays)
    return COMPLETED if all(each.same for each in replays) else FAILED


def _hooks(config: Configuration) -> Any:
    """The hooks of the settings, made anew for each tape, but for the audit log: nothing happens that it could tell."""
    from ..config.build import build_hooks

    settings = msgspec.structs.replace(config.settings, audit="")
    registry, plugins = build_hooks(settings, config.home, config.hooks_file)
    for plugin in plugins:
        for hook in plugin.hooks:
            registry.register(hook, plugin=plugin.name)
    return registry


def _show(tape: Tape, *, alone: bool) -> None:
    """A tape as people see a run."""
    from .views import PlainView

    view = PlainView(sys.stdout)
    if not alone:
        view.write(f"{printable(tape.name, keep='')}:")
    view.write(f"task: {printable(tape.run.task, keep='')}")
    for event in tape.events():
        view(event)
    result = tape.result
    if result is None:
        view.write("the tape ends before its run does")
        return
    if result.reply:
        sys.stdout.write(f"{printable(result.reply)}\n")
    view.write(summary(result))


def _tell(replays: list[Replay]) -> None:

    for each in replays:
        for note in each.notes:
            say_note(f"{each.tape.name}: {note}")
    rows = []
    for each in replays:
        then = each.tape.result
        rows.append((
            each.tape.name, then.status if then is not None else "unfinished",
            f"{len(each.recorded)} / {len(each.replayed)}",
            Text("same", style="green") if each.same else Text("different", style="red"), _first(each),
        ))  # fmt: skip
    table(
        ("tape", "then", "decisions then / now", "replay", "first difference"), rows,
        keep=("tape", "then", "decisions then / now", "replay"),
    )  # fmt: skip
    for each in replays:
        if each.differences:
            show(Text(f"\n{printable(each.tape.name, keep='')}", style="bold"))
        for difference in each.differences:
            show(Text(f"  {printable(str(difference), keep='')}"))
        if each.stop_reason:
            show(Text(f"  from there on the tape has no answers: {printable(each.stop_reason, keep='')}", style="dim"))
    different = sum(not each.same for each in replays)
    if len(replays) > 1:
        show(Text(f"\n{counted(len(replays), 'tape')}, {different} different"))


def _first(each: Replay) -> str:
    return each.first_difference or each.stop_reason


def _as_json(each: Replay) -> str:
    told = {
        "tape": each.tape.name, "run_id": each.tape.run.ids.run_id, "same": each.same, "first": each.first_difference,
        "left": each.stop_reason, "then": each.recorded, "now": each.replayed, "differences": each.differences,
        "notes": each.notes,
    }  # fmt: skip
    return msgspec.json.encode(told).decode()
