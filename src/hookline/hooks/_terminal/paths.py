"""Check the paths of a command: inside the folder, not secret, not a device."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from copy import copy
from fnmatch import fnmatchcase

from ..._base.files import is_below, matches_globs, matches_path
from ..._base.own_files import protection_of
from ..._toolbox.command_line import Word
from .errors import BlockedError

MAX_FILES = 20_000
"""Maximum number of directory entries to read for the globs of one command line."""

_SIMPLE_GLOB = re.compile(r"[A-Za-z0-9_.*?-]+")  # programs disagree about others
_STREAMS = ("/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr")


class PathScope:
    """The paths that a command line may read and write, from its current folder.

    Args:
        start: the current folder.
        folder: the folder that all paths must be in; ``None`` for no limit.
        secrets: globs of files that must not be touched, see :func:`matches_globs`.
        writes: whether files may be written.
        protect: globs or paths of further files that must not be written.
    """

    def __init__(
        self, start: str, folder: str | None, secrets: Sequence[str], writes: bool, protect: Sequence[str]
    ) -> None:
        self.folder, self.writes, self._secrets, self._protected = folder, writes, secrets, protect
        self.start = os.path.realpath(start)
        self._left = MAX_FILES

    def copy(self) -> PathScope:
        """Return a copy, for a command that changes its own current folder."""
        return copy(self)

    def check_read(self, word: Word) -> None:
        """Check a path that is read, or all files that a glob matches.

        Raises:
            BlockedError: a path is outside the folder, secret, or a device.
        """
        if "glob" in word.expansions:
            self.check_glob(word)
        elif word.text not in _STREAMS and word.text not in ("", "-"):
            self._resolve(word.text)

    def check_write(self, word: Word) -> None:
        """Check a path that is written.

        Raises:
            BlockedError: the path must not be written.
        """
        text = word.text
        if text in _STREAMS:
            return
        if not self.writes:
            message = f"Writing to {text!r:.100} is not allowed: files may only be read. Leave out the >."
            raise BlockedError("redirect", message, final=True)
        if word.expansions or not text:
            raise BlockedError("redirect", f"{text!r:.100} is not the name of one file. Write it out.", final=True)
        self._resolve(text)
        self.check_not_protected(text)

    def check_not_protected(self, text: str) -> None:
        """Check that a path is not one of the files that must not be written.

        Raises:
            BlockedError: the path is protected.
        """
        path = os.path.join(self.start, text)
        why = protection_of(path)
        if why is not None or matches_path(os.path.realpath(path), self._protected):
            reason = "" if why is None else f": it is {why}"
            raise BlockedError("redirect", f"{text!r:.100} may not be changed{reason}.", final=True)

    def check_glob(self, word: Word) -> None:
        """Check all files that a glob can match.

        Raises:
            BlockedError: a file must not be read or looks like an option, or there are too many files.
        """
        folder, pattern = os.path.split(word.pattern)
        if any(sign in folder for sign in "*?["):
            message = f"{word.raw!r:.100} has wildcards in the name of a folder. Write the folder out."
            raise BlockedError("glob", message, final=True)
        self._resolve(folder)
        for name in self._entries(os.path.join(self.start, folder), _widen(pattern)):
            if name.startswith("-") and not folder:
                message = f"{word.raw!r:.100} matches {name!r:.100}, which looks like an option. Put ./ before it."
                raise BlockedError("glob", message, final=True)
            self._resolve(os.path.join(folder, name))

    def check_tree(self, text: str, include: Sequence[str], exclude: Sequence[str], exclude_dir: Sequence[str]) -> None:
        """Check all files in a folder that ``grep -r`` reads. It does not follow links.

        Raises:
            BlockedError: a file must not be read, or there are too many files.
        """
        if not all(_SIMPLE_GLOB.fullmatch(glob) for glob in (*include, *exclude, *exclude_dir)):
            raise BlockedError("glob", "Use only letters, digits, '.', '-', '*' and '?' in --include and --exclude.")
        for place, folders, files in os.walk(os.path.join(self.start, text)):
            folders[:] = [name for name in folders if not _matches_any(name, exclude_dir)]
            self._left -= len(folders) + len(files)
            if self._left < 0:
                raise BlockedError("folder", "There are too many files to check here. Name a smaller folder.")
            for name in files:
                # A file that matches neither is read if --exclude comes first, so --include does not count beside it.
                read = _matches_any(name, include) or not (_matches_any(name, exclude) if exclude else include)
                path = os.path.join(place, name)
                if read and self._is_secret(path) and not os.path.islink(path):
                    option = "--exclude-dir=.git" if "/.git/" in path else f"--exclude={name}"
                    message = f"This would read {path!r:.200}, which may contain secrets. Add {option}."
                    raise BlockedError("secret", message, final=True)

    def is_file(self, text: str) -> bool:
        """Return whether a path is a regular file."""
        return os.path.isfile(os.path.join(self.start, text))

    def change_folder(self, words: Sequence[Word]) -> None:
        """Check a ``cd``, and change the current folder.

        Raises:
            BlockedError: the new folder is outside the folder, or does not exist.
        """
        text = words[0].text if len(words) == 1 else ""
        if not text or words[0].expansions or text.startswith("-"):
            raise BlockedError("cd", "cd takes one folder, and no options. Write its path.", final=True)
        reached = self._resolve(text)
        if not os.path.isdir(reached) or not os.access(reached, os.X_OK):
            raise BlockedError("cd", f"There is no folder {text!r:.100}.", final=True)
        if reached != os.path.normpath(os.path.join(self.start, text)):  # shells disagree about .. after a link
            raise BlockedError("cd", f"{text!r:.100} is or contains a link. Write the path without it.", final=True)
        self.start = reached

    def check_not_secret(self, text: str) -> None:
        """Check that a word does not name a secret file.

        Raises:
            BlockedError: the word names a secret file.
        """
        given = os.path.join(self.start, text)
        if any(map(self._is_secret, (os.path.realpath(given), os.path.normpath(given)))):
            message = f"{text!r:.100} may contain secrets and is not shown. Go on without it."
            raise BlockedError("secret", message, final=True)

    def check_matches_not_secret(self, word: Word) -> None:
        """Check that a glob matches no secret file. Other words, and options, pass.

        Raises:
            BlockedError: the glob matches a secret file, or there are too many files to check.
        """
        if not word.pattern or word.text.startswith("-"):
            return
        found = ["/" if word.pattern.startswith("/") else ""]
        for part in word.pattern.split("/"):
            if any(sign in part for sign in "*?["):
                names = {place: self._entries(os.path.join(self.start, place), _widen(part)) for place in found}
                found = [os.path.join(place, name) for place in found for name in names[place]]
            else:
                found = [os.path.join(place, part) for place in found]
        for match in found:
            self.check_not_secret(match)

    def _is_secret(self, path: str) -> bool:
        within = self.folder if self.folder is not None and is_below(path, self.folder) else ""
        return matches_globs(path, self._secrets, within)

    def check_inside(self, words: Sequence[Word]) -> None:
        """Check that no argument of an unknown program can be a path outside the folder.

        Raises:
            BlockedError: a word can be such a path.
        """
        for word in words:
            text = word.text
            glued = text[text.index("/") :] if text.startswith("-") and "/" in text else ""
            for form in (text, text.partition("=")[2], glued):
                if form and form not in _STREAMS:
                    self._resolve(form)

    def _resolve(self, text: str) -> str:
        """Check a path, and return its real path."""
        self.check_not_secret(text)
        path = os.path.realpath(os.path.join(self.start, text))
        if self.folder is not None and not is_below(path, self.folder):
            message = f"{text!r:.100} is not allowed: only paths in {self.folder!r} are. Use a path there."
            raise BlockedError("outside the folder", message, final=True)
        if is_below(path, "/dev"):
            raise BlockedError("device", f"{text!r:.100} is a device, not a file. Use a file.", final=True)
        return path

    def _entries(self, folder: str, pattern: str) -> list[str]:
        """Return the names in a folder that match a pattern."""
        hidden = pattern.startswith(".")
        names = [".", ".."] if hidden else []
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
        return [name for name in names if (hidden or not name.startswith(".")) and fnmatchcase(name, pattern)]


def _matches_any(name: str, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


def _widen(pattern: str) -> str:
    """Return a pattern that covers all matches of this one in any shell: shells differ in ``[``."""
    at = 0
    while (at := pattern.find("[", at)) >= 0:
        if pattern[at + 1 : at + 3] not in ("*]", "?]", "[]"):  # a quoted wildcard
            return pattern[:at] + "*"
        at += 3
    return pattern
