"""Describe the events of a run in lines of text."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count
from typing import Any

import msgspec

from .._kernel.events import Event, HookExecuted, JudgedBeforeRewrite, MergeLost, RetryIgnored
from .._kernel.state import AgentResult
from .._kernel.values import Ids
from .._run import events as e
from ..explain.gates import DECIDING, GateCall, decided, strongest
from ..explain.totals import SubagentTotals
from ..explain.words import VERBS, gate_of, verb_phrase
from ..hooks.shadow_mode import ShadowDecided
from .text import arguments_text, printable, run_summary, short

_HIDDEN_POINTS = ("on_token", "approval_requested")
"""Points whose verdicts are not shown: there are too many, or another event shows them."""
_SHOWN_ELSEWHERE = ("cont", "ask", "failed")
"""Verbs that have lines of their own."""
_CALL_POINTS = ("before_tool", "after_tool")
_GUARD_POINTS = ("before_tool", "on_run_start")
"""Points where a warning is shown if a hook judged a call before another one changed it."""
ERROR_WIDTH = 500
"""Number of characters shown of an error: its end often says what to do."""


NOTE_WIDTH = 300
"""Number of characters shown of what a hook tells the model."""


class Line(msgspec.Struct, frozen=True):
    """One line of output, without control characters.

    Args:
        kind: the kind of event, or the state of a gate, which selects colour and sign.
        text: the text.
        agent: the name of the subagent the line is about; empty for the main run.
        depth: the nesting depth of that subagent.
        call: what became of a tool call (``ok``, ``no`` or ``error``), which is shown with its hook line.
        gates: the gates of that call.
        took: seconds that the call or the hook took, if it is known.
    """

    kind: str
    text: str
    agent: str = ""
    depth: int = 0
    call: str = ""
    gates: tuple[GateCall, ...] = ()
    took: float | None = None

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "text", printable(self.text, keep=""))


class Subagent(msgspec.Struct):
    """A running subagent. Its name is unique among the running ones."""

    name: str
    depth: int
    parent: str
    formatter: EventFormatter
    totals: SubagentTotals


class EventFormatter:
    """Describe the events of a run and of its subagents, one by one."""

    def __init__(self) -> None:
        self._subagents: dict[str, Subagent] = {}
        self._speaker, self._handed_over = "", False
        self._failure: str | None = None
        self._last_reply = ""  # held back: the final reply is printed as the result of the run, not here
        self._arguments: dict[str, Any] = {}
        self._changed = False  # a hook or a person changed a call of this batch
        self._askers: dict[str, list[str]] = {}  # by call: hooks that ask for approval, with their reasons
        self._gates: dict[str, list[GateCall]] = {}  # by call
        self._decisions: dict[str, str] = {}  # by call: how its approval was decided
        self._took: dict[str, float] = {}  # by call

    def format(self, event: Event) -> Iterator[Line]:
        """Yield the lines worth reading about an event."""
        match event:
            case e.SubagentEvent():
                yield from self._format_subagent(event)
            case e.RunStarted():
                if self._handed_over and event.ids.agent != self._speaker:
                    yield Line("speaker", f"{event.ids.agent} takes over")
                self._speaker, self._handed_over = event.ids.agent, False
                self._subagents.clear()
            case e.RunFinished():
                stop = event.result.stop
                self._handed_over = stop is not None and stop.kind == "finish_reason"
            case e.StepStarted():
                yield from self._format_reply()
                yield Line("step", f"step {event.index + 1}")
            case e.ModelCalled() if self._failure is not None:  # a retry; otherwise the end of the run shows the error
                yield Line("error", f"model failed: {self._failure}")
                self._failure = None
            case e.Failed() if event.error.where == "model":
                self._failure = short(event.error.message, ERROR_WIDTH)
            case e.ModelReplied() if event.purpose != "step":
                yield Line("note", f"model {event.model} for {event.purpose}: {short(event.content)}")
            case e.ModelReplied():
                self._last_reply = "" if event.tool_calls else event.content
                if event.tool_calls and event.content:
                    yield Line("says", f"says: {short(event.content)}")
                self._changed = False
                for call in event.tool_calls:
                    self._arguments[call.id] = call.arguments
                    sent = arguments_text(call.arguments) if call.raw is None else short(call.raw)
                    yield Line("call", f"calls {call.name} {sent}")
            case HookExecuted():
                self._add_gate(event)
                self._changed = self._changed or (event.verb, event.point) == ("replace", "before_tool")
                if event.verb == "ask" and event.error is None:  # shown with the question, by ApprovalAsked
                    reason = f" ({short(event.reason)})" if event.reason else ""
                    self._askers.setdefault(event.call_id, []).append(f"{event.hook}{reason}")
                if event.verb == "keep_going":
                    yield from self._format_reply()
                yield from _verdict_lines(event)
            case e.ToolStarted() if event.attempt > 1:
                yield Line("call", f"tool {event.tool}, attempt {event.attempt}: {arguments_text(event.arguments)}")
            case e.ToolStarted() if self._changed and self._arguments.get(event.call_id) != event.arguments:
                yield Line("call", f"tool {event.tool} is called with {arguments_text(event.arguments)}")
            case e.ToolProgressed():
                yield Line("note", f"tool {event.message}")
            case e.ToolEnded():
                self._took[event.call_id] = self._took.get(event.call_id, 0.0) + event.duration
            case e.ToolSettled():
                yield self._format_call(event)
            case e.ApprovalAsked():
                askers = ", ".join(self._askers.pop(event.call_id, ()))
                by = f" for {askers}" if askers else ""
                yield Line("waits", f"{event.tool} needs approval{by}: {short('; '.join(event.questions))}")
            case e.ApprovalDecided():
                self._changed = self._changed or event.decision == "edited"
                self._decisions[event.call_id] = event.decision
                by = f" by {event.by}" if event.by else ""
                yield Line(gate_of(event.decision), f"{event.tool or 'the call'} {event.decision}{by}")
            case e.Discarded(reason="retry"):
                yield Line("changed", "the reply was rejected; asking again")
            case e.Signalled() if event.signal.kind != "completed":
                by = f"{event.signal.hook} stopped the run" if event.signal.hook else "stop"
                yield Line("stopped", f"{by}: {short(event.signal.message or event.signal.kind)}")
            case e.Steered():
                yield Line("note", f"steered: {short(event.text)}")
            case JudgedBeforeRewrite() if event.point in _GUARD_POINTS:
                judges = ", ".join(event.hooks)
                yield Line("note", f"{judges} judged at {event.point} before {event.by} changed it; use @guard")
            case MergeLost():
                yield Line("note", f"{event.hook} also set {event.field} at {event.point}; {event.kept} set it first")
            case ShadowDecided():
                yield Line("note", f"hook {event.hook}, in shadow mode at {event.point}, {short(event.would)}")
            case RetryIgnored():
                yield Line("note", f"the retry requested by {event.hook} at {event.point} was ignored: {event.why}")

    def subagent(self, ids: Ids) -> Subagent:
        """Return the running subagent with these ids."""
        known = self._subagents.get(ids.run_id)
        if known is None:
            parent = self._subagents.get(ids.parent_run_id)
            known = Subagent(
                self._free_name(printable(ids.agent, keep="") or "subagent"),
                1 if parent is None else parent.depth + 1,
                "" if parent is None else ids.parent_run_id,
                EventFormatter(),
                SubagentTotals(),
            )
            self._subagents[ids.run_id] = known
        return known

    def _free_name(self, name: str) -> str:
        taken = {subagent.name for subagent in self._subagents.values()}
        numbers = (f"{name} {number}" for number in count(2))
        return next(each for each in chain((name,), numbers) if each not in taken)

    def _add_gate(self, event: HookExecuted) -> None:
        if event.call_id and event.phase in DECIDING and event.point in _CALL_POINTS:
            state = gate_of(event.verb)
            gate = GateCall(event.point, event.hook, state, event.verb, phase=event.phase, refused=event.refused)
            self._gates.setdefault(event.call_id, []).append(gate)

    def _format_call(self, event: e.ToolSettled) -> Line:
        text = short(event.text, ERROR_WIDTH) if event.outcome == "error" else short(event.text)
        gates = strongest(self._gates.pop(event.call_id, ()))
        ran = event.outcome in ("ok", "answered", "error")
        gates = decided(gates, self._decisions.pop(event.call_id, ""), waits=False, ran=ran)
        call = {"ok": "ok", "answered": "ok", "error": "error"}.get(event.outcome, "no")
        took = self._took.pop(event.call_id, None)
        text = f"tool {event.tool} {event.outcome}: {text}"
        return Line(event.outcome, text, call=call, gates=tuple(gates), took=took if call != "no" else None)

    def _format_subagent(self, event: e.SubagentEvent) -> Iterator[Line]:
        subagent, inner = self.subagent(event.ids), event.event
        for line in subagent.formatter.format(inner):
            if line.kind != "step":  # the calls and replies of each step are enough
                yield msgspec.structs.replace(line, agent=subagent.name, depth=subagent.depth)
        if isinstance(inner, e.TaskTaken):
            yield Line("task", f"task: {short(inner.task)}", subagent.name, subagent.depth)
        elif isinstance(inner, e.RunFinished):
            if (failure := subagent.formatter._failure) is not None:
                yield Line("error", f"model failed: {failure}", subagent.name, subagent.depth)
            kind = {"completed": "ok", "failed": "error"}.get(inner.result.status, "stopped")
            text = run_summary(inner.result, subagents=subagent.totals)
            self._add_to_parents(event.ids.run_id, inner.result)
            yield Line(kind, text, subagent.name, subagent.depth)

    def _add_to_parents(self, run_id: str, result: AgentResult[Any]) -> None:
        parent = self._subagents.get(self._subagents.pop(run_id).parent)
        while parent is not None:
            parent.totals += SubagentTotals.of(result)
            parent = self._subagents.get(parent.parent)

    def _format_reply(self) -> Iterator[Line]:
        reply, self._last_reply = self._last_reply, ""
        if reply:
            yield Line("says", f"says: {short(reply)}")


def _verdict_lines(event: HookExecuted) -> Iterator[Line]:
    if event.error is not None:
        location = f" ({event.location})" if event.location else ""
        message = short(event.error, ERROR_WIDTH - len(location))  # it names the hook
        yield Line("failed", f"{message}{location}")
    elif event.verb == "stop" and not event.reason:
        return  # the Signalled event shows it
    elif event.verb in VERBS and event.verb not in _SHOWN_ELSEWHERE and event.point not in _HIDDEN_POINTS:
        because = f": {short(event.reason)}" if event.reason else ""
        kind, text = gate_of(event.verb), f"{event.hook} {verb_phrase(event.verb, event.point)}{because}"
        yield Line(kind, text, took=event.duration)
        if event.note:
            yield Line("note", f"it tells the model: {short(event.note, NOTE_WIDTH)}")
    elif event.verb == "cont" and event.reason:
        yield Line("passed", f"{event.hook} noted at {event.point}: {short(event.reason)}", took=event.duration)
