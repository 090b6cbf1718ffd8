"""Read settings from defaults, a file, the environment and flags; a later source overrides an earlier one."""

from __future__ import annotations

import math
import os
import re
import stat
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from .._base.text import closest_match, did_you_mean, error_text
from ..hooks._catalog import BUILTINS
from ..plugins.discovery import is_path
from ..stores.paths import default_runs_path
from .errors import ConfigError
from .secrets import masked
from .settings import KEYS, DeclaredChannel, DeclaredHook, Key, Settings

FILE, SHARED_FILE = "hookline.toml", "pyproject.toml"
PREFIX = "HOOKLINE_"
OTHER_VARIABLES = frozenset(("HOOKLINE_CACHE", "HOOKLINE_CONFIG"))
"""Variables that begin like settings, but are none."""
OF_MODEL = frozenset(("base_url", "api", "context"))
"""Settings that belong to a kind of model: a later source that names another kind does not take them over."""
ADDED = frozenset(("hooks", "plugins"))
"""Settings that add up, source by source: a flag must not take away the guards that a file put there."""


class Flag(msgspec.Struct, frozen=True):
    """A setting given on the command line: which key, the flag's name, and the text or value."""

    key: str
    name: str
    value: Any


class Configuration(msgspec.Struct, frozen=True):
    """The settings that hold, where each came from, the file that was read, if any, and what was said about others."""

    settings: Settings
    origins: Mapping[str, str]
    file: Path | None = None
    notes: tuple[str, ...] = ()

    @property
    def home(self) -> Path:
        """The folder that modules named in the settings are looked for in."""
        return self.file.parent if self.file is not None else Path.cwd()

    @property
    def hooks_file(self) -> Path | None:
        """The file that names all the hooks, if it is the only source that does."""
        return self.file if self.origins["hooks"] == f"file:{self.file}" else None


def load(
    flags: Iterable[Flag] = (),
    *,
    file: str | Path | None = None,
    folder: str | Path = ".",
    env: Mapping[str, str] | None = None,
) -> Configuration:
    """The settings that hold here.

    Args:
        flags: what was given on the command line.
        file: the configuration file; searched from ``folder`` upwards if left out.
        folder: the working folder.
        env: the environment; the process's own if left out.

    Raises:
        ConfigError: an unknown key, a wrong value, or a file that cannot be read.
    """
    env = os.environ if env is None else env
    here = Path(folder).resolve()
    given = file if file is not None else env.get("HOOKLINE_CONFIG") or None
    path, notes = (_existing(Path(given)), []) if given is not None else find(here)
    values: dict[str, Any] = {}
    origins = dict.fromkeys(KEYS, "default")

    def put(name: str, value: Any, origin: str) -> None:
        if name == "model" and _kind(values.get(name, value)) != _kind(value):
            for other in OF_MODEL & values.keys():  # another vendor's server must not get this one's key
                del values[other]
                origins[other] = f"default; {origins[other]} was for {values[name]}"
        if name in ADDED and value and values.get(name):
            value = (*values[name], *(item for item in value if item not in values[name]))
            origin = f"{origins[name]}, {origin}"
        values[name], origins[name] = value, origin

    for name, value in _model_first(read_file(path)) if path is not None else ():
        put(name, value, f"file:{path}")
    for name, value in _model_first(read_env(env, here)):
        put(name, value, f"env:{KEYS[name].env}")
    for flag in sorted(flags, key=lambda flag: flag.key != "model"):
        value = anchored(flag.key, from_text(KEYS[flag.key], flag.value, flag.name), here)
        put(flag.key, value, f"flag:{flag.name}")
    if values.get("runs", "") == "":
        project = path.parent.resolve() if path is not None else here
        values["runs"] = str(default_runs_path(project if here.is_relative_to(project) else here))
    return Configuration(Settings(**values), origins, path, tuple(notes))


