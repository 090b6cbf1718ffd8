"""The base of all events."""

from __future__ import annotations

from typing import Any

from .frozen import Frozen, plain


def _tag(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


class Event(Frozen, frozen=True, tag=_tag, tag_field="type"):
    """Something that happened in a run. ``seq`` counts from 1 without gaps; ``at`` is Unix time."""

    seq: int = 0
    at: float = 0.0
    run_id: str = ""

    @property
    def payload(self) -> dict[str, Any]:
        """The event as a plain dict."""
        return plain(self)  # type: ignore[no-any-return]
