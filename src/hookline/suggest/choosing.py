"""Which candidates become rules: judged on later calls by their own conditions, and put in an order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from .._base.frozen import any_digest
from ..hooks._rules.conditions import Condition, EvaluationError
from ..hooks._rules.file import RuleData
from ..hooks.rules import situation_of
from .calls import Call
from .certainty import Share, percent, share_of, simple_share
from .expressions import glob_of
from .learning import Candidate
from .report import Judged, Part, Verb

MOST = 0.25
"""A rule that interrupts a larger share of the calls of its tool, and stops no attack, does not say what is usual."""


class Judge:
    """Asks the condition of a candidate about calls, as the rule itself will be asked. It asks the same only once."""

    def __init__(self, candidate: Candidate, then: Verb) -> None:
        self.candidate = candidate
        tools = (glob_of(candidate.tool),)
        self.rule = RuleData(candidate.name, candidate.when, then, candidate.message, tools=tools, shadow=True)
        self._condition = Condition(candidate.when, "before_tool")
        self._known: dict[Hashable, bool] = {}

    def __call__(self, call: Call) -> bool:
        """Return whether the rule interrupts a call. A condition without a value does."""
        key = self.candidate.key(call)
        found = self._known.get(key)
        if found is None:
            try:
                found = self._condition.holds(situation_of(self.candidate.example(call), self.rule, self._condition))
            except EvaluationError:
                found = True
            self._known[key] = found
        return found


class Sample:
    """Calls that candidates are judged by: good ones of later runs, and attacks, each with one or more bad calls."""

    def __init__(self, good: Sequence[Call], attacks: Sequence[Sequence[Call]]) -> None:
        self.good, self.attacks = good, attacks
        numbers: dict[Any, int] = {}
        self._runs = [numbers.setdefault(call.run.tree, len(numbers)) for call in good]
        self._sizes = Counter(self._runs)
        self._places: dict[str, list[int]] = {}
        for place, call in enumerate(good):
            self._places.setdefault(call.tool, []).append(place)
        self.part = part_of(good, len(attacks))

    def calls_of(self, tool: str) -> Sequence[int]:
        """Return the positions of the good calls of a tool; ``*`` for all."""
        return range(len(self.good)) if tool == "*" else self._places.get(tool, ())

    def interrupted(self, judge: Judge) -> frozenset[int]:
        """Return the positions of the good calls that a rule interrupts."""
        return frozenset(place for place in self.calls_of(judge.candidate.tool) if judge(self.good[place]))

    def stopped(self, judge: Judge) -> frozenset[int]:
        """Return the positions of the attacks that a rule stops."""
        candidate = judge.candidate
        return frozenset(
            place
            for place, calls in enumerate(self.attacks)
            if any(candidate.judges(call.tool) and judge(call) for call in calls)
        )

    def judged(self, interrupted: Iterable[int], stopped: Iterable[int], tool: str = "*") -> Judged:
        """Return how rules did that interrupt and stop these. With a tool, the share is that of its calls."""
        sizes: Mapping[int, int] = self._sizes
        if tool != "*":
            sizes = Counter(self._runs[place] for place in self._places.get(tool, ()))
        hits = Counter(self._runs[place] for place in interrupted)
        days = self.part.days
        share: Share = share_of(hits, sizes)
        return Judged(
            share, simple_share(len(set(stopped)), len(self.attacks)), round(share.hits / days, 3) if days else None
        )


def part_of(calls: Sequence[Call], attacks: int = 0) -> Part:
    """Return what a part of the records contains."""
    times = [call.time for call in calls if call.time]
    runs = len({call.run.tree for call in calls})
    return Part(runs, len(calls), min(times, default=0.0), max(times, default=0.0), attacks)


class Ranked(msgspec.Struct):
    """A candidate with what it does to the sample by which rules are chosen."""

    judge: Judge
    interrupted: frozenset[int]
    stopped: frozenset[int]
    why_not: str = ""

    @property
    def name(self) -> str:
        """The name of the rule."""
        return self.judge.candidate.name


def ranked(judges: Sequence[Judge], sample: Sample) -> tuple[list[Ranked], list[Ranked]]:
    """Return the candidates that pay, best first, and those that do not.

    Each next one is the candidate that stops most further attacks for its further interruptions; among those that stop
    no further one, the candidate with the fewest interruptions, and the most calls that it was learned from.
    """
    rest = [Ranked(judge, sample.interrupted(judge), sample.stopped(judge)) for judge in judges]
    unjudged = [each for each in rest if not each.stopped and not sample.calls_of(each.judge.candidate.tool)]
    for each in unjudged:
        each.why_not = "no later call is one of its tool, so what it costs is not known"
        rest.remove(each)
    often = [each for each in rest if not each.stopped and _own_share(each, sample) > MOST]
    for each in often:
        each.why_not = f"it interrupts {percent(_own_share(each, sample))} of the calls of its tool"
        rest.remove(each)
    order: list[Ranked] = []
    covered: list[Ranked] = []
    interrupted: frozenset[int] = frozenset()
    stopped: frozenset[int] = frozenset()
    rest.sort(key=lambda each: (len(each.interrupted), *_place(each.judge.candidate), each.name))
    while rest:
        best = max(rest, key=lambda each: _worth(each, interrupted, stopped))
        rest.remove(best)
        costs, gains = len(best.interrupted - interrupted), len(best.stopped - stopped)
        if costs and not gains and sample.attacks:
            best.why_not = f"it interrupts {len(best.interrupted):,} calls, and stops no attack that others do not stop"
            rest.append(best)
            break  # the others do not pay either
        order.append(best)
        for each in [each for each in rest if best.judge.candidate.covers(each.judge.candidate)]:
            each.why_not = f"{best.name} says more"
            rest.remove(each)
            covered.append(each)
        interrupted |= best.interrupted
        stopped |= best.stopped
    for each in rest:
        if not each.why_not:
            each.why_not = f"it interrupts {len(each.interrupted):,} calls, and stops no attack that others do not stop"
    return order, [*rest, *often, *covered, *unjudged]


def _place(candidate: Candidate) -> tuple[int, int]:
    """Return what comes first among rules that cost and stop the same: what many calls show, and what says more."""
    return -candidate.calls, 0 if candidate.kind in ("values", "same value") else 1


def _own_share(each: Ranked, sample: Sample) -> float:
    return len(each.interrupted) / max(1, len(sample.calls_of(each.judge.candidate.tool)))


def _worth(each: Ranked, interrupted: frozenset[int], stopped: frozenset[int]) -> tuple[float, int]:
    costs, gains = len(each.interrupted - interrupted), len(each.stopped - stopped)
    return gains / (costs + 0.5), -costs


def attacks_of(calls: Iterable[Call]) -> list[list[Call]]:
    """Return the bad calls, those of a run and its nested runs together."""
    found: dict[Any, list[Call]] = {}
    for call in calls:
        if call.is_bad:
            found.setdefault(call.run.tree, []).append(call)
    return list(found.values())


def halves(attacks: Sequence[list[Call]]) -> tuple[list[list[Call]], list[list[Call]]]:
    """Return two parts of attacks, so that the same calls are in one of them only."""
    parts: tuple[list[list[Call]], list[list[Call]]] = ([], [])
    for calls in attacks:
        made = sorted({any_digest([call.tool, dict(call.arguments)]) for call in calls})
        parts[int(any_digest(made)[:8], 16) % 2].append(calls)
    return parts
