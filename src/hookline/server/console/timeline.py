"""The times of a run: the beginning and the end of each model call, tool call and wait for a person."""

from __future__ import annotations

from collections.abc import Iterator

from ...explain.view import Item, ModelCall, ToolCallView

Span = tuple[str, float, float | None]
"""A kind, ``model``, ``tool`` or ``wait``; when it began; and when it ended, ``None`` if it has not."""


def spans(item: Item) -> Iterator[Span]:
    """Yield what took time in a model call or a tool call."""
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


def _waits(call: ToolCallView) -> Iterator[Span]:
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
