"""Plugins: named bundles of hooks and tools, given by hand or found in installed packages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..base.names import describe, nearest
from ..kernel.errors import RegistrationError
from ..kernel.registry import HookRegistry

GROUP = "hookline.plugins"
"""The entry-point group in which packages offer plugins."""


class Plugin:
    """Hooks, tools and settings that are switched on and off as one.

    Args:
        name: what ``allowed_plugins`` and ``unregister_plugin`` call it.
        hooks: they are registered with ``plugin=name``.
        tools: they are added to the agent's.
        configure: called with the agent, for settings.
    """

    def __init__(
        self,
        name: str,
        hooks: Iterable[Any] = (),
        tools: Iterable[Any] = (),
        configure: Callable[[Any], None] | None = None,
    ) -> None:
        if not name or not isinstance(name, str):
            raise RegistrationError("a plugin needs a name")
        self.name, self.hooks, self.tools, self.configure = name, tuple(hooks), tuple(tools), configure

    def __repr__(self) -> str:
        return f"Plugin({self.name!r}, {len(self.hooks)} hooks, {len(self.tools)} tools)"


def installed_plugins() -> dict[str, Any]:
    """The entry points of installed packages, by plugin name, not yet loaded."""
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=GROUP)}


def load_plugins(plugins: Any) -> tuple[Plugin, ...]:
    """These plugins, and those that are installed under these names.

    Raises:
        RegistrationError: it is no list, or something in it is neither; it says what to write.
    """
    if isinstance(plugins, str) or not isinstance(plugins, Iterable):
        name = repr(plugins) if isinstance(plugins, str) else type(plugins).__name__
        raise RegistrationError(f"plugins are a list of plugins, not {name}: write plugins=[...]")
    return tuple(item if isinstance(item, Plugin) else load_plugin(_named(item)) for item in plugins)


def without_plugins(hooks: Any) -> Any:
    """These hooks, as they are, if no plugin is among them.

    Raises:
        RegistrationError: one is.
    """
    if isinstance(hooks, (str, HookRegistry)) or not isinstance(hooks, Iterable):
        return hooks
    hooks = tuple(hooks)
    for item in hooks:
        if isinstance(item, Plugin):
            raise RegistrationError(f"{item!r} is a plugin: give it as plugins=[...]")
    return hooks


def _named(item: Any) -> str:
    if isinstance(item, str):
        return item
    if isinstance(item, (list, tuple)):
        raise RegistrationError(f"plugins=[...] holds a list: if these are hooks, write hooks=[*...]; got {item!r:.80}")
    if hasattr(item, "points") and not isinstance(item, type):
        raise RegistrationError(f"{type(item).__name__} is a hook: give it as hooks=[...]")
    if callable(item) and hasattr(item, "__name__"):
        raise RegistrationError(
            f"{item.__name__} is not a plugin: if it makes one, call it: plugins=[{item.__name__}()]"
        )
    raise RegistrationError(f"{item!r:.80} is neither a plugin nor the name of an installed one")


def load_plugin(name: str) -> Plugin:
    """Load an installed plugin: its entry point is a Plugin, a hook, or a list of hooks.

    Raises:
        RegistrationError: there is none of that name, or it is none of these.
    """
    known = installed_plugins()
    if name not in known:
        raise RegistrationError(f"no installed plugin {name!r}.{nearest(name, known)} Installed: {sorted(known)}")
    try:
        found = known[name].load()
    except Exception as error:
        raise RegistrationError(f"plugin {name!r} cannot be loaded: {describe(error)}") from error
    if isinstance(found, Plugin):
        return found
    if hasattr(found, "points"):
        return Plugin(name, [found])
    if isinstance(found, (list, tuple)):
        return Plugin(name, found)
    raise RegistrationError(
        f"plugin {name!r} is a {type(found).__name__}; expected a Plugin, a hook or a list of hooks"
    )
