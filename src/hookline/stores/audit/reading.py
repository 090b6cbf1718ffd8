"""Read an audit log from its end, one page at a time, and find single records. Nothing is written here.

A log may have millions of lines. Its lines are in the order of their numbers and times, so places in it are found by
bisection, and a page reads only what it shows. A filter looks through a limited number of bytes for one page.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ..._base.frozen import Frozen
from ..errors import StoreError
from .describe import Record, is_view, names_in, parse_record, short_run_id
from .format import MAX_LINE, Envelope, archive_paths, line_hash, parse_envelope

MAX_READ = 32 << 20
"""Bytes that a filter looks through for one page, if it can tell from the bytes of a line that it does not match."""
MAX_PARSED = 4 << 20
"""Bytes that are parsed for one page."""
_CHUNK = 1 << 18
_POSITION = re.compile(r"(\d{1,12})-(\d{1,15})", re.ASCII)
_PEOPLE = ("by", "caller", "name", "owner")
_PLAIN = re.compile(r"[ !#-\[\]-~]+")
"""Texts that JSON contains as they are, so that their bytes can be looked for before a line is parsed."""


class RecordFilter(Frozen, frozen=True, kw_only=True):
    """Conditions that a record must meet. Empty values match every record.

    ``run`` is the beginning of a run's id, with or without ``run_``; ``nested`` has the ids of the runs nested in it,
    whose records count as well. ``caller`` is the id or the name of a caller. ``text`` may stand anywhere in the line;
    case is ignored. ``since`` and ``until`` are times as in the log. Without ``views``, records that only say that
    somebody looked at a page of the console do not match.
    """

    run: str = ""
    nested: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    agent: str = ""
    tool: str = ""
    hook: str = ""
    verb: str = ""
    model: str = ""
    caller: str = ""
    text: str = ""
    since: str = ""
    until: str = ""
    views: bool = True

    def matches(self, record: Record) -> bool:
        """Return whether the record meets all conditions, except ``text``, which is about the line."""
        at = str(record.get("time", ""))
        return (
            (not self.types or record["type"] in self.types)
            and (not self.run or self._is_in_run(record.get("run_id")))
            and (not self.tool or self.tool in (record.get("tool"), *names_in(record.get("tool_calls"))))
            and (not self.model or self.model in (record.get("model"), _qualified_model(record)))
            and all(record.get(name) == wanted for name in ("agent", "hook", "verb") if (wanted := getattr(self, name)))
            and (not self.caller or self._is_by_caller(record))
            and (not self.since or at >= self.since)
            and (not self.until or at <= self.until)
            and (self.views or not is_view(*(record.get(name) for name in ("type", "decision", "method", "route"))))
        )

    def _is_in_run(self, id: Any) -> bool:
        return id in self.nested or short_run_id(id).startswith(short_run_id(self.run))

    def _is_by_caller(self, record: Record) -> bool:
        if self.caller in [record.get(name) for name in _PEOPLE]:
            return True
        by = str(record.get("by"))  # a decision names its key: "key ci (key_1)"
        return by.startswith("key ") and (by.startswith(f"key {self.caller} (") or by.endswith(f"({self.caller})"))

    def needles(self) -> list[tuple[bytes, ...]]:
        """Return what a line contains, in lower case, if it meets the conditions: one text of each group.

        Lines are written without spaces between names and values. A line that somebody has written otherwise is not
        found by a filter, but by verifying the log.
        """
        places = (
            (self.agent, ('"agent":"{}"',)),
            (self.hook, ('"hook":"{}"',)),
            (self.verb, ('"verb":"{}"',)),
            (self.tool, ('"{}"',)),
            (short_run_id(self.run), ('"run_id":"run_{}', '"run_id":"{}', *(f'"run_id":"{id}"' for id in self.nested))),
            (self.caller, ('"{}"', "key {} (", "({})")),
            *((part, ("{}",)) for part in _PLAIN.findall(self.text)),
        )
        groups = [[form.replace("{}", value) for form in forms] for value, forms in places if _PLAIN.fullmatch(value)]
        if self.types and all(map(_PLAIN.fullmatch, self.types)):
            groups.append([f'"type":"{name}"' for name in self.types])
        return [tuple(text.lower().encode() for text in group) for group in groups]


def _qualified_model(record: Record) -> str:
    return f"{record.get('provider')}/{record.get('model')}"


class LogLine(NamedTuple):
    """A line of a log. ``position`` identifies it: the number of its file, and where it begins there."""

    position: str
    data: bytes
    record: Record

    @property
    def hash(self) -> str:
        """The hash of the line, which the next line contains."""
        return line_hash(self.data)


class LogPage(NamedTuple):
    """Lines of a log, newest first. ``more`` is where older lines follow; empty at the beginning of the log.

    ``is_cut`` is true if the page ended because a filter has looked through enough, and not because the page is full.
    """

    lines: list[LogLine]
    more: str
    is_cut: bool = False


class LogReader:
    """Reads the files of one log, which others may be writing.

    Args:
        path: the log. Its archives are found beside it.

    Example::

        reader = LogReader("audit.jsonl")
        page = reader.page(50, RecordFilter(types=("verdict",)))
        older = reader.page(50, RecordFilter(types=("verdict",)), before=page.more)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def page(self, limit: int, wanted: RecordFilter | None = None, *, before: str = "") -> LogPage:
        """Return the newest lines that match, or those before a position.

        A last line without its end is left out: it is being written, or its writer died.

        Raises:
            StoreError: a file cannot be read, or the position is not one.
        """
        wanted = RecordFilter() if wanted is None else wanted
        number, offset = (0, 0) if not before else self._parse(before)
        found: list[LogLine] = []
        left = MAX_READ if wanted.needles() else MAX_PARSED
        for each, path in self._files()[::-1]:
            if before and each > number:
                continue
            with self._open(path) as file:
                end = offset if before and each == number else _size(file)
                if wanted.until:
                    end = min(end, _bound(file, lambda line: line.time <= wanted.until))
                for part in _parts(file, end):
                    left -= part.size
                    lines = (LogLine(f"{each}-{at}", data, record) for at, data, record in part.matching(wanted))
                    found += islice(lines, limit + 1 - len(found))
                    if len(found) > limit:
                        return LogPage(found[:limit], found[limit - 1].position)
                    if part.is_before(wanted.since):
                        return LogPage(found, "")
                    if left <= 0:
                        return LogPage(found, f"{each}-{part.start}", is_cut=True)
        return LogPage(found, "")

    def at(self, position: str) -> tuple[LogLine, LogLine | None] | None:
        """Return the line at a position and the one after it in the same file; ``None`` if there is none.

        Raises:
            StoreError: the file cannot be read, or the position is not one.
        """
        number, offset = self._parse(position)
        path = dict(self._files()).get(number)
        if path is None:
            return None
        with self._open(path) as file:
            file.seek(max(0, offset - 1))
            if offset and file.read(1) != b"\n":
                return None  # not the beginning of a line
            line = _line(file, number)
            return None if line is None else (line, _line(file, number))

    def find(self, seq: int) -> LogLine | None:
        """Return the record with this number; ``None`` if the log does not have it.

        Raises:
            StoreError: a file cannot be read.
        """
        for number, path in self._files()[::-1]:
            with self._open(path) as file:
                first = parse_envelope(file.readline(MAX_LINE))
                if first is not None and first.seq > seq:
                    continue
                file.seek(_bound(file, lambda line: line.seq < seq))
                line = _line(file, number)
                if line is not None and line.record.get("seq") == seq:
                    return line
        return None

    def position_of(self, name: str, line: int) -> str | None:
        """Return the position of a line by the name of its file and its number, from 1; ``None`` if there is none.

        Raises:
            StoreError: the file cannot be read.
        """
        for number, path in self._files():
            if path.name != name or line < 1:
                continue
            with self._open(path) as file:
                skipped = sum(len(each) for each in islice(file, line - 1))
                return f"{number}-{skipped}" if file.readline(1) else None
        return None

    def version(self) -> object:
        """Return a value that differs after every new record."""
        try:
            state = os.stat(self.path)
        except OSError:
            return None
        return state.st_ino, state.st_size

    def _files(self) -> list[tuple[int, Path]]:
        """Return the numbers and paths of the files, oldest first. The current one gets the next number."""
        while True:
            archives = archive_paths(self.path)
            exists = self.path.exists()
            if archive_paths(self.path) == archives:  # otherwise the current file became an archive meanwhile
                number = archives[-1][0] + 1 if archives else 1
                return [*archives, (number, self.path)] if exists else archives

    def _open(self, path: Path) -> BinaryIO:
        try:
            return open(path, "rb")
        except OSError as error:
            raise StoreError(f"{path} cannot be read ({error.strerror or error})") from None

    @staticmethod
    def _parse(position: str) -> tuple[int, int]:
        found = _POSITION.fullmatch(position)
        if found is None:
            raise StoreError(f"{position!r:.40} is not the position of a record, such as 1-4096")
        return int(found[1]), int(found[2])


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def _line(file: BinaryIO, number: int) -> LogLine | None:
    """Read one whole line; ``None`` at the end of the file, and for a line without its end."""
    at, data = file.tell(), file.readline(MAX_LINE)
    return LogLine(f"{number}-{at}", data[:-1], parse_record(data)) if data.endswith(b"\n") else None


