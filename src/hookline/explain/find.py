"""Find a recorded run by its id."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from .._base.text import counted
from ..records.account import Account
from ..records.format import RecordError, RunLine
from ..records.reading import (
    INVALID,
    SUFFIXES,
    RecordedRun,
    decode_run,
    joined,
    last_written,
    raw_lines,
    read_parts,
    read_runs,
    record_files,
)

_RUN_LINE = b'["run",'
_SHOWN = 5
"""Number of ids that a message lists."""


class Found(NamedTuple):
    """A recorded run, and remarks for the user about how it was found and read."""

    run: RecordedRun
    notes: list[str]


class LocatedRun(NamedTuple):
    """A recorded run that was found, and where.

    ``root_id`` is the id of the outermost run, which is another one for a nested run.
    """

    found: Found
    file: Path
    root_id: str


def is_path(name: str) -> bool:
    """Whether a name is that of a file or folder, and not of a run."""
    return name.endswith(SUFFIXES) or os.path.exists(name)


def find_run(name: str, records: Sequence[str | os.PathLike[str]] = ()) -> Found:
    """Return the recorded run with this name.

    Args:
        name: the id of a run or its beginning, with or without ``run_``; ``last``; or a file or folder, whose last run
            is meant.
        records: the files and folders in which ids are looked up.

    Raises:
        RecordError: there is no such run, or there are several.

    Example::

        run, notes = find_run("last", ["records/"])
    """
    return locate_run(name, records).found


def locate_run(name: str, records: Sequence[str | os.PathLike[str]] = ()) -> LocatedRun:
    """Return the recorded run with this name, and where it is: see :func:`find_run`.

    Raises:
        RecordError: there is no such run, or there are several.
    """
    if is_path(name) and not os.path.isdir(name):
        return _last_of(Path(name))
    if os.path.isdir(name):
        name, records = "last", [name]
    existing = [path for path in records if os.path.exists(path)]
    if not existing:
        what = "the last run" if name == "last" else repr(name)
        where = f" in {', '.join(map(str, records))}" if records else ""
        raise RecordError(
            f"{what} was not found: no runs are recorded{where} yet (hookline run --record records a run)"
        )
    refused = Account()
    file, id = _locate(name, existing, refused)
    found = _read(file, id)
    if found is None:  # the run has ended meanwhile, and its record was moved
        file, id = _locate(name, existing, Account())
        found = _read(file, id)
    if found is None:
        raise RecordError(f"{file} does not contain the run {id} any more")
    run, notes = found.found
    if run.info.goes_on and run.depth == 0:
        run = _with_beginning(run, existing)
    return found._replace(found=Found(run, [*map(str, refused.entries()), *notes]))


def _with_beginning(run: RecordedRun, records: Sequence[str | os.PathLike[str]]) -> RecordedRun:
    """Return a run of a host together with what earlier processes have recorded of it."""
    files = [file for file in record_files(records) if any(part.id == run.id for part in read_parts(file))]
    parts = [each for file in files for each in read_runs([file]) if each.id == run.id]
    parts.sort(key=lambda part: part.info.time)
    first = max((index for index, part in enumerate(parts) if not part.info.goes_on), default=0)
    return joined(parts[first:])


def _locate(name: str, records: Sequence[str | os.PathLike[str]], refused: Account) -> tuple[Path, str]:
    """Return the file and the whole id of a run. ``refused`` collects the files that this version does not read."""
    files = record_files(records)[::-1]
    if name == "last":
        return _last(files, records, refused)
    matches: dict[str, tuple[RunLine, Path]] = {}
    for file in files:
        for run, outer in _run_lines(file, refused):
            id = run.info.ids.run_id
            if not name or not id.startswith((name, f"run_{name}")):
                continue
            # A run that was resumed is in several records, and the last one has everything.
            if id not in matches or outer.info.time > matches[id][0].info.time:
                matches[id] = outer, file
        if name in matches and _is_over(*matches[name]):
            break
    if name in matches:
        return matches[name][1], name
    if not matches:
        where = f"{', '.join(map(str, records))}{_newest(files)}"
        raise RecordError(
            f"no recorded run begins with {name!r} in {where}: hookline record ls lists the runs{_reasons(refused)}"
        )
    if len(matches) > 1:
        shown = ", ".join(list(matches)[:_SHOWN]) + (", …" if len(matches) > _SHOWN else "")
        raise RecordError(f"{counted(len(matches), 'recorded run')} begin with {name!r}: {shown}")
    ((id, (_, file)),) = matches.items()
    return file, id


def _is_over(outer: RunLine, file: Path) -> bool:
    """Return whether the record says how an outermost run ended, so that no later one continues it."""
    return any(part.is_over for part in read_parts(file) if part.id == outer.info.ids.run_id)


def _newest(files: Sequence[Path]) -> str:
    """Return the ids of the newest runs as a part of a message. ``files`` begins with the one that was written last."""
    found: list[tuple[float, str]] = []
    for file in files[:_SHOWN]:
        found += [(run.info.time, run.info.ids.run_id) for run, _ in _run_lines(file, Account()) if run.run == 0]
    newest = list(dict.fromkeys(id for _, id in sorted(found, reverse=True)))[:_SHOWN]
    return f" (the newest are {', '.join(newest)})" if newest else ""


def _run_lines(file: Path, refused: Account) -> list[tuple[RunLine, RunLine]]:
    """Return the lines in which runs start, each with that of its outermost run. All other lines are skipped by their
    first bytes.
    """
    found = []
    outer: RunLine | None = None
    try:
        for _, line in raw_lines(file, Account()):
            if line.startswith(_RUN_LINE):
                with suppress(*INVALID):
                    run = decode_run(line)
                    outer = run if run.run == 0 or outer is None else outer
                    found.append((run, outer))
    except FileNotFoundError:
        pass  # a record that was moved, because its run has ended
    except RecordError as error:
        refused.skip(file, str(error))
    return found


def _reasons(refused: Account) -> str:
    """Return which files were not read, as the end of a message."""
    return "".join(f"; {each}" for each in refused.entries())


def _last(files: Sequence[Path], records: Sequence[str | os.PathLike[str]], refused: Account) -> tuple[Path, str]:
    """Return the run that started last. ``files`` begins with the file that was written last."""
    best: tuple[float, str, Path] | None = None
    for file in files:
        # A run is written after it starts, so an older file cannot contain one that started later.
        if best is not None and last_written(file) < best[0]:
            break
        for run, _ in _run_lines(file, refused):
            if run.run == 0 and (best is None or run.info.time >= best[0]):
                best = run.info.time, run.info.ids.run_id, file
    if best is None:
        raise RecordError(f"no runs are recorded in {', '.join(map(str, records))} yet{_reasons(refused)}")
    return best[2], best[1]


def _read(file: Path, id: str) -> LocatedRun | None:
    if not file.exists():
        return None
    account, found = Account(), None
    for run in read_runs([file], account=account):
        for each in run.tree():
            if each.id == id:  # the last record of several
                found = LocatedRun(Found(each, []), file, run.id)
    notes = list(map(str, account.entries()))
    return None if found is None else found._replace(found=Found(found.found.run, notes))


def _last_of(file: Path) -> LocatedRun:
    account = Account()
    count, last = 0, None
    for run in read_runs([file], account=account):
        count, last = count + 1, run
    if last is None:
        reasons = "; ".join(reason for _, reason in account.skipped)
        raise RecordError(f"{file} contains no recorded run{f': {reasons}' if reasons else ''}")
    notes = list(map(str, account.entries()))
    if count > 1:
        notes.insert(0, f"{file} contains {count:,} runs; this is the last one (choose another by its id)")
    return LocatedRun(Found(last, notes), file, last.id)
