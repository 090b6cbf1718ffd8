"""What tools are called with, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from .._base.text import shorten
from .calls import Call
from .report import ArgumentUse, ToolUse, Value

VALUES = 5
_SHOWN = 80
_MAX_DISTINCT = 10_000
"""Different values of an argument that are counted apart."""


def uses_of(calls: Sequence[Call]) -> tuple[ToolUse, ...]:
    """Return the tools of calls, those with the most calls first."""
    by_tool: dict[str, list[Call]] = {}
    for call in calls:
        by_tool.setdefault(call.tool, []).append(call)
    return tuple(_use(tool, own) for tool, own in sorted(by_tool.items(), key=lambda item: (-len(item[1]), item[0])))


def _use(tool: str, calls: Sequence[Call]) -> ToolUse:
    values: dict[str, Counter[Any]] = {}
    given: Counter[str] = Counter()
    for call in calls:
        for name, value in call.arguments.items():
            counts = values.setdefault(name, Counter())
            given[name] += 1
            key = value if type(value) is str else (type(value) is bool, value) if _is_number(value) else _text(value)
            if key in counts or len(counts) < _MAX_DISTINCT:
                counts[key] += 1
    arguments = tuple(_argument(name, given[name], values[name]) for name in sorted(values))
    return ToolUse(
        tool,
        len(calls),
        len({call.run.tree for call in calls}),
        max(call.own for call in calls) + 1,
        sum(not call.has_run or call.is_bad for call in calls),
        arguments,
    )


def _argument(name: str, calls: int, counts: Counter[Any]) -> ArgumentUse:
    most = sorted(counts.items(), key=lambda item: (-item[1], str(item[0])))[:VALUES]
    numbers = [key[1] for key in counts if isinstance(key, tuple)]
    shown = tuple(
        Value(shorten(_text(key[1] if isinstance(key, tuple) else key), _SHOWN), times) for key, times in most
    )
    is_range = len(numbers) == len(counts) and not any(isinstance(number, bool) for number in numbers)
    low, high = (min(numbers), max(numbers)) if is_range else (None, None)
    return ArgumentUse(name, calls, len(counts), shown, low, high)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
