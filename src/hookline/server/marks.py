"""Find out which tool and which verdict an event is about, so that runs can be found by them."""

from __future__ import annotations

from .._kernel.events import Event, HookExecuted
from .._kernel.points import AFTER_LLM, AFTER_TOOL, BEFORE_LLM, BEFORE_STEP, BEFORE_TOOL, ON_ERROR, ON_RUN_START
from .._run.events import (
    ApprovalAsked,
    ApprovalDecided,
    ModelReplied,
    SubagentEvent,
    ToolEnded,
    ToolSettled,
    ToolStarted,
)
from .._run.journal import NO_MARK
from ..hooks.shadow_mode import ShadowDecided

Mark = tuple[str, str, str, int]
"""The tool, the hook, the verb, and whether it is a refusal, as in :class:`StoredEvent`."""

_TEXT = 200


class Marks:
    """The marks of the events of one run. It remembers the tools of its open calls: a verdict has only the id."""

    def __init__(self) -> None:
        self._tools: dict[tuple[str, str], str] = {}

    def of(self, event: Event) -> Mark:
        """Return the mark of the next event of the run, or of one of its subagents."""
        match event.event if isinstance(event, SubagentEvent) else event:
            case ModelReplied() as replied:
                for call in replied.tool_calls:
                    self._tools[replied.run_id, call.id] = call.name[:_TEXT]
            case HookExecuted(verb=verb) as executed if verb != "cont":
                tool = self._tools.get((executed.run_id, executed.call_id), "")
                return tool, executed.hook[:_TEXT], str(verb), int(is_refusal(executed))
            case ShadowDecided() as decided:
                return "", f"shadow({decided.hook})"[:_TEXT], "shadow", 0
            case ToolStarted() | ToolEnded() | ApprovalAsked() as called:
                self._tools[called.run_id, called.call_id] = called.tool[:_TEXT]
                return called.tool[:_TEXT], "", "", 0
            case ApprovalDecided(decision="denied") as decided:
                return self._tools.get((decided.run_id, decided.call_id), ""), "", "denied", 1
            case ToolSettled() as settled:
                self._tools.pop((settled.run_id, settled.call_id), None)
        return NO_MARK


def is_refusal(event: HookExecuted) -> bool:
    """Whether the verdict prevented something. An end after a tool call, for example, does not undo the call."""
    match event.verb:
        case "block":
            return True
        case "end":
            return event.point not in (AFTER_TOOL, ON_ERROR)
        case "retry":
            return event.point == AFTER_LLM
        case "stop":
            return event.point in (ON_RUN_START, BEFORE_STEP, BEFORE_LLM, BEFORE_TOOL)
        case "failed":
            return event.phase == "guard"
        case "claim":
            return event.point == "before_ticket_complete"
    return False
