"""Check git commands: they must only read, and the repository's settings must not run programs."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec

from ..._toolbox.command_line import Word
from .allowlist import GIT, GIT_UNSAFE_SETTINGS
from .options import BlockedError, ParsedOptions, parse_options
from .paths import PathScope


def _settings(names: Iterable[str]) -> re.Pattern[str]:
    """Return a regular expression that finds these settings wherever git would read them."""
    return re.compile(rf"(?:^|[\]\n\r])[ \t\v\f]*({'|'.join(names)})[ \t\v\f]*(?:=|$|[\n\r#;])", re.IGNORECASE)


_UNSAFE_SETTING = _settings(GIT_UNSAFE_SETTINGS.split())
_WORKTREE_SETTING = _settings(["worktree"])
_PLAIN_SETTING = re.compile(
    r"(?:branch|color|commit|core|diff|fetch|init|log|merge|pull|push|rebase|remote|submodule|tag|user)\..*",
    re.IGNORECASE,
)
_MAX_CONFIG = 1_000_000
_MAX_MODULES = 100
_SAFE_GLOBAL = ("--no-pager", "-P", "--no-optional-locks", "--literal-pathspecs", "--version")
_READING = {"reflog": ("show",), "stash": ("list", "show"), "worktree": ("list",), "remote": ("get-url",)}


def check_git(name: str, args: Sequence[Word], scope: PathScope) -> None:
    """Check a git command.

    Raises:
        BlockedError: the command does more than read, or the repository's settings run programs.
    """
    left = list(args)
    inner = scope
    while left and left[0].text.startswith("-"):
        option = left.pop(0).text
        if option == "-C" and left:
            inner = inner.copy()
            inner.change_folder([left.pop(0)])
        elif option not in _SAFE_GLOBAL:
            raise BlockedError(f"option: git {option:.60}", f"git {option:.60} is not allowed. Leave it out.")
    if not left:
        return
    command = left.pop(0).text
    program = GIT.get(command)
    if program is None:
        raise BlockedError(f"git {command:.60}", f"git {command:.60} is not allowed: only git commands that read are.")
    if any(word.text == "--help" for word in left):
        raise BlockedError("option: git --help", "git --help opens a page in a viewer. Use -h, or leave it out.")
    if left and left[0].text == "-h" and len(left) == 1:
        return
    given = parse_options(f"git {command}", program, left, scope.folder is not None)
    _check_reads_only(command, given)
    skipped = 1 if program.operands == "pattern" and not given.options & set(program.pattern_options) else 0
    for word in (*given.operands[skipped:], *given.values_of("L")):
        for text in _paths_in(word.text):
            inner.check_read(msgspec.structs.replace(word, text=text))
    for start in inner.starts:
        _check_repository(start, inner.written)


def _check_reads_only(command: str, given: ParsedOptions) -> None:
    """Check that a command which can also write only reads."""
    operands = [word.text for word in given.operands]
    allowed = _READING.get(command)
    if allowed is not None and operands and operands[0] not in allowed:
        raise BlockedError(
            f"git {command}", f"git {command} {operands[0]:.60} is not allowed: only {', '.join(allowed)}."
        )
    if command == "stash" and not operands:
        raise BlockedError("git stash", "git stash changes files. Use git stash list or git stash show.")
    if command in ("branch", "tag") and operands and not given.options & {"list", "l"}:
        raise BlockedError(f"git {command}", f"git {command} NAME creates one. Use git {command} --list PATTERN.")
    if command == "config":
        _check_config(given.options, operands)


def _check_config(options: set[str], operands: Sequence[str]) -> None:
    """Check that the command only reads settings, and none that can contain a password."""
    listed = options & {"list", "l"} and "local" in options and not operands
    read = options & {"get", "get-all"} and len(operands) == 1 and _PLAIN_SETTING.fullmatch(operands[0])
    if not listed and not read:
        raise BlockedError("git config", "Use git config --get user.name and the like, or git config --local --list.")


def _paths_in(text: str) -> list[str]:
    """Return the possible paths in an operand: itself, and the text after each colon (``HEAD:file``)."""
    pieces = text.split(":")
    return [text, *(":".join(pieces[at:]) for at in range(1, min(len(pieces), 20)))]


def _check_repository(start: str, written: Collection[str]) -> None:
    """Check that the repository's settings do not make git run a program.

    Args:
        start: the folder in which git runs.
        written: files that the same command line writes, with unknown content.

    Raises:
        BlockedError: the settings can run a program, or cannot be read.
    """
    for found in _repositories(start, written):
        common = _common(found, written)
        for folder in dict.fromkeys((found, common, *_modules(common))):
            for name in ("config", "config.worktree"):
                _check_settings(os.path.join(folder, name), written)
            if os.path.lexists(os.path.join(folder, "hooks", "post-index-change")):
                message = "This repository has a git hook that reading would run. Go on without git."
                raise BlockedError("git settings", message)


def _modules(repository: str) -> list[str]:
    """Return the folders with the settings of its submodules."""
    found = []
    for folder, _, names in os.walk(os.path.join(repository, "modules")):
        if "config" in names:
            found.append(folder)
        if len(found) > _MAX_MODULES:
            raise BlockedError("git settings", "This repository has too many submodules to check. Go on without git.")
    return found


def _check_settings(path: str, written: Collection[str]) -> None:
    _check_not_written(path, written)
    try:
        with open(path, "rb") as file:
            text = file.read(_MAX_CONFIG + 1).decode("latin-1")
    except FileNotFoundError:
        return
    except OSError:
        raise BlockedError(
            "git settings", "This repository's git settings cannot be read. Go on without git."
        ) from None
    runs = _UNSAFE_SETTING.search(text) or (None if "/modules/" in path else _WORKTREE_SETTING.search(text))
    if runs or len(text) > _MAX_CONFIG:
        setting = runs[1] if runs else "their size"
        message = f"This repository's git settings ({setting}) may run programs. Go on without git."
        raise BlockedError("git settings", message)


def _check_not_written(path: str, written: Collection[str]) -> None:
    if os.path.realpath(path) in written:
        message = "This command changes the git settings that it uses. Run git in a separate command."
        raise BlockedError("git settings", message, final=True)


def _repositories(start: str, written: Collection[str]) -> Iterator[str]:
    """Iterate over all folders that git could use as the repository; git skips one that is not valid."""
    here, above = start, os.path.dirname(start)
    while True:
        inside = os.path.join(here, ".git")
        if os.path.isfile(inside):
            _check_not_written(inside, written)
            line = _first_line(inside) or ""
            if not line.startswith("gitdir:"):
                raise BlockedError("git settings", "The .git file here is not understood. Go on without git.")
            yield os.path.join(here, line[7:].lstrip(" "))
        elif os.path.isdir(inside):
            yield inside
        head = os.path.join(here, "HEAD")
        if os.path.lexists(head) or os.path.realpath(head) in written:
            yield here
        if above == here:
            return
        here, above = above, os.path.dirname(above)


def _common(folder: str, written: Collection[str]) -> str:
    """Return the folder with the settings of a repository; worktrees share that of another repository."""
    path = os.path.join(folder, "commondir")
    _check_not_written(path, written)
    line = _first_line(path)
    return folder if line is None else os.path.join(folder, line)


def _first_line(path: str) -> str | None:
    """Return the path in a one-line file of git, or ``None`` if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read(5000).rstrip("\r\n")
    except OSError:
        return None
