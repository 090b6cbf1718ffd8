"""Plugins: named bundles of hooks, tools, channels and points that are switched on and off together."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from .._base.frozen import EMPTY, empty
from .._base.text import describe
from .._kernel.errors import RegistrationError
from .._kernel.hook import Hook
from .._kernel.points import NAMES, TABLE, Point, import_declarations
from .._kernel.registry import HookRegistry
from ..tools._tool import Tool
from ..tools.registry import ToolRegistry, Toolset
from .manifest import HOOKLINE_API, Setting, check_api, check_permissions, check_settings, settings_schema

LIMIT = 10.0
"""Seconds that ``activate`` and ``deactivate`` may take."""


class PluginApi:
    """The argument of a plugin's ``activate``: its settings, and methods to add hooks, tools and channels.

    The methods work only while ``activate`` runs.

    Example:
        >>> def activate(api):
        ...     if api.settings["log"]:
        ...         api.add_hook(log_calls)
    """

    def __init__(self, name: str, settings: Mapping[str, Any], folder: Path | None) -> None:
        self.name, self.settings, self.folder = name, settings, folder
        self._hooks: list[Any] = []
        self._tools: list[Any] = []
        self._channels: dict[str, Any] = {}
        self._open = True

    def add_hook(self, hook: Any) -> None:
        """Add a hook."""
        self._check_open()
        self._hooks.append(hook)

    def add_tool(self, tool: Any) -> None:
        """Add a tool."""
        self._check_open()
        self._tools.append(tool)

    def add_channel(self, name: str, make: Any) -> None:
        """Add a channel; ``make`` is its factory."""
        self._check_open()
        self._channels[name] = make

    def _check_open(self) -> None:
        if not self._open:
            raise RegistrationError(
                f"plugin {self.name!r}: activate() has returned; add hooks, tools and channels while it runs"
            )


class Modules(Protocol):
    """The imported modules of a plugin."""

    folder: Path | None

    def unload(self) -> None:
        """Remove the modules from ``sys.modules``."""
        ...

    def put_back(self) -> None:
        """Put the modules into ``sys.modules`` again."""
        ...


class Plugin:
    """Hooks, tools, channels and points that are switched on and off together.

    Example:
        >>> plugin = Plugin("quiet", hooks=[keep_out], tools=[say])
        >>> agent = Agent("helper", llm="openai:gpt-5-mini", plugins=[plugin])
        >>> agent.unplug("quiet")

    Args:
        name: the name that ``allowed_plugins`` and ``unplug`` use.
        hooks: its hooks; they are registered with ``plugin=name``.
        tools: its tools; they are added to those of the agent.
        configure: a function that is called with each agent the plugin is added to. Its changes are not undone.
        version: the version of the plugin.
        api: the :data:`HOOKLINE_API` that it was written for.
        description: a description for users.
        channels: its channels: factories by name.
        points: points of its own; they are declared while the plugin is on.
        settings: its settings by name: a :class:`Setting`, or a table of its fields.
        permissions: the permissions that it asks for; ``None`` if it does not declare any.
        activate: a function that is called with a :class:`PluginApi` before the plugin is first added.
        deactivate: a function that is called after the plugin was last removed.
        required: whether an agent that lists the plugin cannot be built without it.

    Raises:
        RegistrationError: the name is missing, the plugin was written for another API, or a setting is invalid.
    """

    def __init__(
        self,
        name: str,
        hooks: Iterable[Hook] = (),
        tools: Iterable[Tool | Callable[..., Any] | Toolset] = (),
        configure: Callable[[Any], None] | None = None,
        *,
        version: str = "",
        api: str = HOOKLINE_API,
        description: str = "",
        channels: Mapping[str, Any] = EMPTY,
        points: Iterable[Point[Any]] = (),
        settings: Mapping[str, Setting | Mapping[str, Any]] = EMPTY,
        permissions: Iterable[str] | None = None,
        activate: Callable[[PluginApi], Any] | None = None,
        deactivate: Callable[[], Any] | None = None,
        required: bool = True,
    ) -> None:
        if not name or not isinstance(name, str):
            raise RegistrationError("a plugin needs a name")
        check_api(name, api)
        self.name, self.version, self.api, self.description = name, version, api, description
        self.hooks, self.tools, self.configure = tuple(hooks), tuple(tools), configure
        self.channels: Mapping[str, Any] = dict(channels)
        self.points = tuple(points)
        self.settings: Mapping[str, Setting] = settings_schema(settings)
        self.permissions = None if permissions is None else tuple(permissions)
        self.required = required
        self.code: Modules | None = None
        self._activate, self._deactivate = activate, deactivate
        self._values: Mapping[str, Any] | None = None
        self._declared = self.hooks, self.tools, self.channels
        self._users, self._lock = 0, threading.RLock()

    def __repr__(self) -> str:
        return f"Plugin({self.name!r}, {len(self.hooks)} hooks, {len(self.tools)} tools)"

    @property
    def values(self) -> Mapping[str, Any]:
        """The effective values of its settings.

        Raises:
            RegistrationError: a required setting is missing.
        """
        return self.configured(EMPTY)._values or empty() if self._values is None else self._values

    def configured(self, values: Mapping[str, Any]) -> Plugin:
        """Set the values of its settings, and return the plugin.

        Raises:
            RegistrationError: a value is invalid.
        """
        self._values = check_settings(self.settings, values, f"plugin_settings.{self.name}")
        return self

    def acquire(self) -> None:
        """Count one more user. For the first one, switch the plugin on: declare its points, call ``activate``.

        Raises:
            RegistrationError: the plugin cannot be switched on. No part of it is active then.
        """
        with self._lock:
            if not self._users:
                self._switch_on()
            self._users += 1

    def release(self) -> None:
        """Count one user less. After the last one, switch the plugin off: call ``deactivate``, withdraw its points.

        Raises:
            RegistrationError: ``deactivate`` failed. The plugin is off nevertheless.
        """
        with self._lock:
            self._users = max(0, self._users - 1)
            if not self._users:
                self._switch_off()

    def check(self) -> None:
        """Check that its hooks and tools are valid and need no other permissions. Its points must be declared.

        Raises:
            RegistrationError: a hook or tool is invalid, or needs another permission.
        """
        tools = ToolRegistry(self.tools)
        tools.specs  # noqa: B018 - describes every tool, and raises if that fails
        HookRegistry(self.hooks).stack  # noqa: B018 - reads the attributes of every hook
        if self.permissions is not None:
            check_permissions(self.permissions, self.hooks, tools)

    def _switch_on(self) -> None:
        api = PluginApi(self.name, self.values, None if self.code is None else self.code.folder)
        if self.code is not None:
            self.code.put_back()
        activated = False
        try:
            declare_points(self.points, self)
            if self._activate is not None:
                _call(f"plugin {self.name!r}: activate", self._activate, api)
                activated = True
            hooks, tools, channels = self._declared
            self.hooks, self.tools = (*hooks, *api._hooks), (*tools, *api._tools)
            self.channels = {**channels, **api._channels}
            self.check()
        except BaseException:
            with suppress(RegistrationError):  # report the first failure
                self._switch_off(activated)
            raise
        finally:
            api._open = False

    def _switch_off(self, activated: bool = True) -> None:
        self.hooks, self.tools, self.channels = self._declared
        try:
            if activated and self._deactivate is not None:
                _call(f"plugin {self.name!r}: deactivate", self._deactivate)
        finally:
            withdraw_points(self.points, self)
            if self.code is not None:
                self.code.unload()


def _call(what: str, fn: Callable[..., Any], *args: Any) -> None:
    """Call a function of a plugin, sync or async, in a thread of its own, which is abandoned if it hangs."""
    failures: list[BaseException] = []
    context = contextvars.copy_context()

    def work() -> None:
        try:
            result = context.run(fn, *args)
            if inspect.isawaitable(result):
                asyncio.run(_await(result))
        except BaseException as error:  # noqa: BLE001 - a plugin may raise anything, even SystemExit
            failures.append(error)

    thread = threading.Thread(target=work, name=f"hookline {what}", daemon=True)
    thread.start()
    thread.join(LIMIT)
    if thread.is_alive():
        raise RegistrationError(f"{what} did not return within {LIMIT:g} s")
    if failures:
        raise RegistrationError(f"{what} failed: {describe(failures[0])}") from failures[0]


async def _await(awaitable: Any) -> Any:
    return await awaitable


# Points of plugins are in the table of points only while a plugin that declares them is on.

_points_lock = threading.RLock()
_owners: dict[str, list[object]] = {}


@contextmanager
def capture_points() -> Iterator[list[Point[Any]]]:
    """Collect the points that are declared inside the block, and remove them from the table after it."""
    found: list[Point[Any]] = []
    import_declarations()  # otherwise a plugin that imports a point of a channel would seem to declare it
    with _points_lock:
        points, names = dict(TABLE), dict(NAMES)
        try:
            yield found
        finally:
            found += [point for name, point in TABLE.items() if points.get(name) is not point]
            for table, before in ((TABLE, points), (NAMES, names)):
                for name in [name for name in table if name not in before]:
                    del table[name]
                table.update(before)


def declare_points(points: Iterable[Point[Any]], owner: object) -> None:
    """Add points to the table on behalf of an owner: all of them, or none.

    Raises:
        RegistrationError: a name belongs to another point.
    """
    with _points_lock:
        done: list[Point[Any]] = []
        try:
            for point in points:
                _declare_point(point, owner)
                done.append(point)
        except RegistrationError:
            withdraw_points(done, owner)
            raise


def withdraw_points(points: Iterable[Point[Any]], owner: object) -> None:
    """Remove the points that no other owner has declared."""
    with _points_lock:
        for point in points:
            owners = _owners.get(point, [])
            if owner in owners:
                owners.remove(owner)
                if not owners:
                    del _owners[point]
                    TABLE.pop(point, None)
                    for name in [name for name, known in NAMES.items() if known == point]:
                        del NAMES[name]


def _declare_point(point: Point[Any], owner: object) -> None:
    known = TABLE.get(point)
    if known is None:
        for alias in point.aliases & NAMES.keys():
            raise RegistrationError(f"point {point!s}: the name {alias!r} belongs to point {NAMES[alias]!s}")
        TABLE[point] = point
        NAMES.update(dict.fromkeys(point.aliases, point))
    elif point not in _owners:
        if known is point:
            return  # the program declared it and keeps it
        raise RegistrationError(f"point {point!s} already exists outside of plugins; choose another name")
    elif known._shape() != point._shape():
        raise RegistrationError(f"point {point!s} of another plugin has a different definition; choose another name")
    _owners.setdefault(point, []).append(owner)
