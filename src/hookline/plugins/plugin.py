"""Plugins: named bundles of hooks, tools, channels and points, switched on and off as one."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from .._base.frozen import EMPTY, empty
from .._base.text import describe
from .._kernel.errors import RegistrationError
from .._kernel.hook import Hook
from .._kernel.points import Point
from .._kernel.registry import HookRegistry
from ..tools._tool import Tool
from ..tools.registry import ToolRegistry, Toolset
from .permissions import check_permissions
from .points import declare, withdraw
from .settings import Setting, checked, schema_of

HOOKLINE_API = "1"
"""The version of what plugins may rely on: a plugin says which one it was made for."""
LIMIT = 10.0
"""Seconds that ``activate`` and ``deactivate`` may take."""


class PluginApi:
    """What a plugin's ``activate`` is given: its settings, and a way to bring more. It is open while that runs."""

    def __init__(self, name: str, settings: Mapping[str, Any], folder: Path | None) -> None:
        self.name, self.settings, self.folder = name, settings, folder
        self._hooks: list[Any] = []
        self._tools: list[Any] = []
        self._channels: dict[str, Any] = {}
        self._open = True

    def add_hook(self, hook: Any) -> None:
        """Bring one more hook."""
        self._check()
        self._hooks.append(hook)

    def add_tool(self, tool: Any) -> None:
        """Bring one more tool."""
        self._check()
        self._tools.append(tool)

    def add_channel(self, name: str, make: Any) -> None:
        """Offer one more channel; ``make`` makes it."""
        self._check()
        self._channels[name] = make

    def _check(self) -> None:
        if not self._open:
            raise RegistrationError(f"plugin {self.name!r}: activate() is over; bring everything while it runs")


class Modules(Protocol):
    """The code of a plugin that was loaded for it."""

    folder: Path | None

    def unload(self) -> None:
        """Take it out of ``sys.modules``."""
        ...

    def put_back(self) -> None:
        """The opposite."""
        ...


