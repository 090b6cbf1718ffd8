"""Text for a terminal: short, and without control characters."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterator
from datetime import datetime
from shutil import get_terminal_size
from textwrap import fill
from typing import TYPE_CHECKING, Any, TextIO

from .._base.frozen import json_text
from .._base.text import counted as counted  # noqa: PLC0414 - for the other modules of the program
from .._base.text import printable as printable  # noqa: PLC0414
from .._base.text import shorten
from ..config.errors import ConfigError

if TYPE_CHECKING:
    from .._kernel.state import AgentResult
    from ..explain.totals import SubagentTotals


ID_LENGTH = 8
"""Number of characters of an id that are shown."""


def short(text: str, width: int = 100) -> str:
    """Return the text as one line of at most ``width`` characters."""
    line = printable(" ".join(text.split()))
    return shorten(line, width)


def short_id(id: str) -> str:
    """Return the beginning of an id, without its prefix such as ``run_``."""
    return id.rpartition("_")[2][:ID_LENGTH]


def wrap_line(line: str, out: TextIO) -> str:
    """Wrap the line between words if ``out`` is a terminal that is too narrow for it."""
    if not out.isatty():
        return line
    indent = " " * max(4, len(line) - len(line.lstrip()) + 2)
    return fill(line, get_terminal_size().columns, subsequent_indent=indent, break_on_hyphens=False)


def indent_overflow(text: str, out: TextIO) -> str:
    """Break lines that are too long for a terminal, and indent their other parts.

    A terminal would begin the next part in the first column, where it could look like a line of this program.
    """
    if not out.isatty():
        return text
    columns = max(get_terminal_size().columns, 20) - 1
    return "\n".join(part for line in text.split("\n") for part in _parts(line, columns))


def _parts(line: str, columns: int) -> Iterator[str]:
    indent = " " * (len(line) - len(line.lstrip(" ")) + 4)
    part, used = "", 0
    for letter in line:
        width = 1 if letter.isascii() else 2  # at most: terminals do not agree on the width of some characters
        if used + width > columns:
            yield part
            part, used = indent[: columns // 2], len(indent[: columns // 2])
        part += letter
        used += width
    yield part


def arguments_text(arguments: Any, width: int | None = 100) -> str:
    """Return a call's arguments as JSON, shortened to ``width`` characters unless it is ``None``."""
    text = printable(json_text(arguments), keep="")
    return text if width is None else shorten(text, width)


def cost_text(cost: float | None) -> str:
    """Return a cost such as ``cost $0.0012``."""
    return "cost unknown" if cost is None else f"cost ${cost:.4f}"


def run_summary(
    result: AgentResult[Any], failed_hooks: Collection[str] = (), subagents: SubagentTotals | None = None
) -> str:
    """Describe in one line how a run ended, and the usage of the run and its subagents."""
    why = ""
    if result.status == "stopped" and result.stop is not None:
        why = f" ({short(result.stop.message or result.stop.kind)})"
    elif result.status == "ended" and result.hook_ended:
        why = f" ({short(result.hook_ended)})"  # the hook's reason, or its name
    parts = (
        f"{result.status}{why}",
        counted(len(result.steps), "step"),
        counted(result.tool_calls, "tool call"),
        str(subagents or ""),
        counted(result.usage.total_tokens, "token"),
        f"{result.elapsed:.1f} s",
        cost_text(result.cost),
        *([f"{counted(len(failed_hooks), 'hook')} failed"] if failed_hooks else []),
    )
    return " · ".join(filter(None, parts))


_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_SPAN = re.compile(r"(\d{1,9})([smhdw])")


def parse_duration(text: str) -> float | None:
    """Return the seconds of ``30m``, ``24h`` or ``2w``; ``None`` if the text is not a duration."""
    found = _SPAN.fullmatch(text.strip())
    return int(found[1]) * _UNITS[found[2]] if found else None


_SIZES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,3})?)\s*([kmg]?)b?", re.IGNORECASE)


def parse_size(text: str) -> int | None:
    """Return the bytes of ``500MB`` or ``2GB``; ``None`` if the text is not a size."""
    found = _SIZE.fullmatch(text.strip())
    return int(float(found[1]) * _SIZES[found[2].lower()]) if found else None


def size_text(size: int) -> str:
    """Return a number of bytes such as ``8.2 kB`` or ``1.5 GB``."""
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= unit:
            return f"{size / unit:,.1f} {name}"
    return f"{size} B"


def parse_since(text: str | None, now: float | None = None) -> float | None:
    """Return the Unix time of ``24h`` (ago), ``7d`` (ago) or a date; ``None`` for ``None``.

    Raises:
        ConfigError: the text is not a time.
    """
    if text is None:
        return None
    ago = parse_duration(text)
    try:
        if ago is not None:
            return (time.time() if now is None else now) - ago
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise ConfigError(f"--since: expected 30m, 24h, 7d, 2w or a date such as 2026-11-01; got {text!r}") from error


def rough_duration(seconds: float) -> str:
    """Return a duration such as ``42 s``, ``5 min``, ``3 h`` or ``2 d``."""
    seconds = max(0.0, seconds)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
