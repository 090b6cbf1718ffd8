"""Figures of runs over time: what each hook decided and how long it took, and what the models cost.

They are read from the sums of facts (``stores/facts.py``), so a view takes as long with a million runs as with ten.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from .facts import DAY, HOUR, MINUTES, SumFilter, Sums, percentile, slot_sums
from .runs import RunStore
from .sql import Connection

Period = Literal["hour", "day", "week", "month", "all"]
_PERIODS: Mapping[str, tuple[int, int]] = {
    "hour": (MINUTES, 12),
    "day": (HOUR, 24),
    "week": (DAY, 7),
    "month": (DAY, 30),
    "all": (DAY, 0),
}
"""The length of the slots of each period, and their number; 0 for all of them."""

MAX_BARS = 60
"""Maximum number of bars: with more days, a bar is for several of them."""


class Used(msgspec.Struct, frozen=True):
    """The use of models. ``cost`` covers the calls with a known price; ``unpriced`` is the number of others."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost: float = 0.0
    unpriced: int = 0

    def __add__(self, other: Used) -> Used:
        """Return the sum."""
        return Used(
            self.calls + other.calls,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.cost + other.cost,
            self.unpriced + other.unpriced,
        )

    def __sub__(self, other: Used) -> Used:
        """Return the difference."""
        return Used(
            self.calls - other.calls,
            self.input_tokens - other.input_tokens,
            self.output_tokens - other.output_tokens,
            self.cached_tokens - other.cached_tokens,
            self.cost - other.cost,
            self.unpriced - other.unpriced,
        )

    @property
    def tokens(self) -> int:
        """All tokens, read and written."""
        return self.input_tokens + self.output_tokens


class HookFigures(msgspec.Struct, frozen=True):
    """Figures of one hook at one point, in the runs of one agent and their subagents.

    ``verbs`` has the number of its results by verb: ``cont`` is a call that let everything pass, ``failed`` one that
    raised an error. ``shadow`` has what the hook would have done in shadow mode. ``seconds`` is the duration of all
    calls. ``p50`` and ``p95`` are durations in seconds with an error of at most 10 %; ``None`` if none was measured.
    """

    agent: str
    point: str
    hook: str
    calls: int = 0
    verbs: dict[str, int] = {}
    shadow: dict[str, int] = {}
    p50: float | None = None
    p95: float | None = None
    seconds: float = 0.0


class RefusalGroup(msgspec.Struct, frozen=True):
    """What one hook, or one person, prevented for one reason: how often, in each slot of the period, and when last.

    ``hook`` is empty if a person denied calls: ``by`` is the person then.
    """

    hook: str
    by: str
    verb: str
    reason: str
    count: int
    last: float
    tools: tuple[str, ...]
    agents: tuple[str, ...]
    bars: tuple[int, ...]


class Activity(msgspec.Struct, frozen=True):
    """What happened by the hour, and today. The last of the 24 hours is the one that has not ended; days are in UTC.

    Each has the same names: ``runs`` that ended, calls that were ``asked`` about, what was ``refused``, runs that
    ``failed``, the ``cost``, and model calls that are ``unpriced``. ``usual`` is the mean of the days of the week
    before today, without those before the first; empty if there are none.
    """

    hours: dict[str, tuple[float, ...]]
    today: dict[str, float]
    usual: dict[str, float]


class CostRow(msgspec.Struct, frozen=True):
    """The use of models by one agent or caller, or of one model."""

    name: str
    used: Used


class CostBar(msgspec.Struct, frozen=True):
    """The use of models from the Unix time ``began`` until before ``ended``."""

    began: float
    ended: float
    used: Used


class Costs(msgspec.Struct, frozen=True):
    """The use of models: in all, over time, and by agent, caller and model, the most expensive first."""

    since: float
    total: Used
    bars: tuple[CostBar, ...]
    agents: tuple[CostRow, ...]
    callers: tuple[CostRow, ...]
    models: tuple[CostRow, ...]


