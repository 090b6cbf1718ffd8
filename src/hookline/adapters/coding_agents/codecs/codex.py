"""OpenAI Codex. It ignores a whole answer if that has a field or a value which it does not know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..events import AgentEvent, Answer, CommandOutput, Kind
from .base import AgentTool, Codec, cut, denial, json_output, notice_output, prevented
from .claude import read_event

_EVENTS: Mapping[str, Kind] = {
    "SessionStart": "session_start",
    "SessionEnd": "session_end",
    "UserPromptSubmit": "prompt",
    "PreToolUse": "before_tool",
    "PermissionRequest": "permission",
    "PostToolUse": "after_tool",
    "PreCompact": "compaction",
    "Stop": "stop",
    "SubagentStop": "stop",
}


class Codex(Codec):
    """Codex, whose events have the form of Claude Code."""

    name = "codex"
    title = "Codex"
    platform = "codex"
    events = _EVENTS
    ignored = frozenset(("PostCompact", "SubagentStart", "Interrupt", "Notification"))
    tools = (
        AgentTool("Bash", "shell"),
        AgentTool("apply_patch", "apply_patch", {"command": "patch"}),
        AgentTool("view_image", "read_file"),
        AgentTool("web_search", "search_web"),
        AgentTool("spawn_agent", "subagent"),
        AgentTool("send_input", "subagent"),
        AgentTool("create_goal", "harmless"),
        AgentTool("get_goal", "harmless"),
        AgentTool("list_mcp_resource_templates", "harmless"),
        AgentTool("list_mcp_resources", "harmless"),
        AgentTool("tool_search", "harmless"),
        AgentTool("update_goal", "harmless"),
        AgentTool("wait", "harmless"),
        AgentTool("wait_agent", "harmless"),
        AgentTool("close_agent", "harmless"),
        AgentTool("multi_agent_v1close_agent", "harmless"),  # the group and the name, as Codex 0.169 tells hooks
        AgentTool("multi_agent_v1resume_agent", "harmless"),
        AgentTool("multi_agent_v1send_input", "subagent"),
        AgentTool("multi_agent_v1wait_agent", "harmless"),
        AgentTool("update_plan", "harmless"),
        AgentTool("request_user_input", "harmless"),
    )
    hides_input = True

    def read(self, given: Any) -> AgentEvent:
        """Return an event."""
        event = read_event(self, given)
        if event.kind == "after_tool" and event.result is None:
            raise ValueError("PostToolUse needs tool_response")
        turn = given.get("turn_id")
        return event._replace(run=turn) if isinstance(turn, str) and turn else event

    def applies(self, event: AgentEvent, changed: Mapping[str, Any]) -> bool:
        """Codex takes only the arguments of which it told the hook, and none for a permission."""
        return event.kind == "before_tool" and changed.keys() == event.input.keys()

    def write(self, event: AgentEvent, answer: Answer) -> CommandOutput:
        """Return exit code 2 if anything is prevented, else the JSON that Codex knows."""
        if (reason := prevented(answer)) is not None:
            if event.kind == "compaction":  # where Codex ignores exit code 2
                return json_output({"continue": False, "stopReason": cut(f"Hookline: {reason}")})
            return denial(reason)
        specific: dict[str, Any] = {}
        if answer.changed is not None:  # Codex applies its own permissions to a changed call
            specific = {"permissionDecision": "allow", "updatedInput": answer.changed}
        elif answer.allow:
            specific = {"decision": {"behavior": "allow"}}
        elif answer.context:
            specific = {"additionalContext": cut(answer.context)}
        if specific:
            return json_output({"hookSpecificOutput": {"hookEventName": event.name, **specific}})
        if answer.notice:
            return json_output({"systemMessage": cut(answer.notice)})
        return notice_output("")


CODEC = Codex()
