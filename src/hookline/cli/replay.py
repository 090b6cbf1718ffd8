"""``hookline replay``: replay recorded runs under other hooks, and compare the decisions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.text import Text

from ..config.errors import ConfigError
from ..config.sources import Configuration
from ..explain.words import gate_of
from .errors import BAD_INPUT, COMPLETED, FAILED, print_error, print_note, set_up_logging
from .help import Command
from .hook_line import is_ascii, sign
from .names import find_tapes
from .options import Since, with_settings
from .output import print_parts
from .text import counted, parse_since, printable, run_summary, wrap_line

if TYPE_CHECKING:
    from ..tape._replay import Replay
    from ..tape.format import TapeError
    from ..tape.tape import Tape

EPILOG = """
Examples:
  hookline run "What is in this folder?" --tape monday.tape
  hookline replay monday.tape --show
  hookline replay tapes --since 7d --hooks new_rules.py

Models, tools and approvers are not called: their answers come from the tape. Hooks run for real, with their effects.

Exit codes:
  0    all decisions are the same as in the recording
  1    a decision differs
  2    invalid input or setup, such as a file that is not a tape; the other tapes are replayed
"""


HEADINGS = ("tape", "status", "decisions", "replay")
STYLES = {"different": "yellow"}
MAX_NAME = 60
"""Maximum width of the column with the names of tapes."""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    settings = with_settings("hooks", "claude_hooks", "folder", "write", "shell", "shell_profile", "skills", "debug")
    app.command("replay", cls=Command, epilog=EPILOG)(settings(replay))


def replay(
    config: Configuration,
    tapes: Annotated[
        list[str],
        typer.Argument(
            metavar="TAPE...",
            help="Files written by hookline run --tape, folders of them, ids of runs or their beginnings, or last.",
        ),
    ],
    since: Since = None,
    show: Annotated[bool, typer.Option("--show", help="Only print the recorded run.")] = False,
    loose: Annotated[
        bool,
        typer.Option("--loose", help="Continue with the recorded reply where the request to the model differs."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each tape.")] = False,
) -> int:
    """Replay tapes under other hooks, and show what differs.

    A replay runs the whole loop with the recorded replies and results. hookline backtest is faster, and also reads
    records.
    """
    from ..tape._replay import replay as play
    from ..tape.format import TapeError
    from ..tape.tape import Tape, tape_files

    set_up_logging(config.settings.debug)
    files = tape_files(find_tapes(tapes, config), since=parse_since(since))
    if not files:
        raise ConfigError(f"there are no tapes in {', '.join(tapes)}" + (f" since {since}" if since else ""))
    if config.settings.plugins and not show:
        print_note(f"a replay does not use plugins: {', '.join(config.settings.plugins)}")
    printer = Printer(files, json=json)
    with _progress_bar(len(files), visible=not show) as advance:
        for file in files:
            try:
                if show:
                    _print_tape(Tape.load(file), alone=len(files) == 1)
                else:
                    printer.print(play(file, _hooks(config), strict=not loose))
            except TapeError as error:
                printer.print_damaged(file, error)
            advance(file.name)
    if not show:
        printer.print_summary()
    if printer.damaged:
        return BAD_INPUT
    return FAILED if printer.different else COMPLETED


@contextmanager
def _progress_bar(total: int, *, visible: bool) -> Iterator[Callable[[str], None]]:
    """Show a progress bar on stderr if that is a terminal. Yield a function to call after each tape."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn()
    hidden = not visible or total == 1 or not console.is_terminal
    # On a terminal, Rich prints results above the bar. A file or a pipe must get them unchanged.
    with Progress(
        *columns, console=console, disable=hidden, transient=True, redirect_stdout=sys.stdout.isatty()
    ) as bar:
        task = bar.add_task("", total=total)
        yield lambda name: bar.update(task, advance=1, description=printable(name, keep=""))


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
    from .output import print_reply
    from .views import choose_view

    if not alone:
        _print_line(f"{tape.name}:")
    view = choose_view(sys.stdout, recorded=True)
    for event in tape.events():
        view(event)
    result = tape.result
    if result is None:
        _print_line("the recording stops before the end of the run")
        return
    print_reply(printable(result.reply))
    _print_line(run_summary(result))


def _print_line(line: str) -> None:
    sys.stdout.write(f"{wrap_line(printable(line, keep=''), sys.stdout)}\n")
    sys.stdout.flush()


class Printer:
    """Prints the results of replays as they come, and a summary.

    Args:
        files: all tapes that will be replayed.
        json: whether to print JSON.
    """

    def __init__(self, files: Sequence[Path], *, json: bool) -> None:
        self._json, self._count = json, len(files)
        names = max(len(printable(file.name, keep="")) for file in files)
        self._widths = (min(MAX_NAME, max(names, len(HEADINGS[0]))), 10, len(HEADINGS[2]), 9)
        self._any = False
        self.different = self.damaged = 0

    def print(self, each: Replay) -> None:
        """Print the result of a replay."""
        self.different += not each.same
        if self._json:
            sys.stdout.write(f"{_as_json(each)}\n")
            return
        for note in each.notes:
            print_note(f"{each.tape.name}: {note}")
        if not self._any:
            self._print_row(HEADINGS, style="bold")
            self._any = True
        then = each.tape.result
        status = then.status if then is not None else "unfinished"
        self._print_row((each.tape.name, status, str(len(each.recorded)), "same" if each.same else "different"))
        _print_differences(each)
        if each.stop_reason:
            why = f"  The replay ends here: {printable(each.stop_reason, keep='')}."
            print_parts(Text(why, style="dim"), soft_wrap=True)

    def _print_row(self, cells: Sequence[str], style: str = "") -> None:
        row = Text(style=style)
        for cell, width in zip(cells, self._widths, strict=True):
            row.append(f"{printable(cell, keep=''):<{width}}  ", style=STYLES.get(cell, ""))
        row.rstrip()
        print_parts(row, soft_wrap=True)

    def print_damaged(self, file: Path, error: TapeError) -> None:
        """Report a tape that cannot be replayed."""
        self.damaged += 1
        print_error(str(error))
        if self._json:
            sys.stdout.write(msgspec.json.encode({"tape": file.name, "error": str(error)}).decode() + "\n")

    def print_summary(self) -> None:
        """Print how many tapes differ, if there are several."""
        if self._json or self._count == 1:
            return
        damaged = f", {self.damaged} damaged" if self.damaged else ""
        print_parts(Text(f"\n{counted(self._count, 'tape')}, {self.different} different{damaged}"))


def _print_differences(each: Replay) -> None:
    """Print what was recorded above what the replay did, for the first difference and for each other decision."""
    texts = [each.first_difference, *map(str, each.differences)]
    verbs = {decision.what: decision.verb for decision in (*each.recorded, *each.replayed)}

    def side(label: str, text: str, style: str = "") -> None:
        verb = next((verb for what, verb in verbs.items() if text.startswith(what)), "")
        mark = (sign(gate_of(verb), ascii=is_ascii(sys.stdout)), " ") if verb else ()
        print_parts(Text.assemble((f"  {label}  ", "dim"), *mark, (printable(text, keep=""), style)), soft_wrap=True)

    for before, text in zip(("", *texts), texts, strict=False):
        recorded, _, replayed = text.removeprefix("recorded: ").partition("; replayed: ")
        if not text or (recorded == "nothing" and before.endswith(f"; replayed: {replayed}")):
            continue  # the first difference is often that decision
        side("recorded", recorded)
        side("replayed", replayed, "bold")


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
