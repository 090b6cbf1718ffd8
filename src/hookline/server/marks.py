"""Find out which tool and which verdict an event is about, so that runs can be found by them."""

from __future__ import annotations

from .._kernel.events import Event, HookExecuted
from .._run.events import ApprovalAsked, ApprovalDecided, SubagentEvent, ToolEnded, ToolStarted
from .._run.journal import NO_MARK
from ..hooks.shadow_mode import ShadowDecided

Mark = tuple[str, str, str, int]
"""The tool, the hook, the verb, and whether it is a refusal, as in :class:`StoredEvent`."""

_TEXT = 200


def mark_of(event: Event) -> Mark:
    """Return the mark of an event of a run, or of one of its subagents."""
    match event.event if isinstance(event, SubagentEvent) else event:
        case HookExecuted(verb=verb) as executed if verb != "cont":
            return executed.tool[:_TEXT], executed.hook[:_TEXT], str(verb), int(executed.refused)
        case ShadowDecided() as decided:
            return "", f"shadow({decided.hook})"[:_TEXT], "shadow", 0
        case ApprovalDecided(decision="denied") as decided:
            return decided.tool[:_TEXT], "", "denied", 1
        case ToolStarted() | ToolEnded() | ApprovalAsked() as called:
            return called.tool[:_TEXT], "", "", 0
    return NO_MARK
