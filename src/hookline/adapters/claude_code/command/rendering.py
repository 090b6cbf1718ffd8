"""A decision in the form that the agent which asked understands.

A decision is first made in the words of Claude Code. Another agent gets the part of it that it obeys. What it cannot do
(ask, apply a change) becomes a denial, because the call would run otherwise.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from ..protocol import HookInput, HookOutput, SpecificOutput, encode
from .hosts import CLAUDE_CODE, CODEX
from .refusal import CommandOutput, denial

if TYPE_CHECKING:
    from .hosts import Host

_NO_QUESTION = (
    "This needs an approval, and this coding agent cannot ask for one on behalf of a hook. "
    "A hook at approval_requested can approve it."
)
_NO_CHANGE = "A hook changed this call, and this coding agent does not apply the change."


def render(host: Host, given: HookInput, output: HookOutput | None) -> CommandOutput:
    """Return the answer with a decision; ``None`` is no decision."""
    if output is None or output == HookOutput():
        return CommandOutput()
    if host == CLAUDE_CODE:
        return CommandOutput(encode(output))
    event, specific = given.hook_event_name, output.hook_specific_output
    if event == "PreToolUse":
        reason = prevented_call(host, given, output)
    elif event == "PermissionRequest":
        reason = _prevented_permission(specific)
    else:
        reason = _prevented(output)
    if reason is not None:
        return denial(host, event, reason)
    if host == CODEX:
        return CommandOutput(encode(_for_codex(output)))
    notice = f"{output.system_message}\n" if output.system_message else ""
    return CommandOutput(stderr=notice.encode(errors="backslashreplace"))


def prevented_call(host: Host, given: HookInput, output: HookOutput | None) -> str | None:
    """Return why a call must not run; ``None`` if it may, or if the user of Claude Code decides."""
    if output is None or output == HookOutput():
        return None
    specific = output.hook_specific_output
    if specific is None:
        return None if host == CLAUDE_CODE else ""
    reason = specific.permission_decision_reason or ""
    if host == CLAUDE_CODE:
        return reason if specific.permission_decision == "deny" else None
    if specific.permission_decision == "ask":
        return f"{reason}\n{_NO_QUESTION}"
    if specific.permission_decision != "allow":
        return reason
    updated, before = specific.updated_input or {}, given.tool_input or {}
    # Codex takes only the arguments of which it told the hook.
    return None if host == CODEX and updated.keys() == before.keys() else _NO_CHANGE


def _prevented_permission(specific: SpecificOutput | None) -> str | None:
    """Return why a permission is denied; ``None`` if it is given."""
    decision = None if specific is None else specific.decision
    if decision is None or decision.behavior == "deny":
        return "" if decision is None else decision.message
    return None if decision.updated_input is None else _NO_CHANGE


def _prevented(output: HookOutput) -> str | None:
    """Return why a prompt, a result or an end is prevented; ``None`` if it is not."""
    specific = output.hook_specific_output
    parts = [] if output.continue_ else [output.stop_reason or ""]
    if output.decision is not None:
        parts.append(output.reason or "")
    if specific is not None and specific.updated_tool_output is not msgspec.UNSET:
        text = _text(specific.updated_tool_output)
        parts += [] if output.reason and output.reason in text else [f"A hook changed this result to:\n{text}"]
    return "\n".join(parts) if parts else None


def _for_codex(output: HookOutput) -> HookOutput:
    """Leave out fields that Codex may reject. It ignores an answer in which it rejects one."""
    specific = output.hook_specific_output
    if specific is not None:
        specific = msgspec.structs.replace(specific, permission_decision_reason=None)
    return HookOutput(system_message=output.system_message, hook_specific_output=specific)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
