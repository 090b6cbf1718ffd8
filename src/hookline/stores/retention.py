"""Deletes old runs, with everything that is stored about them.

Each transaction deletes a bounded number of runs, with one statement for each table: as many as it can delete in
``STEP_SECONDS``, because new runs wait for a transaction of SQLite. A SQLite file is free between two of them, and on
PostgreSQL they lock only the deleted rows. One process at a time does this for a database, because it holds a lease
(:class:`PeriodicWork`).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence

from .._run.journal import RUN_STATUSES
from .facts import delete_reasons
from .leases import database_time
from .sql import Connection, Database, upsert

TABLES = (
    *("facts", "events", "idempotency_keys", "pushes", "task_messages", "controls", "run_texts", "journal"),
    "durable_runs",
)
"""Tables with rows of runs besides ``runs``, which are deleted with their run."""
AT_ONCE = 500
"""Number of runs that the first transaction deletes, and the maximum where the number does not change."""
FEWEST, MOST = 50, 2_000
"""Bounds of the number of runs that a transaction deletes."""
STEP_SECONDS = 0.15
"""Seconds that a transaction should take."""
LEASE_SECONDS = 60.0
"""Seconds after which another process may go on with the work of one that has not renewed its lease."""

SCHEMA = (
    "CREATE TABLE periodic_work (name TEXT PRIMARY KEY, holder TEXT NOT NULL, until REAL NOT NULL, done REAL NOT NULL)",
)
_COLUMNS = ("name", "holder", "until", "done")
_LAST_SESSIONS = """SELECT DISTINCT session_id FROM runs r WHERE {} AND session_id != ''
    AND NOT EXISTS (SELECT 1 FROM runs o WHERE o.session_id = r.session_id AND o.transport != ''
    AND (o.ended IS NULL OR o.ended >= ?))"""
"""The conversations of runs that have no newer run."""


class PeriodicWork:
    """Work that one of the processes with a database does from time to time.

    Args:
        database: the database of the run store.
        name: the name of the work.
        seconds: its interval.
    """

    def __init__(self, database: Database, name: str, seconds: float) -> None:
        self._db, self._name, self._seconds = database, name, seconds
        self._holder, self._renewed = "", 0.0

    def claim(self) -> bool:
        """Take the lease of the work; return false if the work is not due, or another process does it."""
        holder = secrets.token_hex(8)
        with self._db.transaction(write=True, lock="periodic work") as db:
            now = database_time(self._db, db)
            row = db.execute("SELECT until, done FROM periodic_work WHERE name = ?", (self._name,)).fetchone()
            until, done = row or (0.0, 0.0)
            if until > now or done > now - self._seconds:
                return False
            values = (self._name, holder, now + LEASE_SECONDS, done)
            db.execute(upsert("periodic_work", _COLUMNS, ("name",)), values)
        self._holder, self._renewed = holder, time.monotonic()
        return True

    def renew(self) -> bool:
        """Extend the lease from time to time; return false if it had expired and another process has taken it."""
        if time.monotonic() < self._renewed + LEASE_SECONDS / 6:
            return True
        self._renewed = time.monotonic()
        with self._db.transaction(write=True, lock=None) as db:
            until = database_time(self._db, db) + LEASE_SECONDS
            statement = "UPDATE periodic_work SET until = ? WHERE name = ? AND holder = ?"
            return db.execute(statement, (until, self._name, self._holder)).rowcount == 1

    def release(self, *, done: bool) -> None:
        """End the lease. If the work is ``done``, it is due again after its interval, and otherwise at once."""
        with self._db.transaction(write=True, lock=None) as db:
            db.execute("UPDATE periodic_work SET until = 0.0 WHERE name = ? AND holder = ?", (self._name, self._holder))
            if done:
                statement = "UPDATE periodic_work SET done = ? WHERE name = ? AND holder = ?"
                db.execute(statement, (database_time(self._db, db), self._name, self._holder))


def delete_runs(db: Connection, ids: Sequence[str], tables: Sequence[str] = (*TABLES, "runs")) -> None:
    """Delete everything that tables have about runs, inside a transaction."""
    for table in tables if ids else ():
        db.execute(f"DELETE FROM {table} WHERE {among(ids)}", ids)


def _next_size(size: int, began: float) -> int:
    """Return how many runs to delete in the next transaction, after one of a size that began at a monotonic time."""
    seconds = max(time.monotonic() - began, 1e-3)
    return int(min(max(size * STEP_SECONDS / seconds, FEWEST), size * 2, MOST))


def prune(
    database: Database, before: float, deleted_runs: Callable[[Sequence[str]], object] | None = None
) -> Iterator[int]:
    """Delete the records of runs that ended before a Unix time. Yield the number of runs after each transaction.

    Of runs that a server stored, only the facts are deleted. A run that a process can continue stays. ``deleted_runs``
    is called with the ids of the runs of which nothing is left.
    """
    yield from delete_reasons(database, before)
    query = """SELECT runs.run_id, runs.created, coalesce(runs.ended, runs.created), transport, observed, d.status
        FROM runs LEFT JOIN durable_runs AS d ON d.run_id = runs.run_id
        WHERE (runs.created, runs.run_id) > (?, ?) AND runs.created < ?
        ORDER BY runs.created, runs.run_id LIMIT ?"""
    last: tuple[float, str] | None = (0.0, "")
    size = AT_ONCE
    while last is not None:
        began = time.monotonic()
        with database.transaction(write=True, lock=None) as db:
            rows = db.execute(query, (*last, before, size)).fetchall()
            old = [
                (id, is_observed, transport, status)
                for id, _, end, transport, is_observed, status in rows
                if end < before
            ]
            delete_runs(db, [id for id, is_observed, *_ in old if is_observed], ("facts",))
            deleted = [id for id, _, transport, status in old if not transport and status in (None, *RUN_STATUSES)]
            delete_runs(db, deleted)
            kept = [id for id, is_observed, transport, _ in old if transport and is_observed]
            if kept:
                db.execute(f"UPDATE runs SET observed = 0 WHERE {among(kept)}", kept)
        if deleted_runs is not None:
            deleted_runs(deleted)
        last = (rows[-1][1], rows[-1][0]) if len(rows) == size else None
        size = _next_size(size, began)
        yield len(deleted) + len(kept)


Forget = Callable[[Sequence[str], Sequence[str]], object]
"""Deletes what other stores have about runs, given their ids, and conversations of which no run is left."""


def prune_served(database: Database, before: float, forget: Forget | None = None) -> Iterator[int]:
    """Delete the events and texts of served runs that ended before a Unix time. Yield the number of runs, as above.

    ``forget`` is called before the runs are deleted: if the process ends in between, it is called again.
    """
    query = """SELECT run_id, ended, observed, error FROM runs
        WHERE transport != '' AND ended >= ? AND ended < ? AND created < ? ORDER BY ended LIMIT ?"""
    last: float | None = 0.0
    size = AT_ONCE
    while last is not None:
        began = time.monotonic()
        if forget is not None:
            with database.transaction() as db:
                ids = [id for id, *_ in db.execute(query, (last, before, before, size)).fetchall()]
                sessions = db.execute(_LAST_SESSIONS.format(among(ids)), (*ids, before)).fetchall() if ids else []
            forget(ids, [session for (session,) in sessions])
        with database.transaction(write=True, lock=None) as db:
            old = db.execute(query, (last, before, before, size)).fetchall()
            delete_runs(db, [id for id, *_ in old], [table for table in TABLES if table != "facts"])
            delete_runs(db, [id for id, _, is_observed, _ in old if not is_observed], ("facts", "runs"))
            observed: dict[str, list[str]] = {}
            for id, _, is_observed, error in old:
                if is_observed:
                    observed.setdefault(error_type(error), []).append(id)
            for error, ids in observed.items():
                _forget_texts(db, ids, error)
        last = old[-1][1] if len(old) == size else None
        size = _next_size(size, began)
        yield len(old)


def _forget_texts(db: Connection, ids: Sequence[str], error: str) -> None:
    """Delete what a server stored in the rows of runs, and what people said when they decided about calls."""
    db.execute(f"UPDATE facts SET reason = '' WHERE kind = 'approval' AND {among(ids)}", ids)
    db.execute(
        f"""UPDATE runs SET owner = '', session = '', transport = '', task = '', reply = '', reason = '', last_seq = 0,
        error = ? WHERE {among(ids)}""",
        (error, *ids),
    )


def error_type(error: str) -> str:
    """Return the type at the beginning of ``TYPE: MESSAGE``; empty if there is none."""
    kind, _, _ = error.partition(":")
    return "" if " " in kind else kind


def among(ids: Sequence[str]) -> str:
    """Return the condition that a run has one of these ids."""
    return f"run_id IN ({','.join('?' * len(ids))})"
