"""The journals of durable runs, in the file of the run store (DESIGN 6.17).

A run belongs to one process at a time, until its lease ends. Each time another process takes it, its epoch grows; every
write names the epoch and is refused if it is not the current one. The entries of a journal and the events that readers
see are written in one transaction. On PostgreSQL that is one statement: a process that is paused while it writes
holds no lock. A write only reads the row of the run: changing that row would copy the input of the run each time.

This is not a queue: it says who executes a run, not which run comes next.

A durable run is in the list of runs from its first claim on, also if nothing else records it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from typing import Any

import msgspec

from .._base.text import is_number
from .._run.journal import (
    RUN_STATUSES,
    Append,
    Claim,
    LeaseLostError,
    RunHeldError,
    RunPinnedError,
    StoredRun,
    with_format,
)
from .._sensitive.encryption import DataKeyError, decrypted, encrypted, is_encrypted
from .errors import StoreError
from .group_commit import GroupCommit
from .leases import NOW, database_time
from .retention import AT_ONCE, among, delete_runs
from .run_texts import add_text
from .sql import LAST_CHARACTER, Connection, Database, Owner, insert, is_same, storable

SCHEMA = (
    """CREATE TABLE durable_runs (
        run_id TEXT PRIMARY KEY, agent TEXT NOT NULL, status TEXT NOT NULL, epoch INTEGER NOT NULL, lease REAL NOT NULL,
        host TEXT NOT NULL, pid INTEGER NOT NULL, born REAL, attempts INTEGER NOT NULL, created REAL NOT NULL,
        changed REAL NOT NULL, start BLOB NOT NULL, result BLOB, digest TEXT NOT NULL
    )""",
    "CREATE INDEX durable_runs_by_status ON durable_runs (status, changed)",
    "CREATE INDEX durable_runs_by_change ON durable_runs (changed, run_id)",
    """CREATE TABLE journal (
        run_id TEXT NOT NULL, seq INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (run_id, seq)
    )""",
    "CREATE TABLE durable_totals (name TEXT PRIMARY KEY, count INTEGER NOT NULL, seconds REAL NOT NULL)",
)

_FIELDS = "run_id, agent, status, epoch, lease, host, pid, born, attempts, created, changed, start, result, digest"
_JOURNAL = "SELECT data FROM journal WHERE run_id = ? ORDER BY seq"
_entries = msgspec.json.Decoder(list[msgspec.Raw])
_MANY_EVENTS = 50
_MARKS = ",".join("?" * len(RUN_STATUSES))
_abandoned: set[tuple[str, str, int]] = set()
"""Path of the database, id and epoch of the runs that this process ceased to execute without ending their leases."""


class Journal:
    """The journals in a run store. All methods block, and raise ``StoreError`` if the database cannot be used.

    Args:
        db: the database of the run store.
        lease_seconds: how long a process may execute a run without renewing its lease. If the process ends without a
            trace, another one can continue the run after this time.
        group: writes to the database.
    """

    def __init__(self, db: Database, lease_seconds: float, group: GroupCommit) -> None:
        if not is_number(lease_seconds) or not 0 < lease_seconds < 1e6:
            raise StoreError(f"lease_seconds must be a positive number, not {lease_seconds!r:.80}")
        self._db, self._group = db, group
        self.lease_seconds = lease_seconds
        # On PostgreSQL, the row stays locked, so a write of the process that had the run is over or is refused.
        clock, lock = (NOW, " FOR UPDATE") if db.is_shared else ("NULL", "")
        self._claimed = f"SELECT {_FIELDS}, {clock} FROM durable_runs WHERE run_id = ?{lock}"

    def get(self, run_id: str) -> StoredRun | None:
        """Return a durable run, or ``None``."""
        rows = self._db.execute(f"SELECT {_FIELDS} FROM durable_runs WHERE run_id = ?", (run_id,))
        return _stored(rows[0]) if rows else None

    def runs(self, *statuses: str, limit: int = 100, with_input: bool = True) -> list[StoredRun]:
        """Return durable runs, those that changed last first.

        Args:
            statuses: only runs that have one of these.
            limit: maximum number of runs.
            with_input: read the input of each run, which may be large; otherwise ``start`` is empty.
        """
        fields = _FIELDS if with_input else _FIELDS.replace(" start,", " CAST('' AS BLOB),")
        where = f"WHERE status IN ({','.join('?' * len(statuses))})" if statuses else ""
        query = f"SELECT {fields} FROM durable_runs {where} ORDER BY changed DESC, run_id DESC LIMIT ?"
        return [_stored(row) for row in self._db.execute(query, (*statuses, limit))]

    def find(self, *beginnings: str, limit: int = 2) -> list[StoredRun]:
        """Return the durable runs whose ids begin with one of these texts, in the order of their ids."""
        condition = " OR ".join(["run_id >= ? AND run_id < ?"] * len(beginnings))
        values = [value for start in beginnings for value in (start, f"{start}{LAST_CHARACTER}")]
        query = f"SELECT {_FIELDS} FROM durable_runs WHERE {condition} ORDER BY run_id LIMIT ?"
        return [_stored(row) for row in self._db.execute(query, (*values, limit))]

    def newest(self) -> list[StoredRun]:
        """Return the durable run that was created last; an empty list if there is none."""
        query = f"SELECT {_FIELDS} FROM durable_runs ORDER BY created DESC, run_id DESC LIMIT 1"
        return [_stored(row) for row in self._db.execute(query)]

    def is_held(self, run: StoredRun) -> bool:
        """Whether a process executes the run, or did so until a moment ago."""
        with self._db.transaction() as db:
            now = database_time(self._db, db)
        return self._is_held(run, now)

    def _is_held(self, run: StoredRun, now: float) -> bool:
        if self._is_abandoned(run):
            return False
        return run.lease > now and self._db.leases.is_held(run.host, run.pid, run.changed, run.born)

    def states(self) -> dict[str, int]:
        """Return the number of unfinished durable runs by status. ``expired`` runs have lost their process."""
        expired = "CASE WHEN status = 'running' AND lease < ? THEN 'expired' ELSE status END"
        query = f"""SELECT {expired}, count(*) FROM durable_runs
            WHERE status IN ('new', 'running', 'waiting', 'interrupted') GROUP BY 1"""
        with self._db.transaction() as db:
            found = dict(db.execute(query, (database_time(self._db, db),)).fetchall())
        return {state: found.get(state, 0) for state in ("new", "running", "expired", "waiting", "interrupted")}

    def totals(self) -> dict[str, tuple[int, float]]:
        """Return how often, and for how many seconds in total, since the database was created.

        ``takeovers``: a process took a run whose process had vanished; the time since the last sign of that process.
        ``recoveries``: a process continued a run that another had begun; the time from its claim to its first write.
        """
        rows = self._db.execute("SELECT name, count, seconds FROM durable_totals")
        return {"takeovers": (0, 0.0), "recoveries": (0, 0.0)} | {name: (n, seconds) for name, n, seconds in rows}

    def claim(self, run_id: str, agent: str, start: bytes, digest: str = "", *, to_end: bool = False) -> Claim:
        """Take the lease of a run. A run that does not exist is created with ``start``.

        The returned claim has the entries of the journal. A run that has ended is returned with its result, and
        without a lease. With a ``digest``, the run is claimed only if it has the same one, or has not begun. A claim
        ``to_end`` the run without executing it has no entries, so the format of the journal does not matter.

        Raises:
            RunHeldError: another process executes the run.
            JournalFormatError: the journal has another format.
            RunPinnedError: the run has another digest.
            DataKeyError: the journal is encrypted, and this process does not have the key.
        """
        owner = self._db.leases.owner()

        def work(db: Connection) -> Claim:
            if start:
                _create_listed(db, run_id, agent, start)
            return self.claim_in(db, owner, run_id, digest, to_end=to_end)

        claim = self._group.do(run_id, work)
        self.claimed(claim)
        return claim

    def claim_in(self, db: Connection, owner: Owner, run_id: str, digest: str, *, to_end: bool = False) -> Claim:
        """Take the lease of a run inside a transaction; :meth:`claimed` follows it.

        Raises:
            RunHeldError: another process executes the run.
            JournalFormatError: the journal has another format.
            RunPinnedError: the run has another digest.
        """
        row = db.execute(self._claimed, (run_id,)).fetchone()
        if row is None:
            raise StoreError(f"there is no durable run {run_id!r:.80} in {self._db.path}")
        run, now = _stored(row[:-1]), row[-1] if self._db.is_shared else time.time()
        if run.lease > now and self._is_abandoned(run):  # as if its lease had been ended
            run = msgspec.structs.replace(run, status="interrupted", attempts=0)
        if run.is_over:
            run.check_key()
            return Claim(run, 0, 0, ())
        if self._is_held(run, now):
            raise RunHeldError(run_id, run.host, run.pid, run.lease - now)
        if not to_end:
            run.check_key()
            run.check_format()
        if digest and run.digest not in ("", digest):
            raise RunPinnedError(run_id, run.digest)
        is_readable = not is_encrypted(run.start)
        first = (encrypted(with_format(run.start)),) if is_readable and not run.epoch else ()
        (last_event,) = db.execute(
            f"""UPDATE durable_runs SET status = 'running', epoch = epoch + 1, attempts = ?, lease = ?,
            host = ?, pid = ?, born = ?, changed = ?, result = NULL, digest = ?{", start = ?" * len(first)}
            WHERE run_id = ?
            RETURNING (SELECT seq FROM events WHERE run_id = ? ORDER BY seq DESC LIMIT 1)""",
            (run.attempts + 1, now + self.lease_seconds, *owner, now, digest or run.digest, *first, run_id, run_id),
        ).fetchone()
        rows = db.execute(_JOURNAL, (run_id,)).fetchall() if run.epoch and not to_end else []
        if run.status == "running":  # its process has not released it
            _count(db, "takeovers", now - run.changed)
        return Claim(run, run.epoch + 1, last_event or 0, _split(run_id, rows))

    def claimed(self, claim: Claim) -> None:
        """Note that a claim is committed."""
        _abandoned.discard((self._db.path, claim.run.run_id, claim.run.epoch))

    def entries(self, run_id: str) -> tuple[bytes, ...]:
        """Return the entries of a run, which may have ended."""
        return _split(run_id, self._db.execute(_JOURNAL, (run_id,)))

    def renew(self, run_id: str, epoch: int) -> None:
        """Extend the lease.

        Raises:
            LeaseLostError: another process has taken the run.
        """
        now = NOW if self._db.is_shared else str(time.time())
        renewed = self._db.execute(
            f"UPDATE durable_runs SET lease = {now} + ?, changed = {now} WHERE run_id = ? AND epoch = ? RETURNING 1",
            (self.lease_seconds, run_id, epoch),
            write=True,
        )
        if not renewed:
            raise LeaseLostError(run_id)

    def append(
        self,
        write: Append,
        *,
        row: tuple[str, Sequence[Any]] | None = None,
        also: Callable[[Connection], object] | None = None,
    ) -> None:
        """Write entries and events.

        Args:
            write: what to write.
            row: a row to write in the same transaction: a statement and its values, see ``run_row``.
            also: writes more in the same transaction.

        Raises:
            LeaseLostError: another process has taken the run.
        """
        more = [] if also is None else [also]
        if (following := write.following) is not None:
            more.append(lambda db: _create_listed(db, *following))
        if row is None and write.status in RUN_STATUSES:
            more.append(lambda db: _index_reply(db, write.run_id))
        statement, values = _append_statement(write, row) if self._db.is_shared else ("", [])

        def check(held: Sequence[Any]) -> None:
            if not held:
                raise LeaseLostError(write.run_id)

        def work(db: Connection) -> None:
            if self._db.is_shared:
                check(db.execute(statement, values).fetchall())
            else:
                _append(db, write, row)
            for each in more:
                each(db)

        def alone() -> None:
            check(self._db.execute(statement, values, write=True))

        is_one_statement = self._db.is_shared and not more and not write.records
        self._group.do(write.run_id, work, write.records, alone=alone if is_one_statement else None)
        if write.events:
            self._db.announce(write.run_id)

    def is_in(self, database: Database) -> bool:
        """Whether the journals are in this database."""
        return is_same(self._db, database)

    def discount(self, run_id: str, epoch: int) -> None:
        """Do not count the attempt with this epoch: its process lost the database and the lease, but has not ended."""
        self._db.execute(
            """UPDATE durable_runs SET attempts = attempts - 1
            WHERE run_id = ? AND epoch > ? AND attempts > 1 AND status = 'running' RETURNING 1""",
            (run_id, epoch),
            write=True,
        )

    def abandon(self, run_id: str, epoch: int) -> None:
        """Let this process claim a run again, although the database could not be used to end its lease.

        Other processes can claim it when the lease has expired.
        """
        if not self._db.in_memory:
            _abandoned.add((self._db.path, run_id, epoch))

    def _is_abandoned(self, run: StoredRun) -> bool:
        return not self._db.in_memory and (self._db.path, run.run_id, run.epoch) in _abandoned

    def unpin(self, run_id: str) -> bool:
        """Let processes with other hooks, instructions or tools continue a run. Return false if it is being executed.

        Recovery still compares everything that the run did with its journal, and stops where it differs.
        """
        with self._db.transaction(write=True, lock=run_id) as db:
            changed = db.execute(
                "UPDATE durable_runs SET digest = '' WHERE run_id = ? AND lease < ?",
                (run_id, database_time(self._db, db)),
            )
        return changed.rowcount == 1

    def delete(self, run_id: str) -> bool:
        """Delete a durable run that has ended or is suspended, with its journal and its events."""
        return self._delete([run_id]) == 1

    def prune(self, days: float, prefix: str = "") -> int:
        """Delete the durable runs that ended more than ``days`` days ago, and whose ids begin with ``prefix``.

        Returns their number.
        """
        query = f"""SELECT run_id FROM durable_runs WHERE changed < ? AND status IN ({_MARKS})
            AND run_id >= ? AND run_id < ?"""
        values = time.time() - days * 24 * 3600, *RUN_STATUSES, prefix, f"{prefix}{LAST_CHARACTER}"
        ids = [id for (id,) in self._db.execute(query, values)]
        return sum(self._delete(ids[first : first + AT_ONCE]) for first in range(0, len(ids), AT_ONCE))

    def _delete(self, ids: Sequence[str]) -> int:
        """Delete durable runs that no process executes, in one transaction. Return their number."""
        with self._db.transaction(write=True, lock=None) as db:
            statement = f"DELETE FROM durable_runs WHERE {among(ids)} AND lease < ? RETURNING run_id"
            free = [id for (id,) in db.execute(statement, (*ids, database_time(self._db, db))).fetchall()]
            if free:
                served = db.execute(f"SELECT run_id FROM runs WHERE {among(free)} AND transport != ''", free).fetchall()
                delete_runs(db, free, ("journal",))
                delete_runs(db, sorted({*free}.difference(id for (id,) in served)), ("events",))
                listed = f"DELETE FROM runs WHERE {among(free)} AND {_ONLY_JOURNAL} RETURNING run_id"
                unserved = (
                    f"UPDATE runs SET task = '', reply = '' WHERE {among(free)} AND transport = '' RETURNING run_id"
                )
                gone = [*db.execute(listed, free).fetchall(), *db.execute(unserved, free).fetchall()]
                delete_runs(db, [id for (id,) in gone], ("run_texts",))
        return len(free)


def create(db: Connection, runs: Sequence[tuple[str, str, bytes, float]]) -> None:
    """Create runs inside a transaction, unless they exist: each has an id, an agent, an input and a Unix time."""
    rows = [
        (id, agent, "new", 0, 0.0, "", 0, None, 0, now, now, encrypted(start), None, "")
        for id, agent, start, now in runs
    ]
    insert(db, "durable_runs", _FIELDS.split(", "), rows, "ON CONFLICT (run_id) DO NOTHING")


def count_new(db: Connection) -> int:
    """Return the number of durable runs that no process has begun."""
    (count,) = db.execute("SELECT count(*) FROM durable_runs WHERE status = 'new'").fetchone()
    return int(count)


class _Ids(msgspec.Struct):
    task_id: str = ""
    correlation_id: str = ""
    session_id: str = ""


class _Head(msgspec.Struct):
    """What the list of runs says about a durable run when it begins."""

    ids: _Ids = msgspec.field(default_factory=_Ids)
    task: str = ""
    origin: str = ""
    listed: str | None = None


class _Used(msgspec.Struct):
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0


class _Stop(msgspec.Struct):
    kind: str = ""


class _Result(msgspec.Struct):
    """What the list of runs says about a durable run when it has ended."""

    reply: str = ""
    steps: list[msgspec.Raw] = []
    tool_calls: int = 0
    usage: _Used = msgspec.field(default_factory=_Used)
    cost: float | None = None
    elapsed: float | None = None
    stop: _Stop | None = None

    @property
    def values(self) -> tuple[Any, ...]:
        stop, used = "" if self.stop is None else self.stop.kind, self.usage
        tokens = used.input_tokens, used.output_tokens, used.cached_tokens
        return stop, len(self.steps), self.tool_calls, *tokens, self.cost, self.elapsed


class _Finished(msgspec.Struct):
    result: _Result = msgspec.field(default_factory=_Result)


_heads = msgspec.json.Decoder(_Head)
_results = msgspec.json.Decoder(_Finished)
_ONLY_JOURNAL = "transport = '' AND observed = 0"
"""The condition that neither a server nor a hook writes the row of a run in the list of runs."""
_LISTED = """INSERT INTO runs (run_id, agent, owner, session, session_id, task_id, correlation_id, transport, task,
    status, reply, error, reason, stop, steps, tool_calls, input_tokens, output_tokens, cached_tokens, cost, created,
    started, last_seq, parent_run_id, host, pid, observed, origin)
    VALUES (?, ?, '', '', ?, ?, ?, '', ?, 'running', '', '', '', '', 0, 0, 0, 0, 0, NULL, ?, ?, 0, '', '', 0, 0, ?)
    ON CONFLICT (run_id) DO NOTHING"""
_OUTCOME = ("status", "ended", "stop", "steps", "tool_calls", "input_tokens", "output_tokens", "cached_tokens")
_LISTED_STATUS = f"""UPDATE runs SET reply = ?,
    {", ".join(f"{c} = CASE WHEN observed = 0 THEN ? ELSE {c} END" for c in (*_OUTCOME, "cost", "elapsed"))}
    WHERE run_id {{}} AND transport = ''"""
"""A hook that observes a run writes its outcome, too, but not its texts."""


def _create_listed(db: Connection, run_id: str, agent: str, start: bytes) -> None:
    """Create a run inside a transaction and add it to the list of runs, unless a server has done so."""
    now, head = time.time(), _heads.decode(start)
    create(db, [(run_id, agent, start, now)])
    ids = head.ids
    about = storable(ids.session_id), storable(ids.task_id or run_id), storable(ids.correlation_id or run_id)
    task = head.task if head.listed is None else head.listed
    db.execute(_LISTED, (run_id, agent, *about, storable(task), now, now, head.origin))
    add_text(db, run_id, now, "", agent, task)


def _listed_status(write: Append) -> list[Any]:
    """Return the values of a write with a status for the list of runs."""
    is_over, result = write.status in RUN_STATUSES, _Result()
    if is_over and write.result:
        with suppress(msgspec.MsgspecError):  # a gateway stores other results
            result = _results.decode(write.result).result
    return [storable(result.reply), write.status, time.time() if is_over else None, *result.values]


def _index_reply(db: Connection, run_id: str) -> None:
    """Make the reply of a run that no server served searchable, inside the transaction that ends the run."""
    query = "SELECT created, agent, task, reply FROM runs WHERE run_id = ? AND transport = '' AND reply != ''"
    for created, agent, task, reply in db.execute(query, (run_id,)).fetchall():
        add_text(db, run_id, created, "", agent, task, reply, replace=True)


def _status_change(write: Append) -> tuple[str, list[Any]]:
    """Return the columns that a write with a status sets, and their values."""
    suspended = ", attempts = 0" if write.status in ("waiting", "interrupted") else ""  # the process did not crash
    result = write.result
    if result is not None and write.status in RUN_STATUSES:  # the calls that a suspended run waits for are only ids
        result = encrypted(result)
    return f"status = ?, result = ?, changed = ?, lease = 0{suspended}", [write.status, result, time.time()]


def _joined(entries: Sequence[bytes]) -> bytes:
    """Return the entries of a write as one JSON array, encrypted if there is a key.

    One row for all of them is much faster than a row for each.
    """
    return encrypted(b"[" + b",".join(entries) + b"]")


_HELD = "run_id = ? AND epoch = ? AND status = 'running'"
"""The run, if this process may write to it. A process that does not know whether its last write was stored gives the
run back; if that write was the end of the run, the run stays as it is."""


def _append(db: Connection, write: Append, row: tuple[str, Sequence[Any]] | None) -> None:
    """Write to the journal inside a transaction of SQLite."""
    run_id = write.run_id
    if db.execute(f"SELECT 1 FROM durable_runs WHERE {_HELD}", (run_id, write.epoch)).fetchone() is None:
        raise LeaseLostError(run_id)
    if write.status:
        fields, values = _status_change(write)
        db.execute(f"UPDATE durable_runs SET {fields} WHERE run_id = ?", (*values, run_id))
        if row is None:
            db.execute(_LISTED_STATUS.format("= ?"), (*_listed_status(write), run_id))
    if write.entries:
        db.execute(
            "INSERT INTO journal (run_id, seq, data) VALUES (?,?,?)", (run_id, write.seq, _joined(write.entries))
        )
    if write.events:
        statement = "INSERT INTO events (run_id, seq, type, at, data) VALUES (?,?,?,?,?)"
        db.executemany(statement, [(run_id, *event) for event in write.events])
    if row is not None:
        db.execute(row[0].format(source=""), row[1])
    if write.recovery_seconds is not None:
        _count(db, "recoveries", write.recovery_seconds)


def _split(run_id: str, rows: Sequence[Any]) -> tuple[bytes, ...]:
    what = f"the journal of run {run_id}"
    return tuple([bytes(entry) for (data,) in rows for entry in _entries.decode(decrypted(bytes(data), what))])


def _stored(row: Sequence[Any]) -> StoredRun:
    """Return a run from its row. What this process has no key for stays encrypted, so that all runs can be listed."""
    run = StoredRun(*row)
    if not is_encrypted(run.start) and not is_encrypted(run.result or b""):
        return run
    with suppress(DataKeyError):
        start = decrypted(run.start, run.run_id)
        result = None if run.result is None else decrypted(run.result, run.run_id)
        return msgspec.structs.replace(run, start=start, result=result)
    return run


def _append_statement(write: Append, row: tuple[str, Sequence[Any]] | None) -> tuple[str, list[Any]]:
    """Return the statement of PostgreSQL for a write, and its values. It returns a row if the epoch is current."""
    held, values = f"SELECT run_id FROM durable_runs WHERE {_HELD} FOR UPDATE", list[Any]()
    if write.status:
        fields, values = _status_change(write)
        held = f"UPDATE durable_runs SET {fields} WHERE {_HELD} RETURNING run_id"
    parts = [f"held AS ({held})"]
    values += write.run_id, write.epoch
    if write.entries:
        parts.append("entries AS (INSERT INTO journal (run_id, seq, data) SELECT run_id, ?, ? FROM held)")
        values += write.seq, _joined(write.entries)
    if write.events:
        rows = _event_rows(len(write.events))
        into = "INSERT INTO events (run_id, seq, type, at, data)"
        parts.append(f"events AS ({into} SELECT run_id, added.* FROM held, {rows} AS added)")
        if len(write.events) > _MANY_EVENTS:
            values += map(list, zip(*write.events, strict=True))
        else:
            values += chain.from_iterable(write.events)
    if row is not None:
        parts.append(f"run AS ({row[0].format(source='FROM held')})")
        values += row[1]
    elif write.status:
        parts.append(f"listed AS ({_LISTED_STATUS.format('IN (SELECT run_id FROM held)')})")
        values += _listed_status(write)
    if write.recovery_seconds is not None:
        parts.append(f"total AS ({_COUNT.format(source='FROM held')})")
        values += "recoveries", max(0.0, write.recovery_seconds)
    return f"WITH {', '.join(parts)} SELECT 1 FROM held", values


_EVENT_TYPES = ("bigint", "text", "double precision", "bytea")


@lru_cache(maxsize=_MANY_EVENTS + 1)
def _event_rows(count: int) -> str:
    """Return the rows of events in a statement of PostgreSQL. Arrays cost more, but have no maximum size."""
    if count > _MANY_EVENTS:
        return f"unnest({', '.join(f'?::{each}[]' for each in _EVENT_TYPES)})"
    typed = f"({', '.join(f'?::{each}' for each in _EVENT_TYPES)})"
    return f"(VALUES {', '.join([typed] * count)})"


_COUNT = """INSERT INTO durable_totals (name, count, seconds)
    SELECT ?, 1, CAST(? AS DOUBLE PRECISION) {source} WHERE true
    ON CONFLICT (name) DO UPDATE SET
    count = durable_totals.count + 1, seconds = durable_totals.seconds + excluded.seconds"""


def _count(db: Connection, name: str, seconds: float) -> None:
    db.execute(_COUNT.format(source=""), (name, max(0.0, seconds)))
