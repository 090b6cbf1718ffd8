"""The tools of a run, by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cached_property
from typing import Any, Protocol

from .._base.text import describe, did_you_mean
from .._kernel.errors import HooklineError, RegistrationError
from .._kernel.values import ToolSpec
from ._tool import Tool


class NamedFunction(Protocol):
    """A function or a method that becomes a tool. A :class:`Tool` is none, so that its context is checked."""

    @property
    def __name__(self) -> str:
        """The name of the tool."""
        ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result of the tool."""
        ...


class Toolset(Protocol):
    """An object that provides tools, such as an MCP server. It can be passed wherever a tool can.

    It may also have ``tool_hooks``: hooks that its tools need. An agent registers them.
    """

    def tools(self) -> Iterable[Tool | Callable[..., Any]]:
        """Return the tools, the same ones each time."""
        ...


class ToolRegistry:
    """An immutable set of tools.

    Args:
        tools: tools, functions, and toolsets, which add all their tools.

    Raises:
        RegistrationError: an item is not a tool, or two tools have the same name.

    Example::

        tools = ToolRegistry([add, *file_tools("notes")])
        print([spec.name for spec in tools.specs])
    """

    def __init__(self, tools: Iterable[Tool | Callable[..., Any] | Toolset] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for item in tools:
            for made in _made(item):
                if made.name in self._tools:
                    raise RegistrationError(
                        f"two tools are named {made.name!r}; rename one of them. Tools of an MCP server: use "
                        "mcp(..., prefix='NAME_'), or the setting default_tools = false to leave out Hookline's own"
                    )
                self._tools[made.name] = made

    def without(self, names: Collection[str]) -> ToolRegistry:
        """Return a registry without the tools of these names."""
        return ToolRegistry(tool for tool in self if tool.name not in names)

    def get(self, name: str) -> Tool | None:
        """Return the tool of this name, or ``None``."""
        return self._tools.get(name)

    def unknown(self, name: str) -> str:
        """Return the error text for a model that called a tool which does not exist."""
        known = ", ".join(self._tools) or "none"
        if not name:
            return f"The tool name is empty. Available tools: {known}."
        return f"Unknown tool {name!r:.80}.{did_you_mean(name, self._tools)} Available tools: {known}."

    @cached_property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The specs of all tools, as the model sees them."""
        return tuple(tool.spec for tool in self)

    def offered(self, ctx: Any) -> tuple[ToolSpec, ...]:
        """Return the specs that the model sees in a step of this run.

        Raises:
            HooklineError: the ``offer`` function of a tool failed.
        """
        return tuple(spec for tool in self if (spec := _offer(tool, ctx)) is not None) if self._live else self.specs

    @cached_property
    def _live(self) -> bool:
        return any(tool.offer is not None for tool in self)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, name: object) -> bool:
        return name in self._tools


class ToolView:
    """A read-only view of a tool: hooks can read its name, spec and flags."""

    __slots__ = ("_tool",)
    _tool: Tool

    def __init__(self, tool: Tool) -> None:
        object.__setattr__(self, "_tool", tool)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tool, name)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a hook cannot change {name!r} of the tool {self._tool.name!r}")

    def __delattr__(self, name: str) -> None:
        self.__setattr__(name, None)

    def __repr__(self) -> str:
        return f"<tool {self._tool.name!r}>"


class ToolsView:
    """A read-only view of the tools of a run, as ``ctx.tool_registry``."""

    __slots__ = ("_registry",)
    _registry: ToolRegistry

    def __init__(self, registry: ToolRegistry) -> None:
        object.__setattr__(self, "_registry", registry)

    def get(self, name: str) -> ToolView | None:
        """Return the tool of this name, or ``None``."""
        tool = self._registry.get(name)
        return None if tool is None else ToolView(tool)

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The specs of all tools, as the model sees them."""
        return self._registry.specs

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a hook cannot change {name!r} of the tools of a run")

    def __delattr__(self, name: str) -> None:
        self.__setattr__(name, None)

    def __iter__(self) -> Iterator[ToolView]:
        return map(ToolView, self._registry)

    def __len__(self) -> int:
        return len(self._registry)

    def __contains__(self, name: object) -> bool:
        return name in self._registry


def _offer(tool: Tool, ctx: Any) -> ToolSpec | None:
    if tool.offer is None:
        return tool.spec
    try:
        return tool.offer(ctx)
    except Exception as error:
        raise HooklineError(f"tool {tool.name!r} cannot be offered: {describe(error)}") from error


def _made(item: Any) -> Iterable[Tool]:
    if isinstance(item, Tool):
        return (item,)
    if callable(getattr(item, "tools", None)) and not isinstance(item, type):
        return [tool if isinstance(tool, Tool) else _wrap(tool) for tool in item.tools()]
    return (_wrap(item),)


def _wrap(item: Any) -> Tool:
    if not callable(item) or isinstance(item, type):
        raise RegistrationError(f"{item!r} is not a tool: decorate a function with @tool")
    if hasattr(item, "points"):
        raise RegistrationError(f"{getattr(item, 'name', type(item).__name__)} is a hook: pass it as hooks=[...]")
    return Tool(item)
