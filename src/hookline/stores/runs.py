"""The store of runs: one SQLite file that :class:`ObservabilityHook` and servers write and ``hookline stats`` reads.

Each run has one row in the table ``runs``. The hook adds the details of the run to the tables in ``PARTS``: names,
numbers and times, never texts. A server stores its runs with the task, the reply and every event. A run that both of
them record has one row, which belongs to the server; the hook only marks it as observed.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice
from typing import Any, TypedDict, Unpack

import msgspec

from .._base.text import is_number
from .errors import StoreError
from .journal import SCHEMA as _JOURNAL
from .journal import Journal
from .processes import is_process_running
from .push_subscriptions import SCHEMA as _PUSHES
from .push_subscriptions import PushSubscriptionStore
from .sqlite import Database, storable

OPEN_STATES = ("queued", "running", "waiting")
"""The states of a run that has not ended: queued, running, or waiting for the approval of a tool call."""

STATES = (*OPEN_STATES, "completed", "stopped", "ended", "failed", "cancelled", "interrupted")

PAGE_SIZE = 2_000_000
"""Maximum size of a page: characters of runs, or bytes of events. A page has at least one run or event."""

PARTS = ("model_calls", "tool_calls", "verdicts", "approvals", "errors")
"""Tables that :class:`ObservabilityHook` fills."""

_RUNS = """CREATE TABLE runs (
    run_id TEXT PRIMARY KEY, agent TEXT NOT NULL, owner TEXT NOT NULL, session TEXT NOT NULL, session_id TEXT NOT NULL,
    task_id TEXT NOT NULL, correlation_id TEXT NOT NULL, transport TEXT NOT NULL, task TEXT NOT NULL,
    status TEXT NOT NULL, reply TEXT NOT NULL, error TEXT NOT NULL, reason TEXT NOT NULL, stop TEXT NOT NULL,
    steps INTEGER NOT NULL, tool_calls INTEGER NOT NULL, input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL, cost REAL, created REAL NOT NULL, started REAL, ended REAL, elapsed REAL,
    last_seq INTEGER NOT NULL, parent_run_id TEXT NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL, born REAL,
    observed INTEGER NOT NULL
)"""
_INDEXES = (
    "CREATE INDEX runs_by_time ON runs (created, run_id)",
    "CREATE INDEX served_by_time ON runs (created, run_id) WHERE transport != ''",
    "CREATE INDEX served_by_owner ON runs (owner, created, run_id) WHERE transport != ''",
    "CREATE INDEX served_by_session ON runs (session_id, created, run_id) WHERE transport != ''",
    "CREATE INDEX ended_by_status ON runs (status, created, run_id) WHERE ended IS NOT NULL",
    "CREATE INDEX open_runs ON runs (created, run_id) WHERE ended IS NULL",
)
_PARTS = (
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
_SERVED = (
    """CREATE TABLE events (
        run_id TEXT NOT NULL, seq INTEGER NOT NULL, type TEXT NOT NULL, at REAL NOT NULL, data BLOB NOT NULL,
        PRIMARY KEY (run_id, seq)
    ) WITHOUT ROWID""",
    """CREATE TABLE idempotency_keys (
        owner TEXT NOT NULL, key TEXT NOT NULL, digest TEXT NOT NULL, run_id TEXT NOT NULL, at REAL NOT NULL,
        host TEXT NOT NULL, pid INTEGER NOT NULL, born REAL, PRIMARY KEY (owner, key)
    ) WITHOUT ROWID""",
    "CREATE INDEX idempotency_keys_by_run ON idempotency_keys (run_id)",
    _PUSHES,
)

_APPLICATION_ID = 0x486B4C52
_FORMAT_1 = (  # the hook's records, before servers stored their runs in the same file
    "ALTER TABLE runs RENAME TO runs_1",
    _RUNS,
    """INSERT INTO runs SELECT run_id, coalesce(agent, ''), '', '', coalesce(session_id, ''), coalesce(task_id, ''),
        coalesce(correlation_id, ''), '', '', coalesce(status, 'running'), '', coalesce(error, ''), '',
        coalesce(stop, ''), coalesce(steps, 0), coalesce(tool_calls, 0), coalesce(input_tokens, 0),
        coalesce(output_tokens, 0), coalesce(cached_tokens, 0), cost, coalesce(started, 0), started, ended, elapsed, 0,
        coalesce(parent_run_id, ''), coalesce(host, ''), coalesce(pid, 0), NULL, 1 FROM runs_1 WHERE run_id NOT NULL""",
    "DROP TABLE runs_1",
    *_INDEXES,
    *_SERVED,
)
_SERVED_APPLICATION_ID = 0x486B4C4F
_SERVED_FORMAT = (  # a separate file of a server
    "ALTER TABLE runs RENAME TO runs_1",
    *(f"DROP INDEX {name}" for name in ("runs_by_time", "runs_by_owner", "runs_by_session", "runs_open")),
    _RUNS,
    """INSERT INTO runs SELECT id, agent, owner, session, session_id, task_id, correlation_id, transport, task, status,
        reply, error, reason, '', steps, tool_calls, input_tokens, output_tokens, cached_tokens, cost, created, started,
        ended, ended - started, last_seq, '', host, pid, born, 0 FROM runs_1""",
    "DROP TABLE runs_1",
    "ALTER TABLE once RENAME TO idempotency_keys",
    "DROP INDEX once_by_run",
    "CREATE INDEX idempotency_keys_by_run ON idempotency_keys (run_id)",
    *_INDEXES,
    *_PARTS,
    *_JOURNAL,
)

_CHUNKS = (256, 32, 4, 1)
"""Rows per statement. Small statements take longer in total, because other threads may run between them."""
_PRUNED_AT_ONCE = 200
"""Served runs that are deleted in one transaction."""
_LARGEST = 2**63 - 1
_UNSTORABLE = (UnicodeEncodeError, OverflowError, sqlite3.ProgrammingError, sqlite3.InterfaceError)


class RunRecord(msgspec.Struct, frozen=True):
    """A run, as one row of the table ``runs``.

    ``owner``, ``session``, ``transport``, ``task``, ``reply`` and ``reason`` are set for runs of a server only:
    ``session`` is the caller's name of the conversation and ``session_id`` the id in the session store; ``reason`` says
    what stopped or ended the run. ``stop`` is the kind of stop signal. ``error`` is the type of the error that the run
    failed with, followed by the message if a server stored it. The numbers are 0 until the run has ended. ``created``
    is when the run was accepted and ``started`` when it left the queue; without a server they are the same.
    ``last_seq`` is the number of the last stored event. ``host``, ``pid`` and ``born`` identify the process.
    ``observed`` says whether an :class:`ObservabilityHook` recorded the run.

    ``status`` is one of ``STATES``. A run without an end whose process has ended is ``interrupted``.
    """

    id: str = msgspec.field(name="run_id")
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
    stop: str = ""
    steps: int = 0
    tool_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost: float | None = 0.0
    created: float = 0.0
    started: float | None = None
    ended: float | None = None
    elapsed: float | None = None
    last_seq: int = 0
    parent_run_id: str = ""
    host: str = ""
    pid: int = 0
    born: float | None = None
    observed: bool = False

    @property
    def is_served(self) -> bool:
        """Whether a server stored this run."""
        return self.transport != ""

    @property
    def is_over(self) -> bool:
        """Whether the run has ended, or its process has ended."""
        return self.status not in OPEN_STATES

    @property
    def error_type(self) -> str:
        """The type of the error that the run failed with, without its message; empty if it is not known."""
        kind, _, _ = self.error.partition(":")
        return "" if " " in kind else kind

    @property
    def is_abandoned(self) -> bool:
        """Whether the process of the run has ended, and the end of the run is not stored yet."""
        return self.ended is None and self.status == "interrupted"


class StoredEvent(msgspec.Struct, frozen=True, gc=False):
    """An event of a served run: its number, its type, its time, and the whole event as JSON."""

    run_id: str
    seq: int
    type: str
    at: float
    data: bytes


class IdempotencyKey(msgspec.Struct, frozen=True):
    """A key that identifies one run, even if a caller sends the key several times.

    ``digest`` is that of the request; ``host``, ``pid`` and ``born`` identify the process that will start the run.
    """

    owner: str
    key: str
    digest: str
    run_id: str
    at: float
    host: str
    pid: int
    born: float | None = None


class CallRow(msgspec.Struct, frozen=True):
    """A model call or tool call of a run: when it began, how long it took, and its outcome."""

    kind: str
    name: str
    began: float
    duration: float
    outcome: str
    attempt: int
    purpose: str = ""
    tokens: int = 0


class VerdictRow(msgspec.Struct, frozen=True):
    """The result of a hook in a run."""

    at: float
    point: str
    call_id: str
    hook: str
    phase: str
    verb: str
    reason: str
    duration: float | None


class RunFilter(TypedDict, total=False):
    """Filter of :meth:`RunStore.runs` and :meth:`RunStore.count`; an empty filter selects all runs.

    ``served=True``: only runs of a server. ``owner``, ``agent``, ``session`` (the caller's name), ``session_id``: only
    runs with this value. ``states``: only runs in one of these states. ``since``: only runs that began or ended at
    this Unix time or later.
    """

    served: bool
    owner: str | None
    agent: str
    session: str
    session_id: str
    states: Sequence[str]
    since: float


class RunStore:
    """Store runs in one SQLite file, which threads and processes may share; see docs/guides/observability.md.

    :class:`ObservabilityHook` and ``hookline serve`` write it, ``hookline stats`` shows it. All methods block until
    the file is read or written, and raise :class:`StoreError` if the file cannot be used.

    Files of earlier formats, of statistics or of served runs, are converted when they are opened.

    Args:
        path: the file, created when it is first needed; ``:memory:`` keeps everything in memory.
        keep_days: how long to keep records of :class:`ObservabilityHook`; see :meth:`prune`, which :meth:`add`
            then calls at most once an hour. ``None`` keeps everything.
        pinned: if the file is moved or deleted while it is open, refuse to write until it is back. Otherwise a new
            file is started at the path.
        synced: sync each commit to disk, so that it survives a power loss. Otherwise a power loss may undo the last
            commits; the end of a process never does.
        lease_seconds: how long a process may execute a durable run without renewing its lease; see
            docs/guides/durable.md.

    Raises:
        StoreError: the path, or the number of days, cannot be used.

    Example::

        store = RunStore("runs.db")
        for run in store.runs(limit=10):
            print(run.id, run.status, run.cost)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        keep_days: float | None = None,
        pinned: bool = False,
        synced: bool = False,
        lease_seconds: float = 15.0,
    ) -> None:
        if keep_days is not None:
            _check_days(keep_days)
        self.db = Database(
            path,
            contents="runs",
            application_id=_APPLICATION_ID,
            version=3,
            schema=(_RUNS, *_INDEXES, *_PARTS, *_SERVED, *_JOURNAL),
            upgrades={1: _FORMAT_1, 2: _JOURNAL},
            conversions={_SERVED_APPLICATION_ID: _SERVED_FORMAT},
            durable=synced,
            pinned=pinned,
        )
        self.journal = Journal(self.db, self.path, lease_seconds)
        self.push_subscriptions = PushSubscriptionStore(self.db)
        self.keep_days = keep_days
        self._pruned = float("-inf")

    @property
    def path(self) -> str:
        """Path of the file."""
        return self.db.path

    def open(self) -> None:
        """Make sure that the file exists and can be written.

        Raises:
            StoreError: the file cannot be used; the message says why, and what to do.
        """
        with self.db.transaction(write=True):
            pass

    def close(self) -> None:
        """Close the file."""
        self.db.close()

    # Writing.

    def add(self, runs: Iterable[RunRecord], parts: Mapping[str, Sequence[tuple[Any, ...]]]) -> None:
        """Store the records of an :class:`ObservabilityHook` in one transaction.

        The row of an existing run is replaced; the row of a served run is only marked as observed.

        Args:
            runs: the runs.
            parts: rows of the tables in ``PARTS``, with the values of all columns.

        Raises:
            StoreError: the file cannot be used.
        """
        rows = [(*msgspec.structs.astuple(run)[:-1], 1) for run in runs]
        with self.db.transaction(write=True) as db:
            for table, values in (("runs", rows), *parts.items()):
                _insert(db, table, values)
            if self.keep_days is not None and time.monotonic() > self._pruned + 3600:
                _prune(db, self.keep_days)
                self._pruned = time.monotonic()

    def write(self, runs: Iterable[RunRecord], events: Sequence[StoredEvent]) -> None:
        """Store runs of a server and their events, in one transaction. Runs and events that exist are replaced.

        Raises:
            StoreError: the file cannot be used.
        """
        with self.db.transaction(write=True) as db:
            _write(db, runs, events)

    def close_abandoned(
        self, id: str, last: Callable[[RunRecord, int], tuple[RunRecord, StoredEvent]]
    ) -> RunRecord | None:
        """End a served run whose process has ended, unless it has ended meanwhile; return the stored run.

        Args:
            id: the id of the run.
            last: returns the ended run and its last event, given the run and the number of that event.

        Raises:
            StoreError: the file cannot be used.
        """
        with self.db.transaction(write=True) as db:
            row = db.execute("SELECT * FROM runs WHERE run_id = ? AND transport != ''", (storable(id),)).fetchone()
            run = None if row is None else _record(row)
            if run is None or run.ended is not None:
                return run
            (seq,) = db.execute("SELECT max(seq) FROM events WHERE run_id = ?", (run.id,)).fetchone()
            over, event = last(run, (seq or 0) + 1)
            _write(db, [over], [event])
        return over

    def reserve(self, wanted: IdempotencyKey) -> tuple[IdempotencyKey, bool]:
        """Reserve a key for a run that is about to start.

        Returns the stored key, and whether its run exists. A key that another request has reserved is returned
        unchanged, unless the process of that request ended before its run was stored.

        Raises:
            StoreError: the file cannot be used.
        """
        values = tuple(map(_storable, msgspec.structs.astuple(wanted)))
        with self.db.transaction(write=True) as db:
            row = db.execute("SELECT * FROM idempotency_keys WHERE owner = ? AND key = ?", values[:2]).fetchone()
            held = None if row is None else IdempotencyKey(*row)
            if held is not None:
                if db.execute("SELECT 1 FROM runs WHERE run_id = ?", (held.run_id,)).fetchone():
                    return held, True
                if is_process_running(held.host, held.pid, held.at, held.born):
                    return held, False
            db.execute("INSERT OR REPLACE INTO idempotency_keys VALUES (?,?,?,?,?,?,?,?)", values)
        return wanted, False

    def release(self, run_id: str) -> None:
        """Delete the idempotency key of a run that was not started after all.

        Raises:
            StoreError: the file cannot be used.
        """
        with self.db.transaction(write=True) as db:
            db.execute("DELETE FROM idempotency_keys WHERE run_id = ?", (run_id,))

    def prune(self, days: float) -> int:
        """Delete the records of :class:`ObservabilityHook` about runs that ended more than ``days`` days ago.

        Runs that a server stored stay readable there until :meth:`prune_served` deletes them. Returns the number of
        runs.

        Raises:
            StoreError: ``days`` is not a positive number, or the file cannot be used.
        """
        _check_days(days)
        with self.db.transaction(write=True) as db:
            return _prune(db, days)

    def prune_served(self, days: float) -> int:
        """Delete the events and texts of served runs that ended more than ``days`` days ago; returns their number.

        The server no longer has these runs. If an :class:`ObservabilityHook` recorded such a run too, its numbers
        stay for the statistics until :meth:`prune` deletes them.

        Raises:
            StoreError: ``days`` is not a positive number, or the file cannot be used.
        """
        _check_days(days)
        before = time.time() - days * 24 * 3600
        query = "SELECT run_id FROM runs WHERE transport != '' AND created < ? AND ended < ? LIMIT ?"
        kind = "substr(error, 1, instr(error || ':', ':') - 1)"
        pruned, more = 0, True
        while more:  # a few runs per transaction, so that other processes can write in between
            with self.db.transaction(write=True) as db:
                old = db.execute(query, (before, before, _PRUNED_AT_ONCE)).fetchall()
                for table in ("events", "idempotency_keys", "pushes"):
                    db.executemany(f"DELETE FROM {table} WHERE run_id = ?", old)
                db.executemany("DELETE FROM runs WHERE run_id = ? AND NOT observed", old)
                db.executemany(
                    f"""UPDATE runs SET owner = '', session = '', transport = '', task = '', reply = '', reason = '',
                    last_seq = 0, error = iif(instr({kind}, ' '), '', {kind}) WHERE run_id = ?""",
                    old,
                )
            pruned += len(old)
            more = len(old) == _PRUNED_AT_ONCE
        return pruned

    # Reading.

    def get(self, id: str) -> RunRecord | None:
        """Return the run with this id, or ``None``.

        Raises:
            StoreError: the file cannot be used.
        """
        with self.db.transaction() as db:
            row = db.execute("SELECT * FROM runs WHERE run_id = ?", (storable(id),)).fetchone()
        return None if row is None else _record(row)

    def find(self, run_id: str) -> RunRecord:
        """Return the run with this id or an unambiguous prefix of it, with or without ``run_``; ``last`` is the newest.

        Raises:
            StoreError: no run, or more than one, has such an id; or the file cannot be used.
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
        return _record(found[0])

    def runs(self, limit: int = 20, *, before: str = "", **chosen: Unpack[RunFilter]) -> list[RunRecord]:
        """Return runs, newest first.

        Args:
            limit: the maximum number of runs. With ``served=True`` there are fewer if their texts are long: see
                :func:`page_of`.
            before: the id of a run: only runs that come after it in the list.
            chosen: which runs: see :class:`RunFilter`.

        Raises:
            StoreError: the file cannot be used.
        """
        source, values = _chosen(chosen)
        if before:
            source += " AND (created, run_id) < (SELECT created, run_id FROM runs WHERE run_id = ?)"
            values.append(storable(before))
        found, size = list[RunRecord](), 0
        with self.db.transaction() as db:
            query = f"SELECT * FROM {source} ORDER BY created DESC, run_id DESC LIMIT ?"
            for run in _records(db.execute(query, (*values, limit))):
                found.append(run)
                size += _size(run)
                if chosen.get("served") and size > PAGE_SIZE and len(found) > 1:
                    break
        return found

    def count(self, **chosen: Unpack[RunFilter]) -> int:
        """Return the number of runs.

        Args:
            chosen: which runs: see :class:`RunFilter`.

        Raises:
            StoreError: the file cannot be used.
        """
        source, values = _chosen(chosen)
        with self.db.transaction() as db:
            (found,) = db.execute(f"SELECT count(*) FROM {source}", values).fetchone()
        return int(found)

    def abandoned(self) -> list[RunRecord]:
        """Return the served runs that have not ended, but whose process has.

        Raises:
            StoreError: the file cannot be used.
        """
        source, values = _chosen({"served": True, "states": OPEN_STATES})
        with self.db.transaction() as db:
            return [run for run in _records(db.execute(f"SELECT * FROM {source}", values)) if run.is_abandoned]

    def events(self, run_id: str, after: int = 0, limit: int = 500, size: int = PAGE_SIZE) -> list[StoredEvent]:
        """Return at most ``limit`` events and ``size`` bytes of a served run, after the number ``after``.

        The first event is always returned, even if it is larger than ``size``.

        Raises:
            StoreError: the file cannot be used.
        """
        query = "SELECT * FROM events WHERE run_id = ? AND seq > ? ORDER BY seq LIMIT ?"
        with self.db.transaction() as db:
            return limit_bytes((StoredEvent(*row) for row in db.execute(query, (storable(run_id), after, limit))), size)

    def calls(self, run_id: str) -> list[CallRow]:
        """Return the model calls and tool calls of a run, in the order in which they began.

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
        """Return results of hooks in a run, in order.

        Raises:
            StoreError: the file cannot be used.
        """
        with self.db.transaction() as db:
            found = db.execute("SELECT * FROM verdicts WHERE run_id = ? ORDER BY at, rowid", (run_id,))
            return [VerdictRow(*row[1:]) for row in found]


