"""JSON schemas for constrained decoding.

llama.cpp silently drops the whole constraint if a schema has a keyword that it does not know. So only keywords that it
surely knows are kept. That makes a schema wider, and the tool's own validation still checks the arguments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from math import ceil, floor
from typing import Any

from ..._base.text import is_number
from ..._kernel.values import ToolSpec
from ..apis.common import parameters_schema

TOOL, ARGUMENTS, ANSWER = "tool", "arguments", "answer"

_TYPES = frozenset(("string", "number", "integer", "boolean", "null", "array", "object"))
_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"))
_LIMITS = {
    "string": ("minLength", "maxLength"),
    "array": ("minItems", "maxItems"),
    "integer": ("minimum", "maximum"),
    "number": ("minimum", "maximum"),
}
_MAX_LENGTH, _MIN_NUMBER, _MAX_NUMBER = 1000, 1e-9, 1e15  # beyond these limits the grammar becomes too large
_MAX_DEPTH = 6
_MAX_RECURSION = 2

_BLANK = repeat(("...", 1))

# There is one way to write each value, because a small model that may choose its whitespace gets lost in it.
LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def reply_schema(
    tools: tuple[ToolSpec, ...], *, answer: Mapping[str, Any] | None = None, may_answer: bool = True
) -> dict[str, Any]:
    """Return one branch for each tool, ``{"tool": ..., "arguments": ...}``, and one for ``{"answer": ...}``."""
    branches = [
        _closed({TOOL: {"const": tool.name}, ARGUMENTS: simple_schema(arguments_schema(tool))}) for tool in tools
    ]
    if may_answer:
        branches.append(_closed({ANSWER: {"type": "string"} if answer is None else simple_schema(answer)}))
    return {"anyOf": branches, "x-guidance": LAYOUT}


def arguments_schema(tool: ToolSpec) -> dict[str, Any]:
    """Return the schema of a tool's arguments, which is always an object."""
    replaced = ("type", "default", "examples", "enum", "const")
    return {**{key: value for key, value in parameters_schema(tool).items() if key not in replaced}, "type": "object"}


def first_sentence(tool: ToolSpec) -> str:
    """Return the first sentence of a tool's description, or its name."""
    return re.split(r"\.(?:\s|$)|\n", tool.description.strip())[0] or tool.name.replace("_", " ")


def text_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a whole reply."""
    return {**simple_schema(schema), "x-guidance": LAYOUT}


def simple_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with only the keywords that llama.cpp surely knows, and with references resolved."""
    return _plain(schema, schema, _MAX_DEPTH)


def example(schema: Any, fill: Iterator[tuple[str, int]] = _BLANK) -> Any:
    """Return an example value for a schema. Its texts and numbers are taken from ``fill``."""
    return _example(schema, schema, _MAX_DEPTH, fill)


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _resolved(schema: Any, root: Any, within: tuple[str, ...]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Resolve a reference, or an ``allOf`` with one alternative. Return the schema and the references around it.

    Recursive references are followed only a few times, because each time the schema may grow by a factor.
    """
    while isinstance(schema, Mapping):
        reference, only = schema.get("$ref"), _list(schema, "allOf")
        if isinstance(reference, str):
            if within.count(reference) >= _MAX_RECURSION:
                return {}, within
            within, schema = (*within, reference), _found(reference, root)
        elif len(only) == 1:
            schema = only[0]
        else:
            return schema, within
    return {}, within


def _found(reference: str, root: Any) -> Any:
    for part in reference.removeprefix("#").strip("/").split("/"):
        if part:
            root = root.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(root, Mapping) else None
    return root


def _plain(schema: Any, root: Any, depth: int, within: tuple[str, ...] = ()) -> dict[str, Any]:
    schema, within = _resolved(schema, root, within)
    if depth <= 0 or not schema:
        return {}
    if "const" in schema:
        return {"const": schema["const"]}
    if values := _list(schema, "enum"):
        return {"enum": list(values)}
    if choices := _list(schema, "anyOf") or _list(schema, "oneOf"):
        return {"anyOf": [_plain(choice, root, depth - 1, within) for choice in choices]}
    if kinds := _list(schema, "type"):
        return {"anyOf": [_plain({**schema, "type": kind}, root, depth - 1, within) for kind in kinds]}
    kind = schema.get("type")
    if not (isinstance(kind, str) and kind in _TYPES):
        return {}
    kept: dict[str, Any] = {"type": kind}
    form = schema.get("format")
    if kind == "string" and isinstance(form, str) and form in _FORMATS:
        return {**kept, "format": form}
    kept |= _limits(schema, kind)
    if kind == "array":
        kept["items"] = _plain(schema.get("items"), root, depth - 1, within)
    if kind == "object":
        properties = _map(schema, "properties")
        more = schema.get("additionalProperties", "properties" not in schema)
        kept["properties"] = {name: _plain(value, root, depth - 1, within) for name, value in properties.items()}
        kept["required"] = [name for name in properties if name in _list(schema, "required")]
        kept["additionalProperties"] = (
            _plain(more, root, depth - 1, within) if isinstance(more, Mapping) else bool(more)
        )
    return kept


def _limits(schema: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return the limits that apply to this type, if some value satisfies them."""
    given = {name: schema[name] for name in _LIMITS.get(kind, ()) if is_number(schema.get(name))}
    if kind in ("string", "array"):
        given = {name: value for name, value in given.items() if 0 <= value <= _MAX_LENGTH}
    else:
        given = {name: value for name, value in given.items() if value == 0 or _MIN_NUMBER <= abs(value) <= _MAX_NUMBER}
    if kind != "number":
        given = {name: ceil(value) if name.startswith("min") else floor(value) for name, value in given.items()}
    return given if list(given.values()) == sorted(given.values()) else {}


def _list(schema: Mapping[str, Any], key: str) -> Sequence[Any]:
    value = schema.get(key)
    return value if isinstance(value, (list, tuple)) else ()


def _map(schema: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = schema.get(key)
    return value if isinstance(value, Mapping) else {}


def _example(schema: Any, root: Any, depth: int, fill: Iterator[tuple[str, int]], within: tuple[str, ...] = ()) -> Any:
    schema, within = _resolved(schema, root, within)
    for key in ("examples", "enum"):
        if values := _list(schema, key):
            return values[0]
    for key in ("const", "default"):
        if schema.get(key) is not None:
            return schema[key]
    choices = _list(schema, "anyOf") or _list(schema, "oneOf")
    if choices and depth > 0:
        return _example(choices[0], root, depth - 1, fill, within)
    match schema.get("type"):
        case "number" | "integer":
            number = next(fill)[1]
            return schema.get("minimum", number)
        case "boolean":
            return True
        case "array" if depth > 0:
            return [_example(schema.get("items"), root, depth - 1, fill, within)]
        case "object" if depth > 0:
            properties = _map(schema, "properties")
            needed = _list(schema, "required") or ()
            shown = [name for name in properties if name in needed]
            return {name: _example(properties[name], root, depth - 1, fill, within) for name in shown}
        case "null":
            return None
    return next(fill)[0]
