"""``hookline replay``: replay recorded runs under other hooks, and compare the decisions."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.text import Text

from ..config.sources import Configuration
from .errors import COMPLETED, FAILED, print_note, set_up_logging
from .help import Command
from .options import with_settings
from .output import print_parts, print_table
from .text import counted, printable, run_summary

if TYPE_CHECKING:
    from ..tape._replay import Replay
    from ..tape.tape import Tape

EPILOG = """
Examples:
  hookline run "What is in this folder?" --tape monday.tape
  hookline replay monday.tape --show
  hookline replay tapes/*.tape --hooks new_rules.py

Models, tools and approvers are not called: their answers come from the tape. Hooks run for real, with their effects.

Exit codes:
  0    all decisions are the same as in the recording
  1    a decision differs
  2    invalid input or setup, such as a file that is not a tape
"""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    settings = with_settings("hooks", "folder", "write", "shell", "shell_profile", "skills", "debug")
    app.command("replay", cls=Command, epilog=EPILOG)(settings(replay))


def replay(
    config: Configuration,
    tapes: Annotated[list[str], typer.Argument(metavar="TAPE...", help="Files written by hookline run --tape.")],
    show: Annotated[bool, typer.Option("--show", help="Only print the recorded run.")] = False,
    loose: Annotated[
        bool,
        typer.Option("--loose", help="Continue with the recorded reply where the request to the model differs."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each tape.")] = False,
) -> int:
    """Replay recorded runs under other hooks, and show which decisions differ."""
    from ..tape._replay import replay as play
    from ..tape.tape import Tape

    set_up_logging(config.settings.debug)
    found = [Tape.load(path) for path in tapes]
    if show:
        for tape in found:
            _print_tape(tape, alone=len(found) == 1)
        return COMPLETED
    if config.settings.plugins:
        print_note(f"a replay does not use plugins: {', '.join(config.settings.plugins)}")
    replays = [play(tape, _hooks(config), strict=not loose) for tape in found]
    if json:
        for each in replays:
            sys.stdout.write(f"{_as_json(each)}\n")
    else:
        _print_replays(replays)
    return COMPLETED if all(each.same for each in replays) else FAILED


def _hooks(config: Configuration) -> Any:
    """Build the configured hooks for one tape, without the audit log: a replay is not a run to audit."""
    from ..config.factory import build_hooks

    settings = msgspec.structs.replace(config.settings, audit=None, tapes="")
    registry, plugins = build_hooks(settings, config.home, config.hooks_file)
    for plugin in plugins:
        for hook in plugin.hooks:
            registry.register(hook, plugin=plugin.name)
    return registry


def _print_tape(tape: Tape, *, alone: bool) -> None:
    """Print a recorded run as ``hookline run`` prints one."""
    from .views import PlainView

    view = PlainView(sys.stdout)
    if not alone:
        view.write(f"{printable(tape.name, keep='')}:")
    view.write(f"task: {printable(tape.run.task, keep='')}")
    for event in tape.events():
        view(event)
    result = tape.result
    if result is None:
        view.write("the recording stops before the end of the run")
        return
    if result.reply:
        sys.stdout.write(f"{printable(result.reply)}\n")
    view.write(run_summary(result))


def _print_replays(replays: list[Replay]) -> None:

    for each in replays:
        for note in each.notes:
            print_note(f"{each.tape.name}: {note}")
    rows = []
    for each in replays:
        then = each.tape.result
        rows.append(
            (
                each.tape.name,
                then.status if then is not None else "unfinished",
                f"{len(each.recorded)} / {len(each.replayed)}",
                Text("same", style="green") if each.same else Text("different", style="red"),
                _first_difference(each),
            )
        )
    print_table(
        ("tape", "status", "decisions recorded / replayed", "replay", "first difference"),
        rows,
        keep=("tape", "status", "decisions recorded / replayed", "replay"),
    )
    for each in replays:
        if each.differences:
            print_parts(Text(f"\n{printable(each.tape.name, keep='')}", style="bold"))
        for difference in each.differences:
            print_parts(Text(f"  {printable(str(difference), keep='')}"))
        if each.stop_reason:
            print_parts(
                Text(f"  the tape has no answers after this: {printable(each.stop_reason, keep='')}", style="dim")
            )
    different = sum(not each.same for each in replays)
    if len(replays) > 1:
        print_parts(Text(f"\n{counted(len(replays), 'tape')}, {different} different"))


def _first_difference(each: Replay) -> str:
    return each.first_difference or each.stop_reason


def _as_json(each: Replay) -> str:
    fields = {
        "tape": each.tape.name,
        "run_id": each.tape.run.ids.run_id,
        "same": each.same,
        "first": each.first_difference,
        "left": each.stop_reason,
        "then": each.recorded,
        "now": each.replayed,
        "differences": each.differences,
        "notes": each.notes,
    }
    return msgspec.json.encode(fields).decode()
