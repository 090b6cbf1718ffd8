"""Bedrock's Converse API. It has the structure of Anthropic's Messages with other names, so it is built on that."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

from ..._kernel.payloads import ModelRequest
from ...models.attachments import DOWNLOAD
from ...models.errors import BadRequestError
from .common import Json, ParsedReply, ToolNames
from .messages import MessagesApi, MessagesStream

_LIMITS = {"max_tokens": "maxTokens", "temperature": "temperature", "top_p": "topP", "stop_sequences": "stopSequences"}
_CHOICES: dict[str, Json] = {"auto": {"auto": {}}, "any": {"any": {}}}
_FINISHES = {"guardrail_intervened": "refusal", "content_filtered": "refusal"}
_USAGE = {
    "inputTokens": "input_tokens",
    "outputTokens": "output_tokens",
    "cacheReadInputTokens": "cache_read_input_tokens",
    "cacheWriteInputTokens": "cache_creation_input_tokens",
}


_UNFIT = re.compile(r"[^A-Za-z0-9 ()\[\]-]|  +")
"""Characters that the name of a document cannot contain."""


class ConverseApi:
    """The Converse API. Parameters that it does not know are passed to the model."""

    attachment_types = MessagesApi.attachment_types
    url_types: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._messages = MessagesApi(4096)

    def body(self, request: ModelRequest, model: str, names: ToolNames) -> Json:
        """Return the arguments of ``converse``."""
        if request.response_format is not None and request.response_format.get("type") != "object":
            raise BadRequestError("bedrock accepts only an object as response_format")
        given = self._messages.body(request, model, names)
        if given.get("tool_choice", {}).get("type") == "none":
            # This API has no such choice, and requires the tools if the messages contain calls.
            del given["tools"], given["tool_choice"]
            given["messages"] = [
                {**turn, "content": list(_without_calls(turn["content"]))} for turn in given["messages"]
            ]
        if "max_tokens" not in request.params:
            del given["max_tokens"]  # unlike Anthropic's own API, this one does not need it
        body: Json = {
            "modelId": given.pop("model"),
            "messages": [
                {"role": turn["role"], "content": [_block(block) for block in turn["content"]]}
                for turn in given.pop("messages")
            ],
        }
        if "system" in given:
            body["system"] = [{"text": given.pop("system")}]
        if "tools" in given:
            body["toolConfig"] = _tool_config(given.pop("tools"), given.pop("tool_choice", {"type": "auto"}))
        limits = {name: given.pop(key) for key, name in _LIMITS.items() if key in given}
        if limits:
            body["inferenceConfig"] = limits
        if given:
            body["additionalModelRequestFields"] = given
        return body

    def read(self, data: Json) -> ParsedReply | None:
        """Parse a whole reply; ``None`` if it has no content."""
        message = (data.get("output") or {}).get("message")
        if not message:
            return None
        blocks = [_from_block(block) for block in message.get("content") or ()]
        return self._messages.read({**_ending(data.get("stopReason")), "content": blocks, "usage": _usage(data)})

    def stream(self) -> ConverseStream:
        """Return an object that assembles a streamed reply."""
        return ConverseStream()


class ConverseStream:
    """Assembles a streamed reply, and returns it as ``converse`` would."""

    def __init__(self) -> None:
        self._stream = MessagesStream()
        self._stream.add({"type": "message_start", "message": {}})
        self._stop = ""
        self._usage: Json = {}

    def add(self, event: Json) -> str:
        """Add one event and return the text in it."""
        if "contentBlockStart" in event:
            started = event["contentBlockStart"]
            if "toolUse" in started["start"]:
                block = _from_block(started["start"])
                index = started["contentBlockIndex"]
                return self._stream.add({"type": "content_block_start", "index": index, "content_block": block})
        elif "contentBlockDelta" in event:
            index, delta = event["contentBlockDelta"]["contentBlockIndex"], event["contentBlockDelta"]["delta"]
            if "text" in delta:
                part = {"type": "text_delta", "text": delta["text"]}
            elif "toolUse" in delta:
                part = {"type": "input_json_delta", "partial_json": delta["toolUse"]["input"]}
            else:  # reasoning
                return ""
            return self._stream.add({"type": "content_block_delta", "index": index, "delta": part})
        elif "messageStop" in event:
            self._stop = event["messageStop"]["stopReason"]
            self._stream.add({"type": "message_delta", "delta": _ending(self._stop)})
        elif "metadata" in event:
            self._usage = event["metadata"].get("usage") or {}
        return ""

    def whole(self) -> Json | None:
        """Return the reply that the events make up; ``None`` if it is incomplete."""
        message = self._stream.whole()
        if message is None:
            return None
        blocks = [_block(block) for block in message["content"]]
        return {"output": {"message": {"content": blocks}}, "stopReason": self._stop, "usage": self._usage}


def _without_calls(blocks: list[Json]) -> Iterator[Json]:
    """Yield blocks in which calls and their results are texts, for a request without tools."""
    for block in blocks:
        if block["type"] == "tool_use":
            yield {"type": "text", "text": f"[Called {block['name']} with {json.dumps(block.get('input') or {})}]"}
        elif block["type"] == "tool_result":
            content = block.get("content") or "(no output)"
            yield {"type": "text", "text": "[Failed]" if block.get("is_error") else "[Result]"}
            yield from [{"type": "text", "text": content}] if isinstance(content, str) else content
        else:
            yield block


def _block(block: Json) -> Json:
    """Convert a block of Anthropic's API."""
    kind = block["type"]
    if kind == "text":
        return {"text": block.get("text") or ""}
    if kind == "tool_use":
        return {"toolUse": {"toolUseId": block["id"], "name": block["name"], "input": block.get("input") or {}}}
    if kind == "tool_result":
        status = {"status": "error"} if block.get("is_error") else {}
        given = block.get("content") or "(no output)"
        content = [{"text": given}] if isinstance(given, str) else [_block(part) for part in given]
        return {"toolResult": {"toolUseId": block["tool_use_id"], "content": content, **status}}
    if kind in ("image", "document"):
        return _file(block)
    raise BadRequestError(f"hookline cannot send {kind!r} content to bedrock")


