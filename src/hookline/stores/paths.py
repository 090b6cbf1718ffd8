"""What stores are told about where to keep things."""

from __future__ import annotations

import errno
import os


def checked_path(path: str | os.PathLike[str], takes: str) -> str:
    """A path as text; ``takes`` says what is wanted.

    Raises:
        TypeError: it is no path.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"{takes}, as text or a Path, not {type(path).__name__}")
    return os.fspath(path)


def folder_advice(
    folder: str | os.PathLike[str], error: OSError, may: str = "write", instead: str = "give a folder"
) -> str:
    """What to do about a folder that cannot be used, for the end of a message; ``instead`` of a file in its place."""
    if os.path.isfile(folder):
        return f": that is a file: {instead}"
    return f": give a folder where you may {may}" if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) else ""
