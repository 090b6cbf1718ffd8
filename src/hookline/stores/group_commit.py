"""Group commit: the work that threads have for a database at the same moment becomes one transaction.

A process that executes many runs commits for each step of each of them, and a commit costs more than what it stores: it
waits for the disk, and takes a connection and several messages to the server. So the first thread that comes does its
work, and those that come meanwhile wait; the first of these does the work of all of them in the next transaction. Every
thread goes on after its own work is committed, as it would alone.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast
from weakref import WeakSet

from .._base.workers import after_fork_in_child
from .errors import LockedFileError, StoreError
from .sql import Connection, Database

T = TypeVar("T")
_Work = Callable[[Connection], Any]

AT_ONCE = 50
"""Maximum number of pieces of work in a transaction."""

_all: WeakSet[GroupCommit] = WeakSet()


class GroupCommit:
    """Does the work of several threads in one transaction.

    Args:
        db: the database.
        adding: returns what stores the records of all work inside the transaction, as its last part.
    """

    def __init__(self, db: Database, adding: Callable[[Sequence[Any]], Callable[[Connection], object]]) -> None:
        self._db, self._adding = db, adding
        self.reset()
        _all.add(self)

    def reset(self) -> None:
        """Forget the work of other threads: a forked process has none of them."""
        self._lock = threading.Lock()
        self._waiting: list[_Piece] = []
        self._is_busy = False

    def do(
        self,
        key: str,
        work: Callable[[Connection], T],
        records: Sequence[Any] = (),
        *,
        alone: Callable[[], T] | None = None,
    ) -> T:
        """Do a piece of work, perhaps together with others, and return its result after the commit.

        Args:
            key: what the work changes. Work is done in the order of its keys, in all processes, so that two
                transactions never wait for each other in a circle.
            work: does it inside the transaction. If it raises, nothing of it is stored; it may be called again after a
                rollback, because other work failed.
            records: records to store at the end of the transaction.
            alone: does the same without a transaction, if there is no other work.

        Raises:
            StoreError: the database cannot be used.
        """
        piece = _Piece(key, work, records, alone)
        with self._lock:
            self._waiting.append(piece)
            leads = not self._is_busy
            self._is_busy = True
        if not leads:
            piece.wakeup.wait()  # until it is done, or is the first of the next transaction
        if not piece.is_done:
            self._lead()
        if piece.error is not None:
            raise piece.error
        return cast(T, piece.result)

    def _lead(self) -> None:
        with self._lock:
            pieces, self._waiting = self._waiting[:AT_ONCE], self._waiting[AT_ONCE:]
        try:
            self._do(pieces)
        finally:
            with self._lock:
                following = self._waiting[0] if self._waiting else None
                self._is_busy = following is not None
            for piece in pieces:
                piece.is_done = True
                piece.wakeup.set()
            if following is not None:
                following.wakeup.set()

    def _do(self, pieces: Sequence[_Piece]) -> None:
        try:
            self._do_together(pieces)
        except BaseException as error:
            is_outage = isinstance(error.__cause__, self._db.outages) and not isinstance(error, LockedFileError)
            if len(pieces) == 1 or is_outage or not isinstance(error, Exception):
                for piece in pieces:
                    piece.error = error if isinstance(error, Exception) else StoreError("the program was interrupted")
                if not isinstance(error, Exception):
                    raise
                return
            for piece in pieces:  # nothing is stored, and only one of them may be wrong
                self._do([piece])

    def _do_together(self, pieces: Sequence[_Piece]) -> None:
        if len(pieces) == 1 and pieces[0].alone is not None:
            pieces[0].result = pieces[0].alone()
            return
        records = [record for piece in pieces for record in piece.records]
        add = self._adding(records) if records else None
        results = []
        with self._db.transaction(write=True, lock=None) as db:
            for piece in sorted(pieces, key=lambda piece: piece.key):
                results.append((piece, piece.work(db)))
            if add is not None:
                add(db)
        for piece, result in results:
            piece.result = result


class AsyncGroupCommit:
    """Runs the changes of the coroutines of an event loop in few transactions, in one thread.

    No thread waits for each of them, as with :class:`GroupCommit`. All changes that wait while a transaction commits
    share the next one. A change may run twice, with the first run rolled back, so it must have no effects outside the
    database.
    """

    def __init__(self, db: Database) -> None:
        self.db = db
        self._waiting: list[tuple[_Work, asyncio.Future[Any]]] = []
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "hookline-mailbox")

    async def transact(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in a transaction and return its result after the commit.

        Raises:
            StoreError: the database cannot be used. Nothing was changed then.
        """
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((work, done))
        if self._task is None:
            self._task = asyncio.create_task(self._commit_waiting())
        return await done

    async def close(self) -> None:
        """Commit the waiting changes, and close the database."""
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

    def _commit(self, batch: list[_Work]) -> list[tuple[BaseException | None, Any]]:
        """Run a batch in one transaction; if one of the changes fails, run each in its own."""
        try:
            with self.db.transaction(write=True) as db:
                return [(None, work(db)) for work in batch]
        except Exception as error:  # noqa: BLE001 - the callers get it
            if len(batch) == 1 or self._is_outage(error):
                return [(error, None)] * len(batch)
        return [outcome for work in batch for outcome in self._commit([work])]

    def _is_outage(self, error: Exception) -> bool:
        return isinstance(error, StoreError) and isinstance(error.__cause__, self.db.outages)


class _Piece:
    """The work of one thread."""

    __slots__ = ("alone", "error", "is_done", "key", "records", "result", "wakeup", "work")

    def __init__(
        self,
        key: str,
        work: Callable[[Connection], Any],
        records: Sequence[Any],
        alone: Callable[[], Any] | None,
    ) -> None:
        self.key, self.work, self.records, self.alone = key, work, records, alone
        self.wakeup = threading.Event()
        self.is_done = False
        self.result: Any = None
        self.error: Exception | None = None


def _after_fork() -> None:
    for group in _all:
        group.reset()


after_fork_in_child(_after_fork)
