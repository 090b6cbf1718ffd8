"""``hookline backtest``: what other rules would have decided about recorded runs."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import redirect_stdout
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.text import Text

from .. import __version__
from ..config.errors import ConfigError
from ..config.sources import Configuration
from .errors import COMPLETED, FAILED, SKIPPED, print_note, print_skipped, set_up_logging
from .explain import write_page
from .help import Command
from .hook_line import TONES
from .names import RecordNames, named_records
from .options import Since, with_settings
from .output import print_parts, print_table, short_path, write_json
from .text import counted, parse_since, printable

if TYPE_CHECKING:
    from .._kernel.registry import HookRegistry
    from ..backtest._coverage import Coverage
    from ..backtest.report import Cell, Confusion, Count, Example, Report

EPILOG = """
Examples:
  hookline backtest rules.py
  hookline backtest rules.py records/ --since 30d --workers 2
  hookline backtest new.py records/ --baseline old.py --where tool=shell
  hookline backtest rules.py records/ --fail-if "newly_blocked > 0" --html report.html
  hookline backtest rules.py history/2026-11 --json > november.json
  hookline backtest --merge october.json november.json --html report.html

RULES is FILE.py, FILE.py:name, rules.toml, module:name or the name of a built-in hook. RECORDS are files and folders of
records, tapes and Parquet files. The hooks in RULES take the place of the recorded hooks with the same names; all
others keep their recorded decisions. No model and no tool is called, and the rules can neither write files nor use the
network, unless allowed.

An answer is exact up to and including the first different decision of a run, conditional after it, and a guess if a
hook read something that was not recorded.

Names for --fail-if: newly_blocked, no_longer_blocked, newly_asked, no_longer_asked, newly_changed, no_longer_changed,
changed_differently, ..., each with .exact, .conditional and .guess; differences, different_runs, runs, moments, judged,
skipped, guessed, raised, refused, timed_out, exact_share, precision, recall.

Exit codes:
  0    all is well
  1    a condition of --fail-if is true
  2    invalid input or setup
  5    a rule failed, lines or moments were skipped, or there was no run, and no condition of --fail-if is true
