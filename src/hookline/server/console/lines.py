"""The hook line: a call is a line, and hooks are gates on it. One drawing for the pages of runs, lists and hooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ...explain.gates import APPROVAL, DECIDING, GateCall
from ...explain.words import gate_of
from ...stores.facts import Gate, RunFact

MAX_SLOTS = 12
"""With more rules, only those that spoke have a column, and the others are folded into one gate on each side."""
BEFORE_MODEL = ("before_step", "before_llm")
"""Points whose gates belong to the model call that follows. A prompt is built once, at the start of a run."""
_STEP, _GAP, _CALL, _EDGE = 18, 7, 22, 8
_WIDTHS = (144, 208, 272, 352, 448)
"""Widths of the column of the lines on the page of a run."""


def gate_call(point: str, gate: Gate) -> GateCall:
    """Return a gate from a fact."""
    took = gate.microseconds / 1e6
    return GateCall(point, gate.hook, gate_of(gate.verb), gate.verb, gate.reason, took, gate.phase, gate.refused)


class Fires:
    """The gates of each model call and tool call of a run and its subagents, from its facts."""

    def __init__(self, facts: Iterable[RunFact]) -> None:
        self._calls: dict[tuple[str, int, int, str], list[GateCall]] = {}
        before, hops = dict[str, list[GateCall]](), dict[str, int]()
        for fact in facts:
            run = fact.run.run_id
            gates = [
                gate_call(fact.point, gate)
                for gate in fact.gates
                if gate.phase in DECIDING and fact.point not in APPROVAL
            ]
            if fact.kind == "model":
                if fact.purpose == "step":
                    hops[run] = fact.hop
                key = run, fact.hop, fact.attempt, ""
                self._calls.setdefault(key, []).extend([*before.pop(run, ()), *gates])
            elif fact.kind == "fire" and fact.call_id:
                self._calls.setdefault((run, hops.get(run, 0), 0, fact.call_id), []).extend(gates)
            elif fact.kind == "fire" and fact.point in BEFORE_MODEL:
                before.setdefault(run, []).extend(gates)

    def of_model(self, run_id: str, step: int, attempt: int) -> list[GateCall]:
        """Return the gates of an attempt of the model call of a step."""
        return self._calls.get((run_id, step, attempt, ""), [])

    def of_tool(self, run_id: str, step: int, call_id: str) -> list[GateCall]:
        """Return the gates of a tool call, of all its attempts."""
        return self._calls.get((run_id, step, 0, call_id), [])


class GateMark(NamedTuple):
    """A gate as it is drawn. ``slot`` is the number of its column."""

    x: float
    slot: int
    state: str
    word: str
    title: str


class HookLine(NamedTuple):
    """A line as it is drawn: see the macro ``hook_line``. ``cut`` is where it ends, 0 if it does not."""

    gates: list[GateMark]
    words: str
    kind: str
    call: str
    call_x: float
    x0: float
    x1: float
    cut: float
    waits: bool
    width: float


class Slot(NamedTuple):
    """A column: a rule on one side of the call, and whether it spoke."""

    group: int
    hook: str
    x: float
    spoke: bool


class Slots:
    """The columns of several lines, one for each rule, in firing order, so that a rule is a column on a page.

    Args:
        lines: the gates of all lines.
    """

    def __init__(self, lines: Iterable[Sequence[GateCall]]) -> None:
        groups: list[list[str]] = [[], [], [], []]
        spoke: set[tuple[int, str]] = set()
        for gates in lines:
            last = ["", "", "", ""]
            for gate in gates:
                group, hook = gate.key
                known = groups[group]
                if hook not in known:
                    known.insert(known.index(last[group]) + 1 if last[group] else 0, hook)
                last[group] = hook
                if gate.spoke:
                    spoke.add(gate.key)
        count = sum(map(len, groups))
        self._folded = {
            (group, hook)
            for group, hooks in enumerate(groups)
            for hook in hooks
            if count > MAX_SLOTS and (group, hook) not in spoke
        }
        self.slots: list[Slot] = []
        self._fold_x: dict[int, float] = {}
        x = float(_EDGE)
        self.call_x = 0.0
        for group, hooks in enumerate(groups):
            if group == 2:
                self.call_x = x + _CALL - _STEP if any(groups[:2]) else float(_CALL)
                x = self.call_x + _CALL
            begun = x
            if any((group, hook) in self._folded for hook in hooks):
                self._fold_x[group] = x
                x += _STEP
            for hook in hooks:
                if (group, hook) not in self._folded:
                    self.slots.append(Slot(group, hook, x, (group, hook) in spoke))
                    x += _STEP
            x += _GAP * (x > begun)
        self.width = max(x - _GAP, self.call_x + _CALL)
        self._numbers = {(slot.group, slot.hook): number for number, slot in enumerate(self.slots)}

    @property
    def folded(self) -> list[str]:
        """The rules without a column."""
        return [hook for _, hook in sorted(self._folded)]

    @property
    def wide(self) -> int:
        """How wide the column of the lines is, from 1 to 5: see run.css."""
        names = 57 if self.slots else 0  # the name above the last rule leans over it
        return next((n for n, width in enumerate(_WIDTHS, 1) if self.width + names <= width), len(_WIDTHS))

    @property
    def key(self) -> object:
        """A value that differs if a line has to be drawn again."""
        return tuple(slot[:3] for slot in self.slots), len(self._folded)

    def line(self, gates: Sequence[GateCall], kind: str, call: str) -> HookLine:
        """Return the line of a call.

        Args:
            gates: its gates.
            kind: ``step`` for a model call, otherwise ``call``.
            call: what became of the call: ``ok``, ``no`` if it did not happen, or ``error``.
        """
        marks, hidden = [], dict[int, list[GateCall]]()
        cut, waits = 0.0, False
        for gate in gates:
            number = self._numbers.get(gate.key)
            if number is None:
                hidden.setdefault(gate.key[0], []).append(gate)
                continue
            x = self.slots[number].x
            reason = f": {gate.reason}" if gate.reason else ""
            marks.append(GateMark(x, number, gate.state, gate.word, f"{gate.hook} {gate.word}{reason}"))
            ends = gate.state in ("blocked", "denied", "waits", "unanswered") or (
                gate.state == "failed" and gate.refused
            )
            if ends and not cut and (call == "no" or gate.key[0] > 1):
                cut, waits = x, gate.state == "waits"
        for group, each in hidden.items():
            names = ", ".join(gate.hook for gate in each)
            marks.append(GateMark(self._fold_x.get(group, 0.0), -1, "folded", str(len(each)), f"passed: {names}"))
        said = [f"{gate.word} by {gate.hook}" for gate in gates if gate.spoke]
        passed = sum(gate.state == "passed" for gate in gates)
        words = "; ".join(said) or (f"all {passed} gates passed" if passed else "no gates")
        first, last = (0, 3) if kind == "step" else (1, 2)
        xs = [slot.x for slot in self.slots if first <= slot.group <= last]
        xs += [x for group, x in self._fold_x.items() if first <= group <= last]
        x0 = min([self.call_x - 14, *(x - 7 for x in xs)])
        x1 = max([self.call_x + 14, *(x + 7 for x in xs)])
        return HookLine(
            sorted(marks), words, kind, call, self.call_x, round(x0, 1), round(x1, 1), cut, waits, round(self.width, 1)
        )