def _bound(file: BinaryIO, is_before: Callable[[Envelope], bool]) -> int:
    """Return the position of the first line of a file that does not come before something.

    A record whose number or time was changed can lead astray. Nothing is hidden by that: pages without a filter of
    time do not use it, and verifying reads every line.
    """
    low, high = 0, _size(file)
    while low < high:
        middle = (low + high) // 2
        file.seek(max(middle - 1, 0))
        if middle:
            file.readline(MAX_LINE)  # the rest of the line before
        envelope = None
        while envelope is None and file.tell() < high and (line := file.readline(MAX_LINE)):
            envelope = parse_envelope(line)
        if envelope is not None and is_before(envelope):
            low = file.tell()
        else:
            high = middle
    return low


class _Part(NamedTuple):
    """Whole lines of a file, from the position ``start``."""

    start: int
    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)

    def matching(self, wanted: RecordFilter) -> Iterator[tuple[int, bytes, Record]]:
        """Yield the lines that match, the last first, with their positions."""
        needles, is_plain = wanted.needles(), not _PLAIN.sub("", wanted.text)
        lower = self.data.lower() if needles else b""
        end = len(self.data) - 1  # the newline at the end
        while end > 0:
            # The last line that may match: no line after it contains a text of each group.
            last = min((max(lower.rfind(text, 0, end) for text in group) for group in needles), default=end - 1)
            if last < 0:
                return
            start, end = self.data.rfind(b"\n", 0, last) + 1, self.data.index(b"\n", last)
            if all(any(lower.find(text, start, end) >= 0 for text in group) for group in needles):
                data = self.data[start:end]
                record = parse_record(data)
                if wanted.matches(record) and (is_plain or wanted.text.lower() in _texts(record).lower()):
                    yield self.start + start, data, record
            end = start - 1

    def is_before(self, since: str) -> bool:
        """Whether all records are from before a time. One record may have a wrong time, but not all of them."""
        if not since:
            return False
        lines = self.data.splitlines()[::-1]
        return all((each := parse_envelope(line)) is None or each.time < since for line in lines)


def _texts(value: Any) -> str:
    """Return all texts in a JSON value."""
    if isinstance(value, dict):
        return "\n".join(map(_texts, value.values()))
    return "\n".join(map(_texts, value)) if isinstance(value, list) else str(value)


def _parts(file: BinaryIO, end: int) -> Iterator[_Part]:
    """Yield the lines of a file that end before a position in large parts, the last part first."""
    size = _CHUNK
    while end > 0:
        start = max(0, end - size)
        data = os.pread(file.fileno(), end - start, start)
        last = data.rfind(b"\n") + 1
        first = 0 if start == 0 else data.find(b"\n", 0, last) + 1
        if last == 0 or (start and first == last):  # a line that is longer than the part
            if start == 0 or size > MAX_LINE:
                end = start
            size *= 4
            continue
        yield _Part(start + first, data[first:last])
        end, size = start + first, _CHUNK
