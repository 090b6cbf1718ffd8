"""Names of runs and records in all commands: ``last``, an id or its beginning, a file, or a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from ..config.errors import ConfigError
from ..config.sources import Configuration
from .errors import print_note
from .output import short_path
from .text import counted

if TYPE_CHECKING:
    from .._run.journal import StoredRun
    from ..explain.find import Found, LocatedRun
    from ..records.account import Account
    from ..records.blocks import Block
    from ..stores.runs import RunRecord, RunStore

RunName = Annotated[
    str, typer.Argument(metavar="RUN", help="Id of a run or its beginning, last, or a file or folder (its last run).")
]
RecordNames = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RECORDS",
        help="Files and folders of records and tapes, ids of runs or their beginnings, or last. "
        "[default: the setting records]",
    ),
]

RunIds = Annotated[
    str | None,
    typer.Option(
        "--run",
        metavar="RUN",
        help="Only this run and those inside it: its id or its beginning, last, or a file or folder (its last run).",
    ),
]

_SHOWN = 5
"""Number of ids that a message lists."""


class NamedRecords(NamedTuple):
    """A file or folder of records. With a ``run_id``, only this run of it is meant."""

    path: Path
    run_id: str = ""


def check_name(name: str) -> None:
    """Refuse an empty name of a run.

    Raises:
        ConfigError: the name is empty.
    """
    if not name:
        raise ConfigError("the name of a run is empty: give its id, the beginning of its id, or last")


def find_recorded(name: str, config: Configuration) -> Found:
    """Return a recorded run by its name, and print what was skipped while reading it."""
    return _located(name, config).found


def _located(name: str, config: Configuration) -> LocatedRun:
    from ..explain.find import locate_run

    check_name(name)
    run = locate_run(name, _places(config))
    for note in run.found.notes:
        print_note(note)
    return run


def find_records(names: Sequence[str] | None, config: Configuration) -> list[NamedRecords]:
    """Return the records that the user named, or those of the project.

    Raises:
        RecordError: there is no such run or file.
    """
    from ..explain.find import is_path

    if not names:
        folder = Path(config.settings.records)
        return [NamedRecords(folder)] if folder.is_dir() else []  # nothing is recorded yet
    found = [None if is_path(name) else _located(name, config) for name in names]
    return [
        NamedRecords(Path(name)) if run is None else NamedRecords(run.file, run.root_id)
        for name, run in zip(names, found, strict=True)
    ]


def blocks_of(named: Sequence[NamedRecords], since: float | None, account: Account) -> Iterator[Block]:
    """Yield the runs of records that started at a Unix time or later. Each is read once, from its last record."""
    from ..records.blocks import read_blocks
    from ..records.reading import replaced_parts

    files = files_of(named, since)
    replaced = replaced_parts(files)
    for file, ids in files.items():
        for block in read_blocks(file, account):
            if block.part in replaced:
                continue
            if (since is None or block.info.time >= since) and (not ids or block.id in ids):
                yield block


def files_of(named: Sequence[NamedRecords], since: float | None = None) -> dict[Path, set[str]]:
    """Return the files of records, oldest first, each with the ids of the runs that are meant; empty for all."""
    from ..records.reading import record_files

    chosen: dict[Path, set[str]] = {}
    whole: set[Path] = set()
    for path, run_id in named:
        for file in record_files([path], since=since):
            ids = chosen.setdefault(file, set())
            if run_id:
                ids.add(run_id)
            else:
                whole.add(file)
    return {file: set() if file in whole else ids for file, ids in chosen.items()}


@contextmanager
def named_records(names: Sequence[str] | None, config: Configuration) -> Iterator[list[str]]:
    """Return the files and folders that the user named, or those of the project. A single run gets a file of its own.

    Raises:
        ConfigError: nothing was named, and nothing is recorded.
        RecordError: there is no such run.
    """
    from ..records.account import Account
    from ..records.blocks import write_blocks

    folder = config.settings.records
    if not names and not Path(folder).exists():
        raise ConfigError(
            f"no runs are recorded in {short_path(folder)} yet. Turn recording on with record = true in hookline.toml "
            "or --record, or name records"
        )
    found = find_records(names, config)
    paths = [str(path) for path, run_id in found if not run_id]
    if not (runs := [each for each in found if each.run_id]):
        yield paths
        return
    with TemporaryDirectory(prefix="hookline-") as place:
        file = Path(place, "chosen.moments")
        with file.open("wb") as out:
            write_blocks(blocks_of(runs, None, Account()), out.write)
        yield [*paths, str(file)]


def find_tapes(names: Sequence[str], config: Configuration) -> list[str]:
    """Return the tapes that the user named: files, folders, and the tapes of runs.

    Raises:
        ConfigError: a run has no tape.
        RecordError: there is no such run.
    """
    from ..explain.find import is_path

    return [name if is_path(name) else _tape_of(name, config) for name in names]


def _tape_of(name: str, config: Configuration) -> str:
    from ..explain.find import locate_run
    from ..records.format import TAPE_SUFFIX, RecordError
    from ..records.reading import record_files

    places = [place for place in _places(config) if os.path.isdir(place)]
    tapes = [file for file in record_files(places) if file.suffix == TAPE_SUFFIX]
    with suppress(RecordError):  # the names of all runs are looked up below, for the message
        return str(locate_run(name, tapes).file)
    run = _located(name, config)
    raise ConfigError(f"the run {run.root_id} has a record, but no tape: hookline explain {name} shows it")


class NamedRuns(NamedTuple):
    """The runs that a filter means: those whose ids begin like this, and the ids of the runs nested in them."""

    beginning: str = ""
    nested: tuple[str, ...] = ()


def named_runs(name: str | None, config: Configuration) -> NamedRuns:
    """Return the runs that a filter means; without a name, all runs.

    An id need not be known here: a log may be about runs of other lists and machines.

    Raises:
        ConfigError: there is no list of runs whose newest run could be meant.
        RecordError: a file has no run.
        StoreError: the list of runs is empty, or cannot be used.
    """
    from ..explain.find import is_path

    if name is None:
        return NamedRuns()
    check_name(name)
    if is_path(name):
        run = find_recorded(name, config).run
        return NamedRuns(run.id, tuple(each.id for each in run.tree() if each.id != run.id))
    with run_list(config) as store:
        if store is None and name == "last":
            raise ConfigError("the newest run is not known: no run is recorded in this project yet")
        if store is None:
            return NamedRuns(name)
        ids = [store.find(name).id] if name == "last" else store.ids_of(name)
        nested = [inner for id in ids for inner in store.nested_ids(id)]
        return NamedRuns(ids[0] if name == "last" else name, tuple(nested))


def run_in_list(name: str, store: RunStore, config: Configuration) -> RunRecord:
    """Return the run of a list that a name stands for; a file or folder stands for its last run.

    Raises:
        RecordError: a file has no run.
        StoreError: there is no such run, or more than one.
    """
    from ..explain.find import is_path

    check_name(name)
    return store.find(find_recorded(name, config).run.id if is_path(name) else name)


@contextmanager
def run_list(config: Configuration) -> Iterator[RunStore | None]:
    """Return the list of runs of the project for as long as the block lasts; ``None`` if there is none."""
    from ..stores.runs import RunStore

    if config.settings.runs is None:
        yield None
        return
    with closing(RunStore(config.settings.runs)) as store:
        yield store if store.db.exists() else None


def find_durable(name: str, store: RunStore | None) -> StoredRun:
    """Return the durable run with this id or an unambiguous beginning of it; ``last`` is the newest.

    Raises:
        ConfigError: there is no such run, or more than one.
    """
    check_name(name)
    chosen: list[StoredRun] = []
    newest: list[StoredRun] = [] if store is None else store.journal.runs(limit=_SHOWN)
    if store is not None and name == "last":
        chosen = store.journal.newest()
    elif store is not None:
        begins = name.removeprefix("run_")
        exact = store.journal.get(name)
        chosen = [exact] if exact is not None else store.journal.find(begins, f"run_{begins}")
    if not newest:
        which = "" if name == "last" else f" {name!r:.80}"
        raise ConfigError(f"there is no durable run{which}: hookline run TASK --durable starts one")
    known = ", ".join(run.run_id for run in newest)
    if not chosen:
        raise ConfigError(f"there is no durable run {name!r:.80}. The newest are {known}; hookline runs shows all")
    if len(chosen) > 1:
        ids = ", ".join(run.run_id for run in chosen[:_SHOWN])
        raise ConfigError(f"{counted(len(chosen), 'durable run')} begin with {name!r:.80}: {ids}")
    return chosen[0]


def _places(config: Configuration) -> list[str]:
    """Return the folders in which runs are looked up by their ids."""
    settings = config.settings
    return [settings.records, *([settings.tapes] if settings.tapes and os.path.isdir(settings.tapes) else [])]
