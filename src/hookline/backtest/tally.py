"""The numbers of a report while they grow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, get_args

from .report import EXAMPLES, Cell, Certainty, Confusion, Count, Example, Guess, HookFailure, Kind, Problem, Report
from .sources import UnitAccount

CERTAINTIES: tuple[Certainty, ...] = get_args(Certainty)


class Tally:
    """Counts differences, failures, guesses and labels. A report is made of it at the end of a unit."""

    def __init__(self, examples: int = EXAMPLES) -> None:
        self._examples = examples
        self.runs = self.nested = self.different = self.moments = self.judged = 0
        self.exact = self.conditional = self.guess = 0
        self._cells: dict[tuple[str, str, str, Kind], tuple[list[int], list[Example]]] = {}
        self._failures: dict[tuple[str, Problem, str], tuple[list[int], list[Example]]] = {}
        self.guesses: Counter[tuple[str, str]] = Counter()
        self._labels: dict[tuple[str, str], list[int]] = {}
        self.notes: dict[str, None] = {}

    def cell(self, hook: str, point: str, tool: str, kind: Kind, numbers: list[int]) -> list[Example]:
        """Count moments of one kind: exact, conditional, guess. Return the examples of the cell, to add one."""
        count, examples = self._cells.setdefault((hook, point, tool, kind), ([0, 0, 0], []))
        _add(count, numbers)
        return examples

    def failure(self, hook: str, problem: Problem, message: str, example: Example | None = None) -> None:
        """Count a problem of a hook."""
        count, examples = self._failures.setdefault((hook, problem, message), ([0], []))
        count[0] += 1
        if example is not None and len(examples) < self._examples:
            examples.append(example)

    def label(self, side: str, *, bad: bool, stopped: bool, certainty: Certainty) -> None:
        """Count a labelled call; ``side`` is ``then`` or ``now``."""
        key = f"{'bad' if bad else 'good'}_{'stopped' if stopped else 'passed'}"
        self._labels.setdefault((side, key), [0, 0, 0])[CERTAINTIES.index(certainty)] += 1

    def add(self, other: Tally) -> None:
        """Add the numbers of one run tree."""
        for name in ("runs", "nested", "different", "moments", "judged", "exact", "conditional", "guess"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        _add_all(self._cells, other._cells, self._examples)
        _add_all(self._failures, other._failures, self._examples)
        self.guesses.update(other.guesses)
        for key, numbers in other._labels.items():
            _add(self._labels.setdefault(key, [0, 0, 0]), numbers)
        self.notes.update(other.notes)

    def report(self, rules: tuple[str, ...], baseline: tuple[str, ...] | None, account: UnitAccount) -> Report:
        """Return the numbers as a report."""
        part = Report(
            rules=rules,
            baseline=baseline,
            runs=self.runs,
            nested=self.nested,
            different_runs=self.different,
            moments=self.moments,
            judged=self.judged,
            certainty=Count(self.exact, self.conditional, self.guess),
            cells=tuple(Cell(*key, Count(*count), tuple(found)) for key, (count, found) in self._cells.items()),
            failures=tuple(HookFailure(*key, count[0], tuple(found)) for key, (count, found) in self._failures.items()),
            guesses=tuple(Guess(hook, read, count) for (hook, read), count in self.guesses.items()),
            skipped=account.entries(),
            labels_then=_confusion(self._labels, "then"),
            labels=_confusion(self._labels, "now"),
            notes=tuple(self.notes),
        )
        return Report.merge([part])  # which sorts the cells


def _add(total: list[int], numbers: list[int]) -> None:
    for index, number in enumerate(numbers):
        total[index] += number


def _add_all(
    mine: dict[Any, tuple[list[int], list[Example]]],
    theirs: Mapping[Any, tuple[list[int], list[Example]]],
    limit: int,
) -> None:
    for key, (count, examples) in theirs.items():
        total, kept = mine.setdefault(key, ([0] * len(count), []))
        _add(total, count)
        kept.extend(examples[: limit - len(kept)])


def _confusion(labels: Mapping[tuple[str, str], list[int]], side: str) -> Confusion:
    return Confusion(**{key: Count(*numbers) for (of, key), numbers in labels.items() if of == side})
