"""Look up the tool of a call, and what it may do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..._kernel.errors import HooklineError
from ...tools._tool import Effect
from ...tools.registry import ToolView


def find_tool(ctx: Any, name: str) -> ToolView | None:
    """Return the tool with this name, or ``None`` if the run has no such tool."""
    return None if ctx.tool_registry is None else ctx.tool_registry.get(name)


def require_tool(ctx: Any, name: str) -> ToolView:
    """Return the tool with this name, for a guard that cannot judge a call without it.

    Raises:
        HooklineError: the run has no such tool.
    """
    tool = find_tool(ctx, name)
    if tool is None:
        raise HooklineError(
            f"a call of {name!r:.80} cannot be judged without that tool: "
            "in a test, give ctx=hookline.testing.make_context(tools=[...]), or run a scripted_agent(tools=[...])"
        )
    return tool


def may(ctx: Any, name: str, effects: Iterable[Effect]) -> bool:
    """Return whether a call of the tool with this name may have one of the effects. An unknown tool may."""
    wanted, tool = tuple(effects), find_tool(ctx, name)
    return bool(wanted) and (tool is None or tool.may(*wanted))
