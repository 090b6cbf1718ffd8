"""Helpers for files: user folders, owners, paths that stay inside a folder, globs, locks and atomic writes."""

from __future__ import annotations

import errno
import os
import re
import stat
import string
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, BinaryIO, Literal

if TYPE_CHECKING:
    from pathlib import Path

_SUPPORT = "Library/Application Support"
_ROAMING = ("APPDATA", "AppData/Roaming")
_MAC = {"cache": "Library/Caches", "data": _SUPPORT, "config": _SUPPORT}
_WINDOWS = {"cache": ("LOCALAPPDATA", "AppData/Local"), "data": _ROAMING, "config": _ROAMING}
_OTHERS = {
    "cache": ("XDG_CACHE_HOME", ".cache"),
    "data": ("XDG_DATA_HOME", ".local/share"),
    "config": ("XDG_CONFIG_HOME", ".config"),
}

_PLAIN = frozenset(f"{string.ascii_lowercase}{string.digits}-_".encode())
_PLAIN_NAME = re.compile("[a-z0-9_-]*")


def user_folder(kind: Literal["cache", "data", "config"]) -> Path:
    """Return the folder for this user's cache, data or configuration, as the operating system wants it."""
    from pathlib import Path

    if sys.platform == "darwin":
        return Path.home() / _MAC[kind] / "hookline"
    variable, usual = (_WINDOWS if sys.platform == "win32" else _OTHERS)[kind]
    return Path(os.environ.get(variable) or Path.home() / usual) / "hookline"


def is_below(path: str, folder: str) -> bool:
    """Return whether an absolute path is the folder or inside it. Both are compared as text."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def distrust_reason(path: Path, top: Path | None = None) -> str | None:
    """Return why another user could have written or replaced a file; ``None`` if only this user and root could.

    A file that decides which code runs, or which instructions a model gets, must not come from another user. The folder
    of the file counts as well, because a user who may write to it can replace the file; so do the folders above it, up
    to ``top``. In a folder with the sticky bit, such as ``/tmp``, only the owner of a file can replace it.

    Always ``None`` on Windows, where these permissions do not exist.

    Args:
        path: the file or folder.
        top: the last folder to check; by default, only the folder that contains ``path``.
    """
    if sys.platform == "win32":
        return None
    try:
        real = path.resolve(strict=True)
        for each in dict.fromkeys((path, real)):  # the owner of a link chooses its target
            if problem := _other_writers(each.lstat() if each is path else each.stat()):
                return problem
        for folder in _folders_above(path.absolute(), real, top):
            state = folder.stat()
            problem = _other_writers(state)
            if problem and (not state.st_mode & stat.S_ISVTX or problem == _FOREIGN):
                return f"its folder is {folder}, and {problem}"
    except (OSError, RuntimeError) as error:  # a cycle of links
        return f"its owner cannot be read: {getattr(error, 'strerror', None) or error}"
    return None


_FOREIGN = "it belongs to another user"


def _folders_above(path: Path, real: Path, top: Path | None) -> Iterator[Path]:
    limit = None if top is None else top.resolve()
    for start in dict.fromkeys((path.parent, real.parent)):
        yield start
        if limit is not None and start.resolve().is_relative_to(limit):
            for folder in start.resolve().parents:
                if not folder.is_relative_to(limit):
                    break
                yield folder


def _other_writers(state: os.stat_result) -> str:
    """Return which other users may write to a file or folder; empty if there are none."""
    if state.st_uid not in (os.geteuid(), 0):
        return _FOREIGN
    if stat.S_ISLNK(state.st_mode):  # the permissions of a link have no effect
        return ""
    if state.st_mode & stat.S_IWOTH:
        return "every user may write to it"
    if state.st_mode & stat.S_IWGRP and not _is_private_group(state.st_gid, state.st_uid):
        return f"the group {_group_name(state.st_gid)} may write to it"
    return ""


@lru_cache(64)
def _is_private_group(group: int, user: int) -> bool:
    """Whether a group is the user's own, which many systems create with the user: same name, no other members."""
    import grp
    import pwd

    try:
        owner, entry = pwd.getpwuid(user), grp.getgrgid(group)
    except KeyError:
        return False
    return owner.pw_gid == group and owner.pw_name == entry.gr_name and set(entry.gr_mem) <= {owner.pw_name}


def _group_name(group: int) -> str:
    import grp

    try:
        return grp.getgrgid(group).gr_name
    except KeyError:
        return str(group)


