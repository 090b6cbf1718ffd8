"""Reading logs line by line, in bounded memory."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from .._base.frozen import scrub
from ..records.account import INCOMPLETE, MAX_LINE, TOO_LONG, Account
from ..records.format import RecordError

STDIN = "-"
_CHUNK = 1 << 20

NOT_JSON = "the line is not JSON"
NOT_AN_OBJECT = "the line is not a JSON object"

_decode = msgspec.json.Decoder().decode


class Losses:
    """The account of reading a log: what was read, and what was lost.

    ``left_out`` counts content that was understood but has no place in a record. ``skipped`` counts lines that could
    not be read, by file and reason.
    """

    def __init__(self) -> None:
        self.files = self.lines = 0
        self.left_out: Counter[str] = Counter()
        self.skipped = Account()

    def leave_out(self, what: str, count: int = 1) -> None:
        """Count content that is left out."""
        if count:
            self.left_out[what] += count


class Log:
    """An open file of a log. It can be read several times, each time from the start.

    Args:
        path: the path of the file, for messages.
        file: the open file.
        losses: counts what is read and lost.
    """

    def __init__(self, path: str, file: BinaryIO, losses: Losses) -> None:
        self.path, self.losses = path, losses
        self.number = 0
        """The number of the line that was read last."""
        self.file = file

    @property
    def name(self) -> str:
        """The name of the file without its folder and suffix."""
        return "stdin" if self.path == STDIN else Path(self.path).stem

    def skip(self, reason: str) -> None:
        """Count the current line as unreadable."""
        self.losses.skipped.skip(self.path, reason, self.number)

    def objects(self) -> Iterator[dict[str, Any]]:
        """Yield the JSON objects of a file with one in each line. Other lines are counted and skipped."""
        for line in self.raw_lines():
            value = self.decode(line)
            if value is not None:
                yield value

    def documents(self) -> Iterator[dict[str, Any]]:
        """Yield the JSON objects of a file: one in each line, one over many lines, or an array of them.

        An object or array over many lines must be held in memory, so it may have at most ``MAX_LINE`` bytes.
        """
        self.file.seek(0)
        first = self.file.readline(_CHUNK)
        if not isinstance(_decode_or_none(first), dict):
            self.file.seek(0)
            whole = self.file.read(MAX_LINE + 1)
            value = _decode_or_none(whole) if len(whole) <= MAX_LINE else None
            del whole
            if isinstance(value, (dict, list)):
                self.number = 1
                self.losses.lines += 1
                for item in value if isinstance(value, list) else [value]:
                    if isinstance(item, dict):
                        yield item
                    else:
                        self.skip("an item of the array is not a JSON object")
                return
        yield from self.objects()

    def raw_lines(self) -> Iterator[bytes]:
        """Yield the lines that are not empty. Lines beyond ``MAX_LINE`` are skipped without being held in memory."""
        file = self.file
        file.seek(0)
        self.number = 0
        while line := file.readline(MAX_LINE):
            self.number += 1
            if len(line) == MAX_LINE and not line.endswith(b"\n"):
                while (rest := file.readline(_CHUNK)) and not rest.endswith(b"\n"):
                    pass
                self.skip(TOO_LONG)
            elif not line.isspace():
                yield line
        self.losses.lines += self.number

    def decode(self, line: bytes) -> dict[str, Any] | None:
        """Decode a line. If it is not a JSON object, count it and return ``None``."""
        value = _decode_or_none(line)
        if value is None:
            value = _decode_surrogates(line)
        if isinstance(value, dict):
            return value
        self.skip(NOT_AN_OBJECT if value is not None else NOT_JSON if line.endswith(b"\n") else INCOMPLETE)
        return None


def _decode_or_none(data: bytes) -> Any:
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _decode_surrogates(line: bytes) -> Any:
    """Decode a line with half a surrogate pair, as JavaScript writes them where it cuts a text."""
    if b"\\ud" not in line and b"\\uD" not in line:
        return None
    try:
        return scrub(json.loads(line))
    except (ValueError, RecursionError):
        return None


def find_files(paths: Sequence[str | os.PathLike[str]], suffixes: tuple[str, ...]) -> list[str]:
    """Return the files to read: those named, and in folders all files with one of the suffixes, sorted.

    Raises:
        RecordError: a path does not exist, or there is no file to read.
    """
    found: dict[str, None] = {}
    given = [os.fspath(path) for path in paths]
    for path in given:
        if os.path.isdir(path):
            inside = (os.path.join(root, name) for root, _, names in os.walk(path) for name in names)
            found.update(dict.fromkeys(sorted(file for file in inside if file.endswith(suffixes))))
        elif path == STDIN or os.path.exists(path):
            found[path] = None
        else:
            raise RecordError(f"no such file or folder: {path!r}")
    if not found:
        raise RecordError(
            f"there are no logs in {', '.join(given)}: folders are searched for files that end in {', '.join(suffixes)}"
        )
    return list(found)


@contextmanager
def open_log(path: str, losses: Losses) -> Iterator[Log]:
    """Open a log, or standard input for ``-``. A pipe is copied to a temporary file, so that it can be read twice.

    Raises:
        OSError: the file cannot be opened.
    """
    file = sys.stdin.buffer if path == STDIN else open(path, "rb")  # noqa: SIM115 - closed below
    try:
        losses.files += 1
        if file.seekable():
            yield Log(path, file, losses)
        else:
            with tempfile.TemporaryFile() as copy:
                shutil.copyfileobj(file, copy)
                yield Log(path, copy, losses)
    finally:
        if path != STDIN:
            file.close()


def mapping(value: Any) -> dict[str, Any]:
    """Return the value if it is a JSON object, else an empty one: a log may contain anything."""
    return value if isinstance(value, dict) else {}


def sequence(value: Any) -> list[Any]:
    """Return the value if it is a JSON array, else an empty one."""
    return value if isinstance(value, list) else []


def text(value: Any) -> str:
    """Return the value if it is a text, else an empty one."""
    return value if isinstance(value, str) else ""


def number(value: Any) -> int:
    """Return a count that is a number or its text, else 0."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else 0


def unix_time(value: Any) -> float:
    """Return the Unix time of an ISO time or of a number of seconds or milliseconds; 0 if it is neither."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = value / 1000 if value > 1e11 else value
        return float(seconds) if 0 < seconds < 1e11 else 0.0
    try:
        return datetime.fromisoformat(value).timestamp() if isinstance(value, str) else 0.0
    except (ValueError, OverflowError, OSError):
        return 0.0


def decoded(value: Any) -> Any:
    """Return the JSON value in a text; a value that is not a text unchanged; ``None`` if the text is not JSON."""
    if not isinstance(value, str):
        return value
    try:
        return _decode(value)
    except (msgspec.DecodeError, RecursionError):
        return None
