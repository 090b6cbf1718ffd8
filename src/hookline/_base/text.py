"""Helpers for messages: suggestions for misspelt names, error texts, durations, counts, short and visible forms."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from math import isnan
from typing import Any


def closest_match(name: str, known: Iterable[str], *, cutoff: float = 0.5) -> str | None:
    """Return the known name most similar to ``name``, or ``None`` if none is similar enough."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, list(known), n=1, cutoff=cutoff)), None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the most similar known name, or an empty string."""
    close = closest_match(name, known)
    return f" Did you mean {close!r}?" if close else ""


def error_text(error: BaseException) -> str:
    """Return the message of an error, even if its ``__str__`` raises."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001
        return "an error that cannot be printed"


def describe(error: BaseException) -> str:
    """Return the type and message of an error: ``ValueError: not a date``."""
    return f"{type(error).__name__}: {error_text(error)}"


def expected_hint(value: object, expected: str) -> str:
    """Say how to correct an argument: instantiate a class, unpack a list, or pass what was ``expected``."""
    if isinstance(value, type):
        return f"it is a class: write {value.__name__}()"
    return "it is a list: unpack it with *" if isinstance(value, (list, tuple)) else f"expected {expected}"


def snake_case(name: str) -> str:
    """Return ``BeforeToolExec`` and ``BEFORE_TOOL_EXEC`` as ``before_tool_exec``."""
    if "_" in name:
        return name.lower()
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def is_number(value: object) -> bool:
    """Whether ``value`` is an int or a float, but neither a bool nor NaN."""
    if isinstance(value, float):
        return not isnan(value)
    return isinstance(value, int) and not isinstance(value, bool)


def duration_text(seconds: float) -> str:
    """Return a duration for people: ``12 ms``, ``3.4 s``, ``2 min 5 s``, ``1 h 2 min``."""
    if 0 < seconds < 0.0009995:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60} min"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 step``, ``2 steps``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def stop_text(kind: str, message: str) -> str:
    """Return what stopped a run, from its stop signal. The message of a halt says its kind itself."""
    return message if message.startswith(kind) else f"{kind}: {message}" if message else kind


def shorten(text: str, limit: int) -> str:
    """Return the text, cut to ``limit`` characters if it is longer; the last one is then ``…``."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


JOINERS = "\u200c\u200d"
"""Zero-width joiners: invisible, harmless, and part of words and emoji in many scripts."""


def printable(text: str, *, keep: str = "\n\t") -> str:
    """Escape control characters, so that text from a model cannot move the cursor or fake output."""
    if text.isprintable():
        return text
    text, keep = text.replace("\r\n", "\n"), keep + JOINERS
    return "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)


def visible_json(arguments: Mapping[str, Any], indent: int | None = 2) -> str:
    """Format arguments as JSON in which every character is visible."""
    text = json.dumps(arguments, ensure_ascii=False)
    if indent is not None and len(text) > 80:
        text = json.dumps(arguments, ensure_ascii=False, indent=indent)
    return escape_invisible(text)


def escape_invisible(text: str) -> str:
    """Escape the invisible characters in a JSON text, except line breaks. It stands for the same value."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def one_line(text: str) -> str:
    """Format a text as one line in which every character is visible and which cannot close a quote."""
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text).replace("`", "'")


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def without_addresses(text: str) -> str:
    """Remove object addresses, as in ``<object at 0x7f...>``: they differ in every process."""
    return _ADDRESS.sub(" at 0x", text) if " at 0x" in text else text
