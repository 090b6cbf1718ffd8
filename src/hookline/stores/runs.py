"""What runs did, in one SQLite file: numbers, names and times, never texts, arguments or results."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice
from typing import Any

import msgspec

from .._base.names import is_number
from .errors import StoreError
from .programs import is_running
from .sqlite import Database, storable

_SCHEMA = (
    """CREATE TABLE runs (
        run_id TEXT PRIMARY KEY, task_id TEXT, correlation_id TEXT, session_id TEXT, agent TEXT, parent_run_id TEXT,
        host TEXT, pid INTEGER, started REAL, ended REAL, status TEXT, stop TEXT, error TEXT, steps INTEGER,
        tool_calls INTEGER, input_tokens INTEGER, output_tokens INTEGER, cached_tokens INTEGER, cost REAL, elapsed REAL
    )""",
    """CREATE TABLE model_calls (
        run_id TEXT, at REAL, hop INTEGER, attempt INTEGER, purpose TEXT, model TEXT, provider TEXT,
        organization_id TEXT, source TEXT, verdict TEXT, finish_reason TEXT, input_tokens INTEGER,
        output_tokens INTEGER, cached_tokens INTEGER, cost REAL, duration REAL
    )""",
    """CREATE TABLE tool_calls (
        run_id TEXT, at REAL, call_id TEXT, attempt INTEGER, tool TEXT, outcome TEXT, duration REAL
    )""",
    """CREATE TABLE verdicts (
        run_id TEXT, at REAL, point TEXT, call_id TEXT, hook TEXT, phase TEXT, verb TEXT, reason TEXT, duration REAL
    )""",
    """CREATE TABLE approvals (
        run_id TEXT, at REAL, call_id TEXT, tool TEXT, decision TEXT, decided_by TEXT, waited REAL
    )""",
    """CREATE TABLE errors (
        run_id TEXT, at REAL, place TEXT, type TEXT, source TEXT, call_id TEXT, fatal INTEGER
    )""",
)
PARTS = ("model_calls", "tool_calls", "verdicts", "approvals", "errors")
"""The tables with what belongs to a run."""

_CHUNKS = (256, 32, 4, 1)
"""Rows in one statement: SQLite lets other threads in between two, and they may take their time."""
_LARGEST = 2**63 - 1
_UNFIT = (UnicodeEncodeError, OverflowError, sqlite3.ProgrammingError, sqlite3.InterfaceError)


class RunRow(msgspec.Struct, frozen=True):
    """A run; ``status`` is also ``running``, or ``interrupted`` if its program was gone before its end."""

    run_id: str
    task_id: str
    correlation_id: str
    session_id: str
    agent: str
    parent_run_id: str
    host: str
    pid: int
    started: float
    ended: float | None
    status: str
    stop: str | None
    error: str | None
    steps: int | None
    tool_calls: int | None
    input_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    cost: float | None
    elapsed: float | None


class CallRow(msgspec.Struct, frozen=True):
    """A model or tool call of a run: when it began, how long it took, and what became of it."""

    kind: str
    name: str
    began: float
    duration: float
    outcome: str
    attempt: int
    purpose: str = ""
    tokens: int = 0


class VerdictRow(msgspec.Struct, frozen=True):
    """What a hook said in a run."""

    at: float
    point: str
    call_id: str
    hook: str
    phase: str
    verb: str
    reason: str
    duration: float | None


class RunStore:
    """Keeps what runs did in one SQLite file, which threads and programs may share; see docs/guides/observability.md.

    :class:`ObservabilityHook` fills it, ``hookline stats`` shows it.

    Args:
        path: the file, made when it is first needed; ``:memory:`` forgets with the program.
        keep_days: how long runs are kept; those that ended earlier are deleted when something is written,
            at most once an hour. ``None`` keeps all.

    Raises:
        StoreError: the path, or the number of days, cannot be used.
    """

    def __init__(self, path: str | os.PathLike[str], *, keep_days: float | None = None) -> None:
        if keep_days is not None:
            _checked_days(keep_days)
        self.db = Database(path, holds="runs", mark=0x486B4C52, version=1, schema=_SCHEMA)
        self.keep_days = keep_days
        self._pruned = float("-inf")

    @property
    def path(self) -> str:
        """The file."""
        return self.db.path

    def open(self) -> None:
        """Make sure that the file is there and can be written.

        Raises:
            StoreError: it cannot; it says why, and what to do.
        """
        with self.db.transaction(write=True):
            pass

    def add(self, runs: Mapping[str, tuple[Any, ...]], parts: Mapping[str, Sequence[tuple[Any, ...]]]) -> None:
        """Keep rows, all or none of them; each has the values of all columns of its table.

        Args:
            runs: by id; a run that is there already is replaced.
            parts: by table, one of ``PARTS``.

        Raises:
            StoreError: the file cannot be used.
        """
        with self.db.transaction(write=True) as db:
            for table, rows in (("runs", list(runs.values())), *parts.items()):
                _insert(db, table, rows)
            if self.keep_days is not None and time.monotonic() > self._pruned + 3600:
                _prune(db, self.keep_days)
                self._pruned = time.monotonic()

    def runs(self, limit: int = 20) -> list[RunRow]:
        """The runs that began last, the newest first.

        Raises:
            StoreError: the file cannot be used.
        """
        with self.db.transaction() as db:
            return [_run(row) for row in db.execute("SELECT * FROM runs ORDER BY started DESC LIMIT ?", (limit,))]

    def find(self, run_id: str) -> RunRow:
        """The run with this id, or the only one whose id begins so, with or without ``run_``; ``last`` is the newest.

        Raises:
            StoreError: there is none, or more than one; or the file cannot be used.
        """
        if run_id == "last" and (newest := self.runs(1)):
            return newest[0]
        query = "SELECT * FROM runs WHERE ? IN (substr(run_id, 1, ?), substr(run_id, 5, ?)) ORDER BY run_id LIMIT 2"
        with self.db.transaction() as db:
            found = db.execute(query, (_storable(run_id), len(run_id), len(run_id))).fetchall()
        if not found:
            raise StoreError(f"there is no run {run_id!r} in {self.path}: hookline stats --last 20 shows the ids")
        if len(found) > 1 and found[0][0] != run_id:
            raise StoreError(f"more than one run begins with {run_id!r}: give more of its id")
        return _run(found[0])

    def calls(self, run_id: str) -> list[CallRow]:
        """The model and tool calls of a run, in the order in which they began.

        Raises:
            StoreError: the file cannot be used.
        """
        models = """SELECT 'model', model, at - duration, duration,
            CASE WHEN verdict IN ('retry', 'end', 'failed') THEN verdict ELSE finish_reason END, attempt, purpose,
            input_tokens + output_tokens FROM model_calls WHERE run_id = ?"""
        tools = "SELECT 'tool', tool, at - duration, duration, outcome, attempt FROM tool_calls WHERE run_id = ?"
        with self.db.transaction() as db:
            rows = [*db.execute(models, (run_id,)), *db.execute(tools, (run_id,))]
        return sorted((CallRow(*row) for row in rows), key=lambda call: call.began)

    def verdicts(self, run_id: str) -> list[VerdictRow]:
        """What hooks said in a run, in that order.

        Raises:
            StoreError: the file cannot be used.
        """
        with self.db.transaction() as db:
            found = db.execute("SELECT * FROM verdicts WHERE run_id = ? ORDER BY at, rowid", (run_id,))
            return [VerdictRow(*row[1:]) for row in found]

    def prune(self, days: float) -> int:
        """Delete the runs that ended more than so many days ago; how many there were.

        Raises:
            StoreError: no number of days, or the file cannot be used.
        """
        _checked_days(days)
        with self.db.transaction(write=True) as db:
            return _prune(db, days)

    def close(self) -> None:
        """Close the file."""
        self.db.close()


def _run(row: tuple[Any, ...]) -> RunRow:
    values = dict(zip(RunRow.__struct_fields__, row, strict=True))
    if values["status"] is None:
        alive = is_running(values["host"], values["pid"], values["started"])
        values["status"] = "running" if alive else "interrupted"
    return RunRow(**values)


def _prune(db: sqlite3.Connection, days: float) -> int:
    old = "SELECT run_id FROM runs WHERE coalesce(ended, started) < ?"
    before = (time.time() - days * 24 * 3600,)
    for table in PARTS:
        db.execute(f"DELETE FROM {table} WHERE run_id IN ({old})", before)
    return db.execute(f"DELETE FROM runs WHERE run_id IN ({old})", before).rowcount


@lru_cache
def _insertion(table: str, columns: int, rows: int) -> str:
    row = f"({','.join('?' * columns)})"
    return f"INSERT {'OR REPLACE ' if table == 'runs' else ''}INTO {table} VALUES {','.join([row] * rows)}"


def _insert(db: sqlite3.Connection, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
    waiting = iter(rows)
    left = len(rows)
    for size in _CHUNKS:
        while left >= size:
            chunk = list(islice(waiting, size))
            statement, values = _insertion(table, len(chunk[0]), size), tuple(chain.from_iterable(chunk))
            try:
                db.execute(statement, values)
            except _UNFIT:  # one odd value may not keep the rest from here
                db.execute(statement, tuple(map(_storable, values)))
            left -= size


def _storable(value: Any) -> Any:
    """A value that SQLite can hold: no half characters, no numbers beyond its own, no types that it does not know."""
    if isinstance(value, int):
        return max(-_LARGEST, min(value, _LARGEST))
    if value is None or isinstance(value, float):
        return value
    return storable(str(value))


def _checked_days(days: object) -> None:
    if not is_number(days) or not 0 < days < 1e6:  # type: ignore[operator]
        raise StoreError(f"a number of days is above 0, not {days!r:.80}")
