"""Questions about many runs at once, for people who watch them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, TypedDict, Unpack

import msgspec

from .runs import OPEN_STATES, SEARCH_SECONDS, SEARCHED_AT_ONCE, RunRecord, RunStore
from .sql import Connection, storable

_NEAR = 100
"""Maximum number of events that are searched for the arguments and the result of a call."""


class OpenRun(msgspec.Struct, frozen=True):
    """A served run that has not ended, and when its last event was."""

    run: RunRecord
    last_event: float


class Refusal(msgspec.Struct, frozen=True):
    """Something that a hook or a person prevented in a served run, or in one of its subagents.

    ``seq`` is the number of its event in the run. ``tool`` and ``arguments``, as JSON, are those of the call; they are
    empty at points without one. ``hook`` is empty if a person denied the call: ``by`` is the person then.
    """

    run_id: str
    seq: int
    agent: str
    owner: str
    at: float
    tool: str
    hook: str
    verb: str
    point: str = ""
    call_id: str = ""
    reason: str = ""
    by: str = ""
    arguments: str = ""

    @property
    def id(self) -> str:
        """Identifies the refusal, for the next page of a list."""
        return f"{self.run_id}:{self.seq}"


class Verdict(msgspec.Struct, frozen=True):
    """The result of a hook in a served run or in one of its subagents, whose id is ``run_id``.

    ``seq`` is the number of its event in the served run. The verb ``denied`` is that of a person, ``by``, who denied a
    call; ``shadow`` is that of a hook in shadow mode, whose reason says what it would have done. ``refused`` says
    whether it prevented something.
    """

    seq: int
    at: float
    run_id: str
    point: str
    hook: str
    phase: str
    verb: str
    reason: str
    error: str
    tool: str
    call_id: str
    by: str
    refused: bool
    duration: float | None


class RefusalFilter(TypedDict, total=False):
    """Filter of :func:`refusals`; an empty filter selects all of them.

    ``owner``, ``agent``: only those in runs of this caller and agent. ``tool``, ``hook``, ``verb``: only those with
    this value. ``since``, ``until``: only those at this Unix time or later, and before this one.
    """

    owner: str | None
    agent: str
    tool: str
    hook: str
    verb: str
    since: float
    until: float


class RefusalSearch(msgspec.Struct, frozen=True):
    """The refusals that a search found.

    If it stopped before it had looked at all of them, ``stopped_at`` is the id of the last one that it looked at,
    ``back_to`` is when that happened, and ``looked_at`` is the number of refusals that it looked at.
    """

    refusals: list[Refusal]
    stopped_at: str = ""
    back_to: float = 0.0
    looked_at: int = 0


class Conversation(msgspec.Struct, frozen=True):
    """A conversation of a caller with an agent. ``task`` is what it began with, as far as that is stored."""

    agent: str
    session: str
    task: str
    last: float


def conversations(store: RunStore, owner: str, transport: str, limit: int) -> list[Conversation]:
    """Return the conversations of a caller through an API, the one with the newest run first.

    Only the newest runs are looked at, so that a caller with many runs does not wait.

    Raises:
        StoreError: the file cannot be used.
    """
    query = """SELECT r.agent, r.session, (SELECT f.task FROM runs f WHERE f.session_id = r.session_id
            AND f.transport != '' ORDER BY f.created, f.run_id LIMIT 1), max(r.created)
        FROM (SELECT agent, session, session_id, transport, created FROM runs
            WHERE owner = ? AND transport != '' ORDER BY created DESC, run_id DESC LIMIT 1000) r
        WHERE r.transport = ? GROUP BY r.agent, r.session, r.session_id ORDER BY max(r.created) DESC LIMIT ?"""
    with store.db.transaction() as db:
        return [Conversation(*row) for row in db.execute(query, (storable(owner), transport, limit)).fetchall()]


def pulse(store: RunStore) -> tuple[object, ...]:
    """Return a value that differs after every change of a served run that has not ended, and after every new run.

    Raises:
        StoreError: the file cannot be used.
    """
    query = """SELECT run_id, status, (SELECT max(seq) FROM events WHERE events.run_id = runs.run_id) FROM runs
        WHERE ended IS NULL AND transport != '' ORDER BY created, run_id"""
    with store.db.transaction() as db:
        (newest,) = db.execute("SELECT max(created) FROM runs").fetchone()
        return newest, *db.execute(query).fetchall()


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


def event_counts(store: RunStore, owner: str | None, ended_since: float, before: float | None = None) -> dict[str, int]:
    """Return the number of the last event of each served run that is open, or has ended since then.

    Args:
        store: the store.
        owner: only the runs of this caller; ``None`` for all.
        ended_since: a Unix time.
        before: only events before this Unix time count.

    Raises:
        StoreError: the file cannot be used.
    """
    earlier, mine = "" if before is None else "AND e.at < ?", "" if owner is None else "AND owner = ?"
    each = f"""SELECT run_id, coalesce((SELECT max(seq) FROM events e WHERE e.run_id = runs.run_id {earlier}), 0)
        FROM runs WHERE transport != '' {mine} AND"""
    values = [*(() if before is None else (before,)), *(() if owner is None else (storable(owner),))]
    query = f"{each} ended IS NULL UNION ALL {each} ended IS NOT NULL AND ended >= ?"
    return dict(store.db.execute(query, (*values, *values, ended_since)))


def verdict_counts(store: RunStore, ids: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return the number of verdicts of hooks and denials of people in served runs, by run and verb.

    Raises:
        StoreError: the file cannot be used.
    """
    if not ids:
        return {}
    query = f"""SELECT run_id, verb, count(*) FROM events WHERE verb != '' AND run_id IN ({",".join("?" * len(ids))})
        GROUP BY run_id, verb ORDER BY run_id, verb"""
    found: dict[str, dict[str, int]] = {}
    for run_id, verb, count in store.db.execute(query, list(ids)):
        found.setdefault(run_id, {})[verb] = count
    return found


