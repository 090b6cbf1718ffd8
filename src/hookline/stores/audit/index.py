"""The index of audit logs: the records of the logs of all machines, and where each log ends.

The logs are files, one on each machine, and stay the only complete record. The index has no texts. It makes the records
of all machines searchable, and it is a witness: a person who can change a log, and not the database, cannot hide that
lines were cut off.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import dropwhile
from pathlib import Path
from socket import gethostname
from typing import Any, BinaryIO, TypedDict, Unpack

import msgspec

from ..._base.frozen import Frozen
from ..database import database_files, open_database
from ..sql import Connection, Database, Schema, storable
from .describe import is_view
from .format import MAX_LINE, archive_paths, find_end, line_hash

_VIEWS = "ALTER TABLE records ADD COLUMN is_view INTEGER NOT NULL DEFAULT 0"
"""Records that say that somebody looked at a page of the console. Those of earlier versions are not known as such."""

SCHEMA = Schema(
    "audit",
    contents="records of audit logs",
    application_id=0x486B4C58,
    version=2,
    statements=(
        # A log that does not continue the one before it at the same path gets a row of its own: the earlier row stays,
        # as evidence that its log was cut off, replaced or deleted.
        """CREATE TABLE logs (
            id INTEGER PRIMARY KEY AUTOINCREMENT, host TEXT NOT NULL, file TEXT NOT NULL,
            seq INTEGER NOT NULL, hash TEXT NOT NULL, time TEXT NOT NULL
        )""",
        "CREATE INDEX logs_by_file ON logs (host, file)",
        """CREATE TABLE records (
            number INTEGER PRIMARY KEY AUTOINCREMENT, log INTEGER NOT NULL REFERENCES logs (id), seq INTEGER NOT NULL,
            time TEXT NOT NULL, type TEXT NOT NULL, run_id TEXT, agent TEXT, tool TEXT, hook TEXT, verb TEXT,
            decision TEXT, hash TEXT NOT NULL, UNIQUE (log, seq)
        )""",
        "CREATE INDEX records_by_time ON records (time, number)",
        "CREATE INDEX records_by_type ON records (type, time, number)",
        *(
            f"CREATE INDEX records_by_{name} ON records ({name}, time, number) WHERE {name} IS NOT NULL"
            for name in ("run_id", "tool", "hook", "verb", "decision")
        ),
        _VIEWS,
    ),
    upgrades={1: (_VIEWS,)},
)

BATCH = 1000
"""Maximum number of records that are added in one transaction."""

_MAX_DELETED = 20_000  # in one transaction, which others wait for
_MAX_LOGS = 20  # logs at one path that may be continued: the newest ones
_MAX_MOVES = 100

_NAMES = ("run_id", "agent", "tool", "hook", "verb", "decision")
_COLUMNS = ("log", "seq", "time", "type", *_NAMES, "hash", "is_view")
_ADD = f"INSERT INTO records ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
_SELECT = (
    "SELECT records.number, logs.host, logs.file, records.seq, records.time, records.type, "
    + ", ".join(f"coalesce(records.{name}, '')" for name in _NAMES)
    + ", records.hash FROM (SELECT * FROM {source}{chosen} ORDER BY time DESC, number DESC LIMIT ?) AS records "
    "JOIN logs ON logs.id = records.log ORDER BY records.time DESC, records.number DESC"
)
_LAST = "\U0010ffff"
# The few records of a run first: otherwise a database may read all records in the order of time.
_RUNS = (
    "WITH runs AS MATERIALIZED (SELECT * FROM records "
    "WHERE run_id >= ? AND run_id < ? OR run_id >= ? AND run_id < ?{nested}) "
)


class IndexedRecord(Frozen, frozen=True):
    """A record of an audit log, without its texts. Names that its type does not have are empty.

    ``number`` identifies the record in the index, ``seq`` in its log. ``file`` is the path of the log on its machine.
    ``decision`` is the decision of an approval or a request, the outcome of a tool call, or the status of a run.
    """

    number: int
    host: str
    file: str
    seq: int
    time: str
    type: str
    run_id: str
    agent: str
    tool: str
    hook: str
    verb: str
    decision: str
    hash: str

    @property
    def what(self) -> str:
        """The subject of the record, in one line."""
        names = (self.tool, f"{self.hook} {self.verb}".strip(), self.decision)
        return " · ".join(filter(None, names)) or self.agent


class IndexedLog(Frozen, frozen=True):
    """An audit log: its machine and path, and the number, hash and time of its last record in the index."""

    id: int
    host: str
    file: str
    seq: int
    hash: str
    time: str


class IndexFilter(TypedDict, total=False):
    """Which records to list. Empty values match every record.

    ``run`` is the beginning of a run's id, with or without ``run_``; ``nested`` has the ids of the runs nested in it,
    whose records count as well. ``since`` and ``until`` are times as in the log, such as
    ``2026-11-15T10:00:00.000Z``. Without ``views``, records that only say that somebody looked at a page of the
    console are left out.
    """

    run: str
    nested: Sequence[str]
    types: Sequence[str]
    agent: str
    tool: str
    hook: str
    verb: str
    decision: str
    host: str
    since: str
    until: str
    views: bool


class AuditIndex:
    """An index of the audit logs of all machines, in a SQLite file or in PostgreSQL.

    A log with ``index=`` adds its own records (:class:`AuditLog`).

    Args:
        path: the file, created when first used, or the address of a PostgreSQL database.

    Raises:
        StoreError: the path or the address is not valid.

    Example::

        index = AuditIndex("postgresql://ada@db.example/shop")
        page = index.records(50, types=["verdict"], verb="block")
        next_page = index.records(50, types=["verdict"], verb="block", before=page[-1].number)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.db = open_database(path, SCHEMA)

    def __repr__(self) -> str:
        return f"AuditIndex({self.db.path!r})"

    @property
    def own_files(self) -> tuple[str, ...]:
        """The SQLite file, which an agent's tools must not write."""
        return database_files(self.db)

    def indexer(self, path: Path) -> LogIndexer:
        """Return what adds the records of the log at this absolute path."""
        return LogIndexer(self, path)

    def records(self, limit: int = 100, *, before: int = 0, **chosen: Unpack[IndexFilter]) -> list[IndexedRecord]:
        """Return records, newest first.

        Args:
            limit: the maximum number of records.
            before: the ``number`` of a record: only records that come after it in the list.
            chosen: which records: see :class:`IndexFilter`.

        Raises:
            StoreError: the database cannot be used.
        """
        conditions, values = _conditions(chosen)
        if before:
            conditions.append("(time, number) < (SELECT time, number FROM records WHERE number = ?)")
            values.append(before)
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        query, runs = _SELECT.format(source="records", chosen=where), list[str]()
        if run := storable(chosen.get("run", "").removeprefix("run_")):
            inner = [storable(id) for id in chosen.get("nested", ())]
            also = f" OR run_id IN ({', '.join('?' * len(inner))})" if inner else ""
            query = _RUNS.format(nested=also) + _SELECT.format(source="runs", chosen=where)
            runs = [run, run + _LAST, f"run_{run}", f"run_{run}{_LAST}", *inner]
        with self.db.transaction() as db:
            return [IndexedRecord(*row) for row in db.execute(query, (*runs, *values, limit))]

    def record(self, number: int) -> IndexedRecord | None:
        """Return the record with this ``number``; ``None`` if there is none.

        Raises:
            StoreError: the database cannot be used.
        """
        query = _SELECT.format(source="records", chosen=" WHERE number = ?")
        with self.db.transaction() as db:
            rows = [IndexedRecord(*row) for row in db.execute(query, (number, 1))]
        return rows[0] if rows else None

    def logs(self, *, host: str | None = None, file: str | None = None) -> list[IndexedLog]:
        """Return the logs of all machines, or of one, in the order in which they were first indexed.

        Raises:
            StoreError: the database cannot be used.
        """
        conditions, values = _log_conditions(host, file)
        query = f"SELECT id, host, file, seq, hash, time FROM logs{conditions} ORDER BY id"
        with self.db.transaction() as db:
            return [IndexedLog(*row) for row in db.execute(query, values)]

    def logs_with(self, seq: int, hash: str) -> list[IndexedLog]:
        """Return the logs that have a record with this number and hash, wherever their file is now.

        Raises:
            StoreError: the database cannot be used.
        """
        query = (
            "SELECT logs.id, host, file, logs.seq, logs.hash, logs.time FROM logs "
            "JOIN records ON records.log = logs.id AND records.seq = ? WHERE records.hash = ? ORDER BY logs.id"
        )
        with self.db.transaction() as db:
            return [IndexedLog(*row) for row in db.execute(query, (seq, hash))]

    def forget(self, *, host: str | None = None, file: str | None = None, before: str = "") -> int:
        """Delete records from the index, and return their number. The logs themselves are not changed.

        Args:
            host: only logs of this machine.
            file: only logs with this path.
            before: only records before this time. Without it the logs are forgotten as well, so that it is no longer
                an error if they are missing.

        Raises:
            StoreError: the database cannot be used.
        """
        conditions, values = _log_conditions(host, file)
        chosen = f"log IN (SELECT id FROM logs{conditions})"
        if before:
            return _delete(self.db, f"{chosen} AND time < ?", (*values, before))
        count = _delete(self.db, chosen, values)
        with self.db.transaction(write=True) as db:
            db.execute(f"DELETE FROM records WHERE {chosen}", values)  # added meanwhile
            db.execute(f"DELETE FROM logs{conditions}", values)
        return count

    def close(self) -> None:
        """Close the database."""
        self.db.close()


