"""The report of a backtest: what would have been decided differently, and how sure the answer is (DESIGN 6.13)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar, get_args

import msgspec

from .._base.frozen import Frozen
from .._base.text import counted
from ..records.account import Skipped
from .expressions import Condition

Certainty = Literal["exact", "conditional", "guess"]
"""How sure the answer about a moment is.

``exact``: until and including the first different decision of a run, the run went exactly this way. ``conditional``:
after that decision, if the run had gone on all the same. ``guess``: a hook read something that was not recorded.
"""

Kind = Literal[
    "newly_blocked",
    "no_longer_blocked",
    "newly_asked",
    "no_longer_asked",
    "newly_ended",
    "no_longer_ended",
    "newly_changed",
    "no_longer_changed",
    "changed_differently",
    "newly_answered",
    "no_longer_answered",
    "newly_retried",
    "no_longer_retried",
    "newly_resumed",
    "no_longer_resumed",
    "newly_claimed",
    "no_longer_claimed",
    "worded_differently",
    "raised",
    "no_longer_raised",
    "same",
]
"""The difference between the decision then and now.

``changed_differently``: the payload after the hooks is another one. ``worded_differently``: the same verb with another
message, answer or question. ``raised``: a hook failed closed. ``same``: no difference, which includes moments at which
no hook decided anything.
"""

KINDS: tuple[Kind, ...] = get_args(Kind)

Problem = Literal["raised", "refused", "timed_out", "out_of_memory", "crashed"]
"""The ways in which a hook fails: it raised, it tried something that a backtest refuses, it exceeded the time limit, it
exceeded the memory limit, or it ended its process."""

EXAMPLES = 5
"""The number of examples that a report keeps of each kind of difference."""
FILES = 1000
"""The number of entries about skipped lines that a report lists by file. Further ones are counted together."""


class Count(Frozen, frozen=True):
    """A number of moments, by how sure the answer about them is."""

    exact: int = 0
    conditional: int = 0
    guess: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.exact + self.conditional + self.guess

    def __add__(self, other: Count) -> Count:
        return Count(self.exact + other.exact, self.conditional + other.conditional, self.guess + other.guess)


class Example(Frozen, frozen=True, omit_defaults=True):
    """One moment, to open with ``hookline explain RUN --at 12``.

    ``then`` and ``now`` are decisions in words (``blocked by no_sudo: sudo is not allowed``; empty if no hook decided).
    ``subject`` is the tool call or another short form of the payload.
    """

    run_id: str
    n: int
    point: str
    tool: str = ""
    subject: str = ""
    then: str = ""
    now: str = ""
    reason: str = ""
    certainty: Certainty = "exact"
    file: str = ""


class Cell(Frozen, frozen=True):
    """The moments of one hook, point, tool and kind of difference.

    ``hook`` is the hook that decides now, or that decided then and no longer does; empty if no hook decided anything.
    """

    hook: str
    point: str
    tool: str
    kind: Kind
    count: Count = Count()
    examples: tuple[Example, ...] = ()

    @property
    def key(self) -> tuple[str, str, str, str]:
        """The cell's place in the table."""
        return self.hook, self.point, self.tool, self.kind


class HookFailure(Frozen, frozen=True):
    """A hook that went wrong in the same way at ``count`` moments."""

    hook: str
    problem: Problem
    message: str
    count: int = 0
    examples: tuple[Example, ...] = ()


class Guess(Frozen, frozen=True):
    """A hook that read something that is not recorded, so that its decisions at ``count`` moments are guesses."""

    hook: str
    read: str
    count: int = 0


