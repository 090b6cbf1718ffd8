"""Manifests of plugins (``plugin.toml``): identity, contents, settings and permissions."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from .._base.frozen import freeze, plain
from .._base.text import did_you_mean, error_text
from .._kernel.errors import RegistrationError
from .._kernel.hook import compile_hook
from ..tools._tool import Tool
from .errors import LoadError

HOOKLINE_API = "1"
"""The version of the plugin API. A plugin declares the version that it was written for."""

MANIFEST = "plugin.toml"
_ID = re.compile(r"[a-z][a-z0-9_-]{0,63}")

PERMISSIONS = {
    "rewrite": "change tasks, prompts, requests, replies, tool calls or results",
    "approve": "answer for you when a hook asks for approval",
    "dangerous": "add dangerous tools: tools that write, send or run code, and tools that do not declare their effects",
    "network": "connect to other computers",
    "files:read": "read your files",
    "files:write": "write or delete your files",
    "shell": "start programs",
    "model": "call the model on its own",
}
"""The permissions and their descriptions."""
ENFORCED = frozenset(("rewrite", "approve", "dangerous", "secrets"))
"""The permissions that Hookline enforces. The others are only shown to the user."""
_SECRET = re.compile(r"secrets:([A-Za-z_]\w*)")

_TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list[Any],
    "object": dict[str, Any],
}


class Setting(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A setting of a plugin.

    Example:
        >>> Setting("integer", default=3, minimum=1, description="maximum number of calls in a run")

    Args:
        type: the type of the value.
        default: the value if none is given; without a default, a setting that is not ``required`` is absent.
        description: a description for users.
        required: whether a value must be given.
        secret: whether the value is kept out of messages.
        env: the environment variable to read if no value is given.
        choices: the allowed values, if they are limited.
        minimum: the smallest allowed number.
        maximum: the largest allowed number.
    """

    type: Literal["string", "integer", "number", "boolean", "array", "object"] = "string"
    default: Any = None
    description: str = ""
    required: bool = False
    secret: bool = False
    env: str = ""
    choices: tuple[Any, ...] = ()
    minimum: float | None = None
    maximum: float | None = None

    def check(self, value: Any) -> Any:
        """Return the value if it is valid.

        Raises:
            ValueError: the value is invalid; the message says what is expected.
        """
        try:
            checked = msgspec.convert(plain(value), _TYPES[self.type])
        except msgspec.ValidationError as error:
            raise ValueError(self._expected(value, error_text(error))) from None
        if self.type in ("integer", "number"):
            if self.minimum is not None and checked < self.minimum:
                raise ValueError(self._expected(value, f"at least {self.minimum:g}"))
            if self.maximum is not None and checked > self.maximum:
                raise ValueError(self._expected(value, f"at most {self.maximum:g}"))
        if self.choices and checked not in self.choices:
            raise ValueError(self._expected(value, f"one of {', '.join(map(repr, self.choices))}"))
        return checked

    def _expected(self, value: Any, problem: str) -> str:
        return f"expected {self.type}" if self.secret else f"expected {self.type}; got {value!r:.80} ({problem})"

    def from_env(self) -> Any:
        """Return the value of the environment variable, ``None`` if it is not set.

        Raises:
            ValueError: the variable does not have the type of the setting.
        """
        text = os.environ.get(self.env) if self.env else None
        if text is None or self.type == "string":
            return text
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError:
            raise ValueError(f"the environment variable {self.env} is not a valid {self.type}") from None


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of a ``plugin.toml``. Code is named as ``FILE.py:name`` or ``module:name``.

    Args:
        id: the name of the plugin: lower-case letters, digits, ``-`` and ``_``.
        version: the version of the plugin.
        api: the version of the plugin API that it was written for, such as ``"1"``.
        description: a description for users.
        hooks: references to hooks, or whole files.
        tools: references to tools, or whole files.
        channels: references to channel factories, by the name of the channel.
        points: references to the points that it declares.
        activate: a reference to a function that is called when the plugin is switched on.
        deactivate: a reference to a function that is called when the plugin is switched off.
        permissions: the permissions that it asks for.
        required: whether an agent that lists the plugin cannot be built without it.
        settings: its settings, by name.
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
    """Read a manifest.

    Raises:
        LoadError: the file cannot be read, or is not a valid manifest.
    """
    import tomllib

    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise LoadError(f"{path} cannot be read: {error_text(error)}") from error
    except (ValueError, RecursionError) as error:  # the parser recurses into nested tables
        raise LoadError(f"{path} is not valid TOML: {error_text(error)}") from error
    try:
        return _check_manifest(table)
    except (RegistrationError, msgspec.ValidationError) as error:
        raise LoadError(f"{path}: {error_text(error)}") from error


def _check_manifest(table: dict[str, Any]) -> Manifest:
    fields = Manifest.__struct_fields__
    for name in ("id", "version", "api"):
        if name not in table:
            raise RegistrationError(f"{name} is missing: id, version and api are required")
    table = {**table, "api": str(table["api"])}
    check_api(str(table["id"]), table["api"])  # first, because another version may have other keys
    for name in table:
        if name not in fields:
            raise RegistrationError(
                f"unknown key {name!r}.{did_you_mean(name, fields)} Known keys: {', '.join(fields)}"
            )
    settings = table.get("settings", {})
    if not isinstance(settings, dict):
        raise RegistrationError("settings must be a table of settings: [settings.NAME]")
    manifest: Manifest = msgspec.convert({**table, "settings": {}}, Manifest)
    manifest = msgspec.structs.replace(manifest, settings=settings_schema(settings))
    if not _ID.fullmatch(manifest.id):
        raise RegistrationError(
            f"id {manifest.id!r:.80} is invalid: use at most 64 lower-case letters, digits, '-' and '_', "
            "beginning with a letter"
        )
    for permission in manifest.permissions:
        permission_meaning(permission)
    for name in (setting.env for setting in manifest.settings.values() if setting.env):
        _require(f"secrets:{name}", manifest.permissions, f"a setting is read from the environment variable {name}")
    return manifest


