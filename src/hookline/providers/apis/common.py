"""Shared parts of the vendors' APIs: replies, streams, tool names and JSON schemas."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, Protocol

import msgspec

from ..._base.frozen import json_text
from ..._kernel.payloads import ModelRequest
from ..._kernel.values import ToolCall, ToolSpec, Usage

Json = dict[str, Any]

_NAME_LENGTH = 64
_MOST = 2**53  # far more than any real count, and still exact in every JSON parser
_UNFIT = re.compile(r"[^a-zA-Z0-9_-]")


class ParsedReply(msgspec.Struct):
    """A parsed reply. Tool names are still as the API sent them.

    ``usage`` and ``cost``, in USD, are ``None`` if the server did not report them. ``cache_writes`` are the tokens
    written to the vendor's cache, by the names that ``genai-prices`` uses.
    """

    content: str
    tool_calls: list[ToolCall]
    finish_reason: str
    model: str
    usage: Usage | None
    cache_writes: dict[str, int] = {}
    cost: float | None = None

    def __post_init__(self) -> None:
        texts = [self.content, self.model, *(text for call in self.tool_calls for text in (call.id, call.name))]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("the reply has another type where a string is expected")


class Stream(Protocol):
    """A reply that arrives in pieces."""

    def add(self, event: Json) -> str:
        """Add one event and return the text in it."""
        ...

    def whole(self) -> Json | None:
        """Return the reply as the API sends it without streaming; ``None`` if it is incomplete."""
        ...


class ModelApi(Protocol):
    """One API of a vendor."""

    @property
    def path(self) -> str:
        """The path of the endpoint, below the base URL."""
        ...

    @property
    def attachment_types(self) -> tuple[str, ...]:
        """The media types of attachments that the API takes."""
        ...

    @property
    def url_types(self) -> tuple[str, ...]:
        """Those that it takes at a URL too."""
        ...

    def body(self, request: ModelRequest, model: str, names: ToolNames) -> Json:
        """Return the body of a request."""
        ...

    def streamed(self, body: Json) -> Json:
        """Return the body of a request for a streamed reply."""
        ...

    def read(self, data: Json) -> ParsedReply | None:
        """Parse a whole reply; ``None`` if it has no content."""
        ...

    def stream(self) -> Stream:
        """Return an object that assembles a streamed reply."""
        ...


class ToolNames:
    """Converts tool names to names that the APIs allow (``[a-zA-Z0-9_-]``, at most 64 characters), and back.

    ``files.read`` is sent as ``files_read``. If two names would become equal, or a name is too long, a part of the
    name's digest is appended.
    """

    def __init__(self, names: Iterable[str]) -> None:
        known = dict.fromkeys(names)
        self._ours: dict[str, str] = {name: name for name in known if is_valid_name(name)}
        self._theirs: dict[str, str] = dict(self._ours)
        for name in known:
            if name not in self._theirs:
                self._theirs[name] = fitting = self._fit(name)
                self._ours[fitting] = name

    @classmethod
    def from_request(cls, request: ModelRequest) -> ToolNames:
        """Collect the names in a request: of its tools, then of the calls in its history."""
        called = (call.name for message in request.messages for call in message.tool_calls)
        return cls([*(tool.name for tool in request.tools), *called])

    def encode(self, name: str) -> str:
        """Return the name to send."""
        return self._theirs.get(name) or self._fit(name)

    def decode(self, name: str) -> str:
        """Return the tool name for a name in a reply."""
        return self._ours.get(name, name)

    def _fit(self, name: str) -> str:
        fitting = _UNFIT.sub("_", name) or "_"
        if len(fitting) <= _NAME_LENGTH and fitting not in self._ours:
            return fitting
        return f"{fitting[: _NAME_LENGTH - 9]}_{sha256(name.encode('utf-8', 'replace')).hexdigest()[:8]}"


def is_valid_name(name: str) -> bool:
    """Return whether the APIs allow this name or id."""
    return 0 < len(name) <= _NAME_LENGTH and not _UNFIT.search(name)


def valid_id(call_id: str) -> str:
    """Convert a call id of any vendor to one that every API allows."""
    return _UNFIT.sub("_", call_id)


def arguments_text(call: ToolCall) -> str:
    """Return a call's arguments as JSON. Malformed arguments are sent as an empty object, which servers can parse."""
    return json_text(call.arguments)


