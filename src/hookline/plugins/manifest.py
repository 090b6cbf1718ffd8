"""The manifest of a plugin: what a ``plugin.toml`` says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from .._base.text import did_you_mean, error_text
from .._kernel.errors import RegistrationError
from .errors import LoadError
from .permissions import check_secrets, meaning
from .plugin import check_api
from .settings import Setting, schema_of

MANIFEST = "plugin.toml"
_ID = re.compile(r"[a-z][a-z0-9_-]{0,63}")


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a plugin is, what it brings, and what it asks for. Code is named as ``FILE.py:name`` or ``module:name``.

    Args:
        id: its name: small letters, digits, ``-`` and ``_``.
        version: of the plugin.
        api: the version of what plugins are given, such as ``"1"``.
        description: what it is for, for people.
        hooks: its hooks; also whole files.
        tools: its tools; also whole files.
        channels: by the word that they are known by, its channels.
        points: the points that it declares.
        activate: what is called when it is switched on.
        deactivate: what is called when it is switched off.
        permissions: what it asks for.
        required: whether an agent may not be built without it.
        settings: by name, what can be set.
    """

    id: str
    version: str
    api: str
    description: str = ""
    hooks: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    channels: dict[str, str] = {}
    points: tuple[str, ...] = ()
    activate: str = ""
    deactivate: str = ""
    permissions: tuple[str, ...] = ()
    required: bool = True
    settings: dict[str, Setting] = {}


def read_manifest(path: Path) -> Manifest:
    """The manifest in a file.

    Raises:
        LoadError: it cannot be read, or says something that makes no sense.
    """
    import tomllib

    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise LoadError(f"{path} cannot be read: {error_text(error)}") from error
    except (ValueError, RecursionError) as error:  # also what the parser itself gives up on
        raise LoadError(f"{path} is not valid TOML: {error_text(error)}") from error
    try:
        return _checked(table)
    except (RegistrationError, msgspec.ValidationError) as error:
        raise LoadError(f"{path}: {error_text(error)}") from error


def _checked(table: dict[str, Any]) -> Manifest:
    fields = Manifest.__struct_fields__
    for name in ("id", "version", "api"):
        if name not in table:
            raise RegistrationError(f"it needs {name}: a plugin says at least id, version and api")
    table = {**table, "api": str(table["api"])}
    check_api(str(table["id"]), table["api"])  # first: another version may know other keys
    for name in table:
        if name not in fields:
            raise RegistrationError(
                f"unknown key {name!r}.{did_you_mean(name, fields)} Known keys: {', '.join(fields)}"
            )
    settings = table.get("settings", {})
    if not isinstance(settings, dict):
        raise RegistrationError("settings is a table of settings: [settings.NAME]")
    manifest: Manifest = msgspec.convert({**table, "settings": {}}, Manifest)
    manifest = msgspec.structs.replace(manifest, settings=schema_of(settings))
    if not _ID.fullmatch(manifest.id):
        raise RegistrationError(
            f"id {manifest.id!r:.80}: use small letters, digits, '-' and '_', beginning with a letter, at most 64"
        )
    for permission in manifest.permissions:
        meaning(permission)
    check_secrets(manifest.permissions, (setting.env for setting in manifest.settings.values() if setting.env))
    return manifest
