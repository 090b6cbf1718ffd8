"""Help with names: the nearest known one to a name that is not known."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """`` Did you mean 'x'?`` for the closest known name, or nothing."""
    from difflib import get_close_matches

    close = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""
