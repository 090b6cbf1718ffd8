"""How long models and tools take."""

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
"""Percentiles are those of so many of the last calls."""

MAX_NAMES, OTHERS = 500, "(others)"
_MAX_OPEN = 1000
_WHOLE = {"model": "model, whole", "tool": "tool, whole"}


class Timing(Frozen, frozen=True):
    """One row: seconds that calls of one model or tool took; ``kind`` is as in :meth:`TimingHook.summary`."""

    kind: str
    name: str
    count: int
    total: float
    mean: float
    p50: float
    p95: float
    max: float


class _Tally:
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
    """Collects how long models and tools take: the work itself, and the whole with hooks and approvals.

    The work is the time in the model or tool. The whole goes from where the hooks before a call are done to where
    those after it are, so it holds approvals, the wait for the other calls of a batch, and hooks. Each attempt counts.
    A call that was blocked or answered did no work and counts in the whole only. One object may serve many
    runs at once; it takes a bounded amount of memory.
    """

    points = frozenset({BEFORE_LLM, AFTER_LLM, BEFORE_TOOL, AFTER_TOOL})
    phase = "observe"
    priority = 0

    def __init__(self) -> None:
        self._tallies: dict[tuple[str, str], _Tally] = {}
        self._lock = threading.Lock()

    def __call__(self, point: str, ctx: Any, payload: Any) -> None:
        """Note the time."""
        now = ctx.clock.monotonic()
        begun = ctx.hook_state.get(id(self))
        if begun is None:
            begun = ctx.hook_state[id(self)] = {}
        if type(payload) is ModelRequest:
            self._begin(begun, id(payload), now, payload)  # two requests of one run may be alike
        elif type(payload) is ToolCallRequest:
            self._begin(begun, (payload.id, payload.attempt), now, payload)
        elif type(payload) is ModelReply:
            before = begun.pop(id(payload.request), None)
            self._add("model", payload.model, payload.duration if payload.source == "model" else None, before, now)
        else:
            before = begun.pop((payload.id, payload.attempt), None)
            outcome, spent = payload.outcome, payload.duration
            worked = outcome == "ok" or (outcome in ("error", "cancelled") and spent > 0)
            self._add("tool", payload.name, spent if worked else None, before, now)

    def _begin(self, begun: dict[Any, tuple[float, Any]], key: Any, now: float, payload: Any) -> None:
        if key not in begun:  # an edited call comes by twice
            begun[key] = now, payload
            if len(begun) > _MAX_OPEN:  # calls that failed never come back
                begun.pop(next(iter(begun)), None)

    def summary(self) -> list[Timing]:
        """A row for each model and tool and ``kind`` ("model", "model, whole", "tool", "tool, whole"), in seconds."""
        with self._lock:
            return [tally.row(*key) for key, tally in sorted(self._tallies.items())]

    def table(self) -> str:
        """The rows as a plain text table, in milliseconds."""
        heads = Timing.__struct_fields__
        rows: list[tuple[str, ...]] = [(*heads[:3], *(f"{head} ms" for head in heads[3:]))]
        for row in self.summary():
            kind, name, count, *seconds = msgspec.structs.astuple(row)
            rows.append((kind, name, str(count), *(f"{value * 1000:,.1f}" for value in seconds)))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(_pad, row, widths, range(len(row)))) for row in rows)

    def reset(self) -> None:
        """Forget what was collected."""
        with self._lock:
            self._tallies.clear()

    def _add(self, kind: str, name: str, work: float | None, before: tuple[float, Any] | None, now: float) -> None:
        with self._lock:
            if work is not None:
                self._tally(kind, name).add(work)
            if before is not None:
                self._tally(_WHOLE[kind], name).add(now - before[0])

    def _tally(self, kind: str, name: str) -> _Tally:
        found = self._tallies.get((kind, name))
        if found is None:
            if len(self._tallies) >= MAX_NAMES:
                name = OTHERS  # a model may invent names without end
            found = self._tallies.setdefault((kind, name), _Tally())
        return found


def _pad(cell: str, width: int, column: int) -> str:
    return cell.ljust(width) if column < 2 else cell.rjust(width)
