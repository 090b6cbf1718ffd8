"""JSON schemas that can hold a model while it writes.

llama.cpp drops the whole constraint, without a word, for one keyword it does not know. So only what it surely knows is
kept; what is lost makes a schema wider, and the tool's own validation still judges the arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...kernel.values import ToolSpec
from ..schemas import parameters_of

TOOL, ARGUMENTS, ANSWER = "tool", "arguments", "answer"

_TYPES = frozenset(("string", "number", "integer", "boolean", "null", "array", "object"))
_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"))
_RANGES = (("minLength", "maxLength"), ("minItems", "maxItems"), ("minimum", "maximum"))
_DEEPEST = 6

# One way to write each value: a small model that may choose its white space wanders off in it.
_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def reply_shape(
    tools: tuple[ToolSpec, ...], *, answer: Mapping[str, Any] | None = None, may_answer: bool = True
) -> dict[str, Any]:
    """One branch for each tool, ``{"tool": ..., "arguments": ...}``, and one for the final ``{"answer": ...}``."""
    branches = [_closed({TOOL: {"const": tool.name}, ARGUMENTS: plain_shape(parameters_of(tool))}) for tool in tools]
    if may_answer:
        branches.append(_closed({ANSWER: {"type": "string"} if answer is None else plain_shape(answer)}))
    return {"anyOf": branches, "x-guidance": _LAYOUT}


def text_shape(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The shape of a whole reply that must fit a schema."""
    return {**plain_shape(schema), "x-guidance": _LAYOUT}


def plain_shape(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema with nothing in it but what llama.cpp surely knows, references put in place."""
    return _plain(schema, schema, _DEEPEST)


def example(schema: Any) -> Any:
    """A value of this shape, to show a model what one looks like."""
    return _example(schema, schema, _DEEPEST)


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _resolved(schema: Any, root: Any, depth: int) -> Mapping[str, Any]:
    """The schema that a reference stands for; of alternatives for all cases, the only one there is."""
    while isinstance(schema, Mapping) and depth > 0:
        depth -= 1
        if isinstance(schema.get("$ref"), str):
            found: Any = root
            for part in schema["$ref"].lstrip("#/").split("/"):
                name = part.replace("~1", "/").replace("~0", "~")
                found = found.get(name) if isinstance(found, Mapping) else None
            schema = found
        elif "allOf" in schema and len(schema["allOf"]) == 1:
            schema = schema["allOf"][0]
        else:
            return schema if depth else {}
    return {}


def _plain(schema: Any, root: Any, depth: int) -> dict[str, Any]:
    schema = _resolved(schema, root, depth)
    if depth <= 0 or not schema:
        return {}
    if "const" in schema:
        return {"const": schema["const"]}
    if schema.get("enum"):
        return {"enum": list(schema["enum"])}
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        return {"anyOf": [_plain(choice, root, depth - 1) for choice in choices]}
    kinds = schema.get("type")
    if isinstance(kinds, (list, tuple)):
        return {"anyOf": [_plain({**schema, "type": kind}, root, depth - 1) for kind in kinds]}
    if kinds not in _TYPES:
        return {}
    kept: dict[str, Any] = {"type": kinds}
    for low, high in _RANGES:
        if schema.get(low, 0) <= schema.get(high, schema.get(low, 0)):
            kept |= {key: schema[key] for key in (low, high) if key in schema}
    if schema.get("format") in _FORMATS:
        kept["format"] = schema["format"]
    if kinds == "array":
        kept["items"] = _plain(schema.get("items", {}), root, depth - 1)
    if kinds == "object":
        properties = schema.get("properties", {})
        kept["properties"] = {name: _plain(value, root, depth - 1) for name, value in properties.items()}
        kept["required"] = [name for name in schema.get("required", ()) if name in properties]
        more = schema.get("additionalProperties", not properties)
        kept["additionalProperties"] = _plain(more, root, depth - 1) if isinstance(more, Mapping) else bool(more)
    return kept


def _example(schema: Any, root: Any, depth: int) -> Any:
    schema = _resolved(schema, root, depth)
    for key in ("examples", "enum"):
        if schema.get(key):
            return schema[key][0]
    for key in ("const", "default"):
        if schema.get(key) is not None:
            return schema[key]
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices and depth > 0:
        return _example(choices[0], root, depth - 1)
    match schema.get("type"):
        case "number" | "integer":
            return schema.get("minimum", 1)
        case "boolean":
            return True
        case "array" if depth > 0:
            return [_example(schema.get("items", {}), root, depth - 1)]
        case "object" if depth > 0:
            properties = schema.get("properties", {})
            needed = schema.get("required") or list(properties)[:1]
            return {name: _example(properties[name], root, depth - 1) for name in needed if name in properties}
        case "null":
            return None
    return "..."
