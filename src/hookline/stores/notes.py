"""Notes that people and agents share, in a text file or in a database."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property

from .._base.files import locked
from .._base.own_files import OwnFile, register_own_file
from ..tools._tool import Tool
from .database import open_database
from .errors import StoreError
from .paths import SQLITE, checked_path, is_database_url
from .sql import Schema

LOCK_SECONDS = 5.0
"""Seconds to wait while another process locks the file."""

_SHOWN = 8_000
_NOT_BLOCKING = getattr(os, "O_NONBLOCK", 0)  # opening a pipe must not block
_BINARY = getattr(os, "O_BINARY", 0)


class NotesFile:
    """Store notes in a text file, one per line, which may be edited by hand.

    It is also a toolset with the tools ``add_note`` and ``read_notes``. Threads and processes may add notes at the same
    time; each note is written completely or not at all.

    Args:
        path: the file, created with the first note.

    Raises:
        TypeError: ``path`` is not a path.

    Example::

        notes = NotesFile("notes.md")
        notes.append("Ann prefers tea.")
        print(notes.tail(max_chars=500))
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        from pathlib import Path

        self.path = Path(checked_path(path, "NotesFile takes the path of a file")).expanduser().absolute()
        register_own_file(self, OwnFile(str(self.path), "Hookline's file of notes", beside=True))

    def __repr__(self) -> str:
        return f"NotesFile({str(self.path)!r})"

    def append(self, text: str) -> None:
        """Add a note as one line that begins with the date.

        Raises:
            TypeError: the note is not text.
            ValueError: the note is empty.
            StoreError: the file cannot be written.
        """
        line = _line(text)
        with self._writing(os.O_CREAT) as file:
            size = os.fstat(file).st_size
            if size:
                os.lseek(file, -1, os.SEEK_END)
                line = line if os.read(file, 1) == b"\n" else b"\n" + line
            _write_whole(file, line, size)

    def read(self) -> str:
        """Return all notes. Bytes that are not valid UTF-8 are replaced.

        Raises:
            StoreError: the file cannot be read.
        """
        return self._end(None)[0].decode(errors="replace")

    def tail(self, max_chars: int = 2000) -> str:
        """Return the newest notes with at most ``max_chars`` characters, newest last.

        Lines are complete, but if the last line alone is too long, its beginning is cut off.

        Raises:
            ValueError: ``max_chars`` is not a positive whole number.
            StoreError: the file cannot be read.
        """
        if not isinstance(max_chars, int) or isinstance(max_chars, bool) or max_chars < 1:
            raise ValueError(f"max_chars must be a positive whole number, not {max_chars!r}")
        data, begun = self._end(max_chars * 4 + 4)  # a character has at most four bytes
        lines = [line.rstrip("\r") for line in data.decode(errors="replace").rstrip("\r\n").split("\n")]
        if len(lines[-1]) > max_chars:
            return f"…{lines[-1][len(lines[-1]) - max_chars + 1 :]}"
        first, room = len(lines), max_chars + 1
        while first > (1 if begun else 0) and len(lines[first - 1]) < room:
            first -= 1
            room -= len(lines[first]) + 1
        return "\n".join(lines[first:])

    def clear(self) -> None:
        """Delete all notes.

        Raises:
            StoreError: the file cannot be written.
        """
        try:
            with self._writing() as file:
                os.ftruncate(file, 0)
        except StoreError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise

    def tools(self) -> Sequence[Tool]:
        """Return the tools ``add_note`` and ``read_notes`` for a model."""
        return self._tools

    @cached_property
    def _tools(self) -> tuple[Tool, ...]:
        def add_note(text: str) -> str:
            """Add a note to the notes.

            Args:
                text: what to note, in a sentence
            """
            self.append(text)
            return "Noted."

        def read_notes() -> str:
            """Read the newest notes."""
            return self.tail(_SHOWN) or "There are no notes."

        return Tool(add_note, effects=[]), Tool(read_notes, effects=[])

    def _end(self, size: int | None) -> tuple[bytes, bool]:
        """Return the last ``size`` bytes, or all for ``None``, and whether there are more before them."""
        try:
            with self._open(os.O_RDONLY) as file, os.fdopen(os.dup(file), "rb") as reader:
                whole = os.fstat(file).st_size
                start = 0 if size is None else max(0, whole - size)
                reader.seek(start)
                return reader.read() if size is None else reader.read(whole - start), start > 0
        except FileNotFoundError:
            return b"", False
        except OSError as error:
            raise StoreError(
                f"the notes {self.path} cannot be read ({error}): repair the file or move it away"
            ) from error

    @contextmanager
    def _writing(self, flags: int = 0) -> Iterator[int]:
        try:
            if flags:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._open(os.O_RDWR | os.O_APPEND | flags) as file, locked(file, LOCK_SECONDS):
                yield file
        except OSError as error:
            raise StoreError(
                f"the notes {self.path} cannot be written ({error}): check the file and its disk"
            ) from error

    @contextmanager
    def _open(self, flags: int) -> Iterator[int]:
        file = os.open(self.path, flags | _NOT_BLOCKING | _BINARY, 0o600)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise OSError("it is not a regular file")
            yield file
        finally:
            os.close(file)


