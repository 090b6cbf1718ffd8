"""Figures of runs over time: what each hook decided and how long it took, and what the models cost.

They are read from the sums of facts (``stores/facts.py``), so a view takes as long with a million runs as with ten.
"""

from __future__ import annotations

import time
from collections import Counter
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
    raised an error. ``shadow`` has what the hook would have done in shadow mode. ``p50`` and ``p95`` are durations in
    seconds with an error of at most 10 %; ``None`` if none was measured.
    """

    agent: str
    point: str
    hook: str
    calls: int = 0
    verbs: dict[str, int] = {}
    shadow: dict[str, int] = {}
    p50: float | None = None
    p95: float | None = None


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
    store: RunStore, period: str, *, owner: str | None = None, agent: str = "", now: float | None = None
) -> list[HookFigures]:
    """Return the figures of the hooks that were called, by agent, point and hook.

    Args:
        store: the store.
        period: how far back: a :data:`Period`.
        owner: only runs of this caller; ``None`` for all.
        agent: only runs of this agent and their subagents; all if empty.
        now: the end of the period, as Unix time; now if left out.

    Raises:
        StoreError: the file cannot be used.
    """
    length, since = period_of(period, now)
    chosen = SumFilter(owner, asked=agent or None, kinds=("hook", "shadow"))
    found: dict[tuple[str, str, str], list[tuple[str, str, int, int]]] = {}
    with store.db.transaction() as db:
        sums = slot_sums(db, chosen, ("asked", "point", "name", "kind", "verb", "took"), length, since)
    for asked, point, hook, kind, verb, took in sorted(sums):
        calls = sums[asked, point, hook, kind, verb, took].count
        found.setdefault((asked, point, hook), []).append((kind, verb, took, calls))
    return [_hook_figures(*key, each) for key, each in found.items()]


def costs(
    store: RunStore, period: str, *, owner: str | None = None, agent: str = "", now: float | None = None
) -> Costs:
    """Return what the models were used for. Arguments are those of :func:`hook_figures`.

    Raises:
        StoreError: the file cannot be used.
    """
    now = time.time() if now is None else now
    length, since = period_of(period, now)

    def used(db: Connection, column: str, *, by_caller: bool = False) -> dict[Any, Used]:
        chosen = SumFilter(owner, by_caller, asked=agent or None, kinds=("model",))
        sums = slot_sums(db, chosen, (column,), length, since)
        return {key[0]: _used(sums[key]) for key in sorted(sums)}

    with store.db.transaction() as db:
        slots, agents, models = used(db, "began"), used(db, "asked"), used(db, "name")
        callers = used(db, "owner", by_caller=True)
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


def _used(sums: Sums) -> Used:
    tokens = sums.input_tokens, sums.output_tokens, sums.cached_tokens
    return Used(sums.count, *tokens, sums.cost, sums.unpriced)


def _hook_figures(agent: str, point: str, hook: str, rows: Iterable[tuple[str, str, int, int]]) -> HookFigures:
    verbs, shadow, durations = Counter[str](), Counter[str](), Counter[int]()
    for kind, verb, took, calls in rows:
        (shadow if kind == "shadow" else verbs)[verb] += calls
        durations[took] += calls
    p50, p95 = percentile(durations, 50), percentile(durations, 95)
    return HookFigures(
        agent, point, hook, verbs.total(), dict(verbs.most_common()), dict(shadow.most_common()), p50, p95
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