def _file(block: Json) -> Json:
    """Convert an image or a document. The client encodes the bytes itself."""
    source, name = block["source"], block.get("title") or "file"
    if source["type"] == "text":
        return {"text": f"File {name}:\n{source['data']}"}
    if source["type"] == "url":
        raise BadRequestError(f"bedrock does not fetch {source['url']}. Nothing was sent. {DOWNLOAD}")
    content = {"format": source["media_type"].rpartition("/")[2], "source": {"bytes": b64decode(source["data"])}}
    if block["type"] == "image":
        return {"image": content}
    return {"document": {"name": _UNFIT.sub("-", name)[:200], **content}}


def _from_block(block: Json) -> Json:
    if "toolUse" in block:
        used = block["toolUse"]
        return {"type": "tool_use", "id": used["toolUseId"], "name": used["name"], "input": used.get("input")}
    return {"type": "text", "text": block.get("text") or ""}


def _tool_config(tools: list[Json], choice: Json) -> Json:
    specs = [
        {
            "toolSpec": {
                "name": tool["name"],
                "description": tool.get("description") or tool["name"],
                "inputSchema": {"json": tool["input_schema"]},
            }
        }
        for tool in tools
    ]
    if choice["type"] == "tool":
        return {"tools": specs, "toolChoice": {"tool": {"name": choice["name"]}}}
    return {"tools": specs, "toolChoice": _CHOICES[choice["type"]]}


def _ending(reason: Any) -> Json:
    return {"stop_reason": _FINISHES.get(reason, reason)}


def _usage(data: Json) -> Json:
    usage = data.get("usage") or {}
    return {name: usage[key] for key, name in _USAGE.items() if key in usage}
