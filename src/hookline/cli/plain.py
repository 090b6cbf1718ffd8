"""A run as plain lines: for pipes, logs and simple terminals."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self, TextIO

from ..base.event import Event
from ..kernel.records import HookExecuted, JudgedBeforeRewrite, MergeLost, RetryIgnored
from ..kernel.results import HookAction
from ..run import events as e
from .text import arguments_text, short


def line_of(event: Event) -> str | None:
    """What is worth reading about an event, as one line; ``None`` if nothing is."""
    match event:
        case e.StepStarted():
            return f"step {event.index + 1}"
        case HookExecuted() if event.error is not None:
            return f"  hook {event.hook} failed: {short(event.error)}"
        case HookExecuted() if event.verb != HookAction.CONTINUE and event.point not in (
            "on_token",
            "approval_requested",
        ):
            return f"  hook {event.hook} at {event.point}: {event.verb}{_because(event.reason)}"
        case e.ModelReplied() if event.purpose != "step":
            return f"  model {event.model} for {event.purpose}: {short(event.content)}"
        case e.ModelReplied() if event.tool_calls and event.content:
            return f"  says: {short(event.content)}"
        case e.ToolStarted():
            again = f" (attempt {event.attempt})" if event.attempt > 1 else ""
            return f"  tool {event.tool} {arguments_text(event.arguments)}{again}"
        case e.ToolProgressed():
            done = "" if event.fraction is None else f" {event.fraction:.0%}"
            return f"  tool {event.tool}:{done} {short(event.message)}".rstrip()
        case e.ToolSettled():
            return f"  tool {event.tool} {event.outcome}: {short(event.text)}"
        case e.ApprovalAsked():
            return f"  approval asked for {event.tool}: {short('; '.join(event.questions))}"
        case e.ApprovalDecided():
            return f"  approval {event.decision}" + (f" by {event.by}" if event.by else "")
        case e.Discarded():
            return "  the reply was rejected; asking again"
        case e.Signalled() if event.signal.kind != "completed":
            return f"  stop: {short(event.signal.message or event.signal.kind)}"
        case e.Steered():
            return f"  steered: {short(event.text)}"
        case JudgedBeforeRewrite():
            judges = ", ".join(event.hooks)
            return f"  note: {judges} judged at {event.point} before {event.by} changed it; use @guard"
        case MergeLost():
            return f"  note: {event.hook} gave {event.field} at {event.point} too; {event.kept} was first"
        case RetryIgnored():
            return f"  note: {event.hook} wanted a retry at {event.point}: {event.why}"
    return None


def _because(reason: str) -> str:
    return f" ({short(reason)})" if reason else ""


class PlainView:
    """One line per event worth reading. No colours, no cursor movement.

    Args:
        out: where to write; nowhere if it is ``None``.
    """

    def __init__(self, out: TextIO | None) -> None:
        self._out = out
        self._failure: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def __call__(self, event: Event) -> None:
        """Write the event's line, if it has one."""
        if isinstance(event, e.Failed) and event.error.where == "model":
            self._failure = f"  model failed: {short(event.error.message)}"
        elif isinstance(event, e.ModelCalled) and self._failure is not None:  # it was mended; else the end says it
            self.write(self._failure)
            self._failure = None
        line = line_of(event)
        if line is not None:
            self.write(line)

    def write(self, line: str) -> None:
        """Write one line."""
        if self._out is not None:
            self._out.write(f"{line}\n")
            self._out.flush()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing moves here anyway."""
        yield
