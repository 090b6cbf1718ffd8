"""``hookline audit``: verify an audit log, show its records, search those of all machines, and create signing keys."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from ..config.errors import ConfigError
from ..config.sources import Configuration
from ..stores.audit.describe import FAILURES, Record, describe, is_failure, parse_record, short_run_id
from ..stores.audit.format import MAX_LINE, timestamp
from ..stores.audit.reading import RecordFilter
from ..stores.errors import StoreError
from .errors import COMPLETED, FAILED, print_note
from .help import Command, Group
from .names import RunIds, named_runs
from .options import AsJson, with_settings
from .output import console, print_table, short_path, write_json
from .text import counted, parse_duration, printable, short

if TYPE_CHECKING:
    from ..stores.audit.index import AuditIndex, IndexedRecord
    from ..stores.audit.verify import AuditFinding, AuditReport


EPILOG = """
Examples:
  hookline audit show --type verdict --since 1h
  hookline audit verify
  hookline run "What is in this folder?" --audit audit.jsonl
  hookline audit verify audit.jsonl
  hookline audit search --verb block --since 1d
  hookline audit keygen audit.key

Without a file, the commands read the log of this project. hookline doctor shows where it is. The commands search, logs
and forget use the index of the logs of all machines: it is in the database, or in the file of the setting audit_index.
"""
VERIFY_EPILOG = """
Older files of the log (NAME-000001 and so on) and the checkpoint (NAME.head) are read from the same folder.
Keep checkpoints, or the head printed here, on another machine: a person who can change the log can also
replace a checkpoint beside it. An index in a database serves as well, and also reveals that the log was deleted.

Exit codes:
  0    the log is unchanged
  1    the log was changed, or a line is invalid
  2    the log could not be read
  3    the lines are unchanged, but nothing proves that none are missing or added at the end: there is no checkpoint
       and no --head and no index, or the checkpoint was missing when a program continued the log, or lines without a
       checked signature follow after the last head
