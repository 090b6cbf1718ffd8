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

from .._base.workers import after_fork_in_child
from .errors import LockedFileError, StoreError
from .paths import checked_path

BUSY_SECONDS = 5.0
"""How long to wait for another program that holds the file."""

_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_ADVICE = {
    sqlite3.SQLITE_NOTADB: "is not a SQLite database: move it away, or give another path",
    sqlite3.SQLITE_CORRUPT: "is damaged: move it away (sqlite3's .recover may save what is in it)",
    sqlite3.SQLITE_READONLY: "is read-only: make the file and its folder writable, or give another path",
    sqlite3.SQLITE_FULL: "cannot grow, the disk is full: make room",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened: give the path of a file that you may read and write",
    sqlite3.SQLITE_ERROR: "is not as Hookline made it: move it away, or give another path",
}
_databases: weakref.WeakSet[Database] = weakref.WeakSet()
_inherited: list[sqlite3.Connection] = []  # of the parent process, see Database._after_fork


class Database:
    """One connection, opened when it is first needed, guarded by a lock, and usable from any thread.

    What is at the path counts: where the file was moved, deleted or replaced since it was opened, the one that is there
    now is opened, and made if there is none.

    Args:
        path: the file, or ``:memory:``. It and its folder are made when first needed, for this user only.
        holds: what is in it, in a word, for messages.
        mark: the ``application_id`` that tells such files from all others.
        version: the version of the schema, kept as ``user_version``.
        schema: the statements that make it.
        upgrades: the statements that make the next version of each earlier one.
        conversions: by ``application_id``, the statements that turn other files of Hookline into this kind.
        durable: what is kept outlives a power failure too, not only the program; it costs a wait for the disk.
        pinned: what was read before must still hold, so a file that was moved or deleted is not left for another one:
            it can be read, and writing is an error until it is back.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, holds: str, mark: int, version: int, schema: Sequence[str],
        upgrades: Mapping[int, Sequence[str]] | None = None, conversions: Mapping[int, Sequence[str]] | None = None,
        durable: bool = False, pinned: bool = False,
    ) -> None:  # fmt: skip
        given = checked_path(path, f"a store of {holds} takes the path of a file, or ':memory:'")
        if not given or "\0" in given:
            raise StoreError(f"{given!r} is not a path: give that of a file, or ':memory:'")
        self.in_memory = given == ":memory:"
        self.path = given if self.in_memory else os.path.abspath(os.path.expanduser(given))
        self.holds, self.mark, self.version, self.schema = holds, mark, version, tuple(schema)
        self.upgrades, self.conversions = upgrades or {}, conversions or {}
        self._synchronous = "FULL" if durable else "NORMAL"
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._closed = False
        self._pinned = pinned
        self._place: tuple[int, int] | None = None
        self._gave_up = 0.0
        _databases.add(self)

    @contextmanager
    def transaction(self, *, write: bool = False) -> Iterator[sqlite3.Connection]:
        """All or nothing: what is done inside is kept if the block is left without an error.

        Raises:
            StoreError: the file cannot be used; it says why, and what to do.
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
        """Write the file anew, without what was deleted: until then its bytes may still be in there.

        Raises:
            StoreError: the file cannot be used, or was read all the while.
        """
        with self._connected(write=True) as db:
            db.execute("VACUUM")
            (is_read, _, _) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if is_read:
                raise self._locked()

    def close(self) -> None:
        """Close the file; what is stored stays, but for ``:memory:``."""
        with self._lock:
            self._closed = True
            self._drop()

    def __del__(self) -> None:
        connection = getattr(self, "_connection", None)
        if connection is not None:
            connection.close()

    @contextmanager
    def _connected(self, *, write: bool) -> Iterator[sqlite3.Connection]:
        """The connection, for one thread at a time; what goes wrong is told as a :class:`StoreError`."""
        began = time.monotonic()
        with self._lock:
            if self._gave_up > began:  # those who queued behind the one that waited need not wait as long again
                raise self._locked()
            if self._connection is not None and self._found() != self._place:
                self._left(write=write)
            try:
                with self._opened(write=write) as db:
                    yield db
            except (sqlite3.Error, OSError) as error:
                raise self._problem(error) from error

    def _opened(self, *, write: bool) -> AbstractContextManager[sqlite3.Connection]:
        try:
            return nullcontext(self._connection or self._open())
        except sqlite3.OperationalError as error:
            if write or error.sqlite_errorcode != sqlite3.SQLITE_READONLY_DIRECTORY:
                raise
        return self._standing_still()

    @contextmanager
    def _standing_still(self) -> Iterator[sqlite3.Connection]:
        """To read a file whose folder may not be written: SQLite can take no locks there, so nobody else may write."""
        before = self._traces()
        where = f"file:{quote(self.path)}?immutable=1"
        db = sqlite3.connect(where, uri=True, isolation_level=None, check_same_thread=False)
        try:
            if self._is_made(db) and self._upgrade(db):
                raise StoreError(
                    f"{self.path} has an earlier format, and its folder is read-only: "
                    "make the file and its folder writable, so that it can be converted"
                )
            yield db
        finally:
            db.close()
            if before[0] or self._traces() != before:
                raise StoreError(
                    f"{self.path} cannot be read while another program writes it, as its folder is read-only: "
                    "try again, or make the folder writable"
                )

    def _traces(self) -> tuple[bool, int, int]:
        """What changes when somebody opens the file to write, and when it is written."""
        file = os.stat(self.path)
        return os.path.exists(f"{self.path}-wal"), file.st_mtime_ns, file.st_size

    def _open(self) -> sqlite3.Connection:
        if self._closed:
            raise StoreError(f"{self.path} has been closed: make another store of it")
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
        self._connection, self._place = db, self._found()
        return db

    def _left(self, *, write: bool) -> None:
        """The open file is not the one at the path any more."""
        if not self._pinned:
            self._drop()
        elif write:
            raise StoreError(f"{self.path} was moved or deleted while it is in use: put it back, or start again")

    def _found(self) -> tuple[int, int] | None:
        """Which file is at the path."""
        if self.in_memory:
            return None
        try:
            file = os.stat(self.path)
        except OSError:
            return None
        return file.st_dev, file.st_ino

    def _prepare(self, db: sqlite3.Connection) -> None:
        db.execute(f"PRAGMA synchronous={self._synchronous}")
        db.execute("PRAGMA foreign_keys=ON")
        db.execute("BEGIN")
        made = self._is_made(db)
        db.execute("COMMIT")
        if not made:
            db.execute("BEGIN IMMEDIATE")
            if not self._is_made(db):  # another process may have been quicker
                for statement in self.schema:
                    db.execute(statement)
                db.execute(f"PRAGMA application_id={self.mark}")
                db.execute(f"PRAGMA user_version={self.version}")
            db.execute("COMMIT")
        elif self._upgrade(db):
            db.execute("BEGIN IMMEDIATE")
            for statement in self._upgrade(db):  # another process may have been quicker
                db.execute(statement)
            db.execute(f"PRAGMA application_id={self.mark}")
            db.execute(f"PRAGMA user_version={self.version}")
            db.execute("COMMIT")
        if not self.in_memory:
            self._write_ahead(db)

    def _upgrade(self, db: sqlite3.Connection) -> list[str]:
        """The statements that bring a file of an earlier format up to date; none if it is."""
        (mark,) = db.execute("PRAGMA application_id").fetchone()
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if mark != self.mark:
            return list(self.conversions[mark])
        return [statement for each in range(version, self.version) for statement in self.upgrades[each]]

    def _is_made(self, db: sqlite3.Connection) -> bool:
        """Whether the schema is there; what somebody else made is left alone."""
        (mark,) = db.execute("PRAGMA application_id").fetchone()
        (version,) = db.execute("PRAGMA user_version").fetchone()
        (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if not (mark or version or tables):
            return False
        if mark in self.conversions:
            return True
        if mark != self.mark:
            raise StoreError(f"{self.path} is a SQLite database, but not one of {self.holds}: give another path")
        if version > self.version:
            raise StoreError(f"{self.path} was written by a newer Hookline (format {version}): update Hookline")
        return True

    def _write_ahead(self, db: sqlite3.Connection) -> None:
        """Readers and a writer do not wait for each other. SQLite does not wait for this lock by itself."""
        end = time.monotonic() + BUSY_SECONDS
        while db.execute("PRAGMA journal_mode").fetchone() != ("wal",):
            try:
                db.execute("PRAGMA journal_mode=WAL")
            except sqlite3.OperationalError as error:
                if _code(error) not in _BUSY or time.monotonic() > end:
                    raise
                time.sleep(0.01)
            else:
                return  # done, or a file system that cannot

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _locked(self) -> StoreError:
        return LockedFileError(
            f"{self.path} was locked for {BUSY_SECONDS:g} s by another program: try again, or end that program"
        )

    def _problem(self, error: sqlite3.Error | OSError) -> StoreError:
        if isinstance(error, OSError):
            return StoreError(f"{self.path} cannot be made ({error}): give a path where you may write")
        code = _code(error)
        if code in _BUSY:
            self._gave_up = time.monotonic()
            return self._locked()
        if not self.in_memory:
            self._drop()  # the next use looks at the file afresh: it may have been mended
        advice = _ADVICE.get(code, "cannot be used: look at the file and its disk, or give another path")
        return StoreError(f"{self.path} {advice} ({error})")

    def _after_fork(self) -> None:
        """A connection must not be used, and not even closed, in a forked process: it opens its own."""
        self._lock = threading.Lock()
        connection = self._connection
        if connection is not None and not self.in_memory:
            _inherited.append(connection)
            self._connection = None


def storable(text: str) -> str:
    """A text without halves of characters, which SQLite cannot hold."""
    return text.encode(errors="replace").decode()


def _code(error: sqlite3.Error) -> int:
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


def _after_fork() -> None:
    for database in list(_databases):
        database._after_fork()


after_fork_in_child(_after_fork)


T = TypeVar("T")
Work = Callable[[sqlite3.Connection], Any]


class GroupCommit:
    """What waits is done in one transaction, in a thread of its own; each gets its result when that is committed.

    A piece of work may be done twice, the first time for nothing: it does nothing but use the database.
    """

    def __init__(self, db: Database) -> None:
        self.db = db
        self._waiting: list[tuple[Work, asyncio.Future[Any]]] = []
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "hookline-mailbox")

    async def transact(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """The result of ``work``, once it is committed.

        Raises:
            StoreError: the file cannot be used; nothing was done then.
        """
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((work, done))
        if self._task is None:
            self._task = asyncio.create_task(self._work_off())
        return await done

    async def close(self) -> None:
        """Finish what was begun, and close the file."""
        if self._task is not None:
            await asyncio.wait([self._task])
        self._thread.shutdown()
        self.db.close()

    async def _work_off(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                try:
                    outcomes = await loop.run_in_executor(self._thread, self._commit, [work for work, _ in batch])
                except BaseException as error:  # noqa: BLE001 - whoever waits is told
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
        try:
            with self.db.transaction(write=True) as db:
                return [(None, work(db)) for work in batch]
        except Exception as error:  # noqa: BLE001 - it is told
            if len(batch) == 1 or _is_the_files_fault(error):
                return [(error, None)] * len(batch)
        return [outcome for work in batch for outcome in self._commit([work])]  # one may not spoil it for the others


def _is_the_files_fault(error: Exception) -> bool:
    return isinstance(error, StoreError) and isinstance(error.__cause__, (sqlite3.OperationalError, OSError))
