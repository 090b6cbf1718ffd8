"""EchoingHook: prints a line for every fire of a point."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from .._base.frozen import json_text
from .._kernel.errors import RegistrationError
from .._kernel.payloads import ModelReply, ModelRequest, RunStart, ToolCallRequest, ToolCallResult
from .._kernel.points import AFTER_LLM, AFTER_TOOL, BEFORE_LLM, BEFORE_TOOL, ON_RUN_END, ON_RUN_START, resolve
from .._kernel.results import HookAction, Verdict
from .._kernel.state import AgentResult
from .._kernel.validation import check_names
from .._kernel.values import Message

DEFAULT_POINTS = (ON_RUN_START, BEFORE_LLM, AFTER_LLM, BEFORE_TOOL, AFTER_TOOL, ON_RUN_END)
WIDTH = 100
"""Maximum length of a line."""


def _to_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")


class EchoingHook:
    """Prints one short line at each point: the point, the verdict of the hooks, and a summary of the payload.

    Example:
        >>> agent = Agent("helper", llm="openai:gpt-5-mini", hooks=[EchoingHook(print)])

    Args:
        write: a function that takes a line; by default it writes to stderr.
        points: the points; by default six points of a run.

    Raises:
        RegistrationError: ``write`` is not callable, or a point does not exist.
    """

    points: frozenset[str] = frozenset(DEFAULT_POINTS)
    phase = "observe"
    priority = 0

    def __init__(self, write: Callable[[str], object] = _to_stderr, *, points: Iterable[str] = DEFAULT_POINTS) -> None:
        if not callable(write):
            raise RegistrationError(f"write must be a function that takes a line, such as print, not {write!r:.80}")
        self.write, self.points = write, frozenset(map(resolve, check_names(points, "points")))

    def __call__(self, point: str, ctx: Any, payload: Any, verdict: Verdict) -> None:
        """Write one line."""
        action = "" if verdict.action is HookAction.CONT else f"{verdict.action} by {verdict.hook or '?'}: "
        line = _printable(f"{point:<12} {action}{_summary(payload)}"[: WIDTH + 1])
        self.write(line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}...")


def _summary(payload: Any) -> str:
    if isinstance(payload, RunStart):
        return payload.task
    if isinstance(payload, ModelRequest):
        last = _message(payload.messages[-1]) if payload.messages else ""
        about = "" if payload.purpose == "step" else f", for {payload.purpose}"
        return f"{len(payload.messages)} messages, {len(payload.tools)} tools{about}: {last}"
    if isinstance(payload, ModelReply):
        calls = ", ".join(f"{call.name}({json_text(call.arguments)})" for call in payload.tool_calls)
        return f"{payload.usage.total_tokens} tokens: {' '.join(part for part in (payload.content, calls) if part)}"
    if isinstance(payload, ToolCallRequest):
        return f"{payload.name}({json_text(payload.arguments)})"
    if isinstance(payload, ToolCallResult):
        return f"{payload.name} {payload.outcome}, {payload.duration:.3f} s: {payload.text}"
    if isinstance(payload, AgentResult):
        return f"{payload.status}, {len(payload.steps)} steps, {payload.usage.total_tokens} tokens: {payload.reply}"
    return repr(payload)


def _message(message: Message) -> str:
    return f"{message.role}: {message.content}"


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
