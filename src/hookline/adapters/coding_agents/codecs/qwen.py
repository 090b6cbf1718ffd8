"""Qwen Code: the events of Claude Code, the tools of Gemini CLI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..events import SAME, AgentEvent, Answer, CommandOutput, Kind
from .base import AgentTool, Codec, cut, denial, json_output, notice_output, prevented
from .claude import EVENTS, ClaudeCode, read_event
from .gemini import TOOLS, for_model, result_text

_EVENTS: Mapping[str, Kind] = {name: kind for name, kind in EVENTS.items() if name != "UserPromptExpansion"}


class QwenCode(Codec):
    """Qwen Code. It runs a call as it was, whatever a hook makes of it, so changed calls are denied.

    It shows a result to the model unless the hook stops the call, whose reason takes the place of the result.
    """

    name = "qwen"
    title = "Qwen Code"
    platform = "qwen-code"
    events = _EVENTS
    ignored = ClaudeCode.ignored
    time_unit = 1000
    tools = (
        *TOOLS,
        AgentTool("agent", "subagent"),
        AgentTool("send_message", "subagent"),
        AgentTool("notebook_edit", "edit_notebook", {"notebook_path": "path"}),
        AgentTool("ask_user_question", "harmless"),
        AgentTool("get_goal", "harmless"),
        AgentTool("list_agents", "harmless"),
        AgentTool("skill", "harmless"),
        AgentTool("task_list", "harmless"),
        AgentTool("todo_write", "harmless"),
        AgentTool("tool_search", "harmless"),
        AgentTool("update_goal", "harmless"),
    )

    def read(self, given: Any) -> AgentEvent:
        """Return an event. Its permission mode ``yolo`` asks nobody.

        After each tool call there is an event of a prompt without a text, which no user wrote.
        """
        event = read_event(self, given)
        if event.kind == "prompt" and not event.prompt:
            event = event._replace(kind="ignored")
        return event._replace(result=for_model(event.result), asks_nobody=given.get("permission_mode") == "yolo")

    def write(self, event: AgentEvent, answer: Answer) -> CommandOutput:
        """Return exit code 2 if anything is prevented, and JSON where a result must not be shown."""
        if (reason := prevented(answer)) is not None:
            if event.kind != "after_tool":
                return denial(reason)
            is_changed = answer.result is not SAME and answer.stop is None
            return json_output({"continue": False, "stopReason": cut(result_text(answer) if is_changed else reason)})
        if answer.context:
            specific = {"hookEventName": event.name, "additionalContext": cut(answer.context)}
            return json_output({"hookSpecificOutput": specific})
        return notice_output(answer.notice)


CODEC = QwenCode()
