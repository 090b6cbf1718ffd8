"""JSON schemas, as providers want them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._kernel.values import ToolSpec

_NOT_STRICT = frozenset(
    ("allOf", "default", "dependentRequired", "dependentSchemas", "else", "if", "not", "oneOf", "patternProperties",
     "prefixItems", "then")
)  # fmt: skip
_TYPED = frozenset(("type", "anyOf", "enum", "const", "$ref"))
_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"))
_UNKNOWN = frozenset(("default", "discriminator", "examples", "maxLength", "minLength", "uniqueItems"))
"""Keywords that strict mode refuses, and that a schema can do without: the reply is checked here too."""


def parameters_of(tool: ToolSpec) -> Mapping[str, Any]:
    """A tool's schema; one for no parameters if it has none."""
    return tool.parameters or {"type": "object", "properties": {}}


def reply_schema(schema: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """The schema of a reply as OpenAI wants it, and whether it is strict.

    Strict mode makes the model keep to a schema. It wants every object closed and every property required, so a
    schema that says neither is narrowed; every reply that fits the narrow one fits the schema that was given. What
    cannot be narrowed, such as an object of unknown keys, goes out as it is, not strict.
    """
    narrow = _narrowed(schema)
    return (narrow, True) if is_strict(narrow) else (schema, False)


def _narrowed(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    if "$ref" in schema and "$defs" not in schema:
        return {"$ref": schema["$ref"]}  # strict mode takes nothing beside a reference
    narrow: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _UNKNOWN or (key == "format" and value not in _FORMATS):
            continue
        if key in ("properties", "$defs") and isinstance(value, Mapping):
            narrow[key] = {name: _narrowed(each) for name, each in value.items()}
        elif key in ("anyOf", "oneOf") and isinstance(value, (list, tuple)):
            narrow["anyOf"] = [_narrowed(each) for each in value]
        elif key == "const":
            narrow["enum"] = [value]
        else:
            narrow[key] = _narrowed(value) if key in ("items", "additionalProperties") else value
    if narrow.get("properties"):
        narrow.setdefault("additionalProperties", False)
        narrow["required"] = list(narrow["properties"])
    return narrow


def is_strict(schema: Mapping[str, Any]) -> bool:
    """Whether a schema keeps OpenAI's rules for strict ones.

    It is an object, every object in it is closed, every property is required and has a type, and it has none of the
    keywords that strict mode refuses.
    """
    return schema.get("type") == "object" and _keeps_rules(schema)


def _keeps_rules(schema: Any) -> bool:
    if isinstance(schema, (list, tuple)):
        return all(map(_keeps_rules, schema))
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
    return all(_keeps_rules(value) for group in named for value in group.values()) and all(map(_keeps_rules, rest))
