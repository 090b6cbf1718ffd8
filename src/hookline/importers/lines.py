"""Reading logs line by line, in bounded memory."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from .._base.text import counted
from ..records.format import RecordError
from .account import Account

MAX_LINE = 64 * 1024 * 1024
"""Maximum length of a line in bytes. Longer lines are skipped."""

STDIN = "-"
SUFFIXES = (".jsonl", ".ndjson", ".json", ".log")

NOT_JSON = "lines that are not JSON"
NOT_AN_OBJECT = "lines that are not a JSON object"
TOO_LONG = "lines longer than 64 MB"
TORN = "incomplete last lines"

_decode = msgspec.json.Decoder().decode


def find_files(paths: Sequence[str | os.PathLike[str]]) -> list[str]:
    """Return the files to read: those named, and in folders all files with a suffix of logs, sorted.

    Raises:
        RecordError: a path does not exist, or there is no file to read.
    """
    found: dict[str, None] = {}
    for path in map(os.fspath, paths):
        if path == STDIN or os.path.isfile(path):
            found[path] = None
        elif os.path.isdir(path):
            inside = (os.path.join(root, name) for root, _, names in os.walk(path) for name in names)
            found.update(dict.fromkeys(sorted(file for file in inside if file.endswith(SUFFIXES))))
        elif os.path.exists(path):  # a pipe: read once, in order
            found[path] = None
        else:
            raise RecordError(f"no such file or folder: {path!r}")
    if not found:
        raise RecordError(
            f"there is no log in {', '.join(map(os.fspath, paths)) or 'the given paths'}: "
            f"folders are searched for files that end in {', '.join(SUFFIXES)}"
        )
    return list(found)


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """Open a log, or standard input for ``-``. The file can be read twice: a pipe is copied to a temporary file.

    Raises:
        RecordError: the file cannot be opened.
    """
    try:
        file = sys.stdin.buffer if path == STDIN else Path(path).open("rb")
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        if file.seekable():
            yield file
        else:
            with tempfile.TemporaryFile() as copy:
                shutil.copyfileobj(file, copy)
                copy.seek(0)
                yield copy
    finally:
        if path != STDIN:
            file.close()


def raw_lines(file: BinaryIO, account: Account) -> Iterator[bytes]:
    """Yield the lines that are not empty. A line beyond ``MAX_LINE`` is skipped without being held in memory."""
    while line := file.readline(MAX_LINE):
        if len(line) == MAX_LINE and not line.endswith(b"\n"):
            while (rest := file.readline(MAX_LINE)) and not rest.endswith(b"\n"):
                pass
            account.lines += 1
            account.fail(TOO_LONG)
        elif not line.isspace():
            account.lines += 1
            yield line


def objects(file: BinaryIO, account: Account) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a file with one per line, and count the lines that are none."""
    for line in raw_lines(file, account):
        value = decode(line, account)
        if value is not None:
            yield value


def decode(line: bytes, account: Account) -> dict[str, Any] | None:
    """Decode a line. If it is not a JSON object, count it and return ``None``."""
    try:
        value = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        account.fail(NOT_JSON if line.endswith(b"\n") else TORN)
        return None
    if not isinstance(value, dict):
        account.fail(NOT_AN_OBJECT)
        return None
    return value


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


def named(paths: Iterable[str]) -> str:
    """Return the names of the first files, for messages."""
    shown = list(paths)
    more = f" and {counted(len(shown) - 3, 'more file')}" if len(shown) > 3 else ""
    return ", ".join(shown[:3]) + more
