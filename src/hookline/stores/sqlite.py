"""A SQLite file that threads, processes and their forks may share, and whose errors say what to do."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, TypeVar
from urllib.parse import quote

from .._base.own_files import OwnFile, register_own_file
from .._base.workers import after_fork_in_child
from .errors import LockedFileError, StoreError
from .paths import checked_path

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], Any]

BUSY_SECONDS = 5.0
"""Seconds to wait while another process locks the file."""

_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_ADVICE = {
    sqlite3.SQLITE_NOTADB: "is not a SQLite database: move it away, or give another path",
    sqlite3.SQLITE_CORRUPT: "is damaged: move it away (sqlite3's .recover may save the data in it)",
    sqlite3.SQLITE_READONLY: "is read-only: make the file and its folder writable, or give another path",
    sqlite3.SQLITE_FULL: "cannot grow because the disk is full: free some space",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened: give the path of a file that you may read and write",
    sqlite3.SQLITE_ERROR: "was changed by another program: move it away, or give another path",
}
_databases: weakref.WeakSet[Database] = weakref.WeakSet()
_inherited: list[sqlite3.Connection] = []  # of the parent process, see Database._after_fork


class Database:
    """A connection to a SQLite file, opened when first used and usable from any thread.

    If the file at the path was moved, deleted or replaced since it was opened, the next transaction opens the new
    file, or creates one.

    Args:
        path: the file, or ``:memory:``. The file and its folder are created when first used, for this user only.
        contents: a word for the contents of the file, for messages.
        application_id: identifies files of this kind.
        version: version of the schema, stored as ``user_version``.
        schema: statements that create the schema.
        upgrades: for each earlier version, the statements that convert it to the next one.
        conversions: for each ``application_id`` of another kind of file, the statements that convert it to this kind.
        durable: sync each commit to disk, so that it survives a power failure.
        pinned: if the file was moved or deleted, do not open another one: reading still works, and writing is an error
            until the file is back.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        contents: str,
        application_id: int,
        version: int,
        schema: Sequence[str],
        upgrades: Mapping[int, Sequence[str]] | None = None,
        conversions: Mapping[int, Sequence[str]] | None = None,
        durable: bool = False,
        pinned: bool = False,
    ) -> None:
        given = checked_path(path, f"a store of {contents} takes the path of a file, or ':memory:'")
        if not given or "\0" in given:
            raise StoreError(f"{given!r} is not a path: give the path of a file, or ':memory:'")
        self.in_memory = given == ":memory:"
        self.path = given if self.in_memory else os.path.abspath(os.path.expanduser(given))
        if not self.in_memory:
            register_own_file(self, OwnFile(self.path, f"Hookline's store of {contents}", beside=True))
        self.contents = contents
        self.application_id = application_id
        self.version = version
        self.schema = tuple(schema)
        self.upgrades = upgrades or {}
        self.conversions = conversions or {}
        self._synchronous = "FULL" if durable else "NORMAL"
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._closed = False
        self._pinned = pinned
        self._file_id: tuple[int, int] | None = None
        self._gave_up = 0.0
        _databases.add(self)

    @contextmanager
    def transaction(self, *, write: bool = False) -> Iterator[sqlite3.Connection]:
        """Run the block in a transaction, which an exception rolls back.

        Raises:
            StoreError: the file cannot be used; the message says why, and what to do.
        """
        with self._connected(write=write) as db:
            db.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    db.execute("ROLLBACK")
                raise

    def compact(self) -> None:
        """Rewrite the file without deleted data, whose bytes may stay in it until then.

        Raises:
            StoreError: the file cannot be used, or another connection kept reading it.
        """
        with self._connected(write=True) as db:
            db.execute("VACUUM")
            (is_read, _, _) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if is_read:
                raise self._locked_error()

    def close(self) -> None:
        """Close the file. The data of a ``:memory:`` database is lost."""
        with self._lock:
            self._closed = True
            self._disconnect()

    def __del__(self) -> None:
        connection = getattr(self, "_connection", None)
        if connection is not None:
            connection.close()

    @contextmanager
    def _connected(self, *, write: bool) -> Iterator[sqlite3.Connection]:
        """Provide the connection to one thread at a time. Errors become :class:`StoreError`."""
        began = time.monotonic()
        with self._lock:
            if self._gave_up > began:  # threads that queued behind a timeout fail at once instead of waiting again
                raise self._locked_error()
            if self._connection is not None and self._current_file_id() != self._file_id:
                self._on_replaced(write=write)
            try:
                with self._opened(write=write) as db:
                    yield db
            except (sqlite3.Error, OSError) as error:
                raise self._store_error(error) from error

    def _opened(self, *, write: bool) -> AbstractContextManager[sqlite3.Connection]:
        try:
            return nullcontext(self._connection or self._open())
        except sqlite3.OperationalError as error:
            if write or error.sqlite_errorcode != sqlite3.SQLITE_READONLY_DIRECTORY:
                raise
        return self._immutable()

    @contextmanager
    def _immutable(self) -> Iterator[sqlite3.Connection]:
        """Read a file in a read-only folder. SQLite cannot lock it, so the file must not change meanwhile."""
        before = self._fingerprint()
        where = f"file:{quote(self.path)}?immutable=1"
        db = sqlite3.connect(where, uri=True, isolation_level=None, check_same_thread=False)
        try:
            if self._has_schema(db) and self._upgrade_statements(db):
                raise StoreError(
                    f"{self.path} has an earlier format, and its folder is read-only: "
                    "make the file and its folder writable, so that it can be converted"
                )
            yield db
        finally:
            db.close()
            if before[0] or self._fingerprint() != before:
                raise StoreError(
                    f"{self.path} cannot be read while another program writes it, because its folder is read-only: "
                    "try again, or make the folder writable"
                )

    def _fingerprint(self) -> tuple[bool, int, int]:
        """Return a value that changes when another connection writes the file, or opens it for writing."""
        file = os.stat(self.path)
        return os.path.exists(f"{self.path}-wal"), file.st_mtime_ns, file.st_size

    def _open(self) -> sqlite3.Connection:
        if self._closed:
            raise StoreError(f"{self.path} has been closed: create another store for it")
        if not self.in_memory:
            os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
            with suppress(FileExistsError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        db = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            self._prepare(db)
        except BaseException:
            db.close()
            raise
        self._connection, self._file_id = db, self._current_file_id()
        return db

    def _on_replaced(self, *, write: bool) -> None:
        """Handle that the open file is no longer the one at the path."""
        if not self._pinned:
            self._disconnect()
        elif write:
            raise StoreError(f"{self.path} was moved or deleted while in use: put it back, or restart the program")

    def _current_file_id(self) -> tuple[int, int] | None:
        """Return device and inode of the file at the path."""
        if self.in_memory:
            return None
        try:
            file = os.stat(self.path)
        except OSError:
            return None
        return file.st_dev, file.st_ino

    def _prepare(self, db: sqlite3.Connection) -> None:
        """Create the schema, or upgrade it."""
        db.execute(f"PRAGMA synchronous={self._synchronous}")
        db.execute("PRAGMA foreign_keys=ON")
        db.execute("BEGIN")
        has_schema = self._has_schema(db)
        db.execute("COMMIT")
        if not has_schema or self._upgrade_statements(db):
            db.execute("BEGIN IMMEDIATE")
            # Another process may have created or upgraded the schema meanwhile.
            statements = self._upgrade_statements(db) if self._has_schema(db) else self.schema
            for statement in statements:
                db.execute(statement)
            db.execute(f"PRAGMA application_id={self.application_id}")
            db.execute(f"PRAGMA user_version={self.version}")
            db.execute("COMMIT")
        if not self.in_memory:
            self._enable_wal(db)

    def _upgrade_statements(self, db: sqlite3.Connection) -> list[str]:
        """Return the statements that convert a file of an earlier format; empty if it is up to date."""
        (application_id,) = db.execute("PRAGMA application_id").fetchone()
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if application_id != self.application_id:
            return list(self.conversions[application_id])
        return [statement for each in range(version, self.version) for statement in self.upgrades[each]]

    def _has_schema(self, db: sqlite3.Connection) -> bool:
        """Whether the file has a Hookline schema; false if it is empty.

        Raises:
            StoreError: the file belongs to another program, or to a newer version.
        """
        (application_id,) = db.execute("PRAGMA application_id").fetchone()
        (version,) = db.execute("PRAGMA user_version").fetchone()
        (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if not (application_id or version or tables):
            return False
        if application_id in self.conversions:
            return True
        if application_id != self.application_id:
            raise StoreError(f"{self.path} is a SQLite database, but not one of {self.contents}: give another path")
        if version > self.version:
            raise StoreError(f"{self.path} was written by a newer Hookline (format {version}): update Hookline")
        return True

    def _enable_wal(self, db: sqlite3.Connection) -> None:
        """Switch to WAL mode, in which readers and a writer do not block each other.

        SQLite's busy timeout does not cover this statement, so it is retried here.
        """
        end = time.monotonic() + BUSY_SECONDS
        while db.execute("PRAGMA journal_mode").fetchone() != ("wal",):
            try:
                db.execute("PRAGMA journal_mode=WAL")
            except sqlite3.OperationalError as error:
                if _code(error) not in _BUSY or time.monotonic() > end:
                    raise
                time.sleep(0.01)
            else:
                return  # done, or the file system does not support it

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _locked_error(self) -> StoreError:
        return LockedFileError(
            f"{self.path} was locked for {BUSY_SECONDS:g} s by another program: try again, or end that program"
        )

    def _store_error(self, error: sqlite3.Error | OSError) -> StoreError:
        if isinstance(error, OSError):
            return StoreError(f"{self.path} cannot be created ({error}): give a path that you can write to")
        code = _code(error)
        if code in _BUSY:
            self._gave_up = time.monotonic()
            return self._locked_error()
        if not self.in_memory:
            self._disconnect()  # the next transaction opens the file again, which may have been repaired
        advice = _ADVICE.get(code, "cannot be used: check the file and its disk, or give another path")
        return StoreError(f"{self.path} {advice} ({error})")

    def _after_fork(self) -> None:
        """Drop the connection in a forked child, where it must be neither used nor closed."""
        self._lock = threading.Lock()
        connection = self._connection
        if connection is not None and not self.in_memory:
            _inherited.append(connection)
            self._connection = None


def storable(text: str) -> str:
    """Replace lone surrogates, which SQLite cannot store."""
    return text.encode(errors="replace").decode()


def _code(error: sqlite3.Error) -> int:
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


def _after_fork() -> None:
    for database in list(_databases):
        database._after_fork()


after_fork_in_child(_after_fork)


class GroupCommit:
    """Run concurrent changes in few transactions, in a separate thread.

    All changes that wait while a transaction commits share the next one. A change may run twice, with the first run
    rolled back, so it must have no effects outside the database.
    """

    def __init__(self, db: Database) -> None:
        self.db = db
        self._waiting: list[tuple[Work, asyncio.Future[Any]]] = []
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "hookline-mailbox")

    async def transact(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run ``work`` in a transaction and return its result after the commit.

        Raises:
            StoreError: the file cannot be used. Nothing was changed then.
        """
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((work, done))
        if self._task is None:
            self._task = asyncio.create_task(self._commit_waiting())
        return await done

    async def close(self) -> None:
        """Commit the waiting changes, and close the file."""
        if self._task is not None:
            await asyncio.wait([self._task])
        self._thread.shutdown()
        self.db.close()

    async def _commit_waiting(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                try:
                    outcomes = await loop.run_in_executor(self._thread, self._commit, [work for work, _ in batch])
                except BaseException as error:  # noqa: BLE001 - the callers get it
                    outcomes = [(error, None)] * len(batch)
                for (_, done), (problem, result) in zip(batch, outcomes, strict=True):
                    if done.cancelled():
                        continue
                    if problem is not None:
                        done.set_exception(problem)
                    else:
                        done.set_result(result)
        finally:
            self._task = None

    def _commit(self, batch: list[Work]) -> list[tuple[BaseException | None, Any]]:
        """Run a batch in one transaction; if one of the changes fails, run each in its own."""
        try:
            with self.db.transaction(write=True) as db:
                return [(None, work(db)) for work in batch]
        except Exception as error:  # noqa: BLE001 - the callers get it
            if len(batch) == 1 or _is_caused_by_file(error):
                return [(error, None)] * len(batch)
        return [outcome for work in batch for outcome in self._commit([work])]


def _is_caused_by_file(error: Exception) -> bool:
    return isinstance(error, StoreError) and isinstance(error.__cause__, (sqlite3.OperationalError, OSError))
