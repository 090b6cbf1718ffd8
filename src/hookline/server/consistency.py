"""Find rows about durable runs that contradict each other, and repair them.

Everything that belongs together is written in one transaction, so such rows are the work of other programs, of a
restored backup of a part of the tables, or of a fault in Hookline.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Literal

import msgspec

from .._run.journal import RUN_STATUSES, StoredRun, waiting_calls
from ..stores.leases import database_time
from ..stores.runs import DURABLE, IN_TURN, QueuedRun, RunStore
from ..stores.sql import Connection
from .postgres_queue import SHARE, PostgresQueue, delete_waiting_job, jobs_of

SETTLED_SECONDS = 60.0
"""Seconds after which rows must agree. Jobs of runs that have just ended are still in the queue, for example."""
CHECK_SECONDS = 300.0
"""Seconds for which the numbers of a check are exported."""
MAX_FOUND = 1000
"""Maximum number of contradictions of a kind that are found at once."""

Kind = Literal["open_journal", "lost_job", "stale_job", "orphan_key", "orphan_approval", "unreadable_wait"]

_ABOUT: dict[Kind, tuple[str, str]] = {
    "open_journal": ("has ended, but its journal is open", "end the journal, so that nothing of the run is repeated"),
    "lost_job": ("is queued, but no job is in the queue", "queue it again"),
    "stale_job": ("has ended or was deleted, but has a job in the queue", "delete the job"),
    "orphan_key": ("does not exist, but an idempotency key belongs to it", "delete the key"),
    "orphan_approval": ("has ended or was deleted, but a call of it waits for approval", "cancel the call"),
    "unreadable_wait": (
        "waits for approvals that cannot be read",
        "let it go on from its journal: it asks again, and decisions that were made still count",
    ),
}
_OPEN = "('new', 'running', 'waiting', 'interrupted')"
_OPEN_JOURNAL = f"""SELECT d.run_id FROM durable_runs d JOIN runs r ON r.run_id = d.run_id
    WHERE d.status IN {_OPEN} AND d.lease < :now AND d.changed < :settled AND r.ended IS NOT NULL AND r.host = :durable
    ORDER BY d.run_id LIMIT :most"""
_END_JOURNAL = f"""UPDATE durable_runs SET status = ?, result = ?, lease = 0, epoch = epoch + 1, changed = ?
    WHERE run_id = ? AND status IN {_OPEN} AND lease < ?"""
_LOST_JOB = f"""SELECT r.run_id FROM durable_runs d JOIN runs r ON r.run_id = d.run_id
    WHERE d.status IN ('new', 'interrupted') AND d.changed < :settled AND r.host = :durable AND r.status = 'queued'
    AND NOT EXISTS (SELECT 1 FROM {{jobs}} j WHERE j.queueing_lock = r.run_id AND j.status IN ('todo', 'doing'))
    AND {IN_TURN} AND (d.status = 'interrupted' OR r.owner NOT IN (
        SELECT o.owner FROM {{jobs}} j JOIN runs o ON o.run_id = j.queueing_lock WHERE j.status = 'todo'
        GROUP BY o.owner HAVING count(DISTINCT j.lock) >= {SHARE}))
    ORDER BY r.run_id LIMIT :most"""
"""Only the first run of a conversation that has not ended has a job: the others get one when it ends. New runs are held
back without a job while their caller has enough in the queue."""
_STALE_JOB = """SELECT j.queueing_lock FROM {jobs} j LEFT JOIN runs r ON r.run_id = j.queueing_lock
    WHERE j.status = 'todo' AND j.queueing_lock IS NOT NULL AND (r.run_id IS NULL OR r.ended < :settled)
    ORDER BY j.queueing_lock LIMIT :most"""
_OPEN_JOURNALS = f"SELECT run_id FROM durable_runs WHERE status IN {_OPEN}"
_ORPHAN_KEY = """SELECT k.run_id FROM idempotency_keys k LEFT JOIN runs r ON r.run_id = k.run_id
    WHERE r.run_id IS NULL AND k.at < :settled ORDER BY k.run_id LIMIT :most"""


class Contradiction(msgspec.Struct, frozen=True):
    """Rows about a run that contradict each other."""

    kind: Kind
    run_id: str

    @property
    def problem(self) -> str:
        """The contradiction, as a text for people."""
        return f"run {self.run_id} {_ABOUT[self.kind][0]}"

    @property
    def remedy(self) -> str:
        """How a repair removes the contradiction, as a text for people."""
        return _ABOUT[self.kind][1]


class ConsistencyCheck:
    """Find and repair contradictions in a run store. All methods block, and raise ``StoreError`` without the database.

    Args:
        store: the store. A check reads many rows, so a server should not use the store for anything else. If it knows
            the approvals, calls of runs that it does not have are found, too.
    """

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._counted: tuple[float, dict[str, float]] = (float("-inf"), {})

    def find(self) -> list[Contradiction]:
        """Return the contradictions, at most ``MAX_FOUND`` of a kind."""
        if not self._store.db.exists():
            return []
        is_halted = self._store.halts.current() is not None
        with self._store.db.transaction() as db:
            return list(self._find(db, is_halted=is_halted))

    def counts(self) -> dict[str, float]:
        """Return the number of contradictions of each kind, which may be a few minutes old."""
        at, counted = self._counted
        if time.monotonic() > at + CHECK_SECONDS:
            found = Counter(each.kind for each in self.find())
            counted = {kind: float(found[kind]) for kind in _ABOUT}
            self._counted = time.monotonic(), counted
        return counted

    def repair(self, found: Sequence[Contradiction]) -> list[Contradiction]:
        """Repair contradictions, and return those that still existed."""
        repairs: dict[Kind, Callable[[Connection, str], object]] = {
            "open_journal": self._end_journal,
            "orphan_key": self._delete_key,
            "unreadable_wait": self._resume,
        }
        is_halted = self._store.halts.current() is not None
        with self._store.db.transaction(write=True) as db:
            existing = {*self._find(db, is_halted=is_halted)}
            repaired = [each for each in found if each in existing]
            for each in repaired:
                if each.kind in repairs:
                    repairs[each.kind](db, each.run_id)
        for each in repaired:
            if each.kind == "lost_job":
                self._queue_again(each.run_id)
            elif each.kind == "orphan_approval" and self._store.approvals is not None:
                self._store.approvals.cancel_run(each.run_id)
            elif each.kind == "stale_job":
                delete_waiting_job(self._store.db, each.run_id)
        return repaired

    def _find(self, db: Connection, *, is_halted: bool) -> Iterator[Contradiction]:
        now = database_time(self._store.db, db)
        values = {"now": now, "settled": now - SETTLED_SECONDS, "durable": DURABLE, "most": MAX_FOUND}
        queries: dict[Kind, str] = {"open_journal": _OPEN_JOURNAL, "orphan_key": _ORPHAN_KEY}
        if jobs := self._jobs(db):
            queries["stale_job"] = _STALE_JOB.format(jobs=jobs)
            if not is_halted:  # otherwise jobs end without a run, until the release
                queries["lost_job"] = _LOST_JOB.format(jobs=jobs)
        for kind, query in queries.items():
            for run_id in dict.fromkeys(str(row[0]) for row in db.execute(query, values).fetchall()):
                yield Contradiction(kind, run_id)
        for run_id, result in db.execute("SELECT run_id, result FROM durable_runs WHERE status = 'waiting'").fetchall():
            if not _is_readable(run_id, result):
                yield Contradiction("unreadable_wait", run_id)
        approvals = self._store.approvals
        if (
            approvals is not None
            and approvals.db.exists()
            and (waiting := approvals.waiting_runs(now - SETTLED_SECONDS))
        ):
            open_runs = {id for (id,) in db.execute(_OPEN_JOURNALS).fetchall()}
            yield from (Contradiction("orphan_approval", id) for id in waiting[:MAX_FOUND] if id not in open_runs)

    def _jobs(self, db: Connection) -> str:
        """Return the name of the table of jobs; empty if there is none, as for a SQLite file."""
        if not self._store.db.is_shared:
            return ""
        name = jobs_of(self._store.db)
        (found,) = db.execute("SELECT CAST(to_regclass(?) AS TEXT)", (name,)).fetchone()
        return name if found else ""

    def _end_journal(self, db: Connection, run_id: str) -> None:
        now = database_time(self._store.db, db)
        (status,) = db.execute("SELECT status FROM runs WHERE run_id = ?", (run_id,)).fetchone()
        ended = status if status in RUN_STATUSES else "failed"
        db.execute(_END_JOURNAL, (ended, b"null", now, run_id, now))

    def _queue_again(self, run_id: str) -> None:
        from procrastinate.exceptions import AlreadyEnqueued

        run = self._store.get(run_id)
        if run is not None:
            with suppress(AlreadyEnqueued), self._store.db.transaction(write=True, lock=None) as db:
                PostgresQueue(self._store, 1).defer(db, [QueuedRun(run_id, run.session_id, run.owner)])

    def _delete_key(self, db: Connection, run_id: str) -> None:
        db.execute("DELETE FROM idempotency_keys WHERE run_id = ?", (run_id,))

    def _resume(self, db: Connection, run_id: str) -> None:
        db.execute("UPDATE durable_runs SET status = 'interrupted', result = NULL WHERE run_id = ?", (run_id,))
        db.execute("UPDATE runs SET status = 'queued' WHERE run_id = ? AND host = ?", (run_id, DURABLE))


def _is_readable(run_id: str, result: bytes | None) -> bool:
    try:
        waiting_calls(StoredRun(run_id, "", "waiting", 0, 0.0, "", 0, None, 0, 0.0, 0.0, b"", result))
    except msgspec.MsgspecError:
        return False
    return True