_TABLE = "CREATE TABLE notes (seq INTEGER PRIMARY KEY AUTOINCREMENT, line TEXT NOT NULL)"
SCHEMA = Schema("notes", contents="notes", application_id=0x486B4C4E, version=1, statements=(_TABLE,))


class DatabaseNotes(NotesFile):
    """Store notes in one SQLite file or in PostgreSQL, so that processes on several machines share them.

    Args:
        path: the file, created when first used; ``:memory:`` keeps everything in memory; or the address of a
            PostgreSQL database.

    Example::

        notes = DatabaseNotes("notes.db")
        notes.append("Ann prefers tea.")
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._db = open_database(path, SCHEMA)

    def __repr__(self) -> str:
        return f"DatabaseNotes({self._db.path!r})"

    def append(self, text: str) -> None:
        """Add a note as one line that begins with the date.

        Raises:
            TypeError: the note is not text.
            ValueError: the note is empty.
            StoreError: the database cannot be used.
        """
        line = _line(text).decode()
        with self._db.transaction(write=True) as db:  # one after another, so that the numbers have the order of commits
            db.execute("INSERT INTO notes (line) VALUES (?)", (line,))

    def restore(self, text: str) -> None:
        """Add the lines of a file of notes, unchanged.

        Raises:
            StoreError: the database cannot be used.
        """
        lines = [(f"{line}\n",) for line in text.removesuffix("\n").split("\n")] if text else []
        with self._db.transaction(write=True) as db:
            db.executemany("INSERT INTO notes (line) VALUES (?)", lines)

    def clear(self) -> None:
        """Delete all notes.

        Raises:
            StoreError: the database cannot be used.
        """
        with self._db.transaction(write=True) as db:
            db.execute("DELETE FROM notes")

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def _end(self, size: int | None) -> tuple[bytes, bool]:
        lines: list[bytes] = []
        with self._db.transaction() as db:
            for (line,) in db.execute("SELECT line FROM notes ORDER BY seq DESC"):
                if size is not None and size <= 0:
                    break
                lines.append(line.encode())
                size = None if size is None else size - len(lines[-1])
        return b"".join(reversed(lines)), False  # lines are complete


def notes_at(path: str | os.PathLike[str]) -> NotesFile:
    """Open notes: PostgreSQL, a SQLite file if the extension says so, or a text file."""
    if is_database_url(path) or os.fspath(path).lower().endswith(SQLITE):
        return DatabaseNotes(path)
    return NotesFile(path)


def _line(text: str) -> bytes:
    if not isinstance(text, str):
        raise TypeError(f"a note must be text, not {type(text).__name__}")
    note = " ".join(line.strip() for line in text.splitlines() if line.strip())
    if not note:
        raise ValueError("the note is empty: give a text")
    return f"- {time.strftime('%Y-%m-%d')} {note}\n".encode(errors="replace")


def _write_whole(file: int, data: bytes, size: int) -> None:
    """Append to a locked file of this size; undo an incomplete write."""
    try:
        if os.write(file, data) < len(data):
            raise OSError("the disk is full")
    except OSError:
        with suppress(OSError):
            os.ftruncate(file, size)
        raise
