"""Where moments come from: files that are read in parts, so that several processes share the work."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec

from .._base.frozen import Frozen
from ..records.account import INCOMPLETE, MAX_LINE, TOO_LONG, Account, Skipped
from ..records.format import TAPE_SUFFIX, HookInfo, RecordError
from ..records.reading import (
    TREE,
    Part,
    check_tape,
    check_version,
    decode_header,
    decode_hooks,
    open_recording,
    record_files,
    replaced_parts,
)
from .errors import BacktestError

UNIT_BYTES = 16 << 20
"""The size of the parts of a file. It does not depend on the number of processes, so that the result does not."""
_CHUNK = 1 << 18
"""The size of a block: larger ones are slower, because they do not fit into the cache of a processor."""
_NEXT_TREE = b"\n" + TREE


class Unit(Frozen, frozen=True):
    """A part of a record: the run trees that begin in these bytes of a file. ``end`` is -1 for the end of the file."""

    file: str
    start: int = 0
    end: int = -1
    size: int = 0


class Wanted(Frozen, frozen=True):
    """The moments that a backtest needs. A source may leave out moments of other points and tools, but must count them.

    ``points`` maps each point to the globs of its tools; no globs stand for all tools. Lines that are not moments, and
    moments of ``approval_decided``, are always wanted. So are those of ``before_tool`` if calls have labels, in the
    records or (``labelled``) beside them. With ``everything`` nothing may be left out, because a hook looks at earlier
    moments.
    """

    points: dict[str, tuple[str, ...]]
    labelled: bool = False
    everything: bool = False


class Block(Frozen, frozen=True):
    """Whole lines of a record.

    ``left_out`` is the number of moments that the source left out. If it leaves out any, a block is one run tree.
    """

    data: bytes
    left_out: int = 0


class UnitAccount:
    """The lines of a unit that were skipped, with the reasons."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._account = Account()
        self.lines_before: Callable[[], int] | None = None
        """Returns the number of lines before the current block, if the source knows it."""

    def skip(self, reason: str, line: int = 0) -> None:
        """Count a skipped line; ``line`` is its number, 0 if unknown."""
        self._account.skip(self._file, reason, line)

    def skip_in(self, block: bytes, position: int, reason: str) -> None:
        """Count a skipped line of a block. Its number is only looked up for the first one of each kind."""
        line = 0
        if (self._file, reason) not in self._account.skipped and self.lines_before is not None:
            line = self.lines_before() + block.count(b"\n", 0, position) + 1
        self.skip(reason, line)

    def entries(self) -> tuple[Skipped, ...]:
        """Return the account for the report."""
        return self._account.entries()


class Source(Protocol):
    """A kind of record. A source is used in several processes, so it must be possible to copy it there."""

    def units(self) -> list[Unit]:
        """Return the parts that can be read independently of one another."""
        ...

    def skipped(self) -> list[Skipped]:
        """Return the files that cannot be read at all."""
        ...

    def blocks(self, unit: Unit, wanted: Wanted, account: UnitAccount) -> Iterator[Block]:
        """Yield the lines of a unit. Each run tree is complete and in order."""
        ...

    def replaced(self) -> frozenset[Part]:
        """Return the records that a later one of the same run replaces."""
        ...

    def hooks(self, unit: Unit, digest: str) -> tuple[HookInfo, ...]:
        """Return the hooks with this digest, which may stand before the unit; none if they are unknown."""
        ...