def period_of(period: str, now: float | None = None) -> tuple[int, float]:
    """Return the length of the slots of a period, and when the first of them began; 0 for all of them.

    The last slot is the one that has begun and has not ended: of a week, today is the seventh day. Days are in UTC.
    """
    length, count = _PERIODS[period]
    now = time.time() if now is None else now
    return length, (now // length - count + 1) * length if count else 0.0


def hook_figures(
    store: RunStore,
    period: str,
    *,
    owner: str | None = None,
    agent: str = "",
    now: float | None = None,
    together: bool = False,
) -> list[HookFigures]:
    """Return the figures of the hooks that were called, by agent, point and hook.

    Args:
        store: the store.
        period: how far back: a :data:`Period`.
        owner: only runs of this caller; ``None`` for all.
        agent: only runs of this agent and their subagents; all if empty.
        now: the end of the period, as Unix time; now if left out.
        together: count the runs of all agents together, as those of an agent without a name.

    Raises:
        StoreError: the file cannot be used.
    """
    length, since = period_of(period, now)
    chosen = SumFilter(owner, asked=agent or None, kinds=("hook", "shadow"))
    found: dict[tuple[str, str, str], list[tuple[str, str, int, Sums]]] = {}
    with store.db.transaction() as db:
        sums = slot_sums(db, chosen, ("asked", "point", "name", "kind", "verb", "took"), length, since)
    for key in sorted(sums):
        asked, point, hook, kind, verb, took = key
        found.setdefault(("" if together else asked, point, hook), []).append((kind, verb, took, sums[key]))
    return [_hook_figures(*key, each) for key, each in found.items()]


def run_seconds(
    store: RunStore, period: str, *, owner: str | None = None, agent: str = "", now: float | None = None
) -> float:
    """Return the duration of all runs, with those of subagents. Arguments are those of :func:`hook_figures`.

    Raises:
        StoreError: the file cannot be used.
    """
    length, since = period_of(period, now)
    with store.db.transaction() as db:
        sums = slot_sums(db, SumFilter(owner, asked=agent or None, kinds=("run",)), ("kind",), length, since)
    return sum(each.seconds for each in sums.values())


def refusal_groups(
    store: RunStore,
    period: str,
    *,
    owner: str | None = None,
    agent: str = "",
    tool: str = "",
    hook: str = "",
    verb: str = "",
    now: float | None = None,
) -> list[RefusalGroup]:
    """Return what was prevented, by rule and reason, the most frequent first.

    Args:
        store: the store.
        period: how far back: a :data:`Period`.
        owner: only in runs of this caller; ``None`` for all.
        agent: only in runs of this agent and their subagents; all if empty.
        tool: only calls of this tool.
        hook: only what this hook prevented, or this person, who denied it.
        verb: only with this verb.
        now: the end of the period, as Unix time; now if left out.

    Raises:
        StoreError: the file cannot be used.
    """
    now = time.time() if now is None else now
    length, since = period_of(period, now)
    chosen = SumFilter(owner, asked=agent or None, kinds=("refusal",))
    with store.db.transaction() as db:
        sums = slot_sums(db, chosen, ("name", "verb", "reason", "tool", "asked", "began"), length, since)
    wanted = {key: each for key, each in sums.items() if _fits(key, tool, hook, verb)}
    first = int(since) or min((int(key[5]) for key in wanted), default=0)
    slots = range(first, int(now // length + 1) * length, length)
    found: dict[tuple[str, str, str], list[tuple[str, str, int, Sums]]] = {}
    for (name, said, reason, used, asked, began), each in wanted.items():
        found.setdefault((name, said, reason), []).append((used, asked, int(began), each))
    groups = [_refusal_group(*key, each, slots) for key, each in found.items()]
    return sorted(groups, key=lambda group: (-group.count, -group.last))


def _fits(key: tuple[Any, ...], tool: str, hook: str, verb: str) -> bool:
    name, said, _, used, *_ = key
    return (not tool or used == tool) and (not verb or said == verb) and (not hook or name == hook)


def _refusal_group(
    name: str, verb: str, reason: str, parts: Iterable[tuple[str, str, int, Sums]], slots: range
) -> RefusalGroup:
    parts = list(parts)
    bars = Counter[int]()
    for _, _, began, sums in parts:
        bars[began] += sums.count
    is_person = verb == "denied"
    return RefusalGroup(
        hook="" if is_person else name,
        by=name if is_person else "",
        verb=verb,
        reason=reason,
        count=bars.total(),
        last=max(sums.last for *_, sums in parts),
        tools=tuple(sorted({tool for tool, *_ in parts if tool})),
        agents=tuple(sorted({asked for _, asked, *_ in parts if asked})),
        bars=tuple(bars[began] for began in slots[-MAX_BARS:]),
    )


def activity(store: RunStore, *, owner: str | None = None, now: float | None = None) -> Activity:
    """Return what happened by the hour, today, and on a usual day.

    Args:
        store: the store.
        owner: only runs of this caller; ``None`` for all.
        now: the present, as Unix time; now if left out.

    Raises:
        StoreError: the file cannot be used.
    """
    now = time.time() if now is None else now
    chosen = SumFilter(owner, kinds=("run", "approval", "refusal", "model"))
    _, first_hour = period_of("day", now)
    today = now // DAY * DAY
    with store.db.transaction() as db:
        hourly = slot_sums(db, chosen, ("kind", "verb", "began"), HOUR, first_hour)
        daily = slot_sums(db, chosen, ("kind", "verb", "began"), DAY, today - 7 * DAY)
    hours, days = _by_time(hourly), _by_time(daily)
    before = [began for began in sorted({began for each in days.values() for began in each}) if began < today]
    count = (today - before[0]) // DAY if before else 0
    return Activity(
        hours={name: tuple(hours[name][int(first_hour) + n * HOUR] for n in range(24)) for name in hours},
        today={name: each[int(today)] for name, each in days.items()},
        usual={name: sum(each[began] for began in before) / count for name, each in days.items()} if count else {},
    )


def _by_time(sums: Mapping[tuple[Any, ...], Sums]) -> dict[str, defaultdict[int, float]]:
    """Return what :class:`Activity` has, by the beginning of the slot."""
    found = {
        name: defaultdict[int, float](float) for name in ("runs", "asked", "refused", "failed", "cost", "unpriced")
    }
    for (kind, verb, began), each in sums.items():
        at = int(began)
        if kind == "model":
            found["cost"][at] += each.cost
            found["unpriced"][at] += each.unpriced
        else:
            found[{"run": "runs", "approval": "asked", "refusal": "refused"}[kind]][at] += each.count
        if (kind, verb) == ("run", "failed"):
            found["failed"][at] += each.count
    return found


def costs(
    store: RunStore, period: str, *, owner: str | None = None, agent: str = "", now: float | None = None
) -> Costs:
    """Return what the models were used for. Arguments are those of :func:`hook_figures`.

    Raises:
        StoreError: the file cannot be used.
    """
    now = time.time() if now is None else now
    length, since = period_of(period, now)

    def used(db: Connection, *columns: str, by_caller: bool = False) -> list[dict[Any, Used]]:
        chosen = SumFilter(owner, by_caller, asked=agent or None, kinds=("model",))
        found: list[dict[Any, Used]] = [{} for _ in columns]
        for key, sums in sorted(slot_sums(db, chosen, columns, length, since).items(), key=lambda each: each[0]):
            for name, groups in zip(key, found, strict=True):
                groups[name] = groups.get(name, Used()) + _used(sums)
        return found

    with store.db.transaction() as db:
        slots, agents, models = used(db, "began", "asked", "name")
        (callers,) = used(db, "owner", by_caller=True)
    total = sum(slots.values(), Used())
    without_caller = total - sum(callers.values(), Used())
    if without_caller.calls:
        callers[""] = without_caller
    bars = _bars(slots, length, since, now, MAX_BARS)
    return Costs(
        since=since or (bars[0].began if bars else now // length * length),
        total=total,
        bars=bars,
        agents=_cost_rows(agents),
        callers=_cost_rows(callers),
        models=_cost_rows(models),
    )


def cost_bars(
    store: RunStore, period: str, *, owner: str | None = None, agent: str = "", now: float | None = None
) -> tuple[CostBar, ...]:
    """Return only what :func:`costs` says over time. Arguments are those of :func:`hook_figures`.

    Raises:
        StoreError: the file cannot be used.
    """
    now = time.time() if now is None else now
    length, since = period_of(period, now)
    chosen = SumFilter(owner, asked=agent or None, kinds=("model",))
    with store.db.transaction() as db:
        slots = {key[0]: _used(sums) for key, sums in slot_sums(db, chosen, ("began",), length, since).items()}
    return _bars(slots, length, since, now, MAX_BARS)


def _used(sums: Sums) -> Used:
    tokens = sums.input_tokens, sums.output_tokens, sums.cached_tokens
    return Used(sums.count, *tokens, sums.cost, sums.unpriced)


def _hook_figures(agent: str, point: str, hook: str, rows: Iterable[tuple[str, str, int, Sums]]) -> HookFigures:
    verbs, shadow, durations, seconds = Counter[str](), Counter[str](), Counter[int](), 0.0
    for kind, verb, took, sums in rows:
        (shadow if kind == "shadow" else verbs)[verb] += sums.count
        durations[took] += sums.count
        seconds += sums.seconds
    p50, p95 = percentile(durations, 50), percentile(durations, 95)
    return HookFigures(
        agent, point, hook, verbs.total(), dict(verbs.most_common()), dict(shadow.most_common()), p50, p95, seconds
    )


def _cost_rows(found: Mapping[str | int, Used]) -> tuple[CostRow, ...]:
    rows = [CostRow(str(name), used) for name, used in found.items()]
    return tuple(sorted(rows, key=lambda row: (-row.used.cost, -row.used.tokens, row.name)))


def _bars(slots: Mapping[str | int, Used], length: int, since: float, now: float, most: int) -> tuple[CostBar, ...]:
    """Return bars without gaps, each for one slot, or for several if there would be too many."""
    if not slots and not since:
        return ()
    first = int(since) or min(map(int, slots))
    end = int(now // length + 1) * length
    width = length * max(1, -(-(end - first) // length // most))
    sums = dict.fromkeys(range(first, end, width), Used())
    for began, used in slots.items():
        at = first + (int(began) - first) // width * width
        if at in sums:  # a clock that was ahead may have counted into a later slot
            sums[at] += used
    return tuple(CostBar(began, min(began + width, end), used) for began, used in sums.items())