def verdicts(store: RunStore, run_id: str, after: int, limit: int) -> list[Verdict]:
    """Return the verdicts of hooks and denials of people in a served run and its subagents, in order.

    Args:
        store: the store.
        run_id: the id of the run.
        after: only those after the event with this number.
        limit: the maximum number.

    Raises:
        StoreError: the file cannot be used.
    """
    query = """SELECT seq, at, tool, hook, verb, refused, data FROM events
        WHERE run_id = ? AND verb != '' AND seq > ? ORDER BY seq LIMIT ?"""
    found = []
    for seq, at, tool, hook, verb, refused, data in store.db.execute(query, (storable(run_id), after, limit)):
        told = _told(bytes(data))
        reason = told.reason or told.message
        if verb == "shadow":
            reason = f"would {told.verb}: {reason or told.text}" if told.verb != "failed" else reason
        found.append(
            Verdict(
                seq=seq,
                at=at,
                run_id=told.run_id or run_id,
                point=told.point or "approval_requested",
                hook=hook,
                phase=told.phase,
                verb=verb,
                reason=reason,
                error=told.error or "",
                tool=tool,
                call_id=told.call_id,
                by=told.by,
                refused=bool(refused),
                duration=told.duration,
            )
        )
    return found


def refusals(store: RunStore, limit: int, *, before: str = "", **chosen: Unpack[RefusalFilter]) -> list[Refusal]:
    """Return what was prevented in served runs, the newest first.

    Args:
        store: the store.
        limit: the maximum number.
        before: the id of a refusal: only those that come after it in the list.
        chosen: which ones: see :class:`RefusalFilter`.

    Raises:
        StoreError: the file cannot be used.
    """
    with store.db.transaction() as db:
        return _refusals(db, limit, {**_wanted(chosen), **_after(before)})


def search_refusals(
    store: RunStore, limit: int, *, before: str = "", seconds: float = SEARCH_SECONDS, **chosen: Unpack[RefusalFilter]
) -> RefusalSearch:
    """Return what was prevented like :func:`refusals`, but stop after a while: few of many refusals may match.

    Continue with ``before=found.stopped_at``. At least ``SEARCHED_AT_ONCE`` refusals are looked at.

    Args:
        store: the store.
        limit: the maximum number.
        before: the id of a refusal: only those that come after it in the list.
        seconds: how long to look at refusals.
        chosen: which ones: see :class:`RefusalFilter`.

    Raises:
        StoreError: the file cannot be used.
    """
    wanted = _wanted(chosen)
    times = {condition: values for condition, values in wanted.items() if condition.startswith("e.at ")}
    found, looked_at, until = list[Refusal](), 0, time.monotonic() + seconds
    with store.db.transaction() as db:
        while True:
            rest = _after(before)
            query, values = _in_order("e.at, e.run_id, e.seq", "", {**times, **rest})
            last = db.execute(f"{query} LIMIT 1 OFFSET ?", (*values, SEARCHED_AT_ONCE - 1)).fetchone()
            end = {} if last is None else {"(e.at, e.run_id, e.seq) >= (?, ?, ?)": last}
            found += _refusals(db, limit - len(found), {**wanted, **rest, **end})
            if last is None or len(found) == limit:
                return RefusalSearch(found)
            at, run_id, seq = last
            before = f"{run_id}:{seq}"
            looked_at += SEARCHED_AT_ONCE
            if time.monotonic() > until:
                return RefusalSearch(found, before, at, looked_at)


_Conditions = dict[str, Sequence[Any]]
"""SQL conditions, and their values."""


