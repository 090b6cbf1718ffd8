"""Which calls a hook of Claude Code is for: its matcher, and the permission rule in ``if``."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from fnmatch import translate
from typing import Any

from ..._toolbox.command_line import CommandError, CommandLine, parse_command

_NAMES = re.compile(r"[A-Za-z0-9_\- ,|]*")
_RULE = re.compile(r"\s*([A-Za-z0-9_\-*]+)\s*(?:\((.*)\))?\s*", re.S)
_PATHS = ("file_path", "notebook_path", "path")
MAX_VALUE = 10_000
"""A longer command or argument matches every pattern: comparing it could take long, and a guard is rather called."""
_MAX_NAME = 200
"""A longer name of a tool matches every regular expression, for the same reason."""
_MAX_PATH = 4_000


class Matcher:
    """A ``matcher``: nothing or ``*`` for all, a list of exact names, or else a regular expression.

    It is a list if it has only letters, digits, ``_``, ``-``, spaces, commas and ``|``. A regular expression may match
    anywhere in the name.

    Example::

        Matcher("Edit|Write").matches("Write")           # true
        Matcher("mcp__memory").matches("mcp__memory__a") # false: an exact name
        Matcher("mcp__memory__.*").matches("mcp__memory__a")  # true

    Raises:
        ValueError: the regular expression is not valid.
    """

    def __init__(self, text: str = "") -> None:
        self.text = text
        self._names: frozenset[str] | None = None
        self._pattern: re.Pattern[str] | None = None
        if text.strip() in ("", "*"):
            return
        if _NAMES.fullmatch(text):
            self._names = frozenset(name.strip() for name in re.split(r"[|,]", text))
            return
        try:
            # JavaScript writes (?<name>...) for what Python writes (?P<name>...).
            self._pattern = re.compile(re.sub(r"\(\?<(?=[A-Za-z_$])", "(?P<", text))
        except re.error as error:
            raise ValueError(f"{text!r:.200} is not a valid regular expression: {error}") from None

    def matches(self, name: str) -> bool:
        """Return whether the matcher selects this name."""
        if self._names is not None:
            return name in self._names
        return self._pattern is None or len(name) > _MAX_NAME or self._pattern.search(name) is not None


class Rule:
    """A permission rule such as ``Bash(git *)``, ``Edit(src/**)``, ``WebFetch(domain:example.com)`` or ``Read``.

    A command matches if one of the commands in it does. A command line that cannot be parsed matches always, so that a
    guard is rather called too often than not at all.

    Raises:
        ValueError: the text is not such a rule.
    """

    def __init__(self, text: object) -> None:
        found = _RULE.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise ValueError(f"{text!r:.80} is not a permission rule; write one such as Bash(git *)")
        self.text = str(text)
        self.tool = found[1]
        self.pattern: str | None = found[2] if found[2] not in (None, "", "*") else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rule) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def matches(self, tool: str, arguments: Mapping[str, Any], folder: str) -> bool:
        """Return whether a call fits the rule. Relative paths are in ``folder``."""
        if not _fits(_glob(self.tool), tool):
            return False
        if self.pattern is None:
            return True
        if tool in ("Bash", "PowerShell"):
            return self._command(str(arguments.get("command", "")))
        if self.pattern.startswith("domain:"):
            return _host(str(arguments.get("url", ""))) == self.pattern.removeprefix("domain:").strip().lower()
        for name in _PATHS:
            if isinstance(path := arguments.get(name), str):
                return _path_matches(self.pattern, os.path.abspath(os.path.join(folder, path)), folder)
        values = [value for value in arguments.values() if isinstance(value, str)]
        return any(_fits(_glob(self.pattern), value) for value in values)

    def _command(self, command: str) -> bool:
        assert self.pattern is not None
        prefix = self.pattern.removesuffix(":*") if self.pattern.endswith(":*") else None
        pattern = _glob(f"{prefix}*" if prefix is not None else self.pattern)
        if _fits(pattern, command):
            return True
        try:
            line = parse_command(command)
        except CommandError:
            return True
        # "git *" also stands for "git" alone.
        return any(_fits(pattern, text) or _fits(pattern, f"{text} ") for text in _commands(line))


def _fits(pattern: re.Pattern[str], text: str) -> bool:
    return len(text) > MAX_VALUE or pattern.fullmatch(text) is not None


def _commands(line: CommandLine) -> list[str]:
    """Return the commands of a command line, without assignments and redirects."""
    return [
        " ".join(word.text for word in command.words)
        for pipeline in line.pipelines
        for command in pipeline.commands
        if command.words
    ]


def _glob(pattern: str) -> re.Pattern[str]:
    """Compile a pattern in which only ``*`` is special. The expressions of ``fnmatch`` take no exponential time."""
    return re.compile(translate(re.sub(r"[\[?]", r"[\g<0>]", pattern)))


def _host(url: str) -> str:
    from urllib.parse import urlsplit

    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""


def _path_matches(pattern: str, path: str, folder: str) -> bool:
    """Match a path as ``.gitignore`` does: ``//`` is the root, ``~/`` the home folder, ``/`` and ``./`` the project."""
    if pattern.startswith("//"):
        base, rest = "/", pattern[2:]
    elif pattern.startswith("~/"):
        base, rest = os.path.expanduser("~"), pattern[2:]
    elif pattern.startswith(("/", "./")):
        base, rest = folder, pattern.partition("/")[2]
    else:
        base = folder
        rest = pattern if "/" in pattern.rstrip("/") else f"**/{pattern}"
    if len(path) > _MAX_PATH:
        return True  # rather call a guard too often than not at all
    relative = os.path.relpath(path, base)
    if relative == ".." or relative.startswith(f"..{os.sep}"):
        return False
    expression = ""
    for piece in re.split(r"(\*\*/|/\*\*|\*\*|\*|\?)", rest.rstrip("/")):
        expression += {"**/": "(?:.*/)?", "/**": "/.*", "**": ".*", "*": "[^/]*", "?": "[^/]"}.get(
            piece, re.escape(piece)
        )
    return re.fullmatch(f"{expression}(?:/.*)?", relative.replace(os.sep, "/"), re.S) is not None
