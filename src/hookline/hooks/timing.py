"""TimingHook: measures how long models and tools take."""

from __future__ import annotations

import threading
from collections import deque
from math import ceil
from typing import Any

import msgspec

from .._base.frozen import Frozen
from .._kernel.payloads import ModelReply, ModelRequest, ToolCallRequest
from .._kernel.points import AFTER_LLM, AFTER_TOOL, BEFORE_LLM, BEFORE_TOOL

RECENT = 1000
"""Maximum number of recent calls from which percentiles are computed."""

MAX_NAMES, OTHERS = 500, "(others)"
_MAX_OPEN = 1000
_WHOLE = {"model": "model, whole", "tool": "tool, whole"}


class Timing(Frozen, frozen=True):
    """Durations in seconds of the calls of one model or tool; for ``kind`` see :meth:`TimingHook.summary`."""

    kind: str
    name: str
    count: int
    total: float
    mean: float
    p50: float
    p95: float
    max: float


class _Statistics:
    def __init__(self) -> None:
        self.count, self.total, self.max = 0, 0.0, 0.0
        self.recent: deque[float] = deque(maxlen=RECENT)

    def add(self, seconds: float) -> None:
        self.count += 1
        self.total += seconds
        self.max = max(self.max, seconds)
        self.recent.append(seconds)

    def row(self, kind: str, name: str) -> Timing:
        ordered = sorted(self.recent)
        p50, p95 = (ordered[ceil(len(ordered) * share) - 1] for share in (0.5, 0.95))
        return Timing(kind, name, self.count, self.total, self.total / self.count, p50, p95, self.max)


class TimingHook:
    """Measures how long models and tools take, alone and including hooks and approvals.

    The kind ``tool`` is the time in the tool. ``tool, whole`` is the time from the end of the hooks before a call to
    the end of those after it: it includes approvals, the wait for other calls of a batch, and hooks. The kinds
    ``model`` and ``model, whole`` are the same for models. Each attempt counts. A blocked or answered call counts only
    as ``whole``. One object may serve many runs at once; its memory is bounded.

    Example:
        >>> timing = TimingHook()
        >>> Agent("helper", llm="openai:gpt-5-mini", hooks=[timing]).run("Hello")
        >>> print(timing.table())
    """

    points = frozenset({BEFORE_LLM, AFTER_LLM, BEFORE_TOOL, AFTER_TOOL})
    phase = "observe"
    priority = 0

    def __init__(self) -> None:
        self._statistics: dict[tuple[str, str], _Statistics] = {}
        self._lock = threading.Lock()

    def __call__(self, point: str, ctx: Any, payload: Any) -> None:
        """Measure the time between two points."""
        now = ctx.clock.monotonic()
        begun = ctx.own_state(self, dict)
        if type(payload) is ModelRequest:
            self._begin(begun, id(payload), now, payload)  # two requests of one run may be equal
        elif type(payload) is ToolCallRequest:
            self._begin(begun, (payload.id, payload.attempt), now, payload)
        elif type(payload) is ModelReply:
            before = begun.pop(id(payload.request), None)
            self._add("model", payload.model, payload.duration if payload.source == "model" else None, before, now)
        else:
            before = begun.pop((payload.id, payload.attempt), None)
            outcome, spent = payload.outcome, payload.duration
            ran = outcome == "ok" or (outcome in ("error", "cancelled") and spent > 0)
            self._add("tool", payload.name, spent if ran else None, before, now)

    def _begin(self, begun: dict[Any, tuple[float, Any]], key: Any, now: float, payload: Any) -> None:
        if key not in begun:  # an edited call is seen twice
            begun[key] = now, payload
            if len(begun) > _MAX_OPEN:  # failed calls never reach the point after
                begun.pop(next(iter(begun)), None)

    def summary(self) -> list[Timing]:
        """Return times in seconds by model or tool and ``kind`` ("model", "model, whole", "tool", "tool, whole")."""
        with self._lock:
            return [statistics.row(*key) for key, statistics in sorted(self._statistics.items())]

    def table(self) -> str:
        """Return the summary as a text table, in milliseconds."""
        heads = Timing.__struct_fields__
        rows: list[tuple[str, ...]] = [(*heads[:3], *(f"{head} ms" for head in heads[3:]))]
        for row in self.summary():
            kind, name, count, *seconds = msgspec.structs.astuple(row)
            rows.append((kind, name, str(count), *(f"{value * 1000:,.1f}" for value in seconds)))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(_pad, row, widths, range(len(row)))) for row in rows)

    def reset(self) -> None:
        """Delete all measurements."""
        with self._lock:
            self._statistics.clear()

    def _add(self, kind: str, name: str, work: float | None, before: tuple[float, Any] | None, now: float) -> None:
        with self._lock:
            if work is not None:
                self._find(kind, name).add(work)
            if before is not None:
                self._find(_WHOLE[kind], name).add(now - before[0])

    def _find(self, kind: str, name: str) -> _Statistics:
        found = self._statistics.get((kind, name))
        if found is None:
            if len(self._statistics) >= MAX_NAMES:
                name = OTHERS  # models may invent any number of names
            found = self._statistics.setdefault((kind, name), _Statistics())
        return found


def _pad(cell: str, width: int, column: int) -> str:
    return cell.ljust(width) if column < 2 else cell.rjust(width)