def _wanted(chosen: RefusalFilter) -> _Conditions:
    columns = {
        "r.owner = ?": chosen.get("owner"),
        "r.agent = ?": chosen.get("agent") or None,
        "e.tool = ?": chosen.get("tool") or None,
        "e.hook = ?": chosen.get("hook") or None,
        "e.verb = ?": chosen.get("verb") or None,
        "e.at >= ?": chosen.get("since"),
        "e.at < ?": chosen.get("until"),
    }
    return {
        condition: (storable(value) if isinstance(value, str) else value,)
        for condition, value in columns.items()
        if value is not None
    }


def _after(before: str) -> _Conditions:
    """Return the condition that refusals come after one of them in the list."""
    if not before:
        return {}
    run_id, _, seq = before.rpartition(":")
    number = int(seq) if seq.isdecimal() and len(seq) < 16 else 0
    later = "(e.at, e.run_id, e.seq) < (SELECT at, run_id, seq FROM events WHERE run_id = ? AND seq = ?)"
    return {later: (storable(run_id), number)}


def _in_order(columns: str, join: str, wanted: _Conditions) -> tuple[str, list[Any]]:
    # Without the hint, SQLite would read all events of all runs of an owner or an agent.
    query = f"""SELECT {columns} FROM events e INDEXED BY refusals {join}
        WHERE {" AND ".join(("e.refused = 1", *wanted))} ORDER BY e.at DESC, e.run_id DESC, e.seq DESC"""
    return query, [value for values in wanted.values() for value in values]


def _refusals(db: Connection, limit: int, wanted: _Conditions) -> list[Refusal]:
    columns = "e.run_id, e.seq, r.agent, r.owner, e.at, e.tool, e.hook, e.verb, e.data"
    query, values = _in_order(columns, "JOIN runs r ON r.run_id = e.run_id", {"r.transport != ''": (), **wanted})
    rows = db.execute(f"{query} LIMIT ?", (*values, limit)).fetchall()
    return [_refusal(db, Refusal(*row), bytes(data)) for *row, data in rows]


class _Told(msgspec.Struct):
    """The parts of an event that the table has no columns for."""

    run_id: str = ""
    point: str = ""
    phase: str = ""
    verb: str = ""
    call_id: str = ""
    reason: str = ""
    error: str | None = None
    duration: float | None = None
    by: str = ""
    message: str = ""
    text: str = ""
    tool_calls: tuple[_Call, ...] = ()


class _Call(msgspec.Struct):
    id: str = ""
    arguments: msgspec.Raw = msgspec.Raw(b"")


class _Nested(msgspec.Struct):
    type: str = ""
    event: msgspec.Raw = msgspec.Raw(b"")


_TYPES = ("model_replied", "hook_executed", "shadow_decided", "approval_decided", "tool_settled")
_NESTED = msgspec.json.Decoder(_Nested)
_TOLD = msgspec.json.Decoder(_Told)


def _told(data: bytes | msgspec.Raw) -> _Told:
    """Return what an event, or the event of a subagent in it, says; nothing if it is about something else."""
    found = _NESTED.decode(data)
    if found.type == "subagent_event":
        return _told(found.event)
    return _TOLD.decode(data) if found.type in _TYPES else _Told()


def _refusal(db: Connection, found: Refusal, data: bytes) -> Refusal:
    told = _told(data)
    reason = told.reason or told.message or told.error or ""
    return msgspec.structs.replace(
        found,
        point=told.point or "approval_requested",
        call_id=told.call_id,
        reason=reason or _result(db, found, told),
        by=told.by,
        arguments=_arguments(db, found, told),
    )


def _arguments(db: Connection, found: Refusal, told: _Told) -> str:
    """Return the arguments with which the model made a call: they are in its last reply before."""
    query = """SELECT data FROM events WHERE run_id = ? AND seq < ? AND type IN ('model_replied', 'subagent_event')
        ORDER BY seq DESC LIMIT ?"""
    for replied in _near(db, query, found, told):
        for call in replied.tool_calls:
            if call.id == told.call_id:
                return bytes(call.arguments).decode(errors="replace")
    return ""


def _result(db: Connection, found: Refusal, told: _Told) -> str:
    """Return what the model got instead of the result of a call: a hook need not give another reason."""
    query = """SELECT data FROM events WHERE run_id = ? AND seq > ? AND type IN ('tool_settled', 'subagent_event')
        ORDER BY seq LIMIT ?"""
    return next((each.text for each in _near(db, query, found, told) if each.call_id == told.call_id and each.text), "")


def _near(db: Connection, query: str, found: Refusal, told: _Told) -> Iterator[_Told]:
    """Yield events of the same run or subagent before or after the refusal of a call."""
    if told.call_id:
        for (data,) in db.execute(query, (found.run_id, found.seq, _NEAR)):
            near = _told(bytes(data))
            if near.run_id == told.run_id:
                yield near
