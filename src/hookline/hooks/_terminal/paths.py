"""Where the paths of a command lead: in the folder, to a secret, or out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from copy import copy
from fnmatch import fnmatchcase

from ..._base.files import matches_globs, matches_path
from ..._toolbox.command_line import Word
from .options import Refused

MAX_FILES = 20_000
"""How many files are looked at for the globs of one command line."""


_STREAMS = ("/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr")


class Place:
    """Where a command line has come to, with what may be read and written from there.

    Args:
        start: the folder it begins in.
        folder: what it must stay in.
        secrets: globs of what may not be touched, see :func:`matches_globs`.
        writes: whether files may be written.
        keep: globs of names, or paths, that may not be written.
    """

    def __init__(
        self, start: str, folder: str | None, secrets: Sequence[str], writes: bool, keep: Sequence[str]
    ) -> None:
        self.folder, self.writes, self._secrets, self._keep = folder, writes, secrets, (".git", *keep)
        self.starts: tuple[str, ...] = (os.path.realpath(start),)
        self.written: set[str] = set()
        self._left = MAX_FILES

    def copy(self) -> Place:
        """The same place, from where a command may move on by itself."""
        return copy(self)

    def read(self, word: Word) -> None:
        """Judge a path that is read.

        Raises:
            Refused: it leads out, to a secret, or to a device.
        """
        text = _at_home(word)
        if text not in _STREAMS and text not in ("", "-"):
            self._judge(text)

    def write(self, word: Word) -> None:
        """Judge a path that is written.

        Raises:
            Refused: it may not be.
        """
        text = _at_home(word)
        if text in _STREAMS:
            return
        if not self.writes:
            message = f"Writing to {text!r:.100} is not allowed: files may only be read. Leave out the >."
            raise Refused("redirect", message, final=True)
        if word.expansions - {"tilde"} or not text:
            raise Refused("redirect", f"{text!r:.100} is not the name of one file. Write it out.", final=True)
        for path in self._judge(text):
            if matches_path(path, self._keep):
                raise Refused("redirect", f"{text!r:.100} may not be changed.", final=True)
            self.written.add(path)

    def match(self, word: Word) -> None:
        """Judge all that a glob could stand for.

        Raises:
            Refused: one of the files may not be read, looks like an option, or there are too many.
        """
        pattern = os.path.expanduser("~") + word.pattern[1:] if "tilde" in word.expansions else word.pattern
        for start in self.starts:
            for name in self._names(start, pattern):
                if name.startswith("-"):
                    message = f"{word.raw!r:.100} matches {name!r:.100}, which looks like an option. Put ./ before it."
                    raise Refused("glob", message, final=True)
                self._judge(name)

    def move(self, words: Sequence[Word]) -> None:
        """Judge a ``cd``, and go there.

        Raises:
            Refused: it leads out, or nobody can say where.
        """
        if any(word.expansions - {"tilde"} for word in words) or len(words) > 1 or (words and not words[0].text):
            raise Refused("cd", "cd takes one folder. Write its path.", final=True)
        text = _at_home(words[0]) if words else os.path.expanduser("~")
        if text.startswith("-"):
            raise Refused("cd", "cd takes no options. Write the path of a folder.", final=True)
        reached = self._judge(text)
        if reached != [os.path.realpath(os.path.normpath(os.path.join(start, text))) for start in self.starts]:
            raise Refused("cd", f"{text!r:.100} goes up from a link. Write the path without '..'.", final=True)
        self.starts = tuple(dict.fromkeys(reached))

    def spare(self, text: str) -> None:
        """That a word does not name a secret.

        Raises:
            Refused: it does.
        """
        for start in self.starts:
            given = os.path.join(start, text)
            if any(map(self._is_secret, (os.path.realpath(given), os.path.normpath(given)))):
                message = f"{text!r:.100} may hold secrets and is not shown. Go on without it."
                raise Refused("secret", message, final=True)

    def _is_secret(self, path: str) -> bool:
        within = self.folder if self.folder is not None and is_below(path, self.folder) else ""
        return matches_globs(path, self._secrets, within)

    def keep_in(self, words: Sequence[Word]) -> None:
        """That no word of a program that nobody here knows could be a path that leads out.

        Raises:
            Refused: one could.
        """
        for word in words:
            text = _at_home(word)
            glued = text[text.index("/") :] if text.startswith("-") and "/" in text else ""
            for form in (text, text.partition("=")[2], glued):
                if form and form not in _STREAMS:
                    self._judge(form)

    def _judge(self, text: str) -> list[str]:
        """Where a path leads from each start."""
        self.spare(text)
        found = []
        for start in self.starts:
            path = os.path.realpath(os.path.join(start, text))
            if self.folder is not None and not is_below(path, self.folder):
                message = f"{text!r:.100} is not allowed: only paths in {self.folder!r} are. Use a path there."
                raise Refused("outside the folder", message, final=True)
            if is_below(path, "/dev"):
                raise Refused("device", f"{text!r:.100} is a device, not a file. Use a file.", final=True)
            found.append(path)
        return found

    def _names(self, start: str, pattern: str) -> list[str]:
        """The names that a shell could put in the place of a pattern, and a few more."""
        found = ["/"] if pattern.startswith("/") else [""]
        for part in (part for part in pattern.split("/") if part):
            wider = _wider(part)
            if wider is None:
                found = [os.path.join(name, _plain(part)) for name in found]
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
                        message = "There are too many files to look at for this pattern. Name a folder, or use find."
                        raise Refused("glob", message, final=True)
                    names.append(entry.name)
        except OSError:
            return []
        hidden = pattern.startswith(".")
        return [name for name in names if (hidden or not name.startswith(".")) and fnmatchcase(name, pattern)]


def is_below(path: str, folder: str) -> bool:
    """Whether an absolute path is a folder or in it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _at_home(word: Word) -> str:
    if "tilde" not in word.expansions:
        return word.text
    if word.raw != "~" and not word.raw.startswith("~/"):
        raise Refused("expansion", f"{word.raw!r:.100} is not clear. Write the path itself.", final=True)
    return os.path.expanduser("~") + word.text[1:]


def _wider(part: str) -> str | None:
    """A pattern that matches all that this one does in any shell; ``None`` if it has no wildcards."""
    made, at, wild = "", 0, False
    while at < len(part):
        char = part[at]
        if char == "[" and part[at + 1 : at + 3] in ("*]", "?]", "[]"):  # it was quoted
            made += part[at : at + 3]
            at += 3
            continue
        if char == "[":
            return made + "*"
        wild = wild or char in "*?"
        made += char
        at += 1
    return made if wild else None


def _plain(part: str) -> str:
    for sign in "*?[":
        part = part.replace(f"[{sign}]", sign)
    return part