def _conditions(chosen: IndexFilter) -> tuple[list[str], list[Any]]:
    conditions: list[str] = []
    values: list[Any] = []

    def add(condition: str, *given: str) -> None:
        conditions.append(condition)
        values.extend(map(storable, given))

    if types := chosen.get("types"):
        add(f"type IN ({', '.join('?' * len(types))})", *types)
    for name in ("agent", "tool", "hook", "verb", "decision"):
        if value := chosen.get(name):
            add(f"{name} = ?", str(value))
    if not chosen.get("views", True):
        add("is_view = 0")
    if host := chosen.get("host"):
        add("log IN (SELECT id FROM logs WHERE host = ?)", host)
    for name, sign in (("since", ">="), ("until", "<=")):
        if value := chosen.get(name):
            add(f"time {sign} ?", str(value))
    return conditions, values


def _log_conditions(host: str | None, file: str | None) -> tuple[str, list[str]]:
    given = {name: storable(value) for name, value in (("host", host), ("file", file)) if value is not None}
    return (" WHERE " + " AND ".join(f"{name} = ?" for name in given) if given else ""), list(given.values())


# Adding the records of a log.


class _Line(msgspec.Struct):
    """A line of a log. Records of a program may have other types in the fields with names."""

    seq: int
    time: str
    type: str
    prev: str
    run_id: Any = None
    agent: Any = None
    tool: Any = None
    hook: Any = None
    verb: Any = None
    decision: Any = None
    outcome: Any = None
    status: Any = None
    method: Any = None
    route: Any = None


