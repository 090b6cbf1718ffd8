"""Runs that somebody else started, with every event of theirs, in one SQLite file."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from .programs import is_running
from .pushes import SCHEMA as _PUSHES
from .pushes import Pushes
from .sqlite import Database, storable

OPEN = ("queued", "running", "waiting")
"""The states of a run that is not over: it waits for its turn, goes on, or waits for somebody to approve a call."""

PAGE_SIZE = 2_000_000
"""How many characters, or bytes of events, are read at once: what was said may be long. One run or event always is."""

STATES = (*OPEN, "completed", "stopped", "ended", "failed", "cancelled", "interrupted")

_LARGEST = 2**63 - 1
"""The largest whole number that SQLite can hold: a provider may count tokens as it likes."""

_SCHEMA = (
    """CREATE TABLE runs (
        id TEXT PRIMARY KEY, agent TEXT NOT NULL, owner TEXT NOT NULL, session TEXT NOT NULL, session_id TEXT NOT NULL,
        task_id TEXT NOT NULL, correlation_id TEXT NOT NULL, transport TEXT NOT NULL, task TEXT NOT NULL,
        status TEXT NOT NULL, reply TEXT NOT NULL, error TEXT NOT NULL, reason TEXT NOT NULL, steps INTEGER NOT NULL,
        tool_calls INTEGER NOT NULL, input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL,
        cached_tokens INTEGER NOT NULL, cost REAL, created REAL NOT NULL, started REAL, ended REAL,
        last_seq INTEGER NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL, born REAL
    )""",
    "CREATE INDEX runs_by_time ON runs (created, id)",
    "CREATE INDEX runs_by_owner ON runs (owner, created, id)",
    "CREATE INDEX runs_by_session ON runs (session_id, created, id)",
    "CREATE INDEX runs_open ON runs (status) WHERE ended IS NULL",
    """CREATE TABLE events (
        run_id TEXT NOT NULL, seq INTEGER NOT NULL, type TEXT NOT NULL, at REAL NOT NULL, data BLOB NOT NULL,
        PRIMARY KEY (run_id, seq)
    ) WITHOUT ROWID""",
    """CREATE TABLE once (
        owner TEXT NOT NULL, key TEXT NOT NULL, digest TEXT NOT NULL, run_id TEXT NOT NULL, at REAL NOT NULL,
        host TEXT NOT NULL, pid INTEGER NOT NULL, born REAL, PRIMARY KEY (owner, key)
    ) WITHOUT ROWID""",
    "CREATE INDEX once_by_run ON once (run_id)",
    _PUSHES,
)


class ServedRun(msgspec.Struct, frozen=True):
    """A run as callers see it.

    ``session`` is the caller's name of the conversation, ``session_id`` the one in the store of sessions; ``error`` is
    what went wrong, ``reason`` what stopped or ended it; ``last_seq`` counts its events; ``host``, ``pid`` and
    ``born`` are of its program.
    """

    id: str
    agent: str
    owner: str
    session: str
    session_id: str
    task_id: str
    correlation_id: str
    transport: str
    task: str
    status: str = "queued"
    reply: str = ""
    error: str = ""
    reason: str = ""
    steps: int = 0
    tool_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost: float | None = 0.0
    created: float = 0.0
    started: float | None = None
    ended: float | None = None
    last_seq: int = 0
    host: str = ""
    pid: int = 0
    born: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen in it."""
        return self.status not in OPEN

    @property
    def is_abandoned(self) -> bool:
        """Whether it is not over, but its program is gone."""
        return not self.is_over and not is_running(self.host, self.pid, self.created, self.born)


class StoredEvent(msgspec.Struct, frozen=True, gc=False):
    """An event of a run: its number there, its type, when it was, and the whole of it as JSON."""

    run_id: str
    seq: int
    type: str
    at: float
    data: bytes


class Once(msgspec.Struct, frozen=True):
    """A key that stands for one run, however often a caller asks with it.

    ``digest`` is of what was asked for; ``host``, ``pid`` and ``born`` are of the program that is to start the run.
    """

    owner: str
    key: str
    digest: str
    run_id: str
    at: float
    host: str
    pid: int
    born: float | None = None


