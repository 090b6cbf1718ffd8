"""OpenAI's Responses API, used without server-side state: each request holds the whole conversation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..._base.attachment import Attachment
from ..._kernel.payloads import ModelRequest
from ..._kernel.values import Message, ToolCall, Usage
from .attachments import IMAGES, PDF, data_url, file_name, file_text, is_image, unsupported
from .common import (
    Json,
    ParsedReply,
    ToolNames,
    arguments_text,
    final_reason,
    parameters_schema,
    strict_schema,
    text_of,
    token_count,
)

_INCOMPLETE_REASONS = {"max_output_tokens": "length", "content_filter": "content_filter"}


class ResponsesApi:
    """The Responses API. It has no ``seed``, so that parameter is dropped."""

    path = "/responses"
    attachment_types = (*IMAGES, PDF, "text/*")
    url_types = (*IMAGES, PDF)

    def body(self, request: ModelRequest, model: str, names: ToolNames) -> Json:
        """Return the body of a request."""
        items = [item for message in request.messages for item in _items(message, names)]
        body: Json = {"model": model, "input": items, "store": False}
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "name": names.encode(tool.name),
                    "description": tool.description,
                    "parameters": parameters_schema(tool),
                    "strict": False,
                }
                for tool in request.tools
            ]
            choice = request.tool_choice
            if choice in ("auto", "none", "required"):
                body["tool_choice"] = choice
            elif choice:
                body["tool_choice"] = {"type": "function", "name": names.encode(choice)}
        if request.response_format is not None:
            schema, strict = strict_schema(request.response_format)
            shape = {"type": "json_schema", "name": "reply", "schema": schema, "strict": strict}
            body["text"] = {"format": shape}
        for key, value in request.params.items():
            if key == "text" and isinstance(value, dict):
                body["text"] = {**body.get("text", {}), **value}
            elif key != "seed":
                body["max_output_tokens" if key == "max_tokens" else key] = value
        return body

    def streamed(self, body: Json) -> Json:
        """Return the body of a request for a streamed reply."""
        return {**body, "stream": True}

    def read(self, data: Json) -> ParsedReply | None:
        """Parse a whole reply; ``None`` if it has no content."""
        if not isinstance(data.get("output"), list):
            return None
        text, calls, refused = [], [], False
        for item in data["output"]:
            if item.get("type") == "function_call":
                call_id = item.get("call_id") or item.get("id") or ""
                calls.append(ToolCall(call_id, item.get("name") or "", item.get("arguments")))
            elif item.get("type") == "message":
                for part in item.get("content") or ():
                    refused = refused or part.get("type") == "refusal"
                    text.append(part.get("text") or part.get("refusal") or "")
        reason = "stop"
        if data.get("status", "completed") != "completed":
            reason = _INCOMPLETE_REASONS.get((data.get("incomplete_details") or {}).get("reason") or "", "other")
        model, usage = data.get("model") or "", _usage(data.get("usage"))
        return ParsedReply("".join(text), calls, final_reason(reason, calls, refused), model, usage)

    def stream(self) -> ResponsesStream:
        """Return an object that assembles a streamed reply."""
        return ResponsesStream()


class ResponsesStream:
    """Assembles a streamed response. The last event holds the whole response, but some servers leave out its items."""

    def __init__(self) -> None:
        self._items: list[Json] = []
        self._last: Json | None = None

    def add(self, event: Json) -> str:
        """Add one event and return the text in it."""
        kind = event.get("type")
        if kind in ("response.output_text.delta", "response.refusal.delta"):
            return text_of(event.get("delta"))
        if kind == "response.output_item.done":
            self._items.append(event["item"])
        elif kind in ("response.completed", "response.incomplete", "response.failed"):
            self._last = event["response"]
        elif kind == "error":
            self._last = {"error": event}
        return ""

    def whole(self) -> Json | None:
        """Return the response that the events make up; ``None`` if it is incomplete."""
        if self._last is None:
            return None
        return {**self._last, "output": self._last.get("output") or self._items}


def _items(message: Message, names: ToolNames) -> Iterator[Json]:
    if message.role == "tool" and message.call_id:
        output: Any = message.content
        if message.attachments:
            output = _parts(message)
        yield {"type": "function_call_output", "call_id": message.call_id, "output": output}
        return
    if message.role == "assistant":
        if message.content:
            part = {"type": "output_text", "text": message.content}
            yield {"type": "message", "role": "assistant", "content": [part]}
    else:
        role = "user" if message.role == "tool" else message.role
        content: Any = message.content
        if message.attachments:
            content = _parts(message)
        yield {"type": "message", "role": role, "content": content}
    for call in message.tool_calls:
        name, arguments = names.encode(call.name), arguments_text(call)
        yield {"type": "function_call", "call_id": call.id, "name": name, "arguments": arguments}


def _parts(message: Message) -> list[Json]:
    texts = [_text(message.content)] if message.content else []
    return [*texts, *map(_part, message.attachments)]


def _text(text: str) -> Json:
    return {"type": "input_text", "text": text}


def _part(attachment: Attachment) -> Json:
    if is_image(attachment):
        return {"type": "input_image", "image_url": data_url(attachment)}
    if attachment.media_type == PDF:
        if attachment.url:
            return {"type": "input_file", "file_url": attachment.url}
        return {"type": "input_file", "filename": file_name(attachment), "file_data": data_url(attachment)}
    if attachment.is_text and not attachment.url:
        return _text(file_text(attachment))
    raise unsupported(attachment, "the Responses API")


def _usage(usage: Any) -> Usage | None:
    if not usage or not isinstance(usage, dict):
        return None
    cached = token_count(usage, "input_tokens_details", "cached_tokens")
    return Usage(token_count(usage, "input_tokens"), token_count(usage, "output_tokens"), cached)
