"""Check the paths of a command: inside the folder, not secret, not a device."""

from __future__ import annotations

import os
from collections.abc import Sequence
from copy import copy
from fnmatch import fnmatchcase

from ..._base.files import matches_globs, matches_path
from ..._toolbox.command_line import Word
from .options import BlockedError

MAX_FILES = 20_000
"""Maximum number of directory entries to read for the globs of one command line."""


_STREAMS = ("/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr")


class PathScope:
    """The paths that a command line may read and write, from its current folder.

    ``starts`` are the possible current folders: after a ``cd`` that may fail there are two.

    Args:
        start: the initial folder.
        folder: the folder that all paths must be in; ``None`` for no limit.
        secrets: globs of files that must not be touched, see :func:`matches_globs`.
        writes: whether files may be written.
        protect: globs or paths of files that must not be written.
    """

    def __init__(
        self, start: str, folder: str | None, secrets: Sequence[str], writes: bool, protect: Sequence[str]
    ) -> None:
        self.folder, self.writes, self._secrets, self._protected = folder, writes, secrets, (".git", *protect)
        self.starts: tuple[str, ...] = (os.path.realpath(start),)
        self.written: set[str] = set()
        self._left = MAX_FILES

    def copy(self) -> PathScope:
        """Return a copy, for a command that changes its own current folder."""
        return copy(self)

    def check_read(self, word: Word) -> None:
        """Check a path that is read.

        Raises:
            BlockedError: the path is outside the folder, secret, or a device.
        """
        text = _expand_home(word)
        if text not in _STREAMS and text not in ("", "-"):
            self._resolve(text)

    def check_write(self, word: Word) -> None:
        """Check a path that is written.

        Raises:
            BlockedError: the path must not be written.
        """
        text = _expand_home(word)
        if text in _STREAMS:
            return
        if not self.writes:
            message = f"Writing to {text!r:.100} is not allowed: files may only be read. Leave out the >."
            raise BlockedError("redirect", message, final=True)
        if word.expansions - {"tilde"} or not text:
            raise BlockedError("redirect", f"{text!r:.100} is not the name of one file. Write it out.", final=True)
        for path in self._resolve(text):
            if matches_path(path, self._protected):
                raise BlockedError("redirect", f"{text!r:.100} may not be changed.", final=True)
            self.written.add(path)

    def check_glob(self, word: Word) -> None:
        """Check all files that a glob can match.

        Raises:
            BlockedError: a file must not be read or looks like an option, or there are too many files.
        """
        pattern = os.path.expanduser("~") + word.pattern[1:] if "tilde" in word.expansions else word.pattern
        for start in self.starts:
            for name in self._names(start, pattern):
                if name.startswith("-"):
                    message = f"{word.raw!r:.100} matches {name!r:.100}, which looks like an option. Put ./ before it."
                    raise BlockedError("glob", message, final=True)
                self._resolve(name)

    def change_folder(self, words: Sequence[Word]) -> None:
        """Check a ``cd``, and change the current folder.

        Raises:
            BlockedError: the new folder is outside the folder, or cannot be determined.
        """
        if any(word.expansions - {"tilde"} for word in words) or len(words) > 1 or (words and not words[0].text):
            raise BlockedError("cd", "cd takes one folder. Write its path.", final=True)
        text = _expand_home(words[0]) if words else os.path.expanduser("~")
        if text.startswith("-"):
            raise BlockedError("cd", "cd takes no options. Write the path of a folder.", final=True)
        reached = self._resolve(text)
        if reached != [os.path.realpath(os.path.normpath(os.path.join(start, text))) for start in self.starts]:
            raise BlockedError("cd", f"{text!r:.100} goes up from a link. Write the path without '..'.", final=True)
        self.starts = tuple(dict.fromkeys(reached))

    def check_not_secret(self, text: str) -> None:
        """Check that a word does not name a secret file.

        Raises:
            BlockedError: the word names a secret file.
        """
        for start in self.starts:
            given = os.path.join(start, text)
            if any(map(self._is_secret, (os.path.realpath(given), os.path.normpath(given)))):
                message = f"{text!r:.100} may contain secrets and is not shown. Go on without it."
                raise BlockedError("secret", message, final=True)

    def _is_secret(self, path: str) -> bool:
        within = self.folder if self.folder is not None and is_below(path, self.folder) else ""
        return matches_globs(path, self._secrets, within)

    def check_inside(self, words: Sequence[Word]) -> None:
        """Check that no argument of an unknown program can be a path outside the folder.

        Raises:
            BlockedError: a word can be such a path.
        """
        for word in words:
            text = _expand_home(word)
            glued = text[text.index("/") :] if text.startswith("-") and "/" in text else ""
            for form in (text, text.partition("=")[2], glued):
                if form and form not in _STREAMS:
                    self._resolve(form)

    def _resolve(self, text: str) -> list[str]:
        """Check a path, and return its real path from each possible current folder."""
        self.check_not_secret(text)
        found = []
        for start in self.starts:
            path = os.path.realpath(os.path.join(start, text))
            if self.folder is not None and not is_below(path, self.folder):
                message = f"{text!r:.100} is not allowed: only paths in {self.folder!r} are. Use a path there."
                raise BlockedError("outside the folder", message, final=True)
            if is_below(path, "/dev"):
                raise BlockedError("device", f"{text!r:.100} is a device, not a file. Use a file.", final=True)
            found.append(path)
        return found

    def _names(self, start: str, pattern: str) -> list[str]:
        """Return all names that any shell could substitute for a pattern."""
        found = ["/"] if pattern.startswith("/") else [""]
        for part in (part for part in pattern.split("/") if part):
            wider = _widen(part)
            if wider is None:
                found = [os.path.join(name, _unquote(part)) for name in found]
                continue
            matching = []
            for name in found:
                matching += [os.path.join(name, entry) for entry in self._entries(os.path.join(start, name), wider)]
            found = matching
        return [name for name in found if os.path.lexists(os.path.join(start, name))]

    def _entries(self, folder: str, pattern: str) -> list[str]:
        names = [".", ".."] if pattern.startswith(".") else []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    self._left -= 1
                    if self._left < 0:
                        message = "There are too many files to check for this pattern. Name a folder, or use find."
                        raise BlockedError("glob", message, final=True)
                    names.append(entry.name)
        except OSError:
            return []
        hidden = pattern.startswith(".")
        return [name for name in names if (hidden or not name.startswith(".")) and fnmatchcase(name, pattern)]


def is_below(path: str, folder: str) -> bool:
    """Return whether an absolute path is the folder or inside it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _expand_home(word: Word) -> str:
    if "tilde" not in word.expansions:
        return word.text
    if word.raw != "~" and not word.raw.startswith("~/"):
        raise BlockedError("expansion", f"{word.raw!r:.100} is not clear. Write the path itself.", final=True)
    return os.path.expanduser("~") + word.text[1:]


def _widen(part: str) -> str | None:
    """Return a pattern that matches at least what this one does in any shell; ``None`` if it has no wildcards."""
    made, at, wild = "", 0, False
    while at < len(part):
        char = part[at]
        if char == "[" and part[at + 1 : at + 3] in ("*]", "?]", "[]"):  # a quoted wildcard
            made += part[at : at + 3]
            at += 3
            continue
        if char == "[":
            return made + "*"
        wild = wild or char in "*?"
        made += char
        at += 1
    return made if wild else None


def _unquote(part: str) -> str:
    for sign in "*?[":
        part = part.replace(f"[{sign}]", sign)
    return part