def check_api(name: str, api: Any) -> None:
    """Check that a plugin was written for this version of the plugin API.

    Raises:
        RegistrationError: the plugin was written for another version; the message says what to do.
    """
    if api == HOOKLINE_API:
        return
    newer = str(api)[:9].isdecimal() and int(str(api)[:9]) > int(HOOKLINE_API)
    remedy = "update hookline" if newer else f"install a version of the plugin for API {HOOKLINE_API}"
    raise RegistrationError(
        f"plugin {name!r:.80} was made for version {api!s:.80} of the plugin API; "
        f"this Hookline has {HOOKLINE_API}: {remedy}"
    )


def permission_meaning(permission: str) -> str:
    """Return the description of a permission.

    Raises:
        RegistrationError: there is no such permission.
    """
    if secret := _SECRET.fullmatch(permission):
        return f"read the environment variable {secret[1]}"
    if permission not in PERMISSIONS:
        known = (*PERMISSIONS, "secrets:NAME")
        raise RegistrationError(
            f"there is no permission {permission!r}.{did_you_mean(permission, known)} There are {', '.join(known)}"
        )
    return PERMISSIONS[permission]


def check_permissions(granted: Collection[str], hooks: Iterable[Any], tools: Iterable[Tool]) -> None:
    """Check that hooks and tools need no other permissions than those granted.

    Raises:
        RegistrationError: a permission is missing; the message names it.
    """
    for hook in hooks:
        for entry in compile_hook(hook):
            if entry.point == "approval_requested" and entry.phase != "observe":
                _require("approve", granted, f"hook {entry.name!r} answers at {entry.point}")
            elif entry.phase == "rewrite":
                _require("rewrite", granted, f"hook {entry.name!r} rewrites at {entry.point}")
    for tool in tools:
        if tool.effects is None and tool.dangerous:
            advice = (
                ", or declare what the tool does, such as @tool(effects=['read']) or, for a computation, effects=[]"
            )
            _require("dangerous", granted, f"tool {tool.name!r} may be dangerous: it declares no effects", advice)
        elif tool.dangerous:
            _require("dangerous", granted, f"tool {tool.name!r} is dangerous")


def _require(permission: str, granted: Collection[str], reason: str, advice: str = "") -> None:
    if permission not in granted:
        raise RegistrationError(f'{reason}: add permissions = ["{permission}"] to plugin.toml{advice}')


def settings_schema(table: Mapping[str, Any]) -> dict[str, Setting]:
    """Make settings from a table; each value is a :class:`Setting` or a table of its fields.

    Raises:
        RegistrationError: a setting is invalid.
    """
    schema = {}
    for name, about in table.items():
        if isinstance(about, Setting):
            schema[name] = about
            continue
        known = Setting.__struct_fields__
        unknown = [key for key in about if key not in known] if isinstance(about, Mapping) else []
        if unknown:
            raise RegistrationError(
                f"settings.{name} has no {unknown[0]!r}.{did_you_mean(unknown[0], known)} It takes {', '.join(known)}"
            )
        kind = about.get("type", "string") if isinstance(about, Mapping) else "string"
        if isinstance(kind, str) and kind not in _TYPES:
            raise RegistrationError(
                f"settings.{name}: there is no type {kind!r}.{did_you_mean(kind, _TYPES)} "
                f"It is one of {', '.join(_TYPES)}"
            )
        try:
            schema[name] = setting = msgspec.convert(plain(about), Setting)
            if setting.default is not None:
                setting.check(setting.default)
        except (msgspec.ValidationError, ValueError) as error:
            raise RegistrationError(f"settings.{name}: {error_text(error)}") from error
    return schema


def check_settings(schema: Mapping[str, Setting], values: Any, where: str) -> Mapping[str, Any]:
    """Return the effective values: the given ones, else those of environment variables, else the defaults.

    Raises:
        RegistrationError: a setting is unknown, invalid, or required and missing.
    """
    if not isinstance(values, Mapping):
        raise RegistrationError(f"{where} must be a table of settings, not {type(values).__name__}")
    for name in values:
        if name not in schema:
            known = f"It has {', '.join(schema)}" if schema else "It has no settings"
            raise RegistrationError(f"{where} has no setting {name!r}.{did_you_mean(name, schema)} {known}")
    effective = {}
    for name, setting in schema.items():
        try:
            value = values[name] if name in values else setting.from_env()
            if value is not None:
                effective[name] = setting.check(value)
            elif setting.default is not None:
                effective[name] = setting.default
            elif setting.required:
                env = f", or set the environment variable {setting.env}" if setting.env else ""
                raise ValueError(f"it is required: give it in [{where}]{env}")
        except ValueError as error:
            raise RegistrationError(f"{where}.{name}: {error_text(error)}") from error
    frozen: Mapping[str, Any] = freeze(effective)
    return frozen
