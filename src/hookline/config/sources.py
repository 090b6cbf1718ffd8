"""Read settings from defaults, a file, the environment and flags; a later source overrides an earlier one."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from .._base.files import distrust_reason
from .._base.frozen import EMPTY
from .._base.own_files import CONFIG_FILE, OwnFile, register_own_file
from .._base.text import closest_match, did_you_mean, error_text
from .._sensitive.encryption import FILE_VARIABLE, KEYS_VARIABLE
from ..hooks._catalog import BUILTINS
from ..plugins.discovery import is_path
from ..plugins.trust import digest
from ..records.segments import default_records_path
from ..stores.paths import (
    default_approvals_path,
    default_audit_path,
    default_runs_path,
    default_spending_path,
    is_database_url,
)
from .errors import ConfigError
from .secrets import mask
from .settings import KEYS, DeclaredChannel, DeclaredHook, Key, Settings

FILE, SHARED_FILE = CONFIG_FILE, "pyproject.toml"
PREFIX = "HOOKLINE_"
OTHER_VARIABLES = frozenset(("HOOKLINE_CACHE", "HOOKLINE_CONFIG", "HOOKLINE_TRUST", KEYS_VARIABLE, FILE_VARIABLE))
"""Variables with the prefix that are not settings."""
MODEL_OPTIONS = frozenset(("base_url", "api", "context"))
"""Settings of one provider: a later source that names another provider resets them."""
CUMULATIVE = frozenset(("hooks", "plugins", "claude_hooks"))
"""Settings that all sources add to: a flag must not remove the guards that a file sets."""


class Flag(msgspec.Struct, frozen=True):
    """A setting given on the command line: its key, the name of the flag, and the text or value."""

    key: str
    name: str
    value: Any


class Configuration(msgspec.Struct, frozen=True, weakref=True):
    """The effective settings, the source of each, the file that was read, and notes about ignored files.

    ``declared`` are the settings in the file, and ``digest`` is the digest of the text that they were read from.
    ``given`` are the settings on the command line.
    """

    settings: Settings
    origins: Mapping[str, str]
    file: Path | None = None
    notes: tuple[str, ...] = ()
    declared: Mapping[str, Any] = EMPTY
    digest: str = ""
    given: Mapping[str, Any] = EMPTY

    @property
    def home(self) -> Path:
        """The folder in which modules named in the settings are searched."""
        return self.file.parent if self.file is not None else Path.cwd()

    @property
    def hooks_file(self) -> Path | None:
        """The configuration file, if it is the only source of the setting ``hooks``."""
        return self.file if self.origins["hooks"] == f"file:{self.file}" else None


def load(
    flags: Iterable[Flag] = (),
    *,
    file: str | Path | None = None,
    folder: str | Path = ".",
    env: Mapping[str, str] | None = None,
) -> Configuration:
    """Load the settings from all sources.

    Args:
        flags: settings given on the command line.
        file: the configuration file; by default, it is searched in ``folder`` and its parents.
        folder: the working folder.
        env: the environment variables; by default, those of the process.

    Raises:
        ConfigError: a key is unknown, a value is invalid, or a file cannot be read.
    """
    env = os.environ if env is None else env
    here = Path(folder).resolve()
    given = file if file is not None else env.get("HOOKLINE_CONFIG") or None
    path, notes = (_existing_file(Path(given)), []) if given is not None else find_file(here)
    values: dict[str, Any] = {}
    origins = dict.fromkeys(KEYS, "default")

    def assign(name: str, value: Any, origin: str) -> None:
        if name == "model" and _provider(values.get(name, value)) != _provider(value):
            for other in MODEL_OPTIONS & values.keys():  # the server of one vendor must not get the key of another
                del values[other]
                origins[other] = f"default; {origins[other]} was for {values[name]}"
        if name in CUMULATIVE and value and values.get(name):
            value = (*values[name], *(item for item in value if item not in values[name]))
            origin = f"{origins[name]}, {origin}"
        values[name], origins[name] = value, origin

    declared, seen = read_file(path) if path is not None else ({}, "")
    for name, value in _model_first(declared):
        assign(name, value, f"file:{path}")
    for name, value in _model_first(read_env(env, here)):
        assign(name, value, f"env:{KEYS[name].env}")
    on_command_line: dict[str, Any] = {}
    for flag in sorted(flags, key=lambda flag: flag.key != "model"):
        value = resolve_paths(flag.key, parse_value(KEYS[flag.key], flag.value, flag.name), here)
        on_command_line[flag.key] = value
        assign(flag.key, value, f"flag:{flag.name}")
    project = path.parent.resolve() if path is not None else here
    project = project if here.is_relative_to(project) else here
    defaults = {
        "runs": default_runs_path,
        "audit": default_audit_path,
        "approval_file": default_approvals_path,
        "spending_file": default_spending_path,
        "records": default_records_path,
    }
    database = values.get("database", "")
    if database and not is_database_url(database):
        raise ConfigError(
            f"database: {mask(database)!r:.80} is not the address of a PostgreSQL database, such as "
            "postgresql://USER@HOST/NAME"
        )
    for name, default in defaults.items():
        if values.get(name, "") == "":
            values[name] = database if database and name in _IN_DATABASE else str(default(project))
    found = Configuration(Settings(**values), origins, path, tuple(notes), declared, seen, on_command_line)
    if path is not None:
        register_own_file(found, OwnFile(str(path), "the configuration file"))
    return found


def _model_first(given: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return sorted(given.items(), key=lambda item: item[0] != "model")


def _provider(model: str) -> str:
    return model.partition(":")[0]


def find_file(folder: Path) -> tuple[Path | None, list[str]]:
    """Find the nearest configuration file in a folder or its parents. Return it with notes about ignored files."""
    notes: list[str] = []
    for path in (place / name for place in (folder, *folder.parents) for name in (FILE, SHARED_FILE)):
        if not os.path.isfile(path):  # also false without permission to look
            continue
        problem = distrust_reason(path)
        if problem is None:
            if path.name == FILE or _hookline_table(_parse(path, _read(path))) is not None:
                return path, notes
        elif _has_settings(path):
            notes.append(f"{path} is ignored: {problem}; change its owner or permissions (chmod go-w, chown)")
    return None, notes


def _has_settings(path: Path) -> bool:
    try:
        return path.name == FILE or _hookline_table(_parse(path, _read(path))) is not None
    except ConfigError:
        return False


def read_file(path: Path) -> tuple[dict[str, Any], str]:
    """Read and validate the settings of a file, and return them with the digest of their text.

    Relative paths are relative to the folder of the file. In ``pyproject.toml``, the digest covers only
    ``[tool.hookline]``, so that a new version of the project is not a change.

    Raises:
        ConfigError: the file is not TOML, a key is unknown, or a value is invalid.
    """
    data = _read(path)
    table: Any = _parse(path, data)
    if path.name == SHARED_FILE:
        table = _hookline_table(table)
        data = msgspec.json.encode(table, order="deterministic", enc_hook=str)
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: [tool.hookline] must be a table")
    values = {}
    for name, value in table.items():
        if name not in KEYS:
            known = ", ".join(KEYS)
            raise ConfigError(f"{path}: unknown key {name!r}.{did_you_mean(name, KEYS)} Known keys: {known}")
        values[name] = resolve_paths(name, validate(KEYS[name], value, f"{path}: {name}"), path.parent.resolve())
    return values, digest(data)


def _hookline_table(shared: Mapping[str, Any]) -> Any:
    """Return ``[tool.hookline]`` of a ``pyproject.toml``; ``None`` without one."""
    tools = shared.get("tool")
    return tools.get("hookline") if isinstance(tools, dict) else None


def read_env(env: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """Read and validate the settings in environment variables.

    Raises:
        ConfigError: a value is invalid, or the name of a variable looks misspelt.
    """
    known = {key.env: key for key in KEYS.values()}
    values = {}
    for name, text in env.items():
        if not text:
            continue  # an empty variable counts as not set
        if name in known:
            key = known[name]
            values[key.name] = resolve_paths(key.name, parse_value(key, text, name), folder)
        elif name.startswith(PREFIX) and name not in OTHER_VARIABLES:
            meant = closest_match(name, known, cutoff=0.85)
            if meant:
                raise ConfigError(f"the environment variable {name} is unknown. Did you mean {meant!r}?")
    return values


def parse_value(key: Key, text: Any, where: str) -> Any:
    """Parse a setting from text: ``none`` unsets it, commas separate items, lists and tables may be JSON.

    Raises:
        ConfigError: the text is not valid for the setting; the message says what is expected.
    """
    if isinstance(text, (list, tuple)):
        items = [str(item) for item in text]
        if key.is_list and [item.lower() for item in items] == ["none"]:
            return ()
    elif not isinstance(text, str):
        return validate(key, text, where)
    elif text.strip().lower() == "none":
        if not (key.may_be_none or key.is_list or key.is_table):
            raise ConfigError(f"{where}: expected {key.expected}; it cannot be none")
        return _none_value(key) if key.may_be_none else key.default
    elif key.is_table and text.lstrip().startswith("{"):
        return validate(key, _json(text, where, "object"), where)
    elif key.is_list and text.lstrip().startswith("["):
        return validate(key, _json(text, where, "array"), where)
    elif key.is_list or key.is_table:
        items = [item.strip() for item in text.split(",") if item.strip()]
    else:
        return validate(key, text, where, strict=False)
    if key.is_table:
        return dict(_pair(item, where) for item in items)
    return validate(key, items, where)


def _none_value(key: Key) -> float | None:
    """Return the value of ``none``: no limit. For ``max_steps`` that is infinity, because unset means 20."""
    return math.inf if key.name == "max_steps" else None


def _json(text: str, where: str, kind: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{where}: invalid JSON {kind}: {error_text(error)}") from error


def _pair(item: str, where: str) -> tuple[str, Any]:
    name, found, text = item.partition("=")
    if not found or not name.strip():
        raise ConfigError(f"{where}: expected KEY=VALUE; got {item!r}")
    try:
        return name.strip(), msgspec.json.decode(text)
    except msgspec.DecodeError:
        return name.strip(), text


def validate(key: Key, value: Any, where: str, *, strict: bool = True) -> Any:
    """Convert a value to the type of its setting; ``where`` names the source in error messages.

    Raises:
        ConfigError: the value has the wrong type; the message says what is expected.
    """
    if isinstance(value, str) and value.strip().lower() == "none" and key.may_be_none:
        return _none_value(key)
    if key.name in _DECLARED and isinstance(value, list):
        for item in value:
            _check_declared(item, where, *_DECLARED[key.name])
    try:
        return msgspec.convert(value, key.type, strict=strict)
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(f"{where}: expected {key.expected}; got {mask(value)!r:.80}") from error


_DECLARED: dict[str, tuple[str, type[Any]]] = {
    "hooks": ("hook", DeclaredHook),
    "channels": ("channel", DeclaredChannel),
}


def _check_declared(item: Any, where: str, what: str, kind: type[Any]) -> None:
    """Raise a specific error for an invalid hook or channel."""
    if not isinstance(item, dict):
        return
    fields = kind.__struct_fields__
    for name in item:
        if name not in fields:
            raise ConfigError(
                f"{where}: a {what} has no {name!r}.{did_you_mean(name, fields)} It takes {', '.join(fields)}"
            )
    if "use" not in item:
        raise ConfigError(f'{where}: a {what} needs use = "module:name" or use = "FILE.py:name"')
    try:
        msgspec.convert(item, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {item['use']}: {error_text(error)}") from error


def _existing_file(path: Path) -> Path:
    path = path.expanduser()
    if not path.is_file():
        raise ConfigError(f"no such configuration file: {str(path)!r}")
    if problem := distrust_reason(path):
        raise ConfigError(f"{path} is not used: {problem}. Change its owner or permissions: chmod go-w, chown")
    return path.resolve()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def _parse(path: Path, data: bytes) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(data.decode())
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


_FILE = re.compile(r"(?P<file>.+\.(?:py|toml(?!:)))(?::(?P<name>[^:/\\]+))?")


class Reference(msgspec.Struct, frozen=True):
    """A parsed reference such as ``rules.py:keep_files``, ``rules.toml`` or ``package.rules:Limit``."""

    text: str
    file: Path | None = None
    module: str = ""
    name: str = ""

    @property
    def is_data(self) -> bool:
        """Whether it names a file of rules as data, and no code."""
        return self.file is not None and self.file.suffix == ".toml"


def parse_reference(text: str) -> Reference:
    """Parse a reference; without ``.py`` or ``.toml`` it names a module."""
    found = _FILE.fullmatch(text)
    if found:
        return Reference(text, Path(found["file"]).expanduser(), "", found["name"] or "")
    module, _, name = text.partition(":")
    return Reference(text, None, module, name)


_MODEL_FILES = ("local:", "scripted:")
_PATH_SETTINGS = frozenset(
    "folder sessions runs audit audit_index approval_file spending_file plugins_folder "  # noqa: SIM905
    "personalities tickets skills tapes records".split()
)
"""Settings that are paths of files or folders."""
_IN_DATABASE = ("runs", "approval_file", "spending_file")
"""Settings whose default is the database, if there is one, and else a file; also ``sessions`` and ``audit_index``."""
_PATH_ARGUMENTS = frozenset(
    "path folder memory notes store artifacts sign checkpoint index board settings transcripts".split()  # noqa: SIM905
)
"""Names of path arguments of built-in hooks."""


def resolve_paths(key: str, value: Any, folder: Path) -> Any:
    """Return a setting with its relative paths made absolute, starting from ``folder``."""
    if key in _PATH_SETTINGS:
        kept = not value or value == ":memory:" or is_database_url(value)
        return value if kept else str(folder / Path(value).expanduser())
    if key == "model":
        kind = next((kind for kind in _MODEL_FILES if value.startswith(kind)), None)
        return value if kind is None else f"{kind}{folder / Path(value.removeprefix(kind)).expanduser()}"
    if key == "claude_hooks":
        return tuple(str(folder / Path(item).expanduser()) for item in value)
    if key == "plugins":
        return tuple(str(folder / Path(item).expanduser()) if is_path(item) else item for item in value)
    if key == "sandbox":
        paths = {name: value[name] for name in ("writable", "readable") if isinstance(value.get(name), (list, tuple))}
        return {**value, **{name: [_path("path", item, folder) for item in items] for name, items in paths.items()}}
    if key == "server" and isinstance(value.get("rules"), (list, tuple)):
        return {**value, "rules": [_resolve_item(item, folder) for item in value["rules"]]}
    if key == "deps":
        return _resolve_item(value, folder) if value else value
    if key in ("hooks", "tools", "channels"):
        return tuple(_resolve_item(item, folder) for item in value)
    return value


def _resolve_item(item: Any, folder: Path) -> Any:
    if not isinstance(item, str):
        built_in = item.use in BUILTINS or re.match(r"hookline[.:]", item.use) is not None
        args = {k: _path(k, v, folder) for k, v in item.args.items()} if built_in else item.args
        return msgspec.structs.replace(item, use=_resolve_item(item.use, folder), args=args)
    found = _FILE.fullmatch(item)
    if not found:
        return item
    path = folder / Path(found["file"]).expanduser()
    return f"{path}:{found['name']}" if found["name"] else str(path)


def _path(name: str, value: Any, folder: Path) -> Any:
    if name == "settings" and isinstance(value, list):  # of ClaudeHooks, which takes several places
        return [_path(name, item, folder) for item in value]
    if name not in _PATH_ARGUMENTS or not isinstance(value, str) or value in ("", ":memory:"):
        return value
    if is_database_url(value):
        return value
    return str(folder / Path(value).expanduser())
