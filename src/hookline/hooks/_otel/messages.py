"""Messages as OpenTelemetry's conventions for generative AI write them down: JSON, and not without end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..._base.frozen import json_text
from ..._kernel.values import Message, ToolCall
from .._support.messages import excerpt

LONGEST = 8_000
"""Characters of one text: of longer ones, the beginning and the end are kept."""
ROOM = 100_000
"""Characters of all messages together: of longer conversations, the end is kept."""

_FINISHED = {"tool_calls": "tool_call"}


def input_messages(messages: Sequence[Message]) -> str:
    """What a model was given."""
    shown: list[dict[str, Any]] = []
    room = ROOM
    for message in reversed(messages):
        parts = _result(message) if message.role == "tool" else _parts(message.content, message.tool_calls)
        room -= len(json_text(parts))
        if room < 0 and shown:
            break
        shown.append({"role": message.role, "parts": parts})
    return json_text(shown[::-1])


def output_messages(content: str, calls: Iterable[ToolCall] = (), finish_reason: str = "stop") -> str:
    """What a model answered."""
    reason = _FINISHED.get(finish_reason, finish_reason)
    return json_text([{"role": "assistant", "parts": _parts(content, calls), "finish_reason": reason}])


def arguments_text(arguments: Mapping[str, Any]) -> str:
    """The arguments of a call."""
    return json_text(_arguments(arguments))


def result_text(text: str) -> str:
    """What a tool gave."""
    return excerpt(text, LONGEST)


def _parts(content: str, calls: Iterable[ToolCall]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [{"type": "text", "content": excerpt(content, LONGEST)}] if content else []
    for call in calls:
        arguments = excerpt(call.raw, LONGEST) if call.raw is not None else _arguments(call.arguments)
        parts.append({"type": "tool_call", "id": call.id, "name": call.name, "arguments": arguments})
    return parts


def _result(message: Message) -> list[dict[str, Any]]:
    return [{"type": "tool_call_response", "id": message.call_id, "response": excerpt(message.content, LONGEST)}]


def _arguments(arguments: Any) -> Any:
    text = json_text(arguments)
    return arguments if len(text) <= LONGEST else excerpt(text, LONGEST)
