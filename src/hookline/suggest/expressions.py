"""Parts of conditions as text: literals and fields of CEL, and numbers that people read."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

_RESERVED = frozenset(
    (
        *("as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in", "let", "loop"),
        *("namespace", "null", "package", "return", "true", "var", "void", "while"),
    )
)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_BIGGEST = 2**63


def quoted(text: str, quote: str = "'") -> str:
    r"""Return a text as a literal of CEL or a basic string of TOML, in which every character is visible.

    Example::

        quoted("it's")  # 'it\'s'
    """
    return quote + "".join(_escaped(c, quote) for c in text) + quote


def _escaped(c: str, quote: str) -> str:
    if c in ("\\", quote):
        return f"\\{c}"
    if c.isprintable():
        return c
    code = ord(c)
    if 0xD800 <= code < 0xE000:  # half of a surrogate pair, which neither language can say
        code = 0xFFFD
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def literal(value: Any) -> str | None:
    """Return a scalar as a literal; ``None`` if there is none."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, int):
        return str(value) if -_BIGGEST < value < _BIGGEST else None
    return repr(value) if isinstance(value, float) and math.isfinite(value) else None


def literals(values: Iterable[Any]) -> str:
    """Return a list of scalars, over several lines if it is long."""
    return list_of([text for value in values if (text := literal(value)) is not None])


def list_of(items: list[str]) -> str:
    """Return a list of expressions, over several lines if it is long."""
    line = ", ".join(items)
    if len(line) <= 90:
        return f"[{line}]"
    lines, current = [], ""
    for item in items:
        if current and len(current) + len(item) > 100:
            lines.append(current.rstrip())
            current = ""
        current += f"{item}, "
    lines.append(current.rstrip().removesuffix(","))
    return "[\n  " + "\n  ".join(lines) + "\n]"


def field(name: str, call: str = "call") -> str:
    """Return an argument of a call as an expression."""
    return f"{call}.arguments.{name}" if is_name(name) else f"{call}.arguments[{quoted(name)}]"


def has(name: str, call: str = "call") -> str:
    """Return whether a call has an argument, as an expression."""
    return f"has({call}.arguments.{name})" if is_name(name) else f"{quoted(name)} in {call}.arguments"


def glob_of(tool: str) -> str:
    """Return a glob that matches this tool only; ``*`` stands for all."""
    return tool if tool == "*" else "".join(f"[{c}]" if c in "*?[" else c for c in tool)


def is_name(text: str) -> bool:
    """Whether a text can be written after a dot."""
    return _NAME.fullmatch(text) is not None and text not in _RESERVED


_STEPS = (1, 2, 3, 5, 10)


def round_up(value: float) -> float:
    """Return the next of 1, 2, 3, 5, 10, 20, ... that is not smaller, so that a limit has room and is easy to read."""
    if value <= 0:
        return -round_down(-value)
    unit = _unit(value)
    return next((_times(step, unit) for step in _STEPS if _times(step, unit) >= value), value)


def round_down(value: float) -> float:
    """Return the next of ..., 5, 3, 2, 1, 0.5 that is not larger."""
    if not value:
        return 0
    if value < 0:
        return -round_up(-value)
    unit = _unit(value)
    return next((_times(step, unit) for step in reversed(_STEPS) if _times(step, unit) <= value), value)


def _unit(value: float) -> int:
    return math.floor(math.log10(value))


def _times(step: int, exponent: int) -> float:
    return float(step * 10**exponent) if exponent >= 0 else step / 10**-exponent


def number(value: float) -> str:
    """Return a number as a literal."""
    return str(int(value)) if float(value).is_integer() and abs(value) < 2**53 else repr(value)