def limit_bytes(events: Iterable[StoredEvent], size: int) -> list[StoredEvent]:
    """Return the first events up to a total of ``size`` bytes, and at least one event."""
    found: list[StoredEvent] = []
    for event in events:
        found.append(event)
        size -= len(event.data)
        if size <= 0:
            break
    return found


def page_of(found: Sequence[RunRecord], limit: int) -> Sequence[RunRecord]:
    """Return the runs of one page.

    ``found`` is the result of :meth:`RunStore.runs` with ``limit + 1``. If the page is shorter than ``found``, further
    runs exist.
    """
    is_long = len(found) > 1 and sum(map(_size, found)) > PAGE_SIZE
    return found[: min(limit, len(found) - 1) if is_long else limit]


def _size(run: RunRecord) -> int:
    return len(run.task) + len(run.reply) + len(run.error) + len(run.reason)


def _record(row: Sequence[Any]) -> RunRecord:
    return next(_records([row]))


def _records(rows: Iterable[Sequence[Any]]) -> Iterator[RunRecord]:
    """Decode rows of the table. Unfinished runs whose process has ended become ``interrupted``."""
    known: dict[tuple[Any, ...], bool] = {}  # many open runs may belong to one process: check it once
    for row in rows:
        fields: list[Any] = [*row[:-1], bool(row[-1])]
        run = RunRecord(*fields)
        if run.status in OPEN_STATES:
            process = (run.host, run.pid, run.born, run.created if run.born is None else None)
            if process not in known:
                known[process] = is_process_running(run.host, run.pid, run.created, run.born)
            if not known[process]:
                run = msgspec.structs.replace(run, status="interrupted")
        yield run


