"""Gemini CLI."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ..events import SAME, AgentEvent, Answer, CommandOutput, Fields, Kind
from .base import AgentTool, Codec, cut, denial, json_output, notice_output, prevented, text_of

_FILE = {"file_path": "path"}
TOOLS = (
    AgentTool("run_shell_command", "shell"),
    AgentTool("read_file", "read_file", _FILE),
    AgentTool("write_file", "write_file", _FILE),
    AgentTool("replace", "edit_file", _FILE),
    AgentTool("edit", "edit_file", _FILE),
    AgentTool("list_directory", "list_files", {"dir_path": "path"}),
    AgentTool("glob", "list_files", {"dir_path": "path"}),
    AgentTool("grep_search", "find_text", {"pattern": "text", "dir_path": "path"}),
    AgentTool("search_file_content", "find_text", {"pattern": "text", "dir_path": "path"}),
    AgentTool("web_fetch", "fetch", {"prompt": "url"}),
    AgentTool("google_web_search", "search_web"),
    AgentTool("web_search", "search_web"),
    AgentTool("invoke_agent", "subagent"),
    AgentTool("activate_skill", "harmless"),
    AgentTool("ask_user", "harmless"),
    AgentTool("complete_task", "harmless"),
    AgentTool("enter_plan_mode", "harmless"),
    AgentTool("exit_plan_mode", "harmless"),
    AgentTool("list_background_processes", "harmless"),
    AgentTool("read_background_output", "harmless"),
    AgentTool("update_topic", "harmless"),
    AgentTool("write_todos", "harmless"),
)
"""The tools of Gemini CLI, of which Qwen Code has many. The URL of a fetch is inside its prompt."""


_EVENTS: Mapping[str, Kind] = {
    "SessionStart": "session_start",
    "SessionEnd": "session_end",
    "BeforeAgent": "prompt",
    "BeforeTool": "before_tool",
    "AfterTool": "after_tool",
    "PreCompress": "compaction",
    "AfterAgent": "stop",
}


class GeminiCli(Codec):
    """Gemini CLI. It ignores the JSON of Claude Code's denials, and reads JSON on stderr if stdout is empty."""

    name = "gemini"
    title = "Gemini CLI"
    platform = "gemini-cli"
    events = _EVENTS
    ignored = frozenset(("BeforeModel", "AfterModel", "BeforeToolSelection", "Notification"))
    tools = TOOLS
    time_unit = 1000
    handler = MappingProxyType({"name": "hookline"})

    def read(self, given: Any) -> AgentEvent:
        """Return an event."""
        fields = Fields(given)
        name = fields.text("hook_event_name", needed=True)
        kind = self.kind_of(name)
        called: dict[str, Any] = {}
        if kind in ("before_tool", "after_tool"):
            called = {"tool": fields.text("tool_name", needed=True), "input": fields.object("tool_input")}
        if kind == "after_tool":
            called["result"] = for_model(fields.any("tool_response"))
        return AgentEvent(
            kind,
            name,
            fields.text("session_id", needed=True),
            fields.text("cwd"),
            **called,
            prompt=fields.text("prompt", needed=kind == "prompt"),
            reply=fields.text("prompt_response"),
            trigger=fields.text("trigger"),
        )

    def is_mcp(self, tool: str) -> bool:
        """Return whether a tool belongs to an MCP server."""
        return tool.startswith(("mcp_", "mcp__"))

    def applies(self, event: AgentEvent, changed: Mapping[str, Any]) -> bool:
        """Gemini CLI merges what a hook returns into the arguments, so none can be removed."""
        return event.kind == "before_tool" and event.input.keys() <= changed.keys()

    def write(self, event: AgentEvent, answer: Answer) -> CommandOutput:
        """Return exit code 2 if a call, prompt or compaction is prevented, else the JSON that Gemini CLI knows."""
        if event.kind == "after_tool" and (answer.result is not SAME or answer.note is not None):
            return json_output({"decision": "deny", "reason": cut(result_text(answer))})
        if (reason := prevented(answer)) is not None:
            return denial(reason)
        if answer.changed is not None:
            specific = {"hookEventName": event.name, "tool_input": answer.changed}
            return json_output({"hookSpecificOutput": specific})
        if answer.context:
            specific = {"hookEventName": event.name, "additionalContext": cut(answer.context)}
            return json_output({"hookSpecificOutput": specific})
        return notice_output(answer.notice)


def for_model(response: Any) -> Any:
    """Return the part of a result that the model reads; the other part is for the screen."""
    return response["llmContent"] if isinstance(response, dict) and "llmContent" in response else response


def result_text(answer: Answer) -> str:
    """Return the text that the model reads instead of a result."""
    if answer.result is SAME:
        return str(answer.note)
    parts = answer.result if isinstance(answer.result, list) else [answer.result]
    texts = [part["text"] if isinstance(part, dict) and part.keys() == {"text"} else part for part in parts]
    return "\n".join(map(text_of, texts))


CODEC = GeminiCli()
