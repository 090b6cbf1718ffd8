"""The timeline of a run: where its bars begin and end, and what a line about a step says."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from ..._base.text import shorten
from ...explain.view import EventView, Item, ModelCall, MomentView, NestedRun, RunView, StepView, ToolCallView
from ...explain.words import QUIET_POINTS, verb_words

WIDTH = 1000
"""Width of the timeline, in units of its own."""
MARK = 5
"""Width of the mark of a verdict, and the smallest width of a bar."""

_TOTALS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600)
_SHOWN = 5
"""Number of calls, and of verdicts, that the line of a step names."""


class Bar(NamedTuple):
    """A piece of the timeline: its class, and its position and width. An open bar has no end yet."""

    kind: str
    x: float
    width: float
    is_open: bool = False
    title: str = ""


class Timeline:
    """Places what happened in a run on a line.

    The line is a round number of seconds long, so that the bars stay where they are while the run goes on.

    Args:
        view: the run.
        is_open: whether the run has not ended.
    """

    def __init__(self, view: RunView, is_open: bool) -> None:
        self._until = max(view.until, view.elapsed)
        self._is_open = is_open
        doubled = 2 * _TOTALS[-1]
        while doubled < self._until:
            doubled *= 2
        self.total = next((total for total in (*_TOTALS, doubled) if total >= self._until), doubled)

    def step(self, step: StepView) -> list[Bar]:
        """Return the bars of a step and of the runs that it started."""
        return sorted(chain.from_iterable(map(self.item, _all_items(step))), key=lambda bar: bar.kind not in _UNDER)

    def item(self, item: Item) -> list[Bar]:
        """Return the bars of one model call or tool call, and the marks of the verdicts about it."""
        bars = []
        for kind, begin, end in _spans(item):
            is_open = end is None and self._is_open
            until = self.total if is_open else self._until if end is None else end
            bars.append(self._bar(kind, begin, until, is_open))
        if not isinstance(item, NestedRun):
            bars += [self._mark(moment, verb) for moment in item.moments for verb in moment.verbs]
        return bars

    def _bar(self, kind: str, begin: float, end: float, is_open: bool) -> Bar:
        x = min(begin / self.total * WIDTH, WIDTH - MARK)
        width = max((end - begin) / self.total * WIDTH, MARK)
        return Bar(kind, round(x, 1), round(min(width, WIDTH - x), 1), is_open)

    def _mark(self, moment: MomentView, verb: str) -> Bar:
        word, tone = verb_words(verb)
        x = min(max(0.0, moment.at / self.total * WIDTH - MARK / 2), WIDTH - MARK)
        hooks = ", ".join(each.hook for each in moment.decisions if each.verb == verb)
        return Bar(tone, round(x, 1), MARK, title=f"{moment.point}: {word} by {hooks}".removesuffix(" by "))


_UNDER = ("model", "tool", "wait")
"""Kinds of bars. Marks are drawn over them."""


def kind_of(item: Item) -> str:
    """Return ``model``, ``call``, ``event`` or ``run``."""
    return str(item.__struct_config__.tag)


def _spans(item: Item) -> Iterator[tuple[str, float, float | None]]:
    """Yield what took time: its kind, its beginning, and its end; ``None`` if it has none yet."""
    if isinstance(item, ModelCall):
        answered = next((each.at for each in item.moments if each.point == "after_llm"), item.at + item.duration)
        if item.answered:
            yield "model", max(item.at, answered - item.duration), answered
        elif item.model and not item.error:
            yield "model", item.at, None
    elif isinstance(item, ToolCallView):
        yield from _waits(item)
        ended = next((each.at for each in item.moments if each.point == "after_tool"), None)
        began = item.began
        if began is None and ended is not None and item.duration:  # a record says when it ended
            began = max(item.at, ended - item.duration)
        if began is not None:
            yield "tool", began, began + item.duration if item.outcome else None


def _waits(call: ToolCallView) -> Iterator[tuple[str, float, float | None]]:
    """Yield the times that a call waited for approval."""
    asked: float | None = None
    for moment in call.moments:
        if moment.point == "approval_requested" and asked is None:
            asked = moment.at
        elif moment.point == "approval_decided" and asked is not None:
            yield "wait", asked, moment.at
            asked = None
    if asked is not None:
        yield "wait", asked, None


def _all_items(step: StepView) -> Iterator[Item]:
    for item in step.items:
        yield item
        runs = [item.run] if isinstance(item, NestedRun) else item.runs if isinstance(item, ToolCallView) else []
        for run in runs:
            for inner in run.steps:
                yield from _all_items(inner)


class VerdictLabel(NamedTuple):
    """A verdict in the line of a step."""

    verb: str
    hook: str


class StepLine(NamedTuple):
    """What the line of a step says."""

    title: str
    calls: list[ToolCallView]
    more_calls: int
    text: str
    verdicts: list[VerdictLabel]
    more_verdicts: int
    tokens: int
    cost: float
    took: float
    is_blocked: bool


def step_line(step: StepView, position: int = 0) -> StepLine:
    """Return what the line of a step says. ``position`` is that in the list of steps."""
    models = [item for item in step.items if isinstance(item, ModelCall)]
    calls = [item for item in step.items if isinstance(item, ToolCallView)]
    events = [
        item.text for item in step.items if isinstance(item, EventView) and item.moments[0].point not in QUIET_POINTS
    ]
    spoken = [
        VerdictLabel(verb, next((each.hook for each in moment.decisions if each.verb == verb), ""))
        for moment in step.moments()
        for verb in moment.verbs
    ]
    verdicts = list(dict.fromkeys(spoken))
    texts = [models[-1].text, models[-1].error] if models else events
    text = "" if calls else next(filter(None, texts), "")
    title = f"Step {step.index + 1}" if step.index >= 0 else "Handoff" if position else "Start"
    return StepLine(
        title,
        calls[:_SHOWN],
        max(0, len(calls) - _SHOWN),
        shorten(" ".join(text.split()), 180),
        verdicts[:_SHOWN],
        max(0, len(verdicts) - _SHOWN),
        sum(each.input_tokens + each.output_tokens for each in models),
        sum(each.cost or 0.0 for each in models),
        max(0.0, step.until - step.at),
        any(each.verb == "block" for each in verdicts),
    )
