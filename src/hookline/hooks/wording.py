"""Tool results in words, for hooks that speak in the place of a model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .._kernel.values import Message
from ._injection.fence import as_fenced, unfenced

_ITEMS = 10
_LARGEST = 100_000


def as_sentence(text: str, longest: int = 500) -> str:
    """What a tool gave the model, as people would write it: data as a list of its parts, a text as it is.

    What came from outside stays marked so: these words will stand in the model's own reply.
    """
    said = _said(parsed(text[:_LARGEST])).strip()
    if len(said) > longest:
        said = f"{said[: longest - 1].rstrip()}…"
    return as_fenced(text[:_LARGEST], f"{said[:1].upper()}{said[1:]}{'' if said[-1:] in '.!?…' else '.'}")


def parsed(text: str) -> Any:
    """The JSON value in a text, with or without a fence around it; a text that is none, or huge, itself."""
    if len(text) > _LARGEST:
        return text
    text = unfenced(text)
    bare = text.strip()
    if bare.startswith("```") and bare.endswith("```") and len(bare) > 6:
        first, _, rest = bare[3:-3].partition("\n")
        bare = rest if first.strip().isalnum() or not first.strip() else f"{first}\n{rest}"
    try:
        return json.loads(bare)
    except (ValueError, RecursionError):
        return text


def leaves(value: Any) -> Iterator[Any]:
    """The single values in some data."""
    if isinstance(value, Mapping):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def results(messages: Sequence[Message]) -> list[Message]:
    """The tool results since the last user message, the newest first."""
    found = []
    for message in reversed(messages):
        if message.role == "user":
            break
        if message.role == "tool":
            found.append(message)
    return found


def _said(value: Any) -> str:
    if isinstance(value, Mapping):
        parts = [f"{str(name).replace('_', ' ')}: {_said(item)}" for name, item in value.items()]
        return ", ".join(parts[:_ITEMS] + ["…"] * (len(parts) > _ITEMS)) or "nothing"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join([*map(_said, value[:_ITEMS]), *["…"] * (len(value) > _ITEMS)]) or "nothing"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "nothing"
    return " ".join(str(value).split())
