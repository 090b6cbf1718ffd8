"""Figures of served runs over time: what each hook decided and how long it took, and what the models cost.

A server counts while its runs go on, in slots of three lengths. A view reads the slots and neither runs nor events, so
it takes as long with a million runs as with ten. Calls of hooks are also counted for all callers together, so that a
view of everyone does not depend on their number. Short slots are deleted when no view shows them any more. Long ones
stay, also when the runs that they are about are deleted: they have names and numbers only.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from .sql import Connection, Database, storable

SCHEMA = (
    """CREATE TABLE hook_figures (
        length INTEGER NOT NULL, everyone INTEGER NOT NULL, began INTEGER NOT NULL, owner TEXT NOT NULL,
        agent TEXT NOT NULL, point TEXT NOT NULL, hook TEXT NOT NULL, shadow INTEGER NOT NULL, verb TEXT NOT NULL,
        took INTEGER NOT NULL, calls INTEGER NOT NULL,
        PRIMARY KEY (length, everyone, began, owner, agent, point, hook, shadow, verb, took)
    ) WITHOUT ROWID""",
    """CREATE TABLE model_figures (
        length INTEGER NOT NULL, began INTEGER NOT NULL, owner TEXT NOT NULL, agent TEXT NOT NULL, model TEXT NOT NULL,
        calls INTEGER NOT NULL, input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL,
        cached_tokens INTEGER NOT NULL, cost REAL NOT NULL, unpriced INTEGER NOT NULL,
        PRIMARY KEY (length, began, owner, agent, model)
    ) WITHOUT ROWID""",
    "CREATE TABLE run_models (run_id TEXT NOT NULL, model TEXT NOT NULL, PRIMARY KEY (run_id, model)) WITHOUT ROWID",
)

_MINUTES, _HOUR, _DAY = 300, 3600, 86400
_KEPT: Mapping[int, float | None] = {_MINUTES: 2 * _HOUR, _HOUR: 2 * _DAY, _DAY: None}
"""The lengths of slots in seconds, and for how many seconds they are kept."""

Period = Literal["hour", "day", "week", "month", "all"]
_PERIODS: Mapping[str, tuple[int, int]] = {
    "hour": (_MINUTES, 12),
    "day": (_HOUR, 24),
    "week": (_DAY, 7),
    "month": (_DAY, 30),
    "all": (_DAY, 0),
}
"""The length of the slots of each period, and their number; 0 for all of them."""

_PER_OCTAVE = 4
_UNKNOWN = -1
"""The ``took`` of a call whose duration was not measured."""
_MAX_TOOK = 4 * 32
PRUNE_SECONDS = 3600.0


class HookKey(NamedTuple):
    """The key by which calls of a hook are counted. ``shadow`` is 1 for a decision without effect, see ``shadow()``."""

    owner: str
    agent: str
    point: str
    hook: str
    shadow: int
    verb: str
    took: int


class ModelKey(NamedTuple):
    """The key by which calls of a model are counted."""

    owner: str
    agent: str
    model: str


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

    @property
    def tokens(self) -> int:
        """All tokens, read and written."""
        return self.input_tokens + self.output_tokens


class Tally(msgspec.Struct):
    """Counts of a process that are not stored yet. ``models_of`` has the models that each run called."""

    hooks: Counter[HookKey] = msgspec.field(default_factory=Counter)
    models: dict[ModelKey, Used] = msgspec.field(default_factory=dict)
    models_of: set[tuple[str, str]] = msgspec.field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.hooks or self.models)

    def add(self, other: Tally) -> None:
        """Add what another tally has counted."""
        self.hooks.update(other.hooks)
        for key, used in other.models.items():
            self.models[key] = self.models.get(key, Used()) + used
        self.models_of |= other.models_of


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


def took(seconds: float | None) -> int:
    """Return the class of a duration, four of them between a value and its double."""
    if seconds is None:
        return _UNKNOWN
    return min(max(0, math.floor(math.log2(max(seconds, 1e-6) * 1e6) * _PER_OCTAVE)), _MAX_TOOK)


def period_of(period: str, now: float | None = None) -> tuple[int, float]:
    """Return the length of the slots of a period, and when the first of them began; 0 for all of them.

    The last slot is the one that has begun and has not ended: of a week, today is the seventh day. Days are in UTC.
    """
    length, count = _PERIODS[period]
    now = time.time() if now is None else now
    return length, (now // length - count + 1) * length if count else 0.0


class FigureStore:
    """Store the figures of served runs. All methods block, and raise ``StoreError`` if the database cannot be used.

    Args:
        db: the database of the runs.
    """

    max_bars = 60
    """Maximum number of bars: with more days, a bar is for several of them."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._pruned = float("-inf")

    def add(self, tally: Tally, now: float | None = None) -> None:
        """Add what was counted to the slots of this moment."""
        now = time.time() if now is None else now
        hooks, models = list[tuple[Any, ...]](), list[tuple[Any, ...]]()
        everyone: Counter[HookKey] = Counter()
        for key, calls in tally.hooks.items():
            everyone[key._replace(owner="")] += calls
        for length in _KEPT:
            began = int(now // length * length)
            for is_everyone, counted in enumerate((tally.hooks, everyone)):
                hooks += [(length, is_everyone, began, *map(_value, key), calls) for key, calls in counted.items()]
            models += [
                (length, began, *map(_value, key), *msgspec.structs.astuple(used)) for key, used in tally.models.items()
            ]
        runs = [tuple(map(storable, each)) for each in tally.models_of]
        with self._db.transaction(write=True, lock=None) as db:
            # Rows are sorted, so that processes that add to the same ones never wait for each other in a circle.
            db.executemany(_ADD_HOOK, sorted(hooks))
            db.executemany(_ADD_MODEL, sorted(models))
            db.executemany("INSERT INTO run_models VALUES (?, ?) ON CONFLICT DO NOTHING", sorted(runs))
            if time.monotonic() > self._pruned + PRUNE_SECONDS:
                self._pruned = time.monotonic()
                _prune(db, now)

    def hooks(
        self, period: str, *, owner: str | None = None, agent: str = "", now: float | None = None
    ) -> list[HookFigures]:
        """Return the figures of the hooks that were called, by agent, point and hook.

        Args:
            period: how far back: a :data:`Period`.
            owner: only runs of this caller; ``None`` for all.
            agent: only runs of this agent; all if empty.
            now: the end of the period, as Unix time; now if left out.
        """
        condition, values = _chosen(period, owner, agent, now)
        condition = f"everyone = {int(owner is None)} AND {condition}"
        query = f"""SELECT agent, point, hook, shadow, verb, took, sum(calls) FROM hook_figures WHERE {condition}
            GROUP BY agent, point, hook, shadow, verb, took ORDER BY agent, point, hook, took"""
        found: dict[tuple[str, str, str], list[tuple[int, str, int, int]]] = {}
        for *key, shadow, verb, duration, calls in self._db.execute(query, values):
            found.setdefault((key[0], key[1], key[2]), []).append((shadow, verb, duration, int(calls)))
        return [_hook_figures(*key, rows) for key, rows in found.items()]

    def costs(self, period: str, *, owner: str | None = None, agent: str = "", now: float | None = None) -> Costs:
        """Return what the models were used for. Arguments are those of :meth:`hooks`."""
        now = time.time() if now is None else now
        length, since = period_of(period, now)
        condition, values = _chosen(period, owner, agent, now)
        with self._db.transaction() as db:
            slots = _used(db, "began", condition, values)
            rows = {name: _cost_rows(_used(db, name, condition, values)) for name in ("agent", "owner", "model")}
        bars = _bars(slots, length, since, now, self.max_bars)
        return Costs(
            since=since or (bars[0].began if bars else now // length * length),
            total=sum(slots.values(), Used()),
            bars=bars,
            agents=rows["agent"],
            callers=rows["owner"],
            models=rows["model"],
        )


_HOOK_KEYS = ("length", "everyone", "began", *HookKey._fields)
_MODEL_KEYS = ("length", "began", *ModelKey._fields)


def _adding(table: str, keys: Sequence[str], numbers: Sequence[str]) -> str:
    marks = ", ".join("?" * (len(keys) + len(numbers)))
    added = ", ".join(f"{name} = {table}.{name} + excluded.{name}" for name in numbers)
    return f"INSERT INTO {table} VALUES ({marks}) ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {added}"


_ADD_HOOK = _adding("hook_figures", _HOOK_KEYS, ("calls",))
_ADD_MODEL = _adding("model_figures", _MODEL_KEYS, Used.__struct_fields__)


def _value(value: object) -> object:
    return storable(value) if isinstance(value, str) else value


def _prune(db: Connection, now: float) -> None:
    for length, kept in _KEPT.items():
        if kept is not None:
            for table in ("hook_figures", "model_figures"):
                db.execute(f"DELETE FROM {table} WHERE length = ? AND began < ?", (length, int(now - kept)))


def _chosen(period: str, owner: str | None, agent: str, now: float | None) -> tuple[str, list[object]]:
    length, since = period_of(period, now)
    conditions: dict[str, object] = {"length = ?": length, "began >= ?": int(since)}
    if owner is not None:
        conditions["owner = ?"] = storable(owner)
    if agent:
        conditions["agent = ?"] = storable(agent)
    return " AND ".join(conditions), list(conditions.values())


def _hook_figures(agent: str, point: str, hook: str, rows: Iterable[tuple[int, str, int, int]]) -> HookFigures:
    verbs, shadow, durations = Counter[str](), Counter[str](), Counter[int]()
    for is_shadow, verb, duration, calls in rows:
        (shadow if is_shadow else verbs)[verb] += calls
        if duration != _UNKNOWN:
            durations[duration] += calls
    p50, p95 = _percentile(durations, 50), _percentile(durations, 95)
    return HookFigures(
        agent, point, hook, verbs.total(), dict(verbs.most_common()), dict(shadow.most_common()), p50, p95
    )


def _percentile(durations: Counter[int], percent: int) -> float | None:
    """Return the middle of the class in which the percentile is."""
    wanted, seen = -(-durations.total() * percent // 100), 0
    for duration in sorted(durations):
        seen += durations[duration]
        if seen >= wanted:
            return float(2 ** ((duration + 0.5) / _PER_OCTAVE) / 1e6)
    return None


def _used(db: Connection, column: str, condition: str, values: Sequence[object]) -> dict[str | int, Used]:
    sums = ", ".join(f"sum({name})" for name in Used.__struct_fields__)
    query = f"SELECT {column}, {sums} FROM model_figures WHERE {condition} GROUP BY {column} ORDER BY {column}"
    found = db.execute(query, values).fetchall()
    return {name: Used(int(a), int(b), int(c), int(d), float(cost), int(e)) for name, a, b, c, d, cost, e in found}


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