def _chosen(chosen: RunFilter) -> tuple[str, list[Any]]:
    """Return SQL for the table and the condition of a query, and its values."""
    table = "runs"
    states, since = chosen.get("states", ()), chosen.get("since", 0.0)
    wanted: list[tuple[str, Sequence[Any]]] = [("transport != ''" if chosen.get("served") else "1", ())]
    if (owner := chosen.get("owner")) is not None:
        wanted.append(("owner = ?", (storable(owner),)))
    named = {"agent": chosen.get("agent"), "session": chosen.get("session"), "session_id": chosen.get("session_id")}
    wanted += [(f"{column} = ?", (storable(value),)) for column, value in named.items() if value]
    if states:
        wanted.append((f"status IN ({','.join('?' * len(states))})", states))
        if set(states) <= {*OPEN_STATES}:
            # Few runs are open at any time. Without this hint, SQLite would scan all runs of an owner.
            table = "runs INDEXED BY open_runs"
            wanted.append(("ended IS NULL", ()))
        elif not {*states} & {*OPEN_STATES}:
            wanted.append(("ended IS NOT NULL", ()))
    if since:
        wanted.append(("coalesce(ended, started, created) >= ?", (since,)))
    condition = " AND ".join(each for each, _ in wanted)
    return f"{table} WHERE {condition}", [value for _, given in wanted for value in given]


