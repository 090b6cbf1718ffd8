"""Find plugins in installed packages, in a folder of plugins, and at given paths, without running their code."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import msgspec

from .._base.text import error_text
from .errors import LoadError
from .manifest import MANIFEST, Manifest, read_manifest

GROUP = "hookline.plugins"
"""The entry-point group of plugins."""

Trust = Callable[[Path], str | None]
"""Returns why a file is not trusted, or ``None`` if it is."""


class FoundPlugin(msgspec.Struct, frozen=True):
    """A plugin that was found and is not loaded yet.

    ``manifest`` is ``None`` for an entry point that names an object. ``problem`` says why the plugin cannot be used.
    """

    id: str
    source: Literal["installed", "folder", "named"]
    where: str
    version: str = ""
    manifest: Manifest | None = None
    folder: Path | None = None
    entry: Any = None
    problem: str = ""


def installed_plugins() -> dict[str, Any]:
    """Return the entry points of installed plugins by name, without loading them."""
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=GROUP)}


def is_path(name: str) -> bool:
    """Return whether the name of a plugin is a path."""
    return os.sep in name or "/" in name or name.startswith(("~", "."))


def find_plugins(
    folder: Path | None = None, named: Iterable[str] = (), *, installed: bool = True, trust: Trust | None = None
) -> list[FoundPlugin]:
    """Find all plugins, including those that cannot be used.

    If two plugins have the same id, the ``named`` one is used; if none is named, neither is used.

    Args:
        folder: a folder whose subfolders with a manifest are plugins.
        named: folders of single plugins.
        installed: whether to search installed packages.
        trust: called for the files of each plugin that is not installed.
    """
    found = [plugin_in_folder(Path(path).expanduser(), "named", trust) for path in named if is_path(path)]
    if folder is not None and folder.is_dir():
        for place in sorted(folder.iterdir()):
            if (place / MANIFEST).is_file() and not any(each.folder == place.resolve() for each in found):
                found.append(plugin_in_folder(place, "folder", trust))
    if installed:
        found += _installed()
    return _mark_duplicates(found)


def plugin_in_folder(
    folder: Path, source: Literal["folder", "named"] = "named", trust: Trust | None = None
) -> FoundPlugin:
    """Read the manifest of the plugin in a folder."""
    folder = folder.resolve()
    where = str(folder)
    try:
        manifest = read_manifest(folder / MANIFEST)
    except LoadError as error:
        return FoundPlugin(folder.name, source, where, folder=folder, problem=error_text(error))
    problem = "" if trust is None else _distrust(folder, trust)
    return FoundPlugin(manifest.id, source, where, manifest.version, manifest, folder, None, problem)


def _distrust(folder: Path, trust: Trust) -> str:
    for path in (folder, folder / MANIFEST, *sorted(folder.rglob("*.py"))):
        if why := trust(path):
            return f"{path} is not trusted: {why}. Change its owner or permissions: chmod go-w, chown"
    return ""


def _installed() -> list[FoundPlugin]:
    from importlib.metadata import entry_points

    found = []
    for entry in entry_points(group=GROUP):
        where = entry.dist.name if entry.dist is not None else entry.value
        version = entry.dist.version if entry.dist is not None else ""
        row = FoundPlugin(entry.name, "installed", where, version, entry=entry)
        if not entry.attr and (folder := _package_folder(entry.module)) is not None:
            row = msgspec.structs.replace(plugin_in_folder(folder), source="installed", where=where, entry=entry)
            if row.id != entry.name:
                text = row.problem or f"its entry point is named {entry.name!r}, but its manifest has the id {row.id!r}"
                row = msgspec.structs.replace(row, id=entry.name, problem=text)
        found.append(row)
    return found


def _package_folder(module: str) -> Path | None:
    """Return the folder of a package with a manifest, without importing the package."""
    top, _, rest = module.partition(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        folder = Path(place, *rest.split(".")) if rest else Path(place)
        if (folder / MANIFEST).is_file():
            return folder
    return None


def _mark_duplicates(found: list[FoundPlugin]) -> list[FoundPlugin]:
    by_id: dict[str, list[FoundPlugin]] = {}
    for each in found:
        by_id.setdefault(each.id, []).append(each)
    rows = []
    for each in found:
        others = [other for other in by_id[each.id] if other is not each]
        if not others or (each.source == "named" and not any(other.source == "named" for other in others)):
            rows.append(each)
            continue
        places = ", ".join(other.where for other in others)
        remedy = "remove all but one, or name the folder of one in plugins"
        text = each.problem or f"{each.id!r} is also found at {places}: {remedy}"
        rows.append(msgspec.structs.replace(each, problem=text))
    return rows
