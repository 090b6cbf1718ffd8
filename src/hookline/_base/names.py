"""Help with words: the nearest known name, what an error says, how long something took."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import isnan


def closest(name: str, known: Iterable[str], *, likeness: float = 0.5) -> str | None:
    """The known name most like this one, if any is like it at all."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, list(known), n=1, cutoff=likeness)), None)


def nearest(name: str, known: Iterable[str]) -> str:
    """`` Did you mean 'x'?`` for the closest known name, or nothing."""
    close = closest(name, known)
    return f" Did you mean {close!r}?" if close else ""


def words(error: BaseException) -> str:
    """An error's message, whatever its own ``__str__`` does."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001
        return "an error that cannot be printed"


def describe(error: BaseException) -> str:
    """An error's type and message."""
    return f"{type(error).__name__}: {words(error)}"


def remedy(value: object, expected: str) -> str:
    """What to write instead of a class or a list where one object is expected; what that is, for anything else."""
    if isinstance(value, type):
        return f"it is a class: write {value.__name__}()"
    return "it is a list: unpack it with *" if isinstance(value, (list, tuple)) else f"expected {expected}"


def snake(name: str) -> str:
    """``BeforeToolExec`` and ``BEFORE_TOOL_EXEC`` as ``before_tool_exec``."""
    if "_" in name:
        return name.lower()
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def is_number(value: object) -> bool:
    """Whether it is a real number: no bool, no NaN."""
    if isinstance(value, float):
        return not isnan(value)
    return isinstance(value, int) and not isinstance(value, bool)


def span(seconds: float) -> str:
    """How long something took, to read: ``12 ms``, ``3.4 s``, ``2 min 5 s``, ``1 h 2 min``."""
    if 0 < seconds < 0.0009995:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60} min"
