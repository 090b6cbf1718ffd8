"""Open the database of a store: a SQLite file, or PostgreSQL for an address such as ``postgresql://host/name``."""

from __future__ import annotations

import asyncio
import glob
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from .errors import StoreError
from .paths import is_database_url
from .sql import Connection, Database, Schema
from .sqlite import SqliteDatabase

T = TypeVar("T")
Work = Callable[[Connection], Any]


def open_database(
    path: str | os.PathLike[str], schema: Schema, *, durable: bool = False, pinned: bool = False
) -> Database:
    """Return the database of a store. It is opened, and its tables are created, when it is first used.

    Args:
        path: a SQLite file, ``:memory:``, or the address of a PostgreSQL database.
        schema: the tables.
        durable: sync each commit of a SQLite file to disk. PostgreSQL does so unless its settings say otherwise.
        pinned: refuse to write a SQLite file that was moved or deleted.

    Raises:
        StoreError: the path or the address is not valid, or the library for PostgreSQL is missing.
    """
    if is_database_url(path):
        from .postgres import PostgresDatabase

        return PostgresDatabase(str(path), schema)
    return SqliteDatabase(path, schema, durable=durable, pinned=pinned)


def database_files(database: Database) -> tuple[str, ...]:
    """Return the files that an agent's tools must not write: the SQLite file, and globs for those beside it."""
    if database.is_shared or database.in_memory:
        return ()
    name = glob.escape(os.path.basename(database.path))
    return database.path, f"{name}-wal", f"{name}-shm", f"{name}-journal"


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

    def _commit(self, batch: list[Work]) -> list[tuple[BaseException | None, Any]]:
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
