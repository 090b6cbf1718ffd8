"""Tool results as text, for hooks that write a reply in place of the model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .._kernel.values import Message
from ._injection.fence import as_fenced, unfenced

_MAX_ITEMS = 10
_MAX_CHARS = 100_000


def as_sentence(text: str, limit: int = 500) -> str:
    """Write a tool result as a sentence: JSON as a list of its parts, other text as it is.

    A result that was fenced as untrusted stays fenced, because the sentence becomes part of the model's own reply.
    """
    sentence = _to_words(parse_json(text[:_MAX_CHARS])).strip()
    if len(sentence) > limit:
        sentence = f"{sentence[: limit - 1].rstrip()}…"
    sentence = f"{sentence[:1].upper()}{sentence[1:]}{'' if sentence[-1:] in '.!?…' else '.'}"
    return as_fenced(text[:_MAX_CHARS], sentence)


def parse_json(text: str) -> Any:
    """Parse the JSON in a text, with or without a Markdown fence; return the text if it is not JSON or too long."""
    if len(text) > _MAX_CHARS:
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


def leaf_values(value: Any) -> Iterator[Any]:
    """Iterate over the scalar values in nested data."""
    if isinstance(value, Mapping):
        for item in value.values():
            yield from leaf_values(item)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for item in value:
            yield from leaf_values(item)
    else:
        yield value


def recent_results(messages: Sequence[Message]) -> list[Message]:
    """Return the tool results since the last user message, newest first."""
    found = []
    for message in reversed(messages):
        if message.role == "user":
            break
        if message.role == "tool":
            found.append(message)
    return found


def _to_words(value: Any) -> str:
    if isinstance(value, Mapping):
        parts = [f"{str(name).replace('_', ' ')}: {_to_words(item)}" for name, item in value.items()]
        return ", ".join(parts[:_MAX_ITEMS] + ["…"] * (len(parts) > _MAX_ITEMS)) or "nothing"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join([*map(_to_words, value[:_MAX_ITEMS]), *["…"] * (len(value) > _MAX_ITEMS)]) or "nothing"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "nothing"
    return " ".join(str(value).split())
