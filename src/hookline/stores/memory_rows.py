"""What a memory holds, as values, and what may be put into it."""

from __future__ import annotations

from math import isfinite
from typing import Any

import msgspec

from .._base.frozen import EMPTY, Frozen, freeze, scrub
from .._base.text import is_number


class Fact(Frozen, frozen=True):
    """Something that is, or was, so: from ``valid_from`` until just before ``valid_to`` (Unix time)."""

    key: str
    value: Any
    scope: str = ""
    source: str = ""
    valid_from: float = 0.0
    valid_to: float | None = None
    recorded_at: float = 0.0
    seq: int = 0

    def __post_init__(self) -> None:
        if type(self.value) is not str:
            self._seal("value", freeze)


class Episode(Frozen, frozen=True):
    """Something that happened."""

    kind: str
    summary: str
    outcome: str = "ok"
    data: Any = EMPTY
    scope: str = ""
    run_id: str = ""
    session_id: str = ""
    agent: str = ""
    recorded_at: float = 0.0
    seq: int = 0

    def __post_init__(self) -> None:
        self._seal("data", freeze)


def text_of(name: str, value: str, *, empty: bool = True) -> str:
    """A text that can be kept: without halves of characters.

    Raises:
        TypeError: it is no text.
        ValueError: it is empty, and may not be.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name} is text, not {type(value).__name__}")
    if not (empty or value.strip()):
        raise ValueError(f"{name} is empty: name what it is about")
    return str(scrub(value))


def json_of(value: Any) -> str:
    """JSON text that is the same for equal values.

    Raises:
        TypeError: it is not JSON.
        ValueError: nor is a number in it.
    """
    given = scrub(freeze(value))
    text = msgspec.json.encode(given, order="sorted")
    if msgspec.json.decode(text) != given:
        raise ValueError("NaN and infinite numbers are not JSON: leave them out")
    return text.decode()


def moment_of(name: str, value: float | None) -> float | None:
    """A Unix time, if one was given.

    Raises:
        ValueError: it is no time.
    """
    if value is None:
        return None
    if not (is_number(value) and isfinite(value)):
        raise ValueError(f"{name} is Unix time in seconds, not {value!r}")
    return float(value)


def limit_of(name: str, value: int | None) -> int:
    """A limit as SQLite wants it: -1 for none.

    Raises:
        ValueError: it is no limit.
    """
    if value is None:
        return -1
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name} is a whole number from 0 on, or None for no limit, not {value!r}")
    return min(value, 1 << 60)
