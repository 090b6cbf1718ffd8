"""opencode. It starts no commands: a plugin, which Hookline brings along, asks this one.

The form of the events is our own. The plugin throws, which prevents a call, on anything but a clean answer. It adds no
text to a prompt and keeps no run going. ``opencode run`` may exit before the hooks are told that a run has ended.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from ..events import SAME, AgentEvent, Answer, CommandOutput, Fields, Kind
from .base import AgentTool, Codec, cut, json_output, prevented, text_of

_FILE = {"filePath": "path"}


_EVENTS: Mapping[str, Kind] = {
    "chat.message": "prompt",
    "tool.execute.before": "before_tool",
    "tool.execute.after": "after_tool",
    "session.idle": "stop",
}


class OpenCode(Codec):
    """opencode."""

    name = "opencode"
    title = "opencode"
    platform = "opencode"
    events = _EVENTS
    tools = (
        AgentTool("bash", "shell"),
        AgentTool("read", "read_file", {**_FILE, "offset": "start_line", "limit": "max_lines"}),
        AgentTool("write", "write_file", _FILE),
        AgentTool("edit", "edit_file", {**_FILE, "oldString": "old_string", "newString": "new_string"}),
        AgentTool("apply_patch", "apply_patch", {"patchText": "patch"}),
        AgentTool("patch", "apply_patch", {"patchText": "patch"}),
        AgentTool("list", "list_files"),
        AgentTool("glob", "list_files"),
        AgentTool("grep", "find_text", {"pattern": "text"}),
        AgentTool("webfetch", "fetch"),
        AgentTool("websearch", "search_web"),
        AgentTool("task", "subagent"),
        AgentTool("todowrite", "harmless"),
        AgentTool("todoread", "harmless"),
        AgentTool("question", "harmless"),
        AgentTool("invalid", "harmless"),
    )
    knows_all_tools = True
    can_go_on = False

    def read(self, given: Any) -> AgentEvent:
        """Return an event."""
        fields = Fields(given)
        name = fields.text("event", needed=True)
        kind = self.kind_of(name)
        called: dict[str, Any] = {}
        if kind in ("before_tool", "after_tool"):
            called = {"tool": fields.text("tool", needed=True), "input": fields.object("args")}
        if kind == "after_tool":
            called["result"] = fields.text("output")
        return AgentEvent(
            kind,
            name,
            fields.text("session", needed=True),
            fields.text("cwd"),
            **called,
            call_id=fields.text("call"),
            prompt=fields.text("prompt"),
        )

    def applies(self, event: AgentEvent, changed: Mapping[str, Any]) -> bool:
        """The plugin replaces all arguments."""
        return event.kind == "before_tool"

    def write(self, event: AgentEvent, answer: Answer) -> CommandOutput:
        """Return a JSON object; without a decision it is empty."""
        if event.kind == "after_tool" and answer.result is not SAME:
            return json_output({"output": cut(text_of(answer.result))})
        if event.kind == "stop":
            return json_output({})
        if (reason := prevented(answer)) is not None:
            return json_output({"deny": cut(reason)})
        return json_output({} if answer.changed is None else {"args": answer.changed})

    def refuse(self, event: AgentEvent | None, problem: str, details: str) -> CommandOutput:
        """Return the answer to an event that cannot be judged."""
        if event is not None and event.kind == "stop":
            return json_output({})
        return super().refuse(event, problem, details)

    def settings(self, command: str, events: Iterable[Kind], seconds: int) -> str:
        """Return the plugin."""
        from pathlib import Path

        text = Path(__file__).with_suffix(".js").read_text("utf-8")
        words = json.dumps(shlex.split(command))
        return text.replace("__COMMAND__", words).replace("__MILLISECONDS__", str(seconds * 1000))


CODEC = OpenCode()
