"""JSON schemas, as providers want them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._kernel.values import ToolSpec

_NOT_STRICT = frozenset(
    ("allOf", "default", "dependentRequired", "dependentSchemas", "else", "if", "not", "oneOf", "patternProperties",
     "then")
)  # fmt: skip


def parameters_of(tool: ToolSpec) -> Mapping[str, Any]:
    """A tool's schema; one for no parameters if it has none."""
    return tool.parameters or {"type": "object", "properties": {}}


def is_strict(schema: Mapping[str, Any]) -> bool:
    """Whether a schema keeps OpenAI's rules for strict ones.

    It is an object, every object in it is closed, every property is required, and it has none of the keywords
    that strict mode refuses.
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
    named = (properties, schema.get("$defs", {}))
    rest = (value for key, value in schema.items() if key not in ("properties", "$defs", "enum", "const"))
    return all(_keeps_rules(value) for group in named for value in group.values()) and all(map(_keeps_rules, rest))