def below(folder: Path, path: str | Path) -> Path | None:
    """Resolve a path relative to a resolved ``folder``, with links and ``..``. Return ``None`` if it is outside."""
    try:
        found = (folder / path).resolve()
    except (OSError, RuntimeError, ValueError):  # a cycle of links, or a NUL character
        return None
    try:
        os.stat(found)
    except OSError as error:
        if error.errno == errno.ELOOP:  # since Python 3.13, resolve() leaves a cycle of links as it is
            return None
    return found if found.is_relative_to(folder) else None


def matches_globs(path: str, globs: Iterable[str], within: str = "") -> bool:
    """Whether a glob matches a path or one of its parent folders. The case of letters does not matter.

    Args:
        path: a full path.
        globs: patterns for names (``.env``, ``*.pem``) or for the last parts of paths (``.git/config``). A glob that
            begins with ``!`` is an exception.
        within: a parent folder of the path that the user chose; this folder and its parents are not compared.
    """
    wanted, spared, depth = _compiled(tuple(globs))
    parts, chosen = _parts(path), len(_parts(within))
    for end in range(chosen + 1, len(parts) + 1):
        last = "/".join(parts[max(end - depth, 0) : end])
        if wanted.search(last) and not spared.search(last):
            return True
    return False


def find_matching(folder: str, globs: Iterable[str], limit: int) -> Iterator[tuple[str, str]]:
    """Find the files below a folder that globs match (:func:`matches_globs`), by their own name or that of a folder.

    Links are not followed, but a link counts if a glob matches its target.

    Args:
        folder: a full path with links resolved. Its own name and those above it are not compared.
        globs: the patterns.
        limit: number of entries to look at.

    Yields:
        the path of a file, and that of the outermost file or folder that a glob matches.

    Raises:
        OverflowError: there are more entries.
    """
    wanted = tuple(globs)
    todo = [(folder, "")]
    while todo:
        place, reason = todo.pop()
        try:
            entries = list(os.scandir(place))
        except OSError:
            continue
        limit -= len(entries)
        if limit < 0:
            raise OverflowError
        for entry in entries:
            found = reason
            if not found and matches_globs(entry.path, wanted, place):
                found = entry.path
            if not found and entry.is_symlink():
                target = os.path.realpath(entry.path)
                if matches_globs(target, wanted, folder if is_below(target, folder) else ""):
                    found = entry.path
            if entry.is_dir(follow_symlinks=False):
                todo.append((entry.path, found))
            elif found:
                yield entry.path, found


def matches_path(path: str, keep: Iterable[str]) -> bool:
    """Whether a glob (:func:`matches_globs`) or a whole path in ``keep`` matches a resolved path."""
    return matches_globs(path, keep) or any(path == os.path.realpath(kept) for kept in keep)


@lru_cache(512)
def fold_path(path: str) -> str:
    """Return a full path in a form in which names that some file systems treat as equal are equal."""
    return "/" + "/".join(_parts(path))


@lru_cache(64)
def _compiled(globs: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str], int]:
    """Compile globs: the pattern, the pattern of exceptions, and the number of path parts in the longest glob."""
    wanted = [_pattern(glob) for glob in globs if not glob.startswith("!")]
    spared = [_pattern(glob[1:]) for glob in globs if glob.startswith("!")]
    return _last_of(wanted), _last_of(spared), max((len(_parts(glob)) for glob in globs), default=0)


def _last_of(patterns: list[str]) -> re.Pattern[str]:
    return re.compile(rf"(?:^|/)(?:{'|'.join(patterns)})\Z" if patterns else r"(?!)", re.DOTALL)


def _pattern(glob: str) -> str:
    """Convert a glob to a regular expression in which wildcards do not match a slash."""
    known = {"*": "[^/]*", "?": "[^/]"}
    pieces = re.split(r"(\*|\?|\[[^\]/]+\])", "/".join(_parts(glob)))
    return "".join(_set(piece) if piece[:1] == "[" else known.get(piece, re.escape(piece)) for piece in pieces)


def _set(piece: str) -> str:
    """Convert ``[ab]`` or ``[!ab]`` to a part of a regular expression."""
    if len(piece) < 3 or piece == "[!]":
        return re.escape(piece)
    inner = piece[1:-1]
    without = "^/" if inner.startswith("!") else ""
    members = re.sub(r"([\\^\[&~|])", r"\\\1", inner.removeprefix("!"))
    return f"[{without}{members}]"


def _parts(path: str) -> list[str]:
    """Split a path into names, normalised so that names which some file systems treat as equal also match."""
    from unicodedata import normalize

    plain = path if path.isascii() else normalize("NFC", path)
    names = (name.partition(":")[0].rstrip(" .") or name for name in plain.casefold().replace("\\", "/").split("/"))
    return [name for name in names if name]


