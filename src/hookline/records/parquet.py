"""Export records to Parquet, for histories that are too large for files of moments.

Each line of a record is a row. The columns beside the line are what queries filter by::

    block    number of the run tree in the file
    seq      number of the line in its run tree; -1 for hooks
    moments  number of moments of the run tree, in the row of its outermost run
    run_id   id of the run; in the row of hooks, their digest
    run, n   number of the run in its tree, and position of the moment; -1 if the line has none
    point    name of the point, or the kind of line: run, end, label, hooks, hookline
    tool     name of the tool
    agent    name of the agent
    time     Unix time in seconds
    verb     verb of the verdict; empty if the payload passed
    line     the line as it is in the record, with its newline

A row group contains whole run trees, so that parts of a file can be read independently. Within it, the calls of tools
and all lines that are not moments come first: most rules need only these, and a reader skips the rest without
decompressing it. ``hookline backtest`` reads such files with DuckDB, and so can any other tool::

    select tool, count(*) from 'history/*.parquet' where point = 'before_tool' and verb = 'block' group by tool
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from .._base.errors import NotInstalledError
from .._base.frozen import Frozen
from .account import NO_RUN, NOT_A_LINE, Account
from .blocks import Block, read_blocks
from .format import NOT_MOMENTS, OTHER_LINES, RecordedVerdict, RecordError, RunInfo
from .reading import INVALID, PARQUET, decode_line, record_files, replaced_parts

ROWS = 100_000
"""Rows of a row group."""
GROUP_BYTES = 64 << 20
"""Size of the lines of a row group, before compression."""
FILE_ROWS = 5_000_000
"""Rows of a file, if the export is a folder."""

FIRST = frozenset((*NOT_MOMENTS, "before_tool", "approval_decided"))
"""The lines that come first in a row group."""
COLUMNS = ("block", "seq", "moments", "run_id", "run", "n", "point", "tool", "agent", "time", "verb", "line")


Row = tuple[Any, ...]

_numbers = count()


class ParquetExport(Frozen, frozen=True):
    """The result of an export: the files that were written, and what they contain."""

    files: tuple[str, ...]
    runs: int
    moments: int
    size: int
    """Bytes of all files."""


def export_parquet(
    records: Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    since: float | None = None,
    account: Account | None = None,
) -> ParquetExport:
    """Write records to a Parquet file, or to several files in a folder if ``out`` does not end in ``.parquet``.

    Example::

        export_parquet(["records/"], "history/")

    Args:
        records: files and folders of records.
        out: the file or folder to write.
        since: leave out runs that started before this Unix time.
        account: counts the lines that cannot be read.

    Raises:
        RecordError: a record does not exist, or the files cannot be written.
        NotInstalledError: the package ``pyarrow`` is missing.
    """
    account = Account() if account is None else account
    # The clocks of file systems are coarse, and a run starts before its file is written.
    files = record_files(records, since=since)
    replaced = replaced_parts(files)
    blocks = (block for file in files for block in read_blocks(file, account) if block.part not in replaced)
    return write_parquet((block for block in blocks if since is None or block.info.time >= since), out, account)


def write_parquet(blocks: Iterable[Block], out: str | os.PathLike[str], account: Account) -> ParquetExport:
    """Write runs to Parquet, like :func:`export_parquet`."""
    writer = _Writer(Path(out))
    try:
        for block in blocks:
            writer.add(block, account)
        return writer.close()
    except OSError as error:
        raise RecordError(f"{out} cannot be written: {error.strerror or error}") from error
    finally:
        writer.discard()


class _Moment(msgspec.Struct, array_like=True, frozen=True):
    """The fields of a moment that have a column."""

    point: str
    tool: str
    run: int
    n: int
    at: float
    took: float
    payload: msgspec.Raw
    decisions: msgspec.Raw = msgspec.Raw(b"null")
    verdict: RecordedVerdict | None = None


_decode_moment = msgspec.json.Decoder(_Moment).decode


def _rows(block: Block, number: int, account: Account) -> tuple[list[Row], int]:
    """Return the rows of a run tree, and the number of moments."""
    runs: dict[int, RunInfo] = {}
    rows: list[Row] = []
    moments = 0
    for seq, line in enumerate(block.lines):
        try:
            if line.startswith(OTHER_LINES):
                found = decode_line(line)
                kind = found.kind
                if kind == "run":
                    runs[found.run] = found.info
                info = runs[found.run]
                n, tool = (found.n, found.tool) if kind == "label" else (-1, "")
                _check_numbers(found.run, n)
                at = info.time if kind == "run" else block.info.time
                run_id, agent = info.ids.run_id, info.ids.agent
                rows.append((number, seq, 0, run_id, found.run, n, kind, tool, agent, at, "", line + b"\n"))
            else:
                moment = _decode_moment(line)
                info = runs[moment.run]
                verb = "" if moment.verdict is None else moment.verdict.verb
                at, ids = block.info.time + moment.at, info.ids
                run, n, point, tool = moment.run, moment.n, moment.point, moment.tool
                _check_numbers(run, n)
                rows.append((number, seq, 0, ids.run_id, run, n, point, tool, ids.agent, at, verb, line + b"\n"))
                moments += 1
        except INVALID:
            account.skip(block.file, NOT_A_LINE)
        except KeyError:
            account.skip(block.file, NO_RUN)
    if rows:
        rows[0] = (number, 0, moments, *rows[0][3:])
    return rows, moments


def _check_numbers(*numbers: int) -> None:
    """Check that the numbers of a line fit into their columns."""
    if any(abs(number) >= 1 << 31 for number in numbers):
        raise msgspec.ValidationError("a number is too large")


class _Writer:
    """Writes rows to one file, or to several in a folder. A file appears under its name when it is complete."""

    def __init__(self, out: Path) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ModuleNotFoundError:
            raise NotInstalledError("pyarrow", "backtest") from None
        self._arrow, self._parquet = pyarrow, pyarrow.parquet
        names, number = pyarrow.dictionary(pyarrow.int32(), pyarrow.string()), pyarrow.int32()
        run = (names, number, number)
        types = (number, number, number, *run, names, names, names, pyarrow.float64(), names, pyarrow.binary())
        self._schema = pyarrow.schema(list(zip(COLUMNS, types, strict=True)), metadata={"hookline": "moments"})
        self._out, self._is_file = out, out.suffix == PARQUET and not out.is_dir()
        if self._is_file and out.exists():
            raise RecordError(f"{out} exists already: choose another file")
        (out.parent if self._is_file else out).mkdir(parents=True, exist_ok=True, mode=0o700)
        self._stamp = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}"
        self._file: Any = None
        self._path = out
        self._done: list[str] = []
        self._rows: list[Row] = []
        self._size = self._file_rows = self._block = 0
        self._written: set[str] = set()
        self._runs = self._moments = 0

    def add(self, block: Block, account: Account) -> None:
        """Add a run tree, after the lines of the hooks that it has."""
        if self._file_rows >= FILE_ROWS and not self._is_file:
            self._close_file()
        for digest, line in block.hooks.items():
            if digest not in self._written:
                self._written.add(digest)
                self._rows.append((self._block, -1, 0, digest, -1, -1, "hooks", "", "", 0.0, "", line + b"\n"))
        rows, moments = _rows(block, self._block, account)
        self._rows += rows
        self._size += block.size
        self._file_rows += len(rows)
        self._block += 1
        self._runs += 1
        self._moments += moments
        if len(self._rows) >= ROWS or self._size >= GROUP_BYTES:
            self._flush()

    def close(self) -> ParquetExport:
        """Finish the last file."""
        self._close_file()
        return ParquetExport(
            tuple(self._done), self._runs, self._moments, sum(os.path.getsize(path) for path in self._done)
        )

    def discard(self) -> None:
        """Delete a file that is not complete."""
        if self._file is not None:
            self._file.close()
            self._partial.unlink(missing_ok=True)

    @property
    def _partial(self) -> Path:
        return self._path.with_name(f"{self._path.name}.partial")

    def _flush(self) -> None:
        """Write a row group."""
        if not self._rows:
            return
        if self._file is None:
            name = f"{self._stamp}-{next(_numbers):06}{PARQUET}"
            self._path = self._out if self._is_file else self._out / name
            os.close(os.open(self._partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
            self._file = self._parquet.ParquetWriter(
                self._partial,
                self._schema,
                compression="zstd",
                use_dictionary=list(COLUMNS[3:-1]),
                write_statistics=True,
            )
        point = COLUMNS.index("point")
        self._rows.sort(key=lambda row: row[point] not in FIRST)  # the order is kept otherwise
        columns = [list(column) for column in zip(*self._rows, strict=True)]
        table = self._arrow.table(columns, schema=self._schema)
        self._file.write_table(table, row_group_size=len(self._rows))
        self._rows, self._size = [], 0

    def _close_file(self) -> None:
        self._flush()
        if self._file is None:
            return
        self._file.close()
        self._file = None
        os.replace(self._partial, self._path)
        self._done.append(str(self._path))
        self._written, self._file_rows, self._block = set(), 0, 0
