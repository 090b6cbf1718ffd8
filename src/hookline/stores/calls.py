"""Calls of tools by caller, in all runs and processes that share a database, for rules that count them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from .database import open_database
from .leases import database_time
from .paths import checked_path
from .sql import Connection, Database, Schema, storable

KEEP_SECONDS = 31 * 86400.0
"""Seconds for which a call is kept: no rule looks further back."""
_PRUNE_SECONDS = 600.0

SCHEMA = Schema(
    "calls",
    contents="calls of tools by caller",
    application_id=0x486B434C,
    version=1,
    statements=(
        """CREATE TABLE calls (
            id TEXT PRIMARY KEY, caller TEXT NOT NULL, tool TEXT NOT NULL, at REAL NOT NULL, place INTEGER NOT NULL
        )""",
        "CREATE INDEX calls_by_caller ON calls (caller, at)",
        "CREATE INDEX calls_by_time ON calls (at)",
    ),
)


class CallStore:
    """Count the calls of each caller, in a SQLite file or a PostgreSQL database. All methods block.

    A call is added before it is judged, and the calls that were added before it are counted in the same transaction. So
    of calls at the same time, in whatever processes, each counts the others once, and a limit cannot be exceeded.

    Args:
        path: a SQLite file, ``:memory:``, or the address of a PostgreSQL database.
        clock: returns the Unix time; by default the clock of the PostgreSQL database, or of the machine of a file.

    Raises:
        StoreError: the path or the address is not valid, or the library for PostgreSQL is missing.
    """

    def __init__(self, path: str | os.PathLike[str], *, clock: Callable[[], float] | None = None) -> None:
        self._db: Database = open_database(checked_path(path, "CallStore takes the path of a file"), SCHEMA)
        self._clock = clock
        self._pruned = -math.inf

    def __repr__(self) -> str:
        return f"CallStore({self.path!r})"

    @property
    def path(self) -> str:
        """The file, or the address of the database without its password."""
        return self._db.path

    @property
    def db(self) -> Database:
        """The database."""
        return self._db

    def add(self, caller: str, call: str, tool: str, windows: Sequence[tuple[str, float]]) -> list[int]:
        """Add a call, and return how many calls the caller made before it in each window.

        A call that was added already is not added again, and its place stays.

        Args:
            caller: who makes the call; empty for all callers without a name together.
            call: identifies the call.
            tool: the name of the tool.
            windows: the tools, as a glob, and the seconds, up to ``KEEP_SECONDS``.

        Raises:
            StoreError: the database cannot be used.
        """
        caller, call, tool = storable(caller), storable(call), storable(tool)
        with self._db.transaction(write=True, lock=caller) as db:
            now = self._now(db)
            self._prune(db, now)
            known = db.execute("SELECT place FROM calls WHERE id = ?", (call,)).fetchone()
            if known is None:
                place = db.execute("SELECT COALESCE(MAX(place), 0) FROM calls WHERE caller = ?", (caller,)).fetchone()[
                    0
                ]
                known = (place + 1,)
                values = (call, caller, tool, now, place + 1)
                db.execute("INSERT INTO calls (id, caller, tool, at, place) VALUES (?,?,?,?,?)", values)
            return self._counts(db, caller, windows, now, known[0])

    def count(self, caller: str, windows: Sequence[tuple[str, float]]) -> list[int]:
        """Return how many calls the caller made in each window, without a call of its own.

        Raises:
            StoreError: the database cannot be used.
        """
        with self._db.transaction() as db:
            return self._counts(db, storable(caller), windows, self._now(db))

    def _now(self, db: Connection) -> float:
        return database_time(self._db, db) if self._clock is None else self._clock()

    def _counts(
        self, db: Connection, caller: str, windows: Sequence[tuple[str, float]], now: float, place: int | None = None
    ) -> list[int]:
        """Return how many calls are in each window, before one with a place."""
        since = now - max((seconds for _, seconds in windows), default=0.0)
        query, values = "SELECT tool, at FROM calls WHERE caller = ? AND at > ?", [caller, since]
        if place is not None:
            query, values = f"{query} AND place < ?", [*values, place]
        rows = db.execute(query, values).fetchall()
        return [sum(at > now - seconds and fnmatchcase(tool, tools) for tool, at in rows) for tools, seconds in windows]

    def remove(self, call: str) -> None:
        """Remove a call that did not run.

        Raises:
            StoreError: the database cannot be used.
        """
        self._db.execute("DELETE FROM calls WHERE id = ?", (storable(call),), write=True)

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def _prune(self, db: Connection, now: float) -> None:
        if now > self._pruned + _PRUNE_SECONDS:
            self._pruned = now
            db.execute("DELETE FROM calls WHERE at < ?", (now - KEEP_SECONDS,))
