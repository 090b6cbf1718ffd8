"""Two runs side by side: the same parts next to each other, and what differs in them.

A run is compared part by part: a model call, a tool call, or another point at which a hook intervened. Times, tokens,
costs and generated ids differ in every run and are not compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

import msgspec

from .._base.text import counted
from .text_diff import Part, diff_text, fold
from .view import (
    EventView,
    ModelCall,
    MomentView,
    NestedRun,
    RunView,
    StepView,
    ToolCallView,
    View,
    nested_runs,
)
from .words import verb_words

_MAX_COMPARISONS = 4_000_000
"""Maximum product of the numbers of parts that are aligned by content; longer runs are aligned by position."""

_LATE = (
    "approval",
    "outcome",
    "reply",
    "calls",
    "error",
    "result",
    "hooks at on_token",
    "hooks at after_llm",
    "hooks at after_tool",
    "hooks at on_error",
)
"""Texts that are known only after the call, in order."""


class RunPart(View):
    """A part of a run, as far as it is compared."""

    where: str
    """The step, such as ``Step 3``."""
    kind: str
    title: str
    depth: int = 0
    n: int = -1
    """The first moment of the part; -1 if it has none."""
    texts: dict[str, str] = msgspec.field(default_factory=dict)
    verbs: list[tuple[str, str]] = msgspec.field(default_factory=list)
    """The verbs of hooks that intervened, each with its hook."""

    @property
    def label(self) -> tuple[int, str, str]:
        """The key of a part: parts of two runs with the same key are shown side by side."""
        return self.depth, self.kind, self.title

    @property
    def content(self) -> tuple[object, ...]:
        """Everything that is compared."""
        return (*self.label, *self.texts.items(), *self.verbs)


class TextDifference(View):
    """A text that differs between two parts: ``-`` is only in the first run, ``+`` only in the second."""

    name: str
    parts: list[Part]


class Pair(View):
    """Two parts that belong together. ``left`` or ``right`` is ``None`` if the other run has no such part."""

    left: RunPart | None = None
    right: RunPart | None = None
    differences: list[TextDifference] = msgspec.field(default_factory=list)

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return self.left is not None and self.right is not None and not self.differences


class Comparison(View):
    """Two runs, part by part. ``first`` is the position of the first pair that differs; -1 if none does."""

    left: RunView
    right: RunView
    pairs: list[Pair]
    first: int = -1
    not_compared: str = ""
    """What is not compared, because only one of the runs has it, as a sentence."""

    @property
    def same(self) -> bool:
        """Whether both runs did the same."""
        return self.first < 0


def compare(left: RunView, right: RunView) -> Comparison:
    """Compare two runs, as far as both are known.

    Example::

        found = compare(explain(monday), explain(tuesday))
        if not found.same:
            print(found.pairs[found.first].differences)
    """
    is_partial = left.has_requests != right.has_requests
    pairs = list(_pairs(*(list(run_parts(run, is_partial=is_partial)) for run in (left, right))))
    first = next((position for position, pair in enumerate(pairs) if not pair.same), -1)
    not_compared = ""
    if is_partial:
        less = right if left.has_requests else left
        not_compared = (
            f"The events of {less.id} do not have the requests to the model, nor what hooks changed: not compared."
        )
    return Comparison(left, right, pairs, first, not_compared)


# The parts of a run


def run_parts(run: RunView, depth: int = 0, *, is_partial: bool = False) -> Iterator[RunPart]:
    """Yield the parts of a run and its nested runs; with ``is_partial``, only what events have, too."""
    system = "" if is_partial else run.system
    yield RunPart("", "run", run.agent, depth, texts=_filled(task=run.task, system=system, model=run.model))
    for step in run.steps:
        where = "Start" if step.index < 0 else f"Step {step.index + 1}"
        if depth and run.agent:
            where += f" of {run.agent}"
        yield from _step_parts(step, where, depth, is_partial=is_partial)
        for nested in nested_runs(step):
            yield from run_parts(nested, depth + 1, is_partial=is_partial)
    yield RunPart("", "end", "end", depth, texts=_filled(status=run.status, why=run.why, reply=run.reply))


def _step_parts(step: StepView, where: str, depth: int, *, is_partial: bool) -> Iterator[RunPart]:
    for item in step.items:
        if isinstance(item, ModelCall):
            purpose = f" for {item.purpose}" if item.purpose != "step" else ""
            attempt = f", attempt {item.attempt}" if item.attempt > 1 else ""
            new = [
                f"{message.role}: {message.text}" for message in item.messages if not message.known and not is_partial
            ]
            is_unknown = is_partial and any(verb == "retry" for moment in item.moments for verb in moment.verbs)
            texts = _filled(
                messages="\n".join(new),
                reply="" if is_unknown else item.text,
                calls="" if is_unknown else ", ".join(item.calls),
                answered_by=item.source if item.source != "model" else "",
                error=item.error,
            )
            yield _part(where, "model", f"model{purpose}{attempt}", depth, item.moments, texts, is_partial=is_partial)
        elif isinstance(item, ToolCallView):
            texts = _filled(
                arguments="\n".join(f"{name}: {value}" for name, value in item.arguments) or item.raw,
                approval=item.decision and f"{item.decision} by {item.decided_by}",
                outcome=item.outcome,
                result=item.result,
            )
            yield _part(where, "call", item.tool, depth, item.moments, texts, is_partial=is_partial)
        elif isinstance(item, EventView):
            part = _part(where, "event", item.moments[0].point, depth, item.moments, {}, is_partial=is_partial)
            is_failure = item.bad and not is_partial  # events leave out failures that a decision or call says already
            if part.verbs or is_failure:
                part.texts = {**_filled(text=item.text), **part.texts}
                yield part
        else:
            assert isinstance(item, NestedRun)  # its parts follow


def _part(
    where: str,
    kind: str,
    title: str,
    depth: int,
    moments: Sequence[MomentView],
    texts: dict[str, str],
    *,
    is_partial: bool,
) -> RunPart:
    verbs = []
    for moment in moments:
        lines = []
        for decision in moment.decisions:
            if decision.verb == "cont" and (is_partial or not decision.state):
                continue
            verbs.append((decision.verb, decision.hook))
            word = verb_words(decision.verb)[0]
            more = () if is_partial else (decision.error, decision.value)
            lines.append(": ".join(filter(None, (f"{decision.hook} {word}", decision.reason, *more))))
            for change in () if is_partial else (*decision.changes, *decision.state):
                changed = " ".join(f"{op}{text}" for op, text in change.parts if op in "+-")
                lines.append(f"  {change.field}: {changed}")
        if moment.verdict == "invalid" and not is_partial:
            verbs.append(("invalid", ""))
            lines.append("the arguments are invalid")
        if lines:
            name = f"hooks at {moment.point}"
            texts[name] = "\n".join(filter(None, (texts.get(name, ""), *lines)))
    ordered = {name: texts[name] for name in sorted(texts, key=_position)}
    return RunPart(where, kind, title, depth, moments[0].n if moments else -1, ordered, verbs)


def _position(name: str) -> int:
    """Return the position of a text: hooks that act before a call come before what the call returned."""
    return _LATE.index(name) if name in _LATE else -1


def _filled(**texts: str) -> dict[str, str]:
    return {name.replace("_", " "): text for name, text in texts.items() if text}


# Alignment


def _pairs(left: Sequence[RunPart], right: Sequence[RunPart]) -> Iterator[Pair]:
    before, after = [part.content for part in left], [part.content for part in right]
    start = 0
    while start < min(len(before), len(after)) and before[start] == after[start]:
        start += 1
    end = 0
    while end < min(len(before), len(after)) - start and before[-1 - end] == after[-1 - end]:
        end += 1
    yield from (Pair(one, other) for one, other in zip(left[:start], right[:start], strict=True))
    yield from _aligned(left[start : len(left) - end], right[start : len(right) - end])
    if end:
        yield from (Pair(one, other) for one, other in zip(left[-end:], right[-end:], strict=True))


def _aligned(left: Sequence[RunPart], right: Sequence[RunPart]) -> Iterator[Pair]:
    """Pair equal parts first, then, between them, parts with the same label."""
    if len(left) * len(right) > _MAX_COMPARISONS:
        yield from _by_position(left, right)
        return
    before, after = [part.content for part in left], [part.content for part in right]
    for op, i, j, k, l in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():  # noqa: E741
        if op == "equal":
            yield from (Pair(one, other) for one, other in zip(left[i:j], right[k:l], strict=True))
        else:
            yield from _by_label(left[i:j], right[k:l])


def _by_label(left: Sequence[RunPart], right: Sequence[RunPart]) -> Iterator[Pair]:
    before, after = [part.label for part in left], [part.label for part in right]
    for op, i, j, k, l in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():  # noqa: E741
        if op == "equal":
            yield from (_pair(one, other) for one, other in zip(left[i:j], right[k:l], strict=True))
        else:
            yield from (Pair(one, None) for one in left[i:j])
            yield from (Pair(None, other) for other in right[k:l])


def _by_position(left: Sequence[RunPart], right: Sequence[RunPart]) -> Iterator[Pair]:
    common = min(len(left), len(right))
    for one, other in zip(left[:common], right[:common], strict=True):
        if one.label == other.label:
            yield _pair(one, other)
        else:
            yield Pair(one, None)
            yield Pair(None, other)
    yield from (Pair(one, None) for one in left[common:])
    yield from (Pair(None, other) for other in right[common:])


def _pair(left: RunPart, right: RunPart) -> Pair:
    differences = []
    for name in sorted(dict.fromkeys((*left.texts, *right.texts)), key=_position):
        one, other = left.texts.get(name, ""), right.texts.get(name, "")
        if one != other:
            differences.append(TextDifference(name, fold(diff_text(one, other))))
    if not differences and left.verbs != right.verbs:
        differences.append(TextDifference("hooks", diff_text(_verbs_text(left), _verbs_text(right))))
    return Pair(left, right, differences)


def _verbs_text(part: RunPart) -> str:
    return ", ".join(f"{hook} {verb}" for verb, hook in part.verbs)


def summary(comparison: Comparison) -> str:
    """Say how two runs differ, and what was not compared."""
    return f"{_difference(comparison)} {comparison.not_compared}".rstrip()


def _difference(comparison: Comparison) -> str:
    if comparison.same:
        return f"Both runs did the same: {counted(len(comparison.pairs), 'part')}."
    different = sum(not pair.same for pair in comparison.pairs)
    pair = comparison.pairs[comparison.first]
    part = pair.left or pair.right
    assert part is not None
    what = (
        "the run's input" if part.kind == "run" else "the end" if part.kind == "end" else f"{part.where}, {part.title}"
    )
    if pair.left is None:
        how = "only in the second run"
    elif pair.right is None:
        how = "only in the first run"
    else:
        how = ", ".join(difference.name for difference in pair.differences)
    return f"The first difference: {what} ({how}). {counted(different, 'part')} of {len(comparison.pairs):,} differ."
