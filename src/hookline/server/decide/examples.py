"""An example of a question for each point, for the schema and the reference."""

from __future__ import annotations

from typing import Any

from ..._kernel.points import Point
from .questions import ASKED

_CALL = {"id": "call_1", "name": "send_mail", "arguments": {"to": "ann@example.com"}}
_USAGE = {"input_tokens": 120, "output_tokens": 9}
_MESSAGES = [{"role": "user", "content": "Mail the report to Ann."}]
_PAYLOADS: dict[str, dict[str, Any]] = {
    "on_run_start": {"task": "Mail the report to Ann."},
    "before_step": {"index": 0},
    "before_llm": {"messages": _MESSAGES, "tools": [{"name": "send_mail"}], "model": "a-model"},
    "on_token": {"delta": "I will", "text": "I will"},
    "after_llm": {"content": "I will mail it.", "tool_calls": [_CALL], "usage": _USAGE, "model": "a-model"},
    "before_tool": _CALL,
    "after_tool": {**_CALL, "result": "sent", "duration": 0.2},
    "after_step": {"index": 0, "tool_names": ["send_mail"], "outcomes": ["ok"], "usage": _USAGE},
    "on_error": {"errors": [{"where": "model", "type": "OverloadedError", "message": "try later"}], "where": "model"},
    "before_compaction": {"messages": _MESSAGES, "reason": "the context is full"},
    "on_run_end": {"reply": "The report is on its way."},
}

EXAMPLES: dict[Point[Any], dict[str, Any]] = {
    point: {"point": str(point), "session": "chat-7", "payload": _PAYLOADS[point]} for point in ASKED
}
"""A question about each point. In this order, they are a run."""
