"""Check git commands in the strict profile: a few that print names, in a repository that is inside the folder.

Git runs the programs that a repository's settings name, prints files of other folders and earlier versions, and shows
passwords in URLs. So commands that print settings or the content of files are not allowed, and neither is a repository
with settings that are not known to be harmless.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from ..._toolbox.command_line import Word
from ..._toolbox.repositories import is_harmless
from .errors import BlockedError
from .paths import PathScope

_OPTIONS = {
    "branch": ("-a", "-r", "-v", "--all", "--list", "--show-current"),
    "log": ("--oneline", "--all", "--graph", "--reverse", "--no-merges"),
    "ls-files": ("-m", "-o", "-d", "--modified", "--others", "--deleted", "--exclude-standard"),
    "rev-parse": ("HEAD", "--short", "--abbrev-ref", "--show-toplevel", "--is-inside-work-tree"),
    "status": ("-s", "-b", "-sb", "--short", "--branch", "--porcelain"),
}
_COUNT = re.compile(r"-n?[0-9]{1,6}")
_SECTION = re.compile(r'\[([a-z]+)(?: "[^"\\\n]*")?\]')
_SETTING = re.compile(r"([a-z][a-z0-9-]*) *=.*(?<!\\)")
_MAX_SIZE = 1_000_000
_MAX_INDEX = 100_000_000
_ELSEWHERE = ("commondir", "config.worktree", "modules", "objects/info/alternates", "hooks/post-index-change")
_SUBMODULE = b"\0\0\xe0\0"  # the mode of a submodule in the index; git would run itself there, with its settings


def check_git(args: Sequence[Word], scope: PathScope) -> None:
    """Check a git command.

    Raises:
        BlockedError: the command is not on the list, or the repository could make git do more than read.
    """
    words = [word.text for word in args]
    folder = scope.start
    if words[:1] == ["--no-pager"]:
        del words[:1]
    if words[:1] == ["-C"] and len(words) > 1:
        inner = scope.copy()
        inner.change_folder(args[len(args) - len(words) + 1 :][:1])
        folder = inner.start
        del words[:2]
    command = words[0] if words else ""
    if command not in _OPTIONS:
        message = (
            f"git {command:.60} is not allowed: it may show files of other folders, secrets or settings, or change "
            f"something. Allowed are git {', git '.join(_OPTIONS)} with few options."
        )
        raise BlockedError(f"git {command:.60}", message)
    for word in words[1:]:
        if word not in _OPTIONS[command] and not (command == "log" and _COUNT.fullmatch(word)):
            message = f"git {command} {word:.60} is not allowed here. Use only {', '.join(_OPTIONS[command])}."
            raise BlockedError(f"option: git {word:.60}", message)
    _check_repository(folder, scope.folder)


def _check_repository(start: str, folder: str | None) -> None:
    """Check that git uses a repository inside the folder, whose settings are harmless."""
    here = start
    while not os.path.lexists(repository := os.path.join(here, ".git")):
        above = os.path.dirname(here)
        if os.path.lexists(os.path.join(here, "HEAD")):
            raise _unsafe("the layout of a bare repository")
        if here in (folder, above):
            raise BlockedError("git repository", "There is no git repository in this folder. Go on without git.")
        here = above
    parts = [os.path.join(repository, name) for name in ("", "objects", "refs")]
    files = [os.path.join(repository, name) for name in ("HEAD", "config")]
    if not all(map(_is_plain_folder, parts)) or not all(map(_is_plain_file, files)):
        raise _unsafe("a repository with parts elsewhere")
    if any(os.path.lexists(os.path.join(repository, name)) for name in _ELSEWHERE):
        raise _unsafe("a repository with parts elsewhere, submodules or hooks")
    if not re.match(rb"ref: refs/|[0-9a-f]{40}", _read(files[0])):
        raise _unsafe("an invalid HEAD")
    _check_settings(_read(files[1]).decode("latin-1"))
    indexes = [name for name in os.listdir(repository) if name == "index" or name.startswith("sharedindex.")]
    if any(_SUBMODULE in _read(os.path.join(repository, name), _MAX_INDEX) for name in indexes):
        raise _unsafe("submodules")


def _check_settings(text: str) -> None:
    section = ""
    for line in map(str.strip, text.lower().split("\n")):
        if found := _SECTION.fullmatch(line):
            section = found[1]
        elif line and line[0] not in "#;":
            setting = _SETTING.fullmatch(line)
            if setting is None or not is_harmless(f"{section}.{setting[1]}"):
                raise _unsafe(f"the setting {section}.{setting[1] if setting else line:.60}")


def _is_plain_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path.rstrip("/"))


def _is_plain_file(path: str) -> bool:
    return os.path.isfile(path) and not os.path.islink(path)


def _read(path: str, limit: int = _MAX_SIZE) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(limit + 1)
    except OSError:
        raise _unsafe("files that cannot be read") from None
    if len(data) > limit:
        raise _unsafe("files that are too long to check")
    return data


def _unsafe(what: str) -> BlockedError:
    message = f"git may not be used here, because the repository has {what}. Go on without git."
    return BlockedError("git repository", message)
