"""Plugins from what was found: installed ones by name, those in folders by path."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .._base.frozen import EMPTY
from .._base.text import describe, did_you_mean, error_text
from .._kernel.errors import HooklineError, RegistrationError
from .._kernel.points import Point
from .._kernel.registry import HookRegistry
from .code import Code
from .discovery import FoundPlugin, find_plugins, in_folder, is_path
from .errors import LoadError, PluginError
from .manifest import Manifest
from .plugin import Plugin
from .settings import checked


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


def _named(item: Any) -> str | os.PathLike[str]:
    if isinstance(item, (str, os.PathLike)):
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


def load_plugin(name: str | os.PathLike[str], settings: Mapping[str, Any] = EMPTY) -> Plugin:
    """Load a plugin: an installed one by its name, or one in a folder by its path.

    Raises:
        PluginError: there is none, or it cannot be loaded.
    """
    if not isinstance(name, str) or is_path(name):
        return load_found(in_folder(Path(name).expanduser()), settings)
    known = {each.id: each for each in find_plugins()}
    if name not in known:
        raise PluginError(f"no installed plugin {name!r}.{did_you_mean(name, known)} Installed: {sorted(known)}")
    return load_found(known[name], settings)


def load_found(found: FoundPlugin, settings: Mapping[str, Any] = EMPTY, before: Plugin | None = None) -> Plugin:
    """The plugin that was found, with its code loaded and its settings checked; nothing of it is switched on.

    Args:
        found: what was found.
        settings: its settings.
        before: an older version of it, which is on.

    Raises:
        PluginError: it cannot be used, or its code fails.
    """
    if found.problem:
        raise PluginError(f"plugin {found.id!r}: {found.problem}")
    try:
        if found.manifest is None:
            return _offered(found, before).configured(settings)
        return _from_manifest(found, found.manifest, settings, before)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a plugin may raise anything, SystemExit too
        raise named_error(found.id, error) from error


def named_error(name: str, error: BaseException) -> PluginError:
    """The same words, with the plugin's name in front."""
    text, name = error_text(error) if isinstance(error, HooklineError) else describe(error), f"plugin {name!r}"
    return PluginError(text if text.startswith(name) else f"{name}: {text}")


def _offered(found: FoundPlugin, before: Plugin | None) -> Plugin:
    """What an entry point leads to: a Plugin, a hook, or a list of hooks."""
    old = None if before is None else before.code
    code = Code(found.id, None, found.entry.module.partition(".")[0], before=old)

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


def _from_manifest(
    found: FoundPlugin, manifest: Manifest, settings: Mapping[str, Any], before: Plugin | None
) -> Plugin:
    values = checked(manifest.settings, settings, f"plugin_settings.{manifest.id}")
    package = "" if found.entry is None else found.entry.module
    code = Code(manifest.id, found.folder, package, values, None if before is None else before.code)
    plugin = code.load(lambda: _assembled(manifest, code).configured(settings))
    for point in code.points:
        if point not in plugin.points:
            code.unload()
            raise LoadError(f"its code declares the point {point!s}: name it in points = [...]")
    plugin.code = code
    return plugin


def _assembled(manifest: Manifest, code: Code) -> Plugin:
    points = code.values("points", manifest.points)
    for text, point in zip(manifest.points, points, strict=True):
        if not isinstance(point, Point):
            raise LoadError(f"points: {text} is a {type(point).__name__}, not a Point")
    channels = dict(zip(manifest.channels, code.values("channels", manifest.channels.values()), strict=True))
    for name, make in channels.items():
        if not callable(make):
            raise LoadError(f"channels.{name}: {manifest.channels[name]} makes nothing: name a class or a function")
    plugin = Plugin(
        manifest.id, code.values("hooks", manifest.hooks), code.values("tools", manifest.tools),
        version=manifest.version, api=manifest.api, description=manifest.description, channels=channels,
        points=points, settings=manifest.settings, permissions=manifest.permissions, required=manifest.required,
        activate=_function(code, "activate", manifest.activate),
        deactivate=_function(code, "deactivate", manifest.deactivate),
    )  # fmt: skip
    plugin.check()
    return plugin


def _function(code: Code, kind: str, text: str) -> Any:
    for value in code.values(kind, [text] if text else []):
        if not callable(value):
            raise LoadError(f"{kind}: {text} is a {type(value).__name__}, not a function")
        return value
    return None
