"""A SQLite file that threads, processes and their forks may share, and whose errors say what to do."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any
from urllib.parse import quote

from .._base.own_files import OwnFile, register_own_file
from .._base.package import __version__
from .._base.workers import after_fork_in_child
from .errors import LockedFileError, StoreError
from .leases import ProcessLeases
from .paths import checked_path
from .sql import (
    WRITERS,
    Schema,
    Statement,
    Values,
    Writer,
    contraction_error,
    newer_error,
    older_writers,
    register_writer,
)

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
_databases: weakref.WeakSet[SqliteDatabase] = weakref.WeakSet()
_inherited: list[sqlite3.Connection] = []  # of the parent process, see SqliteDatabase._after_fork


class SqliteDatabase:
    """A connection to a SQLite file, opened when first used and usable from any thread.

    If the file at the path was moved, deleted or replaced since it was opened, the next transaction opens the new
    file, or creates one.

    Args:
        path: the file, or ``:memory:``. The file and its folder are created when first used, for this user only.
        schema: the tables.
        durable: sync each commit to disk, so that it survives a power failure.
        pinned: if the file was moved or deleted, do not open another one: reading still works, and writing is an error
            until the file is back.
    """

    outages: tuple[type[Exception], ...] = (sqlite3.OperationalError, OSError)

    def __init__(
        self,
        path: str | os.PathLike[str],
        schema: Schema,
        *,
        durable: bool = False,
        pinned: bool = False,
    ) -> None:
        given = checked_path(path, f"a store of {schema.contents} takes the path of a file, or ':memory:'")
        if not given or "\0" in given:
            raise StoreError(f"{given!r} is not a path: give the path of a file, or ':memory:'")
        self.in_memory = given == ":memory:"
        self.path = given if self.in_memory else os.path.abspath(os.path.expanduser(given))
        if not self.in_memory:
            register_own_file(self, OwnFile(self.path, f"Hookline's store of {schema.contents}", beside=True))
        self.schema = schema
        self.is_shared = False
        self.leases = ProcessLeases()
        self._synchronous = "FULL" if durable else "NORMAL"
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._closed = False
        self._pinned = pinned
        self._file_id: tuple[int, int] | None = None
        self._stored_version = 0
        """The version of the tables when this process last checked that it may write them."""
        self._is_registered = False
        self._gave_up = 0.0
        _databases.add(self)

    def transaction(self, *, write: bool = False, lock: str | Sequence[str] | None = "") -> _Connected:
        """Run the block in a transaction, which an exception rolls back. A file has one writer, whatever the ``lock``.

        Raises:
            StoreError: the file cannot be used; the message says why, and what to do.
        """
        return _Connected(self, write, "BEGIN IMMEDIATE" if write else "BEGIN")

    def execute(self, sql: str, values: Values = (), *, write: bool = False) -> list[Any]:
        """Run one statement as a transaction of its own, and return its rows.

        Raises:
            StoreError: the file cannot be used; the message says why, and what to do.
        """
        with _Connected(self, write, "BEGIN IMMEDIATE" if write else "") as db:
            return db.execute(sql, values).fetchall()

    def exists(self) -> bool:
        """Whether the file exists. An ``:memory:`` database always does.

        Raises:
            StoreError: its folder cannot be read.
        """
        if self.in_memory:
            return True
        try:
            os.stat(self.path)
        except FileNotFoundError:
            target = os.path.realpath(self.path)
            if os.path.islink(self.path) and not os.path.isdir(os.path.dirname(target)):
                raise StoreError(f"{self.path} leads to {target}, whose folder is gone: mount or create it") from None
            return False
        except OSError as error:
            raise StoreError(f"{self.path} cannot be read ({error.strerror}): make it readable") from None
        return True

    def announce(self, *topics: str) -> None:
        """Do nothing: other processes poll the file."""

    def listen(self, topic: str, callback: Callable[[], object]) -> AbstractContextManager[None]:
        """Return an empty context manager: callers poll the file."""
        return nullcontext()

    def compact(self) -> None:
        """Rewrite the file without deleted data, whose bytes may stay in it until then.

        Raises:
            StoreError: the file cannot be used, or another connection kept reading it.
        """
        with _Connected(self, write=True) as db:
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

    def _current(self, *, write: bool) -> sqlite3.Connection | None:
        """Return the connection, opened if necessary; ``None`` if the file is in a read-only folder."""
        if self._connection is not None and self._current_file_id() != self._file_id:
            self._on_replaced(write=write)
        try:
            return self._connection or self._open()
        except sqlite3.OperationalError as error:
            if write or error.sqlite_errorcode != sqlite3.SQLITE_READONLY_DIRECTORY:
                raise
        return None

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
        self._stored_version, self._is_registered = 0, self.in_memory
        return db

    def _begin(self, db: sqlite3.Connection, statement: str, *, write: bool) -> None:
        """Begin a transaction. One that writes is refused if a newer Hookline has contracted the tables meanwhile.

        Nobody else can change the tables until it ends.
        """
        if write and not self._is_registered:
            self._register(db)
        db.execute(statement)
        if write:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version != self._stored_version:
                try:
                    self._has_schema(db)
                except StoreError:
                    db.execute("ROLLBACK")
                    raise
                self._stored_version = version

    def _register(self, db: sqlite3.Connection) -> None:
        """Add this process to those that write the file, so that an upgrade can name it."""
        host, pid, born = self.leases.owner()
        db.execute("BEGIN IMMEDIATE")
        try:
            self._has_schema(db)
            writer = Writer(host, pid, born, time.time(), self.schema.version, __version__)
            register_writer(db, writer, self.leases.is_held)
            db.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                db.execute("ROLLBACK")
            raise
        self._is_registered = True

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
        db.execute("PRAGMA secure_delete=ON")  # what is deleted or replaced does not stay in the file
        db.execute("PRAGMA temp_store=MEMORY")  # a large statement would write what undoes it into a file
        db.execute("BEGIN")
        is_current = self._has_schema(db) and self._is_current(db)
        db.execute("COMMIT")
        if not is_current:
            db.execute("BEGIN IMMEDIATE")
            self._upgrade(db)
            db.execute("COMMIT")
        if not self.in_memory:
            self._enable_wal(db)

    def _upgrade(self, db: sqlite3.Connection) -> None:
        """Create the tables, or convert those of an earlier version, inside a transaction."""
        has_schema = self._has_schema(db)  # another process may have created or upgraded them meanwhile
        statements = self._upgrade_statements(db) if has_schema else self.schema.statements
        stored = self._min_writer(db)
        if stored is None:
            db.execute("CREATE TABLE hookline_schema (min_writer INTEGER NOT NULL)")
            db.execute("INSERT INTO hookline_schema (min_writer) VALUES (?)", (self.schema.min_writer,))
            db.execute(WRITERS)
        elif stored < self.schema.min_writer:
            if older := older_writers(db, self.schema.min_writer, self.leases.is_held):
                raise contraction_error(self.path, self.schema, older)
            db.execute("UPDATE hookline_schema SET min_writer = ?", (self.schema.min_writer,))
        for statement in statements:
            db.execute(statement if isinstance(statement, str) else statement.sqlite)
        if not self._is_current(db):
            db.execute(f"PRAGMA application_id={self.schema.application_id}")
            db.execute(f"PRAGMA user_version={self.schema.version}")

    def _is_current(self, db: sqlite3.Connection) -> bool:
        """Whether the file has the tables of this version, or those of a newer one, and says who may write them."""
        (application_id,) = db.execute("PRAGMA application_id").fetchone()
        (version,) = db.execute("PRAGMA user_version").fetchone()
        is_converted = application_id == self.schema.application_id and version >= self.schema.version
        return is_converted and self._min_writer(db) is not None

    def _min_writer(self, db: sqlite3.Connection) -> int | None:
        """Return the earliest version whose programs may write the file; ``None`` if the file does not say it."""
        if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'hookline_schema'").fetchone() is None:
            return None
        return int(db.execute("SELECT min_writer FROM hookline_schema").fetchone()[0])

    def _upgrade_statements(self, db: sqlite3.Connection) -> list[Statement]:
        """Return the statements that convert a file of an earlier format; empty if it is up to date."""
        (application_id,) = db.execute("PRAGMA application_id").fetchone()
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if application_id != self.schema.application_id:
            return list(self.schema.conversions[application_id])
        return [statement for each in range(version, self.schema.version) for statement in self.schema.upgrades[each]]

    def _has_schema(self, db: sqlite3.Connection) -> bool:
        """Whether the file has a Hookline schema; false if it is empty.

        Raises:
            StoreError: the file belongs to another program, or to a newer version that this one cannot work beside.
        """
        (application_id,) = db.execute("PRAGMA application_id").fetchone()
        (version,) = db.execute("PRAGMA user_version").fetchone()
        (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if not (application_id or version or tables):
            return False
        if application_id in self.schema.conversions:
            return True
        if application_id != self.schema.application_id:
            raise StoreError(
                f"{self.path} is a SQLite database, but not one of {self.schema.contents}: give another path"
            )
        if version > self.schema.version and (self._min_writer(db) or version) > self.schema.version:
            raise newer_error(self.path, self.schema, version)
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


class _Connected:
    """Provides the connection to one thread at a time, in a transaction if it has a statement that begins one.

    Errors become :class:`StoreError`. It is a class, because a generator with ``@contextmanager`` takes as long as the
    statements of a small transaction.
    """

    __slots__ = ("_begin", "_connection", "_database", "_opened", "_write")

    def __init__(self, database: SqliteDatabase, write: bool, begin: str = "") -> None:
        self._database, self._write, self._begin = database, write, begin
        self._opened: AbstractContextManager[sqlite3.Connection] | None = None

    def __enter__(self) -> sqlite3.Connection:
        database, began = self._database, time.monotonic()
        database._lock.acquire()
        try:
            # Writers that queued behind a timeout fail at once instead of waiting again. Readers wait for no writer.
            if self._write and database._gave_up > began:
                raise database._locked_error()
            connection = database._current(write=self._write)
            if connection is None:
                self._opened = database._immutable()
                connection = self._opened.__enter__()
            self._connection = connection
            if self._begin:
                database._begin(connection, self._begin, write=self._write)
        except BaseException as error:
            self._leave(error)
            raise  # an error that is not about the database
        return connection

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._begin:
            try:
                if error is None:
                    self._connection.execute("COMMIT")
            except sqlite3.Error as failed:
                error = failed
            if error is not None:
                with suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
        self._leave(error)

    def _leave(self, error: BaseException | None) -> None:
        """Give the connection to the next thread. An error of the database becomes one that says what to do."""
        try:
            if self._opened is not None:
                self._opened.__exit__(None, None, None)
            if isinstance(error, (sqlite3.Error, OSError)):
                raise self._database._store_error(error) from error
        finally:
            self._database._lock.release()


def _code(error: sqlite3.Error) -> int:
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


def _after_fork() -> None:
    for database in list(_databases):
        database._after_fork()


after_fork_in_child(_after_fork)
