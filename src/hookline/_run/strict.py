"""Refuse tools that no guard judges (DESIGN 4.10).

The class is here and not in ``hooks/``, because ``Agent(strict=True)`` needs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .._kernel.errors import RegistrationError
from .._kernel.hook import HookEntry, matches
from .._kernel.payloads import ToolCallRequest
from .._kernel.points import BEFORE_TOOL
from .._kernel.registry import HookStack
from .._kernel.results import HookResult
from .._kernel.validation import check_names
from ..tools.registry import ToolRegistry


class Strict:
    """Refuses every tool that no guard names.

    A guard names the tools that match its ``tools=``; ``tools="*"`` names all tools. A guard without ``tools=`` names
    none, unless it has a method ``covers(tool)`` that returns true for the tool. Built-in guards that judge by the
    effects of a tool have one. Only guards count that are called for the call, at ``before_tool`` in the guard phase,
    and whose failure does not let the call pass (``on_failure="open"``).

    An agent with this hook cannot be built with a tool that none of its own guards names, and a plugin with such a tool
    cannot be added. Tools that appear later or are renamed are judged when they are called: the call is blocked.
    Guards of the outer run, of the conversation and of the run count then too. Nested runs and the agents that a
    conversation is handed over to are judged in the same way.

    Example::

        Agent("helper", llm=model, tools=[shell, calc], hooks=[no_sudo, Strict(allow=["calc"])])

    Args:
        allow: names or globs of tools that need no guard.

    Raises:
        RegistrationError: ``allow`` is not a list of names.
    """

    points = frozenset({BEFORE_TOOL})
    phase = "guard"
    priority = 100

    def __init__(self, allow: Iterable[str] = ()) -> None:
        self.allow = check_names(allow, "allow", 0)

    def __call__(
        self, point: str, ctx: Any, request: ToolCallRequest, *, guards: tuple[HookEntry, ...]
    ) -> HookResult | None:
        """Block the call if no guard names its tool."""
        name = request.name
        if matches(name, self.allow) or any(covers(entry, name, None) for entry in guards):
            return None
        declaring = [entry for entry in guards if callable(getattr(entry.hook, "covers", None))]
        registry = getattr(ctx, "tool_registry", None) if declaring else None  # outside a run there are no tools
        tool = None if registry is None else registry.get(name)
        if any(covers(entry, name, tool) for entry in declaring):
            return None
        return HookResult.block(
            f"{name:.80} is not available: no guard judges it. Go on without it.",
            reason="no guard names this tool; add one with tools=, or allow it with Strict(allow=[...])",
        )


def covers(entry: HookEntry, name: str, tool: Any) -> bool:
    """Whether a hook judges the calls of a tool. ``tool`` is ``None`` if only its name is known."""
    if entry.point != BEFORE_TOOL or entry.phase != "guard" or entry.on_failure == "open" or entry.wants_guards:
        return False
    if entry.tools and not matches(name, entry.tools):
        return False
    declared = getattr(entry.hook, "covers", None)
    if callable(declared):
        return tool is not None and declared(tool) is True
    return bool(entry.tools)


def check_strict(agent: str, tools: ToolRegistry, hooks: HookStack) -> None:
    """Check that every tool of an agent is named by a guard, if one of its hooks demands that.

    Raises:
        RegistrationError: a tool is not named.
    """
    entries = hooks.entries(BEFORE_TOOL)
    for strict in [entry.hook for entry in entries if isinstance(entry.hook, Strict)]:
        open_tools = [
            tool.name
            for tool in tools
            if not matches(tool.name, strict.allow) and not any(covers(entry, tool.name, tool) for entry in entries)
        ]
        if open_tools:
            raise RegistrationError(
                f"agent {agent!r} is strict, and no guard names {', '.join(map(repr, open_tools))}. Write a guard with "
                f"@guard(BEFORE_TOOL, tools={open_tools!r}), or use the hook Strict(allow={open_tools!r}) if no guard "
                f"is needed{''.join(_near_misses(entries, open_tools))}"
            )


def _near_misses(entries: Iterable[HookEntry], tools: list[str]) -> Iterator[str]:
    """Yield the reason for each hook that names one of these tools, but does not count."""
    for entry in entries:
        if entry.wants_guards or not any(matches(name, entry.tools) for name in tools):
            continue
        if entry.phase == "rewrite":
            yield f". {entry.name!r} does not count, because it is not a guard: use @guard"
        elif entry.phase == "guard" and entry.on_failure == "open":
            yield f". {entry.name!r} does not count, because calls pass if it fails (on_failure='open')"