def _write(db: sqlite3.Connection, runs: Iterable[RunRecord], events: Sequence[StoredEvent]) -> None:
    rows = [tuple(map(_storable, msgspec.structs.astuple(run))) for run in runs]
    db.executemany(_SERVED_ROW, rows)
    db.executemany("INSERT OR REPLACE INTO events VALUES (?,?,?,?,?)", map(msgspec.structs.astuple, events))


def _prune(db: sqlite3.Connection, days: float) -> int:
    before = {"before": time.time() - days * 24 * 3600}
    old = "observed AND created < :before AND coalesce(ended, created) < :before"
    if db.execute(f"SELECT 1 FROM runs WHERE {old} LIMIT 1", before).fetchone() is None:
        return 0  # the usual case, which is fast: runs have an index by time, while the other tables are scanned
    for table in PARTS:
        db.execute(f"DELETE FROM {table} WHERE run_id IN (SELECT run_id FROM runs WHERE {old})", before)
    deleted = db.execute(f"DELETE FROM runs WHERE transport = '' AND {old}", before).rowcount
    return deleted + db.execute(f"UPDATE runs SET observed = 0 WHERE {old}", before).rowcount


_COLUMNS = ("run_id", *RunRecord.__struct_fields__[1:])
_CHANGING = [column for column in _COLUMNS if column not in ("run_id", "transport", "observed")]
_SERVED_ROW = f"""INSERT INTO runs VALUES ({",".join("?" * len(_COLUMNS))}) ON CONFLICT (run_id) DO UPDATE SET
    transport = excluded.transport, {", ".join(f"{column} = excluded.{column}" for column in _CHANGING)}"""