class _HashedLine(msgspec.Struct, frozen=True):
    """A line that is to be added, with its hash."""

    line: _Line
    hash: str

    def row(self, log: int) -> tuple[Any, ...]:
        line = self.line
        names = (line.run_id, line.agent, line.tool, line.hook, line.verb, line.decision or line.outcome or line.status)
        return (
            log,
            line.seq,
            line.time[:40],
            line.type[:256],
            *(value[:300] if isinstance(value, str) and value else None for value in names),
            self.hash,
            int(is_view(line.type, line.decision, line.method, line.route)),
        )


_decoder = msgspec.json.Decoder(_Line)


def _hashed_line(line: bytes) -> _HashedLine | None:
    """Parse a complete line; ``None`` if it is not a record."""
    content = line.removesuffix(b"\n")
    try:
        found = _decoder.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return _HashedLine(found, line_hash(content)) if 0 < found.seq < 1 << 53 else None


class _MovedError(Exception):
    """Another process changed the files or the index meanwhile, so the place has to be found again."""


FileId = tuple[int, int]
"""Device and inode of a file."""


class LogIndexer:
    """Add the records of one log to the index, from its files.

    The files and not the memory of the process are the source, so that the index also gets the records of a process
    that was killed, and those that were written while the database was away. Not thread-safe; other processes may add
    records of the same log.

    Args:
        index: the index.
        path: absolute path of the log.
    """

    def __init__(self, index: AuditIndex, path: Path) -> None:
        self.index = index
        self.path = path
        self.host = gethostname()
        self.pruned = 0
        """Number of the last record whose file this process has deleted, or is about to delete (``keep_files``)."""
        self._deleted = 0  # the records up to this number are deleted from the index
        self._log: IndexedLog | None = None  # None: a new one
        self._known: list[int] = []  # ids of the logs at the path
        self._file: FileId | None = None  # the file to read next; None: not known
        self._offset = 0

    def update(self) -> None:
        """Add all records that the log has and the index lacks, and delete those whose files the log has deleted.

        Raises:
            StoreError: the database cannot be used.
            OSError: a file cannot be read.
        """
        moves, pruned = 0, self.pruned
        while True:
            try:
                if self._file is None and not self._locate():
                    break
                entries, file, offset = self._read()
                if entries:
                    self._add(entries)
            except _MovedError:
                self._file = None
                moves += 1
                if moves == _MAX_MOVES:
                    raise OSError("other processes keep changing the log") from None
                continue
            if (file, offset) == (self._file, self._offset):
                break
            self._file, self._offset = file, offset
        if pruned > self._deleted and self._log is not None:
            _delete(self.index.db, "log = ? AND seq <= ?", (self._log.id, pruned), self._lock)
            self._deleted = pruned

    @property
    def _lock(self) -> str:
        return f"{self.host} {self.path}"

    def _files(self) -> dict[Path, FileId]:
        """Return the files of the log, oldest first."""
        while True:
            archives = [path for _, path in archive_paths(self.path)]
            found = {}
            for path in (*archives, self.path):
                with suppress(FileNotFoundError):
                    found[path] = _file_id(os.stat(path))
            if [path for _, path in archive_paths(self.path)] == archives:
                return found  # otherwise the current file became an archive, and would be missing

    def _locate(self) -> bool:
        """Find the log in the index, and the place in its files to continue at. Return false if there is nothing new.

        A log that does not continue any in the index is a new one.
        """
        files = self._files()
        if not files:
            return False
        logs = self.index.logs(host=self.host, file=str(self.path))
        self._known = [log.id for log in logs]
        for log in reversed(logs[-_MAX_LOGS:]):
            path, offset, entry = _find(files, log.seq)
            if entry is None:
                if self._was_cut(log, files):
                    return False
                continue
            seq = entry.line.seq
            is_next = seq == log.seq + 1 and entry.line.prev == log.hash
            was_pruned = log.seq + 1 < seq <= self.pruned + 1  # files were deleted before their records were added
            if is_next or was_pruned or (seq == log.seq and entry.hash == log.hash):
                self._log, self._file, self._offset = log, files[path], offset
                return True
        self._log, self._file, self._offset = None, next(iter(files.values())), 0
        return True

    def _was_cut(self, log: IndexedLog, files: dict[Path, FileId]) -> bool:
        """Whether a log that ends before its last record in the index is that log, and not another one."""
        with _opened(files, next(reversed(files))) as file:
            end = find_end(file.fileno(), os.fstat(file.fileno()).st_size)
        return any(each.id == log.id for each in self.index.logs_with(end.seq, end.hash))

    def _read(self) -> tuple[list[_HashedLine], FileId, int]:
        """Read the next records; return them, and the place after them."""
        files = self._files()
        offset = self._offset
        entries: list[_HashedLine] = []
        rest = list(dropwhile(lambda path: files[path] != self._file, files))
        if not rest:
            raise _MovedError
        for path in rest:
            with _opened(files, path) as file:
                if not _is_line_start(file, offset):
                    raise _MovedError  # it was cut, or replaced in place
                file.seek(offset)
                for line in _lines(file):
                    offset += len(line)
                    entry = _hashed_line(line)
                    if entry is not None:
                        entries.append(entry)
                        if len(entries) == BATCH:
                            return entries, files[path], offset
            if path == rest[-1]:
                break
            offset = 0
        return entries, files[rest[-1]], offset

    def _add(self, entries: Sequence[_HashedLine]) -> None:
        """Add records after those that the index has.

        Raises:
            _MovedError: another process added records, or deleted the log from the index.
        """
        with self.index.db.transaction(write=True, lock=self._lock) as db:
            self._check_unchanged(db)
            new: list[_HashedLine] = []
            seq = 0 if self._log is None else self._log.seq
            for entry in entries:
                if entry.line.seq > seq:  # lines of a damaged file may be repeated or moved
                    new.append(entry)
                    seq = entry.line.seq
            if not new:
                return
            last = new[-1]
            head = (last.line.seq, last.hash, last.line.time[:40])
            if self._log is None:
                query = "INSERT INTO logs (host, file, seq, hash, time) VALUES (?, ?, ?, ?, ?) RETURNING id"
                (id,) = db.execute(query, (storable(self.host), storable(str(self.path)), *head)).fetchone()
            else:
                id = self._log.id
                db.execute("UPDATE logs SET seq = ?, hash = ?, time = ? WHERE id = ?", (*head, id))
            db.executemany(_ADD, [entry.row(id) for entry in new])
        if self._log is None:
            self._known.append(id)
        self._log = IndexedLog(id, self.host, str(self.path), *head)

    def _check_unchanged(self, db: Connection) -> None:
        query = "SELECT id, seq, hash FROM logs WHERE host = ? AND file = ? ORDER BY id"
        logs = db.execute(query, (storable(self.host), storable(str(self.path)))).fetchall()
        log = self._log
        if [id for id, _, _ in logs] != self._known or (log is not None and (log.id, log.seq, log.hash) not in logs):
            raise _MovedError


