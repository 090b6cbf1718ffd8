"""The tool calls of a run as people see them: what each does, how it ended, and what hooks decided about it."""

from __future__ import annotations

from .._kernel.events import Event, HookExecuted
from .._kernel.results import HookAction
from .._run.events import ApprovalAsked, ApprovalDecided, ToolEnded, ToolProgressed, ToolStarted
from .protocol import Step, StepVerdict

MAX_STEPS = 100
"""Maximum number of calls that are shown; the latest are kept."""

EVENTS = frozenset((ToolStarted, ToolProgressed, ToolEnded, HookExecuted, ApprovalAsked, ApprovalDecided))


class StepCollector:
    """Collects the calls of a run from its events.

    Texts for the model are left out: results, the message of a block, and notes. People see what a tool says that it
    does, and the ``reason`` of a verdict.
    """

    def __init__(self) -> None:
        self._steps: dict[str, Step] = {}
        self._verdicts: dict[str, list[StepVerdict]] = {}

    @property
    def steps(self) -> tuple[Step, ...]:
        """The calls in the order in which they began."""
        return tuple(step.replace(verdicts=tuple(self._verdicts.get(id, ()))) for id, step in self._steps.items())

    def take(self, event: Event) -> bool:
        """Take an event; return whether the steps have changed."""
        match event:
            case ToolStarted():
                self._steps.pop(event.call_id, None)  # a repeated call moves to the end
                self._set(event.call_id, event.tool, "running", event.message or event.tool)
            case ToolProgressed() if event.message and event.call_id in self._steps:
                share = "" if event.fraction is None else f" ({event.fraction:.0%})"
                self._set(event.call_id, event.tool, "running", event.message + share)
            case ToolEnded():
                self._set(event.call_id, event.tool, event.outcome)
            case ApprovalAsked():
                self._set(event.call_id, event.tool, "waiting")
            case ApprovalDecided() if event.call_id in self._steps:
                verdict = StepVerdict(event.decision, reason=f"by {event.by}" if event.by else "")
                self._verdicts.setdefault(event.call_id, []).append(verdict)
            case HookExecuted() if event.call_id and (event.error or event.verb not in ("", HookAction.CONT)):
                verb = "failed" if event.error else str(event.verb)
                found = self._verdicts.setdefault(event.call_id, [])
                found.append(StepVerdict(verb, event.hook, event.reason))
                return event.call_id in self._steps
            case _:
                return False
        return True

    def _set(self, id: str, tool: str, state: str, text: str = "") -> None:
        known = self._steps.get(id, Step(id, tool))
        self._steps[id] = known.replace(state=state, text=text or known.text)
        for old in list(self._steps)[:-MAX_STEPS]:
            del self._steps[old]
