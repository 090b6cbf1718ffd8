"""The fields of a personality, and reading them from files."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._base.files import below
from .._base.frozen import EMPTY, Frozen, freeze
from .._base.text import did_you_mean, error_text
from ..config.errors import ConfigError
from ..config.settings import KEYS, Count, DeclaredHook, Key, KeyInfo
from ..config.sources import parse_reference, resolve_paths, validate
from ..hooks._rules.file import is_rules
from ..plugins.errors import UntrustedFileError
from ..plugins.trust import check_file

MAIN, TEXT = "personality.toml", "instructions.md"
RULES = "rules.toml"
"""A file of this name is not a personality if it contains rules (DESIGN 6.21)."""
"""The file names of a personality in a folder of its own."""

MAX_SIZE = 1_000_000
"""Maximum size of a file in bytes."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class Personality(Frozen, frozen=True):
    """A variant of the agent in the settings: other instructions, model or tools, and additional guards.

    Fields that are ``None`` are taken from the settings. The hooks of the settings always apply.

    Args:
        id: its id; by default the name of its file or folder.
        name: the name that users see.
        description: a description for agents that may delegate to it.
        instructions: its system prompt; it may also be in ``instructions.md`` beside a ``personality.toml``.
        model: its model.
        params: parameters of the model.
        tools: names or globs of tools of the settings, and references to other tools.
        plugins: the plugins whose hooks and tools are used.
        guards: additional hooks.
        delegates: ids or globs of the personalities that it may delegate and hand over to.
        max_steps: its step limit; at most that of the settings.
        suggestions: what people could write first, which chats show.
        file: the file that it was read from.
    """

    id: str
    name: str = ""
    description: str = ""
    instructions: str | None = None
    model: str | None = None
    params: Mapping[str, Any] = EMPTY
    tools: tuple[str, ...] | None = None
    plugins: tuple[str, ...] | None = None
    guards: tuple[str | DeclaredHook, ...] = ()
    delegates: tuple[str, ...] = ()
    max_steps: int | None = None
    suggestions: tuple[str, ...] | None = None
    file: str = ""

    def __post_init__(self) -> None:
        self._seal("params", freeze)

    @property
    def display_name(self) -> str:
        """The name for users."""
        return self.name or self.id or "default"

    @property
    def code(self) -> list[Path]:
        """The Python files that its guards and tools refer to."""
        uses = [item if isinstance(item, str) else item.use for item in (*self.guards, *(self.tools or ()))]
        return list(dict.fromkeys(file for use in uses if (file := parse_reference(use).file) is not None))


def _key(name: str, kind: Any) -> Key:
    return Key(name, kind, None, KeyInfo("", "", ""))


FIELDS: Mapping[str, Key] = {
    "id": _key("id", str),
    "name": _key("name", str),
    "description": _key("description", str),
    "instructions": _key("instructions", str),
    "model": _key("model", str),
    "params": KEYS["params"],
    "tools": _key("tools", tuple[str, ...]),
    "plugins": _key("plugins", tuple[str, ...]),
    "guards": KEYS["hooks"],
    "delegates": _key("delegates", tuple[str, ...]),
    "max_steps": _key("max_steps", Count),
    "suggestions": _key("suggestions", tuple[str, ...]),
}
"""The keys of a personality file."""


class PersonalityFiles(Frozen, frozen=True):
    """The contents of the files of one personality: the TOML file, and its instructions if they are a file."""

    main: Path
    data: bytes
    text: bytes | None = None

    @classmethod
    def read(cls, main: Path) -> PersonalityFiles:
        """Read the files.

        Raises:
            ConfigError: a file cannot be read, is too large, or is not trusted.
        """
        text = main.with_name(TEXT)
        has_text = main.name == MAIN and text.exists()
        return cls(main, _read(main), _read(text) if has_text else None)

    @property
    def default_id(self) -> str:
        """The default id."""
        return self.main.parent.name if self.main.name == MAIN else self.main.stem

    def personality(self) -> Personality:
        """Parse the files.

        Raises:
            ConfigError: the contents are invalid; the message has the file, the key and what is expected.
        """
        table = self._table()
        fields = read_fields(table, self.main.parent.resolve(), str(self.main))
        fields.setdefault("id", self.default_id)
        if not is_id(fields["id"]):
            where = f"{self.main}: id" if "id" in table else str(self.main)
            rule = "use at most 64 letters, digits, - and _, beginning with a letter or digit"
            raise ConfigError(f"{where}: {fields['id']!r:.80} is not a valid id: {rule}")
        if self.text is not None:
            if "instructions" in fields:
                raise ConfigError(f"{self.main}: instructions are given here and in {TEXT}: remove one")
            try:
                fields["instructions"] = self.text.decode().strip()
            except UnicodeDecodeError as error:
                raise ConfigError(f"{self.main.with_name(TEXT)} is not UTF-8 text: {error}") from error
        return Personality(**fields, file=str(self.main))

    def _table(self) -> dict[str, Any]:
        if not self.data.strip():  # a file may also be empty for a moment while an editor saves it
            raise ConfigError(f'{self.main} is empty: add at least a line such as description = "..."')
        try:
            return tomllib.loads(self.data.decode())
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise ConfigError(f"{self.main} is not valid TOML: {error_text(error)}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{self.main} is not UTF-8 text: {error}") from error


def is_id(text: str) -> bool:
    """Return whether a text is a valid id: a simple name that works on every file system."""
    return _ID.fullmatch(text) is not None


def read_fields(given: Mapping[str, Any], folder: Path, where: str) -> dict[str, Any]:
    """Check the fields of a personality. Relative paths are relative to ``folder``.

    Raises:
        ConfigError: a key is unknown or a value is invalid; the message begins with ``where``.
    """
    fields: dict[str, Any] = {}
    for name, value in given.items():
        if name not in FIELDS:
            known = ", ".join(FIELDS)
            raise ConfigError(f"{where}: unknown key {name!r}.{did_you_mean(str(name), FIELDS)} Known keys: {known}")
        key = FIELDS[name]
        fields[name] = resolve_paths(key.name, validate(key, value, f"{where}: {name}"), folder)
    return fields


def main_files(folder: Path) -> list[Path]:
    """Return the TOML files of the personalities in a folder, sorted.

    Raises:
        ConfigError: the folder cannot be read.
    """
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith((".", "_")):
                    continue
                if entry.is_dir():
                    if any(os.path.isfile(f"{entry.path}/{name}") for name in (MAIN, TEXT)):
                        found.append(f"{entry.path}/{MAIN}")
                elif entry.name == RULES and is_rules(Path(entry.path)):
                    continue
                elif entry.name.endswith(".toml") and entry.is_file():
                    found.append(entry.path)
    except OSError as error:
        raise ConfigError(f"personalities: {folder} cannot be read: {error.strerror}") from error
    return [Path(path) for path in sorted(found)]


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise ConfigError(f"there is no file {path}: create it")
    try:
        with path.open("rb") as file:
            data = file.read(MAX_SIZE + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > MAX_SIZE:
        raise ConfigError(f"{path} is larger than the maximum of {MAX_SIZE:,} bytes")
    try:
        check_file(path, data)
    except UntrustedFileError as error:
        raise ConfigError(error_text(error)) from error
    return data


def files_outside(files: list[Path], folder: Path) -> list[str]:
    """Return the files that are not below a folder."""
    inside = folder.resolve()
    return [str(file) for file in files if below(inside, file) is None]
