"""Text for a terminal: short, and without control characters."""

from __future__ import annotations

import re
from collections.abc import Collection
from shutil import get_terminal_size
from textwrap import fill
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from .._base.frozen import json_text
from .._base.text import counted as counted  # noqa: PLC0414 - for the other modules of the program
from .._base.text import shorten

if TYPE_CHECKING:
    from .._kernel.state import AgentResult


JOINERS = "\u200c\u200d"
"""Invisible, harmless, and part of words and signs in many scripts."""

ID_LENGTH = 8
"""How much of an id is shown."""


def printable(text: str, *, keep: str = "\n\t") -> str:
    """The text with control characters shown, not obeyed: a model's words must not move the cursor."""
    if text.isprintable():
        return text
    text, keep = text.replace("\r\n", "\n"), keep + JOINERS
    return "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)


def short(text: str, width: int = 100) -> str:
    """The text as one line of at most ``width`` characters."""
    line = printable(" ".join(text.split()))
    return shorten(line, width)


def short_id(id: str) -> str:
    """The beginning of an id, without what it is an id of."""
    return id.rpartition("_")[2][:ID_LENGTH]


def wrapped(line: str, out: TextIO) -> str:
    """The line, broken between words if it goes to a terminal that is too narrow for it."""
    if not out.isatty():
        return line
    indent = " " * max(4, len(line) - len(line.lstrip()) + 2)
    return fill(line, get_terminal_size().columns, subsequent_indent=indent, break_on_hyphens=False)


def arguments_text(arguments: Any, width: int | None = 100) -> str:
    """A call's arguments as JSON; whole, if ``width`` is ``None``."""
    text = printable(json_text(arguments), keep="")
    return text if width is None else shorten(text, width)


def cost_text(cost: float | None) -> str:
    """A cost in words."""
    return "cost unknown" if cost is None else f"cost ${cost:.4f}"


class Within(msgspec.Struct):
    """What the runs inside a run did. Their tokens and their cost are in its own, their steps and calls are not."""

    runs: int = 0
    steps: int = 0
    tool_calls: int = 0

    def add(self, result: AgentResult[Any]) -> None:
        """Count one of them."""
        self.runs, self.steps = self.runs + 1, self.steps + len(result.steps)
        self.tool_calls += result.tool_calls

    def __str__(self) -> str:
        if not self.runs:
            return ""
        did = f"{counted(self.steps, 'step')}, {counted(self.tool_calls, 'tool call')}"
        return f"{counted(self.runs, 'subagent')} ({did})"


def summary(result: AgentResult[Any], broken: Collection[str] = (), within: Within | None = None) -> str:
    """How a run ended, what the runs inside it did, and how many hooks were ``broken``, in one line."""
    why = ""
    if result.status == "stopped" and result.stop is not None:
        why = f" ({short(result.stop.message or result.stop.kind)})"
    elif result.status == "ended" and result.hook_ended:
        why = f" ({short(result.hook_ended)})"  # its reason, or else its name
    parts = (
        f"{result.status}{why}",
        counted(len(result.steps), "step"),
        counted(result.tool_calls, "tool call"),
        str(within or ""),
        counted(result.usage.total_tokens, "token"),
        f"{result.elapsed:.1f} s",
        cost_text(result.cost),
        *([f"{counted(len(broken), 'hook')} failed"] if broken else []),
    )
    return " · ".join(filter(None, parts))


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
