"""The rows of a run: its steps, calls and subagents, each with its hook line, and the strip above them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise

import msgspec

from ..._base.text import shorten
from ...explain.gates import STRENGTH, GateCall, strongest
from ...explain.view import (
    EventView,
    Item,
    ModelCall,
    MomentView,
    NestedRun,
    RunView,
    StepView,
    ToolCallView,
    call_gates,
    gates_at,
    is_waiting,
    ran,
)
from ...explain.words import QUIET_POINTS
from .lines import Fires, HookLine, Slots
from .timeline import spans

_GOES_ON = ("runs", "thinks", "writes", "waits for approval")
_EVENTS = {"steered": "A person said", "shadow_decided": "Shadow"}
"""Names of rows that are not calls, by their points."""
_BRIEF = 160
"""Characters of a text in a row."""


class Said(msgspec.Struct, frozen=True):
    """The words in the row of a call about a gate, a person or an error."""

    state: str
    who: str
    text: str


class Row(msgspec.Struct):
    """A row of the tree. ``key`` names it in addresses: the positions of its step, of its item in it, and so on."""

    kind: str
    key: str
    name: str
    depth: int
    at: float
    run: RunView
    step: StepView
    item: Item | None = None
    brief: str = ""
    to: str = ""
    state: str = ""
    """The current activity of the call, or why there is no result; empty if it has one."""
    gates: list[GateCall] = []
    says: list[Said] = []
    call: str = "ok"
    failed: bool = False
    took: float | None = None
    tokens: int = 0
    cost: float = 0.0
    kids: list[Row] = []
    line: HookLine | None = None

    @property
    def loud(self) -> bool:
        """Whether the row itself has a verdict or an error."""
        return bool(self.says)

    def walk(self) -> Iterator[Row]:
        """Yield the row and those inside it."""
        yield self
        for each in self.kids:
            yield from each.walk()

    @property
    def inner(self) -> dict[str, int]:
        """The number of verdicts of each kind in the rows inside this one."""
        found: dict[str, int] = {}
        for kid in self.kids:
            for row in kid.walk():
                for said in row.says:
                    found[said.state] = found.get(said.state, 0) + 1
        return found

    @property
    def opened(self) -> bool:
        """Whether the row is open at first: something inside it was refused, asked or failed, or goes on.

        What was only changed is counted in the row.
        """
        rows = [row for kid in self.kids for row in kid.walk()]
        return any(row.state in _GOES_ON or any(said.state != "changed" for said in row.says) for row in rows)


class Tree:
    """The rows of a run.

    Args:
        view: the run.
        run_id: its id in the store.
        fires: the gates of its calls, from its facts.
        is_open: whether the run has not ended.
    """

    def __init__(self, view: RunView, run_id: str, fires: Fires, *, is_open: bool) -> None:
        self._fires = fires
        self._chains = view.chains
        self.is_open = is_open
        self.rows = [self._step(view, run_id, step, n, str(n), 0) for n, step in enumerate(view.steps)]
        everything = [row for top in self.rows for row in top.walk()]
        self.slots = Slots(row.gates for row in everything)
        for row in everything:
            if row.kind == "call" or (row.kind == "step" and row.gates):
                row.line = self.slots.line(row.gates, row.kind, row.call)

    def find(self, key: str) -> Row | None:
        """Return the row with a key."""
        return next((row for row in self.walk() if row.key == key), None)

    def walk(self) -> Iterator[Row]:
        """Yield all rows in order."""
        for top in self.rows:
            yield from top.walk()

    def _step(self, run: RunView, run_id: str, step: StepView, position: int, key: str, depth: int) -> Row:
        models = [item for item in step.items if isinstance(item, ModelCall)]
        main = next((each for each in reversed(models) if each.purpose == "step"), models[-1] if models else None)
        name = f"Step {step.index + 1}" if step.index >= 0 else "Handoff" if position else "Start"
        row = Row("step", key, name, depth, step.at, run, step, main)
        for n, item in enumerate(step.items):
            if item is not main:
                row.kids += self._item(run, run_id, step, item, f"{key}.{n}", depth + 1)
        calls = [kid.name for kid in row.kids if kid.kind == "call"]
        row.tokens = sum(each.input_tokens + each.output_tokens for each in models)
        row.cost = sum(each.cost or 0.0 for each in models)
        if main is None:
            row.call = ""
        else:
            self._model(row, main, run_id, step)
        row.brief = row.brief or _names(calls)
        return row

    def _model(self, row: Row, call: ModelCall, run_id: str, step: StepView) -> None:
        row.item, row.took = call, call.duration or None
        fired = self._fires.of_model(run_id, step.index, call.attempt) if call.purpose == "step" else []
        row.gates = self._gates(call.moments, fired)
        row.brief = shorten(" ".join(call.text.split()), _BRIEF)
        row.says = [Said(gate.state, gate.hook, gate.reason) for gate in row.gates if gate.spoke]
        if call.error:
            row.says.append(Said("failed", "error", call.error))
            row.failed, row.call = True, "error"
        elif not call.answered:
            row.state = "" if not self.is_open else "writes" if call.text else "thinks"
            cuts = any(gate.refused for gate in row.gates)
            row.call = "no" if cuts else "ok"

    def _item(self, run: RunView, run_id: str, step: StepView, item: Item, key: str, depth: int) -> list[Row]:
        if isinstance(item, ModelCall):
            name = "Model" if item.purpose == "step" else f"Model, for {item.purpose}"
            attempt = f", attempt {item.attempt}" if item.attempt > 1 else ""
            row = Row("step", key, name + attempt, depth, item.at, run, step, item)
            self._model(row, item, "", step)
            row.tokens, row.cost = item.input_tokens + item.output_tokens, item.cost or 0.0
            return [row]
        if isinstance(item, ToolCallView):
            return [self._call(run, run_id, step, item, key, depth)]
        if isinstance(item, NestedRun):
            row = Row("run", key, item.run.agent or "a run", depth, item.at, run, step, item, item.run.task[:_BRIEF])
            row.call, row.took = "", item.run.elapsed or None
            row.kids = self._nested(item.run, key, depth + 1)
            return [row]
        return self._event(run, step, item, key, depth)

    def _event(self, run: RunView, step: StepView, item: EventView, key: str, depth: int) -> list[Row]:
        point = item.moments[0].point if item.moments else ""
        text = "" if point in QUIET_POINTS else item.text
        gates = [gate for gate in self._gates(item.moments, []) if gate.spoke]
        if not text and not gates:
            return []
        name = "Error" if item.bad else _EVENTS.get(point, point)
        row = Row("event", key, name, depth, item.at, run, step, item, shorten(" ".join(text.split()), _BRIEF), call="")
        row.says = [Said(gate.state, gate.hook, gate.reason) for gate in gates]
        if item.bad:
            row.failed = True
            row.says.append(Said("failed", "error", text))
            row.brief = ""
        return [row]

    def _call(self, run: RunView, run_id: str, step: StepView, call: ToolCallView, key: str, depth: int) -> Row:
        values = [" ".join(value.split()) for _, value in call.arguments]
        row = Row("call", key, call.tool, depth, call.at, run, step, call, shorten(" · ".join(values), _BRIEF))
        row.took = call.duration or None
        waits = self.is_open and is_waiting(call)
        fired = self._fires.of_tool(run_id, step.index, call.id)
        row.gates = call_gates(call, self._chains, fired, is_open=self.is_open)
        row.says = [_said(gate, call) for gate in row.gates if gate.spoke]
        if call.decision == "denied" and all(said.state != "denied" for said in row.says):
            row.says.append(Said("denied", call.decided_by or "a person", call.message))
        if any(moment.verdict == "invalid" for moment in call.moments) or call.raw:
            row.says.append(Said("blocked", "invalid", "the arguments do not match the schema of the tool"))
        for nested in call.runs:
            row.to = row.to or nested.agent
        has_run = ran(call)
        row.call = "error" if call.outcome == "error" else "ok" if has_run else "no"
        if call.outcome == "error" and not any(said.state == "blocked" for said in row.says):
            row.failed = True
            row.says.append(Said("failed", "error", shorten(" ".join(call.result.split()), _BRIEF)))
        if waits or (not call.outcome and (has_run or not row.says)):
            row.state = "waits for approval" if waits else _state(call, is_open=self.is_open)
        if len(call.runs) == 1:
            row.kids = self._nested(call.runs[0], f"{key}.0", depth + 1)
        else:
            for n, nested in enumerate(call.runs):
                item = NestedRun(nested.at, nested)
                row.kids += self._item(run, run_id, step, item, f"{key}.{n}", depth + 1)
        inner = [kid for top in row.kids for kid in top.walk() if kid.kind == "step"]
        row.tokens, row.cost = sum(each.tokens for each in inner), sum(each.cost for each in inner)
        return row

    def _nested(self, run: RunView, key: str, depth: int) -> list[Row]:
        steps = enumerate(run.steps)
        rows = [self._step(run, run.id, step, n, f"{key}.{n}", depth) for n, step in steps if step.items]
        return [row for row in rows if row.item is not None or row.kids]

    def _gates(self, moments: Iterable[MomentView], fired: Sequence[GateCall]) -> list[GateCall]:
        """Return the gates of a call: from facts, and from what the events or the record say about each moment."""
        return strongest([*fired, *gates_at(moments, self._chains)])


def _said(gate: GateCall, call: ToolCallView) -> Said:
    if gate.state not in ("asked", "unanswered", "denied"):
        return Said(gate.state, gate.hook, gate.reason)
    who = f" by {call.decided_by}" if call.decided_by else ""
    how = f"{call.decision}{who}" if call.decision else "no answer"
    said = f": “{call.message}”" if call.message and call.decision else ""
    return Said(gate.state, gate.hook, " · ".join(filter(None, (gate.reason, f"{how}{said}"))))


def _state(call: ToolCallView, *, is_open: bool) -> str:
    return "no result" if not is_open else "runs" if call.began is not None else "next"


def _names(names: Sequence[str]) -> str:
    counts = {name: names.count(name) for name in names}
    return ", ".join(f"{name} \u00d7 {count}" if count > 1 else name for name, count in counts.items())


class StripBar(msgspec.Struct, frozen=True):
    """A bar of the strip; places are per cent of its width."""

    kind: str
    x: float
    width: float
    y: float
    height: float


class StripMark(msgspec.Struct, frozen=True):
    """A verdict on the strip, which leads to its row."""

    x: float
    state: str
    key: str
    title: str


class Fold(msgspec.Struct, frozen=True):
    """A wait for a person that is drawn shorter than it was."""

    x: float
    width: float
    seconds: float


_LONG, _FOLDED = 5.0, 0.08
"""Waits for people that last longer than this number of seconds are drawn with this share of the rest of the strip."""
_NICE = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200)
_JOIN = 0.12
_APART = 1.15
_MARKS = 80
"""Marks that have room beside one another."""


class Strip:
    """The overview of a run: lanes for the model, the tools and the hooks, with marks of verdicts.

    The axis is as long as the run. Long waits for people are folded, or nothing else would have a width.

    Args:
        tree: the rows.
        until: when the last thing happened.
    """

    def __init__(self, tree: Tree, until: float) -> None:
        self._open = tree.is_open
        rows = list(tree.walk())
        timed = [(row, list(spans(row.item))) for row in rows if row.item is not None]
        ends = [end for _, found in timed for _, _, end in found if end is not None]
        self._until = max([until, *ends, 0.001])
        waits = sorted(
            (begin, self._until if end is None else end)
            for _, found in timed
            for kind, begin, end in found
            if kind == "wait" and (self._until if end is None else end) - begin > _LONG
        )
        self._waits = _joined(waits)
        awake = max(self._until - sum(end - begin for begin, end in self._waits), 0.001)
        self._fold = awake * min(_FOLDED, 0.4 / max(1, len(self._waits)))
        self._total = self._squeezed(self._until)
        self.folds = [Fold(self.x(a), round(self.x(b) - self.x(a), 2), b - a) for a, b in self._waits]
        bars = [bar for row, found in timed for bar in self._bars(row, found)]
        self.bars = _merged(bars)
        self.marks = _told_apart([mark for row in rows for mark in self._marks(row)])
        self.ticks = self._ticks()

    def x(self, at: float) -> float:
        """Return where a time is, in per cent."""
        return round(min(100.0, 100 * self._squeezed(at) / self._total), 2)

    def _squeezed(self, at: float) -> float:
        left = at
        for begin, end in self._waits:
            if at > begin:
                passed = min(at, end) - begin
                left -= passed - passed / (end - begin) * self._fold
        return left

    def row_bars(self, row: Row) -> list[StripBar]:
        """Return the bars of one row."""
        found = [] if row.item is None else list(spans(row.item))
        return [
            StripBar(f"{kind}{' error' if row.failed else ''}", *self._place(begin, end, 1.6), 2, 8)
            for kind, begin, end in found
        ]

    def _place(self, begin: float, end: float | None, least: float) -> tuple[float, float]:
        x = min(self.x(begin), 100 - least)
        until = self._until if end is None else end
        return round(x, 2), round(min(max(self.x(until) - x, least), 100 - x), 2)

    def _bars(self, row: Row, found: list[tuple[str, float, float | None]]) -> Iterator[StripBar]:
        lane = (31, 8) if row.depth <= 1 else (41, 5) if row.depth <= 3 else (48, 5)
        for kind, begin, end in found:
            y, height = (18, 8) if kind == "model" else lane
            yield StripBar(f"{kind}{' error' if row.failed else ''}", *self._place(begin, end, 0.3), y, height)
        took = sum(gate.took for gate in row.gates)
        if row.gates:
            yield StripBar("hook", *self._place(row.at, row.at + took, 0.2), 58, 7)

    def _marks(self, row: Row) -> Iterator[StripMark]:
        for said in row.says:
            item = row.item
            at = row.at
            if said.state == "failed" or said.who in {gate.hook for gate in row.gates if gate.key[0] >= 2}:
                at = max([row.at, *(end for _, _, end in spans(item) if end is not None)]) if item else row.at
            text = f": {said.text}" if said.text else ""
            title = shorten(f"{row.name}: {said.state} by {said.who}{text}", 200)
            yield StripMark(self.x(at), said.state, row.key, title)

    def _ticks(self) -> list[tuple[float, float]]:
        """Return round times and their places, outside of the folds."""
        step = next((each for each in _NICE if self._total / each <= 7), _NICE[-1] * 2)
        while self._total / step > 12:
            step *= 2
        count = int(self._until / step) if self._until / step < 400 else 0
        found = [(self.x(n * step), n * step) for n in range(count + 1)]
        folded = [(fold.x - 6, fold.x + fold.width + 4) for fold in self.folds]
        kept: list[tuple[float, float]] = []
        for x, at in found:
            if x > 95 or any(a < x < b for a, b in folded) or (kept and x - kept[-1][0] < 8):
                continue
            kept.append((x, at))
        return kept


def _joined(waits: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return times without overlaps."""
    found: list[tuple[float, float]] = []
    for begin, end in waits:
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def _merged(bars: Iterable[StripBar]) -> list[StripBar]:
    """Join bars that nobody could tell apart, so that a long run has no more of them than a screen has points."""
    found: list[StripBar] = []
    for bar in sorted(bars, key=lambda each: (each.y, each.kind, each.x)):
        last = found[-1] if found else None
        if last and (last.y, last.kind) == (bar.y, bar.kind) and bar.x <= last.x + last.width + _JOIN:
            width = max(last.width, round(bar.x + bar.width - last.x, 2))
            found[-1] = StripBar(bar.kind, last.x, width, bar.y, bar.height)
        else:
            found.append(bar)
    return found


