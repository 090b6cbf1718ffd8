"""Load plugins: import their code in isolation, and assemble a :class:`Plugin` from it."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import itertools
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from .._base.frozen import EMPTY
from .._base.own_files import OwnFile, register_own_file
from .._base.text import describe, did_you_mean, error_text
from .._kernel.errors import HooklineError, RegistrationError
from .._kernel.hook import DecoratedFunction
from .._kernel.points import Point
from .._kernel.registry import HookRegistry
from ..tools._tool import Tool
from .discovery import FoundPlugin, find_plugins, is_path, plugin_in_folder
from .errors import LoadError, PluginError
from .manifest import MANIFEST, Manifest, check_settings
from .plugin import Plugin, capture_points
from .trust import SourceLoader, check_file

PREFIX = "_hookline_plugin_"
_FILE = re.compile(r"(?P<file>.+)\.py(?::(?P<name>[\w.]+))?")
_MODULE = re.compile(r"(?P<module>[\w.]+):(?P<name>[\w.]+)")
T = TypeVar("T")
_numbers = itertools.count(1)


def load_plugins(plugins: Any) -> tuple[Plugin, ...]:
    """Load plugins that are given by name; :class:`Plugin` objects are returned unchanged.

    Raises:
        RegistrationError: an entry is neither a plugin nor its name; the message says what to write.
    """
    if isinstance(plugins, str) or not isinstance(plugins, Iterable):
        name = repr(plugins) if isinstance(plugins, str) else type(plugins).__name__
        raise RegistrationError(f"plugins must be a list of plugins, not {name}: write plugins=[...]")
    return tuple(item if isinstance(item, Plugin) else load_plugin(_check_name(item)) for item in plugins)


def without_plugins(hooks: Any) -> Any:
    """Return the hooks unchanged if there is no plugin among them.

    Raises:
        RegistrationError: one of the hooks is a plugin.
    """
    if isinstance(hooks, (str, HookRegistry)) or not isinstance(hooks, Iterable):
        return hooks
    hooks = tuple(hooks)
    for item in hooks:
        if isinstance(item, Plugin):
            raise RegistrationError(f"{item!r} is a plugin: pass it as plugins=[...]")
    return hooks


def _check_name(item: Any) -> str | os.PathLike[str]:
    if isinstance(item, (str, os.PathLike)):
        return item
    if isinstance(item, (list, tuple)):
        raise RegistrationError(
            f"plugins=[...] contains a list: if these are hooks, write hooks=[*...]; got {item!r:.80}"
        )
    if hasattr(item, "points") and not isinstance(item, type):
        raise RegistrationError(f"{type(item).__name__} is a hook: pass it as hooks=[...]")
    if callable(item) and hasattr(item, "__name__"):
        raise RegistrationError(
            f"{item.__name__} is not a plugin: if it makes one, call it: plugins=[{item.__name__}()]"
        )
    raise RegistrationError(f"{item!r:.80} is neither a plugin nor the name of an installed one")


def load_plugin(name: str | os.PathLike[str], settings: Mapping[str, Any] = EMPTY) -> Plugin:
    """Load an installed plugin by its name, or a plugin in a folder by its path.

    Example:
        >>> plugin = load_plugin("plugins/quiet", settings={"words": ["boo"]})

    Raises:
        PluginError: there is no such plugin, or it cannot be loaded.
    """
    if not isinstance(name, str) or is_path(name):
        return load_found(plugin_in_folder(Path(name).expanduser()), settings)
    known = {each.id: each for each in find_plugins()}
    if name not in known:
        raise PluginError(f"no installed plugin {name!r}.{did_you_mean(name, known)} Installed: {sorted(known)}")
    return load_found(known[name], settings)


def load_found(found: FoundPlugin, settings: Mapping[str, Any] = EMPTY) -> Plugin:
    """Import the code of a plugin and check its settings. The plugin is not switched on.

    Raises:
        PluginError: the plugin cannot be used, or its code fails.
    """
    if found.problem:
        raise PluginError(f"plugin {found.id!r}: {found.problem}")
    try:
        if found.manifest is None:
            return _from_entry_point(found).configured(settings)
        if found.folder is not None and found.entry is None:
            manifest = found.folder / MANIFEST
            check_file(manifest, manifest.read_bytes())
        return _from_manifest(found, found.manifest, settings)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a plugin may raise anything, even SystemExit
        raise plugin_error(found.id, error) from error


def plugin_error(name: str, error: BaseException) -> PluginError:
    """Make a ``PluginError`` from another error, with the name of the plugin in front."""
    text, name = error_text(error) if isinstance(error, HooklineError) else describe(error), f"plugin {name!r}"
    return PluginError(text if text.startswith(name) else f"{name}: {text}")


def _from_entry_point(found: FoundPlugin) -> Plugin:
    """Load the object of an entry point: a Plugin, a hook, or a list of hooks."""
    code = PluginCode(found.id, None, found.entry.module.partition(".")[0])

    def load() -> Any:
        try:
            return found.entry.load()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise LoadError(f"it cannot be loaded: {describe(error)}") from error

    value = code.load(load)
    if hasattr(value, "points") and not isinstance(value, Plugin):
        value = [value]
    if isinstance(value, (list, tuple)):
        value = Plugin(found.id, value, version=found.version)
    if not isinstance(value, Plugin):
        raise LoadError(
            f"it is a {type(value).__name__}; expected a Plugin, a hook or a list of hooks, "
            "or a package with a plugin.toml"
        )
    if value.code is None:
        value.code = code
    return value


def _from_manifest(found: FoundPlugin, manifest: Manifest, settings: Mapping[str, Any]) -> Plugin:
    values = check_settings(manifest.settings, settings, f"plugin_settings.{manifest.id}")
    package = "" if found.entry is None else found.entry.module
    code = PluginCode(manifest.id, found.folder, package, values)
    if found.folder is not None:
        register_own_file(code, OwnFile(str(found.folder), "the folder of a plugin", is_folder=True))
    plugin = code.load(lambda: _assemble(manifest, code).configured(settings))
    for point in code.points:
        if point not in plugin.points:
            code.unload()
            raise LoadError(f"its code declares the point {point!s}: list it in points = [...]")
    plugin.code = code
    return plugin


def _assemble(manifest: Manifest, code: PluginCode) -> Plugin:
    points = code.resolve("points", manifest.points)
    for text, point in zip(manifest.points, points, strict=True):
        if not isinstance(point, Point):
            raise LoadError(f"points: {text} is a {type(point).__name__}, not a Point")
    channels = dict(zip(manifest.channels, code.resolve("channels", manifest.channels.values()), strict=True))
    for name, make in channels.items():
        if not callable(make):
            raise LoadError(f"channels.{name}: {manifest.channels[name]} must be a class or a function")
    plugin = Plugin(
        manifest.id,
        code.resolve("hooks", manifest.hooks),
        code.resolve("tools", manifest.tools),
        version=manifest.version,
        api=manifest.api,
        description=manifest.description,
        channels=channels,
        points=points,
        settings=manifest.settings,
        permissions=manifest.permissions,
        required=manifest.required,
        activate=_function(code, "activate", manifest.activate),
        deactivate=_function(code, "deactivate", manifest.deactivate),
    )
    plugin.check()
    return plugin


def _function(code: PluginCode, kind: str, text: str) -> Any:
    for value in code.resolve(kind, [text] if text else []):
        if not callable(value):
            raise LoadError(f"{kind}: {text} is a {type(value).__name__}, not a function")
        return value
    return None


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of plugins that are folders."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if not name.startswith(PREFIX) or not path:
            return None
        module = Path(path[0]) / name.rpartition(".")[2]
        file, folders = module.with_suffix(".py"), None
        if module.is_dir():
            file, folders = module / "__init__.py", [str(module)]
        if not file.is_file():
            if folders is None:
                return None
            spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = folders
            return spec
        loader = SourceLoader(name, str(file))
        return importlib.util.spec_from_file_location(name, file, loader=loader, submodule_search_locations=folders)


_finder = _Finder()


class PluginCode:
    """The modules of one plugin, which can be removed from ``sys.modules`` again.

    Args:
        plugin: the id of the plugin.
        folder: the folder of its code.
        package: the name of its installed package; without one, the folder becomes a package with a unique name.
        settings: the argument for classes and functions with a parameter ``settings``.
    """

    def __init__(
        self, plugin: str, folder: Path | None, package: str = "", settings: Mapping[str, Any] = EMPTY
    ) -> None:
        self.folder, self.installed, self.settings = folder, bool(package), settings
        self.package = package or f"{PREFIX}{re.sub(r'[^0-9a-z]', '_', plugin)}_{next(_numbers)}"
        self.points: list[Point[Any]] = []
        self._modules: dict[str, ModuleType] = {}

    def load(self, work: Callable[[], T]) -> T:
        """Call a function that imports the code. Points that the code declares are collected and withdrawn.

        If the function fails, its modules are removed from ``sys.modules``.
        """
        known = dict(sys.modules)
        try:
            with capture_points() as self.points:
                self._import_package()
                made = work()
        except BaseException:
            self._collect_modules(known)
            self.unload()
            raise
        self._collect_modules(known)
        return made

    def unload(self) -> None:
        """Remove the modules from ``sys.modules``."""
        for name, module in self._modules.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]

    def put_back(self) -> None:
        """Put the modules into ``sys.modules`` again."""
        sys.modules.update(self._modules)

    def _import_package(self) -> None:
        importlib.invalidate_caches()
        if self.folder is None or self.installed:
            return
        if _finder not in sys.meta_path:
            sys.meta_path.insert(0, _finder)  # before the default finder, which uses bytecode
        start = self.folder / "__init__.py"
        loader = SourceLoader(self.package, str(start)) if start.is_file() else None
        spec = importlib.machinery.ModuleSpec(self.package, loader, origin=str(start), is_package=True)
        spec.submodule_search_locations = [str(self.folder)]
        spec.has_location = loader is not None
        package = importlib.util.module_from_spec(spec)
        sys.modules[self.package] = package
        if loader is not None:
            self._guarded("__init__.py", lambda: loader.exec_module(package))

    def _collect_modules(self, known: Mapping[str, ModuleType]) -> None:
        top = self.package.partition(".")[0]
        for name, module in list(sys.modules.items()):
            if known.get(name) is not module and name.partition(".")[0] == top:
                self._modules[name] = module

    def resolve(self, kind: str, references: Iterable[str]) -> list[Any]:
        """Return the objects that references name. Call this method inside :meth:`load`.

        Args:
            kind: the manifest field that contains the references, for error messages.
            references: the references.

        Raises:
            LoadError: a reference names nothing, or its code fails.
        """
        return [value for text in references for value in self._resolve(kind, text)]

    def _resolve(self, kind: str, text: str) -> list[Any]:
        module, name = self._module(text)
        if not name:
            if kind not in ("hooks", "tools"):
                raise LoadError(f"{kind}: {text!r} names a whole file: write {text}:NAME")
            return self._all_in_file(kind, text, module)
        value: Any = module
        for part in name.split("."):
            if not hasattr(value, part):
                raise LoadError(f"{kind}: {text} has no {name!r}.{did_you_mean(part, dir(value))}")
            value = getattr(value, part)
        if kind in ("hooks", "tools") and _is_factory(value):
            value = self._make(kind, text, value)
        return list(value) if kind in ("hooks", "tools") and isinstance(value, (list, tuple)) else [value]

    def _make(self, kind: str, text: str, make: Any) -> Any:
        takes_settings = "settings" in inspect.signature(make).parameters
        try:
            return make(settings=self.settings) if takes_settings else make()
        except Exception as error:
            raise LoadError(f"{kind}: {text} cannot be made: {describe(error)}") from error

    def _all_in_file(self, kind: str, text: str, module: ModuleType) -> list[Any]:
        found: list[Any] = list(getattr(module, kind, ()))
        wanted = DecoratedFunction if kind == "hooks" else Tool
        for value in vars(module).values():
            defined_here = isinstance(value, wanted) and getattr(value.fn, "__module__", "") == module.__name__
            if defined_here and not any(value is known for known in found):
                found.append(value)
        if not found:
            raise LoadError(f"{kind}: {text} defines no {kind}: name an object, as in {text}:NAME")
        return found

    def _module(self, text: str) -> tuple[ModuleType, str]:
        assert self.folder is not None  # only manifests have references, and they are in a folder
        if match := _FILE.fullmatch(text):
            path = Path(match["file"])
            if path.is_absolute() or ".." in path.parts:
                raise LoadError(f"{text!r} is outside the plugin's folder")
            if not (self.folder / f"{match['file']}.py").is_file():
                raise LoadError(f"{text!r}: there is no file {self.folder / match['file']}.py")
            return self._import(text, f"{self.package}.{'.'.join(path.parts)}"), match["name"] or ""
        if not (match := _MODULE.fullmatch(text)):
            raise LoadError(f"{text!r} is not a reference to code: write FILE.py:NAME or module:NAME")
        inside = self.folder / match["module"].replace(".", "/")
        is_own = inside.with_suffix(".py").is_file() or inside.is_dir()
        name = f"{self.package}.{match['module']}" if is_own else match["module"]
        return self._import(text, name), match["name"]

    def _import(self, text: str, name: str) -> Any:
        return self._guarded(text, lambda: importlib.import_module(name))

    def _guarded(self, text: str, work: Callable[[], Any]) -> Any:
        """Call a function of the import system; its errors become a ``LoadError`` with file and line."""
        try:
            return work()
        except (KeyboardInterrupt, LoadError):
            raise
        except BaseException as error:
            hint, folder = "", self.folder
            if folder and isinstance(error, ModuleNotFoundError) and error.name and "." not in error.name:
                beside = folder / error.name
                if beside.with_suffix(".py").is_file() or beside.is_dir():
                    hint = f". It is in the plugin's own folder: write 'from . import {error.name}'"
            raise LoadError(f"{text}: {self._location(error)}{describe(error)}{hint}") from error

    def _location(self, error: BaseException) -> str:
        if isinstance(error, SyntaxError):
            return f"{error.filename}, line {error.lineno}: "
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if self.folder is not None and Path(frame.filename).is_relative_to(self.folder)
        ]
        return f"{frames[-1].filename}, line {frames[-1].lineno}: " if frames else ""


def _is_factory(value: Any) -> bool:
    """Return whether a value makes hooks or tools: a class, or a function whose only parameter is ``settings``."""
    if isinstance(value, type):
        return True
    return inspect.isfunction(value) and list(inspect.signature(value).parameters) == ["settings"]