"""
UNPROVEN = 3

Files = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILE",
        help="The log, or several of its files, oldest first. [default: the log of this project]",
        show_default=False,
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        cls=Group,
        rich_markup_mode=None,
        help="Verify, show or search audit logs, or create a key pair for signing.",
        epilog=EPILOG,
    )
    with_index = ("database", "audit_index", "debug")
    group.command("verify", cls=Command, epilog=VERIFY_EPILOG)(with_settings(*with_index, needs_trust=False)(verify))
    group.command("show", cls=Command)(with_settings("records", "runs", "database", "debug", needs_trust=False)(show))
    group.command("search", cls=Command)(with_settings("records", "runs", *with_index)(search))
    group.command("logs", cls=Command)(with_settings(*with_index)(logs))
    group.command("forget", cls=Command)(with_settings(*with_index)(forget))
    group.command("keygen", cls=Command)(keygen)
    app.add_typer(group, name="audit")


def project_log(config: Configuration, index: AuditIndex | None = None) -> str:
    """Return the path of the audit log of this project, which exists or is in the index.

    Raises:
        ConfigError: there is none.
    """
    from ..config.factory import audit_path

    path = audit_path(config.settings)
    if path is None:
        raise ConfigError("this project has no audit log (audit = none): give the path of a log")
    if not Path(path).exists() and not (index is not None and index.logs(host=gethostname(), file=path)):
        raise ConfigError(
            f"this project has no audit log yet at {short_path(path)}: it begins with the first run, "
            "unless a hook writes it to another file: then give the path of that file"
        )
    return path


def open_index(config: Configuration) -> AuditIndex:
    """Open the index of audit logs.

    Raises:
        ConfigError: the settings name none.
    """
    from ..stores.audit.index import AuditIndex

    if not config.settings.audit_index:
        raise ConfigError(
            "there is no index of audit logs: set database, or set audit_index to a SQLite file such as audit-index.db"
        )
    return AuditIndex(config.settings.audit_index)


def read_new_lines(index: AuditIndex, config: Configuration) -> None:
    """Add the lines of the logs of this machine that the index does not have yet: a program adds them after a while."""
    from ..config.factory import audit_path

    own = audit_path(config.settings)
    paths = {log.file for log in index.logs(host=gethostname())} | ({str(Path(own).absolute())} if own else set())
    for path in sorted(path for path in paths if os.path.isfile(path) and os.access(path, os.R_OK)):
        try:
            index.indexer(Path(path)).update()
        except (StoreError, OSError) as error:
            print_note(f"new lines of {short_path(path)} are not in the index: {error}")


def trusted_index(config: Configuration) -> AuditIndex | None:
    """Open the index for a command that needs no trust; ``None`` if an untrusted file names it, or there is none."""
    from .trust import is_trusted

    origins = [config.origins[name] for name in ("audit_index", "database")]
    origin = next((each for each in origins if each != "default"), "default")
    if not config.settings.audit_index:
        return None
    if origin.startswith("file:") and not is_trusted(config):
        print_note("the index of the log is not used, because a file that is not trusted names it")
        return None
    return open_index(config)


def verify(
    config: Configuration,
    files: Files = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="FILE", help="The public key that every line must be signed with.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", metavar="FILE", help="The checkpoint, if it is not beside the log.")
    ] = None,
    head: Annotated[
        str | None,
        typer.Option("--head", metavar="HASH", help="The hash, or NUMBER:HASH, of a line that must exist."),
    ] = None,
    partial: Annotated[bool, typer.Option("--partial", help="Older files may be missing.")] = False,
    json: AsJson = False,
) -> int:
    """Check that no line was changed, removed, added or moved."""
    from ..stores.audit.verify import log_files, verify_audit

    index = trusted_index(config)
    files = files or [project_log(config, index)]
    try:
        total = sum(path.stat().st_size for path in log_files(files))
    except StoreError:  # the index may have the log
        total = 0
    with _progress(total) as update:
        report = verify_audit(
            *files, key=key, checkpoint=checkpoint, head=head, index=index, partial=partial, progress=update
        )
    if json:
        write_json({"ok": report.ok, **dict(report)})
    else:
        _print_report(report)
    if not report.unchanged:
        return FAILED
    return COMPLETED if report.end_proven else UNPROVEN


def _progress(total: int) -> Any:
    """Show a progress bar on a terminal while a large log is read."""
    if not sys.stderr.isatty() or total < 20_000_000:
        return nullcontext()
    from contextlib import contextmanager

    @contextmanager
    def shown() -> Any:
        columns = (TextColumn("verifying"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=total)
            yield lambda done: bar.update(task, completed=done)

    return shown()


def _print_report(report: AuditReport) -> None:
    out = console()
    mark, style = ("✓", "green") if report.ok else ("?", "yellow") if report.unchanged else ("✗", "red")
    name = printable(short_path(report.files[-1]))
    out.print(
        Text.assemble(
            (f"{mark} ", f"bold {style}"), (name, "bold"), (f"  {report.summary}", "" if report.ok else style)
        )
    )
    if report.records:
        out.print(Text(f"  records {report.first:,} to {report.last:,} · {report.signatures}", style="dim"))
        out.print(Text(f"  head {report.last}:{report.head}", style="dim"), soft_wrap=True)
    if report.findings:
        print_table(
            ("where", "what", ""),
            [_finding_row(one, "red") for one in report.findings],
            title="Findings",
            keep=("where", "what"),
        )
        if report.more:
            out.print(Text(f"and {report.more:,} more", style="red"))
    if report.warnings:
        rows = [_finding_row(one, "yellow") for one in report.warnings]
        print_table(("where", "what", ""), rows, title="Worth knowing", keep=("where", "what"))


def _finding_row(found: AuditFinding, style: str) -> tuple[Any, ...]:
    return printable(found.where, keep=""), Text(found.kind, style=style), printable(found.text, keep="")


def show(
    config: Configuration,
    files: Files = None,
    run: RunIds = None,
    type: Annotated[
        list[str] | None, typer.Option("--type", metavar="TYPE", help="Only records of this type. Repeatable.")
    ] = None,
    tool: Annotated[str | None, typer.Option("--tool", metavar="NAME", help="Only records about this tool.")] = None,
    hook: Annotated[str | None, typer.Option("--hook", metavar="NAME", help="Only verdicts of this hook.")] = None,
    verb: Annotated[
        str | None, typer.Option("--verb", metavar="VERB", help="Only verdicts with this verb, such as block.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", metavar="NAME", help="Only calls of this model.")] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Only records since 10m, 2h, 1d ago, or 2026-11-15T10:00."),
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Only records up to this time.")] = None,
    tail: Annotated[
        int, typer.Option("--tail", "-n", metavar="N", min=0, help="Only the last N records; 0 for all.")
    ] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep running, and show new records.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the unchanged lines of the log.")] = False,
) -> int:
    """Show the records of an audit log, newest last."""
    from collections import deque

    from ..stores.audit.verify import log_files

    named = named_runs(run, config)
    wanted = RecordFilter(
        run=named.beginning,
        nested=named.nested,
        types=tuple(type or ()),
        tool=tool or "",
        hook=hook or "",
        verb=verb or "",
        model=model or "",
        since=parse_time(since, "--since"),
        until=parse_time(until, "--until"),
    )
    paths = log_files(files or [project_log(config)])
    lines = (pair for path in paths for pair in read_records(path) if wanted.matches(pair[1]))
    printer = Printer(json)
    for line, record in deque(lines, tail) if tail else lines:
        printer.show(line, record)
    if follow:
        sys.stdout.flush()
        for line, record in follow_records(paths[-1]):
            if wanted.matches(record):
                printer.show(line, record)
                sys.stdout.flush()
    elif not printer.shown and not json:
        typer.echo("no matching records", err=True)
    return 0


def search(
    config: Configuration,
    run: RunIds = None,
    type: Annotated[
        list[str] | None, typer.Option("--type", metavar="TYPE", help="Only records of this type. Repeatable.")
    ] = None,
    agent: Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Only runs of this agent.")] = None,
    tool: Annotated[str | None, typer.Option("--tool", metavar="NAME", help="Only calls of this tool.")] = None,
    hook: Annotated[str | None, typer.Option("--hook", metavar="NAME", help="Only verdicts of this hook.")] = None,
    verb: Annotated[
        str | None, typer.Option("--verb", metavar="VERB", help="Only verdicts with this verb, such as block.")
    ] = None,
    decision: Annotated[
        str | None,
        typer.Option("--decision", metavar="WORD", help="Only records with this decision, outcome or status."),
    ] = None,
    host: Annotated[str | None, typer.Option("--host", metavar="NAME", help="Only logs of this machine.")] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Only records since 10m, 2h, 1d ago, or 2026-11-15T10:00."),
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Only records up to this time.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="At most N records.")] = 100,
    before: Annotated[
        int,
        typer.Option(
            "--before", metavar="NUMBER", help="Continue after the record with this number.", show_default=False
        ),
    ] = 0,
    json: AsJson = False,
) -> int:
    """Search the records of the audit logs of all machines, newest first."""
    named, index = named_runs(run, config), open_index(config)
    read_new_lines(index, config)
    found = index.records(
        limit,
        before=before,
        run=named.beginning,
        nested=named.nested,
        types=tuple(type or ()),
        agent=agent or "",
        tool=tool or "",
        hook=hook or "",
        verb=verb or "",
        decision=decision or "",
        host=host or "",
        since=parse_time(since, "--since"),
        until=parse_time(until, "--until"),
    )
    if json:
        write_json(found)
    elif not found:
        typer.echo("no matching records", err=True)
    else:
        print_table(
            ("number", "time (UTC)", "machine", "run", "type", "what"),
            [_found_row(record) for record in found],
            keep=("number", "time (UTC)", "type"),
        )
        if len(found) == limit:
            typer.echo(f"\nThere may be more: --before {found[-1].number}")
    return 0


def _found_row(record: IndexedRecord) -> tuple[Any, ...]:
    bad = {record.verb, record.decision} & FAILURES
    at = record.time.replace("T", " ").removesuffix("Z")
    return (
        str(record.number),
        short(at, 23),
        short(record.host, 40),
        short(short_run_id(record.run_id)[:6], 6),
        Text(short(record.type, 14), style=_STYLES.get(record.type, "")),
        Text(short(record.what, 200), style="red" if bad else ""),
    )


def logs(config: Configuration, json: AsJson = False) -> int:
    """List the audit logs of all machines, and the last record of each."""
    index = open_index(config)
    read_new_lines(index, config)
    found = index.logs()
    if json:
        write_json(found)
    elif not found:
        typer.echo("The index has no logs yet.", err=True)
    else:
        rows = [
            (short(log.host, 40), f"{log.seq:,}", short(log.time, 24), printable(log.file, keep="")) for log in found
        ]
        print_table(("machine", "last record", "time (UTC)", "file"), rows, keep=("machine", "last record"))
    return 0


def forget(
    config: Configuration,
    file: Annotated[
        str | None, typer.Argument(metavar="FILE", help="Only the log with this path.", show_default=False)
    ] = None,
    host: Annotated[str | None, typer.Option("--host", metavar="NAME", help="Only logs of this machine.")] = None,
    before: Annotated[
        str | None,
        typer.Option("--before", metavar="TIME", help="Only records before 90d ago, or before 2026-11-15."),
    ] = None,
) -> int:
    """Delete records from the index. Without --before the logs are forgotten too: they may be missing from then on.

    Without --host, a FILE is a log of this machine.
    """
    if file is None and host is None and before is None:
        raise ConfigError("say what to forget: FILE, --host or --before")
    path = None if file is None else file if host is not None else os.path.abspath(os.path.expanduser(file))
    where = gethostname() if host is None and file is not None else host
    count = open_index(config).forget(host=where, file=path, before=parse_time(before, "--before"))
    typer.echo(f"{counted(count, 'record')} deleted from the index")
    return 0


def keygen(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="File for the private key; FILE.pub gets the public key.")
    ],
) -> int:
    """Create a key pair for signing an audit log."""
    from ..stores.audit.keys import make_keys

    private, public, key = make_keys(file)
    typer.echo(f"private key: {private}  (signs the log: only the program may read it)")
    typer.echo(f"public key:  {public}  (verifies the log: give it to the auditors)")
    typer.echo(f"id:          {key}")
    return 0


POLL_SECONDS = 0.2
NARROW = 110
"""Terminal width in columns below which rows show only the time of day, under a line with the date."""
_STYLES = {
    "run_start": "bold",
    "run_end": "bold",
    "model": "cyan",
    "tool": "blue",
    "tool_start": "blue",
    "verdict": "magenta",
    "approval": "yellow",
    "approval_asked": "yellow",
    "auth": "green",
    "error": "red",
    "lost": "bold red",
    "open": "dim",
    "rotate": "dim",
    "no record": "bold red",
}


def read_records(path: Path) -> Iterator[tuple[bytes, Record]]:
    """Yield the lines of a file with their parsed records. An invalid line becomes a record of type ``no record``."""
    with open(path, "rb") as file:
        while line := file.readline(MAX_LINE):
            yield line, parse_record(line)


def follow_records(path: Path) -> Iterator[tuple[bytes, Record]]:
    """Yield new lines as they are written, also after the log has switched to a new file."""
    file = open(path, "rb")  # noqa: SIM115 - replaced by the next file of the log
    try:
        file.seek(0, os.SEEK_END)
        partial_line = b""
        while True:
            partial_line += file.readline(MAX_LINE)
            if partial_line.endswith(b"\n"):
                yield partial_line, parse_record(partial_line)
                partial_line = b""
            elif _was_replaced(path, file.fileno()) and not file.peek(1):
                file.close()
                file, partial_line = open(path, "rb"), b""  # noqa: SIM115
            else:
                time.sleep(POLL_SECONDS)
    finally:
        file.close()


def _was_replaced(path: Path, fd: int) -> bool:
    try:
        return not os.path.samestat(os.stat(path), os.fstat(fd))
    except OSError:
        return False


def parse_time(text: str | None, option: str) -> str:
    """Convert ``2h`` (ago) or an ISO 8601 time (local unless it names a zone) to the time format of the log.

    Raises:
        ConfigError: the text is not a time.
    """
    if text is None:
        return ""
    ago = parse_duration(text)
    try:
        if ago is not None:
            return timestamp(time.time() - ago).decode()
        return timestamp(datetime.fromisoformat(text).timestamp()).decode()
    except (ValueError, OverflowError, OSError):
        raise ConfigError(f"{option} takes 10m, 2h, 1d or a time such as 2026-11-15T10:00, not {text!r:.80}") from None


class Printer:
    """Print records, one on each line."""

    def __init__(self, json: bool) -> None:

        self.json, self.shown = json, 0
        self._out = console()
        self._narrow, self._day = self._out.width < NARROW, ""

    def show(self, line: bytes, record: Record) -> None:
        """Print one record."""
        if self.json:
            sys.stdout.write(line.decode(errors="backslashreplace").rstrip("\n") + "\n")
        else:
            if not self.shown:
                time_head = "UTC" if self._narrow else "time (UTC)"
                head = f"{'record':>8}  {time_head:<{self._time_width}}  {'run':<6}  {'type':<14}  what"
                self._out.print(Text(head, style="bold"), no_wrap=True, overflow="ellipsis")
            kind, text = str(record["type"]), describe(record)
            at = self._time(str(record.get("time", "")))
            row = Text.assemble(
                (
                    f"{short(str(record.get('seq', '')), 8):>8}  {short(at, self._time_width):<{self._time_width}}  ",
                    "dim",
                ),
                (f"{short(short_run_id(record.get('run_id'))[:6], 6):<6}  ", "dim"),
                (f"{short(kind, 14):<14}  ", _STYLES.get(kind, "")),
                (text, "red" if is_failure(record) else ""),
            )
            self._out.print(row, no_wrap=True, overflow="ellipsis", crop=True)
        self.shown += 1

    @property
    def _time_width(self) -> int:
        return 8 if self._narrow else 23

    def _time(self, at: str) -> str:
        """Return the time for a row. On a narrow terminal, print the date when it changes."""
        day, _, clock = at.removesuffix("Z").partition("T")
        if not self._narrow:
            return f"{day} {clock}".strip()
        if day and day != self._day:
            self._day = day
            self._out.print(Text(f"{'':>8}  {short(day, 10)}", style="dim"), no_wrap=True)
        return clock[:8]
