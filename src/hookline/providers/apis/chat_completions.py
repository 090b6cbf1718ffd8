"""OpenAI's Chat Completions API, which most other servers offer too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ..._base.attachment import Attachment
from ..._base.frozen import json_text
from ..._kernel.payloads import ModelRequest
from ..._kernel.values import Message, ToolCall, Usage
from .attachments import (
    IMAGES,
    PDF,
    about_result,
    base64_of,
    data_url,
    file_name,
    file_text,
    is_image,
    unsupported,
)
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

_FINISHES = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
}

_AUDIO = {"audio/wav": "wav", "audio/mpeg": "mp3"}


class ChatCompletionsApi:
    """The Chat Completions API.

    Args:
        max_tokens: the name of the parameter that limits the reply: ``max_completion_tokens`` at OpenAI, ``max_tokens``
            at servers that know only the older name.
    """

    path = "/chat/completions"
    attachment_types: tuple[str, ...] = (*IMAGES, PDF, "audio/wav", "audio/mpeg", "text/*")
    url_types: tuple[str, ...] = IMAGES

    def __init__(self, max_tokens: str) -> None:
        self._max_tokens = max_tokens

    def body(self, request: ModelRequest, model: str, names: ToolNames) -> Json:
        """Return the body of a request."""
        body: Json = {"model": model, "messages": list(_messages(request.messages, names))}
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": names.encode(tool.name),
                        "description": tool.description,
                        "parameters": parameters_schema(tool),
                    },
                }
                for tool in request.tools
            ]
            choice = request.tool_choice
            if choice in ("auto", "none", "required"):
                body["tool_choice"] = choice
            elif choice:
                body["tool_choice"] = {"type": "function", "function": {"name": names.encode(choice)}}
        if request.response_format is not None:
            schema, strict = self._response_schema(request.response_format)
            shape = {"name": "reply", "schema": schema, "strict": strict}
            body["response_format"] = {"type": "json_schema", "json_schema": shape}
        for key, value in request.params.items():
            body[self._max_tokens if key == "max_tokens" else key] = value
        return body

    def _response_schema(self, schema: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
        return strict_schema(schema)

    def streamed(self, body: Json) -> Json:
        """Return the body of a request for a streamed reply that ends with its usage."""
        return {"stream_options": {"include_usage": True}, **body, "stream": True}

    def read(self, data: Json) -> ParsedReply | None:
        """Parse a whole reply; ``None`` if it has no content."""
        choices = data.get("choices")
        if not choices:
            return None
        message = choices[0].get("message") or {}
        calls = [_call(call) for call in message.get("tool_calls") or ()]
        refusal = text_of(message.get("refusal"))
        reason = _FINISHES.get(choices[0].get("finish_reason") or "", "other")
        return ParsedReply(
            text_of(message.get("content")) or refusal,
            calls,
            final_reason(reason, calls, bool(refusal)),
            data.get("model") or "",
            _usage(data.get("usage")),
        )

    def stream(self) -> ChatCompletionsStream:
        """Return an object that assembles a streamed reply."""
        return ChatCompletionsStream()


class ChatCompletionsStream:
    """Assembles a streamed chat completion."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._refusal: list[str] = []
        self._calls: list[_Fragments] = []
        self._finish: str | None = None
        self._id, self._model, self._usage = "", "", None

    def add(self, event: Json) -> str:
        """Add one chunk and return the text in it."""
        self._id = event.get("id") or self._id
        self._model = event.get("model") or self._model
        self._usage = event.get("usage") or self._usage
        choice = next((choice for choice in event.get("choices") or () if not choice.get("index")), None)
        if choice is None:
            return ""
        self._finish = choice.get("finish_reason") or self._finish
        delta = choice.get("delta") or {}
        for part in delta.get("tool_calls") or ():
            self._fragments(part).add(part.get("function") or {})
        text, refusal = text_of(delta.get("content")), text_of(delta.get("refusal"))
        self._text.append(text)
        self._refusal.append(refusal)
        return text or refusal

    def whole(self) -> Json | None:
        """Return the completion that the chunks make up; ``None`` if it is incomplete."""
        if self._finish is None:
            return None
        calls = [call.whole() for call in sorted(self._calls, key=lambda call: call.index)]
        message = {"content": "".join(self._text), "refusal": "".join(self._refusal), "tool_calls": calls}
        choice = {"message": message, "finish_reason": self._finish}
        return {"id": self._id, "model": self._model, "choices": [choice], "usage": self._usage}

    def _fragments(self, part: Json) -> _Fragments:
        """Return the call that a fragment belongs to. A new id starts a new call, even if the index repeats."""
        call_id, index = part.get("id") or "", part.get("index")
        for call in reversed(self._calls):
            if index in (None, call.index) and (not call_id or call_id == call.id):
                return call
        last = max((call.index for call in self._calls), default=-1)
        call = _Fragments(last + 1 if index is None else index, call_id)
        self._calls.append(call)
        return call