def _model_first(given: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return sorted(given.items(), key=lambda item: item[0] != "model")


def _kind(model: str) -> str:
    return model.partition(":")[0]


def find(folder: Path) -> tuple[Path | None, list[str]]:
    """The configuration file of a folder, the nearest one, here or above; and why nearer ones are not trusted."""
    notes: list[str] = []
    for path in (place / name for place in (folder, *folder.parents) for name in (FILE, SHARED_FILE)):
        if not os.path.isfile(path):  # also false where we may not look
            continue
        problem = why_not_trusted(path)
        if problem is None:
            if path.name == FILE or _own_table(path) is not None:
                return path, notes
        elif _may_concern_us(path):
            notes.append(f"{path} is ignored: {problem}; --config FILE takes it all the same")
    return None, notes


def _may_concern_us(path: Path) -> bool:
    try:
        return path.name == FILE or _own_table(path) is not None
    except ConfigError:
        return False


def read_file(path: Path) -> dict[str, Any]:
    """The settings in a file, checked; its relative paths are taken from its folder.

    Raises:
        ConfigError: it is not TOML, or holds an unknown key or a wrong value.
    """
    table = _own_table(path) if path.name == SHARED_FILE else _toml(path)
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: [tool.hookline] must be a table")
    values = {}
    for name, value in table.items():
        if name not in KEYS:
            known = ", ".join(KEYS)
            raise ConfigError(f"{path}: unknown key {name!r}.{did_you_mean(name, KEYS)} Known keys: {known}")
        values[name] = anchored(name, checked(KEYS[name], value, f"{path}: {name}"), path.parent.resolve())
    return values


def _own_table(shared: Path) -> Any:
    """What a file shared with others says of us; ``None`` if nothing."""
    tools = _toml(shared).get("tool")
    return tools.get("hookline") if isinstance(tools, dict) else None


def read_env(env: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """The settings in an environment, checked.

    Raises:
        ConfigError: a wrong value, or a variable that looks like a misspelt one.
    """
    known = {key.env: key for key in KEYS.values()}
    values = {}
    for name, text in env.items():
        if not text:
            continue  # as good as not set
        if name in known:
            key = known[name]
            values[key.name] = anchored(key.name, from_text(key, text, name), folder)
        elif name.startswith(PREFIX) and name not in OTHER_VARIABLES:
            meant = closest_match(name, known, cutoff=0.85)
            if meant:
                raise ConfigError(f"the environment variable {name} is unknown. Did you mean {meant!r}?")
    return values


def from_text(key: Key, text: Any, where: str) -> Any:
    """A setting's value from words: ``none`` unsets, commas separate items, a list or a table may be JSON.

    Raises:
        ConfigError: it says what is expected.
    """
    if isinstance(text, (list, tuple)):
        items = [str(item) for item in text]
        if key.is_list and [item.lower() for item in items] == ["none"]:
            return ()
    elif not isinstance(text, str):
        return checked(key, text, where)
    elif text.strip().lower() == "none":
        if not (key.may_be_none or key.is_list or key.is_table):
            raise ConfigError(f"{where}: expected {key.expected}; it cannot be none")
        return _none(key) if key.may_be_none else key.default
    elif key.is_table and text.lstrip().startswith("{"):
        return checked(key, _json(text, where, "object"), where)
    elif key.is_list and text.lstrip().startswith("["):
        return checked(key, _json(text, where, "array"), where)
    elif key.is_list or key.is_table:
        items = [item.strip() for item in text.split(",") if item.strip()]
    else:
        return checked(key, text, where, strict=False)
    if key.is_table:
        return dict(_pair(item, where) for item in items)
    return checked(key, items, where)


def _none(key: Key) -> float | None:
    """What ``none`` stands for: without a word on the steps there is a limit, which it lifts."""
    return math.inf if key.name == "max_steps" else None


def _json(text: str, where: str, kind: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{where}: that is no JSON {kind}: {error_text(error)}") from error


def _pair(item: str, where: str) -> tuple[str, Any]:
    name, found, text = item.partition("=")
    if not found or not name.strip():
        raise ConfigError(f"{where}: expected KEY=VALUE; got {item!r}")
    try:
        return name.strip(), msgspec.json.decode(text)
    except msgspec.DecodeError:
        return name.strip(), text


def checked(key: Key, value: Any, where: str, *, strict: bool = True) -> Any:
    """A setting's value from a file, as its type; ``where`` is told to people.

    Raises:
        ConfigError: it says what is expected.
    """
    if isinstance(value, str) and value.strip().lower() == "none" and key.may_be_none:
        return _none(key)
    if key.name in _DECLARED and isinstance(value, list):
        for item in value:
            _check_declared(item, where, *_DECLARED[key.name])
    try:
        return msgspec.convert(value, key.type, strict=strict)
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(f"{where}: expected {key.expected}; got {masked(value)!r:.80}") from error


_DECLARED: dict[str, tuple[str, type[Any]]] = {
    "hooks": ("hook", DeclaredHook),
    "channels": ("channel", DeclaredChannel),
}


def _check_declared(item: Any, where: str, what: str, kind: type[Any]) -> None:
    """Say more of a declared hook or channel than that it is wrong."""
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


def _existing(path: Path) -> Path:
    path = path.expanduser()
    if not path.is_file():
        raise ConfigError(f"there is no configuration file {str(path)!r}")
    return path.resolve()


def _toml(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


_FILE = re.compile(r"(?P<file>.+\.py)(?::(?P<name>[^:/\\]+))?")


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


_MODEL_FILES = ("local:", "scripted:")
_PLACES = frozenset((
    "folder", "sessions", "runs", "audit", "approval_file", "plugins_folder", "personalities", "tickets", "skills",
))  # fmt: skip
"""Settings that are a file or a folder."""
_PATHS = frozenset(("path", "folder", "memory", "notes", "store", "artifacts", "sign", "checkpoint", "board"))
"""What hooks of Hookline's own call their arguments that are paths."""


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


def why_not_trusted(path: Path) -> str | None:
    """Why somebody else may have written this file, ``None`` if only its user or root could. For POSIX systems."""
    if sys.platform == "win32":
        return None
    try:
        found = (path.lstat(), path.stat())  # whoever makes a link chooses the folder that its paths start at
    except OSError as error:
        return f"it cannot be looked at: {error.strerror}"
    for state in found:
        if state.st_uid not in (os.geteuid(), 0):
            return "it belongs to another user"
    if stat.S_IMODE(found[1].st_mode) & stat.S_IWOTH:
        return "everybody may write it"
    return None
