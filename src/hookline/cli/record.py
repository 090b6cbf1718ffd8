"""``hookline record``: list, show, label, export and delete recorded runs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from .._base.files import partial_file
from ..config.errors import ConfigError
from ..config.sources import Configuration
from ..explain.words import verb_words
from .errors import COMPLETED, FAILED, print_skipped
from .help import Command, Group
from .hook_line import style_of
from .names import NamedRecords, RecordNames, RunName, blocks_of, files_of, find_recorded, find_records
from .options import AsJson, Since, with_settings
from .output import console, print_parts, print_table, short_path, time_text, write_json
from .text import (
    arguments_text,
    counted,
    parse_duration,
    parse_since,
    parse_size,
    printable,
    short,
    short_id,
    size_text,
)

if TYPE_CHECKING:
    from ..records.account import Account
    from ..records.blocks import Block, RunSummary
    from ..records.format import Decision
    from ..records.reading import RecordedMoment, RecordedRun


EPILOG = """
Examples:
  hookline run "What is in this folder?" --record
  hookline record ls --since 7d
  hookline record show last
  hookline record label last call_1 bad --note "deleted the wrong file"
  hookline record export --since 30d --out month.moments
  hookline record export --parquet history/
  hookline record prune --older 30d

Recording is on with record = true in hookline.toml, --record, or Agent(record=True). hookline explain shows a run in
detail, and hookline backtest asks what other hooks would have decided.
"""

_WIDE = 100
"""Width of a terminal from which all columns are shown."""


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        cls=Group,
        rich_markup_mode=None,
        help="List, show, label, export or delete recorded runs.",
        epilog=EPILOG,
    )
    settings = with_settings("records", "debug")
    group.command("ls", cls=Command)(settings(ls))
    group.command("show", cls=Command)(settings(show))
    group.command("label", cls=Command)(settings(label))
    group.command("export", cls=Command)(settings(export))
    group.command("prune", cls=Command)(settings(prune))
    app.add_typer(group, name="record")


# Lists.


def ls(
    config: Configuration,
    names: RecordNames = None,
    number: Annotated[int, typer.Option("-n", metavar="N", min=1, help="Number of runs, newest first.")] = 20,
    since: Since = None,
    status: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only runs that ended like this: completed, failed, interrupted and so on."),
    ] = None,
    json: AsJson = False,
) -> int:
    """List the recorded runs, newest first."""
    from ..records.account import Account

    account = Account()
    found = list(_newest(find_records(names, config), parse_since(since), status, number, account))
    if json:
        write_json(found)
    elif found:
        _print_runs(found)
    else:
        _print_nothing(config, chosen=bool(names or since or status))
    print_skipped(account.entries())
    return COMPLETED


def _newest(
    named: list[NamedRecords], since: float | None, status: str | None, number: int, account: Account
) -> Iterator[RunSummary]:
    """Yield the newest runs. Older files are not read once they cannot contain one of them."""
    from ..records.blocks import read_blocks, summarize
    from ..records.reading import PartSummary, last_written, replaced_of

    found: list[RunSummary] = []
    files = files_of(named, since)
    for file in sorted(files, key=last_written, reverse=True):
        # A file is written after its runs have started, so an older file contains only older runs.
        times = sorted(run.time for run in found if status is None or run.status == status)
        if len(times) >= number and last_written(file) < times[-number]:
            break
        for block in read_blocks(file, account):
            if (since is None or block.info.time >= since) and (not files[file] or block.id in files[file]):
                found.append(summarize(block, account))
        replaced = replaced_of(PartSummary(run.run_id, run.time, run.is_over, run.goes_on) for run in found)
        found = [run for run in found if (run.run_id, run.time) not in replaced]
    chosen = [run for run in found if status is None or run.status == status]
    yield from sorted(chosen, key=lambda run: -run.time)[:number]


def _print_runs(runs: list[RunSummary]) -> None:
    several = len({run.agent for run in runs}) > 1
    counts = [name for name in ("blocked", "asked", "changed", "failed") if any(getattr(run, name) for run in runs)]
    wide = console().width >= _WIDE
    cells: dict[str, Callable[[RunSummary], str | Text]] = {
        "began": lambda run: time_text(run.time),
        "run": lambda run: short_id(run.run_id),
        **({"agent": lambda run: _one_line(run.agent)} if several else {}),
        "status": lambda run: Text(printable(run.status), style=_status_style(run.status)),
        "steps": lambda run: f"{run.steps:,}",
        **({"moments": lambda run: f"{run.moments:,}"} if wide else {}),
        **{name: partial(_count, name) for name in counts},
        **({"size": lambda run: size_text(run.size)} if wide else {}),
        "task": lambda run: _one_line(run.task),
    }
    rows = [[cell(run) for cell in cells.values()] for run in runs]
    print_table(list(cells), rows, keep=("began", "run", "status"), right=("steps", "moments", *counts, "size"))


def _count(name: str, run: RunSummary) -> str:
    return f"{getattr(run, name):,}" if getattr(run, name) else ""


def _one_line(text: str) -> Text:
    return Text(short(text, 200), no_wrap=True, overflow="ellipsis")


def _status_style(status: str) -> str:
    return style_of(status)


def _print_nothing(config: Configuration, *, chosen: bool) -> None:
    where = short_path(config.settings.records)
    if chosen:
        print_parts(Text("No runs match."), Text("Show all runs: hookline record ls", style="dim"))
        return
    print_parts(
        Text(f"No runs are recorded in {printable(where)} yet."),
        Text("Recording is on with record = true in hookline.toml, --record, or Agent(record=True).", style="dim"),
    )


# One run.


def show(config: Configuration, run: RunName, json: AsJson = False) -> int:
    """Show the moments of a run and what each hook decided."""
    found = find_recorded(run, config).run
    if json:
        write_json([_as_json(each) for each in found.tree()])
        return COMPLETED
    info = found.info
    status = found.status
    facts = [
        f"agent {info.ids.agent}",
        time_text(info.time),
        f"model {info.model}" if info.model else "",
        counted(found.steps, "step"),
        counted(sum(len(each.moments) for each in found.tree()), "moment"),
    ]
    print_parts(
        Text.assemble((printable(found.id), "bold"), "  ", (printable(status), _status_style(status))),
        Text(printable(" · ".join(filter(None, facts)))),
        Text(short(info.task, 300)),
    )
    moments = sorted(
        ((depth, moment) for depth, each in _with_depth(found) for moment in each.moments),
        key=lambda item: item[1].position,
    )
    rows = [row for depth, moment in moments for row in _moment_rows(moment, depth)]
    print_table(("n", "at", "point", "tool", "what"), rows, title="Moments", keep=("at", "point"), right=("n",))
    labels = [(line.n, line.tool, line.label) for each in found.tree() for line in each.labels]
    if labels:
        lines = [(n if n >= 0 else one.call_id, tool, one.label, one.by, one.note) for n, tool, one in labels]
        print_table(("n", "tool", "label", "by", "note"), lines, title="Labels", keep=("label",))
    return COMPLETED


def _with_depth(run: RecordedRun, depth: int = 0) -> Iterator[tuple[int, RecordedRun]]:
    yield depth, run
    for nested in run.nested:
        yield from _with_depth(nested, depth + 1)


def _moment_rows(moment: RecordedMoment, depth: int) -> Iterator[tuple[Any, ...]]:
    inexact = f" ({moment.notes.inexact})" if moment.notes.inexact else ""
    what = _one_line(_what(moment) + inexact)
    yield moment.position, f"{moment.at:.3f}", f"{'  ' * depth}{moment.point}", short(moment.tool, 24), what
    for decision in moment.decisions:
        yield "", "", "", "", _decision_text(decision)


def _what(moment: RecordedMoment) -> str:
    """Return the part of a payload that tells moments apart."""
    try:
        return _subject(moment.point, moment.fields, moment)
    except (AttributeError, KeyError, TypeError):  # fields of other types, in a damaged or foreign record
        return arguments_text(moment.fields, 200)


def _subject(point: str, fields: dict[str, Any], moment: RecordedMoment) -> str:
    if point == "before_tool":
        return arguments_text(fields.get("arguments", {}), 200)
    if point == "after_tool":
        text = fields.get("error") or fields.get("result")
        return f"{fields.get('outcome', 'ok')}: {text if isinstance(text, str) else arguments_text(text, 200)}"
    if point == "before_llm":
        count = len(fields.get("messages", ())) + moment.notes.kept
        return f"{counted(count, 'message')} for {fields.get('model', '')}"
    if point == "after_llm":
        calls = ", ".join(str(call.get("name", "")) for call in fields.get("tool_calls", ()))
        return str(fields.get("content") or "") or f"calls {calls}"
    if point == "on_stop":
        return ", ".join(str(signal.get("kind", "")) for signal in fields.get("signals", ()))
    if point == "approval_requested":
        return "; ".join(str(question.get("text", "")) for question in fields.get("questions", ()))
    if point == "approval_decided":
        said = f": {fields['message']}" if fields.get("message") else ""
        return f"{fields.get('decision', '')} by {fields.get('by', '')}{said}"
    for name in ("reply", "task", "message", "reason"):
        if isinstance(fields.get(name), str):
            return str(fields[name])
    return arguments_text(fields, 200)


def _decision_text(decision: Decision) -> Text:
    said = decision.error or decision.reason or (decision.value if isinstance(decision.value, str) else "")
    if decision.changed:
        changed = ", ".join(decision.changed)
        said = f"{said} (changed {changed})" if said else f"changed {changed}"
    word = printable(verb_words(decision.verb)[0])
    head = Text.assemble((printable(decision.hook), "bold"), " ", (word, style_of(decision.verb)))
    line = Text.assemble(head, f": {short(said, 300)}" if said else "")
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def _as_json(run: RecordedRun) -> dict[str, Any]:
    import msgspec

    moments = [
        {
            "n": moment.position,
            "point": moment.point,
            "tool": moment.tool,
            "at": moment.at,
            "took": moment.took,
            "payload": moment.fields,
            "decisions": [msgspec.structs.asdict(decision) for decision in moment.decisions],
            "verdict": None if moment.verdict is None else msgspec.structs.asdict(moment.verdict),
            "notes": moment.notes,
        }
        for moment in run.moments
    ]
    labels = [{"n": line.n, "tool": line.tool, **msgspec.structs.asdict(line.label)} for line in run.labels]
    return {"run": run.number, "info": run.info, "end": run.end, "moments": moments, "labels": labels}


# Labels.


def label(
    config: Configuration,
    run: RunName,
    call: Annotated[str, typer.Argument(metavar="N|CALL_ID", help="Number of the moment, or id of the call.")],
    word: Annotated[str, typer.Argument(metavar="good|bad", help="Whether the call was right.")],
    note: Annotated[str, typer.Option(metavar="TEXT", help="Why.")] = "",
    by: Annotated[str, typer.Option(metavar="NAME", help="Who says so.")] = "",
) -> int:
    """Say whether a call should have run, for hookline backtest to count."""
    from ..records.labels import GivenLabel, add_label

    if word not in ("good", "bad"):
        raise ConfigError(f"a label is good or bad, not {word!r}")
    found = find_recorded(run, config).run
    for each in found.tree():
        calls = [moment for moment in each.moments if moment.point == "before_tool"]
        for moment in calls:
            if call in (str(moment.position), str(moment.fields.get("id", ""))):
                call_id = str(moment.fields.get("id", ""))
                add_label(config.settings.records, GivenLabel(word, call_id, by, note, run_id=each.id))  # type: ignore[arg-type]
                what = f"{moment.tool} {arguments_text(moment.fields.get('arguments', {}), 60)}"
                sys.stdout.write(f"labelled {word}: {printable(what)} in {short_id(each.id)}\n")
                return COMPLETED
    raise ConfigError(f"the run {found.id} has no call {call!r}: hookline record show {short_id(found.id)} lists them")


# Exports.


def export(
    config: Configuration,
    names: RecordNames = None,
    since: Since = None,
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="FILE.moments, or - for stdout.")] = "-",
    parquet: Annotated[
        str | None,
        typer.Option("--parquet", metavar="PATH", help="Write Parquet: FILE.parquet, or a folder for several files."),
    ] = None,
) -> int:
    """Write runs to one file, or to Parquet for large histories."""
    from ..records.account import Account

    account = Account()
    blocks = blocks_of(find_records(names, config), parse_since(since), account)
    if parquet is not None:
        from ..records.parquet import write_parquet

        done = write_parquet(blocks, parquet, account)
        count, out = done.runs, f"{parquet} ({counted(len(done.files), 'file')}, {size_text(done.size)})"
    elif out == "-" or Path(out).suffix in ("", ".moments"):
        count = _write_moments(blocks, out)
    else:
        raise ConfigError(f"--out: expected FILE.moments or -; got {out!r}")
    where = f" to {printable(out)}" if count and out != "-" else ""
    sys.stderr.write(f"exported {counted(count, 'run')}{where}\n")
    print_skipped(account.entries())
    return COMPLETED if count else FAILED


def _write_moments(blocks: Iterable[Block], out: str) -> int:
    """Write runs as a file of moments, for its owner only."""
    from ..records.blocks import write_blocks

    if out == "-":
        return write_blocks(blocks, sys.stdout.buffer.write)
    try:
        with partial_file(Path(out)) as file:
            return write_blocks(blocks, file.write)
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror or error}") from error


# Deleting.


def prune(
    config: Configuration,
    older: Annotated[
        str | None, typer.Option(metavar="AGE", help="Delete files last written longer ago than 30d, 2w, 12h.")
    ] = None,
    keep_size: Annotated[
        str | None, typer.Option("--keep-size", metavar="SIZE", help="Delete the oldest files beyond 500MB, 2GB.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> int:
    """Delete old files of records. Files that a program is writing are kept."""
    from ..records.segments import old_segments, remove_old_segments

    if older is None and keep_size is None:
        raise ConfigError("say what to delete: --older 30d, --keep-size 500MB, or both")
    age = None if older is None else parse_duration(older)
    if older is not None and age is None:
        raise ConfigError(f"--older: expected 12h, 30d or 2w; got {older!r}")
    size = None if keep_size is None else parse_size(keep_size)
    if keep_size is not None and size is None:
        raise ConfigError(f"--keep-size: expected 500MB or 2GB; got {keep_size!r}")
    folder = _folder(config)
    where = printable(short_path(str(folder)))
    now = time.time()
    found = list(old_segments(folder, size, age, now))
    if not found:
        sys.stdout.write(f"nothing to delete in {where}\n")
        return COMPLETED
    rows = [(os.path.basename(one.path), time_text(one.time), size_text(one.size)) for one in found]
    print_table(("file", "last written", "size"), rows, keep=("file", "last written"), right=("size",))
    total = f"{counted(len(found), 'file')}, {size_text(sum(one.size for one in found))}, in {where}"
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError(f"deleting {total} needs --yes, because there is no terminal to ask at")
        if not typer.confirm(f"Delete {total}?"):
            return FAILED
    removed = remove_old_segments(folder, size, age, now)
    sys.stdout.write(f"deleted {counted(len(removed), 'file')}, {size_text(sum(one.size for one in removed))}\n")
    return COMPLETED


# Shared.


def _folder(config: Configuration) -> Path:
    return Path(config.settings.records)