class _Fragments(msgspec.Struct):
    """A tool call that arrives in pieces or at once."""

    index: int
    id: str
    name: str = ""
    arguments: str = ""

    def add(self, function: Json) -> None:
        self.name = self.name or function.get("name") or ""
        arguments = function.get("arguments") or ""
        self.arguments += arguments if isinstance(arguments, str) else json_text(arguments)

    def whole(self) -> Json:
        return {"id": self.id, "function": {"name": self.name, "arguments": self.arguments}}


def _messages(messages: Sequence[Message], names: ToolNames) -> Iterator[Json]:
    """Yield the messages. Tool results are text in this API, so their attachments follow in a user message.

    It comes after all results of a batch, because the API requires that these follow their calls directly.
    """
    parts: list[Json] = []
    for message in messages:
        if parts and not (message.role == "tool" and message.call_id):
            yield {"role": "user", "content": parts}
            parts = []
        yield _message(message, names)
        if message.attachments and message.role == "tool" and message.call_id:
            parts = [*parts, _text(about_result(message)), *map(_part, message.attachments)]
    if parts:
        yield {"role": "user", "content": parts}


def _message(message: Message, names: ToolNames) -> Json:
    if message.role == "tool" and message.call_id:
        return {"role": "tool", "tool_call_id": message.call_id, "content": message.content}
    if not message.tool_calls:
        role = "user" if message.role == "tool" else message.role
        if not message.attachments:
            return {"role": role, "content": message.content}
        texts = [_text(message.content)] if message.content else []
        return {"role": role, "content": [*texts, *map(_part, message.attachments)]}
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": names.encode(call.name), "arguments": arguments_text(call)},
        }
        for call in message.tool_calls
    ]
    return {"role": "assistant", "content": message.content or None, "tool_calls": calls}


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


def _part(attachment: Attachment) -> Json:
    if is_image(attachment):
        return {"type": "image_url", "image_url": {"url": data_url(attachment)}}
    if not attachment.url:
        if attachment.media_type in _AUDIO:
            audio = {"data": base64_of(attachment), "format": _AUDIO[attachment.media_type]}
            return {"type": "input_audio", "input_audio": audio}
        if attachment.media_type == PDF:
            return {"type": "file", "file": {"filename": file_name(attachment), "file_data": data_url(attachment)}}
        if attachment.is_text:
            return _text(file_text(attachment))
    raise unsupported(attachment, "the Chat Completions API")


def _call(call: Json) -> ToolCall:
    function = call.get("function") or {}
    return ToolCall(call.get("id") or "", function.get("name") or "", function.get("arguments"))


def _usage(usage: Any) -> Usage | None:
    if not usage or not isinstance(usage, dict):
        return None
    cached = token_count(usage, "prompt_tokens_details", "cached_tokens")
    return Usage(token_count(usage, "prompt_tokens"), token_count(usage, "completion_tokens"), cached)
