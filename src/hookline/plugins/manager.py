"""Plugins of a program: found, switched on and off, loaded anew when they change; one that fails harms no other."""

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
from .discovery import FoundPlugin, Trust, find_plugins, in_folder, is_path
from .errors import PluginError
from .loading import load_found, named_error
from .plugin import Plugin

log = logging.getLogger("hookline")

Stamp = frozenset[tuple[str, int, int]]


class Host(Protocol):
    """What plugins are plugged into, such as an ``Agent``."""

    def plug(self, plugin: Plugin, *, replace: bool = False) -> None:
        """Put one in, whole, or raise ``RegistrationError``; ``replace``: in the place of an older one of its name."""
        ...

    def unplug(self, name: str) -> None:
        """Take one out."""
        ...


class PluginManager:
    """Switches plugins on and off, for agents and registries.

    Args:
        hosts: agents, and registries whose points are fired outside of runs; more with :meth:`attach`.
        folder: a folder whose folders are plugins.
        named: paths of single plugins.
        settings: settings of plugins, by id.
        installed: whether to look at installed packages too.
        trust: says why a file in ``folder`` may be somebody else's; such plugins are not loaded.
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
        """What went wrong last, by plugin."""
        self._hosts: list[Host] = []
        self._active: dict[str, Plugin] = {}
        self._stamps: dict[str, Stamp] = {}
        self._watchers: list[Callable[[Plugin, bool], None]] = []
        self._lock = threading.RLock()
        for host in hosts:
            self.attach(host)

    @property
    def active(self) -> tuple[Plugin, ...]:
        """The plugins that are on."""
        return tuple(self._active.values())

    @property
    def channels(self) -> dict[str, Any]:
        """The channels that plugins which are on offer, by name: what makes each."""
        return {name: make for plugin in self.active for name, make in plugin.channels.items()}

    def found(self) -> list[FoundPlugin]:
        """All plugins that there are, those that cannot be used too. None of their code runs."""
        return find_plugins(self.folder, self.named, installed=self._installed, trust=self._trust)

    def find(self, name: str) -> FoundPlugin:
        """The plugin of this id, or in this folder.

        Raises:
            PluginError: there is none.
        """
        if is_path(name):
            return in_folder(Path(name).expanduser())
        rows = self.found()
        mine = [row for row in rows if row.id == name]
        if not mine:
            known = [row.id for row in rows]
            places = "among the installed packages" + ("" if self.folder is None else f" or in {self.folder}")
            there = f"There are {', '.join(sorted(set(known)))}" if known else "There are none"
            raise PluginError(f"there is no plugin {name!r} {places}.{did_you_mean(name, known)} {there}")
        return next((row for row in mine if not row.problem), mine[0])

    def attach(self, host: Host | HookRegistry) -> None:
        """Plug into one more agent or registry all plugins that are on, and those that come.

        Raises:
            RegistrationError: one of them cannot work there; then none is plugged in.
        """
        host = _OfRegistry(host) if isinstance(host, HookRegistry) else host
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
        """Take all plugins out of an agent or registry, and leave it alone from now on."""
        with self._lock:
            for mine in [mine for mine in self._hosts if mine is host or getattr(mine, "registry", None) is host]:
                self._hosts.remove(mine)
                for plugin in self.active:
                    mine.unplug(plugin.name)

    def watch(self, watcher: Callable[[Plugin, bool], None]) -> None:
        """Call ``watcher(plugin, True)`` after a plugin was switched on, ``(plugin, False)`` before it is off."""
        self._watchers.append(watcher)

    def activate(self, name: str) -> Plugin:
        """Switch a plugin on, by its id or its folder; one that is on stays.

        Raises:
            PluginError: it cannot be; nothing of it is left. It is in ``problems`` too.
        """
        with self._lock:
            found = None
            try:
                found = self.find(name)
                if found.id not in self._active:
                    stamp = _stamp(found.folder)
                    self._switch_on(load_found(found, self._values(found.id)))
                    self._stamps[found.id] = stamp
            except Exception as error:
                name = name if found is None else found.id
                failure = named_error(name, error)
                self.problems[name] = error_text(failure)
                raise failure from error
            self.problems.pop(found.id, None)
            return self._active[found.id]

    def activate_all(self, names: Iterable[str]) -> dict[str, str]:
        """Switch on all of these; what is wrong with those that cannot be. The others are not touched by it."""
        failed = {}
        for name in names:
            try:
                self.activate(name)
            except PluginError as error:
                failed[name] = error_text(error)
        return failed

    def deactivate(self, name: str) -> None:
        """Switch a plugin off: all that it brought is gone, also for runs that are under way.

        A ``deactivate`` of its own that fails is told in ``problems``.

        Raises:
            PluginError: it is not on.
        """
        with self._lock:
            if name not in self._active:
                raise PluginError(f"plugin {name!r} is not on.{did_you_mean(name, self._active)}")
            if problem := self._switch_off(name):
                self.problems[name] = problem
            else:
                self.problems.pop(name, None)

    def close(self) -> None:
        """Switch all plugins off, the last one first."""
        with self._lock:
            for plugin in reversed(self.active):
                self.deactivate(plugin.name)

    def reload(self, name: str) -> Plugin:
        """Load a plugin anew, from what its files say now. If that fails, the old one stays.

        Raises:
            PluginError: it is not on, or cannot be loaded.
        """
        with self._lock:
            old = self._active.get(name)
            if old is None:
                raise PluginError(f"plugin {name!r} is not on.{did_you_mean(name, self._active)}")
            try:
                found = self._again(name, old)
                stamp = _stamp(found.folder)
                self._stamps[name] = stamp  # also of what is broken: it is told once
                new = load_found(found, self._values(name), old)
                try:
                    if old.lively or new.lively:
                        self._switch_off(name)
                        try:
                            self._switch_on(new)
                        except Exception:
                            self._switch_on(old)
                            raise
                    else:
                        self._swap(old, new)
                finally:
                    self._stamps[name] = stamp
            except Exception as error:
                failure = named_error(name, error)
                self.problems[name] = error_text(failure)
                raise failure from error
            self.problems.pop(name, None)
            return new

    def refresh(self) -> list[str]:
        """Load anew the plugins whose files have changed; what was done, in words. For development."""
        notes = []
        with self._lock:
            for name, plugin in list(self._active.items()):
                folder = None if plugin.code is None else plugin.code.folder
                if folder is None or _stamp(folder) == self._stamps.get(name):
                    continue
                try:
                    new = self.reload(name)
                    notes.append(f"plugin {name!r} has changed: loaded anew, version {new.version}")
                except PluginError as error:
                    self._stamps[name] = _stamp(folder)
                    left = "the old one stays" if name in self._active else "it is off, for the old one fails now too"
                    notes.append(f"plugin {name!r} has changed, but {left}: {error_text(error)}")
        return notes

    def check(self, name: str) -> list[str]:
        """What is wrong with a plugin, by id or folder: it is loaded, switched on in an empty place, and off again."""
        problems: list[str] = []
        registry = HookRegistry()
        scratch = PluginManager(
            registry, folder=self.folder, named=self.named, settings=self.settings, installed=self._installed,
            trust=self._trust,
        )  # fmt: skip
        try:
            plugin = scratch.activate(name)
        except PluginError as error:
            return [error_text(error)]
        scratch.deactivate(plugin.name)
        problems += scratch.problems.values()
        if len(registry):
            problems.append(f"plugin {plugin.name!r}: {len(registry)} of its hooks are still there after it was off")
        return problems

    def _values(self, name: str) -> Any:
        return self.settings.get(name, EMPTY)

    def _again(self, name: str, old: Plugin) -> FoundPlugin:
        folder = None if old.code is None else old.code.folder
        rows = [row for row in self.found() if row.id == name or (folder is not None and row.folder == folder)]
        found = next((row for row in rows if row.folder == folder), None)
        if found is None and folder is not None:
            found = in_folder(folder)  # named when it was activated
        if found is None:
            raise PluginError(f"plugin {name!r} is gone")
        if not found.problem and found.id != name:
            raise PluginError(f"plugin {name!r} calls itself {found.id!r} now: deactivate the one, activate the other")
        return found

    def _switch_on(self, plugin: Plugin) -> None:
        plugin.hold()
        done: list[Host] = []
        try:
            self._check_conflicts(plugin)
            for host in self._hosts:
                host.plug(plugin)
                done.append(host)
        except BaseException:
            for host in done:
                with suppress(Exception):  # the first failure counts
                    host.unplug(plugin.name)
            with suppress(Exception):
                plugin.release()
            raise
        self._active[plugin.name] = plugin
        self._tell(plugin, True)

    def _swap(self, old: Plugin, new: Plugin) -> None:
        """Put one in the place of the other, so that there is no moment in which neither holds."""
        self._check_conflicts(new)
        new.hold()
        done: list[Host] = []
        try:
            for host in self._hosts:
                host.plug(new, replace=True)
                done.append(host)
        except BaseException:
            for host in done:
                host.plug(old, replace=True)
            new.release()
            raise
        self._tell(old, False)
        self._active[new.name] = new
        old.release()
        self._tell(new, True)

    def _switch_off(self, name: str) -> str:
        """What was wrong with that, if anything; the plugin is off in any case."""
        plugin, problem = self._active[name], ""
        self._tell(plugin, False)
        del self._active[name]
        self._stamps.pop(name, None)
        for leave in (*(host.unplug for host in self._hosts), None):
            try:
                plugin.release() if leave is None else leave(name)
            except Exception as error:  # noqa: BLE001 - a plugin may fail in any way, and is off all the same
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
                    raise RegistrationError(f"plugin {other.name!r} offers a channel {name!r} already")
            for tool in ToolRegistry(other.tools):
                if tool.name in tools:
                    raise RegistrationError(f"plugin {other.name!r} brings a tool {tool.name!r} already")

    def _tell(self, plugin: Plugin, on: bool) -> None:
        for watcher in self._watchers:
            try:
                watcher(plugin, on)
            except Exception:
                log.exception("a watcher of plugins failed")


class _OfRegistry:
    """A registry as a host: it takes the hooks."""

    def __init__(self, registry: HookRegistry) -> None:
        self.registry = registry

    def plug(self, plugin: Plugin, *, replace: bool = False) -> None:
        before = [entry for entry in self.registry._entries if replace and entry.plugin == plugin.name]
        done: list[Callable[[], None]] = []
        try:
            for hook in plugin.hooks:
                done.append(self.registry.register(hook, plugin=plugin.name))
        except BaseException:
            for undo in done:
                undo()
            raise
        self.registry._change(lambda entries: tuple(e for e in entries if not any(e is old for old in before)))

    def unplug(self, name: str) -> None:
        self.registry.unregister_plugin(name)


def _stamp(folder: Path | None) -> Stamp:
    """What the files of a folder look like from outside; compiled ones do not count."""
    if folder is None:
        return frozenset()
    found = set()
    for path in folder.rglob("*"):
        with suppress(OSError):  # it is gone meanwhile
            state = path.stat()
            if path.is_file() and "__pycache__" not in path.parts:
                found.add((str(path), state.st_mtime_ns, state.st_size))
    return frozenset(found)
