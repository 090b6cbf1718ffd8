"""The tool that a call names."""

from __future__ import annotations

from typing import Any

from .._kernel.errors import HooklineError
from ..tools.registry import ToolView


def called_tool(ctx: Any, name: str) -> ToolView | None:
    """The tool of that name, if the run has one."""
    return None if ctx.tool_registry is None else ctx.tool_registry.get(name)


def judged_tool(ctx: Any, name: str) -> ToolView:
    """The same, for a guard that can judge a call only by its tool.

    Raises:
        HooklineError: there is none.
    """
    tool = called_tool(ctx, name)
    if tool is None:
        raise HooklineError(
            f"a call of {name!r:.80} cannot be judged without that tool: "
            "in a test, give ctx=hookline.testing.make_context(tools=[...]), or run a scripted_agent(tools=[...])"
        )
    return tool