def _told_apart(marks: Iterable[StripMark]) -> list[StripMark]:
    """Return marks that can be told apart: of more than have room, the strongest of each place says how many it hides.

    Marks that lie on one another are moved apart, as far as there is room for them.
    """
    found = sorted(marks, key=lambda mark: mark.x)
    if len(found) > _MARKS:
        together = groupby(found, key=lambda mark: int(mark.x * _MARKS / 100))
        found = [_strongest(list(each)) for _, each in together]
    apart = min(_APART, 96 / max(1, len(found)))
    places = [min(max(mark.x, 0.5), 99.2) for mark in found]
    for _ in range(4):
        for n, (a, b) in enumerate(pairwise(range(len(places)))):
            gap = places[b] - places[a]
            if gap < apart:
                places[n] = max(0.5, places[a] - (apart - gap) / 2)
                places[b] = min(99.2, places[n] + apart)
    return [StripMark(round(x, 2), mark.state, mark.key, mark.title) for x, mark in zip(places, found, strict=True)]


def _strongest(marks: Sequence[StripMark]) -> StripMark:
    first = max(marks, key=lambda mark: STRENGTH.index(mark.state))
    title = f"{first.title} · {len(marks) - 1} more here" if len(marks) > 1 else first.title
    return StripMark(first.x, first.state, first.key, title)