class Joined:
    """Several sources as one. Each file belongs to one of them."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self._by_file: dict[str, Source] = {}

    def units(self) -> list[Unit]:
        """Return the units of all sources."""
        found = [(unit, source) for source in self._sources for unit in source.units()]
        self._by_file = {unit.file: source for unit, source in found}
        return [unit for unit, _ in found]

    def skipped(self) -> list[Skipped]:
        """Return the files that cannot be read at all."""
        return [each for source in self._sources for each in source.skipped()]

    def replaced(self) -> frozenset[Part]:
        """Return the records that a later one of the same run replaces."""
        return frozenset().union(*(source.replaced() for source in self._sources))

    def blocks(self, unit: Unit, wanted: Wanted, account: UnitAccount) -> Iterator[Block]:
        """Yield the lines of a unit."""
        return self._by_file[unit.file].blocks(unit, wanted, account)

    def hooks(self, unit: Unit, digest: str) -> tuple[HookInfo, ...]:
        """Return the hooks with this digest."""
        return self._by_file[unit.file].hooks(unit, digest)


class Files:
    """Files of moments and tapes.

    Raises:
        RecordError: a path does not exist.
        BacktestError: there is no record.
    """

    def __init__(self, paths: Iterable[str | os.PathLike[str]], *, since: float | None = None) -> None:
        given = list(paths)
        self._files = record_files(given, since=since)
        if not self._files:
            younger = " that was written since then" if since is not None else ""
            raise BacktestError(
                f"there is no record{younger} in {', '.join(map(str, given)) or 'nothing'}: record runs with "
                "'hookline run --record', or name files that end with .moments or .tape"
            )
        self._skipped: list[Skipped] = []
        self._hooks: dict[tuple[str, str], tuple[HookInfo, ...]] = {}

    def skipped(self) -> list[Skipped]:
        """Return the files that cannot be read at all."""
        return self._skipped

    def replaced(self) -> frozenset[Part]:
        """Return the records that a later one of the same run replaces."""
        return replaced_parts(self._files)

    def units(self) -> list[Unit]:
        """Return parts of ``UNIT_BYTES``. A tape is one part: its lines follow the order in which things happened."""
        found: list[Unit] = []
        self._skipped = []
        for file in self._files:
            try:
                size = file.stat().st_size
                self._check_header(file)
            except OSError as error:
                self._skipped.append(Skipped(str(file), f"cannot be read: {error.strerror or error}"))
                continue
            except RecordError as error:
                self._skipped.append(Skipped(str(file), str(error)))
                continue
            if file.suffix == TAPE_SUFFIX or size <= UNIT_BYTES:
                found.append(Unit(str(file), 0, -1, size))
                continue
            for start in range(0, size, UNIT_BYTES):
                end = start + UNIT_BYTES
                found.append(Unit(str(file), start, end if end < size else -1, min(end, size) - start))
        return found

    @staticmethod
    def _check_header(file: Path) -> None:
        with open_recording(file) as stream:
            first = stream.readline(_CHUNK)
        check_tape(first)
        try:
            header = decode_header(first).header
        except msgspec.DecodeError:
            return  # each of its lines is checked later
        check_version(header)

    def blocks(self, unit: Unit, wanted: Wanted, account: UnitAccount) -> Iterator[Block]:
        """Yield the lines of a unit, about a megabyte at a time."""
        for position, data in _clip(unit, _whole_lines(unit, account)):
            account.lines_before = partial(_lines_before, unit.file, position)
            yield Block(data)

    def hooks(self, unit: Unit, digest: str) -> tuple[HookInfo, ...]:
        """Return the hooks with this digest: the line stands before the first run that has them."""
        key = unit.file, digest
        if key not in self._hooks:
            self._hooks[key] = _find_hooks(unit.file, digest)
        return self._hooks[key]


class ChosenRuns(Files):
    """Single runs in files of moments and tapes.

    Args:
        places: the file of each outermost run, and the position of the line in which it begins; 0 for a tape.

    Example::

        report = backtest("rules.py", ChosenRuns([(Path("records/20261116T183412Z-4711-000001.moments"), 90210)]))
    """

    def __init__(self, places: Sequence[tuple[Path, int]]) -> None:
        super().__init__([file for file, _ in places])
        self._places = places

    def replaced(self) -> frozenset[Part]:
        """Return nothing: the records were chosen."""
        return frozenset()

    def units(self) -> list[Unit]:
        """Return a part for each run."""
        sizes = {unit.file: unit.size for unit in super().units()}
        return [
            Unit(str(file), start, start + 1 if start else -1, sizes[str(file)])
            for file, start in self._places
            if str(file) in sizes
        ]


def _whole_lines(unit: Unit, account: UnitAccount) -> Iterator[tuple[int, bytes]]:
    """Yield whole lines of a file from the start of a unit, with the position of the first byte."""
    with open_recording(unit.file) as stream:
        position = max(unit.start - 1, 0)  # with the newline before it, to see whether a line begins there
        size = _CHUNK
        while chunk := _read_at(stream, size, position):
            cut = chunk.rfind(b"\n") + 1
            if cut:
                yield position, chunk[:cut]
                position, size = position + cut, _CHUNK
            elif len(chunk) < size:
                if unit.end < 0:
                    account.skip(INCOMPLETE, line_number(unit.file, position))
                return
            elif size < MAX_LINE:
                size *= 4  # a line that is longer than a chunk: read it again, and more of it
            else:
                account.skip(TOO_LONG, line_number(unit.file, position))
                position, size = _next_line(stream, position + len(chunk)), _CHUNK


def _read_at(file: BinaryIO, size: int, position: int) -> bytes:
    """Read ``size`` bytes, or fewer at the end of the file."""
    file.seek(position)
    return file.read(size)


def _next_line(file: BinaryIO, position: int) -> int:
    """Return the position after the next newline, or the end of the file."""
    while chunk := _read_at(file, 1 << 20, position):
        found = chunk.find(b"\n")
        if found >= 0:
            return position + found + 1
        position += len(chunk)
    return position


def _clip(unit: Unit, blocks: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """Cut blocks to the run trees of a unit: those that begin at or after its start, and before its end."""
    begun = unit.start == 0
    for first, given in blocks:
        position, data = first, given
        if not begun:
            found = 0 if data.startswith(TREE) and position >= unit.start else data.find(_NEXT_TREE) + 1
            if not found and not (data.startswith(TREE) and position >= unit.start):
                if unit.end >= 0 and position >= unit.end:
                    return
                continue
            begun = True
            position, data = position + found, data[found:]
        if unit.end >= 0 and position + len(data) > unit.end:
            if data.startswith(TREE) and position >= unit.end:
                return
            found = data.find(_NEXT_TREE, max(0, unit.end - 1 - position))
            if found >= 0:
                if found:
                    yield position, data[: found + 1]
                return
        yield position, data


def line_number(file: str, position: int) -> int:
    """Return the number of the line, from 1, that begins at this position of a file."""
    number = 1
    with open_recording(file) as stream:
        while position > 0 and (chunk := stream.read(min(_CHUNK, position))):
            number += chunk.count(b"\n")
            position -= len(chunk)
    return number


def _lines_before(file: str, position: int) -> int:
    return line_number(file, position) - 1


def _find_hooks(file: str, digest: str) -> tuple[HookInfo, ...]:
    wanted = b'["hooks","' + digest.encode()
    with open_recording(file) as stream:
        while chunk := stream.read(_CHUNK):
            chunk += stream.readline(MAX_LINE)
            found = 0 if chunk.startswith(wanted) else chunk.find(b"\n" + wanted) + 1
            if found or chunk.startswith(wanted):
                line = chunk[found : chunk.index(b"\n", found)]
                try:
                    return decode_hooks(line).hooks
                except msgspec.DecodeError:
                    return ()
    return ()
