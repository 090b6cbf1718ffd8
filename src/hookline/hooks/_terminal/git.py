"""Which git commands only read, and which repositories can be trusted not to run programs of their own."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec

from ..._toolbox.command_line import Word
from .allowlist import GIT, GIT_RUNS
from .options import Given, Refused, read_options
from .paths import Place


def _settings(names: Iterable[str]) -> re.Pattern[str]:
    """An expression for settings of these names, wherever git would see one."""
    return re.compile(rf"(?:^|[\]\n\r])[ \t\v\f]*({'|'.join(names)})[ \t\v\f]*(?:=|$|[\n\r#;])", re.IGNORECASE)


_RUNS = _settings(GIT_RUNS.split())
_ELSEWHERE = _settings(["worktree"])
_PLAIN_SETTING = re.compile(
    r"(?:branch|color|commit|core|diff|fetch|init|log|merge|pull|push|rebase|remote|submodule|tag|user)\..*",
    re.IGNORECASE,
)
_MAX_CONFIG = 1_000_000
_MAX_MODULES = 100
_SAFE_GLOBAL = ("--no-pager", "-P", "--no-optional-locks", "--literal-pathspecs", "--version")
_READING = {"reflog": ("show",), "stash": ("list", "show"), "worktree": ("list",), "remote": ("get-url",)}


def judge_git(name: str, args: Sequence[Word], place: Place) -> None:
    """Judge a git command.

    Raises:
        Refused: it does more than read, or the repository says which programs to run.
    """
    left = list(args)
    inner = place
    while left and left[0].text.startswith("-"):
        option = left.pop(0).text
        if option == "-C" and left:
            inner = inner.copy()
            inner.move([left.pop(0)])
        elif option not in _SAFE_GLOBAL:
            raise Refused(f"option: git {option:.60}", f"git {option:.60} is not allowed. Leave it out.")
    if not left:
        return
    command = left.pop(0).text
    program = GIT.get(command)
    if program is None:
        raise Refused(f"git {command:.60}", f"git {command:.60} is not allowed: only git commands that read are.")
    if any(word.text == "--help" for word in left):
        raise Refused("option: git --help", "git --help opens a page in a viewer. Use -h, or leave it out.")
    if left and left[0].text == "-h" and len(left) == 1:
        return
    given = read_options(f"git {command}", program, left, place.folder is not None)
    _judge_reading(command, given)
    skipped = 1 if program.operands == "pattern" and not given.options & set(program.instead) else 0
    for word in (*given.operands[skipped:], *given.all_of("L")):
        for text in _paths_in(word.text):
            inner.read(msgspec.structs.replace(word, text=text))
    for start in inner.starts:
        _judge_repository(start, inner.written)


def _judge_reading(command: str, given: Given) -> None:
    """That a command which can also change things is not told to."""
    operands = [word.text for word in given.operands]
    allowed = _READING.get(command)
    if allowed is not None and operands and operands[0] not in allowed:
        raise Refused(f"git {command}", f"git {command} {operands[0]:.60} is not allowed: only {', '.join(allowed)}.")
    if command == "stash" and not operands:
        raise Refused("git stash", "git stash changes files. Use git stash list or git stash show.")
    if command in ("branch", "tag") and operands and not given.options & {"list", "l"}:
        raise Refused(f"git {command}", f"git {command} NAME makes one. Use git {command} --list PATTERN.")
    if command == "config":
        _judge_config(given.options, operands)


def _judge_config(options: set[str], operands: Sequence[str]) -> None:
    """That settings are only read, and none that may hold a password."""
    listed = options & {"list", "l"} and "local" in options and not operands
    read = options & {"get", "get-all"} and len(operands) == 1 and _PLAIN_SETTING.fullmatch(operands[0])
    if not listed and not read:
        raise Refused("git config", "Use git config --get user.name and the like, or git config --local --list.")


def _paths_in(text: str) -> list[str]:
    """What may be a path in an operand: itself, and what follows each colon (``HEAD:file``)."""
    pieces = text.split(":")
    return [text, *(":".join(pieces[at:]) for at in range(1, min(len(pieces), 20)))]


def _judge_repository(start: str, written: Collection[str]) -> None:
    """That the repository's own settings do not have git run a program.

    Args:
        start: where git is used.
        written: files that the same command line writes, and nobody knows what to.

    Raises:
        Refused: they do, or cannot be read.
    """
    for found in _repositories(start, written):
        common = _common(found, written)
        for folder in dict.fromkeys((found, common, *_modules(common))):
            for name in ("config", "config.worktree"):
                _judge_settings(os.path.join(folder, name), written)
            if os.path.lexists(os.path.join(folder, "hooks", "post-index-change")):
                message = "This repository has a git hook that reading would run. Go on without git."
                raise Refused("git settings", message)


def _modules(repository: str) -> list[str]:
    """Where the settings of its submodules are."""
    found = []
    for folder, _, names in os.walk(os.path.join(repository, "modules")):
        if "config" in names:
            found.append(folder)
        if len(found) > _MAX_MODULES:
            raise Refused("git settings", "This repository has too many submodules to look at. Go on without git.")
    return found


def _judge_settings(path: str, written: Collection[str]) -> None:
    _not_written(path, written)
    try:
        with open(path, "rb") as file:
            text = file.read(_MAX_CONFIG + 1).decode("latin-1")
    except FileNotFoundError:
        return
    except OSError:
        raise Refused("git settings", "This repository's git settings cannot be read. Go on without git.") from None
    runs = _RUNS.search(text) or (None if "/modules/" in path else _ELSEWHERE.search(text))
    if runs or len(text) > _MAX_CONFIG:
        setting = runs[1] if runs else "their size"
        message = f"This repository's git settings ({setting}) may run programs. Go on without git."
        raise Refused("git settings", message)


def _not_written(path: str, written: Collection[str]) -> None:
    if os.path.realpath(path) in written:
        message = "This command changes the git settings that it uses. Run git by itself, in a command of its own."
        raise Refused("git settings", message, final=True)


def _repositories(start: str, written: Collection[str]) -> Iterator[str]:
    """All that git might take for the repository from here; one that it finds wanting is passed over for the next."""
    here, above = start, os.path.dirname(start)
    while True:
        inside = os.path.join(here, ".git")
        if os.path.isfile(inside):
            _not_written(inside, written)
            line = _first_line(inside) or ""
            if not line.startswith("gitdir:"):
                raise Refused("git settings", "The .git file here is not understood. Go on without git.")
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
    """Where a repository's settings are, if it shares them with others."""
    path = os.path.join(folder, "commondir")
    _not_written(path, written)
    line = _first_line(path)
    return folder if line is None else os.path.join(folder, line)


def _first_line(path: str) -> str | None:
    """What a file of git's that holds one path says."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read(5000).rstrip("\r\n")
    except OSError:
        return None
