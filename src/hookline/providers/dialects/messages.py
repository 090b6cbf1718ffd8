"""Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..._base.frozen import json_text, thaw
from ..._kernel.payloads import ModelRequest
from ..._kernel.values import Message, ToolCall, Usage
from ...models.errors import BadRequestError
from ..schemas import parameters_of
from ..wire import Json, Reply, ToolNames, count, finish, fit_id, text_of

OPENING = "(The conversation begins.)"
"""The user's first words where a conversation begins with the assistant's, which the API does not take."""

ANSWER = "hookline_final_answer"
"""The tool by which the model gives a final answer in JSON. Its call is read as the text of the reply."""

_FINISHES = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}
_CHOICES = {"auto": "auto", "none": "none", "required": "any"}


class Messages:
    """The Messages API. It knows no ``seed``, so that one is left out.

    A ``response_format`` goes out as a tool for the final answer, beside the tools of the request: every model of this
    API knows tools, and the input of a tool keeps to its schema.

    Args:
        max_tokens: the limit of a reply whose request names none; the API wants one.
    """

    path = "/v1/messages"

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens

    def body(self, request: ModelRequest, model: str, names: ToolNames) -> Json:
        """The request, as this API wants it."""
        body: Json = {"model": model, "max_tokens": self._max_tokens, "messages": _turns(request.messages, names)}
        system = "\n\n".join(m.content for m in request.messages if m.role == "system" and m.content.strip())
        if system:
            body["system"] = system
        params = dict(request.params)
        schema = request.response_format
        body |= _tools(request, names, params)
        if schema is not None and not _is_object(schema):  # the input of a tool is an object
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
        """The same request, for a reply in pieces."""
        return {**body, "stream": True}

    def read(self, data: Json) -> Reply | None:
        """What a whole reply says; ``None`` if it holds no answer."""
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
        reason = _FINISHES.get(data.get("stop_reason") or "", "other")
        if used and not calls:  # an answer beside other calls came too early: the model gets their results first
            text = _text_of_answer(used[0].get("input"))
            reason = "stop" if reason == "tool_calls" else reason
        usage = data.get("usage")
        return Reply(
            text, calls, finish(reason, calls, refused=False), data.get("model") or "",
            _usage(usage), _written(usage),
        )  # fmt: skip

    def stream(self) -> MessagesStream:
        """Puts a streamed reply together."""
        return MessagesStream()


class MessagesStream:
    """A streamed message."""

    def __init__(self) -> None:
        self._message: Json = {}
        self._blocks: dict[int, Json] = {}
        self._inputs: dict[int, str] = {}

    def add(self, event: Json) -> str:
        """Take in one event; gives the text in it."""
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
        """The message that the events make up."""
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
    """The conversation in turns that alternate, with no empty ones."""
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
        last["text"] = last["text"].rstrip()  # the API takes no white space at the end of words it shall go on with
    return turns


def _blocks(message: Message, names: ToolNames) -> list[Json]:
    if message.role == "tool" and message.call_id:
        result: Json = {"type": "tool_result", "tool_use_id": fit_id(message.call_id)}
        if message.content.strip() or message.is_error:
            result["content"] = message.content if message.content.strip() else "The call failed."
        if message.is_error:
            result["is_error"] = True
        return [result]
    blocks = [_text(message.content)] if message.content.strip() else []
    for call in message.tool_calls:
        used = {"id": fit_id(call.id), "name": names.out(call.name), "input": call.arguments}
        blocks.append({"type": "tool_use", **used})
    return blocks


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


def _tools(request: ModelRequest, names: ToolNames, params: Mapping[str, Any]) -> Json:
    """The tools and the choice among them. Calls in the history need their tools named, even where none is offered."""
    tools: list[Json] = [
        {"name": names.out(tool.name), "description": tool.description, "input_schema": parameters_of(tool)}
        for tool in request.tools
    ]
    choice: str = request.tool_choice or "auto" if tools else "none"
    if not tools:
        called = dict.fromkeys(names.out(call.name) for message in request.messages for call in message.tool_calls)
        tools = [{"name": name, "input_schema": {"type": "object"}} for name in called]
    chosen: Json = {"type": _CHOICES[choice]} if choice in _CHOICES else {"type": "tool", "name": names.out(choice)}
    if _is_object(request.response_format) and choice in ("auto", "none"):
        if any(tool["name"] == ANSWER for tool in tools):
            raise BadRequestError(
                f"the name {ANSWER!r} is taken by the tool for the final answer: rename the agent's tool"
            )
        tools.append(_answer_tool(request.response_format))
        chosen = {"type": "any"} if choice == "auto" else {"type": "tool", "name": ANSWER}
        thinking = params.get("thinking")
        if isinstance(thinking, Mapping) and thinking.get("type") != "disabled":
            chosen = {"type": "auto"}  # a model that thinks cannot be forced
    if not tools:
        return {}
    if params.get("parallel_tool_calls", True) is False and chosen["type"] != "none":
        chosen["disable_parallel_tool_use"] = True
    return {"tools": tools} if chosen == {"type": "auto"} else {"tools": tools, "tool_choice": chosen}


def _answer_tool(schema: Mapping[str, Any]) -> Json:
    about = "Give the final answer to the user, in this form. Call it alone, once all other work is done."
    return {"name": ANSWER, "description": about, "input_schema": schema}


def _text_of_answer(given: Any) -> str:
    """The JSON of an answer; one that was streamed is JSON as the model wrote it, and may be cut off."""
    return given if isinstance(given, str) else json_text(given)


def _is_object(schema: Any) -> bool:
    return schema is not None and schema.get("type") == "object"


def _schema(schema: Any) -> Json:
    """A schema for replies with what the API wants in one, as its own client writes it."""
    from anthropic import transform_schema

    try:
        return transform_schema(thaw(schema))
    except ValueError as error:
        raise BadRequestError(f"response_format is no schema that anthropic takes: {error}") from error


def _usage(usage: Any) -> Usage | None:
    if not usage or not isinstance(usage, dict):
        return None
    read = count(usage, "cache_read_input_tokens")
    given = count(usage, "input_tokens") + read + count(usage, "cache_creation_input_tokens")
    return Usage(given, count(usage, "output_tokens"), read)


def _written(usage: Any) -> dict[str, int]:
    written = {
        "cache_write_tokens": count(usage, "cache_creation_input_tokens"),
        "cache_write_5m_tokens": count(usage, "cache_creation", "ephemeral_5m_input_tokens"),
        "cache_write_1h_tokens": count(usage, "cache_creation", "ephemeral_1h_input_tokens"),
    }
    return {kind: tokens for kind, tokens in written.items() if tokens}
