"""Chat Completions at other vendors: the differences from OpenAI's own API, each as an option."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from hashlib import sha256
from math import isfinite
from typing import Any

import msgspec

from ..._base.frozen import json_text
from ..._base.text import is_number
from ..._kernel.payloads import ModelRequest
from ..._kernel.values import Usage
from .attachments import IMAGES
from .chat_completions import ChatCompletionsApi, ChatCompletionsStream
from .common import Json, ParsedReply, ToolNames, token_count

MAX_REMEMBERED = 1000
"""Maximum number of tool calls of which the vendor's own fields are remembered."""

_FINISHES = {"eos": "stop", "model_length": "length"}
_UNSIGNED = {"google": {"thought_signature": "skip_thought_signature_validator"}}  # documented by Google for this case


class Quirks(msgspec.Struct, frozen=True):
    """How a vendor's Chat Completions differ from those of OpenAI.

    Args:
        max_tokens: the name of the parameter that limits the reply.
        seed: the name of the parameter ``seed``.
        stream_options: whether a request may ask for the usage at the end of a stream.
        named_choice: whether ``tool_choice`` may name a tool. If not, that tool is the only one offered.
        schemas: whether ``response_format`` may be a JSON schema. If not, the schema is part of the instructions.
        short_ids: whether ids of tool calls must have nine letters or digits.
        echo: fields of a message with tool calls that must be sent back with it.
        echo_calls: fields of a tool call that must be sent back with it.
        signed_calls: whether tool calls must be signed by the model. Others get a mark that says so.
        attachments: the media types of attachments that the API takes. Text files are sent as text.
        image_urls: whether the server fetches images from URLs.
    """

    max_tokens: str = "max_tokens"
    seed: str = "seed"
    stream_options: bool = True
    named_choice: bool = True
    schemas: bool = True
    short_ids: bool = False
    echo: tuple[str, ...] = ()
    echo_calls: tuple[str, ...] = ()
    signed_calls: bool = False
    attachments: tuple[str, ...] = (*IMAGES, "text/*")
    image_urls: bool = True


class CompatibleApi(ChatCompletionsApi):
    """The Chat Completions API with the quirks of a vendor.

    The fields that a vendor wants back, such as the reasoning before a tool call, are remembered here by the id of the
    call, not in the transcript: another vendor would reject them.
    """

    def __init__(self, quirks: Quirks) -> None:
        super().__init__(quirks.max_tokens)
        self._quirks = quirks
        self.attachment_types = quirks.attachments
        self.url_types = IMAGES if quirks.image_urls else ()
        self._remembered: OrderedDict[str, tuple[Json, Json]] = OrderedDict()

    def body(self, request: ModelRequest, model: str, names: ToolNames) -> Json:
        """Return the body of a request."""
        body, quirks = super().body(request, model, names), self._quirks
        if "seed" in body and quirks.seed != "seed":
            body[quirks.seed] = body.pop("seed")
        choice = body.get("tool_choice")
        if isinstance(choice, dict) and not quirks.named_choice:
            name = choice["function"]["name"]
            body["tools"] = [tool for tool in body["tools"] if tool["function"]["name"] == name]
            body["tool_choice"] = "required"
        if request.response_format is not None and not quirks.schemas:
            body["response_format"] = {"type": "json_object"}
            about = f"Answer with a JSON object that matches this JSON schema:\n{json_text(request.response_format)}"
            body["messages"].insert(0, {"role": "system", "content": about})
        for message in body["messages"]:
            self._restore(message)
        return body

    def streamed(self, body: Json) -> Json:
        """Return the body of a request for a streamed reply."""
        return super().streamed(body) if self._quirks.stream_options else {**body, "stream": True}

    def read(self, data: Json) -> ParsedReply | None:
        """Parse a whole reply; ``None`` if it has no content."""
        reply = super().read(data)
        if reply is None:
            return None
        choice = data["choices"][0]
        reply.finish_reason = _FINISHES.get(choice.get("finish_reason"), reply.finish_reason)
        self._remember(choice.get("message") or {})
        usage = data.get("usage")
        reply.cost = _reported_cost(usage)
        if reply.usage is not None and not reply.usage.cached_tokens:
            cached = token_count(usage, "prompt_cache_hit_tokens")  # DeepSeek's name
            reply.usage = Usage(reply.usage.input_tokens, reply.usage.output_tokens, cached)
        return reply

    def stream(self) -> CompatibleStream:
        """Return an object that assembles a streamed reply."""
        return CompatibleStream(self._quirks)

    def _remember(self, message: Json) -> None:
        ours = {key: message[key] for key in self._quirks.echo if message.get(key)}
        for call in message.get("tool_calls") or ():
            extra = {key: call[key] for key in self._quirks.echo_calls if call.get(key)}
            if call.get("id") and (ours or extra):
                self._remembered[call["id"]] = ours, extra
        while len(self._remembered) > MAX_REMEMBERED:
            self._remembered.popitem(last=False)

    def _restore(self, message: Json) -> None:
        """Add the vendor's own fields to a message of the history, and shorten its ids."""
        calls: list[Json] = message.get("tool_calls") or []
        found = [self._remembered.get(call["id"], ({}, {})) for call in calls]
        for call, (ours, extra) in zip(calls, found, strict=True):
            message.update(ours)
            call.update(extra)
        if calls and self._quirks.signed_calls and not any(extra for _, extra in found):
            calls[0]["extra_content"] = _UNSIGNED  # the first call of a step carries the signature of all
        if self._quirks.short_ids:
            for call in calls:
                call["id"] = short_id(call["id"])
            if "tool_call_id" in message:
                message["tool_call_id"] = short_id(message["tool_call_id"])