@contextmanager
def open_folder_inside(root: Path, folder: Path, make: bool = False) -> Iterator[int | None]:
    """Open a folder inside a resolved ``root``, name by name and without following links.

    A file opened with the result as ``dir_fd`` is guaranteed to be in this folder, even if a link replaces one of its
    parents later. The result is ``None`` on systems that do not support this.

    Args:
        root: the folder to start from.
        folder: a resolved path inside it.
        make: whether to create missing folders.

    Raises:
        OSError: the folder does not exist, or a link has replaced a folder of the path.
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


def project_name(project: str | os.PathLike[str]) -> str:
    """Return a name for the files of a project in the user's folders: its folder's name and a digest of its path."""
    from hashlib import sha256
    from pathlib import Path

    folder = Path(project).expanduser().resolve()
    name = re.sub(r"[^a-z0-9]+", "-", folder.name.lower()).strip("-")[:40] or "root"
    return f"{name}-{sha256(os.fsencode(folder)).hexdigest()[:10]}"


def file_name_for(text: str) -> str:
    """Encode a text as part of a file name: characters that are not safe on every file system become ``%xx``.

    Raises:
        UnicodeEncodeError: the text is not valid Unicode.
    """
    if _PLAIN_NAME.fullmatch(text):
        return text
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02x}" for byte in text.encode())


@contextmanager
def locked(file: int, seconds: float) -> Iterator[None]:
    """Hold an exclusive lock on an open file, against other processes and threads.

    Raises:
        TimeoutError: another process or thread held the lock for ``seconds``.
    """
    end = time.monotonic() + seconds
    while not try_lock(file):
        if time.monotonic() >= end:
            raise TimeoutError(f"another program held the lock for more than {seconds:g} s")
        time.sleep(0.005)
    try:
        yield
    finally:
        unlock(file)


@contextmanager
def locked_folder(folder: str | os.PathLike[str], seconds: float) -> Iterator[None]:
    """Hold an exclusive lock on a folder, with a file ``.lock`` in it; see :func:`locked`.

    Raises:
        OSError: the lock file cannot be created, or the lock was not released in time.
    """
    file = os.open(os.path.join(folder, ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        with locked(file, seconds):
            yield
    finally:
        os.close(file)


if sys.platform == "win32":
    import msvcrt

    _FAR = 1 << 62  # a byte far behind the end of the file: locking it does not prevent reading

    def _lock_byte(file: int, how: int) -> None:
        at = os.lseek(file, 0, os.SEEK_CUR)
        try:
            os.lseek(file, _FAR, os.SEEK_SET)
            msvcrt.locking(file, how, 1)
        finally:
            os.lseek(file, at, os.SEEK_SET)

    def try_lock(file: int) -> bool:
        """Take an exclusive lock on an open file; return false if another process or thread holds it."""
        try:
            _lock_byte(file, msvcrt.LK_NBLCK)
        except OSError:
            return False
        return True

    def unlock(file: int) -> None:
        """Release the lock on an open file."""
        _lock_byte(file, msvcrt.LK_UNLCK)

else:
    import fcntl

    def try_lock(file: int) -> bool:
        """Take an exclusive lock on an open file; return false if another process or thread holds it."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(file: int) -> None:
        """Release the lock on an open file."""
        fcntl.flock(file, fcntl.LOCK_UN)


def replace_file(path: Path, data: bytes, mode: int = 0o666, folder: int | None = None, *, sync: bool = True) -> None:
    """Write a file atomically: readers see either the old or the new content. A link is replaced, not followed.

    Args:
        path: the file.
        data: its new content.
        mode: its permissions.
        folder: the folder of ``path``, if it is open (:func:`open_folder_inside`); only the name of ``path`` counts.
        sync: whether to flush the data to the disk before the file is replaced.

    Raises:
        OSError: the file cannot be written; the old file is unchanged.
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


@contextmanager
def partial_file(path: Path) -> Iterator[BinaryIO]:
    """Open a large file for writing, for its owner only. It gets its name when it is complete, unless it is empty.

    Until then it is called ``NAME.partial``, so that no reader takes a part of it for the whole.

    Raises:
        OSError: the file cannot be written. Nothing is left behind.
    """
    partial = path.with_name(f"{path.name}.partial")
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            yield file
            size = file.tell()
        if size:
            os.replace(partial, path)
    finally:
        with suppress(OSError):
            partial.unlink()
