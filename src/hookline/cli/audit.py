"""``hookline audit``: whether an audit log is as it was written, what is in it, and keys to sign one."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .exits import COMPLETED, FAILED
from .help import Command, Group

if TYPE_CHECKING:
    from ..stores.audit.verify import AuditFinding, AuditReport

EPILOG = """
Examples:
  hookline run "What is in this folder?" --audit audit.jsonl
  hookline audit show audit.jsonl --type verdict --since 1h
  hookline audit verify audit.jsonl
  hookline audit keygen audit.key
"""
VERIFY_EPILOG = """
Older files of the log (NAME-000001 and so on) are found beside it, and the checkpoint too (NAME.head).
Keep checkpoints, or the head that is shown here, on another machine: whoever can write the log can write
them anew if they lie beside it.

Exit codes:
  0    as it was written
  1    something was found
  2    it could not be read
"""

Files = Annotated[list[str], typer.Argument(metavar="FILE", help="The log; or several files of it, oldest first.")]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(cls=Group, rich_markup_mode=None, help="Verify or show an audit log.", epilog=EPILOG)
    group.command("verify", cls=Command, epilog=VERIFY_EPILOG)(verify)
    group.command("show", cls=Command)(show)
    group.command("keygen", cls=Command)(keygen)
    app.add_typer(group, name="audit")


def verify(
    files: Files,
    key: Annotated[
        str | None, typer.Option("--key", metavar="FILE", help="The public key: every line must be signed with it.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", metavar="FILE", help="The checkpoint, if it is not beside the log.")
    ] = None,
    head: Annotated[
        str | None,
        typer.Option("--head", metavar="HASH", help="The hash, or NUMBER:HASH, of a line that must be there."),
    ] = None,
    partial: Annotated[bool, typer.Option("--partial", help="Older files may be missing.")] = False,
    json: AsJson = False,
) -> int:
    """Check that nobody changed, removed, added or moved a line."""
    from ..stores.audit.verify import log_files, verify_audit

    total = sum(path.stat().st_size for path in log_files(files))
    with _progress(total) as update:
        report = verify_audit(
            *files, key=key, checkpoint=checkpoint, head=head, partial=partial, progress=update
        )  # fmt: skip
    if json:
        from .screen import write_json

        write_json({"ok": report.ok, **dict(report)})
    else:
        _tell(report)
    return COMPLETED if report.ok else FAILED


def _progress(total: int) -> Any:
    """A bar on a terminal, for a log that takes its time."""
    if not sys.stderr.isatty() or total < 20_000_000:
        return nullcontext()
    from contextlib import contextmanager

    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    @contextmanager
    def shown() -> Any:
        columns = (TextColumn("verifying"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=total)
            yield lambda done: bar.update(task, completed=done)

    return shown()


def _tell(report: AuditReport) -> None:
    from rich.text import Text

    from .screen import console, nearby, table
    from .text import counted, printable

    out = console()
    name = printable(nearby(report.files[-1]))
    extent = f"{counted(report.records, 'record')} in {counted(len(report.files), 'file')}"
    if report.ok:
        out.print(Text.assemble(("✓ ", "bold green"), (name, "bold"), f"  {extent}, as they were written"))
    else:
        found = counted(len(report.findings) + report.more, "finding")
        out.print(Text.assemble(("✗ ", "bold red"), (name, "bold"), f"  {extent}, ", (found, "bold red")))
    signed = "not signed"
    if report.signed:
        signed = "signed" + (", checked" if report.checked else ", not checked")
    if report.records:
        out.print(Text(f"  records {report.first:,} to {report.last:,} · {signed}", style="dim"))
        out.print(Text(f"  head {report.last}:{report.head}", style="dim"), soft_wrap=True)
    if report.findings:
        table(
            ("where", "what", ""),
            [_row(one, "red") for one in report.findings],
            title="Findings",
            keep=("where", "what"),
        )
        if report.more:
            out.print(Text(f"and {report.more:,} more", style="red"))
    if report.warnings:
        rows = [_row(one, "yellow") for one in report.warnings]
        table(("where", "what", ""), rows, title="Worth knowing", keep=("where", "what"))


def _row(found: AuditFinding, style: str) -> tuple[Any, ...]:
    from pathlib import Path

    from rich.text import Text

    from .text import printable

    where = Path(found.file).name
    if found.line:
        where += f":{found.line}" if found.line == found.last else f":{found.line}-{found.last}"
    return printable(where, keep=""), Text(found.kind, style=style), printable(found.text, keep="")


def show(
    files: Files,
    run: Annotated[
        str | None, typer.Option("--run", metavar="ID", help="Runs whose id begins so, with or without run_.")
    ] = None,
    type: Annotated[
        list[str] | None, typer.Option("--type", metavar="TYPE", help="Records of this type. Repeatable.")
    ] = None,
    tool: Annotated[str | None, typer.Option("--tool", metavar="NAME", help="Records about this tool.")] = None,
    hook: Annotated[str | None, typer.Option("--hook", metavar="NAME", help="Verdicts of this hook.")] = None,
    verb: Annotated[str | None, typer.Option("--verb", metavar="VERB", help="Verdicts such as block.")] = None,
    model: Annotated[str | None, typer.Option("--model", metavar="NAME", help="Calls of this model.")] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="From 10m, 2h, 1d ago, or a time such as 2026-11-15T10:00."),
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Up to such a time.")] = None,
    tail: Annotated[int, typer.Option("--tail", "-n", metavar="N", min=0, help="Only the last N; 0 for all.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is written from now on.")] = False,
    json: Annotated[bool, typer.Option("--json", help="The lines as they are in the log.")] = False,
) -> int:
    """Show what is in an audit log, newest last."""
    from collections import deque

    from ..stores.audit.verify import log_files
    from .audit_rows import Filter, Printer, followed, moment, read

    wanted = Filter(
        run=run, types=tuple(type or ()), tool=tool, hook=hook, verb=verb, model=model,
        since=moment(since, "--since"), until=moment(until, "--until"),
    )  # fmt: skip
    paths = log_files(files)
    lines = (pair for path in paths for pair in read(path) if wanted.takes(pair[1]))
    printer = Printer(json)
    for line, record in deque(lines, tail) if tail else lines:
        printer.show(line, record)
    if follow:
        sys.stdout.flush()
        for line, record in followed(paths[-1]):
            if wanted.takes(record):
                printer.show(line, record)
                sys.stdout.flush()
    elif not printer.shown and not json:
        typer.echo("no record matches", err=True)
    return 0


def keygen(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Where the private key goes; FILE.pub gets the public one.")
    ],
) -> int:
    """Make a pair of keys to sign an audit log with."""
    from ..stores.audit.keys import make_keys

    private, public, key = make_keys(file)
    typer.echo(f"private key: {private}  (to sign: keep it where only the program can read it)")
    typer.echo(f"public key:  {public}  (to verify: give it to those who check the log)")
    typer.echo(f"id:          {key}")
    return 0
