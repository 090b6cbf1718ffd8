"""The gates of a call: its hooks in firing order, and what each of them did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from .words import GATES, SIGNS, verb_words

DECIDING = ("guard", "rewrite", "")
"""The phases of hooks that decide; empty if it is not known."""

_GROUPS: Mapping[str, int] = {
    "before_step": 0,
    "before_prompt_build": 0,
    "before_llm": 0,
    "on_token": 3,
    "before_tool": 1,
    "after_tool": 2,
    "tool_end_with_path": 2,
    "after_llm": 3,
    "after_step": 3,
}
"""Where the gates of a point are: before the model, before the tool, after the tool, after the model.
What decides about an approval, and how long that takes, belongs to the gate that asked."""
APPROVAL = ("approval_requested", "approval_decided")
STRENGTH = ("skipped", "passed", "changed", "unanswered", "asked", "waits", "failed", "blocked", "denied")
"""States of a gate, from the one that matters least."""


class GateCall(NamedTuple):
    """A gate that a call came to: a hook at a point, and what it did there. ``took`` are seconds."""

    point: str
    hook: str
    state: str
    verb: str = "cont"
    reason: str = ""
    took: float = 0.0
    phase: str = ""
    refused: bool = False

    @property
    def key(self) -> tuple[int, str]:
        """The column of the gate: the side of the call, and the hook."""
        return _GROUPS.get(self.point, 3), self.hook

    @property
    def spoke(self) -> bool:
        """Whether the hook did something else than letting pass."""
        return self.state not in ("passed", "skipped")

    @property
    def word(self) -> str:
        """The action of the gate, as a word."""
        if self.state in ("skipped", "waits", "unanswered", "denied", "passed"):
            return SIGNS[self.state].word
        return verb_words(self.verb)[0]


def strongest(gates: Iterable[GateCall]) -> list[GateCall]:
    """Return one gate for each column, in order: if a hook was called several times, what it did that matters most."""
    found: dict[tuple[int, str], GateCall] = {}
    for gate in gates:
        known = found.get(gate.key)
        if known is None or STRENGTH.index(gate.state) > STRENGTH.index(known.state):
            took = gate.took + (known.took if known else 0.0)
            found[gate.key] = gate._replace(took=took)
        elif known.took == 0.0:
            found[gate.key] = known._replace(took=gate.took)
    return sorted(found.values(), key=lambda gate: gate.key[0])


def decided(gates: Iterable[GateCall], decision: str, *, waits: bool, ran: bool) -> list[GateCall]:
    """Return the gates of a call after a decision about its approval: those that asked may wait, or be denied.

    Args:
        gates: the gates.
        decision: the decision; empty if there is none, or it is not known.
        waits: whether a person can still answer.
        ran: whether the tool ran, so that somebody has approved the call.
    """
    asked = "waits" if waits else GATES.get(decision, "asked") if decision or ran else "unanswered"
    return [gate._replace(state=asked) if gate.state == "asked" else gate for gate in gates]
