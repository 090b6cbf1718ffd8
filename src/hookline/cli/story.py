"""A run in words: what is worth reading about each event."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from ..base.event import Event
from ..builtin.shadow import ShadowDecided
from ..kernel.records import HookExecuted, JudgedBeforeRewrite, MergeLost, RetryIgnored
from ..run import events as e
from .text import arguments_text, printable, short

_VERBS = {
    "replace": "rewrites",
    "block": "blocks",
    "answer": "answers instead",
    "ask": "asks first",
    "retry": "wants another try",
    "stop": "stops the run",
    "end": "ends the run",
    "keep_going": "keeps it going",
    "merge": "adds",
    "claim": "claims",
}
_UNTOLD = ("on_token", "approval_requested")
"""Points whose verdicts are not told: too many, or told by an event of their own."""
_GUARDED = ("before_tool", "on_run_start")
"""Points where it is told that a hook judged too early: elsewhere it is seldom a guard."""
FULL = 500
"""How much of a failure is told: what to do about it often stands at its end."""


class Line(msgspec.Struct, frozen=True):
    """One line to read, free of control characters; ``kind`` says what it is about, for colours and marks."""

    kind: str
    text: str

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "text", printable(self.text, keep=""))


class Story:
    """Tells a run, event by event."""

    def __init__(self) -> None:
        self._failure: str | None = None
        self._said = ""  # the last reply is the run's own, and not told here
        self._arguments: dict[str, Any] = {}
        self._changed = False  # whether a hook or a person changed a call of this batch

    def tell(self, event: Event) -> Iterator[Line]:
        """What is worth reading about an event."""
        match event:
            case e.StepStarted():
                yield from self._tell_said()
                yield Line("step", f"step {event.index + 1}")
            case e.ModelCalled() if self._failure is not None:  # it was mended; else the end of the run says it
                yield Line("error", f"model failed: {self._failure}")
                self._failure = None
            case e.Failed() if event.error.where == "model":
                self._failure = short(event.error.message, FULL)
            case e.ModelReplied() if event.purpose != "step":
                yield Line("note", f"model {event.model} for {event.purpose}: {short(event.content)}")
            case e.ModelReplied():
                self._said = "" if event.tool_calls else event.content
                if event.tool_calls and event.content:
                    yield Line("says", f"says: {short(event.content)}")
                self._changed = False
                for call in event.tool_calls:
                    self._arguments[call.id] = call.arguments
                    sent = arguments_text(call.arguments) if call.raw is None else short(call.raw)
                    yield Line("call", f"calls {call.name} {sent}")
            case HookExecuted():
                self._changed = self._changed or (event.verb, event.point) == ("replace", "before_tool")
                if event.verb == "keep_going":
                    yield from self._tell_said()
                yield from _verdict(event)
            case e.ToolStarted() if event.attempt > 1:
                yield Line("call", f"tool {event.tool}, attempt {event.attempt}: {arguments_text(event.arguments)}")
            case e.ToolStarted() if self._changed and self._arguments.get(event.call_id) != event.arguments:
                yield Line("call", f"tool {event.tool} is called with {arguments_text(event.arguments)}")
            case e.ToolProgressed():
                yield Line("note", f"tool {event.message}")
            case e.ToolSettled():
                text = short(event.text, FULL) if event.outcome == "error" else short(event.text)
                yield Line(event.outcome, f"tool {event.tool} {event.outcome}: {text}")
            case e.ApprovalAsked():
                yield Line("ask", f"approval asked for {event.tool}: {short('; '.join(event.questions))}")
            case e.ApprovalDecided():
                self._changed = self._changed or event.decision == "edited"
                yield Line("ask", f"approval {event.decision}" + (f" by {event.by}" if event.by else ""))
            case e.Discarded():
                yield Line("retry", "the reply was rejected; asking again")
            case e.Signalled() if event.signal.kind != "completed":
                yield Line("stop", f"stop: {short(event.signal.message or event.signal.kind)}")
            case e.Steered():
                yield Line("note", f"steered: {short(event.text)}")
            case JudgedBeforeRewrite() if event.point in _GUARDED:
                judges = ", ".join(event.hooks)
                yield Line("note", f"{judges} judged at {event.point} before {event.by} changed it; use @guard")
            case MergeLost():
                yield Line("note", f"{event.hook} gave {event.field} at {event.point} too; {event.kept} was first")
            case ShadowDecided():
                yield Line("note", f"hook {event.hook}, in the shadow at {event.point}, {short(event.would)}")
            case RetryIgnored():
                yield Line("note", f"{event.hook} wanted a retry at {event.point}: {event.why}")

    def _tell_said(self) -> Iterator[Line]:
        said, self._said = self._said, ""
        if said:
            yield Line("says", f"says: {short(said)}")


def _verdict(event: HookExecuted) -> Iterator[Line]:
    if event.error is not None:
        yield Line("error", short(event.error, FULL))  # it names the hook
    elif event.verb in _VERBS and event.point not in _UNTOLD:
        because = f": {short(event.reason)}" if event.reason else ""
        yield Line(event.verb, f"hook {event.hook} {_VERBS[event.verb]} at {event.point}{because}")
