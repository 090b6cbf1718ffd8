"""Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..._base.attachment import Attachment
from ..._base.frozen import json_text, thaw
from ..._kernel.payloads import ModelRequest
from ..._kernel.values import Message, ToolCall, Usage
from ...models.errors import BadRequestError
from .attachments import IMAGES, PDF, base64_of, data_of, is_image, unsupported
from .common import Json, ParsedReply, ToolNames, final_reason, parameters_schema, text_of, token_count, valid_id

OPENING = "(The conversation begins.)"
"""The first user message of a conversation that starts with the assistant, which the API does not allow."""

ANSWER = "hookline_final_answer"
"""The tool through which the model returns a final answer in JSON. Its input becomes the text of the reply."""

FINISHES = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}
"""The reasons why a reply ended, and their names in Hookline."""
_CHOICES = {"auto": "auto", "none": "none", "required": "any"}


class MessagesApi:
    """The Messages API. It has no ``seed``, so that parameter is dropped.

    A ``response_format`` is sent as an additional tool for the final answer: every model of this API supports tools,
    and the input of a tool matches its schema.

    Args:
        max_tokens: the limit for a reply if the request has none; the API requires one.
    """

    path = "/v1/messages"
    attachment_types = (*IMAGES, PDF, "text/*")
    url_types: tuple[str, ...] = (*IMAGES, PDF)

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens

    def body(self, request: ModelRequest, model: str, names: ToolNames) -> Json:
        """Return the body of a request."""
        body: Json = {"model": model, "max_tokens": self._max_tokens, "messages": _turns(request.messages, names)}
        system = "\n\n".join(m.content for m in request.messages if m.role == "system" and m.content.strip())
        if system:
            body["system"] = system
        params = dict(request.params)
        schema = request.response_format
        body |= _tools(request, names, params)
        if schema is not None and not _is_object(schema):  # the input of a tool must be an object
            body["output_config"] = {"format": {"type": "json_schema", "schema": _schema(schema)}}
        params.pop("parallel_tool_calls", None)
        params.pop("seed", None)
        stop = params.pop("stop", None)
        if stop:
            body["stop_sequences"] = [stop] if isinstance(stop, str) else stop
        if isinstance(params.get("output_config"), Mapping):
            body["output_config"] = {**body.get("output_config", {}), **params.pop("output_config")}
        return body | params

    def streamed(self, body: Json) -> Json:
        """Return the body of a request for a streamed reply."""
        return {**body, "stream": True}

    def read(self, data: Json) -> ParsedReply | None:
        """Parse a whole reply; ``None`` if it has no content."""
        blocks = data.get("content")
        if not isinstance(blocks, list):
            return None
        text = "".join(block.get("text") or "" for block in blocks if block.get("type") == "text")
        used = [block for block in blocks if block.get("type") == "tool_use"]
        calls = [
            ToolCall(block.get("id") or "", block.get("name") or "", block.get("input"))
            for block in used
            if block.get("name") != ANSWER
        ]
        reason = FINISHES.get(data.get("stop_reason") or "", "other")
        if used and not calls:  # an answer beside other calls is premature: the model gets their results first
            text = _text_of_answer(used[0].get("input"))
            reason = "stop" if reason == "tool_calls" else reason
        usage = data.get("usage")
        return ParsedReply(
            text,
            calls,
            final_reason(reason, calls, refused=False),
            data.get("model") or "",
            _usage(usage),
            _cache_writes(usage),
        )

    def stream(self) -> MessagesStream:
        """Return an object that assembles a streamed reply."""
        return MessagesStream()


class MessagesStream:
    """Assembles a streamed message."""

    def __init__(self) -> None:
        self._message: Json = {}
        self._blocks: dict[int, Json] = {}
        self._inputs: dict[int, str] = {}

    def add(self, event: Json) -> str:
        """Add one event and return the text in it."""
        kind, index = event.get("type"), event.get("index", 0)
        if kind == "message_start":
            self._message = dict(event["message"])
        elif kind == "content_block_start":
            self._blocks[index] = dict(event["content_block"])
            return text_of(self._blocks[index].get("text"))
        elif kind == "content_block_delta":
            return self._add_delta(index, event["delta"])
        elif kind == "message_delta":
            self._message |= event.get("delta") or {}
            counted = {key: tokens for key, tokens in (event.get("usage") or {}).items() if tokens is not None}
            self._message["usage"] = {**(self._message.get("usage") or {}), **counted}
        return ""

    def whole(self) -> Json | None:
        """Return the message that the events make up; ``None`` if it is incomplete."""
        if not self._message.get("stop_reason"):
            return None
        for index, text in self._inputs.items():
            self._blocks[index]["input"] = text
        return {**self._message, "content": [self._blocks[index] for index in sorted(self._blocks)]}

    def _add_delta(self, index: int, delta: Json) -> str:
        block = self._blocks.setdefault(index, {"type": "text"})
        if delta.get("type") == "input_json_delta" and delta.get("partial_json"):
            self._inputs[index] = self._inputs.get(index, "") + delta["partial_json"]
            return text_of(delta["partial_json"]) if block.get("name") == ANSWER else ""
        if delta.get("type") == "text_delta":
            text: str = delta.get("text") or ""
            block["text"] = (block.get("text") or "") + text
            return text
        return ""


def _turns(messages: Sequence[Message], names: ToolNames) -> list[Json]:
    """Return the conversation as alternating turns without empty ones."""
    turns: list[Json] = []
    for message in messages:
        if message.role == "system":
            continue
        role, blocks = "assistant" if message.role == "assistant" else "user", _blocks(message, names)
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    if not turns or turns[0]["role"] == "assistant":
        turns.insert(0, {"role": "user", "content": [_text(OPENING)]})
    last = turns[-1]["content"][-1]
    if turns[-1]["role"] == "assistant" and last["type"] == "text":
        last["text"] = last["text"].rstrip()  # the API rejects trailing whitespace in text that the model continues
    return turns


def _blocks(message: Message, names: ToolNames) -> list[Json]:
    if message.role == "tool" and message.call_id:
        result: Json = {"type": "tool_result", "tool_use_id": valid_id(message.call_id)}
        if message.content.strip() or message.is_error:
            result["content"] = message.content if message.content.strip() else "The call failed."
        if message.is_error:
            result["is_error"] = True
        if message.attachments:
            texts = [_text(message.content)] if message.content.strip() else []
            result["content"] = [*texts, *map(_file, message.attachments)]
        return [result]
    blocks = [_text(message.content)] if message.content.strip() else []
    if message.attachments:  # the vendor recommends files before the question about them
        blocks = [*map(_file, message.attachments), *blocks]
    for call in message.tool_calls:
        used = {"id": valid_id(call.id), "name": names.encode(call.name), "input": call.arguments}
        blocks.append({"type": "tool_use", **used})
    return blocks


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


def _file(attachment: Attachment) -> Json:
    title = {"title": attachment.name} if attachment.name else {}
    if is_image(attachment):
        return {"type": "image", "source": _source(attachment)}
    if attachment.media_type == PDF:
        return {"type": "document", "source": _source(attachment), **title}
    if attachment.is_text and not attachment.url:
        text = data_of(attachment).decode(errors="replace")
        return {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": text}, **title}
    raise unsupported(attachment, "the Messages API")


def _source(attachment: Attachment) -> Json:
    if attachment.url:
        return {"type": "url", "url": attachment.url}
    return {"type": "base64", "media_type": attachment.media_type, "data": base64_of(attachment)}


def _tools(request: ModelRequest, names: ToolNames, params: Mapping[str, Any]) -> Json:
    """Return the tools and the tool choice.

    The API requires tools for calls in the history, even if none are offered.
    """
    tools: list[Json] = [
        {"name": names.encode(tool.name), "description": tool.description, "input_schema": parameters_schema(tool)}
        for tool in request.tools
    ]
    choice: str = request.tool_choice or "auto" if tools else "none"
    if not tools:
        called = dict.fromkeys(names.encode(call.name) for message in request.messages for call in message.tool_calls)
        tools = [{"name": name, "input_schema": {"type": "object"}} for name in called]
    chosen: Json = {"type": _CHOICES[choice]} if choice in _CHOICES else {"type": "tool", "name": names.encode(choice)}
    if _is_object(request.response_format) and choice in ("auto", "none"):
        if any(tool["name"] == ANSWER for tool in tools):
            raise BadRequestError(f"the tool name {ANSWER!r} is reserved for the final answer: rename the agent's tool")
        tools.append(_answer_tool(request.response_format))
        chosen = {"type": "any"} if choice == "auto" else {"type": "tool", "name": ANSWER}
        thinking = params.get("thinking")
        if isinstance(thinking, Mapping) and thinking.get("type") != "disabled":
            chosen = {"type": "auto"}  # with extended thinking the API allows no forced tool
    if not tools:
        return {}
    if params.get("parallel_tool_calls", True) is False and chosen["type"] != "none":
        chosen["disable_parallel_tool_use"] = True
    return {"tools": tools} if chosen == {"type": "auto"} else {"tools": tools, "tool_choice": chosen}


def _answer_tool(schema: Mapping[str, Any]) -> Json:
    about = "Give the final answer to the user, in this form. Call it alone, once all other work is done."
    return {"name": ANSWER, "description": about, "input_schema": schema}


def _text_of_answer(given: Any) -> str:
    """Return the JSON of an answer. A streamed answer is the model's own text, and may be incomplete."""
    return given if isinstance(given, str) else json_text(given)


def _is_object(schema: Any) -> bool:
    return schema is not None and schema.get("type") == "object"


def _schema(schema: Any) -> Json:
    """Convert a reply schema with the vendor's own helper."""
    from anthropic import transform_schema

    try:
        return transform_schema(thaw(schema))
    except ValueError as error:
        raise BadRequestError(f"anthropic does not accept the schema in response_format: {error}") from error


def _usage(usage: Any) -> Usage | None:
    if not usage or not isinstance(usage, dict):
        return None
    read = token_count(usage, "cache_read_input_tokens")
    given = token_count(usage, "input_tokens") + read + token_count(usage, "cache_creation_input_tokens")
    return Usage(given, token_count(usage, "output_tokens"), read)


def _cache_writes(usage: Any) -> dict[str, int]:
    cache_writes = {
        "cache_write_tokens": token_count(usage, "cache_creation_input_tokens"),
        "cache_write_5m_tokens": token_count(usage, "cache_creation", "ephemeral_5m_input_tokens"),
        "cache_write_1h_tokens": token_count(usage, "cache_creation", "ephemeral_1h_input_tokens"),
    }
    return {kind: tokens for kind, tokens in cache_writes.items() if tokens}
