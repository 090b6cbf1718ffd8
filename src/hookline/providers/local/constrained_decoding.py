"""Tool calls for models without tool training: examples to imitate, and a grammar that allows only valid output.

Each tool is shown as a short exchange: its description as a request, a call, a result, an answer. A small model copies
what it has just seen far better than it follows instructions, and so it also learns to answer once it has a result.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, repeat, takewhile
from typing import Any

import msgspec

from ..._base.frozen import json_text, scrub, thaw
from ..._kernel.payloads import ModelRequest
from ..._kernel.values import Message, ToolCall, ToolSpec
from ..apis.chat_completions import ChatCompletionsApi, ChatCompletionsStream
from ..apis.common import Json, ParsedReply, ToolNames
from .grammar_schemas import (
    ANSWER,
    ARGUMENTS,
    TOOL,
    arguments_schema,
    example,
    first_sentence,
    reply_schema,
    text_schema,
)
from .grounding import ConversationWords, Tokenize, call_grammar

# Defaults for parameters that the request does not set. Small models often do not know when to stop.
_TOOL_PARAMS: dict[str, Any] = {"max_tokens": 256, "temperature": 0.0, "dry_multiplier": 0.8, "dry_allowed_length": 24}
_TEXT_PARAMS: dict[str, Any] = {"max_tokens": 512, "temperature": 0.2, "top_p": 0.9, "repeat_penalty": 1.1}

_RESULTS = ("It is done.", "Yes, it is there.", "Red and blue.")
"""Results of tools in the examples. The answer repeats them, so that the model learns to pass results on. There are
several, so that it memorizes none of them."""

_FILL = (("garden", 3), ("silver", 14), ("Monday", 27), ("Alice", 60), ("bread", 8), ("music", 45), ("north", 12))
"""Values for the arguments in the examples. They vary, or the model would repeat them instead of the user's values."""

_ANSWER_KEY = re.compile(rf'\s*\{{\s*"{ANSWER}"\s*:\s*')
_ESCAPE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}(?:\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?=[^\\]|\\[^u]|\\u(?:[^dD]|[dD][^c-fC-F])))"
    r"|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\[^u]"
)  # whether a surrogate is unpaired depends on the characters that follow
_NAMED = re.compile(rf'\s*\{{\s*"{TOOL}"\s*:\s*"((?:[^"\\]|\\.)*)"(?:\s*,\s*"{ARGUMENTS}"\s*:\s*(.*))?', re.DOTALL)


