"""State that several agents share and can watch, in memory or in a database."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from .._base.frozen import freeze, json_text
from .database import open_database
from .errors import StoreError
from .sql import Connection, Schema, storable, upsert

Watcher = Callable[[str, Any], object]

log = logging.getLogger("hookline")


class Blackboard:
    """Share JSON values between agents, hooks and tools. It is thread-safe, and values are frozen.

    Watchers are called after each change, in the order of the changes of a key. If another thread is calling the
    watchers of the key at that moment, that thread calls them for the new change too, so that no writer blocks.

    Example::

        board = Blackboard()
        stop = board.watch("task.*", lambda key, value: print(key, value))
        board.set("task.1", {"done": False})
        stop()
    """

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._lock = threading.RLock()
        self._watchers: dict[object, tuple[str, Watcher]] = {}
        self._pending: dict[str, deque[tuple[Any, list[object]]]] = {}
        self._notifying: set[str] = set()
        self._updating = 0

    def __repr__(self) -> str:
        return f"Blackboard({len(self._values)} keys)"

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key."""
        with self._lock:
            return self._values.get(key, default)

    def set(self, key: str, value: Any) -> None:
        """Set the value of a key.

        Raises:
            TypeError: the value is not JSON, or the key is not text.
        """
        if not isinstance(key, str):
            raise TypeError(f"a key must be text, not {type(key).__name__}")
        frozen = freeze(value)
        with self._lock:
            self._values[key] = frozen
            self._changed(key, frozen)
        self._notify()

    def update(self, key: str, fn: Callable[[Any], Any]) -> Any:
        """Atomically set a key to the result of ``fn``, which gets the current value, or ``None`` if there is none.

        All other callers block while ``fn`` runs, so it should be fast. If it raises, the key keeps its value.

        Raises:
            TypeError: the result of ``fn`` is not JSON.
        """
        try:
            with self._lock:
                self._updating += 1
                try:
                    value = freeze(fn(self._values.get(key)))
                    self.set(key, value)
                finally:
                    self._updating -= 1
        finally:
            self._notify()  # also for changes that ``fn`` made itself before it failed
        return value

    def delete(self, key: str) -> bool:
        """Delete a key; return whether it existed. Watchers get ``None`` as value."""
        with self._lock:
            if key not in self._values:
                return False
            del self._values[key]
            self._changed(key, None)
        self._notify()
        return True

    def snapshot(self) -> Mapping[str, Any]:
        """Return a copy of all keys and values."""
        with self._lock:
            found: Mapping[str, Any] = freeze(self._values)
            return found

    def watch(self, pattern: str, watcher: Watcher) -> Callable[[], None]:
        """Call ``watcher(key, value)`` after each change of a key that matches the glob.

        It is called in the thread of a writer. Its exceptions are logged.

        Returns:
            A function that removes the watcher.

        Raises:
            TypeError: the watcher is not callable, or is async.
        """
        if not callable(watcher) or inspect.iscoroutinefunction(watcher):
            raise TypeError("a watcher must be a plain function of key and value: in async code use changed()")
        mark = object()
        with self._lock:
            self._watchers[mark] = pattern, watcher

        def unsubscribe() -> None:
            with self._lock:
                self._watchers.pop(mark, None)

        return unsubscribe

    async def changed(self, pattern: str, timeout: float | None = None) -> tuple[str, Any]:
        """Wait for the next change of a key that matches the glob; return the key and its value.

        Args:
            pattern: a glob.
            timeout: seconds; ``None`` for no limit.

        Raises:
            TimeoutError: no key changed within ``timeout``.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[tuple[str, Any]] = loop.create_future()

        def resolve(key: str, value: Any) -> None:
            if not future.done():
                future.set_result((key, value))

        def on_change(key: str, value: Any) -> None:
            with suppress(RuntimeError):  # the loop is closed, so nothing waits for the future
                loop.call_soon_threadsafe(resolve, key, value)

        unsubscribe = self.watch(pattern, on_change)
        try:
            async with asyncio.timeout(timeout):
                return await future
        finally:
            unsubscribe()

    def _changed(self, key: str, value: Any) -> None:
        watchers = [mark for mark, (pattern, _) in self._watchers.items() if fnmatchcase(key, pattern)]
        if watchers:
            self._pending.setdefault(key, deque()).append((value, watchers))

    def _notify(self) -> None:
        """Call the watchers of all changes that no other thread handles, without holding the lock."""
        while True:
            with self._lock:
                if self._updating:  # by this thread, which notifies at the end of the update
                    return
                key = next((key for key in self._pending if key not in self._notifying), None)
                if key is None:
                    return
                self._notifying.add(key)
                changes = self._pending[key]
                value, marks = changes.popleft()
                if not changes:
                    del self._pending[key]
            try:
                for mark in marks:
                    self._call(mark, key, value)
            finally:
                with self._lock:
                    self._notifying.discard(key)

    def _call(self, mark: object, key: str, value: Any) -> None:
        with self._lock:
            _, watcher = self._watchers.get(mark, ("", None))
        if watcher is None:
            return
        try:
            watcher(key, value)
        except Exception:
            log.exception("a watcher of the key %r failed", key)


SCHEMA = Schema(
    "blackboard",
    contents="shared values",
    application_id=0x486B4C42,
    version=1,
    statements=(
        # A deleted key keeps its row for a while, without a value, so that other processes hear of it.
        "CREATE TABLE board (key TEXT PRIMARY KEY, value BLOB, change INTEGER NOT NULL)",
        "CREATE INDEX board_by_change ON board (change)",
    ),
)
POLL_SECONDS = 0.1
"""Seconds between two looks for changes by other processes in a SQLite file."""
SLOW_POLL_SECONDS = 5.0
"""Seconds between two looks in PostgreSQL, which also announces changes."""

_KEPT = 10_000  # changes after which a deleted key is dropped
_ROW = upsert("board", ("key", "value", "change"), ("key",))


class DatabaseBlackboard(Blackboard):
    """Share values between the processes that use one SQLite file or one PostgreSQL database.

    Watchers are also called for changes by other processes, in a thread of their own, within milliseconds on PostgreSQL
    and 0.1 s on SQLite. If a key changes several times in between, they get only the last value.

    Args:
        path: the file, created when first used, or the address of a PostgreSQL database.

    Example::

        board = DatabaseBlackboard("postgresql://ada@db.example/shop")
        board.update("visits", lambda count: (count or 0) + 1)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self._db = open_database(path, SCHEMA)
        self._transaction: Connection | None = None  # of the thread that holds the lock
        self._made: list[tuple[str, Any, int]] = []
        self._own: dict[str, int] = {}  # numbers of changes by this process that the poll has not passed yet
        self._seen = 0
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._closed = False

    def __repr__(self) -> str:
        return f"DatabaseBlackboard({self._db.path!r})"

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key.

        Raises:
            StoreError: the database cannot be used.
        """
        with self._reading() as db:
            row = db.execute("SELECT value FROM board WHERE key = ?", (storable(key),)).fetchone()
        return default if row is None or row[0] is None else _decode(row[0])

    def set(self, key: str, value: Any) -> None:
        """Set the value of a key.

        Raises:
            TypeError: the value is not JSON, or the key is not text.
            StoreError: the database cannot be used.
        """
        if not isinstance(key, str):
            raise TypeError(f"a key must be text, not {type(key).__name__}")
        frozen = freeze(value)
        with self._changing() as db:
            change = _next_change(db)
            db.execute(_ROW, (storable(key), json_text(frozen).encode(), change))
            self._made.append((key, frozen, change))
        self._announce()

    def update(self, key: str, fn: Callable[[Any], Any]) -> Any:
        """Atomically set a key to the result of ``fn``, which gets the current value, or ``None`` if there is none.

        The callers of all processes wait while ``fn`` runs, so it should be fast. If it raises, the key keeps its
        value.

        Raises:
            TypeError: the result of ``fn`` is not JSON.
            StoreError: the database cannot be used.
        """
        failure: BaseException | None = None
        value = None
        with self._changing():
            try:
                value = freeze(fn(self.get(key)))
                self.set(key, value)
            except StoreError:
                raise
            except BaseException as error:  # noqa: BLE001 - changes that ``fn`` made itself before it failed stay
                failure = error
        self._announce()
        if failure is not None:
            raise failure
        return value

    def delete(self, key: str) -> bool:
        """Delete a key; return whether it existed. Watchers get ``None`` as value.

        Raises:
            StoreError: the database cannot be used.
        """
        with self._changing() as db:
            change = _next_change(db)
            query = "UPDATE board SET value = NULL, change = ? WHERE key = ? AND value IS NOT NULL"
            existed = db.execute(query, (change, storable(key))).rowcount > 0
            db.execute("DELETE FROM board WHERE value IS NULL AND change < ?", (change - _KEPT,))
            if existed:
                self._made.append((key, None, change))
        if existed:
            self._announce()
        return existed

    def snapshot(self) -> Mapping[str, Any]:
        """Return a copy of all keys and values.

        Raises:
            StoreError: the database cannot be used.
        """
        with self._reading() as db:
            rows = db.execute("SELECT key, value FROM board WHERE value IS NOT NULL ORDER BY key").fetchall()
        found: Mapping[str, Any] = freeze({key: _decode(value) for key, value in rows})
        return found

    def watch(self, pattern: str, watcher: Watcher) -> Callable[[], None]:
        """Call ``watcher(key, value)`` after each change of a key that matches the glob, in this or another process.

        Returns:
            A function that removes the watcher.

        Raises:
            TypeError: the watcher is not callable, or is async.
            StoreError: the database cannot be used.
        """
        with self._reading() as db:
            unsubscribe = super().watch(pattern, watcher)
            if self._thread is None or not self._thread.is_alive():
                self._seen = _next_change(db) - 1
                self._own.clear()
                self._thread = threading.Thread(target=self._poll, name="hookline-blackboard", daemon=True)
                self._thread.start()
        return unsubscribe

    def close(self) -> None:
        """Stop calling watchers, and close the database."""
        self._closed = True
        self._wake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._db.close()

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """Read in the transaction of a change by this thread, or in one of its own."""
        with self._lock:
            if self._transaction is not None:
                yield self._transaction
                return
            with self._db.transaction() as db:
                yield db

    @contextmanager
    def _changing(self) -> Iterator[Connection]:
        """Make changes in one transaction. Watchers learn of them after it."""
        with self._lock:
            if self._transaction is not None:
                yield self._transaction
                return
            self._made = []
            with self._db.transaction(write=True) as db:
                self._transaction = db
                try:
                    yield db
                finally:
                    self._transaction = None
            for key, value, change in self._made:
                if self._watchers:
                    self._own[key] = change
                self._changed(key, value)

    def _announce(self) -> None:
        """Call the watchers of this process, and tell the others, unless an update is not complete yet."""
        with self._lock:
            if self._transaction is not None:
                return
        self._db.announce("board")
        self._notify()

    def _poll(self) -> None:
        """Call watchers for changes by other processes until there are no watchers."""
        reported = False
        with self._db.listen("board", self._wake.set):
            while True:
                with self._lock:
                    if self._closed or not self._watchers:
                        self._thread = None
                        return
                try:
                    if self._take_changes():
                        self._notify()
                    reported = False
                except StoreError as error:
                    if not reported:
                        log.warning("changes of a blackboard by other processes are not seen: %s", error)
                    reported = True
                self._wake.wait(SLOW_POLL_SECONDS if self._db.is_shared else POLL_SECONDS)
                self._wake.clear()

    def _take_changes(self) -> bool:
        """Queue the changes by other processes for the watchers; return whether there are any."""
        found = False
        with self._db.transaction() as db:
            query = "SELECT key, value, change FROM board WHERE change > ? ORDER BY change"
            rows = db.execute(query, (self._seen,)).fetchall()
        with self._lock:
            for key, value, change in rows:
                self._seen = change
                if change > self._own.get(key, 0):
                    found = True
                    self._changed(key, None if value is None else _decode(value))
            self._own = {key: change for key, change in self._own.items() if change > self._seen}
        return found


def _next_change(db: Connection) -> int:
    (last,) = db.execute("SELECT coalesce(max(change), 0) FROM board").fetchone()
    return int(last) + 1


def _decode(data: bytes) -> Any:
    return freeze(msgspec.json.decode(data))