def _delete(db: Database, condition: str, values: Sequence[Any], lock: str = "") -> int:
    """Delete records, some at a time, and return their number."""
    query = f"DELETE FROM records WHERE number IN (SELECT number FROM records WHERE {condition} LIMIT {_MAX_DELETED})"
    total = 0
    while True:
        with db.transaction(write=True, lock=lock) as connection:
            count = connection.execute(query, values).rowcount
        total += count
        if count < _MAX_DELETED:
            return total


def _file_id(about: os.stat_result) -> FileId:
    return about.st_dev, about.st_ino


@contextmanager
def _opened(files: dict[Path, FileId], path: Path) -> Iterator[BinaryIO]:
    """Open one of the files, if it is still at its path."""
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below
    except FileNotFoundError:
        raise _MovedError from None
    with file:
        if _file_id(os.fstat(file.fileno())) != files[path]:
            raise _MovedError
        yield file


def _is_line_start(file: BinaryIO, offset: int) -> bool:
    file.seek(max(0, offset - 1))
    return not offset or file.read(1) == b"\n"


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the complete lines from the current position; one that is too long in pieces, none of them a record."""
    while (line := file.readline(MAX_LINE)) and (line.endswith(b"\n") or len(line) == MAX_LINE):
        yield line


def _find(files: dict[Path, FileId], seq: int) -> tuple[Path, int, _HashedLine | None]:
    """Find the first record with this number or a greater one: its file, its offset in it, and the record."""
    oldest = next(iter(files))
    found: tuple[Path, int, _HashedLine | None] = oldest, 0, None
    for path in reversed(files):
        with _opened(files, path) as file:
            first = next(filter(None, map(_hashed_line, _lines(file))), None)
            if first is not None:
                offset, entry = _bisect(file, seq)
                if entry is None:
                    break  # all later records are in the files that were searched before
                found = path, offset, entry
                if first.line.seq <= seq:
                    break
    return found


def _bisect(file: BinaryIO, seq: int) -> tuple[int, _HashedLine | None]:
    """Find the first record of a file with this number or a greater one, by halves: lines are in order.

    Returns the place where its line begins, or an unreadable line before it.
    """
    low, high = 0, os.fstat(file.fileno()).st_size
    found: _HashedLine | None = None
    while low < high:
        middle = at = (low + high) // 2
        if middle:
            file.seek(middle - 1)
            at = middle - 1 + len(file.readline())  # the beginning of the next line
        else:
            file.seek(0)
        entry, line = None, b""
        for line in _lines(file):
            entry = _hashed_line(line)
            if entry is not None:
                break
            at += len(line)
        if entry is None or at >= high:
            high = middle
        elif entry.line.seq >= seq:
            high, found = middle, entry
        else:
            low = at + len(line)
    return low, found
