"""Cursor. Its form was read in the code of its SDK, version 1.0.32; it cannot be run without an account.

The SDK ignores the answer to a prompt, so it sends one that the hooks block. Whether the editor does too is not known.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ..events import AgentEvent, Answer, CommandOutput, Fields, Kind
from .base import AgentTool, Codec, cut, json_output, prevented

_SHELL, _MCP, _READ = "beforeShellExecution", "beforeMCPExecution", "beforeReadFile"


_EVENTS: Mapping[str, Kind] = {
    "sessionStart": "session_start",
    "sessionEnd": "session_end",
    "beforeSubmitPrompt": "prompt",
    "preToolUse": "before_tool",
    _SHELL: "before_tool",
    _MCP: "before_tool",
    _READ: "before_tool",
    "postToolUse": "after_tool",
    "postToolUseFailure": "after_tool",
    "preCompact": "compaction",
    "stop": "stop",
    "subagentStop": "stop",
}


_APPLIED = {
    "Shell": frozenset(("command", "cwd")),
    "Read": frozenset(("file_path",)),
    "Write": frozenset(("file_path",)),
    "Delete": frozenset(("file_path",)),
    "Grep": frozenset(("pattern", "file_path")),
    "List": frozenset(("file_path",)),
    "Fetch": frozenset(("url",)),
}
"""For each tool, the arguments that Cursor changes if a hook says so. It ignores changes of others."""


class Cursor(Codec):
    """Cursor. An empty answer counts as a failure there, so each answer is a JSON object."""

    name = "cursor"
    title = "Cursor"
    platform = "cursor"
    events = _EVENTS
    ignored = frozenset(
        """
        afterShellExecution afterMCPExecution afterFileEdit afterTabFileEdit beforeTabFileRead subagentStart
        afterAgentResponse afterAgentThought workspaceOpen
        """.split()  # noqa: SIM905
    )
    tools = (
        AgentTool("Shell", "shell"),
        AgentTool("Read", "read_file", {"file_path": "path"}),
        AgentTool("Write", "write_file", {"file_path": "path"}),
        AgentTool("Delete", "delete_file", {"file_path": "path"}),
        AgentTool("Grep", "find_text", {"pattern": "text", "file_path": "path"}),
        AgentTool("List", "list_files", {"file_path": "path"}),
        AgentTool("Fetch", "fetch"),
    )

    def read(self, given: Any) -> AgentEvent:
        """Return an event. Three events before calls have their arguments in the event itself."""
        fields = Fields(given)
        name = fields.text("hook_event_name", needed=True)
        kind = self.kind_of(name)
        tool, arguments = "", dict[str, Any]()
        if name == _SHELL:
            tool, arguments = "Shell", {"command": fields.text("command", needed=True)}
        elif name == _READ:
            tool, arguments = "Read", {"path": fields.text("file_path", needed=True)}
        elif name == _MCP:
            tool, arguments = f"MCP:{fields.text('tool_name', needed=True)}", _arguments(given.get("tool_input"))
        elif kind in ("before_tool", "after_tool"):
            tool, arguments = fields.text("tool_name", needed=True), dict(fields.object("tool_input"))
        failed = name == "postToolUseFailure"
        result = given.get("tool_output", given.get("tool_response"))
        roots = given.get("workspace_roots")
        root = roots[0] if isinstance(roots, list) and roots and isinstance(roots[0], str) else ""
        return AgentEvent(
            kind,
            name,
            fields.text("session_id", "conversation_id", needed=True),
            fields.text("cwd") or root,
            fields.text("generation_id") or None,
            tool=tool,
            input=arguments,
            call_id=fields.text("tool_use_id"),
            result=None if failed else result,
            error=(fields.text("error", "error_message") or "The call failed.") if failed else None,
            prompt=fields.text("prompt", needed=kind == "prompt"),
            trigger=fields.text("trigger"),
        )

    def is_mcp(self, tool: str) -> bool:
        """Return whether a tool belongs to an MCP server."""
        return tool.startswith("MCP:")

    def applies(self, event: AgentEvent, changed: Mapping[str, Any]) -> bool:
        """Cursor uses changed arguments at the event of all tools only, and not each of them. None can be removed."""
        if event.name != "preToolUse" or not event.input.keys() <= changed.keys():
            return False
        if self.is_mcp(event.tool):
            return True
        names = {name for name, value in changed.items() if name not in event.input or event.input[name] != value}
        used = _APPLIED.get(event.tool, frozenset())
        return all(name in used and isinstance(changed[name], str) for name in names)

    def settle(self, event: AgentEvent, answer: Answer) -> Answer:
        """Cursor asks its user at the event of shell commands; at others it ignores a question."""
        if answer.ask is not None and answer.deny is None and answer.changed is None and event.name == _SHELL:
            return answer
        return super().settle(event, answer)

    def write(self, event: AgentEvent, answer: Answer) -> CommandOutput:
        """Return a JSON object."""
        reason = prevented(answer)
        if event.kind == "before_tool":
            if reason is not None:
                text = cut(reason)
                return json_output({"permission": "deny", "user_message": text, "agent_message": text})
            if answer.ask is not None:
                return json_output({"permission": "ask", "user_message": cut(answer.ask)})
            changed = {} if answer.changed is None else {"permission": "allow", "updated_input": answer.changed}
            return json_output(changed)
        if event.kind == "prompt" and reason is not None:
            return json_output({"continue": False, "user_message": cut(reason)})
        if event.kind == "stop" and answer.go_on is not None:
            return json_output({"followup_message": cut(answer.go_on)})
        if event.kind == "after_tool" and reason is not None:  # the model has the result, and gets the note too
            return json_output({"additional_context": cut(reason)})
        return json_output({})

    def refuse(self, event: AgentEvent | None, problem: str, details: str) -> CommandOutput:
        """Return the answer to an event that cannot be judged; sessions and ends go on."""
        if event is not None and event.kind in ("stop", "session_start", "session_end"):
            return json_output({})
        return super().refuse(event, problem, details)

    def settings(self, command: str, events: Iterable[Kind], seconds: int) -> str:
        """Return ``hooks.json`` of Cursor. With ``failClosed``, a command that fails denies."""
        handler = {"type": "command", "command": command, "timeout": seconds, "failClosed": True}
        # Shell commands have an event of their own too, at which Cursor asks its user.
        hooks = {name: [handler] for name in self.names_of(events)}
        return json.dumps({"version": 1, "hooks": hooks}, indent=2)


def _arguments(given: Any) -> dict[str, Any]:
    """Return the arguments of an MCP call, which may be written as JSON."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            raise ValueError("tool_input is not a JSON object") from None
    if not isinstance(given, dict):
        raise ValueError("tool_input is not an object")
    return given


CODEC = Cursor()