class RunLog:
    """Keeps runs and their events, for several threads and programs. Everything here waits for the file.

    Args:
        path: the file, made when it is first needed; ``:memory:`` forgets with the program.

    Raises:
        StoreError: the path cannot be used.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.db = Database(path, holds="served runs", mark=0x486B4C4F, version=1, schema=_SCHEMA, pinned=True)
        self.pushes = Pushes(self.db)

    def write(self, runs: Iterable[ServedRun], events: Sequence[StoredEvent]) -> None:
        """Keep runs and events, all or none of them; a run that is there already is replaced.

        Raises:
            StoreError: the file cannot be used.
        """
        with self.db.transaction(write=True) as db:
            _write(db, runs, events)

    def get(self, id: str) -> ServedRun | None:
        """A run.

        Raises:
            StoreError: the file cannot be used.
        """
        with self.db.transaction() as db:
            row = db.execute("SELECT * FROM runs WHERE id = ?", (storable(id),)).fetchone()
        return None if row is None else ServedRun(*row)

    def runs(self, *, before: str = "", limit: int = 50, **wanted: Any) -> list[ServedRun]:
        """Runs, the newest first; if they are long, fewer than there are: see :func:`page_of`.

        Args:
            before: those that come after the run with this id in the list.
            limit: at most so many.
            wanted: which ones, as for :meth:`count`.

        Raises:
            StoreError: the file cannot be used.
        """
        where, values = _where(**wanted)
        if before:
            where += " AND (created, id) < (SELECT created, id FROM runs WHERE id = ?)"
            values.append(storable(before))
        with self.db.transaction() as db:
            query = f"SELECT * FROM runs WHERE {where} ORDER BY created DESC, id DESC LIMIT ?"
            found, size = list[ServedRun](), 0
            for run in (ServedRun(*row) for row in db.execute(query, (*values, limit))):
                found.append(run)
                size += _size(run)
                if size > PAGE_SIZE and len(found) > 1:
                    break
        return found

    def count(
        self,
        *,
        owner: str | None = None,
        agent: str = "",
        session: str = "",
        session_id: str = "",
        states: Sequence[str] = (),
        since: float = 0.0,
    ) -> int:
        """How many runs there are.

        Args:
            owner: whose; ``None`` for everybody's.
            agent: of one agent only.
            session: of conversations with this name only.
            session_id: of one conversation only.
            states: in one of these states only.
            since: that were changed at that time or later: begun, or over.

        Raises:
            StoreError: the file cannot be used.
        """
        where, values = _where(owner, agent, session, session_id, states, since)
        with self.db.transaction() as db:
            (found,) = db.execute(f"SELECT count(*) FROM runs WHERE {where}", values).fetchone()
        return int(found)

    def events(self, run_id: str, after: int = 0, limit: int = 500, size: int = PAGE_SIZE) -> list[StoredEvent]:
        """The events of a run that come after that number, in order: so many, and of so many bytes, as in ``fitting``.

        Raises:
            StoreError: the file cannot be used.
        """
        query = "SELECT * FROM events WHERE run_id = ? AND seq > ? ORDER BY seq LIMIT ?"
        with self.db.transaction() as db:
            return fitting((StoredEvent(*row) for row in db.execute(query, (storable(run_id), after, limit))), size)

    def reserve(self, wanted: Once) -> tuple[Once, bool]:
        """Take a key for a run that is to be started; or what the key stands for already, and whether that run exists.

        A key whose run was never stored, because its program ended before, can be taken again.

        Raises:
            StoreError: the file cannot be used.
        """
        values = tuple(storable(v) if isinstance(v, str) else v for v in msgspec.structs.astuple(wanted))
        with self.db.transaction(write=True) as db:
            row = db.execute("SELECT * FROM once WHERE owner = ? AND key = ?", values[:2]).fetchone()
            there = None if row is None else Once(*row)
            if there is not None:
                if db.execute("SELECT 1 FROM runs WHERE id = ?", (there.run_id,)).fetchone():
                    return there, True
                if is_running(there.host, there.pid, there.at, there.born):
                    return there, False
            db.execute("INSERT OR REPLACE INTO once VALUES (?,?,?,?,?,?,?,?)", values)
        return wanted, False

    def release(self, run_id: str) -> None:
        """Forget the key of a run that was not started after all.

        Raises:
            StoreError: the file cannot be used.
        """
        with self.db.transaction(write=True) as db:
            db.execute("DELETE FROM once WHERE run_id = ?", (run_id,))

    def abandoned(self) -> list[ServedRun]:
        """The runs that are not over, but whose program is gone.

        Raises:
            StoreError: the file cannot be used.
        """
        with self.db.transaction() as db:
            left = [ServedRun(*row) for row in db.execute("SELECT * FROM runs WHERE ended IS NULL")]
        return [run for run in left if run.is_abandoned]

    def close_once(self, id: str, last: Callable[[ServedRun, int], tuple[ServedRun, StoredEvent]]) -> ServedRun | None:
        """End a run in which nobody is at work any more; as it is, if somebody else was quicker.

        Args:
            id: the run's.
            last: gives what it is then, and its last event, which has that number.

        Raises:
            StoreError: the file cannot be used.
        """
        with self.db.transaction(write=True) as db:
            row = db.execute("SELECT * FROM runs WHERE id = ?", (storable(id),)).fetchone()
            run = None if row is None else ServedRun(*row)
            if run is None or run.is_over:
                return run
            (seq,) = db.execute("SELECT max(seq) FROM events WHERE run_id = ?", (run.id,)).fetchone()
            over, event = last(run, (seq or 0) + 1)
            _write(db, [over], [event])
        return over

    def prune(self, days: float) -> int:
        """Delete the runs that ended more than so many days ago, with their events; how many there were.

        Raises:
            StoreError: the file cannot be used.
        """
        before = (time.time() - days * 24 * 3600,)
        old = "SELECT id FROM runs WHERE ended < ?"
        with self.db.transaction(write=True) as db:
            for table in ("events", "once", "pushes"):
                db.execute(f"DELETE FROM {table} WHERE run_id IN ({old})", before)
            return db.execute("DELETE FROM runs WHERE ended < ?", before).rowcount

    def close(self) -> None:
        """Close the file."""
        self.db.close()


def fitting(events: Iterable[StoredEvent], size: int) -> list[StoredEvent]:
    """The first of these events, until they have so many bytes; one at least."""
    found: list[StoredEvent] = []
    for event in events:
        found.append(event)
        size -= len(event.data)
        if size <= 0:
            break
    return found


def page_of(found: Sequence[ServedRun], limit: int) -> Sequence[ServedRun]:
    """The runs that make a page, of those that were found with one more than its limit.

    Others follow if it is shorter than what was found.
    """
    is_long = len(found) > 1 and sum(map(_size, found)) > PAGE_SIZE
    return found[: min(limit, len(found) - 1) if is_long else limit]


def _size(run: ServedRun) -> int:
    return len(run.task) + len(run.reply) + len(run.error) + len(run.reason)


def _write(db: sqlite3.Connection, runs: Iterable[ServedRun], events: Sequence[StoredEvent]) -> None:
    marks = ",".join("?" * len(ServedRun.__struct_fields__))
    db.executemany(f"INSERT OR REPLACE INTO runs VALUES ({marks})", map(_row, runs))
    db.executemany("INSERT OR REPLACE INTO events VALUES (?,?,?,?,?)", map(msgspec.structs.astuple, events))


def _row(run: ServedRun) -> tuple[Any, ...]:
    return tuple(
        storable(value) if isinstance(value, str) else min(value, _LARGEST) if isinstance(value, int) else value
        for value in msgspec.structs.astuple(run)
    )


def _where(
    owner: str | None = None, agent: str = "", session: str = "", session_id: str = "", states: Sequence[str] = (),
    since: float = 0.0,
) -> tuple[str, list[Any]]:  # fmt: skip
    wanted: list[tuple[str, Sequence[Any]]] = [("1", ())]
    named = {"owner": owner, "agent": agent or None, "session": session or None, "session_id": session_id or None}
    wanted += [(f"{column} = ?", (storable(value),)) for column, value in named.items() if value is not None]
    if states:
        wanted.append((f"status IN ({','.join('?' * len(states))})", states))
    if since:
        wanted.append(("coalesce(ended, started, created) >= ?", (since,)))
    return " AND ".join(each for each, _ in wanted), [value for _, given in wanted for value in given]