class Plugin:
    """Hooks, tools and more that are switched on and off as one.

    Args:
        name: its id; what ``allowed_plugins`` and ``unplug`` call it.
        hooks: they are registered with ``plugin=name``.
        tools: they are added to the agent's.
        configure: called with each agent that it is plugged into; what it sets there stays.
        version: its own version.
        api: the :data:`HOOKLINE_API` that it was made for.
        description: what it is for, for people.
        channels: channels that it offers: names, and what makes each.
        points: points of its own; they are declared while it is on.
        settings: what can be set, by name: a :class:`Setting`, or a table of its fields.
        permissions: what it asks for; ``None`` if it does not say.
        activate: called with a :class:`PluginApi` before it is first plugged in.
        deactivate: called once nobody has it plugged in any more.
        required: whether an agent that lists it may not be built without it.

    Raises:
        RegistrationError: it has no name, was made for another Hookline, or has settings that make no sense.
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
        self.settings: Mapping[str, Setting] = schema_of(settings)
        self.permissions = None if permissions is None else tuple(permissions)
        self.required = required
        self.code: Modules | None = None
        self._activate, self._deactivate = activate, deactivate
        self._values: Mapping[str, Any] | None = None
        self._own = self.hooks, self.tools, self.channels
        self._users, self._lock = 0, threading.RLock()

    def __repr__(self) -> str:
        return f"Plugin({self.name!r}, {len(self.hooks)} hooks, {len(self.tools)} tools)"

    @property
    def values(self) -> Mapping[str, Any]:
        """The settings that hold.

        Raises:
            RegistrationError: one that is required is missing.
        """
        return self.configured(EMPTY)._values or empty() if self._values is None else self._values

    @property
    def lively(self) -> bool:
        """Whether it does more than being there: two of it at once might be in each other's way."""
        return bool(self._activate or self._deactivate or self.points or self.channels)

    def configured(self, values: Mapping[str, Any]) -> Plugin:
        """The same plugin, with these settings.

        Raises:
            RegistrationError: they do not fit what it says of them.
        """
        self._values = checked(self.settings, values, f"plugin_settings.{self.name}")
        return self

    def hold(self) -> None:
        """Switch it on, unless somebody has: its points are declared and ``activate`` is called. For those who plug.

        Raises:
            RegistrationError: it cannot be; nothing of it is left.
        """
        with self._lock:
            if not self._users:
                self._switch_on()
            self._users += 1

    def release(self) -> None:
        """The opposite of :meth:`hold`; the last one switches it off: ``deactivate`` is called, its points are gone.

        Raises:
            RegistrationError: ``deactivate`` failed; the plugin is off all the same.
        """
        with self._lock:
            self._users = max(0, self._users - 1)
            if not self._users:
                self._switch_off()

    def check(self) -> None:
        """See that its parts can work, and are what it asked for. Its points must be declared.

        Raises:
            RegistrationError: one cannot, or is not.
        """
        tools = ToolRegistry(self.tools)
        tools.specs  # noqa: B018 - a tool that cannot be described is found here
        HookRegistry(self.hooks).stack  # noqa: B018 - so is a hook whose attributes cannot be read
        if self.permissions is not None:
            check_permissions(self.permissions, self.hooks, tools)

    def _switch_on(self) -> None:
        api = PluginApi(self.name, self.values, None if self.code is None else self.code.folder)
        if self.code is not None:
            self.code.put_back()
        activated = False
        try:
            declare(self.points, self)
            if self._activate is not None:
                _call(f"plugin {self.name!r}: activate", self._activate, api)
                activated = True
            hooks, tools, channels = self._own
            self.hooks, self.tools = (*hooks, *api._hooks), (*tools, *api._tools)
            self.channels = {**channels, **api._channels}
            self.check()
        except BaseException:
            with suppress(RegistrationError):  # of two failures the first one counts
                self._switch_off(activated)
            raise
        finally:
            api._open = False

    def _switch_off(self, activated: bool = True) -> None:
        self.hooks, self.tools, self.channels = self._own
        try:
            if activated and self._deactivate is not None:
                _call(f"plugin {self.name!r}: deactivate", self._deactivate)
        finally:
            withdraw(self.points, self)
            if self.code is not None:
                self.code.unload()


def check_api(name: str, api: Any) -> None:
    """See that a plugin was made for this Hookline.

    Raises:
        RegistrationError: it was not; it says what to do.
    """
    if api == HOOKLINE_API:
        return
    newer = str(api)[:9].isdecimal() and int(str(api)[:9]) > int(HOOKLINE_API)
    remedy = "update hookline" if newer else f"get a version of it that was made for {HOOKLINE_API}"
    raise RegistrationError(
        f"plugin {name!r:.80} was made for version {api!s:.80} of the plugin API; "
        f"this Hookline has {HOOKLINE_API}: {remedy}"
    )


def _call(what: str, fn: Callable[..., Any], *args: Any) -> None:
    """Call a plugin's own function, sync or async, in a thread of its own, which is left behind if it hangs."""
    failures: list[BaseException] = []
    context = contextvars.copy_context()

    def work() -> None:
        try:
            result = context.run(fn, *args)
            if inspect.isawaitable(result):
                asyncio.run(_awaited(result))
        except BaseException as error:  # noqa: BLE001 - a plugin may raise anything, SystemExit too
            failures.append(error)

    thread = threading.Thread(target=work, name=f"hookline {what}", daemon=True)
    thread.start()
    thread.join(LIMIT)
    if thread.is_alive():
        raise RegistrationError(f"{what} still runs after {LIMIT:g} s; it is left behind")
    if failures:
        raise RegistrationError(f"{what} failed: {describe(failures[0])}") from failures[0]


async def _awaited(awaitable: Any) -> Any:
    return await awaitable
