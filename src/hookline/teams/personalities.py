"""What a personality is, and how it is read from its file."""

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
from ..config.settings import KEYS, About, Count, DeclaredHook, Key
from ..config.sources import anchored, checked, parse, why_not_trusted

MAIN, TEXT = "personality.toml", "instructions.md"
"""The files of a personality that has a folder of its own."""

MAX_SIZE = 1_000_000
"""How many bytes a file of a personality may have."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class Personality(Frozen, frozen=True):
    """Who an agent can be. What is left out (``None``) is as the settings say; the settings' hooks always hold.

    Args:
        id: what it is known by; the file's or folder's name if the file says none.
        name: what people are told.
        description: what others are told who may hand work to it.
        instructions: its system prompt; ``instructions.md`` beside a ``personality.toml`` may hold it instead.
        model: its model.
        params: settings handed to the model.
        tools: names or globs of the settings' tools, and references to others.
        plugins: those whose hooks and tools take part.
        guards: hooks on top of the settings'.
        delegates: whom it may delegate to and hand over to: ids or globs.
        max_steps: its step limit; never more than the settings allow.
        file: where it was read from.
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
    file: str = ""

    def __post_init__(self) -> None:
        self._seal("params", freeze)

    @property
    def shown(self) -> str:
        """How people are told of it."""
        return self.name or self.id or "default"

    @property
    def code(self) -> list[Path]:
        """The Python files that it names."""
        uses = [item if isinstance(item, str) else item.use for item in (*self.guards, *(self.tools or ()))]
        return list(dict.fromkeys(file for use in uses if (file := parse(use).file) is not None))


def _key(name: str, kind: Any) -> Key:
    return Key(name, kind, None, About("", "", ""))


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
}
"""What a personality file may say, by name."""


class PersonalityFiles(Frozen, frozen=True):
    """The files of one personality, as they were read: the TOML file, then its instructions, if they are a file."""

    main: Path
    data: bytes
    text: bytes | None = None

    @classmethod
    def read(cls, main: Path) -> PersonalityFiles:
        """Read them.

        Raises:
            ConfigError: one cannot be read, is too large, or somebody else could have written it.
        """
        text = main.with_name(TEXT)
        own = main.name == MAIN and text.exists()
        return cls(main, _bytes(main), _bytes(text) if own else None)

    @property
    def usual_id(self) -> str:
        """The id of a personality whose file gives none."""
        return self.main.parent.name if self.main.name == MAIN else self.main.stem

    def personality(self) -> Personality:
        """What they say.

        Raises:
            ConfigError: with the file, the key and what is expected.
        """
        table = self._table()
        fields = read_fields(table, self.main.parent.resolve(), str(self.main))
        fields.setdefault("id", self.usual_id)
        if not is_id(fields["id"]):
            where = f"{self.main}: id" if "id" in table else str(self.main)
            rule = "use letters, digits, - and _, at most 64, a letter or digit first"
            raise ConfigError(f"{where}: {fields['id']!r:.80} is no id: {rule}")
        if self.text is not None:
            if "instructions" in fields:
                raise ConfigError(f"{self.main}: instructions are given here and in {TEXT}: keep one of the two")
            try:
                fields["instructions"] = self.text.decode().strip()
            except UnicodeDecodeError as error:
                raise ConfigError(f"{self.main.with_name(TEXT)} is not UTF-8 text: {error}") from error
        return Personality(**fields, file=str(self.main))

    def _table(self) -> dict[str, Any]:
        if not self.data.strip():  # also what a file is for a moment while it is being saved
            raise ConfigError(f'{self.main} is empty: give it at least a line such as description = "..."')
        try:
            return tomllib.loads(self.data.decode())
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise ConfigError(f"{self.main} is not valid TOML: {error_text(error)}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{self.main} is not UTF-8 text: {error}") from error


def is_id(text: str) -> bool:
    """Whether a personality can be called so: a simple name, the same on every file system."""
    return _ID.fullmatch(text) is not None


def read_fields(given: Mapping[str, Any], folder: Path, where: str) -> dict[str, Any]:
    """The fields of a personality, checked; relative paths are taken from ``folder``.

    Raises:
        ConfigError: an unknown key or a wrong value; ``where`` says in what.
    """
    fields: dict[str, Any] = {}
    for name, value in given.items():
        if name not in FIELDS:
            known = ", ".join(FIELDS)
            raise ConfigError(f"{where}: unknown key {name!r}.{did_you_mean(str(name), FIELDS)} Known keys: {known}")
        key = FIELDS[name]
        fields[name] = anchored(key.name, checked(key, value, f"{where}: {name}"), folder)
    return fields


def main_files(folder: Path) -> list[Path]:
    """The TOML files of the personalities in a folder, in order.

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
                elif entry.name.endswith(".toml") and entry.is_file():
                    found.append(entry.path)
    except OSError as error:
        raise ConfigError(f"personalities: {folder} cannot be read: {error.strerror}") from error
    return [Path(path) for path in sorted(found)]


def _bytes(path: Path) -> bytes:
    if not path.is_file():
        raise ConfigError(f"there is no file {path}: make one, it may be short")
    problem = why_not_trusted(path)
    if problem is not None:
        raise ConfigError(f"{path} is ignored: {problem}")
    try:
        with path.open("rb") as file:
            data = file.read(MAX_SIZE + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > MAX_SIZE:
        raise ConfigError(f"{path} is larger than {MAX_SIZE:,} bytes: make it shorter")
    return data


def outside(files: list[Path], folder: Path) -> list[str]:
    """Those of these files that do not lie in a folder."""
    inside = folder.resolve()
    return [str(file) for file in files if below(inside, file) is None]
