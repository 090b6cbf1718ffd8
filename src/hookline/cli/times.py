"""Spans of time, as people type and read them."""

from __future__ import annotations

import re

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_SPAN = re.compile(r"(\d{1,9})([smhdw])")


def seconds_of(text: str) -> float | None:
    """How long ``30m``, ``24h`` or ``2w`` is; ``None`` for what is no span."""
    found = _SPAN.fullmatch(text.strip())
    return int(found[1]) * _UNITS[found[2]] if found else None


def roughly(seconds: float) -> str:
    """``42 s``, ``5 min``, ``3 h``, ``2 d``."""
    seconds = max(0.0, seconds)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