class CompatibleStream(ChatCompletionsStream):
    """Assembles a streamed chat completion with the vendor's own fields."""

    def __init__(self, quirks: Quirks) -> None:
        super().__init__()
        self._quirks = quirks
        self._own: Json = {}
        self._extras: dict[int, Json] = {}

    def add(self, event: Json) -> str:
        """Add one chunk and return the text in it."""
        groq = event.get("x_groq")
        if isinstance(groq, dict) and groq.get("usage"):
            event = {**event, "usage": groq["usage"]}
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            for key in self._quirks.echo:
                if delta.get(key):  # texts and lists arrive in pieces
                    self._own[key] = self._own[key] + delta[key] if key in self._own else delta[key]
        return super().add(event)

    def whole(self) -> Json | None:
        """Return the completion that the chunks make up; ``None`` if it is incomplete."""
        data = super().whole()
        if data is not None:
            message = data["choices"][0]["message"]
            message.update(self._own)
            calls = sorted(self._calls, key=lambda call: call.index)
            for call, fragments in zip(message["tool_calls"], calls, strict=True):
                call.update(self._extras.get(id(fragments), {}))
        return data

    def _fragments(self, part: Json) -> Any:
        call = super()._fragments(part)
        extra = {key: part[key] for key in self._quirks.echo_calls if part.get(key)}
        if extra:
            self._extras.setdefault(id(call), {}).update(extra)
        return call


def short_id(call_id: str) -> str:
    """Convert a call id to nine letters and digits, which is the only form that Mistral accepts."""
    if len(call_id) == 9 and call_id.isascii() and call_id.isalnum():
        return call_id
    return sha256(call_id.encode("utf-8", "replace")).hexdigest()[:9]


def choice_errors(data: Json) -> Iterator[Any]:
    """Return the errors that a router reports in the choices of a reply, although its HTTP status is a success."""
    choices = data.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and choice.get("error"):
            yield choice["error"]


def _reported_cost(usage: Any) -> float | None:
    """Return the cost in USD that the server reports, as OpenRouter does; ``None`` if it reports none."""
    cost: Any = usage.get("cost") if isinstance(usage, dict) else None
    return float(cost) if is_number(cost) and isfinite(cost) and cost >= 0 else None
