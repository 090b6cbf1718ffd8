"""Read records from Parquet files with DuckDB, which skips the moments that no hook listens to."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from .._base.errors import NotInstalledError
from ..records.account import Skipped
from ..records.format import HookInfo
from ..records.parquet import FIRST
from ..records.reading import PARQUET, SUFFIXES, Part, decode_hooks
from .sources import Block, Unit, UnitAccount, Wanted

UNIT_ROWS = 400_000
"""The number of rows of a unit. It does not depend on the number of processes, so that the result does not."""
_BATCH = 50_000
_MEMORY = "256MB"
_STRUCTURE = ("run", "end", "label")
_NEEDED = {"block", "seq", "moments", "point", "tool", "line"}
_WILD = frozenset("*?[")


def split_paths(paths: Iterable[str | os.PathLike[str]]) -> tuple[list[str], list[str | os.PathLike[str]]]:
    """Return the Parquet files among the paths, and the other paths.

    In a folder, Parquet files count only if there are no other records, because an export contains the same runs again.
    """
    tables: list[str] = []
    others: list[str | os.PathLike[str]] = []
    for path in map(Path, paths):
        if path.suffix == PARQUET:
            tables.append(str(path))
        elif path.is_dir() and not any(file.suffix in SUFFIXES for file in path.rglob("*")):
            found = sorted(str(file) for file in path.rglob(f"*{PARQUET}"))
            tables += found
            others += [] if found else [path]
        else:
            others.append(path)
    return tables, others


class ParquetFiles:
    """Parquet files that ``hookline record export --parquet`` wrote.

    Args:
        paths: the files.

    Raises:
        NotInstalledError: the packages ``duckdb`` and ``pyarrow`` are missing.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        try:
            import duckdb
            import pyarrow
        except ModuleNotFoundError as error:
            raise NotInstalledError(str(error.name), "backtest") from None
        del duckdb, pyarrow
        self._paths = paths
        self._skipped: list[Skipped] = []
        self._hooks: dict[str, dict[str, tuple[HookInfo, ...]]] = {}
        self._database: tuple[int, Any] = (0, None)
        """The process and its database, which cannot be used in a process that was forked."""

    def skipped(self) -> list[Skipped]:
        """Return the files that cannot be read at all."""
        return self._skipped

    def units(self) -> list[Unit]:
        """Return ranges of run trees. A row group contains whole trees, so the ranges are ranges of row groups."""
        found: list[Unit] = []
        self._skipped = []
        for path in self._paths:
            try:
                found += _units_of(path)
            except (OSError, ValueError) as error:
                why = getattr(error, "strerror", None) or str(error)
                self._skipped.append(Skipped(path, f"cannot be read as Parquet: {why}"))
        return found

    def replaced(self) -> frozenset[Part]:
        """Return nothing: exports contain the last record of each run."""
        return frozenset()

    def blocks(self, unit: Unit, wanted: Wanted, account: UnitAccount) -> Iterator[Block]:
        """Yield the run trees of a unit, without the moments that are not wanted."""
        import duckdb

        end = "" if unit.end < 0 else f" and block < {unit.end:d}"
        part = f"from read_parquet($path) where block >= {unit.start:d}{end}"
        columns = "block, seq, moments, point not in ('run', 'end', 'label') as is_moment, line"
        given = {"path": unit.file}
        try:
            with self._connect() as one, self._connect() as another:
                labelled = f"select 1 {part} and point in ('label', 'approval_decided') limit 1"
                has_labels = wanted.labelled or bool(one.execute(labelled, given).fetchall())

                def trees(connection: Any, conditions: Sequence[str]) -> Iterator[_Rows]:
                    if not conditions:
                        return iter(())
                    query = f"select {columns} {part} and ({' or '.join(conditions)})"
                    return _by_tree(connection.sql(query, params=given).to_arrow_reader(_BATCH))

                first, rest = _conditions(wanted, has_labels)
                yield from _joined(trees(one, first), trees(another, rest))
        except (duckdb.Error, OSError) as error:
            account.skip(f"a part of the file cannot be read: {str(error).splitlines()[0]}")

    def hooks(self, unit: Unit, digest: str) -> tuple[HookInfo, ...]:
        """Return the hooks with this digest."""
        import duckdb

        if unit.file not in self._hooks:
            query = "select line from read_parquet($path) where point = 'hooks'"
            try:
                with self._connect() as connection:
                    lines = connection.execute(query, {"path": unit.file}).fetchall()
                found = [decode_hooks(line) for (line,) in lines]
            except (duckdb.Error, msgspec.DecodeError):  # the account has the parts that are damaged
                found = []
            self._hooks[unit.file] = {each.digest: each.hooks for each in found}
        return self._hooks[unit.file].get(digest, ())

    def _connect(self) -> Any:
        """Return a connection to the database of this process, which is in memory and was opened once: that is slow.

        It has one thread, because each process of a backtest has its own.
        """
        import duckdb

        if self._database[0] != os.getpid():
            config: dict[str, str | bool | int | float | list[str]] = {
                "threads": 1,
                "memory_limit": _MEMORY,
                "preserve_insertion_order": True,
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
            }
            self._database = os.getpid(), duckdb.connect(config=config)
        connection = self._database[1].cursor()
        connection.execute("set enable_progress_bar = false")
        return connection


