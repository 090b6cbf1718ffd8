"""The result of a proposal: the rules, what they were judged by, and what was left out."""

from __future__ import annotations

from typing import Literal

from .._base.frozen import Frozen
from .._base.text import counted
from ..hooks._rules.file import Example, RuleData
from ..records.account import Skipped
from .certainty import Share, percent

Verb = Literal["ask", "block"]


class RecordedCall(Frozen, frozen=True):
    """A call in the records. ``shown`` is the value that a rule is about, or the call."""

    run_id: str
    n: int
    time: float
    tool: str
    shown: str
    file: str = ""
    is_bad: bool = False


class Judged(Frozen, frozen=True):
    """What rules do to calls that they were not learned from.

    ``interrupted`` are the good calls that would be blocked or asked about; ``stopped`` are the attacks of which at
    least one call would be. ``by_day`` is the number of interruptions in a day; ``None`` if the records have no times.
    """

    interrupted: Share = Share()
    stopped: Share = Share()
    by_day: float | None = None


class ProposedRule(Frozen, frozen=True):
    """A rule, the calls that it was learned from, and how it did on later ones.

    ``chosen`` is about the part of the records by which rules were chosen, and ``judged`` about the part after that.
    ``exceptions`` are the calls of both parts that it would interrupt: the first of ``exception_count``.
    """

    rule: RuleData
    kind: str
    what: str
    """What is usual, in words."""
    calls: int
    runs: int
    chosen: Judged = Judged()
    judged: Judged = Judged()
    exceptions: tuple[RecordedCall, ...] = ()
    exception_count: int = 0
    left_out: str = ""
    """Why it is not proposed; empty if it is."""

    @property
    def name(self) -> str:
        """The name of the rule."""
        return self.rule.name

    @property
    def examples(self) -> tuple[Example, ...]:
        """The examples of the rule, from the records."""
        return self.rule.examples


class CurvePoint(Frozen, frozen=True):
    """What the first rules do together. ``name`` is the last of them."""

    rules: int
    name: str
    chosen: Judged
    judged: Judged


class Part(Frozen, frozen=True):
    """A part of the records: its calls, and the Unix times of the first and the last one; 0 if there are none."""

    runs: int = 0
    calls: int = 0
    first: float = 0.0
    last: float = 0.0
    attacks: int = 0

    @property
    def days(self) -> float:
        """The days that it covers, at least an hour; 0 without times."""
        return max((self.last - self.first) / 86400, 1 / 24) if self.first else 0.0


class Value(Frozen, frozen=True):
    """A value of an argument, and how many calls had it."""

    text: str
    calls: int


class ArgumentUse(Frozen, frozen=True):
    """What an argument of a tool contains: the most frequent values, and the smallest and largest number."""

    name: str
    calls: int
    distinct: int
    values: tuple[Value, ...] = ()
    low: float | None = None
    high: float | None = None


class ToolUse(Frozen, frozen=True):
    """A tool and its calls. ``most`` is the number of its calls in the conversation with most of them."""

    tool: str
    calls: int
    runs: int
    most: int
    refused: int = 0
    arguments: tuple[ArgumentUse, ...] = ()


class Proposal(Frozen, frozen=True):
    """Rules that recorded runs suggest, and how they did on later runs.

    Example::

        proposal = propose("records/")
        print(proposal.judged.interrupted)  # 0.4 % (0.1 % to 1.3 %)
        Path("rules.toml").write_text(proposal.toml)
    """

    rules: tuple[ProposedRule, ...] = ()
    left_out: tuple[ProposedRule, ...] = ()
    judged: Judged = Judged()
    """All proposed rules together."""
    allow_list: Judged = Judged()
    """A list of the names of tools alone, to compare with. Nothing stops nothing and interrupts nothing."""
    curve: tuple[CurvePoint, ...] = ()
    at_most: str = ""
    learned: Part = Part()
    chosen: Part = Part()
    later: Part = Part()
    tools: tuple[ToolUse, ...] = ()
    runs: int = 0
    calls: int = 0
    moments: int = 0
    files: int = 0
    seconds: float = 0.0
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()
    toml: str = ""
    """The rules as the text of a file, each in shadow mode and with its evidence as a comment."""


def headline(proposal: Proposal) -> str:
    """Return the result in a sentence."""
    found = proposal.judged
    if not proposal.rules:
        return "No rule pays."
    costs = found.interrupted
    text = f"{counted(len(proposal.rules), 'rule')} would interrupt {costs.hits:,} of {costs.total:,} later calls"
    if costs.total:
        text += f", {percent(costs.hits / costs.total)}"
    if found.stopped.total:
        text += f", and stop {found.stopped.hits:,} of {counted(found.stopped.total, 'attack')}"
    return f"{text}."
