"""Tools that read, search and optionally write the files of one folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from .._base.files import below, matches_globs, open_folder_inside, replace_file
from .._base.own_files import protection_of
from .._base.secret_files import SECRET_FILES
from .._kernel.errors import RegistrationError
from ..tools._tool import Tool

if TYPE_CHECKING:
    from pathlib import Path

MAX_BYTES = 5_000_000
"""Maximum number of bytes read from a file."""
MAX_TEXT = 16_000
"""Maximum length of a result in characters, without the note that it was cut."""
MAX_ENTRIES = 200
"""Maximum number of entries or matches in a result."""
MAX_SEARCH = 100_000_000
"""Maximum number of bytes that one search reads."""
_MAX_HIT = 200
_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_FILE_COST = 4_000  # opening a file counts like reading this many bytes


def file_tools(
    folder: str | os.PathLike[str], write: bool = False, *, hide: Iterable[str] = SECRET_FILES
) -> list[Tool]:
    """Make the tools ``list_files``, ``read_file``, ``find_text``, ``write_file`` and ``edit_file`` for a folder.

    Files that usually hold secrets are hidden. The files that Hookline uses (code, configuration, stores), and those
    that make git run code, are never written. ``edit_file`` replaces a text that occurs just once.

    Paths are relative to the folder. Nothing outside the folder is read or written: ``..`` and links are resolved
    first, and only regular files are opened. On POSIX systems this also holds if another process replaces a folder with
    a link at the same moment.

    Args:
        folder: the folder, which must exist.
        write: whether to include ``write_file`` and ``edit_file``.
        hide: globs of files, such as ``.env`` or ``.git/config``, that are not listed, read, searched or written; by
            default ``hookline.hooks.SECRET_FILES``. An empty list hides nothing.

    Raises:
        RegistrationError: the folder does not exist, or ``hide`` is not a list of globs.

    Example::

        agent = Agent("bob", llm="local", tools=file_tools("notes", write=True))
    """
    from pathlib import Path

    hidden = () if isinstance(hide, str) else tuple(hide)
    if isinstance(hide, str) or not all(isinstance(glob, str) for glob in hidden):
        raise RegistrationError(f"hide= must be a list of globs such as ['.env'], not {hide!r:.80}")

    root = Path(folder).resolve()
    if not root.is_dir():
        raise RegistrationError(f"the folder {str(folder)!r} does not exist")
    files = _Files(root, hidden)
    made: list[Callable[..., str]] = [files.list_files, files.read_file]
    tools = [Tool(fn, folder=root, effects=["read"]) for fn in made]
    search: Tool = Tool(files.find_text, folder=root, effects=["read"], texts=["text"])
    search.is_search, search.hides = True, hidden
    tools.append(search)
    if write:
        tools.append(Tool(files.write_file, folder=root, effects=["write"], texts=["content"]))
        texts = ["old_string", "new_string"]
        tools.append(Tool(files.edit_file, folder=root, effects=["read", "write"], texts=texts))
    return tools


class _Files:
    def __init__(self, root: Path, hide: tuple[str, ...]) -> None:
        self.root, self.hide = root, hide

    def list_files(self, path: str = ".") -> str:
        """List the files in a folder. Names of folders end with /.

        Args:
            path: the folder
        """
        found = self._find(path)
        if self._is_hidden(found):
            raise _hidden(path)
        if not found.is_dir():
            raise NotADirectoryError(f"{path!r} is a file; use read_file")
        try:
            with open_folder_inside(self.root, found) as held, os.scandir(found if held is None else held) as entries:
                listed = [(found / entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        except OSError as error:
            raise _unusable(path, error) from error
        names = sorted(self._shown(file) + "/" * is_dir for file, is_dir in listed if not self._is_hidden(file))
        notes = [f"{len(names) - MAX_ENTRIES} more"] if len(names) > MAX_ENTRIES else []
        notes += _skipped(len(listed) - len(names), "listed")
        return _cut(names[:MAX_ENTRIES], "; ".join(notes)) or "The folder is empty."

    def read_file(
        self, path: Annotated[str, Field(examples=["todo.txt"])], start_line: int = 1, max_lines: int = 200
    ) -> str:
        """Read lines of a text file.

        Args:
            path: the file
            start_line: the first line to read
            max_lines: how many lines to read
        """
        data = self._content(self._find(path), path)
        lines = _lines(data[:MAX_BYTES])
        first = max(start_line, 1) - 1
        wanted = lines[first : first + max(max_lines, 1)]
        if lines and not wanted:
            raise ValueError(f"{path!r} has only {len(lines)} lines")
        shown = _fitting(wanted)
        last = first + len(shown)
        notes = [f"lines {first + 1} to {last} of {len(lines)}"] if len(shown) < len(lines) else []
        if last < len(lines):
            notes.append(f"continue with start_line={last + 1}")
        if shown and shown[-1] != wanted[len(shown) - 1]:
            notes.append(f"line {last} is cut")
        if len(data) > MAX_BYTES:
            notes.append(f"the file is longer than {MAX_BYTES} bytes, and the rest cannot be read")
        return _cut(shown, "; ".join(notes)) or "The file is empty."

    def find_text(self, text: Annotated[str, Field(examples=["house"])], path: str = ".") -> str:
        """Find lines that contain a text, in all files.

        Args:
            text: the text to search for; upper and lower case are the same
            path: the folder or file to search
        """
        if not text.strip():
            raise ValueError("text is empty: give a text to search for")
        start = self._find(path)
        if self._is_hidden(start):
            raise _hidden(path)
        wanted, hits, left, hidden = text.casefold(), [], MAX_SEARCH, 0
        for file in self._walk(start):
            if self._is_hidden(file):
                hidden += 1
                continue
            try:
                data = self._content(file, file.name)[:MAX_BYTES]
            except (OSError, ValueError):  # skip binary and unreadable files
                data = b""
            left -= len(data) + _FILE_COST
            for number, line in enumerate(_lines(data), 1):
                if wanted in line.casefold():
                    hits.append(f"{self._shown(file)}:{number}: {line.strip()[:_MAX_HIT]}")
            if len(hits) > MAX_ENTRIES or left < 0:
                break
        notes = [f"there are more than {MAX_ENTRIES} matches"] if len(hits) > MAX_ENTRIES else []
        notes += ["not all files were searched; give a path"] if left < 0 and not notes else []
        notes += _skipped(hidden, "searched")
        return _cut(hits[:MAX_ENTRIES] or [f"No line contains {text!r}."], "; ".join(notes))

    def write_file(self, path: str, content: str) -> str:
        """Write a text file. An existing file is replaced.

        Args:
            path: the file
            content: the whole new text
        """
        place, mode = self._target(path)
        self._replace(place, path, content, 0o666 if mode is None else mode)
        return f"Wrote {len(content)} characters to {self._shown(place)}."

    def edit_file(self, path: str, old_string: str, new_string: str) -> str:
        """Replace a text in a file. It must occur just once.

        Args:
            path: the file
            old_string: the text to replace, with enough lines around it
            new_string: the new text
        """
        place, mode = self._target(path)
        if mode is None:
            raise FileNotFoundError(f"{path!r} does not exist; list_files shows the files, write_file makes new ones")
        data = self._content(place, path)
        if len(data) > MAX_BYTES:
            raise ValueError(f"{path!r} is longer than {MAX_BYTES} bytes and cannot be edited")
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise ValueError(f"{path!r} is not UTF-8 text") from None
        if "\r\n" in text and "\r" not in old_string:  # read_file shows such lines with \n
            old_string, new_string = old_string.replace("\n", "\r\n"), new_string.replace("\n", "\r\n")
        before, found, after = text.partition(old_string) if old_string else ("", "", "")
        if not found:
            raise ValueError(f"{path!r} does not contain old_string; read_file shows its text")
        if old_string in (found + after)[1:]:
            raise ValueError(f"{path!r} contains old_string more than once; give more lines around it")
        self._replace(place, path, before + new_string + after, mode)
        return f"Edited line {before.count(chr(10)) + 1} of {self._shown(place)}."

    def _target(self, path: str) -> tuple[Path, int | None]:
        """Return the place of a file to write, and its mode; ``None`` if it does not exist."""
        target = self.root / path
        parent = below(self.root, target.parent) if "\0" not in path else None
        if parent is None or target.name in ("", "..") or below(self.root, target) in (None, self.root):
            raise _outside(path)
        place = parent / target.name
        if self._is_hidden(place):
            raise _hidden(path)
        if (why := protection_of(str(place))) is not None:
            raise PermissionError(f"{path!r} may not be changed: it is {why}; continue without it")
        try:
            mode = place.lstat().st_mode
        except FileNotFoundError:
            return place, None
        except OSError as error:
            raise _unusable(path, error) from error
        if not stat.S_ISREG(mode):
            raise PermissionError(f"{path!r} is not a regular file; write to another path")
        return place, mode & 0o777

    def _replace(self, place: Path, path: str, content: str, mode: int) -> None:
        try:
            with open_folder_inside(self.root, place.parent, make=True) as held:
                replace_file(place, content.encode("utf-8", "replace"), mode, held)
        except OSError as error:
            raise _unusable(path, error) from error

    def _find(self, path: str) -> Path:
        found = below(self.root, path)
        if found is None:
            raise _outside(path)
        try:
            found.stat()
        except FileNotFoundError:
            raise FileNotFoundError(f"{path!r} does not exist; list_files shows the files") from None
        except OSError as error:
            raise _unusable(path, error) from error
        return found

    def _is_hidden(self, file: Path) -> bool:
        return bool(self.hide) and matches_globs(str(file), self.hide, str(self.root))

    def _content(self, path: Path, name: str) -> bytes:
        """Return the first bytes of a resolved path, one more than ``MAX_BYTES`` if the file is longer."""
        if self._is_hidden(path):
            raise _hidden(name)
        try:
            if not path.is_file():  # opening a device or pipe may block or have side effects
                raise ValueError(f"{name!r} is not a file" + ("; use list_files" if path.is_dir() else ""))
            with open_folder_inside(self.root, path.parent) as held:
                found = os.open(path if held is None else path.name, _OPEN_FLAGS, dir_fd=held)
            with open(found, "rb") as file:
                if not stat.S_ISREG(os.fstat(found).st_mode):
                    raise ValueError(f"{name!r} is not a file")
                data = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise _unusable(name, error) from error
        if b"\0" in data:
            raise ValueError(f"{name!r} is not a text file")
        return data

    def _walk(self, start: Path) -> Iterator[Path]:
        if not start.is_dir():
            yield start
        for folder, folders, names in os.walk(start):
            hidden = [name for name in folders if self._is_hidden(start / folder / name)]
            folders[:] = sorted(set(folders).difference(hidden))
            for name in sorted([*hidden, *names]):
                file = start / folder / name
                if not file.is_symlink():  # its target is found anyway if it is in the folder
                    yield file

    def _shown(self, path: Path) -> str:
        name = path.relative_to(self.root).as_posix()
        return name if name.isprintable() else repr(name)


def _lines(data: bytes) -> list[str]:
    lines = data.decode("utf-8-sig", "replace").replace("\r\n", "\n").split("\n")
    return lines if lines[-1] else lines[:-1]


def _fitting(lines: list[str]) -> list[str]:
    """Return as many lines as fit into a result; at least a part of the first."""
    room, kept = MAX_TEXT, []
    for line in lines:
        room -= len(line) + 1
        if room < 0:
            break
        kept.append(line)
    return kept or [line[:MAX_TEXT] for line in lines[:1]]


def _cut(lines: list[str], note: str) -> str:
    shown = _fitting(lines)
    if len(shown) < len(lines):
        note = f"{len(lines) - len(shown)} more are omitted" + (f"; {note}" if note else "")
    return "\n".join([*shown, f"[{note}]"] if note else shown)


def _skipped(number: int, done: str) -> list[str]:
    """Return a note about hidden files and folders; none without any."""
    if not number:
        return []
    if number == 1:
        return [f"1 file or folder that may contain secrets was not {done}"]
    return [f"{number} files or folders that may contain secrets were not {done}"]


def _outside(path: str) -> PermissionError:
    return PermissionError(f"{path!r} is outside the folder; use a path relative to it, such as 'notes.txt'")


def _hidden(path: str) -> PermissionError:
    return PermissionError(f"{path!r} contains secrets and may not be used; continue without it")


def _unusable(path: str, error: OSError) -> OSError:
    return type(error)(f"cannot use {path!r}: {error.strerror}")