class ConstrainedApi(ChatCompletionsApi):
    """Chat completions with a grammar instead of ``tools``, for one request."""

    def __init__(self, request: ModelRequest) -> None:
        super().__init__("max_tokens")
        choice = request.tool_choice
        known = {tool.name: tool for tool in request.tools}
        self._tools = (known[choice],) if choice in known else () if choice == "none" else request.tools
        self._may_answer = choice not in known and choice != "required"
        self._format = request.response_format

    def body(self, request: ModelRequest, model: str, names: ToolNames) -> Json:
        """Return the body of a request, for a model without tool support."""
        if not self._tools:
            params = {**_TEXT_PARAMS, **request.params}
            shape = None if self._format is None else text_schema(self._format)
            messages = [_as_text(message) for message in request.messages]
            return super().body(_bare(messages, params, shape), model, names)
        system = [message.content for message in request.messages if message.role == "system"]
        rest = [_as_turn(message) for message in request.messages if message.role != "system"]
        head = Message("system", " ".join([*filter(None, system), "Reply in JSON."]))
        params = {**_TOOL_PARAMS, **request.params}
        examples = map(_example_exchange, self._tools, cycle(_RESULTS), repeat(self._format), repeat(cycle(_FILL)))
        shown = [message for exchange in examples for message in exchange]
        return super().body(_bare([head, *shown, *rest], params, self._shape()), model, names)

    def _shape(self) -> dict[str, Any]:
        return reply_schema(self._tools, answer=self._format, may_answer=self._may_answer)

    def read(self, data: Json) -> ParsedReply | None:
        """Parse a reply: a call if it names a tool, else an answer."""
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

    def _response_schema(self, schema: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
        return schema, False  # llama.cpp enforces any schema, including keywords that strict mode rejects

    def stream(self) -> ChatCompletionsStream:
        """Return an object that assembles a streamed reply and shows only the answer in it."""
        if not self._tools:
            return ChatCompletionsStream()
        return _AnswerStream(AnswerReader() if self._format is None else None)


class GroundedApi(ConstrainedApi):
    """Chat completions for one request whose tool, or the decision to call none, is already chosen.

    The arguments are values of the conversation. The prompt contains only the examples that the model needs. With
    ``show_all`` it contains all of them, so that it begins like the previous prompt, and llama.cpp can reuse its cache.
    """

    def __init__(self, request: ModelRequest, call: str | None, tokenize: Tokenize, *, show_all: bool = False) -> None:
        super().__init__(request)
        known = {tool.name: tool for tool in request.tools}
        called = [call] if call is not None else calls_since_asked(request.messages)
        shown = [name for name in known if show_all or name in called]
        self._tools = tuple(known[name] for name in shown)
        self._call = None if call is None else known[call]
        self._tokenize = tokenize

    def body(self, request: ModelRequest, model: str, names: ToolNames) -> Json:
        """Return the body of a request with a grammar for the call or the answer."""
        made = super().body(request, model, names)
        if self._call is not None:
            del made["response_format"]
            made["grammar"] = call_grammar(self._call, ConversationWords(request.messages), self._tokenize)
        return made

    def _shape(self) -> dict[str, Any]:
        return reply_schema((), answer=self._format)


def calls_since_asked(messages: Sequence[Message]) -> list[str]:
    """Return the names of the tools called since the last message of the user."""
    recent = takewhile(lambda message: message.role != "user", reversed(messages))
    return [call.name for message in reversed(list(recent)) for call in message.tool_calls]


def divided(messages: Sequence[Message], parts: Mapping[str, str], call: str) -> list[Message]:
    """Return messages in which the user asks for one call at a time, up to the next call, as in the examples."""
    begin = max(at for at, message in enumerate(messages) if message.role == "user")
    made, asked = list(messages[:begin]), ""
    for message in [*messages[begin + 1 :], None]:
        names = [call] if message is None else [each.name for each in message.tool_calls]
        for part in (parts[name] for name in names if name in parts):
            if part != asked:
                made.append(Message("user", part))
                asked = part
        if message is not None:
            made.append(message)
    return made


def answered_parts(messages: Sequence[Message], parts: Mapping[str, str]) -> list[list[Message]]:
    """Return the messages for the answer to each result since the user asked, as if it were the only one.

    A very small model that sees several results answers with the last one.
    """
    begin = max(at for at, message in enumerate(messages) if message.role == "user")
    made = list[list[Message]]()
    for message in messages[begin + 1 :]:
        if message.tool_calls:
            asked = Message("user", parts.get(message.tool_calls[0].name) or messages[begin].content)
            made.append([*messages[:begin], asked, message])
        elif made:
            made[-1].append(message)
    return made


class _AnswerStream(ChatCompletionsStream):
    def __init__(self, reader: AnswerReader | None) -> None:
        super().__init__()
        self._reader = reader

    def add(self, event: Json) -> str:
        text = super().add(event)
        return self._reader.add(text) if self._reader is not None else ""


class AnswerReader:
    """Extracts the text of ``{"answer": "..."}`` from a stream."""

    def __init__(self) -> None:
        self._raw, self._at = "", -1

    def add(self, piece: str) -> str:
        """Add a piece of JSON and return the new text of the answer."""
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
                    break  # the escape sequence is incomplete
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
    """Return a message with its calls and results in the form of the examples."""
    if message.role == "tool":
        return Message("user", f"Result: {'error: ' if message.is_error else ''}{message.content}")
    if not message.tool_calls:
        return Message(message.role, message.content)
    calls = [_json({TOOL: call.name, ARGUMENTS: thaw(call.arguments)}) for call in message.tool_calls]
    return Message("assistant", "\n".join([*filter(None, [message.content]), *calls]))


def _as_turn(message: Message) -> Message:
    """Return a message in the form of the examples: small models follow the form more than the meaning."""
    return _request(message.content) if message.role == "user" else _as_text(message)


def _request(text: str) -> Message:
    return Message("user", f"Request: {text}")


def _example_exchange(tool: ToolSpec, result: str, answer: Any, fill: Iterator[tuple[str, int]]) -> list[Message]:
    made = example(arguments_schema(tool), fill)
    arguments = made if isinstance(made, dict) else {}
    reply = result if answer is None else example(answer)
    request = first_sentence(tool)
    values = [value if isinstance(value, str) else _json(value) for value in arguments.values()]
    return [
        _request(f"{request}: {', '.join(values)}" if values else request),
        Message("assistant", _json({TOOL: tool.name, ARGUMENTS: arguments})),
        Message("user", f"Result: {result}"),
        Message("assistant", _json({ANSWER: reply})),
    ]


def _json(value: Any) -> str:
    """Return JSON with the whitespace that the grammar allows."""
    return json.dumps(value, ensure_ascii=False)


def _call_in(text: str) -> ToolCall | None:
    """Return the call in a reply. An incomplete call keeps the text of its arguments in ``raw``."""
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
