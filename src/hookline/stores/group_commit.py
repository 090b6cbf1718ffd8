"""Many small pieces of work on a database, in few transactions."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from .errors import StoreError
from .sqlite import Database

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

    async def do(self, work: Callable[[sqlite3.Connection], T]) -> T:
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