def _units_of(path: str) -> Iterator[Unit]:
    import pyarrow.parquet

    about = pyarrow.parquet.read_metadata(path)
    names = about.schema.names
    if missing := _NEEDED - set(names):
        raise ValueError(f"it has no column {', '.join(sorted(missing))}, so it is not an export of records")
    column = names.index("block")
    start = rows = size = 0
    for number in range(about.num_row_groups):
        group = about.row_group(number)
        rows, size = rows + group.num_rows, size + group.total_byte_size
        if rows >= UNIT_ROWS and number + 1 < about.num_row_groups:
            end = about.row_group(number + 1).column(column).statistics.min
            yield Unit(path, start, end, size)
            start, rows, size = end, 0, 0
    if rows:
        yield Unit(path, start, -1, size)


def _conditions(wanted: Wanted, has_labels: bool) -> tuple[list[str], list[str]]:
    """Return the conditions for the rows that are wanted: for those that come first in a row group, and for the rest.

    Globs are not translated: the engine applies them.
    """
    structure = f"point in ({', '.join(map(_quoted, (*_STRUCTURE, 'approval_decided')))})"
    if wanted.everything:
        every = ", ".join(map(_quoted, sorted(FIRST)))
        return [structure, "point = 'before_tool'"], [f"point not in ({every})"]
    first, rest = [structure], list[str]()
    if has_labels:
        first.append("point = 'before_tool'")
    for point, globs in wanted.points.items():
        condition = f"point = {_quoted(point)}"
        if globs and not any(_WILD & set(glob) for glob in globs):
            condition = f"({condition} and tool in ({', '.join(map(_quoted, globs))}))"
        (first if point in FIRST else rest).append(condition)
    return first, rest


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


class _Rows(msgspec.Struct):
    """Rows of one run tree: the lines with their numbers, the moments of the tree, and how many of them are here."""

    block: int
    lines: list[tuple[int, bytes]]
    moments: int
    here: int


def _by_tree(batches: Iterable[Any]) -> Iterator[_Rows]:
    """Yield the rows of each run tree, which may span batches."""
    current: _Rows | None = None
    for batch in batches:
        blocks, numbers, totals, counted, lines = (column.to_pylist() for column in batch.columns)
        first = 0
        for row in (*_changes(blocks), len(blocks)):
            if row > first:
                if current is None or current.block != blocks[first]:
                    if current is not None:
                        yield current
                    current = _Rows(blocks[first], [], totals[first], 0)
                current.lines += zip(numbers[first:row], lines[first:row], strict=True)
                current.here += sum(counted[first:row])
            first = row
    if current is not None:
        yield current


def _changes(values: list[int]) -> list[int]:
    """Return the positions at which a value differs from the one before."""
    return [index for index, (one, other) in enumerate(pairwise(values), 1) if one != other]


def _joined(first: Iterator[_Rows], rest: Iterator[_Rows]) -> Iterator[Block]:
    """Yield one block for each run tree, with the number of moments that are left out."""
    later = next(rest, None)
    for rows in first:
        lines, here = rows.lines, rows.here
        if later is not None and later.block == rows.block:
            lines = sorted(lines + later.lines)
            here += later.here
            later = next(rest, None)
        yield Block(b"".join([line for _, line in lines]), rows.moments - here)
