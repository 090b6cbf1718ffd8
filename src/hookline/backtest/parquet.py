"""Read records from Parquet files with DuckDB, which skips the moments that no hook listens to."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from .._base.errors import NotInstalledError
from ..records.format import HookInfo, HooksLine
from ..records.reading import PARQUET, SUFFIXES
from .report import Skipped
from .sources import Account, Block, Unit, Wanted

UNIT_ROWS = 400_000
"""The number of rows of a unit. It does not depend on the number of processes, so that the result does not."""
_BATCH = 50_000
_MEMORY = "256MB"
_STRUCTURE = ("run", "end", "label")
_NEEDED = {"block", "moments", "point", "tool", "line"}
_WILD = frozenset("*?[")

_decode_hooks = msgspec.json.Decoder(HooksLine).decode


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

    def blocks(self, unit: Unit, wanted: Wanted, account: Account) -> Iterator[Block]:
        """Yield the run trees of a unit, without the moments that are not wanted."""
        import duckdb

        end = "" if unit.end < 0 else f" and block < {unit.end:d}"
        part = f"from read_parquet($path) where block >= {unit.start:d}{end}"
        columns = "block, moments, point not in ('run', 'end', 'label') as is_moment, line"
        given = {"path": unit.file}
        try:
            with _connect() as connection:
                if wanted.everything:
                    condition = "point not in ('hooks', 'hookline')"
                else:
                    labelled = f"select 1 {part} and point in ('label', 'approval_decided') limit 1"
                    has_labels = wanted.labelled or bool(connection.execute(labelled, given).fetchall())
                    condition = _condition(wanted, has_labels)
                found = connection.sql(f"select {columns} {part} and ({condition})", params=given)
                batches = found.to_arrow_reader(_BATCH)
                yield from _whole_batches(batches) if wanted.everything else _trees(batches)
        except (duckdb.Error, OSError) as error:
            account.skip(f"a part of the file cannot be read: {str(error).splitlines()[0]}")

    def hooks(self, unit: Unit, digest: str) -> tuple[HookInfo, ...]:
        """Return the hooks with this digest."""
        if unit.file not in self._hooks:
            with _connect() as connection:
                query = "select line from read_parquet($path) where point = 'hooks'"
                lines = connection.execute(query, {"path": unit.file}).fetchall()
            found = [_decode_hooks(line) for (line,) in lines]
            self._hooks[unit.file] = {each.digest: each.hooks for each in found}
        return self._hooks[unit.file].get(digest, ())


def _connect() -> Any:
    """Open a database in memory. One thread, because each process of a backtest has its own."""
    import duckdb

    config: dict[str, str | bool | int | float | list[str]] = {
        "threads": 1,
        "memory_limit": _MEMORY,
        "preserve_insertion_order": True,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    connection = duckdb.connect(config=config)
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


def _condition(wanted: Wanted, has_labels: bool) -> str:
    """Return the condition for the rows that are wanted. Globs are not translated: the engine applies them."""
    points = {*_STRUCTURE, "approval_decided", *(("before_tool",) if has_labels else ())}
    some = []
    for point, globs in wanted.points.items():
        if point in points:
            continue
        if globs and not any(_WILD & set(glob) for glob in globs):
            some.append(f"(point = {_quoted(point)} and tool in ({', '.join(map(_quoted, globs))}))")
        else:
            points.add(point)
    return " or ".join([f"point in ({', '.join(map(_quoted, sorted(points)))})", *some])


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _whole_batches(batches: Iterable[Any]) -> Iterator[Block]:
    for batch in batches:
        if batch.num_rows:
            data, offsets = _lines(batch.column(3))
            yield Block(bytes(data[offsets[0] : offsets[batch.num_rows]]))


def _trees(batches: Iterable[Any]) -> Iterator[Block]:
    """Yield one block for each run tree, with the number of moments that are left out. A tree may span batches."""
    current, parts, moments = -1, [b""], 0
    for batch in batches:
        numbers = batch.column(0).to_pylist()
        totals = batch.column(1).to_pylist()
        counted = batch.column(2).to_pylist()
        data, offsets = _lines(batch.column(3))
        first = 0
        for row, number in enumerate(numbers):
            if number == current:
                continue
            if row > first:
                parts.append(bytes(data[offsets[first] : offsets[row]]))
                moments -= sum(counted[first:row])
            if current >= 0:
                yield Block(b"".join(parts), moments)
            current, parts, moments, first = number, [], totals[row], row
        if numbers:
            parts.append(bytes(data[offsets[first] : offsets[len(numbers)]]))
            moments -= sum(counted[first:])
    if current >= 0:
        yield Block(b"".join(parts), moments)


def _lines(column: Any) -> tuple[memoryview, memoryview]:
    """Return the bytes of a column of lines, one after the other, and the positions of the lines."""
    import pyarrow

    if column.type not in (pyarrow.binary(), pyarrow.large_binary()):
        column = column.cast(pyarrow.large_binary())
    _, offsets, data = column.buffers()
    wide = column.type == pyarrow.large_binary()
    positions = memoryview(offsets).cast("q" if wide else "i")[column.offset :]
    return memoryview(data if data is not None else b""), positions
