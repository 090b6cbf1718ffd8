"""Describe the events of a run in lines of text."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count
from typing import Any

import msgspec

from .._kernel.events import Event, HookExecuted, JudgedBeforeRewrite, MergeLost, RetryIgnored
from .._kernel.values import Ids
from .._run import events as e
from ..hooks.shadow_mode import ShadowDecided
from .text import Within, arguments_text, printable, short, summary

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
    """One line to read, free of control characters; ``kind`` says what it is about, for colours and marks.

    ``who`` is the subagent that it is about, and ``depth`` how many runs that one is inside of.
    """

    kind: str
    text: str
    who: str = ""
    depth: int = 0

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "text", printable(self.text, keep=""))


class Subagent(msgspec.Struct):
    """A run inside the one that is told; no other one that goes on has its name."""

    name: str
    depth: int
    parent: str
    story: Story
    within: Within


class Story:
    """Tells a run, event by event, and the runs inside it."""

    def __init__(self) -> None:
        self._subagents: dict[str, Subagent] = {}
        self._speaker, self._handed_over = "", False
        self._failure: str | None = None
        self._said = ""  # the last reply is the run's own, and not told here
        self._arguments: dict[str, Any] = {}
        self._changed = False  # whether a hook or a person changed a call of this batch

    def tell(self, event: Event) -> Iterator[Line]:
        """What is worth reading about an event."""
        match event:
            case e.SubagentEvent():
                yield from self._tell_inside(event)
            case e.RunStarted():
                if self._handed_over and event.ids.agent != self._speaker:
                    yield Line("speaker", f"{event.ids.agent} takes over")
                self._speaker, self._handed_over = event.ids.agent, False
                self._subagents.clear()
            case e.RunFinished():
                stop = event.result.stop
                self._handed_over = stop is not None and stop.kind == "finish_reason"
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
                by = f"hook {event.signal.hook} stops the run" if event.signal.hook else "stop"
                yield Line("stop", f"{by}: {short(event.signal.message or event.signal.kind)}")
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

    def subagent(self, ids: Ids) -> Subagent:
        """The run inside this one with these ids."""
        known = self._subagents.get(ids.run_id)
        if known is None:
            above = self._subagents.get(ids.parent_run_id)
            known = Subagent(
                self._free_name(printable(ids.agent, keep="") or "subagent"), 1 if above is None else above.depth + 1,
                "" if above is None else ids.parent_run_id, Story(), Within(),
            )  # fmt: skip
            self._subagents[ids.run_id] = known
        return known

    def _free_name(self, name: str) -> str:
        taken = {subagent.name for subagent in self._subagents.values()}
        numbers = (f"{name} {number}" for number in count(2))
        return next(each for each in chain((name,), numbers) if each not in taken)

    def _tell_inside(self, event: e.SubagentEvent) -> Iterator[Line]:
        subagent, inner = self.subagent(event.ids), event.event
        for line in subagent.story.tell(inner):
            if line.kind != "step":  # the calls and words of each step tell enough
                yield msgspec.structs.replace(line, who=subagent.name, depth=subagent.depth)
        told: list[tuple[str, str]] = []
        if isinstance(inner, e.TaskTaken):
            told.append(("task", f"task: {short(inner.task)}"))
        elif isinstance(inner, e.RunFinished):
            if subagent.story._failure is not None:
                told.append(("error", f"model failed: {subagent.story._failure}"))
            kind = {"completed": "ok", "failed": "error"}.get(inner.result.status, "stop")
            told.append((kind, summary(inner.result, within=subagent.within)))
            self._finished(event)
        for kind, text in told:
            yield Line(kind, text, subagent.name, subagent.depth)

    def _finished(self, event: e.SubagentEvent) -> None:
        gone = self._subagents.pop(event.ids.run_id)
        above = self._subagents.get(gone.parent)
        while above is not None:
            above.within.add(event.event.result)  # type: ignore[attr-defined]
            above = self._subagents.get(above.parent)

    def _tell_said(self) -> Iterator[Line]:
        said, self._said = self._said, ""
        if said:
            yield Line("says", f"says: {short(said)}")


def _verdict(event: HookExecuted) -> Iterator[Line]:
    if event.error is not None:
        yield Line("error", short(event.error, FULL))  # it names the hook
    elif event.verb == "stop" and not event.reason:
        return  # its signal tells it
    elif event.verb in _VERBS and event.point not in _UNTOLD:
        because = f": {short(event.reason)}" if event.reason else ""
        yield Line(event.verb, f"hook {event.hook} {_VERBS[event.verb]} at {event.point}{because}")
