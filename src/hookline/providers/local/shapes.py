"""JSON schemas that can hold a model while it writes.

llama.cpp drops the whole constraint, without a word, for one keyword it does not know. So only what it surely knows is
kept; what is lost makes a schema wider, and the tool's own validation still judges the arguments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from math import ceil, floor
from typing import Any

from ..._base.text import is_number
from ..._kernel.values import ToolSpec
from ..schemas import parameters_of

TOOL, ARGUMENTS, ANSWER = "tool", "arguments", "answer"

_TYPES = frozenset(("string", "number", "integer", "boolean", "null", "array", "object"))
_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"))
_LIMITS = {
    "string": ("minLength", "maxLength"),
    "array": ("minItems", "maxItems"),
    "integer": ("minimum", "maximum"),
    "number": ("minimum", "maximum"),
}
_LONGEST, _LEAST, _LARGEST = 1000, 1e-9, 1e15  # beyond these, a grammar is too large to be made
_DEEPEST = 6
_SAME_REFERENCE = 2

_BLANK = repeat(("...", 1))

# One way to write each value: a small model that may choose its white space wanders off in it.
_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def reply_shape(
    tools: tuple[ToolSpec, ...], *, answer: Mapping[str, Any] | None = None, may_answer: bool = True
) -> dict[str, Any]:
    """One branch for each tool, ``{"tool": ..., "arguments": ...}``, and one for the final ``{"answer": ...}``."""
    branches = [_closed({TOOL: {"const": tool.name}, ARGUMENTS: plain_shape(arguments_of(tool))}) for tool in tools]
    if may_answer:
        branches.append(_closed({ANSWER: {"type": "string"} if answer is None else plain_shape(answer)}))
    return {"anyOf": branches, "x-guidance": _LAYOUT}


def arguments_of(tool: ToolSpec) -> dict[str, Any]:
    """The schema of a tool's arguments: an object, whatever else is said of it."""
    said = ("type", "default", "examples", "enum", "const")
    return {**{key: value for key, value in parameters_of(tool).items() if key not in said}, "type": "object"}


def text_shape(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The shape of a whole reply that must fit a schema."""
    return {**plain_shape(schema), "x-guidance": _LAYOUT}


def plain_shape(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema with nothing in it but what llama.cpp surely knows, references put in place."""
    return _plain(schema, schema, _DEEPEST)


def example(schema: Any, fill: Iterator[tuple[str, int]] = _BLANK) -> Any:
    """A value of this shape, to show a model what one looks like; its texts and numbers are taken from ``fill``."""
    return _example(schema, schema, _DEEPEST, fill)


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _resolved(schema: Any, root: Any, within: tuple[str, ...]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """The schema that a reference stands for, and the references it is within; of one alternative, that one.

    A reference within itself is followed only so often: each time, the schema could grow by a factor.
    """
    while isinstance(schema, Mapping):
        reference, only = schema.get("$ref"), _list(schema, "allOf")
        if isinstance(reference, str):
            if within.count(reference) >= _SAME_REFERENCE:
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
    """The limits that mean something for this type, if there is a value between them that can be written."""
    given = {name: schema[name] for name in _LIMITS.get(kind, ()) if is_number(schema.get(name))}
    if kind in ("string", "array"):
        given = {name: value for name, value in given.items() if 0 <= value <= _LONGEST}
    else:
        given = {name: value for name, value in given.items() if value == 0 or _LEAST <= abs(value) <= _LARGEST}
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