_OBSERVED_ROW = f"""ON CONFLICT (run_id) DO UPDATE SET observed = 1,
    {", ".join(f"{column} = iif(transport = '', excluded.{column}, {column})" for column in _CHANGING)}"""


@lru_cache
def _insertion(table: str, columns: int, rows: int) -> str:
    row = f"({','.join('?' * columns)})"
    return f"INSERT INTO {table} VALUES {','.join([row] * rows)} {_OBSERVED_ROW if table == 'runs' else ''}"


def _insert(db: sqlite3.Connection, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
    waiting = iter(rows)
    left = len(rows)
    for size in _CHUNKS:
        while left >= size:
            chunk = list(islice(waiting, size))
            statement, values = _insertion(table, len(chunk[0]), size), tuple(chain.from_iterable(chunk))
            try:
                db.execute(statement, values)
            except _UNSTORABLE:  # one value that SQLite cannot store must not lose the other rows
                db.execute(statement, tuple(map(_storable, values)))
            left -= size


def _storable(value: Any) -> Any:
    """Convert a value that SQLite cannot store: lone surrogates, integers beyond 64 bits, other types."""
    if value is None or isinstance(value, float):
        return value
    if isinstance(value, int):
        return max(-_LARGEST, min(value, _LARGEST))
    return storable(value if isinstance(value, str) else str(value))


def _check_days(days: object) -> None:
    if not is_number(days) or not 0 < days < 1e6:  # type: ignore[operator]
        raise StoreError(f"the number of days must be positive and below a million, not {days!r:.80}")
