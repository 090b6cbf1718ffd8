"""Questions about many runs at once, for people who watch them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from .runs import OPEN_STATES, RunRecord, RunStore
from .sql import storable


class OpenRun(msgspec.Struct, frozen=True):
    """A served run that has not ended, and when its last event was."""

    run: RunRecord
    last_event: float


class RecentVerdict(msgspec.Struct, frozen=True):
    """What a hook decided, and about what: ``tool`` is empty at points without a call."""

    run_id: str
    agent: str
    owner: str
    at: float
    point: str
    call_id: str
    tool: str
    hook: str
    verb: str
    reason: str


def pulse(store: RunStore) -> tuple[object, ...]:
    """Return a value that differs after every change of a served run that has not ended, and after every new run.

    Raises:
        StoreError: the file cannot be used.
    """
    query = """SELECT run_id, status, (SELECT max(seq) FROM events WHERE events.run_id = runs.run_id) FROM runs
        WHERE ended IS NULL AND transport != '' ORDER BY created, run_id"""
    with store.db.transaction() as db:
        (newest,) = db.execute("SELECT max(created) FROM runs").fetchone()
        (verdicts,) = db.execute("SELECT max(rowid) FROM verdicts").fetchone()
        return newest, verdicts, *db.execute(query).fetchall()


def open_runs(store: RunStore, owner: str | None, limit: int) -> list[OpenRun]:
    """Return the served runs that have not ended, the newest first.

    Args:
        store: the store.
        owner: only the runs of this caller; ``None`` for all.
        limit: the maximum number of runs.

    Raises:
        StoreError: the file cannot be used.
    """
    chosen = store.runs(limit, served=True, owner=owner, states=OPEN_STATES)
    ids = [run.id for run in chosen]
    last: dict[str, float] = {}
    if ids:
        query = f"SELECT run_id, max(at) FROM events WHERE run_id IN ({','.join('?' * len(ids))}) GROUP BY run_id"
        with store.db.transaction() as db:
            last = dict(db.execute(query, ids).fetchall())
    return [OpenRun(run, last.get(run.id, run.created)) for run in chosen]


def recent_verdicts(
    store: RunStore, verbs: Sequence[str], since: float, owner: str | None, limit: int
) -> list[RecentVerdict]:
    """Return verdicts of hooks, the newest first.

    Args:
        store: the store.
        verbs: the verbs, such as ``block``.
        since: a Unix time.
        owner: only the runs of this caller; ``None`` for all.
        limit: the maximum number.

    Raises:
        StoreError: the file cannot be used.
    """
    mine = "" if owner is None else "AND r.owner = ?"
    query = f"""SELECT v.run_id, r.agent, r.owner, v.at, v.point, v.call_id,
        coalesce((SELECT tool FROM tool_calls t WHERE t.run_id = v.run_id AND t.call_id = v.call_id LIMIT 1), ''),
        v.hook, v.verb, v.reason FROM verdicts v JOIN runs r ON r.run_id = v.run_id
        WHERE v.verb IN ({",".join("?" * len(verbs))}) AND v.at >= ? {mine} ORDER BY v.at DESC LIMIT ?"""
    values = (*verbs, since, *(() if owner is None else (storable(owner),)), limit)
    with store.db.transaction() as db:
        return [RecentVerdict(*(value or "" for value in row)) for row in db.execute(query, values).fetchall()]
