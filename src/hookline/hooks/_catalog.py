"""The built-in hooks by concern, for configuration files and tables."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from .._base.frozen import EMPTY, Frozen
from .._base.lazy import exports
from .._kernel.points import POINTS

# One concern on a few lines; the formatter would put each module on a line of its own.
_MODULES = {
    "Limits": ("limits", "spending_limit", "rate_limit", "finish_reason"),
    "Safety and access": (
        "rules", "safety", "plan_mode", "approvals", "roles", "path_guard", "egress_guard", "sensitive_data",
        "injection_guard", "provenance_guard", "terminal_guard", "channel_guard", "strict",
    ),
    "Context of the model": (
        "context_config", "memory", "notes", "skills", "token_budget", "compaction", "truncation",
    ),
    "Failures": ("model_retry", "fallback", "tool_retry"),
    "Small models": ("loop_detector", "echoed_payload", "grounded_reply", "schema_retry", "small_models"),
    "Recording and observing": (
        "sessions", "episodes", "audit_log", "audit_trail", "timing", "observability", "metrics", "opentelemetry",
        "echoing", "hookline.records", "hookline.tape",
    ),
    "Teams": ("ticket_rules", "ticket_judge"),
    "Learning": ("skill_evolver",),
    "Caching and trials": ("response_cache", "shadow_mode"),
    "Hooks of other systems": ("hookline.adapters.claude_code",),
}  # fmt: skip
"""The modules of the built-in hooks by concern, in display order; ``__init__.pyi`` has the names. Packages that may
import this one have their full names: their hooks are imported only when they are used."""

_NOT_HOOKS = frozenset(("Compactor", "watch_approvals", "RuleFile", "RulesError"))
"""Public names in these modules that are not hooks."""

_PACKAGE = __name__.rpartition(".")[0]
_HOMES = {name: home for name, (home, _) in exports(_PACKAGE).items() if name not in _NOT_HOOKS}

CONCERNS = {
    concern: tuple(name for part in parts for name, home in _HOMES.items() if home in (part, f"{_PACKAGE}.{part}"))
    for concern, parts in _MODULES.items()
}
"""The names of the built-in hooks and bundles, by concern."""

BUILTINS = {name: _HOMES[name].rpartition(".")[2].lstrip("_") for names in CONCERNS.values() for name in names}
"""The names that configuration files may use, each with its page in ``docs/reference/hooks``."""


def load_builtin(name: str) -> Any:
    """Return the class of a built-in hook, or the function that creates a bundle of hooks."""
    return getattr(import_module(_PACKAGE), name)


class BuiltinRow(Frozen, frozen=True):
    """A built-in hook: its points in the order of the point table, its phase and priority at each, and its summary.

    A function that creates hooks (``limits_plugin``, ``shadow``) has no points itself.
    """

    name: str
    page: str
    concern: str
    what: str
    points: tuple[str, ...] = ()
    phase: Mapping[str, str] = EMPTY
    priority: Mapping[str, float] = EMPTY

    @property
    def cells(self) -> tuple[str, str, str]:
        """Points, phase and priority as text; a value that is the same at all points is given once."""
        priorities = {point: f"{priority:g}" for point, priority in self.priority.items()}
        return ", ".join(self.points) or "those of its hooks", _in_words(self.phase), _in_words(priorities)


def builtin_rows() -> list[BuiltinRow]:
    """Return a row for each built-in, ordered by concern."""
    return [_row(name, concern) for concern, names in CONCERNS.items() for name in names]


def _row(name: str, concern: str) -> BuiltinRow:
    value = load_builtin(name)
    what = (value.__doc__ or "").split("\n\n")[0].replace("``", "`")
    points = tuple(str(point) for point in POINTS.values() if point in getattr(value, "points", ()))
    phase = {point: _phase(value, point) for point in points}
    priority = {point: _at(value, "priority", point) or 0 for point in points}
    return BuiltinRow(name, BUILTINS[name], concern, " ".join(what.split()), points, phase, priority)


def _in_words(by_point: Mapping[str, str]) -> str:
    values = list(by_point.values())
    return ", ".join(values[:1] if len(set(values)) == 1 else values)


def _at(value: Any, option: str, point: str) -> Any:
    given = getattr(value, option, None)
    return given.get(point) if isinstance(given, dict) else given


def _phase(value: Any, point: str) -> str:
    given = _at(value, "phase", point) or ("observe" if POINTS[point].model == "observe" else "rewrite")
    return given if isinstance(given, str) else " and ".join(given)
