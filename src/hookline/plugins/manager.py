"""Find plugins, and switch them on and off for agents and registries."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from .._base.frozen import EMPTY
from .._base.text import did_you_mean, error_text
from .._kernel.errors import RegistrationError
from .._kernel.registry import HookRegistry
from ..tools.registry import ToolRegistry
from .discovery import FoundPlugin, Trust, find_plugins, is_path, plugin_in_folder
from .errors import PluginError
from .loading import load_found, plugin_error
from .plugin import Plugin

log = logging.getLogger("hookline")

Stamp = frozenset[tuple[str, int, int]]


class Host(Protocol):
    """An object that plugins are added to, such as an ``Agent``."""

    def plug(self, plugin: Plugin) -> None:
        """Add a plugin completely, or raise ``RegistrationError``."""
        ...

    def unplug(self, name: str) -> None:
        """Remove a plugin."""
        ...


class PluginManager:
    """Switches plugins on and off for agents and registries. A plugin that fails does not affect the others.

    Example:
        >>> manager = PluginManager(agent, folder="plugins", settings={"quiet": {"words": ["boo"]}})
        >>> manager.activate("quiet")
        >>> manager.deactivate("quiet")

    Args:
        hosts: agents, and registries whose points are fired outside of runs; add more with :meth:`attach`.
        folder: a folder whose subfolders are plugins.
        named: paths of single plugins.
        settings: settings of plugins, by id.
        installed: whether to search installed packages too.
        trust: a function that returns why a file is not trusted; such plugins are not loaded.
    """

    def __init__(
        self,
        *hosts: Host | HookRegistry,
        folder: str | Path | None = None,
        named: Iterable[str | Path] = (),
        settings: Mapping[str, Any] = EMPTY,
        installed: bool = True,
        trust: Trust | None = None,
    ) -> None:
        self.folder = None if folder is None else Path(folder).expanduser()
        self.named = tuple(str(Path(path).expanduser().resolve()) for path in named)
        self.settings, self._installed, self._trust = settings, installed, trust
        self.problems: dict[str, str] = {}
        """The last error of each plugin."""
        self._hosts: list[Host] = []
        self._active: dict[str, Plugin] = {}
        self._stamps: dict[str, Stamp] = {}
        self._watchers: list[Callable[[Plugin, bool], None]] = []
        self._lock = threading.RLock()
        for host in hosts:
            self.attach(host)

    @property
    def active(self) -> tuple[Plugin, ...]:
        """The active plugins."""
        return tuple(self._active.values())

    @property
    def channels(self) -> dict[str, Any]:
        """The channel factories of the active plugins, by name."""
        return {name: make for plugin in self.active for name, make in plugin.channels.items()}

    def found(self) -> list[FoundPlugin]:
        """Find all plugins, including those that cannot be used. Their code is not run."""
        return find_plugins(self.folder, self.named, installed=self._installed, trust=self._trust)

    def find(self, name: str) -> FoundPlugin:
        """Find a plugin by its id or its folder.

        Raises:
            PluginError: there is no such plugin.
        """
        if is_path(name):
            return plugin_in_folder(Path(name).expanduser(), trust=self._trust)
        rows = self.found()
        mine = [row for row in rows if row.id == name]
        if not mine:
            known = [row.id for row in rows]
            where = "among the installed packages" + ("" if self.folder is None else f" or in {self.folder}")
            there = f"There are {', '.join(sorted(set(known)))}" if known else "There are none"
            raise PluginError(f"there is no plugin {name!r} {where}.{did_you_mean(name, known)} {there}")
        return next((row for row in mine if not row.problem), mine[0])

    def attach(self, host: Host | HookRegistry) -> None:
        """Add the active plugins, and those activated later, to one more agent or registry.

        Raises:
            RegistrationError: the host rejects a plugin; then none is added.
        """
        host = _RegistryHost(host) if isinstance(host, HookRegistry) else host
        with self._lock:
            done: list[str] = []
            try:
                for plugin in self.active:
                    host.plug(plugin)
                    done.append(plugin.name)
            except BaseException:
                for name in done:
                    host.unplug(name)
                raise
            self._hosts.append(host)

    def detach(self, host: Host | HookRegistry) -> None:
        """Remove all plugins from an agent or registry, and add no more to it."""
        with self._lock:
            for mine in [mine for mine in self._hosts if mine is host or getattr(mine, "registry", None) is host]:
                self._hosts.remove(mine)
                for plugin in self.active:
                    mine.unplug(plugin.name)

    def watch(self, watcher: Callable[[Plugin, bool], None]) -> None:
        """Call ``watcher(plugin, on)`` after a plugin is switched on (true), and before it is switched off (false)."""
        self._watchers.append(watcher)

    def activate(self, name: str) -> Plugin:
        """Switch a plugin on by its id or its folder. An active plugin stays unchanged.

        Raises:
            PluginError: the plugin cannot be switched on, and no part of it is active. ``problems`` has the error too.
        """
        with self._lock:
            found = None
            try:
                found = self.find(name)
                if found.id not in self._active:
                    stamp = _stamp(found.folder)
                    self._switch_on(load_found(found, self.settings.get(found.id, EMPTY)))
                    self._stamps[found.id] = stamp
            except Exception as error:
                name = name if found is None else found.id
                failure = plugin_error(name, error)
                self.problems[name] = error_text(failure)
                raise failure from error
            self.problems.pop(found.id, None)
            return self._active[found.id]

    def activate_all(self, names: Iterable[str]) -> dict[str, str]:
        """Switch on several plugins, and return the errors of those that failed."""
        failed = {}
        for name in names:
            try:
                self.activate(name)
            except PluginError as error:
                failed[name] = error_text(error)
        return failed

    def deactivate(self, name: str) -> None:
        """Switch a plugin off, with everything that it added, also in runs in progress.

        If its own ``deactivate`` function fails, the error is in ``problems``.

        Raises:
            PluginError: the plugin is not active.
        """
        with self._lock:
            if name not in self._active:
                raise PluginError(f"plugin {name!r} is not active.{did_you_mean(name, self._active)}")
            if problem := self._switch_off(name):
                self.problems[name] = problem
            else:
                self.problems.pop(name, None)

    def close(self) -> None:
        """Switch all plugins off, in reverse order."""
        with self._lock:
            for plugin in reversed(self.active):
                self.deactivate(plugin.name)

    def reload(self, name: str) -> Plugin:
        """Reload a plugin from its files. If that fails, the old version is switched on again.

        The plugin is off while it is reloaded.

        Raises:
            PluginError: the plugin is not active, or cannot be loaded.
        """
        with self._lock:
            old = self._active.get(name)
            if old is None:
                raise PluginError(f"plugin {name!r} is not active.{did_you_mean(name, self._active)}")
            stamp = _stamp(_folder_of(old))
            try:
                found = self._find_again(name, old)
                self._switch_off(name)
                try:
                    self._switch_on(load_found(found, self.settings.get(name, EMPTY)))
                except Exception:
                    self._switch_on(old)
                    raise
            except Exception as error:
                failure = plugin_error(name, error)
                self.problems[name] = error_text(failure)
                raise failure from error
            finally:
                self._stamps[name] = stamp
            self.problems.pop(name, None)
            return self._active[name]

    def refresh(self) -> list[str]:
        """Reload the plugins whose files have changed, and return a message for each. For development."""
        notes = []
        with self._lock:
            for name, plugin in list(self._active.items()):
                folder = _folder_of(plugin)
                if folder is None or _stamp(folder) == self._stamps.get(name):
                    continue
                try:
                    new = self.reload(name)
                    notes.append(f"plugin {name!r} was reloaded, version {new.version}")
                except PluginError as error:
                    state = (
                        "the old version stays"
                        if name in self._active
                        else "it is off, because the old version fails too"
                    )
                    notes.append(f"plugin {name!r} has changed, but {state}: {error_text(error)}")
        return notes

    def check(self, name: str) -> list[str]:
        """Load a plugin, switch it on and off in an empty registry, and return the problems found."""
        problems: list[str] = []
        registry = HookRegistry()
        scratch = PluginManager(
            registry,
            folder=self.folder,
            named=self.named,
            settings=self.settings,
            installed=self._installed,
            trust=self._trust,
        )
        try:
            plugin = scratch.activate(name)
        except PluginError as error:
            return [error_text(error)]
        scratch.deactivate(plugin.name)
        problems += scratch.problems.values()
        if len(registry):
            problems.append(
                f"plugin {plugin.name!r}: {len(registry)} of its hooks are still registered after it was switched off"
            )
        return problems

    def _find_again(self, name: str, old: Plugin) -> FoundPlugin:
        folder = _folder_of(old)
        rows = [row for row in self.found() if row.id == name or (folder is not None and row.folder == folder)]
        found = next((row for row in rows if row.folder == folder), None)
        if found is None and folder is not None:
            found = plugin_in_folder(folder, trust=self._trust)  # it was activated by its path
        if found is None:
            raise PluginError(f"plugin {name!r} is no longer installed")
        if found.problem:
            raise PluginError(f"plugin {name!r}: {found.problem}")
        if found.id != name:
            raise PluginError(
                f"plugin {name!r} now has the id {found.id!r}: deactivate {name!r}, then activate {found.id!r}"
            )
        return found

    def _switch_on(self, plugin: Plugin) -> None:
        plugin.acquire()
        done: list[Host] = []
        try:
            self._check_conflicts(plugin)
            for host in self._hosts:
                host.plug(plugin)
                done.append(host)
        except BaseException:
            for host in done:
                with suppress(Exception):  # the first failure is reported
                    host.unplug(plugin.name)
            with suppress(Exception):
                plugin.release()
            raise
        self._active[plugin.name] = plugin
        self._notify(plugin, True)

    def _switch_off(self, name: str) -> str:
        """Switch a plugin off even if a step fails, and return the error, if there was one."""
        plugin, problem = self._active[name], ""
        self._notify(plugin, False)
        del self._active[name]
        self._stamps.pop(name, None)
        for remove in (*(host.unplug for host in self._hosts), None):
            try:
                plugin.release() if remove is None else remove(name)
            except Exception as error:  # noqa: BLE001 - a plugin may fail in any way, and must be off nevertheless
                problem = error_text(error)
                log.warning("%s", problem)
        return problem

    def _check_conflicts(self, plugin: Plugin) -> None:
        tools = {tool.name for tool in ToolRegistry(plugin.tools)}
        for other in self.active:
            if other.name == plugin.name:
                continue
            for name in plugin.channels:
                if name in other.channels:
                    raise RegistrationError(f"plugin {other.name!r} already has a channel {name!r}")
            for tool in ToolRegistry(other.tools):
                if tool.name in tools:
                    raise RegistrationError(f"plugin {other.name!r} already has a tool {tool.name!r}")

    def _notify(self, plugin: Plugin, on: bool) -> None:
        for watcher in self._watchers:
            try:
                watcher(plugin, on)
            except Exception:
                log.exception("a watcher of plugins failed")


class _RegistryHost:
    """Adds the hooks of plugins to a registry."""

    def __init__(self, registry: HookRegistry) -> None:
        self.registry = registry

    def plug(self, plugin: Plugin) -> None:
        done: list[Callable[[], None]] = []
        try:
            for hook in plugin.hooks:
                done.append(self.registry.register(hook, plugin=plugin.name))
        except BaseException:
            for undo in done:
                undo()
            raise

    def unplug(self, name: str) -> None:
        self.registry.unregister_plugin(name)


def _folder_of(plugin: Plugin) -> Path | None:
    return None if plugin.code is None else plugin.code.folder


def _stamp(folder: Path | None) -> Stamp:
    """Return the path, time and size of each file in a folder, without bytecode."""
    if folder is None:
        return frozenset()
    found = set()
    for path in folder.rglob("*"):
        with suppress(OSError):  # deleted meanwhile
            state = path.stat()
            if path.is_file() and "__pycache__" not in path.parts:
                found.add((str(path), state.st_mtime_ns, state.st_size))
    return frozenset(found)
