"""A Unix socket for programs of this user: nobody else can enter its folder, and the user of each peer is checked."""

from __future__ import annotations

import logging
import os
import socket
import stat
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

from .._base.errors import HooklineError

log = logging.getLogger("hookline")

MAX_ADDRESS = 100
"""Unix sockets have addresses of at most about 104 bytes."""


class SocketError(HooklineError):
    """The socket cannot be used; the message says what to change."""


class UnixListener(socket.socket):
    """A listening Unix socket, which accepts connections of this user only.

    Args:
        path: the path of the socket. Its folder is created if there is none.

    Raises:
        SocketError: other users can enter the folder, or another program listens there.
    """

    def __init__(self, path: Path) -> None:
        if not hasattr(socket, "AF_UNIX"):
            raise SocketError("this system has no Unix sockets")
        if len(os.fsencode(path)) > MAX_ADDRESS:
            raise SocketError(f"the path of a socket has at most {MAX_ADDRESS} bytes: {path}")
        _check_folder(path.parent)
        if _listens(path):
            raise SocketError(f"another program listens at {path}")
        with suppress(FileNotFoundError):
            path.unlink()  # of a process that was killed
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
        self._path = path
        before = os.umask(0o177)
        try:
            self.bind(str(path))
        except OSError as error:
            self.close()
            raise SocketError(f"cannot listen at {path}: {error.strerror}") from error
        finally:
            os.umask(before)
        self._file = _identity(path)
        self.setblocking(False)

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection of this user. Those of other users are closed."""
        while True:
            connection, address = super().accept()
            if _is_own(connection):
                return connection, address
            log.warning("a program of another user was refused at %s", self._path)
            connection.close()

    def remove(self) -> None:
        """Remove the socket, unless another program has taken its place."""
        with suppress(OSError):
            if _identity(self._path) == self._file:
                self._path.unlink()


def _check_folder(folder: Path) -> None:
    with suppress(FileExistsError):
        try:
            folder.mkdir(0o700)
        except FileNotFoundError:
            raise SocketError(f"there is no folder {folder.parent}") from None
    state = folder.lstat()
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid() or state.st_mode & 0o077:
        raise SocketError(
            f"{folder} must be a folder of this user that nobody else can enter: chmod 700 it, or use another one"
        )


def _listens(path: Path) -> bool:
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise SocketError(f"{path} is not a socket: remove it, or choose another path")
    except FileNotFoundError:
        return False
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(path))
        except OSError:
            return False
    return True


def _identity(path: Path) -> tuple[int, int, int]:
    """Return what tells a socket from one that was made later at the same path, perhaps with the same inode."""
    state = path.lstat()
    return state.st_dev, state.st_ino, state.st_mtime_ns


def _is_own(connection: socket.socket) -> bool:
    if not hasattr(socket, "SO_PEERCRED"):  # then the folder keeps others out
        return True
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return bool(user == os.getuid())
