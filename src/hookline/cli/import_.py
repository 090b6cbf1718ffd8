"""``hookline import``: convert the logs of other systems to records."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ..config.sources import Configuration
from .errors import BAD_INPUT, COMPLETED, SKIPPED, print_error, print_note
from .help import Command
from .options import with_settings
from .output import print_parts, print_table, short_path, write_json
from .text import counted

if TYPE_CHECKING:
    from ..importers.importing import ImportReport
    from ..records.account import Skipped

EPILOG = """
Examples:
  hookline import claude-code ~/.claude/projects/my-project
  hookline import openai requests.jsonl --out records/
  zcat spans.jsonl.gz | hookline import otel - --out spans.moments

Sources:
  claude-code  transcripts of Claude Code, with the subagents of each session
  openai       whole conversations ({"messages": [...]}), and requests with their responses
  otel         OTLP JSON with the GenAI conventions, such as hookline's own OpenTelemetryHook exports

Exit codes:
  0    everything was read
  2    nothing could be read
  5    some lines or files could not be read; the rest was imported
"""
_MOST = 20
"""Maximum number of rows about lines that could not be read."""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("import", cls=Command, epilog=EPILOG)(with_settings("records", "debug")(import_))


def import_(
    config: Configuration,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The system: claude-code, openai or otel.")],
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Log files, folders of them, or - for stdin.")],
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            metavar="PATH",
            help="The file (.moments) to write, or a folder for it. [default: the setting records]",
            show_default=False,
        ),
    ] = None,
    redact: Annotated[
        bool, typer.Option("--redact/--no-redact", help="Replace keys, e-mail addresses and other sensitive values.")
    ] = True,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> int:
    """Import logs of Claude Code, OpenAI or OpenTelemetry.

    They become records, which hookline record, explain, backtest and coverage read.
    """
    from ..importers.importing import REPEATED, import_logs

    with _progress() as show:
        report = import_logs(source, files, out or config.settings.records, redact=redact, progress=show)  # type: ignore[arg-type]
    if json:
        write_json(report)
    else:
        _print_report(report)
    if not report.runs and REPEATED not in report.left_out:
        print_error(f"there is nothing to import: no run was found in {counted(report.lines, 'line')}")
        return BAD_INPUT
    return SKIPPED if report.skipped else COMPLETED


def _progress() -> Any:
    """Show the counts while the import runs, if stderr is a terminal."""
    if not sys.stderr.isatty():
        return nullcontext(None)
    return _Bar()


class _Bar:
    """A line with the counts so far, on stderr."""

    def __enter__(self) -> Any:
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task("reading")
        self._bar.start()
        return self._show

    def _show(self, report: ImportReport) -> None:
        self._bar.update(self._task, description=f"{counted(report.runs, 'run')}, {counted(report.moments, 'moment')}")

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


def _print_report(report: ImportReport) -> None:
    from ..importers.importing import REPEATED

    print_table(
        ("read", ""),
        [
            ("files", f"{report.files:,}"),
            ("lines", f"{report.lines:,}"),
            ("runs", f"{report.runs:,}"),
            ("moments", f"{report.moments:,}"),
            ("labels", f"{report.labels:,}"),
        ],
        right=("",),
    )
    if report.left_out:
        print_parts("")
        left_out = sorted(report.left_out.items(), key=lambda item: -item[1])
        print_table(("left out", "count"), [(what, f"{count:,}") for what, count in left_out], right=("count",))
    if report.skipped:
        print_parts("")
        unread = [(short_path(each.file), _where(each), f"{each.count:,}") for each in report.skipped[:_MOST]]
        print_table(("not readable", "why", "count"), unread, right=("count",))
        if len(report.skipped) > _MOST:
            print_note(f"and {counted(len(report.skipped) - _MOST, 'more reason')}: --json shows all")
    if report.path:
        print_parts("", f"Written to {short_path(report.path)}")
    elif report.left_out.get(REPEATED):
        print_parts("", "There is nothing new to write.")


def _where(skipped: Skipped) -> str:
    return f"{skipped.reason} (line {skipped.first:,})" if skipped.first else skipped.reason
