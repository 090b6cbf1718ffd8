"""Statistics of the runs in a :class:`RunStore`."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from .runs import RunStore
from .sql import Connection, Leases

_TOKENS = """coalesce(sum(input_tokens), 0), coalesce(sum(output_tokens), 0), coalesce(sum(cached_tokens), 0),
    coalesce(sum(cost), 0.0), count(*) - count(cost)"""
_USED = ("input_tokens", "output_tokens", "cached_tokens", "cost", "unpriced")
_OUTCOMES = ("ok", "error", "blocked", "answered", "cancelled")
_DECISIONS = ("approved", "denied", "edited", "cancelled")
_OWNED = """WITH RECURSIVE owned (run_id) AS (
        SELECT run_id FROM runs WHERE owner = :owner AND transport != ''
        UNION ALL SELECT nested.run_id FROM runs nested JOIN owned ON nested.parent_run_id = owned.run_id
            WHERE nested.parent_run_id != ''
    ) SELECT run_id FROM owned"""
"""The runs that a caller started, and those of their subagents."""
HOUR = 3600.0
_WIDTHS = (HOUR, 24 * HOUR, 7 * 24 * HOUR, 28 * 24 * HOUR, 364 * 24 * HOUR)
_MAX_BARS = 60


class _Chosen(msgspec.Struct, frozen=True):
    """Which runs are counted: conditions for rows of runs, of their parts, and of their model calls, and their values.

    The table ``runs`` has indexes, but its parts have none, because they are written much more often than read. So
    conditions about the parts themselves come first, and without a filter there is no other.
    """

    runs: str
    parts: str
    calls: str
    values: dict[str, Any]

    @classmethod
    def of(cls, since: float | None, agent: str | None, model: str | None, owner: str | None = None) -> _Chosen:
        runs, parts, calls = "observed = 1", "1 = 1", "source = 'model'"
        if owner is not None:
            runs = f"{runs} AND run_id IN ({_OWNED})"
        if since is not None:
            runs = f"{runs} AND created >= :since"
        if agent is not None:
            runs = f"{runs} AND agent = :agent"
        if model is not None:
            runs = f"{runs} AND run_id IN (SELECT run_id FROM model_calls WHERE model = :model)"
            calls = f"{calls} AND model = :model"
        if runs != "observed = 1":
            parts = f"run_id IN (SELECT run_id FROM runs WHERE {runs})"
            parts = parts if since is None else f"at >= :since AND {parts}"  # what happens in a run is after its start
        values = {"since": since, "agent": agent, "model": model, "owner": owner}
        return cls(runs, parts, f"{parts} AND {calls}", values)


class RunTotals(msgspec.Struct, frozen=True):
    """Totals of all runs. ``cost`` covers the calls with a known price; ``unpriced`` is the number of others."""

    runs: int
    statuses: dict[str, int]
    model_calls: int
    tool_calls: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost: float
    unpriced: int
    p50: float | None
    p95: float | None
    first: float | None
    last: float | None


class ModelStats(msgspec.Struct, frozen=True):
    """Calls of one model; p50 and p95 are durations in seconds."""

    model: str
    calls: int
    errors: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost: float
    unpriced: int
    p50: float | None
    p95: float | None


class ToolStats(msgspec.Struct, frozen=True):
    """Calls of one tool by outcome; p50 and p95 are durations in seconds of the calls that ran."""

    tool: str
    calls: int
    outcomes: dict[str, int]
    p50: float | None
    p95: float | None


class HookStats(msgspec.Struct, frozen=True):
    """Results of one hook by verb; p50 and p95 are durations in seconds, if every call was recorded."""

    hook: str
    verbs: dict[str, int]
    p50: float | None
    p95: float | None


class RefusalStats(msgspec.Struct, frozen=True):
    """Actions that a hook prevented, for one point, verb, tool and reason.

    ``tool`` is empty unless a tool call was prevented. ``hook`` is empty if no one approved a call. ``last`` is a Unix
    time.
    """

    hook: str
    point: str
    verb: str
    tool: str
    reason: str
    count: int
    last: float


class ApprovalStats(msgspec.Struct, frozen=True):
    """Decisions about calls of one tool; p50 and p95 are waiting times in seconds."""

    tool: str
    decisions: dict[str, int]
    p50: float | None
    p95: float | None


class ErrorStats(msgspec.Struct, frozen=True):
    """Errors of one kind; ``last`` is a Unix time."""

    place: str
    type: str
    source: str
    count: int
    fatal: int
    last: float


class TimelineBar(msgspec.Struct, frozen=True):
    """Number of runs and tokens in a period that starts at the Unix time ``began``."""

    began: float
    runs: int
    tokens: int


class RunStats(msgspec.Struct, frozen=True):
    """Result of :func:`run_stats`. Each bar of ``timeline`` covers ``width`` seconds."""

    totals: RunTotals
    models: tuple[ModelStats, ...]
    tools: tuple[ToolStats, ...]
    hooks: tuple[HookStats, ...]
    refusals: tuple[RefusalStats, ...]
    approvals: tuple[ApprovalStats, ...]
    errors: tuple[ErrorStats, ...]
    width: float
    timeline: tuple[TimelineBar, ...]


def run_stats(
    store: RunStore,
    *,
    since: float | None = None,
    agent: str | None = None,
    model: str | None = None,
    owner: str | None = None,
) -> RunStats:
    """Compute statistics of the runs that an :class:`ObservabilityHook` recorded.

    Percentiles are exact: p95 is the smallest value that 95 % of the values do not exceed.

    Args:
        store: the store.
        since: only runs that started at this Unix time or later.
        agent: only runs of this agent.
        model: only runs that called this model, and only their calls of it.
        owner: only runs that this caller of a server started, and those of their subagents.

    Raises:
        StoreError: the file cannot be used.

    Example::

        stats = run_stats(RunStore("runs.db"), since=time.time() - 24 * 3600)
        print(stats.totals.runs, stats.totals.cost)
    """
    chosen = _Chosen.of(since, agent, model, owner)
    with store.db.transaction() as db:
        totals = _totals(db, chosen, store.db.leases)
        width, bars = _timeline(db, chosen, since or totals.first)
        return RunStats(
            totals=totals,
            models=_models(db, chosen),
            tools=_tools(db, chosen),
            hooks=_hooks(db, chosen),
            refusals=_refusals(db, chosen),
            approvals=_approvals(db, chosen),
            errors=_errors(db, chosen),
            width=width,
            timeline=bars,
        )


def _totals(db: Connection, chosen: _Chosen, leases: Leases) -> RunTotals:
    statuses: Counter[str] = Counter()
    for status, count in db.execute(
        f"SELECT status, count(*) FROM runs WHERE {chosen.runs} AND ended IS NOT NULL GROUP BY status", chosen.values
    ):
        statuses[status] = count
    for status, *process in db.execute(
        f"SELECT status, host, pid, created, born FROM runs WHERE {chosen.runs} AND ended IS NULL", chosen.values
    ):
        statuses[status if leases.is_held(*process) else "interrupted"] += 1
    used = db.execute(f"SELECT {_TOKENS} FROM model_calls WHERE {chosen.calls}", chosen.values).fetchone()
    (calls,) = db.execute(f"SELECT count(*) FROM model_calls WHERE {chosen.calls}", chosen.values).fetchone()
    (tools,) = db.execute(f"SELECT count(*) FROM tool_calls WHERE {chosen.parts}", chosen.values).fetchone()
    first, last = db.execute(
        f"SELECT min(created), max(coalesce(ended, created)) FROM runs WHERE {chosen.runs}", chosen.values
    ).fetchone()
    took = _percentiles(db, "''", "elapsed", f"runs WHERE {chosen.runs} AND elapsed IS NOT NULL", chosen)
    p50, p95 = took.get("", (None, None))
    known = dict(zip(_USED, used, strict=True))
    return RunTotals(
        runs=statuses.total(),
        statuses=dict(statuses),
        model_calls=calls,
        tool_calls=tools,
        p50=p50,
        p95=p95,
        first=first,
        last=last,
        **known,
    )


def _models(db: Connection, chosen: _Chosen) -> tuple[ModelStats, ...]:
    took = _percentiles(db, "model", "duration", f"model_calls WHERE {chosen.calls}", chosen)
    failed = dict(
        db.execute(
            f"""SELECT source, count(*) FROM errors WHERE {chosen.parts} AND place = 'model'
            AND (CAST(:model AS TEXT) IS NULL OR source = :model) GROUP BY source""",
            chosen.values,
        ).fetchall()
    )
    found = [
        ModelStats(
            model=model,
            calls=calls,
            errors=failed.pop(model, 0),
            p50=took[model][0],
            p95=took[model][1],
            **dict(zip(_USED, used, strict=True)),
        )
        for model, calls, *used in db.execute(
            f"""SELECT model, count(*), {_TOKENS} FROM model_calls WHERE {chosen.calls}
            GROUP BY model ORDER BY 2 DESC, 1""",
            chosen.values,
        )
    ]
    return (*found, *(ModelStats(name, 0, count, 0, 0, 0, 0.0, 0, None, None) for name, count in failed.items()))


def _tools(db: Connection, chosen: _Chosen) -> tuple[ToolStats, ...]:
    took = _percentiles(db, "tool", "duration", f"tool_calls WHERE {chosen.parts} AND duration > 0", chosen)
    by_tool = _counts(db, f"SELECT tool, outcome, count(*) FROM tool_calls WHERE {chosen.parts} GROUP BY 1, 2", chosen)
    return tuple(
        ToolStats(tool, outcomes.total(), _ordered(outcomes, _OUTCOMES), *took.get(tool, (None, None)))
        for tool, outcomes in by_tool
    )


def _hooks(db: Connection, chosen: _Chosen) -> tuple[HookStats, ...]:
    took = _percentiles(db, "hook", "duration", f"verdicts WHERE {chosen.parts} AND duration IS NOT NULL", chosen)
    by_hook = _counts(db, f"SELECT hook, verb, count(*) FROM verdicts WHERE {chosen.parts} GROUP BY 1, 2", chosen)
    return tuple(HookStats(hook, dict(verbs), *took.get(hook, (None, None))) for hook, verbs in by_hook)


def _refusals(db: Connection, chosen: _Chosen) -> tuple[RefusalStats, ...]:
    query = f"""SELECT hook, point, verb, coalesce(tool, ''), reason, count(*), max(at) FROM (
            SELECT hook, point, verb, tool, reason, at
                FROM (SELECT * FROM verdicts WHERE {chosen.parts} AND refused = 1) AS given
            LEFT JOIN (SELECT run_id, call_id, min(tool) AS tool FROM tool_calls
                WHERE {chosen.parts} GROUP BY 1, 2) AS called USING (run_id, call_id)
            UNION ALL SELECT decided_by, 'approval_requested', 'denied', tool, '', at
                FROM approvals WHERE {chosen.parts} AND decision = 'denied'
        ) AS prevented GROUP BY 1, 2, 3, 4, 5 ORDER BY 6 DESC, 7 DESC"""
    return tuple(RefusalStats(*row) for row in db.execute(query, chosen.values))


def _approvals(db: Connection, chosen: _Chosen) -> tuple[ApprovalStats, ...]:
    took = _percentiles(db, "tool", "waited", f"approvals WHERE {chosen.parts}", chosen)
    by_tool = _counts(db, f"SELECT tool, decision, count(*) FROM approvals WHERE {chosen.parts} GROUP BY 1, 2", chosen)
    return tuple(ApprovalStats(tool, _ordered(decisions, _DECISIONS), *took[tool]) for tool, decisions in by_tool)


def _errors(db: Connection, chosen: _Chosen) -> tuple[ErrorStats, ...]:
    query = f"""SELECT place, type, source, count(*), sum(fatal), max(at) FROM errors WHERE {chosen.parts}
        GROUP BY 1, 2, 3 ORDER BY 4 DESC, 6 DESC"""
    return tuple(ErrorStats(*row) for row in db.execute(query, chosen.values))


def _timeline(db: Connection, chosen: _Chosen, first: float | None) -> tuple[float, tuple[TimelineBar, ...]]:
    if first is None:
        return HOUR, ()
    now = time.time()
    width = next((width for width in _WIDTHS if now - first <= width * _MAX_BARS), _WIDTHS[-1])
    zone = time.localtime(now).tm_gmtoff  # days start at midnight in the local time zone
    start = int((first + zone) // width)

    def per_bar(what: str, at: str, table: str) -> dict[int, int]:
        query = f"SELECT CAST(({at} + {zone}) / {width} AS INTEGER), {what} FROM {table} GROUP BY 1"
        return dict(db.execute(query, chosen.values).fetchall())

    runs = per_bar("count(*)", "created", f"runs WHERE {chosen.runs}")
    tokens = per_bar("sum(input_tokens) + sum(output_tokens)", "at", f"model_calls WHERE {chosen.calls}")
    end = max(int((now + zone) // width), *runs, *tokens, start)
    bars = range(max(start, end - 2 * _MAX_BARS), end + 1)
    return width, tuple(TimelineBar(n * width - zone, runs.get(n, 0), tokens.get(n, 0)) for n in bars)


def _percentiles(
    db: Connection, name: str, value: str, source: str, chosen: _Chosen
) -> dict[str, tuple[float | None, float | None]]:
    """Return p50 and p95 by name. Sorting here takes a tenth of the time that window functions of SQLite take."""
    found: dict[str, list[float | None]] = {}
    for key, number in db.execute(f"SELECT {name}, {value} FROM {source}", chosen.values):
        found.setdefault(key, []).append(number)
    for numbers in found.values():
        numbers.sort(key=lambda number: -math.inf if number is None else number)
    return {key: (_nth(numbers, 50), _nth(numbers, 95)) for key, numbers in found.items()}


def _nth(numbers: Sequence[float | None], percent: int) -> float | None:
    return numbers[(len(numbers) * percent + 99) // 100 - 1]


def _counts(db: Connection, query: str, chosen: _Chosen) -> list[tuple[str, Counter[str]]]:
    """Return counts by name and kind, largest first."""
    found: dict[str, Counter[str]] = {}
    for name, kind, count in db.execute(query, chosen.values):
        found.setdefault(name, Counter())[kind] += count
    return sorted(found.items(), key=lambda item: (-item[1].total(), item[0]))


def _ordered(counts: Counter[str], names: tuple[str, ...]) -> dict[str, int]:
    return {name: counts[name] for name in names if counts[name]}