def text_of(content: Any) -> str:
    """Return the text of a message content: a string, a list of parts, or nothing."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    return "".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))


def token_count(usage: Any, *keys: str) -> int:
    """Return the number of tokens at these keys; 0 if the server sent anything else there."""
    for key in keys:
        usage = usage.get(key) if isinstance(usage, dict) else None
    try:
        number = int(usage or 0)
    except (TypeError, ValueError, OverflowError):
        return 0
    return number if 0 <= number <= _MOST else 0


def final_reason(reason: str, calls: list[ToolCall], refused: bool) -> str:
    """Return one of :data:`~hookline.models.FINISH_REASONS`, given the content of the reply."""
    if refused:
        return "content_filter"
    return "tool_calls" if calls and reason == "stop" else reason


_NOT_STRICT = frozenset(
    (
        "allOf",
        "default",
        "dependentRequired",
        "dependentSchemas",
        "else",
        "if",
        "not",
        "oneOf",
        "patternProperties",
        "prefixItems",
        "then",
    )
)
_TYPED = frozenset(("type", "anyOf", "enum", "const", "$ref"))
_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"))
_UNKNOWN = frozenset(("default", "discriminator", "examples", "maxLength", "minLength", "uniqueItems"))
"""Keywords that strict mode rejects. They can be dropped because Hookline validates the reply as well."""


def parameters_schema(tool: ToolSpec) -> Mapping[str, Any]:
    """Return a tool's schema; an empty object schema if it has none."""
    return tool.parameters or {"type": "object", "properties": {}}


def strict_schema(schema: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """Convert a reply schema to OpenAI's strict form if possible. Return the schema and whether it is strict.

    Strict mode guarantees that a reply matches the schema. It requires closed objects and required properties, so a
    schema that does not say so is narrowed; every reply that matches the narrow schema matches the original one. A
    schema that cannot be narrowed, such as an object with unknown keys, is returned unchanged.
    """
    narrow = _to_strict(schema)
    return (narrow, True) if is_strict(narrow) else (schema, False)


def _to_strict(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    if "$ref" in schema and "$defs" not in schema:
        return {"$ref": schema["$ref"]}  # strict mode allows no other keyword beside a reference
    narrow: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _UNKNOWN or (key == "format" and value not in _FORMATS):
            continue
        if key in ("properties", "$defs") and isinstance(value, Mapping):
            narrow[key] = {name: _to_strict(each) for name, each in value.items()}
        elif key in ("anyOf", "oneOf") and isinstance(value, (list, tuple)):
            narrow["anyOf"] = [_to_strict(each) for each in value]
        elif key == "const":
            narrow["enum"] = [value]
        else:
            narrow[key] = _to_strict(value) if key in ("items", "additionalProperties") else value
    if narrow.get("properties"):
        narrow.setdefault("additionalProperties", False)
        narrow["required"] = list(narrow["properties"])
    return narrow


def is_strict(schema: Mapping[str, Any]) -> bool:
    """Return whether a schema follows OpenAI's rules for strict schemas.

    It must be an object; every object in it must be closed, every property required and typed, and it must not contain
    any keyword that strict mode rejects.
    """
    return schema.get("type") == "object" and _follows_rules(schema)


def _follows_rules(schema: Any) -> bool:
    if isinstance(schema, (list, tuple)):
        return all(map(_follows_rules, schema))
    if not isinstance(schema, Mapping):
        return True
    if not _NOT_STRICT.isdisjoint(schema):
        return False
    properties = schema.get("properties", {})
    closed = schema.get("additionalProperties") is False and set(schema.get("required", ())) == set(properties)
    if (schema.get("type") == "object" or properties) and not closed:
        return False
    typed = (*properties.values(), *((schema["items"],) if "items" in schema else ()))
    if any(isinstance(each, Mapping) and _TYPED.isdisjoint(each) for each in typed):
        return False
    named = (properties, schema.get("$defs", {}))
    rest = (value for key, value in schema.items() if key not in ("properties", "$defs", "enum", "const"))
    return all(_follows_rules(value) for group in named for value in group.values()) and all(map(_follows_rules, rest))
