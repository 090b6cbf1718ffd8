"""Help with files: the user's own folders, names and paths that stay in one, locks, writing that leaves no halves."""

from __future__ import annotations

import os
import re
import string
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

_MAC = {"cache": "Library/Caches", "data": "Library/Application Support"}
_WINDOWS = {"cache": ("LOCALAPPDATA", "AppData/Local"), "data": ("APPDATA", "AppData/Roaming")}
_OTHERS = {"cache": ("XDG_CACHE_HOME", ".cache"), "data": ("XDG_DATA_HOME", ".local/share")}

_PLAIN = frozenset(f"{string.ascii_lowercase}{string.digits}-_".encode())


def user_folder(kind: Literal["cache", "data"]) -> Path:
    """Where this user's files of that kind are kept, as the system likes it."""
    from pathlib import Path

    if sys.platform == "darwin":
        return Path.home() / _MAC[kind] / "hookline"
    variable, usual = (_WINDOWS if sys.platform == "win32" else _OTHERS)[kind]
    return Path(os.environ.get(variable) or Path.home() / usual) / "hookline"


def below(folder: Path, path: str | Path) -> Path | None:
    """Where a path leads from a resolved ``folder``, links and ``..`` resolved; ``None`` if that is outside of it."""
    try:
        found = (folder / path).resolve()
    except (OSError, RuntimeError, ValueError):  # a loop of links, a NUL
        return None
    return found if found.is_relative_to(folder) else None


def matches_globs(path: str, globs: Iterable[str], within: str = "") -> bool:
    """Whether a path, or a folder that it lies in, is one of those that globs name, whatever the case of its letters.

    Args:
        path: a full path.
        globs: of names (``.env``, ``*.pem``) or of the last parts of paths (``.git/config``); one that begins with
            ``!`` names exceptions.
        within: a folder that the path lies in and that was chosen: its own name does not count.
    """
    wanted, spared, depth = _compiled(tuple(globs))
    parts, chosen = _parts(path), len(_parts(within))
    for end in range(chosen + 1, len(parts) + 1):
        last = "/".join(parts[max(end - depth, 0) : end])
        if wanted.search(last) and not spared.search(last):
            return True
    return False


def matches_path(path: str, keep: Iterable[str]) -> bool:
    """Whether a resolved path is one that globs (:func:`matches_globs`) or whole paths name."""
    return matches_globs(path, keep) or any(path == os.path.realpath(kept) for kept in keep)


@lru_cache(64)
def _compiled(globs: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str], int]:
    """What globs name, their exceptions, and how many parts of a path the longest one looks at."""
    wanted = [_pattern(glob) for glob in globs if not glob.startswith("!")]
    spared = [_pattern(glob[1:]) for glob in globs if glob.startswith("!")]
    return _last_of(wanted), _last_of(spared), max((len(_parts(glob)) for glob in globs), default=0)


def _last_of(patterns: list[str]) -> re.Pattern[str]:
    return re.compile(rf"(?:^|/)(?:{'|'.join(patterns)})\Z" if patterns else r"(?!)", re.DOTALL)


def _pattern(glob: str) -> str:
    """A glob as an expression in which no wildcard reaches over a slash."""
    known = {"*": "[^/]*", "?": "[^/]"}
    pieces = re.split(r"(\*|\?|\[[^\]/]+\])", "/".join(_parts(glob)))
    return "".join(_set(piece) if piece[:1] == "[" else known.get(piece, re.escape(piece)) for piece in pieces)


def _set(piece: str) -> str:
    """``[ab]`` or ``[!ab]`` as a part of an expression."""
    if len(piece) < 3 or piece == "[!]":
        return re.escape(piece)
    inner = piece[1:-1]
    without = "^/" if inner.startswith("!") else ""
    members = re.sub(r"([\\^\[&~|])", r"\\\1", inner.removeprefix("!"))
    return f"[{without}{members}]"


