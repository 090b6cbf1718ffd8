"""Statistics of the runs in a :class:`RunStore`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from . import facts
from .facts import SumFilter, Sums, Tally, percentile
from .runs import RunStore
from .sql import Connection

_OUTCOMES = ("ok", "error", "blocked", "answered", "cancelled")
_DECISIONS = ("approved", "denied", "edited", "cancelled")
_OWNED = """WITH RECURSIVE owned (run_id) AS (
        SELECT run_id FROM runs WHERE owner = :owner AND transport != ''
        UNION ALL SELECT nested.run_id FROM runs nested JOIN owned ON nested.parent_run_id = owned.run_id
            WHERE nested.parent_run_id != ''
    ) SELECT run_id FROM owned"""
"""The runs that a caller started, and those of their subagents."""
_CALLED = "SELECT run_id FROM facts WHERE kind = 'model' AND model = :model"
_WIDTHS = (facts.HOUR, facts.DAY, 7 * facts.DAY, 28 * facts.DAY, 364 * facts.DAY)
_MAX_BARS = 60
_GROUPS = ("kind", "name", "point", "verb", "tool", "reason", "took")


class RunTotals(msgspec.Struct, frozen=True):
    """Totals of all runs. ``cost`` covers the calls with a known price; ``unpriced`` is the number of others.

    ``lost`` is the number of records that could not be written, so that what they were about is missing everywhere.
    """

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
    lost: int


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
    """Calls of one hook by verb; ``cont`` let everything pass.

    ``shadow`` counts by verb what the hook would have done in shadow mode, which had no effect.
    ``seconds`` is the duration of all calls, and ``share`` its part of the time of all runs; ``None`` if no run has
    ended. p50 and p95 are durations in seconds.
    """

    hook: str
    calls: int
    verbs: dict[str, int]
    shadow: dict[str, int]
    seconds: float
    share: float | None
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
    """What happened in a period that starts at the Unix time ``began``: runs that started, tokens, refusals, errors."""

    began: float
    runs: int
    tokens: int
    refusals: int
    errors: int


class RunStats(msgspec.Struct, frozen=True):
    """Result of :func:`run_stats`. Each bar of ``timeline`` covers ``width`` seconds; days begin at midnight UTC."""

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

    p50 and p95 have an error of at most 10 %. Without ``model``, this reads sums by hour and day, and the facts of at
    most one hour, so it does not depend on the number of runs; of times more than 39 days ago, whole days count. With
    ``model``, it reads the facts of the runs that called it.

    Args:
        store: the store.
        since: only what happened, and runs that started, at this Unix time or later.
        agent: only runs of this agent.
        model: only runs that called this model, and only their calls of it.
        owner: only runs that this caller of a server started, and those of their subagents.

    Raises:
        StoreError: the file cannot be used.

    Example::

        stats = run_stats(RunStore("runs.db"), since=time.time() - 24 * 3600)
        print(stats.totals.runs, stats.totals.cost)
    """
    chosen = _Chosen(since, agent, model, owner)
    with store.db.transaction() as db:
        tally = _from_facts(db, chosen)
        found = _counted(db, chosen, tally)
        unfinished = [(run.status, run.created) for run in store._open(db, chosen.runs, chosen.values)]
        first = start = _first(db, chosen)
        if since is not None:  # without empty bars before the first run of all
            start = max(since, _first(db, msgspec.structs.replace(chosen, since=None)) or since)
        width, bars = _timeline(db, chosen, tally, unfinished, start)
        return RunStats(
            totals=_totals(found, unfinished, first),
            models=_models(found, model),
            tools=_tools(found),
            hooks=_hooks(found),
            refusals=_refusals(found),
            approvals=_approvals(found),
            errors=_errors(found),
            width=width,
            timeline=bars,
        )


