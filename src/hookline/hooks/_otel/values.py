"""Values and messages in the form of OpenTelemetry's conventions for generative AI, with bounded length."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from ..._base.attachment import Attachment
from ..._base.frozen import json_text, scrub
from ..._base.text import is_number
from ..._kernel.state import AgentResult
from ..._kernel.values import Message, ToolCall, Usage
from .._support.messages import excerpt
from . import attributes as a

Attributes = dict[str, Any]

MAX_TEXT = 8_000
"""Maximum characters of one text; the beginning and the end of a longer text are kept."""
MAX_MESSAGES = 100_000
"""Maximum characters of all messages; the end of a longer conversation is kept."""

_MAX_NAME = 500
_FINISH_REASONS = {"tool_calls": "tool_call"}
_RUN_ENDINGS = {"completed": "stop", "failed": "error", "ended": "content_filter"}


def short(value: object) -> str:
    """Return the beginning of a text."""
    return clean(str(value)[:_MAX_NAME])


def clean(text: str) -> str:
    """Return text without lone surrogates: one of them would make an exporter lose its whole batch."""
    return text if text.isascii() else str(scrub(text))


def params_of(params: Mapping[str, Any]) -> Attributes:
    """Return the parameters of a request that have a conventional name."""
    found = {attribute: params[name] for name, attribute in a.PARAMS.items() if _is_sendable(params.get(name))}
    stop = params.get("stop") or params.get("stop_sequences")
    if isinstance(stop, (str, list, tuple)):
        found[a.STOP_SEQUENCES] = [short(item) for item in ([stop] if isinstance(stop, str) else stop)]
    return found


def usage_of(usage: Usage) -> Attributes:
    """Return the token counts."""
    found = {a.INPUT_TOKENS: usage.input_tokens, a.OUTPUT_TOKENS: usage.output_tokens}
    found |= {a.CACHE_READ_TOKENS: usage.cached_tokens} if usage.cached_tokens else {}
    return {name: count for name, count in found.items() if _is_sendable(count)}


def _is_sendable(value: Any) -> bool:
    """Whether a value is a number that fits into 64 bits."""
    return is_number(value) and (isinstance(value, float) or -(2**63) <= value < 2**63)


def input_messages(messages: Sequence[Message]) -> str:
    """Return the messages of a request as JSON."""
    shown: list[dict[str, Any]] = []
    room = MAX_MESSAGES
    for message in reversed(messages):
        parts = _result(message) if message.role == "tool" else _parts(message.content, message.tool_calls)
        parts += map(_file, message.attachments)
        room -= len(json_text(parts))
        if room < 0 and shown:
            break
        shown.append({"role": message.role, "parts": parts})
    return json_text(shown[::-1])


def output_messages(content: str, calls: Iterable[ToolCall] = (), finish_reason: str = "stop") -> str:
    """Return the reply of a model as JSON."""
    reason = _FINISH_REASONS.get(finish_reason, finish_reason)
    return json_text([{"role": "assistant", "parts": _parts(content, calls), "finish_reason": reason}])


def finish_reason_of(result: AgentResult[Any]) -> str:
    """Return why a run ended, in the terms of the conventions, which have no word for a cancelled run."""
    if result.status == "stopped":
        return "length" if result.stop is not None and result.stop.kind.endswith("_limit") else "stop"
    return _RUN_ENDINGS.get(str(result.status), str(result.status))


def task_message(result: AgentResult[Any]) -> Message:
    """Return the task of a run as a message, with its attachments."""
    given = (each for each in result.messages if each.role == "user" and each.content == result.task)
    return next((each for each in given if each.attachments), Message("user", result.task))


def server_of(url: str) -> Attributes:
    """Return the address and the port of a server; nothing if its URL is not known or not valid."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"https": 443, "http": 80}.get(parts.scheme)
    except ValueError:
        return {}
    return {a.SERVER_ADDRESS: parts.hostname, a.SERVER_PORT: port} if parts.hostname and port else {}


def arguments_text(arguments: Mapping[str, Any]) -> str:
    """Return the arguments of a tool call as JSON."""
    return json_text(_arguments(arguments))


def result_text(text: str) -> str:
    """Return the result of a tool call."""
    return excerpt(text, MAX_TEXT)


def _parts(content: str, calls: Iterable[ToolCall]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [{"type": "text", "content": excerpt(content, MAX_TEXT)}] if content else []
    for call in calls:
        arguments = excerpt(call.raw, MAX_TEXT) if call.raw is not None else _arguments(call.arguments)
        parts.append({"type": "tool_call", "id": call.id, "name": call.name, "arguments": arguments})
    return parts


def _file(file: Attachment) -> dict[str, Any]:
    """Return an attachment without its content: the digest identifies it."""
    kind = file.media_type.partition("/")[0]
    about = {"mime_type": file.media_type, "modality": kind if kind in ("image", "audio", "video") else "document"}
    return {"type": "uri", **about, "uri": file.url} if file.url else {"type": "file", **about, "file_id": file.digest}


def _result(message: Message) -> list[dict[str, Any]]:
    return [{"type": "tool_call_response", "id": message.call_id, "response": excerpt(message.content, MAX_TEXT)}]


def _arguments(arguments: Any) -> Any:
    text = json_text(arguments)
    return arguments if len(text) <= MAX_TEXT else excerpt(text, MAX_TEXT)
