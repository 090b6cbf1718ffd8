"""Find tool calls that a small model wrote as text instead of in the form of its chat template."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from ..._kernel.payloads import ModelRequest
from ..._kernel.values import ToolCall, ToolSpec
from ..apis.chat_completions import ChatCompletionsApi, ChatCompletionsStream
from ..apis.common import Json, ParsedReply, ToolNames
from .grammar_schemas import text_schema

_TAGGED = re.compile(r"<(tool_call|function_call)>\s*(.*?)\s*(?:</\1>|\Z)", re.DOTALL)
_FENCED = re.compile(r"```[a-zA-Z_]*[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
_CODE = re.compile(r"[\[\s]*([\w.]+)\s*\(")
_NAMES, _ARGUMENTS = ("name", "tool", "tool_name", "function"), ("arguments", "parameters", "args", "input")


class TextCallsApi(ChatCompletionsApi):
    """Chat completions with the model's own tool template, which also find calls in the text. Used for one request."""

    def __init__(self, request: ModelRequest, names: ToolNames) -> None:
        super().__init__("max_tokens")
        callable_now = () if request.tool_choice == "none" else request.tools
        shown = [tool.replace(name=names.encode(tool.name)) for tool in callable_now]
        self._tools = (*callable_now, *shown)

    def body(self, request: ModelRequest, model: str, names: ToolNames) -> Json:
        """Return the body of a request, with a schema that llama.cpp supports."""
        if request.response_format is not None:
            request = request.replace(response_format=text_schema(request.response_format))
        return super().body(request, model, names)

    def _response_schema(self, schema: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
        return schema, False  # llama.cpp enforces any schema, including keywords that strict mode rejects

    def stream(self) -> ChatCompletionsStream:
        """Return an object that assembles a streamed reply, and hides text that may be a call."""
        return _HoldingStream(tool.name for tool in self._tools) if self._tools else ChatCompletionsStream()

    def read(self, data: Json) -> ParsedReply | None:
        """Parse a whole reply, including calls in its text."""
        reply = super().read(data)
        if reply is not None and self._tools and not reply.tool_calls:
            reply.content, calls = find_calls(reply.content, self._tools)
            if calls:
                reply.tool_calls, reply.finish_reason = calls, "tool_calls"
        return reply


class _HoldingStream(ChatCompletionsStream):
    """A stream that hides the text of a reply that starts like a call."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__()
        self._begins = tuple(names)
        self._seen, self._shown = "", False

    def add(self, event: Json) -> str:
        text = super().add(event)
        if self._shown:
            return text
        self._seen += text
        start = self._seen.lstrip()
        if not start or start[0] in "<`{[" or any(n.startswith(start) or start.startswith(n) for n in self._begins):
            return ""
        self._shown = True
        return self._seen


def find_calls(text: str, tools: Iterable[ToolSpec]) -> tuple[str, list[ToolCall]]:
    """Return the text without the calls in it, and the calls.

    A call is a ``<tool_call>`` tag, a fenced block, a whole line or the whole text, containing JSON with a name and
    arguments, or ``name(key=value)``. Only names of existing tools count, so prose and other code stay text.
    """
    known = {tool.name: tool for tool in tools}
    found: list[tuple[int, int, list[ToolCall]]] = []
    for begin, end, inside in _candidates(text):
        if not any(begin < other_end and end > other for other, other_end, _ in found):
            calls = list(_calls_in(inside, known))
            if calls:
                found.append((begin, end, calls))
    left = text
    for begin, end, _ in sorted(found, reverse=True, key=lambda found: found[0]):
        left = left[:begin] + left[end:]
    calls = [call for _, _, some in sorted(found, key=lambda found: found[0]) for call in some]
    return (left.strip(), calls) if calls else (text, [])


def _candidates(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield the parts of a text that may be a call, from the most to the least certain form."""
    for match in _TAGGED.finditer(text):
        yield match.start(), match.end(), match[2]
    for match in _FENCED.finditer(text):
        yield match.start(), match.end(), match[1]
    yield 0, len(text), text
    for match in re.finditer(r"[^\n]+", text):
        yield match.start(), match.end(), match[0]


def _calls_in(text: str, known: Mapping[str, ToolSpec]) -> Iterator[ToolCall]:
    text = text.strip().strip("`").strip()
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        yield from _from_code(text, known)
        return
    calls = [_from_json(item, known) for item in (value if isinstance(value, list) else [value])]
    if None not in calls:
        yield from filter(None, calls)


def _from_json(item: Any, known: Mapping[str, ToolSpec]) -> ToolCall | None:
    if not isinstance(item, dict):
        return None
    if isinstance(item.get("function"), dict):  # the format of OpenAI's API
        item = item["function"]
    name = next((item[key] for key in _NAMES if isinstance(item.get(key), str)), "")
    if name not in known:
        return None
    arguments: Any = next((item[key] for key in _ARGUMENTS if key in item), {})
    return ToolCall("", name, arguments)


def _from_code(text: str, known: Mapping[str, ToolSpec]) -> Iterator[ToolCall]:
    """Yield the calls in ``name(key=value)`` form, also in a list or on several lines, with literal values only."""
    begins = _CODE.match(text)
    if begins is None or begins[1] not in known:
        return
    try:
        body = ast.parse(text.strip("[]") if text.startswith("[") else text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    calls = []
    for statement in body:
        parts = statement.value if isinstance(statement, ast.Expr) else None
        for part in parts.elts if isinstance(parts, ast.Tuple) else [parts]:
            call = _from_node(part, known)
            if call is None:
                return
            calls.append(call)
    yield from calls


def _from_node(node: ast.AST | None, known: Mapping[str, ToolSpec]) -> ToolCall | None:
    if not isinstance(node, ast.Call):
        return None
    try:
        name = ast.unparse(node.func)
        if name not in known:
            return None
        order = list(known[name].parameters.get("properties", {}))
        values = [ast.literal_eval(argument) for argument in node.args]
        named = {word.arg: ast.literal_eval(word.value) for word in node.keywords}
    except (ValueError, TypeError, RecursionError):
        return None
    call = ToolCall("", name, {**dict(zip(order, values, strict=False)), **named})
    return call if call.raw is None and len(values) <= len(order) else None
