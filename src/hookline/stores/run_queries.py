"""Questions about many runs at once, for people who watch them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, TypedDict, Unpack

import msgspec

from .facts import DENIED, Gate, RunFact, read_facts
from .leases import database_time
from .runs import DURABLE, OPEN_STATES, RunRecord, RunStore
from .sql import Connection, storable
from .verdicts import HAS_VERDICTS, decisions_of

_RECENT_SECONDS, _RECENT = 300.0, 1000
"""The runs whose start is measured: those of the last seconds, and at most this number."""
_NEAR = 100
"""Maximum number of events that are searched for the arguments of a call."""


class QueueState(msgspec.Struct, frozen=True):
    """The queue of all servers that share a database.

    ``depth`` runs are queued, the oldest for ``oldest`` seconds. Of the runs that were accepted within the last
    minutes, half began within ``start_median`` seconds, and 95 % within ``start_95``. Of the ``slots`` of all processes
    that execute durable runs, ``used`` are taken.
    """

    depth: int
    oldest: float
    start_median: float
    start_95: float
    used: int
    slots: int


class OpenRun(msgspec.Struct, frozen=True):
    """A run that has not ended, and when something last happened in it."""

    run: RunRecord
    last_event: float


class Refusal(msgspec.Struct, frozen=True):
    """Something that a hook or a person prevented in a run, or in one of its subagents.

    ``id`` identifies it, for the next page of a list. ``run_id`` is the outermost run, ``agent`` its agent, and
    ``owner`` the caller who started it; empty without a server. ``tool`` and ``arguments``, as JSON, are those of the
    call; they are empty at points without one, and arguments are known of runs of a server only. ``hook`` is empty if a
    person denied the call: ``by`` is the person then. ``rules`` is the digest of the rules in force.
    """

    id: str
    run_id: str
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
    rules: str = ""
    arguments: str = ""


class RefusalFilter(TypedDict, total=False):
    """Filter of :func:`refusals`; an empty filter selects all of them.

    ``owner``, ``agent``: only those in runs of this caller and agent, and their subagents. ``tool``, ``verb``: only
    those with this value. ``hook``: only those by this hook, or this person who denied. ``since``, ``until``: only
    those at this Unix time or later, and before this one.
    """

    owner: str | None
    agent: str
    tool: str
    hook: str
    verb: str
    since: float
    until: float


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
    """Return a value that differs after every change of a run that has not ended, and after every new run.

    Raises:
        StoreError: the file cannot be used.
    """
    query = """SELECT run_id, status, (SELECT max(seq) FROM events WHERE events.run_id = runs.run_id) FROM runs
        WHERE ended IS NULL ORDER BY created, run_id"""
    with store.db.transaction() as db:
        newest = db.execute("SELECT (SELECT max(created) FROM runs), (SELECT max(id) FROM facts)").fetchone()
        return tuple(newest), *db.execute(query).fetchall()


def queue_state(store: RunStore) -> QueueState:
    """Return the state of the queue.

    Raises:
        StoreError: the file cannot be used.
    """
    waiting = store.oldest("queued")
    recent = """SELECT started - created FROM runs WHERE created > ? AND transport != '' AND started IS NOT NULL
        ORDER BY created DESC, run_id DESC LIMIT ?"""
    running = """SELECT count(*) FROM durable_runs d JOIN runs r ON r.run_id = d.run_id
        WHERE d.status = 'running' AND d.lease > ? AND r.host = ?"""
    with store.db.transaction() as db:
        now = database_time(store.db, db)
        times = sorted(time for (time,) in db.execute(recent, (now - _RECENT_SECONDS, _RECENT)).fetchall())
        (used,) = db.execute(running, (now, DURABLE)).fetchone()
    return QueueState(
        depth=store.count(served=True, states=("queued",)),
        oldest=0.0 if waiting is None else max(0.0, now - waiting),
        start_median=_quantile(times, 0.5),
        start_95=_quantile(times, 0.95),
        used=used,
        slots=sum(worker.slots for worker in store.workers.running()),
    )


def _quantile(times: Sequence[float], share: float) -> float:
    return max(0.0, times[min(int(len(times) * share), len(times) - 1)]) if times else 0.0


def open_runs(store: RunStore, owner: str | None, limit: int) -> list[OpenRun]:
    """Return the runs that have not ended, the newest first.

    Args:
        store: the store.
        owner: only the runs of this caller; ``None`` for all.
        limit: the maximum number of runs.

    Raises:
        StoreError: the file cannot be used.
    """
    chosen = store.runs(limit, outermost=True, owner=owner, states=OPEN_STATES)
    last = {run.id: run.started or run.created for run in chosen}
    if last:
        marks = ",".join("?" * len(last))
        query = f"""SELECT run_id, max(at) FROM events WHERE run_id IN ({marks}) GROUP BY run_id
            UNION ALL SELECT root_run_id, max(at) FROM facts WHERE root_run_id IN ({marks}) GROUP BY root_run_id"""
        for run_id, at in store.db.execute(query, [*last, *last]):
            last[run_id] = max(last[run_id], at)
    return [OpenRun(run, last[run.id]) for run in chosen]


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


def verdict_times(store: RunStore, ids: Sequence[str]) -> dict[str, list[tuple[float, str]]]:
    """Return the verdicts of hooks and denials of people in runs and their nested runs, as times and verbs, by run.

    Raises:
        StoreError: the file cannot be used.
    """
    if not ids:
        return {}
    condition = f"root_run_id IN ({','.join('?' * len(ids))}) AND {HAS_VERDICTS} ORDER BY root_run_id, at, id"
    found: dict[str, list[tuple[float, str]]] = {}
    with store.db.transaction() as db:
        for _, fact in read_facts(db, condition, list(ids)):
            times = found.setdefault(fact.run.root_run_id, [])
            times.extend((fact.at, verb) for verb, _ in decisions_of(fact))
    return found


def refusals(store: RunStore, limit: int, *, before: str = "", **chosen: Unpack[RefusalFilter]) -> list[Refusal]:
    """Return what was prevented in runs, the newest first.

    Args:
        store: the store.
        limit: the maximum number.
        before: the id of a refusal: only those that come after it in the list.
        chosen: which ones: see :class:`RefusalFilter`.

    Raises:
        StoreError: the file cannot be used.
    """
    return [refusal for refusal, _ in refused_calls(store, limit, before=before, **chosen)]


def refused_calls(
    store: RunStore, limit: int, *, before: str = "", **chosen: Unpack[RefusalFilter]
) -> list[tuple[Refusal, tuple[Gate, ...]]]:
    """Return refusals, each with the calls of hooks at its point. Arguments are those of :func:`refusals`.

    Raises:
        StoreError: the file cannot be used.
    """
    with store.db.transaction() as db:
        found = list(islice(_refusing(db, chosen, before, limit), limit))
        arguments = _arguments(db, [fact for _, fact, *_ in found])
    return [(_refusal(*each, given), each[1].gates) for each, given in zip(found, arguments, strict=True)]


def _refusing(
    db: Connection, chosen: RefusalFilter, before: str, limit: int
) -> Iterator[tuple[str, RunFact, str, Gate]]:
    """Yield the verdicts that prevented something, each with its id, its fact and its verb in lists."""
    while True:
        rows = list(_refused(db, chosen, before, limit))
        for id, fact in rows:
            for number, (verb, gate) in enumerate(decisions_of(fact)):
                each = f"{id}.{number}"
                if gate.refused and _is_after(each, before) and _matches(fact, verb, gate, chosen):
                    yield each, fact, verb, gate
        if len(rows) < limit:
            return
        before = str(rows[-1][0])


def _refused(db: Connection, chosen: RefusalFilter, before: str, limit: int) -> Iterator[tuple[int, RunFact]]:
    """Yield facts with refusals that may match, the newest first.

    If several hooks did something, the columns of a fact are about one of them, so these facts are all read.
    """
    given = {
        "at >= ?": chosen.get("since"),
        "at < ?": chosen.get("until"),
        "owner = ?": chosen.get("owner"),
        "asked = ?": chosen.get("agent") or None,
        "tool = ?": chosen.get("tool") or None,
    }
    wanted = {condition: value for condition, value in given.items() if value is not None} | _after(before)
    decided = {f"{name} = ?": value for name in ("hook", "verb") if (value := chosen.get(name))}
    parts: list[dict[str, Any]] = [{"refused = 1": None, **wanted, **decided}]
    if decided:
        parts.append({"refused = 1": None, "several = 1": None, **wanted})
    if (person := chosen.get("hook")) and chosen.get("verb") in (None, "", DENIED):
        parts.append(
            {"refused = 1": None, "verb = ?": DENIED, "kind = 'approval'": None, "source = ?": person, **wanted}
        )
    newest = "ORDER BY at DESC, id DESC LIMIT ?"
    ids = [f"SELECT id FROM (SELECT id FROM facts WHERE {' AND '.join(part)} {newest}) AS part" for part in parts]
    values = [
        storable(value) if isinstance(value, str) else value
        for part in parts
        for value in (*(each for each in part.values() if each is not None), limit)
    ]
    return read_facts(db, f"id IN ({' UNION '.join(ids)}) {newest}", (*values, limit))


def _after(before: str) -> dict[str, Any]:
    """Return the condition that facts come after one in the list, or are that of a refusal, which may have others."""
    if not before:
        return {}
    id, dot, _ = before.partition(".")
    number = int(id) if id.isdecimal() and len(id) < 16 else 0
    return {f"(at, id) {'<=' if dot else '<'} (SELECT at, id FROM facts WHERE id = ?)": number}


def _is_after(id: str, before: str) -> bool:
    """Whether a refusal comes after another one, if both are of the same fact."""
    (fact, _, number), (other, _, last) = id.partition("."), before.partition(".")
    return fact != other or not last.isdecimal() or int(number) > int(last)


def _matches(fact: RunFact, verb: str, gate: Gate, chosen: RefusalFilter) -> bool:
    run, owner = fact.run, chosen.get("owner")
    given = {"agent": run.asked, "tool": fact.tool, "hook": gate.hook or _person(fact), "verb": verb}
    return owner in (None, run.owner) and all(chosen.get(name) in (None, "", each) for name, each in given.items())


def _person(fact: RunFact) -> str:
    """Return the name of the person who denied a call; empty if none did."""
    return fact.source if fact.kind == "approval" else ""


def _refusal(id: str, fact: RunFact, verb: str, gate: Gate, arguments: str) -> Refusal:
    run = fact.run
    return Refusal(
        id=id,
        run_id=run.root_run_id,
        agent=run.asked,
        owner=run.owner,
        at=fact.at,
        tool=fact.tool,
        hook=gate.hook,
        verb=verb,
        point=fact.point,
        call_id=fact.call_id,
        reason=gate.reason,
        by=_person(fact),
        rules=run.rules,
        arguments=arguments,
    )


def _arguments(db: Connection, facts: Sequence[RunFact]) -> list[str]:
    """Return the arguments with which models made the calls of facts: each call is in the last reply before its fact.

    The calls are looked up together: on PostgreSQL, the number of statements is what takes time.
    """
    found = [""] * len(facts)
    wanted = [n for n, fact in enumerate(facts) if fact.call_id]
    last = dict(zip(wanted, _events_at(db, [(facts[n].run.root_run_id, facts[n].at) for n in wanted]), strict=True))
    for depth in (1, _NEAR):  # most calls are in the last reply
        rows = [(n, facts[n].run.root_run_id, last[n]) for n in wanted]
        first = _for_each(db, _FIRST_REPLY.format(depth=depth), ("n", "run_id", "last"), rows)
        ranges = [(n, run_id, low, high) for (n, run_id, high), low in zip(rows, first, strict=True) if low]
        query = f"""SELECT n, type, data FROM wanted CROSS JOIN events e
            WHERE e.run_id = wanted.run_id AND e.seq BETWEEN low AND high AND {_REPLIES} ORDER BY n, seq DESC"""
        for n, kind, data in _about(db, query, ("n", "run_id", "low", "high"), ranges):
            found[n] = found[n] or _arguments_in(kind, bytes(data), facts[n])
        wanted = [n for n in wanted if not found[n]]
    return found


def _arguments_in(kind: str, data: bytes, fact: RunFact) -> str:
    """Return the arguments of the call of a fact, if they are in an event."""
    run, is_nested, replied = fact.run, kind == "subagent_event", _replied(data)
    if is_nested is (run.run_id != run.root_run_id) and (not is_nested or replied.run_id == run.run_id):
        for call in replied.tool_calls:
            if call.id == fact.call_id:
                return bytes(call.arguments).decode(errors="replace")
    return ""


def _events_at(db: Connection, places: Sequence[tuple[str, float]]) -> list[int]:
    """Return the numbers of the last events of runs until Unix times, by bisection if a run has many events."""
    newest = _for_each(db, "SELECT max(seq) FROM events e WHERE e.run_id = wanted.run_id", ("run_id", "at"), places)
    low, high = [0] * len(places), [seq or 0 for seq in newest]
    while many := [n for n in range(len(places)) if high[n] - low[n] > _NEAR]:
        middle = [(low[n] + high[n] + 1) // 2 for n in many]
        rows = [(places[n][0], half) for n, half in zip(many, middle, strict=True)]
        for n, half, at in zip(many, middle, _for_each(db, _TIME_OF, ("run_id", "middle"), rows), strict=True):
            if at <= places[n][1]:
                low[n] = half
            else:
                high[n] = half - 1
    ranges = [(*place, *ends) for place, *ends in zip(places, low, high, strict=True)]
    return [seq or 0 for seq in _for_each(db, _LAST_BETWEEN, ("run_id", "at", "low", "high"), ranges)]


_REPLIES = "e.type IN ('model_replied', 'subagent_event')"
_FIRST_REPLY = f"""SELECT min(seq) FROM (SELECT seq FROM events e WHERE e.run_id = wanted.run_id
    AND e.seq <= wanted.last AND {_REPLIES} ORDER BY seq DESC LIMIT {{depth}}) AS near"""
_TIME_OF = "SELECT at FROM events e WHERE e.run_id = wanted.run_id AND e.seq >= wanted.middle ORDER BY seq LIMIT 1"
_LAST_BETWEEN = """SELECT max(seq) FROM events e
    WHERE e.run_id = wanted.run_id AND e.seq BETWEEN wanted.low AND wanted.high AND e.at <= wanted.at"""


def _for_each(db: Connection, query: str, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the value of a query for each of the rows, which it calls ``wanted``, with one statement."""
    numbered = [(number, *row) for number, row in enumerate(rows)]
    found = _about(db, f"SELECT number, ({query}) FROM wanted", ("number", *names), numbered)
    return [value for _, value in sorted(found, key=lambda each: each[0])]


def _about(db: Connection, query: str, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the rows of a query about rows of values, which it calls ``wanted``."""
    if not rows:
        return []
    values = ",".join([f"({','.join('?' * len(names))})"] * len(rows))
    statement = f"WITH wanted ({', '.join(names)}) AS (VALUES {values}) {query}"
    return db.execute(statement, [value for row in rows for value in row]).fetchall()


class _Call(msgspec.Struct):
    id: str = ""
    arguments: msgspec.Raw = msgspec.Raw(b"")


class _Replied(msgspec.Struct):
    """The calls that a model made, from an event."""

    type: str = ""
    run_id: str = ""
    tool_calls: tuple[_Call, ...] = ()


class _Nested(msgspec.Struct):
    type: str = ""
    event: msgspec.Raw = msgspec.Raw(b"")


_NESTED = msgspec.json.Decoder(_Nested)
_REPLIED = msgspec.json.Decoder(_Replied)


def _replied(data: bytes | msgspec.Raw) -> _Replied:
    """Return the calls in an event, or in the event of a subagent in it; none if it is about something else."""
    found = _NESTED.decode(data)
    if found.type == "subagent_event":
        return _replied(found.event)
    return _REPLIED.decode(data) if found.type == "model_replied" else _Replied()
