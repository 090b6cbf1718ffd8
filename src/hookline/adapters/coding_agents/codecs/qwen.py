"""Qwen Code: the events of Claude Code, the tools of Gemini CLI."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ..events import AgentEvent, Answer, CommandOutput, Kind
from .base import Codec, denial, notice_output, prevented
from .claude import EVENTS, ClaudeCode, read_event
from .gemini import TOOLS

_EVENTS: Mapping[str, Kind] = {name: kind for name, kind in EVENTS.items() if name != "UserPromptExpansion"}


class QwenCode(Codec):
    """Qwen Code. It runs a call as it was, whatever a hook makes of it, so changed calls are denied."""

    name = "qwen"
    title = "Qwen Code"
    platform = "qwen-code"
    events = _EVENTS
    ignored = ClaudeCode.ignored
    tools = TOOLS

    def read(self, given: Any) -> AgentEvent:
        """Return an event. Its permission mode ``yolo`` asks nobody."""
        event = read_event(self, given)
        return event._replace(asks_nobody=given.get("permission_mode") == "yolo")

    def write(self, event: AgentEvent, answer: Answer) -> CommandOutput:
        """Return exit code 2 if anything is prevented."""
        if (reason := prevented(answer)) is not None:
            return denial(reason)
        return notice_output(answer.notice)

    def settings(self, command: str, events: Iterable[Kind], seconds: int) -> str:
        """Return ``settings.json`` of Qwen Code, which counts milliseconds."""
        handler = {"type": "command", "command": command, "timeout": seconds * 1000}
        return json.dumps({"hooks": {name: [{"hooks": [handler]}] for name in self.names_of(events)}}, indent=2)


CODEC = QwenCode()