class _Chosen(msgspec.Struct, frozen=True):
    """Which runs and facts are counted."""

    since: float | None
    agent: str | None
    model: str | None
    owner: str | None

    @property
    def values(self) -> dict[str, Any]:
        return {"since": self.since, "agent": self.agent, "model": self.model, "owner": self.owner}

    @property
    def runs(self) -> str:
        """The condition for rows of runs."""
        return "observed = 1" + "".join(
            f" AND {condition}"
            for condition, value in (
                (f"run_id IN ({_OWNED})", self.owner),
                ("created >= :since", self.since),
                ("agent = :agent", self.agent),
                (f"run_id IN ({_CALLED})", self.model),
            )
            if value is not None
        )

    def sums(self, *kinds: str) -> SumFilter:
        """Return which sums are counted; with ``kinds``, only these."""
        return SumFilter(self.owner, agent=self.agent, kinds=kinds)

    def facts(self, until: float | None) -> tuple[str, dict[str, Any]]:
        """Return the condition for facts before a Unix time, and its values."""
        conditions = [
            condition
            for condition, value in (
                ("at >= :since", self.since),
                ("at < :until", until),
                ("agent = :agent", self.agent),
                ("owner = :owner", self.owner),
                (f"run_id IN ({_CALLED})", self.model),
                ("(kind != 'model' OR model = :model)", self.model),
                ("(place != 'model' OR source = :model)", self.model),
            )
            if value is not None
        ]
        return " AND ".join(conditions) or "1 = 1", {**self.values, "until": until}


class _Counted(msgspec.Struct, frozen=True):
    """Sums by point, verb, tool and reason, and the classes of durations, of everything with one kind and name."""

    by_key: dict[tuple[str, str, str, str], Sums] = msgspec.field(default_factory=dict)
    durations: Counter[int] = msgspec.field(default_factory=Counter)
    total: Sums = msgspec.field(default_factory=Sums)

    def add(self, key: tuple[str, str, str, str], took: int, sums: Sums) -> None:
        self.by_key.setdefault(key, Sums()).add(sums)
        self.durations[took] += sums.count
        self.total.add(sums)

    @property
    def verbs(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for (_, verb, _, _), sums in self.by_key.items():
            found[verb] += sums.count
        return found

    @property
    def p50(self) -> float | None:
        return percentile(self.durations, 50)

    @property
    def p95(self) -> float | None:
        return percentile(self.durations, 95)


_Found = dict[str, dict[str, _Counted]]
"""What was counted, by kind and name."""


def _counted(db: Connection, chosen: _Chosen, tally: Tally) -> _Found:
    found: _Found = {}

    def add(sums: Sums, kind: str, name: str, point: str, verb: str, tool: str, reason: str, took: int) -> None:
        found.setdefault(kind, {}).setdefault(name, _Counted()).add((point, verb, tool, reason), took, sums)

    for counted, sums in tally.items():
        add(sums, *counted[4:])
    if chosen.model is None:
        for key, sums in facts.read_sums(db, chosen.sums(), _GROUPS, chosen.since).items():
            add(sums, *key)
    return found


def _from_facts(db: Connection, chosen: _Chosen) -> Tally:
    """Count the facts that sums do not cover: those of an hour that began before, or those of runs with a model."""
    tally = Tally()
    if chosen.model is None:
        if chosen.since is None or (until := facts.first_full_hour(chosen.since)) <= chosen.since:
            return tally
        chosen_facts = chosen.facts(until)
    else:
        chosen_facts = chosen.facts(None)
    for fact in facts.facts_of(db, *chosen_facts):
        tally.count(fact)
    return tally


def _first(db: Connection, chosen: _Chosen) -> float | None:
    """Return when the first run started."""
    query = f"SELECT created FROM runs WHERE {chosen.runs} ORDER BY created, run_id LIMIT 1"
    row = db.execute(query, chosen.values).fetchone()
    return None if row is None else row[0]


def _totals(found: _Found, unfinished: Sequence[tuple[str, float]], first: float | None) -> RunTotals:
    used, tools, ended = _total(found, "model"), _total(found, "tool"), _total(found, "run")
    statuses = found.get("run", {}).get("", _Counted()).verbs
    statuses.update(status for status, _ in unfinished)
    return RunTotals(
        runs=statuses.total(),
        statuses=dict(statuses),
        model_calls=used.total.count,
        tool_calls=tools.total.count,
        p50=ended.p50,
        p95=ended.p95,
        first=first,
        last=max((ended.total.last, *(began for _, began in unfinished))) or None,
        lost=_total(found, "gap").total.count,
        **_used(used.total),
    )


def _total(found: _Found, kind: str) -> _Counted:
    total = _Counted()
    for each in found.get(kind, {}).values():
        total.total.add(each.total)
        total.durations.update(each.durations)
    return total


def _used(sums: Sums) -> dict[str, Any]:
    return {
        "input_tokens": sums.input_tokens,
        "output_tokens": sums.output_tokens,
        "cached_tokens": sums.cached_tokens,
        "cost": sums.cost,
        "unpriced": sums.unpriced,
    }


def _models(found: _Found, chosen: str | None) -> tuple[ModelStats, ...]:
    failed: Counter[str] = Counter()
    for source, each in found.get("error", {}).items():
        for (place, _, _, _), sums in each.by_key.items():
            if place == "model" and chosen in (None, source):
                failed[source] += sums.count
    called = [
        ModelStats(model, each.total.count, failed.pop(model, 0), **_used(each.total), p50=each.p50, p95=each.p95)
        for model, each in _largest_first(found, "model")
    ]
    return (*called, *(ModelStats(name, 0, count, 0, 0, 0, 0.0, 0, None, None) for name, count in failed.items()))


def _tools(found: _Found) -> tuple[ToolStats, ...]:
    return tuple(
        ToolStats(tool, each.total.count, _ordered(each.verbs, _OUTCOMES), each.p50, each.p95)
        for tool, each in _largest_first(found, "tool")
    )


def _hooks(found: _Found) -> tuple[HookStats, ...]:
    elapsed = _total(found, "run").total.seconds
    shadows = found.get("shadow", {})
    return tuple(
        HookStats(
            hook,
            each.total.count,
            dict(each.verbs.most_common()),
            dict(shadows[hook].verbs.most_common()) if hook in shadows else {},
            each.total.seconds,
            min(1.0, each.total.seconds / elapsed) if elapsed else None,
            each.p50,
            each.p95,
        )
        for hook, each in _largest_first(found, "hook")
    )


def _refusals(found: _Found) -> tuple[RefusalStats, ...]:
    rows = [
        RefusalStats(hook, *key, sums.count, sums.last)
        for hook, each in found.get("refusal", {}).items()
        for key, sums in each.by_key.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.count, -row.last)))


