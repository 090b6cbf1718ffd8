"""Tools for a model that was never taught any: it is shown examples, and can only write what parses.

Each tool is shown as a short exchange: its description as a request, a call, a result, an answer. A small model copies
what it has just seen far better than it follows instructions, and so it also learns to answer once it has a result.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import cycle, repeat
from typing import Any

import msgspec

from ..._base.frozen import json_text, scrub, thaw
from ..._kernel.payloads import ModelRequest
from ..._kernel.values import Message, ToolCall, ToolSpec
from ..dialects.chat import Chat, ChatStream
from ..wire import Json, Reply, ToolNames
from .shapes import ANSWER, ARGUMENTS, TOOL, arguments_of, example, reply_shape, text_shape

# Where the request does not say otherwise. A small model does not always find the end of a text.
_CALLING: dict[str, Any] = {"max_tokens": 256, "temperature": 0.0, "dry_multiplier": 0.8, "dry_allowed_length": 24}
_TALKING: dict[str, Any] = {"max_tokens": 512, "temperature": 0.2, "top_p": 0.9, "repeat_penalty": 1.1}

_RESULTS = ("It is done.", "Yes, it is there.", "Red and blue.")
"""What tools give in the examples. Sentences, answered as they are, teach to pass results on; several, so that none
of them is learnt by heart."""

_FILL = (("garden", 3), ("silver", 14), ("Monday", 27), ("Alice", 60), ("bread", 8), ("music", 45), ("north", 12))
"""What the examples are about: each time something else, or a model learns to write that and not what it was told."""

_ANSWER_KEY = re.compile(rf'\s*\{{\s*"{ANSWER}"\s*:\s*')
_ESCAPE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}(?:\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?=[^\\]|\\[^u]|\\u(?:[^dD]|[dD][^c-fC-F])))"
    r"|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\[^u]"
)  # a half of a pair is known to be alone only by what follows
_NAMED = re.compile(rf'\s*\{{\s*"{TOOL}"\s*:\s*"((?:[^"\\]|\\.)*)"(?:\s*,\s*"{ARGUMENTS}"\s*:\s*(.*))?', re.DOTALL)


class Constrained(Chat):
    """Chat completions with a grammar in place of ``tools``, for one request."""

    def __init__(self, request: ModelRequest) -> None:
        super().__init__("max_tokens")
        choice = request.tool_choice
        known = {tool.name: tool for tool in request.tools}
        self._tools = (known[choice],) if choice in known else () if choice == "none" else request.tools
        self._may_answer = choice not in known and choice != "required"
        self._format = request.response_format

    def body(self, request: ModelRequest, model: str, names: ToolNames) -> Json:
        """The request, as a model without tools can read it."""
        if not self._tools:
            params = {**_TALKING, **request.params}
            shape = None if self._format is None else text_shape(self._format)
            messages = [_as_text(message) for message in request.messages]
            return super().body(_bare(messages, params, shape), model, names)
        system = [message.content for message in request.messages if message.role == "system"]
        rest = [_as_turn(message) for message in request.messages if message.role != "system"]
        head = Message("system", " ".join([*filter(None, system), "Reply in JSON."]))
        shape = reply_shape(self._tools, answer=self._format, may_answer=self._may_answer)
        params = {**_CALLING, **request.params}
        lessons = map(_lesson, self._tools, cycle(_RESULTS), repeat(self._format), repeat(cycle(_FILL)))
        shown = [message for lesson in lessons for message in lesson]
        return super().body(_bare([head, *shown, *rest], params, shape), model, names)

    def read(self, data: Json) -> Reply | None:
        """What the reply says: a call if it names a tool, else its answer."""
        reply = super().read(data)
        if reply is None or not self._tools:
            return reply
        call = _call_in(reply.content)
        if call is not None:
            reply.content, reply.tool_calls = "", [call]
            reply.finish_reason = "tool_calls" if call.raw is None else reply.finish_reason
        elif self._format is None:
            begun = reply.content.lstrip().startswith("{")
            reply.content = AnswerReader().add(reply.content) if begun else reply.content
        else:
            reply.content = _answer_in(reply.content)
        return reply

    def _reply_schema(self, schema: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
        return schema, False  # llama.cpp keeps to any schema, and knows limits that strict ones may not have

    def stream(self) -> ChatStream:
        """Puts a streamed reply together, and shows of it only the answer."""
        if not self._tools:
            return ChatStream()
        return _AnswerStream(AnswerReader() if self._format is None else None)


class _AnswerStream(ChatStream):
    def __init__(self, reader: AnswerReader | None) -> None:
        super().__init__()
        self._reader = reader

    def add(self, event: Json) -> str:
        text = super().add(event)
        return self._reader.add(text) if self._reader is not None else ""


class AnswerReader:
    """Reads the text of ``{"answer": "..."}`` while it is being written."""

    def __init__(self) -> None:
        self._raw, self._at = "", -1

    def add(self, piece: str) -> str:
        """Take in a piece of JSON; gives the text in it that is new."""
        self._raw += piece
        if self._at < 0:
            begun = _ANSWER_KEY.match(self._raw)
            if begun is None or not self._raw.startswith('"', begun.end()):
                return ""
            self._at = begun.end() + 1
        text = ""
        while self._at < len(self._raw) and self._raw[self._at] != '"':
            letter = self._raw[self._at]
            if letter == "\\":
                escape = _ESCAPE.match(self._raw, self._at)
                if escape is None:
                    break  # the rest of it is still to come
                letter = escape[0]
            text += _unescaped(letter) if len(letter) > 1 else letter
            self._at += len(letter)
        return text


def _unescaped(escape: str) -> str:
    try:
        return str(scrub(json.loads(f'"{escape}"')))
    except ValueError:
        return escape


def _bare(messages: list[Message], params: dict[str, Any], shape: Any) -> ModelRequest:
    return ModelRequest(messages, params=params, response_format=shape)


def _as_text(message: Message) -> Message:
    """Calls and results as they look in the examples."""
    if message.role == "tool":
        return Message("user", f"Result: {'error: ' if message.is_error else ''}{message.content}")
    if not message.tool_calls:
        return Message(message.role, message.content)
    calls = [_written({TOOL: call.name, ARGUMENTS: thaw(call.arguments)}) for call in message.tool_calls]
    return Message("assistant", "\n".join([*filter(None, [message.content]), *calls]))


def _as_turn(message: Message) -> Message:
    """A message as it looks in the lessons: small models follow the marks more than the meaning."""
    return _request(message.content) if message.role == "user" else _as_text(message)


def _request(text: str) -> Message:
    return Message("user", f"Request: {text}")


def _lesson(tool: ToolSpec, result: str, answer: Any, fill: Iterator[tuple[str, int]]) -> list[Message]:
    made = example(arguments_of(tool), fill)
    arguments = made if isinstance(made, dict) else {}
    reply = result if answer is None else example(answer)
    wish = re.split(r"\.(?:\s|$)|\n", tool.description.strip())[0] or tool.name.replace("_", " ")
    values = [value if isinstance(value, str) else _written(value) for value in arguments.values()]
    return [
        _request(f"{wish}: {', '.join(values)}" if values else wish),
        Message("assistant", _written({TOOL: tool.name, ARGUMENTS: arguments})),
        Message("user", f"Result: {result}"),
        Message("assistant", _written({ANSWER: reply})),
    ]


def _written(value: Any) -> str:
    """JSON with the white space that the grammar lets a model write."""
    return json.dumps(value, ensure_ascii=False)


def _call_in(text: str) -> ToolCall | None:
    """The call that a reply makes; one that was cut off keeps what there is of its arguments in ``raw``."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        cut = _NAMED.match(text)
        return None if cut is None else ToolCall("", _unescaped(cut[1]), cut[2] or text)
    if isinstance(value, dict) and isinstance(value.get(TOOL), str):
        return ToolCall("", value[TOOL], value.get(ARGUMENTS, {}))
    return None


def _answer_in(text: str) -> str:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        cut = _ANSWER_KEY.match(text)
        return text if cut is None else text[cut.end() :]
    return json_text(value[ANSWER]) if isinstance(value, dict) and ANSWER in value else text