"""

_EXAMPLES = 3


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    settings = with_settings("model", "base_url", "api", "debug")
    app.command("backtest", cls=Command, epilog=EPILOG)(settings(backtest))


def backtest(
    config: Configuration,
    rules: Annotated[str, typer.Argument(metavar="RULES", help="The hooks to test.")],
    records: RecordNames = None,
    baseline: Annotated[
        str, typer.Option(metavar="RULES", help="Compare with these hooks instead of the recorded decisions.")
    ] = "",
    without: Annotated[
        list[str] | None, typer.Option(metavar="HOOK", help="Drop the decisions of a recorded hook. Repeatable.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TERM",
            help="Only judge some moments: tool=shell, point=before_tool, agent=bob, model=NAME, task~word, "
            "status=failed. Repeatable.",
        ),
    ] = None,
    since: Since = None,
    workers: Annotated[int, typer.Option(min=1, metavar="N", help="Number of processes.")] = 1,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(metavar="CONDITION", help='Exit with 1 if this is true: "newly_blocked > 0". Repeatable.'),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="ACTION", help="Let the rules use: model, network, processes, files. Repeatable."),
    ] = None,
    time_limit: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long the rules may take for one moment.")
    ] = 1.0,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    html: Annotated[str, typer.Option("--html", metavar="FILE", help="Write the report as one HTML file.")] = "",
    merge: Annotated[
        bool,
        typer.Option(
            "--merge", help="Merge reports of other parts of the records: the arguments are files that --json wrote."
        ),
    ] = False,
) -> int:
    """Show which decisions would differ under other rules.

    The rules are called for the moments of recorded runs. No agent runs.
    """
    from ..backtest._backtest import backtest as test
    from ..backtest.page import report_page
    from ..backtest.report import condition

    set_up_logging(config.settings.debug)
    for each in fail_if or ():
        condition(each)  # report a mistake before a long backtest
    if merge:
        given = {"--baseline": baseline, "--without": without, "--where": where, "--since": since, "--allow": allow}
        if wrong := [name for name, value in given.items() if value]:
            raise ConfigError(f"{wrong[0]} cannot be combined with --merge, which does not read records")
        report = _merged([rules, *(records or ())])
    else:
        after = parse_since(since)
        tested = load_rules(rules)
        with (
            named_records(records, config) as paths,
            redirect_stdout(sys.stderr),  # for rules that print
            ProgressBar() as progress,
        ):
            report = test(
                tested,
                paths,
                baseline=load_rules(baseline) if baseline else None,
                without=without or (),
                where=where or (),
                since=after,
                workers=workers,
                allow=allow or (),
                model=_model(config) if "model" in (allow or ()) else None,
                time_limit=time_limit,
                progress=progress,
            )
    if html:
        about = {
            "Rules": ", ".join(report.rules) if merge else rules,
            "Baseline": ", ".join(report.baseline or ()) if merge else baseline,
            "Records": ", ".join([rules, *(records or ())] if merge else records or [config.settings.records]),
            "Since": since or "",
            "Where": " and ".join(where or ()),
            "Made": f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}, Hookline {__version__}",
        }
        write_page(html, report_page(report, about={name: text for name, text in about.items() if text}))
    if json:
        write_json(report)
    else:
        _print(report, config.settings.records)
    return exit_code(report, fail_if or ())


def _merged(paths: list[str]) -> Report:
    """Return one report for several, each about other records."""
    from ..backtest.report import Report

    reports = []
    for path in paths:
        if paths.count(path) > 1:
            raise ConfigError(f"--merge: {path} is named twice, and its runs would count twice")
        try:
            reports.append(Report.from_json(Path(path).read_bytes()))
        except OSError as error:
            raise ConfigError(f"--merge: {path} cannot be read: {error.strerror or error}") from error
        except (ValueError, TypeError) as error:
            why = f"{path} is not a report that 'hookline backtest --json' wrote"
            raise ConfigError(f"--merge: {why}: {error}") from error
    try:
        return Report.merge(reports)
    except ValueError as error:
        raise ConfigError(f"--merge: {error}") from error


def load_rules(reference: str) -> HookRegistry:
    """Load the hooks that the user named as an argument. Their file is trusted for this command."""
    from ..backtest._backtest import load_rules as load
    from ..config.trust import reference_files
    from ..plugins.trust import trust_named
    from ..records.reading import SUFFIXES

    if Path(reference).is_dir() or reference.endswith(SUFFIXES):
        raise ConfigError(f"{reference} is not a file of rules. Name the rules first, and then the records")
    trust_named(*reference_files([reference], Path.cwd()))
    return load([reference])


def _model(config: Configuration) -> Any:
    from ..config.factory import build_model

    return build_model(config.settings)


def exit_code(report: Report | Coverage, conditions: Iterable[str]) -> int:
    """Return the exit code of a report, and print which conditions of ``--fail-if`` are true."""
    reasons = [reason for each in conditions if (reason := report.fail_if(each)) is not None]
    for reason in reasons:
        print_note(f"--fail-if {reason}")
    if reasons:
        return FAILED
    return SKIPPED if report.skipped or report.failures or not report.runs else COMPLETED


class ProgressBar:
    """A progress bar on stderr with the rate and the time left, if stderr is a terminal.

    It is drawn by the caller and not by a thread: processes are forked while it is shown.
    """

    def __enter__(self) -> ProgressBar:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        columns = (BarColumn(), TextColumn("{task.percentage:3.0f} %  {task.description}"), TimeRemainingColumn())
        self._progress = Progress(
            *columns, console=console, disable=not console.is_terminal, auto_refresh=False, transient=True
        )
        self._task = self._progress.add_task("", total=None)
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, read: int, total: int, report: Report) -> None:
        """Show how many bytes were read, and the report so far."""
        elapsed = self._progress.tasks[0].elapsed or 0.0
        rate = f"{report.moments / elapsed:,.0f}/s" if elapsed else ""
        text = f"{counted(report.moments, 'moment')}, {rate}"
        self._progress.update(self._task, completed=read, total=total or 1, description=text)
        self._progress.refresh()


# The report in the terminal.


def _print(report: Report, folder: str) -> None:
    """Print a report. ``folder`` is where ``hookline explain`` looks for runs by itself."""
    from ..backtest.report import headline, how_sure, in_words

    print_parts(
        Text(headline(report), style="bold" if not report.differences.total else "bold yellow"),
        Text(sure) if (sure := how_sure(report)) else None,
        Text(
            f"{counted(report.runs, 'run')}, {counted(report.moments, 'moment')}, {report.judged:,} judged "
            f"in {report.seconds:.1f} s."
        ),
    )
    cells = [cell for cell in report.cells if cell.kind != "same" or cell.hook]
    silent = sum(cell.count.total for cell in report.cells if cell.kind == "same" and not cell.hook)
    if cells:
        print_parts(Text())
        print_table(
            ("hook", "where", "difference", "exact", "conditional", "guess"),
            [_row(cell, in_words(cell.kind)) for cell in cells],
            right=("exact", "conditional", "guess"),
            keep=("difference",),
        )
    if silent:
        print_parts(Text(f"\nNo hook decided anything, then or now: {counted(silent, 'moment')}.", style="dim"))
    for cell in cells:
        _print_examples(cell, in_words(cell.kind), folder)
    _print_labels(report)
    _print_failures(report, folder)


def _row(cell: Cell, kind: str) -> tuple[object, ...]:
    from ..backtest.page import tone_of

    count: Count = cell.count
    style = TONES[tone_of(cell.kind)]
    numbers = (f"{number:,}" if number else "" for number in (count.exact, count.conditional, count.guess))
    return cell.hook, f"{cell.point} {cell.tool}".rstrip(), Text(kind, style=style), *numbers


def _print_examples(cell: Cell, kind: str, folder: str) -> None:
    if not cell.examples:
        return
    where = " ".join(filter(None, (cell.hook, "at", cell.point, cell.tool)))
    lines = [Text.assemble((f"\n{kind}", "bold"), f" ({printable(where, keep='')})")]
    for example in cell.examples[:_EXAMPLES]:
        then, now = example.then or "passed", example.now or "passed"
        lines.append(Text(f"  {printable(example.subject, keep='')}"))
        lines.append(Text(f"    {printable(f'{then} → {now}', keep='')}", style="yellow"))
        lines.append(Text(f"    {example.certainty}: {_command(example, folder)}", style="dim"))
    print_parts(*lines, soft_wrap=True)


def _command(example: Example, folder: str) -> str:
    """Return the command that shows a moment."""
    from ..backtest.page import explain_command

    is_found = Path(example.file).resolve().is_relative_to(Path(folder).resolve())
    file = "" if is_found else short_path(example.file)
    return printable(explain_command(msgspec.structs.replace(example, file=file)), keep="")


def _print_labels(report: Report) -> None:
    now, then = report.labels, report.labels_then
    if not now.total:
        return
    print_parts(Text(f"\nLabels of people ({counted(now.total, 'call')})", style="bold"))
    print_table(
        ("label", "stopped then", "passed then", "stopped now", "passed now"),
        [
            ("bad", *_numbers(then, "bad"), *_numbers(now, "bad")),
            ("good", *_numbers(then, "good"), *_numbers(now, "good")),
        ],
        right=("stopped then", "passed then", "stopped now", "passed now"),
    )
    shares = ((name, getattr(then, name), getattr(now, name)) for name in ("precision", "recall"))
    print_parts(*(Text(f"{name}: {_share(before)} → {_share(after)}") for name, before, after in shares))


def _numbers(labels: Confusion, label: str) -> tuple[str, str]:
    counts: tuple[Count, Count] = getattr(labels, f"{label}_stopped"), getattr(labels, f"{label}_passed")
    return tuple(_parts(count) for count in counts)  # type: ignore[return-value]


def _parts(count: Count) -> str:
    """Return a number, and how much of it is not exact."""
    others = [f"{number:,} {name}" for name in ("conditional", "guess") if (number := getattr(count, name))]
    return f"{count.total:,}" + (f" ({', '.join(others)})" if others else "")


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0%}"


def _print_failures(report: Report, folder: str) -> None:
    lines = []
    if report.failures:
        lines.append(Text("\nHooks that failed", style="bold red"))
    for failure in report.failures:
        what = f"{failure.hook}: {failure.problem.replace('_', ' ')} at {counted(failure.count, 'moment')}"
        lines.append(Text(f"  {printable(f'{what}: {failure.message}'.removesuffix(': '), keep='')}"))
        if failure.examples:
            lines.append(Text(f"    {_command(failure.examples[0], folder)}", style="dim"))
    if report.guesses:
        lines.append(Text("\nGuesses: these hooks read something that was not recorded", style="bold"))
    for guess in report.guesses:
        lines.append(Text(f"  {printable(f'{guess.hook}: {guess.read}', keep='')} ({counted(guess.count, 'moment')})"))
    print_parts(*lines, soft_wrap=True)
    for note in report.notes:
        print_note(note)
    print_skipped(report.skipped)
