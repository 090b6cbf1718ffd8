"""What there is to use: every built-in hook with where it fires and what it does, for tables."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from .._base.frozen import EMPTY, Frozen
from .._kernel.points import POINTS
from . import BUILTINS, CONCERNS


class BuiltinRow(Frozen, frozen=True):
    """A built-in: its points in the order of the point table, its phase and priority at each, and what it does.

    One that makes hooks of its own accord (``guards``, ``shadow``) has no points itself.
    """

    name: str
    module: str
    concern: str
    what: str
    points: tuple[str, ...] = ()
    phase: Mapping[str, str] = EMPTY
    priority: Mapping[str, float] = EMPTY

    @property
    def cells(self) -> tuple[str, str, str]:
        """Points, phase and priority in words; one word where it is the same at each point."""
        priorities = {point: f"{priority:g}" for point, priority in self.priority.items()}
        return ", ".join(self.points) or "where its hooks do", _in_words(self.phase), _in_words(priorities)


def builtin_rows() -> list[BuiltinRow]:
    """A row for each built-in, concern by concern."""
    return [_row(name, concern) for concern, names in CONCERNS.items() for name in names]


def _row(name: str, concern: str) -> BuiltinRow:
    module = BUILTINS[name]
    value = getattr(import_module(f".{module}", __package__), name)
    what = (value.__doc__ or "").split("\n\n")[0].replace("``", "`")
    points = tuple(str(point) for point in POINTS.values() if point in getattr(value, "points", ()))
    phase = {point: _at(value, "phase", point) or _usual_phase(point) for point in points}
    priority = {point: _at(value, "priority", point) or 0 for point in points}
    return BuiltinRow(name, module, concern, " ".join(what.split()), points, phase, priority)


def _in_words(by_point: Mapping[str, str]) -> str:
    values = list(by_point.values())
    return ", ".join(values[:1] if len(set(values)) == 1 else values)


def _at(value: Any, option: str, point: str) -> Any:
    given = getattr(value, option, None)
    return given.get(point) if isinstance(given, dict) else given


def _usual_phase(point: str) -> str:
    return "observe" if POINTS[point].model == "observe" else "rewrite"