class Confusion(Frozen, frozen=True):
    """Labelled tool calls by label and decision. A call is stopped if it is blocked, asked about or ends the run."""

    bad_stopped: Count = Count()
    bad_passed: Count = Count()
    good_stopped: Count = Count()
    good_passed: Count = Count()

    @property
    def total(self) -> int:
        """The number of labelled calls."""
        return self.bad_stopped.total + self.bad_passed.total + self.good_stopped.total + self.good_passed.total

    @property
    def precision(self) -> float | None:
        """The share of bad calls among the stopped ones; ``None`` if no labelled call was stopped."""
        return _share(self.bad_stopped.total, self.bad_stopped.total + self.good_stopped.total)

    @property
    def recall(self) -> float | None:
        """The share of stopped calls among the bad ones; ``None`` if no call is labelled bad."""
        return _share(self.bad_stopped.total, self.bad_stopped.total + self.bad_passed.total)

    def __add__(self, other: Confusion) -> Confusion:
        return Confusion(*(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__))


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


class Report(Frozen, frozen=True):
    """The answer of a backtest. ``then`` is the recorded decision, or that of the baseline; ``now`` that of the rules.

    Example::

        report = backtest([no_sudo], ["records/"])
        print(report.total("newly_blocked").exact, report.exact_share)
        report.fail_if("newly_blocked > 0")
    """

    rules: tuple[str, ...] = ()
    """The names of the hooks that were tested."""
    baseline: tuple[str, ...] | None = None
    """The names of the hooks that they were compared with; ``None`` if that were the recorded decisions."""
    files: int = 0
    runs: int = 0
    """Outermost runs. The runs nested in them are ``nested``."""
    nested: int = 0
    different_runs: int = 0
    """Outermost runs in which, or in a nested run of which, a decision differs."""
    moments: int = 0
    judged: int = 0
    """Moments at which a tested hook was called."""
    certainty: Count = Count()
    """All moments, judged or not, by how sure the answer about them is."""
    cells: tuple[Cell, ...] = ()
    failures: tuple[HookFailure, ...] = ()
    guesses: tuple[Guess, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    labels_then: Confusion = Confusion()
    labels: Confusion = Confusion()
    seconds: float = 0.0
    """How long the backtest took. The reports of several processes add up."""
    notes: tuple[str, ...] = ()
    """Further notes for the reader, such as hooks that were given up."""

    def __str__(self) -> str:
        """Return the answer in a few lines, for people."""
        lines = [headline(self), how_sure(self)]
        for cell in self.cells:
            if cell.kind != "same":
                where = f"{cell.hook} at {cell.point} {cell.tool}".strip()
                lines.append(f"{in_words(cell.kind)}: {cell.count.total:,} ({where})")
        problems = []
        if self.failures:
            problems.append(counted(len(self.failures), "hook failure"))
        if self.skipped_lines:
            problems.append(counted(self.skipped_lines, "skipped line"))
        if problems:
            lines.append(f"{', '.join(problems)}: see failures and skipped")
        return "\n".join(filter(None, lines))

    @property
    def exact_share(self) -> float:
        """The share of the moments about which the answer is exact; 1 if there are no moments."""
        return self.certainty.exact / self.certainty.total if self.certainty.total else 1.0

    @property
    def differences(self) -> Count:
        """The moments at which the decision differs."""
        return _sum(cell.count for cell in self.cells if cell.kind != "same")

    @property
    def skipped_lines(self) -> int:
        """The number of lines and moments that were skipped."""
        return sum(each.count for each in self.skipped)

    def total(self, kind: Kind, *, hook: str | None = None, tool: str | None = None) -> Count:
        """Return the number of moments of one kind, for all hooks and tools or only for these."""
        return _sum(
            cell.count
            for cell in self.cells
            if cell.kind == kind and hook in (None, cell.hook) and tool in (None, cell.tool)
        )

    def failed(self, problem: Problem) -> int:
        """Return at how many moments a hook had this problem."""
        return sum(each.count for each in self.failures if each.problem == problem)

    def fail_if(self, expression: str) -> str | None:
        """Return why an expression such as ``"newly_blocked > 0"`` is true of this report, or ``None`` if it is not.

        Names: every kind, ``differences``, ``runs``, ``different_runs``, ``moments``, ``judged``, ``skipped``,
        ``guessed``, every problem of a hook, ``exact_share``, ``precision`` and ``recall``. Counts have the parts
        ``.exact``, ``.conditional`` and ``.guess``. ``and``, ``or``, ``not`` and parentheses combine comparisons.

        Raises:
            BacktestError: the expression is invalid; the message suggests a similar name.
        """
        return condition(expression).reason(self._number)

    def _number(self, name: str, part: str) -> float | None:
        value: Any
        if name in _PROBLEMS:
            value = self.failed(name)
        elif name in KINDS:
            value = self.total(name)
        elif name in ("precision", "recall"):
            value = getattr(self.labels, name)
        elif name == "guessed":
            value = sum(each.count for each in self.guesses)
        else:
            value = self.skipped_lines if name == "skipped" else getattr(self, name)
        return getattr(value, part or "total") if isinstance(value, Count) else value  # type: ignore[no-any-return]

    @classmethod
    def merge(cls, reports: Iterable[Report]) -> Report:
        """Return the report of several parts of the records, in the given order.

        Raises:
            ValueError: the reports are about different rules.
        """
        given = list(reports)
        if not given:
            return cls()
        first = given[0]
        for other in given[1:]:
            if (other.rules, other.baseline) != (first.rules, first.baseline):
                raise ValueError(
                    f"these reports are about different rules: {', '.join(first.rules)} and {', '.join(other.rules)}"
                )
        sums: dict[str, Any] = {
            name: sum(getattr(each, name) for each in given)
            for name in ("files", "runs", "nested", "different_runs", "moments", "judged", "seconds")
        }
        return cls(
            first.rules,
            first.baseline,
            **sums,
            certainty=_sum(each.certainty for each in given),
            cells=_merge_cells(cell for each in given for cell in each.cells),
            failures=_merge_failures(failure for each in given for failure in each.failures),
            guesses=_merge_guesses(guess for each in given for guess in each.guesses),
            skipped=_merge_skipped(skipped for each in given for skipped in each.skipped),
            labels_then=sum((each.labels_then for each in given), Confusion()),
            labels=sum((each.labels for each in given), Confusion()),
            notes=tuple(dict.fromkeys(note for each in given for note in each.notes)),
        )


_NUMBERS = ("runs", "different_runs", "moments", "judged", "skipped", "guessed", "exact_share", "precision", "recall")
_PROBLEMS: tuple[Problem, ...] = get_args(Problem)


def condition(expression: str) -> Condition:
    """Parse an expression for :meth:`Report.fail_if`, to report mistakes before a long backtest.

    Raises:
        BacktestError: the expression is invalid.
    """
    counts = (*(kind for kind in KINDS if kind not in _PROBLEMS), "differences")
    return Condition(expression, (*_NUMBERS, *_PROBLEMS), counts, get_args(Certainty))


def _sum(counts: Iterable[Count]) -> Count:
    return sum(counts, Count())


_ORDER = {kind: index for index, kind in enumerate(KINDS)}


def _merge_cells(cells: Iterable[Cell]) -> tuple[Cell, ...]:
    merged = _by_key(cells, lambda cell: cell.key, _add_cells)
    return tuple(sorted(merged, key=lambda c: (not c.hook, c.hook, c.point, c.tool, _ORDER[c.kind])))


def _merge_failures(failures: Iterable[HookFailure]) -> tuple[HookFailure, ...]:
    merged = _by_key(failures, lambda t: (t.hook, t.problem, t.message), _add_cells)
    return tuple(sorted(merged, key=lambda t: (t.hook, -t.count, t.message)))


def _merge_guesses(guesses: Iterable[Guess]) -> tuple[Guess, ...]:
    merged = _by_key(guesses, lambda g: (g.hook, g.read), lambda a, b: Guess(a.hook, a.read, a.count + b.count))
    return tuple(sorted(merged, key=lambda g: (g.hook, g.read)))


def _merge_skipped(skipped: Iterable[Skipped]) -> tuple[Skipped, ...]:
    def add(a: Skipped, b: Skipped) -> Skipped:
        first = min(filter(None, (a.first, b.first)), default=0)
        return Skipped(a.file, a.reason, a.count + b.count, first)

    merged = _by_key(skipped, lambda s: (s.file, s.reason), add)
    if len(merged) <= FILES:
        return tuple(merged)
    rest = (Skipped("other files", each.reason, each.count) for each in merged[FILES:])
    return *merged[:FILES], *_by_key(rest, lambda s: s.reason, add)


T = TypeVar("T")
_Counted = TypeVar("_Counted", Cell, HookFailure)


def _by_key(items: Iterable[T], key: Callable[[T], Any], add: Callable[[T, T], T]) -> list[T]:
    """Return the items with those of the same key added up, in the order of their first appearance."""
    found: dict[Any, T] = {}
    for item in items:
        at = key(item)
        found[at] = add(found[at], item) if at in found else item
    return list(found.values())


def _add_cells(a: _Counted, b: _Counted) -> _Counted:
    return msgspec.structs.replace(a, count=a.count + b.count, examples=(*a.examples, *b.examples)[:EXAMPLES])


_IN_HEADLINE = 3
_READS_NAMED = 2


def headline(report: Report) -> str:
    """Return the answer of a report in one sentence.

    Example::

        headline(report)  # "2 of 1,204 runs would differ: 3 newly blocked, 1 no longer asked."
    """
    if not report.runs:
        return "The records contain no runs, so nothing was judged."
    found: list[tuple[Kind, int]] = [
        (kind, number) for kind in KINDS if kind != "same" and (number := report.total(kind).total)
    ]
    if not found and not report.judged and report.failures:
        return f"No moment could be judged in {counted(report.runs, 'run')}, because the rules failed."
    if not found and not report.judged:
        return f"The rules were not called: {counted(report.runs, 'run')}, and no moment at their points and tools."
    if not found:
        return f"No decision would differ in {counted(report.runs, 'run')}."
    named = [f"{number:,} {in_words(kind)}" for kind, number in found[:_IN_HEADLINE]]
    if len(found) > _IN_HEADLINE:
        named.append(f"{sum(number for _, number in found[_IN_HEADLINE:]):,} other differences")
    return f"{report.different_runs:,} of {counted(report.runs, 'run')} would differ: {', '.join(named)}."


def how_sure(report: Report) -> str:
    """Return how far the answer of a report can be trusted, as a sentence; empty if no moment was judged."""
    found, guesses = report.differences, report.certainty.guess
    if not report.moments or not report.judged:
        return ""
    if not found.total:
        return f"{counted(guesses, 'answer')} may be wrong: see the guesses." if guesses else "That is certain."
    if found.exact == found.total:
        return "That is certain: up to the first difference, each run went exactly this way."
    are = "is" if found.exact == 1 else "are"
    parts = [f"{found.exact:,} of {counted(found.total, 'difference')} {are} certain"]
    if found.conditional:
        parts.append(f"{found.conditional:,} came later in a run that would have differed before")
    if found.guess:
        guessed = "is a guess" if found.guess == 1 else "are guesses"
        parts.append(f"{found.guess:,} {guessed}, because {_why_guessed(report)}")
    return f"{'; '.join(parts)}."


def _why_guessed(report: Report) -> str:
    reads = list(dict.fromkeys(f"{guess.hook} read {guess.read}" for guess in report.guesses))
    if len(reads) > _READS_NAMED:
        reads[_READS_NAMED:] = [f"{len(reads) - _READS_NAMED:,} more"]
    return " and ".join(reads) or "a part of the record cannot be read"


def in_words(kind: Kind) -> str:
    """Return a kind of difference as it is shown."""
    return kind.replace("_", " ")
