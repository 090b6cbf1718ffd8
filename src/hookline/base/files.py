"""Help with files: the user's own folders, names and paths that stay in one, locks, writing that leaves no halves."""

from __future__ import annotations

import os
import string
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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


def name_in_file(text: str) -> str:
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


def replace_file(path: Path, data: bytes, mode: int = 0o666, *, sync: bool = True) -> None:
    """Put a whole new file in the place of ``path``; a link there is replaced, not followed.

    Unless ``sync`` is false, it is on the disk before it takes that place.

    Raises:
        OSError: it cannot be written; what was there is still there.
    """
    fresh = path.with_name(f".{os.urandom(8).hex()}.tmp")
    try:
        with open(fresh, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.replace(fresh, path)
    except BaseException:
        with suppress(OSError):
            fresh.unlink()
        raise
