"""Names of things outside the settings: files, ``FILE.py:name`` and ``module:name``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from ..hooks._catalog import BUILTINS
from ..plugins.discovery import is_path

_FILE = re.compile(r"(?P<file>.+\.py)(?::(?P<name>[^:/\\]+))?")
_MODEL_FILES = ("local:", "scripted:")
_PLACES = frozenset((
    "folder", "sessions", "runs", "audit", "approval_file", "plugins_folder", "personalities", "tickets", "skills",
))  # fmt: skip
"""Settings that are a file or a folder."""
_PATHS = frozenset(("path", "folder", "memory", "notes", "store", "artifacts", "sign", "checkpoint", "board"))
"""What hooks of Hookline's own call their arguments that are paths."""


class Reference(msgspec.Struct, frozen=True):
    """What a text such as ``rules.py:keep_files`` or ``package.rules:Limit`` points at."""

    text: str
    file: Path | None = None
    module: str = ""
    name: str = ""


def parse(text: str) -> Reference:
    """A reference from its text; without ``.py`` it is a module's."""
    found = _FILE.fullmatch(text)
    if found:
        return Reference(text, Path(found["file"]).expanduser(), "", found["name"] or "")
    module, _, name = text.partition(":")
    return Reference(text, None, module, name)


def anchored(key: str, value: Any, folder: Path) -> Any:
    """A setting's value with its relative paths made absolute, from ``folder``."""
    if key in _PLACES:
        return value if value in (None, "", ":memory:") else str(folder / Path(value).expanduser())
    if key == "model":
        kind = next((kind for kind in _MODEL_FILES if value.startswith(kind)), None)
        return value if kind is None else f"{kind}{folder / Path(value.removeprefix(kind)).expanduser()}"
    if key == "plugins":
        return tuple(str(folder / Path(item).expanduser()) if is_path(item) else item for item in value)
    if key in ("hooks", "tools", "channels"):
        return tuple(_anchored(item, folder) for item in value)
    return value


def _anchored(item: Any, folder: Path) -> Any:
    if not isinstance(item, str):
        ours = item.use in BUILTINS or re.match(r"hookline[.:]", item.use) is not None
        args = {k: _path(k, v, folder) for k, v in item.args.items()} if ours else item.args
        return msgspec.structs.replace(item, use=_anchored(item.use, folder), args=args)
    found = _FILE.fullmatch(item)
    if not found:
        return item
    path = folder / Path(found["file"]).expanduser()
    return f"{path}:{found['name']}" if found["name"] else str(path)


def _path(name: str, value: Any, folder: Path) -> Any:
    if name not in _PATHS or not isinstance(value, str) or value in ("", ":memory:"):
        return value
    return str(folder / Path(value).expanduser())
