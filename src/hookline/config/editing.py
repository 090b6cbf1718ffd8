"""Edit a configuration file without changing its comments or layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .._base.files import replace_file
from .._base.text import error_text
from ..models.errors import NotInstalledError
from .errors import ConfigError
from .sources import SHARED_FILE


def add_to_list(path: Path, key: str, value: str) -> bool:
    """Append a value to a list in a configuration file, which is created if needed. Return false if it is listed.

    Raises:
        ConfigError: the file cannot be read or written; it is unchanged.
        NotInstalledError: a package is missing.
    """
    document = _read(path)
    table = _table(document, path)
    items = table.get(key)
    if items is None:
        items = table[key] = [value]
    elif not isinstance(items, list):
        raise ConfigError(f"{path}: {key} is not a list")
    elif value in items:
        return False
    else:
        items.append(value)
    _write(path, document, key, list(items))
    return True


def remove_from_list(path: Path, key: str, value: str) -> bool:
    """Remove a value from a list in a configuration file. Return false if it is not there.

    Raises:
        ConfigError: the file cannot be read or written; it is unchanged.
        NotInstalledError: a package is missing.
    """
    document = _read(path)
    items = _table(document, path).get(key, [])
    if value not in items:
        return False
    items.remove(value)
    _write(path, document, key, list(items))
    return True


def _read(path: Path) -> Any:
    try:
        import tomlkit
        from tomlkit.exceptions import TOMLKitError
    except ImportError as error:
        raise NotInstalledError("tomlkit", "cli") from error
    try:
        return tomlkit.parse(path.read_bytes().decode()) if path.exists() else tomlkit.document()
    except TOMLKitError as error:
        raise ConfigError(f"{path} is not valid TOML: {error_text(error)}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error_text(error)}") from error


def _table(document: Any, path: Path) -> Any:
    if path.name != SHARED_FILE:
        return document
    table = document
    for name in ("tool", "hookline"):
        if name not in table:
            table[name] = {}
        table = table[name]
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: {name} is not a table")
    return table


def _write(path: Path, document: Any, key: str, items: list[Any]) -> None:
    import tomllib

    import tomlkit

    text = tomlkit.dumps(document)
    if _table(tomllib.loads(text), path).get(key) != items:
        raise ConfigError(f"{path} cannot be edited automatically: set {key} in it by hand")
    target = path.resolve()  # keep a symbolic link
    try:
        known = target.stat().st_mode & 0o777 if target.exists() else None
        replace_file(target, text.encode(), 0o666 if known is None else known)
        if known is not None:
            target.chmod(known)  # regardless of the umask
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error_text(error)}") from error
