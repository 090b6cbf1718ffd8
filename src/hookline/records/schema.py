"""The JSON schema of a line of a record, made from the structs of the format and of the payloads.

``schema.json`` beside this module is its output, for programs in other languages::

    python -m hookline.records.schema > src/hookline/records/schema.json
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from inspect import cleandoc
from typing import Any

import msgspec

from .._kernel.points import POINTS, is_fired_by_loop
from . import format as fmt

_LINES = (fmt.HeaderLine, fmt.HooksLine, fmt.RunLine, fmt.EndLine, fmt.LabelLine, fmt.MomentLine)
_PAYLOAD = fmt.MomentLine.__struct_fields__.index("payload")


def record_schema() -> dict[str, Any]:
    """Return the JSON schema of a line: one that is not a moment, or a moment with the payload of its point.

    Example::

        jsonschema.validate(json.loads(line), record_schema())
    """
    payloads = {str(point): point.payload for point in POINTS.values() if is_fired_by_loop(point)}
    types = [*_LINES, *payloads.values()]
    references, definitions = msgspec.json.schema_components(types, ref_template="#/$defs/{name}")
    for each in definitions.values():  # Python before 3.13 keeps the indentation of docstrings
        if "description" in each:
            each["description"] = cleandoc(each["description"])
    *others, moment = references[: len(_LINES)]
    for payload in payloads.values():  # a payload may be incomplete: notes.missing names the fields
        definitions[payload.__name__].pop("required", None)
    by_point = [_then(point, reference) for point, reference in zip(payloads, references[len(_LINES) :], strict=True)]
    other = {"prefixItems": [{"enum": list(fmt.NOT_MOMENTS)}]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"A line of a record of Hookline, version {fmt.VERSION} of the format",
        "if": other,
        "then": {"anyOf": others},
        "else": {"allOf": [moment, *by_point]},
        "$defs": definitions,
    }


def _then(point: str, payload: Mapping[str, Any]) -> dict[str, Any]:
    items: list[Any] = [{} for _ in range(_PAYLOAD)]
    return {"if": {"prefixItems": [{"const": point}]}, "then": {"prefixItems": [*items, payload]}}


def schema_text() -> str:
    """Return the schema as the text of ``schema.json``."""
    return msgspec.json.format(msgspec.json.encode(record_schema()), indent=1).decode() + "\n"


if __name__ == "__main__":
    sys.stdout.write(schema_text())