def _parts(path: str) -> list[str]:
    """The names in a path, as those file systems see them that do not tell some names apart."""
    from unicodedata import normalize

    plain = path if path.isascii() else normalize("NFC", path)
    names = (name.partition(":")[0].rstrip(" .") or name for name in plain.casefold().replace("\\", "/").split("/"))
    return [name for name in names if name]


@contextmanager
def open_folder_inside(root: Path, folder: Path, make: bool = False) -> Iterator[int | None]:
    """A folder below a resolved ``root``, opened step by step from there, so that no link can come in between.

    What is opened with this as ``dir_fd`` is in that very folder. Where systems cannot do that, it is ``None``.

    Args:
        root: where it starts.
        folder: a resolved path below it.
        make: whether to make the folders that are missing.

    Raises:
        OSError: it is not there, or a link has taken the place of a folder.
    """
    if os.open not in os.supports_dir_fd or not hasattr(os, "O_NOFOLLOW"):
        if make:
            folder.mkdir(parents=True, exist_ok=True)
        yield None
        return
    flags = os.O_RDONLY | os.O_DIRECTORY
    held = os.open(root, flags)
    try:
        for name in folder.relative_to(root).parts:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=held)
            inner = os.open(name, flags | os.O_NOFOLLOW, dir_fd=held)
            os.close(held)
            held = inner
        yield held
    finally:
        os.close(held)


def file_name_for(text: str) -> str:
    """Any text as a part of a file name: only characters that mean the same to every file system, others as ``%xx``.

    Raises:
        UnicodeEncodeError: it is not valid text.
    """
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02x}" for byte in text.encode())


@contextmanager
def locked(file: int, seconds: float) -> Iterator[None]:
    """Hold the lock of an open file, against other processes and threads that take it too.

    Raises:
        TimeoutError: somebody else held it for so long.
    """
    end = time.monotonic() + seconds
    while not _try_lock(file):
        if time.monotonic() >= end:
            raise TimeoutError(f"it was locked for {seconds:g} s by another program")
        time.sleep(0.005)
    try:
        yield
    finally:
        _unlock(file)


@contextmanager
def locked_folder(folder: str | os.PathLike[str], seconds: float) -> Iterator[None]:
    """Hold the lock of a folder, a file ``.lock`` in it, as :func:`locked` does.

    Raises:
        OSError: there can be no such file, or somebody else held the lock for so long.
    """
    file = os.open(os.path.join(folder, ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        with locked(file, seconds):
            yield
    finally:
        os.close(file)


if sys.platform == "win32":
    import msvcrt

    _FAR = 1 << 62  # a byte that is never written: a lock there keeps nobody from reading

    def _lock_byte(file: int, how: int) -> None:
        at = os.lseek(file, 0, os.SEEK_CUR)
        try:
            os.lseek(file, _FAR, os.SEEK_SET)
            msvcrt.locking(file, how, 1)
        finally:
            os.lseek(file, at, os.SEEK_SET)

    def _try_lock(file: int) -> bool:
        try:
            _lock_byte(file, msvcrt.LK_NBLCK)
        except OSError:
            return False
        return True

    def _unlock(file: int) -> None:
        _lock_byte(file, msvcrt.LK_UNLCK)

else:
    import fcntl

    def _try_lock(file: int) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _unlock(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_UN)


def replace_file(path: Path, data: bytes, mode: int = 0o666, folder: int | None = None, *, sync: bool = True) -> None:
    """Put a whole new file in the place of ``path``; a link there is replaced, not followed.

    Args:
        path: the file.
        data: all that it is to hold.
        mode: who may do what with it.
        folder: the folder of ``path``, if it is open (:func:`open_folder_inside`); only the name of ``path`` counts.
        sync: whether it is on the disk before it takes that place.

    Raises:
        OSError: it cannot be written; what was there is still there.
    """
    fresh = path.with_name(f".{os.urandom(8).hex()}.tmp")
    old, new = (path, fresh) if folder is None else (path.name, fresh.name)
    try:
        with open(new, "xb", opener=lambda name, flags: os.open(name, flags, mode, dir_fd=folder)) as file:
            file.write(data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.replace(new, old, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(new, dir_fd=folder)
        raise
