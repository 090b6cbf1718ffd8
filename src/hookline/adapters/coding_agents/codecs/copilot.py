"""GitHub Copilot CLI, in the dialect in which its events carry their names."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ..events import SAME, AgentEvent, Answer, CommandOutput, Fields, Kind
from .base import AgentTool, Codec, cut, denial, json_output, notice_output, prevented, text_of
from .claude import read_event

_EVENTS: Mapping[str, Kind] = {
    "SessionStart": "session_start",
    "SessionEnd": "session_end",
    "UserPromptSubmit": "prompt",
    "PreToolUse": "before_tool",
    "PostToolUse": "after_tool",
    "PostToolUseFailure": "after_tool",
    "PreCompact": "compaction",
    "Stop": "stop",
    "SubagentStop": "stop",
}


class CopilotCli(Codec):
    """Copilot CLI. The model reads the reason of a denial only if it comes as JSON.

    Names of MCP tools have the form ``SERVER-TOOL``. They cannot be recognised, so each needs ``--tool``.
    """

    name = "copilot"
    title = "Copilot CLI"
    platform = "copilot-cli"
    events = _EVENTS
    ignored = frozenset(("Notification", "SubagentStart", "ErrorOccurred", "PermissionRequest"))
    tools = (
        AgentTool("Bash", "shell"),
        AgentTool("Read", "read_file", {"file_path": "path"}),
        AgentTool("Write", "write_file", {"file_path": "path", "file_text": "content"}),
        AgentTool("Edit", "edit_file", {"file_path": "path", "old_str": "old_string", "new_str": "new_string"}),
        AgentTool("apply_patch", "apply_patch", {"input": "patch"}),
        AgentTool("Grep", "find_text", {"pattern": "text"}),
        AgentTool("Glob", "list_files"),
        AgentTool("WebFetch", "fetch"),
        AgentTool("Agent", "subagent"),
        AgentTool("write_agent", "subagent"),
        AgentTool("fetch_copilot_cli_documentation", "harmless"),
        AgentTool("list_agents", "harmless"),
        AgentTool("read_agent", "harmless"),
        AgentTool("read_bash", "harmless"),
        AgentTool("stop_bash", "harmless"),
        AgentTool("list_bash", "harmless"),
        AgentTool("report_intent", "harmless"),
        AgentTool("skill", "harmless"),
        AgentTool("update_todo", "harmless"),
    )

    def read(self, given: Any) -> AgentEvent:
        """Return an event. Results have another form than in Claude Code.

        A subagent has a session of its own. It ends with two events, of which the second one has its reply.
        """
        event = read_event(self, given)
        if event.subagent:
            event = event._replace(session=Fields(given).text("parent_agent_id") or event.session)
            if event.name == "Stop":
                return event._replace(kind="ignored")
        if event.kind == "after_tool" and event.error is None:
            found = Fields(Fields(given).object("tool_result"))
            return event._replace(result=found.text("text_result_for_llm"), result_type=found.text("result_type"))
        return event

    def is_mcp(self, tool: str) -> bool:
        """Names of MCP tools cannot be recognised."""
        return False

    def applies(self, event: AgentEvent, changed: Mapping[str, Any]) -> bool:
        """Copilot CLI uses the arguments that a hook returns for a call."""
        return event.kind == "before_tool"

    def write(self, event: AgentEvent, answer: Answer) -> CommandOutput:
        """Return the JSON of a decision, else exit code 2 if anything is prevented.

        At a prompt, Copilot CLI ignores exit code 2.
        """
        if event.kind == "before_tool" and answer.deny is not None:
            decision = {"permissionDecision": "deny", "permissionDecisionReason": cut(answer.deny)}
            return json_output({"hookSpecificOutput": {"hookEventName": event.name, **decision}})
        if event.kind == "after_tool" and event.error is None and (answer.result is not SAME or answer.note):
            text = str(answer.note) if answer.result is SAME else text_of(answer.result)
            kind = event.result_type or "success"
            return json_output({"modifiedResult": {"resultType": kind, "textResultForLlm": cut(text)}})
        if (reason := prevented(answer)) is not None:
            if event.kind in ("prompt", "stop"):
                return json_output({"decision": "block", "reason": cut(reason)})
            return denial(reason)
        if answer.changed is not None:
            specific = {"hookEventName": event.name, "permissionDecision": "allow", "updatedInput": answer.changed}
            return json_output({"hookSpecificOutput": specific})
        if answer.context:
            return json_output({"additionalContext": cut(answer.context)})
        return notice_output(answer.notice)

    def settings(self, command: str, events: Iterable[Kind], seconds: int) -> str:
        """Return a file for ``~/.copilot/hooks``."""
        handler = {"type": "command", "bash": command, "timeoutSec": seconds}
        hooks = {name: [handler] for name in self.names_of(events)}
        return json.dumps({"version": 1, "hooks": hooks}, indent=2)


CODEC = CopilotCli()
