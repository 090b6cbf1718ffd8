"""``hookline coverage``: which tools, arguments and points no guard looks at."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.text import Text

from ..config.sources import Configuration
from .backtest import ProgressBar, exit_code, load_rules
from .errors import print_note, print_skipped, set_up_logging
from .help import Command
from .names import RecordNames, named_records
from .options import AsJson, Since, with_settings
from .output import print_parts, print_table, write_json
from .text import counted, parse_since, printable, short

if TYPE_CHECKING:
    from ..backtest._coverage import Argument, Coverage, ToolCoverage

EPILOG = """
Examples:
  hookline coverage rules.py
  hookline coverage rules.py records/ --since 30d --fail-if "uncovered_tools > 0"

RULES is FILE.py, FILE.py:name, rules.toml, module:name or the name of a built-in hook. RECORDS are files and folders of
records and tapes. The guards in RULES are called for each recorded call of a tool. No tool and no model is called.

Names for --fail-if: uncovered_tools, unread_arguments, undecided_points, tools, calls, runs, moments, skipped, failed.

Exit codes:
  0    all is well
  1    the condition of --fail-if is true
  2    invalid input or setup
  5    a guard failed, lines or moments were skipped, or there was no run, and no condition of --fail-if is true
"""

_NAME = 40


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("coverage", cls=Command, epilog=EPILOG)(with_settings("debug")(coverage))


def coverage(
    config: Configuration,
    rules: Annotated[str, typer.Argument(metavar="RULES", help="The hooks to look at.")],
    records: RecordNames = None,
    since: Since = None,
    where: Annotated[
        list[str] | None, typer.Option(metavar="TERM", help="Only some runs, such as agent=bob. Repeatable.")
    ] = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(metavar="CONDITION", help='Exit with 1 if this is true: "uncovered_tools > 0". Repeatable.'),
    ] = None,
    json: AsJson = False,
) -> int:
    """Show which tools and arguments no guard has looked at.

    Also shown: points of recorded runs at which no hook decides, and model calls by purpose.
    """
    from ..backtest._coverage import coverage as measure
    from ..backtest._coverage import coverage_condition

    set_up_logging(config.settings.debug)
    for condition in fail_if or ():
        coverage_condition(condition)  # report a mistake before reading the records
    after = parse_since(since)
    with (
        named_records(records, config) as paths,
        redirect_stdout(sys.stderr),  # for rules that print
        ProgressBar() as progress,
    ):
        found = measure(load_rules(rules), paths, where=where or (), since=after, progress=progress)
    if json:
        names = {"uncovered_tools": found.uncovered_tools, "undecided_points": found.undecided_points}
        write_json(names | msgspec.to_builtins(found))
    else:
        _print(found)
    return exit_code(found, fail_if or ())


def _print(found: Coverage) -> None:
    calls = sum(tool.calls for tool in found.tools)
    open_tools, unread = len(found.uncovered_tools), sum(len(tool.unread) for tool in found.tools)
    if found.tools:
        tools = f"No guard judges {open_tools:,} of {counted(len(found.tools), 'tool')}."
        arguments = f"{counted(unread, 'argument')} {'was' if unread == 1 else 'were'} never looked at."
        print_parts(
            Text.assemble(
                (tools if open_tools else "Every tool is judged by a guard.", _style(open_tools)),
                (f" {arguments}", _style(unread)),
                f" {counted(found.runs, 'run')}, {counted(calls, 'call')}.\n",
            )
        )
        print_table(
            ("tool", "calls", "guards", "never looked at", "read as a whole"),
            [_row(tool) for tool in found.tools],
            right=("calls",),
        )
    else:
        where = counted(found.runs, "recorded run") if found.runs else "the records, because they contain no runs"
        print_parts(Text(f"No tool was called in {where}.", style="bold yellow"))
    undecided = [f"{each.point} ({each.moments:,})" for each in found.points if not each.deciders]
    lines = [Text.assemble(("\nPoints without a decider: ", "bold"), ", ".join(undecided) or "none")]
    if found.purposes:
        purposes = ", ".join(f"{_name(each.purpose)} ({each.calls:,})" for each in found.purposes)
        lines.append(Text.assemble(("Model calls by purpose: ", "bold"), purposes))
    print_parts(*lines)
    for failure in found.failures:
        problem = "failed" if failure.problem == "raised" else failure.problem.replace("_", " ")
        message = f": {failure.message}" if failure.problem == "raised" else ""
        print_note(f"the guard {failure.hook!r} {problem} at {counted(failure.count, 'call')}{message}")
    print_skipped(found.skipped)


def _style(problem: object) -> str:
    return "bold red" if problem else "bold green"


def _row(tool: ToolCoverage) -> tuple[object, ...]:
    calls = f"{tool.calls:,}" + (f" ({tool.nested:,} nested)" if tool.nested else "")
    guards = Text(printable(", ".join(tool.guards), keep="")) if tool.guards else Text("none", style="red")
    unread = Text(_arguments(tool.unread), style="red" if tool.guards else "")
    return _name(tool.tool), calls, guards, unread, _arguments(tool.read_as_a_whole)


def _arguments(arguments: tuple[Argument, ...]) -> str:
    return ", ".join(f"{_name(each.name)} ({each.calls:,})" for each in arguments)


def _name(text: str) -> str:
    return short(printable(text, keep=""), _NAME)