def _approvals(found: _Found) -> tuple[ApprovalStats, ...]:
    return tuple(
        ApprovalStats(tool, _ordered(each.verbs, _DECISIONS), each.p50, each.p95)
        for tool, each in _largest_first(found, "approval")
    )


def _errors(found: _Found) -> tuple[ErrorStats, ...]:
    rows = [
        ErrorStats(place, kind, source, sums.count, sums.fatal, sums.last)
        for source, each in found.get("error", {}).items()
        for (place, kind, _, _), sums in each.by_key.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.count, -row.last)))


def _timeline(
    db: Connection, chosen: _Chosen, tally: Tally, unfinished: Iterable[tuple[str, float]], first: float | None
) -> tuple[float, tuple[TimelineBar, ...]]:
    if first is None:
        return facts.HOUR, ()
    now = time.time()
    width = next((width for width in _WIDTHS if now - first <= width * _MAX_BARS), _WIDTHS[-1])
    runs, tokens, refusals, errors = Counter[int](), Counter[int](), Counter[int](), Counter[int]()
    runs.update(int(began // width) for _, began in unfinished)
    counts = {"run": runs, "refusal": refusals, "error": errors}
    for began, kind, sums in _sums_over_time(db, chosen, tally, hourly=width == facts.HOUR):
        tokens[began // width] += sums.input_tokens + sums.output_tokens
        if kind in counts:
            counts[kind][began // width] += sums.count
    start = int(first // width)
    end = max(int(now // width), *runs, *tokens, start)
    bars = range(max(start, end - 2 * _MAX_BARS), end + 1)
    return width, tuple(TimelineBar(n * width, runs[n], tokens[n], refusals[n], errors[n]) for n in bars)


def _sums_over_time(db: Connection, chosen: _Chosen, tally: Tally, *, hourly: bool) -> Iterator[tuple[int, str, Sums]]:
    """Yield runs, model calls, refusals and errors by time."""
    for (_, hour, _, _, kind, *_), sums in tally.items():
        yield hour, kind, sums
    if chosen.model is None:
        wanted = chosen.sums("run", "model", "refusal", "error")
        for (began, kind), sums in facts.read_sums(db, wanted, ("began", "kind"), chosen.since, hourly=hourly).items():
            yield began, kind, sums


def _largest_first(found: _Found, kind: str) -> list[tuple[str, _Counted]]:
    return sorted(found.get(kind, {}).items(), key=lambda item: (-item[1].total.count, item[0]))


def _ordered(counts: Counter[str], names: tuple[str, ...]) -> dict[str, int]:
    return {name: counts[name] for name in names if counts[name]}
