"""Limits for the hooks of a backtest: no side effects, a time limit for each moment, and a memory limit.

The audit hook of Python sees what code does through the standard library: files, network, processes. It is not a
sandbox against hostile code, which can avoid it with C code; it keeps ordinary rules from doing twice what they did
in production, such as sending a message.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from .context import PROBE

ACTIONS = ("model", "network", "processes", "files")
"""What ``allow`` can contain."""

_NETWORK = frozenset(
    [
        "socket.connect",
        "socket.bind",
        "socket.sendto",
        "socket.sendmsg",
        "socket.getaddrinfo",
        "socket.gethostbyname",
        "socket.gethostbyaddr",
        "socket.getnameinfo",
        "urllib.Request",
        "smtplib.connect",
        "ftplib.connect",
    ]
)
_PROCESSES = frozenset(
    [
        "subprocess.Popen",
        "os.system",
        "os.exec",
        "os.posix_spawn",
        "os.spawn",
        "os.fork",
        "os.forkpty",
        "os.startfile",
        "pty.spawn",
        "os.kill",
        "os.killpg",
        "signal.pthread_kill",
    ]
)
_FILES = frozenset(
    [
        "os.remove",
        "os.rename",
        "os.rmdir",
        "os.mkdir",
        "os.link",
        "os.symlink",
        "os.truncate",
        "os.chmod",
        "os.chown",
        "os.utime",
        "os.setxattr",
        "os.removexattr",
        "shutil.copyfile",
        "shutil.move",
        "shutil.rmtree",
        "shutil.chown",
        "tempfile.mkstemp",
        "tempfile.mkdtemp",
        "sqlite3.connect",
    ]
)
_REFUSED = {
    **dict.fromkeys(_NETWORK, ("network", "the network")),
    **dict.fromkeys(_PROCESSES, ("processes", "starting or ending processes")),
    **dict.fromkeys(_FILES, ("files", "changing files")),
    "hookline.run": ("model", "starting runs"),
}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CODE = (".py", ".pyc", ".so", ".pyd")


class RuleTimeoutError(BaseException):
    """A hook exceeded the time limit. Not an ``Exception``, so that the hook itself does not catch it."""


def _audit(event: str, args: tuple[Any, ...]) -> None:
    probe = PROBE
    if not probe.active and threading.current_thread() is _own_thread:
        return
    if event == "open":
        path, mode, flags = args
        if isinstance(path, int):  # a descriptor that is already open
            return
        if (isinstance(mode, str) and any(c in mode for c in "wax+")) or (flags or 0) & _WRITING:
            if "files" not in probe.allowed and path != os.devnull:
                raise probe.refuse(f"writing files: {os.fsdecode(path)}")
        elif not os.fsdecode(path).endswith(_CODE):  # an import is not a read
            probe.note(f"the file {os.fsdecode(path)}")
        return
    refused = _REFUSED.get(event)
    if refused is not None and refused[0] not in probe.allowed:
        raise probe.refuse(f"{refused[1]} ({event})")


_own_thread: threading.Thread | None = None
_installed = False


def confine(allowed: frozenset[str], *, own_process: bool) -> None:
    """Watch what hooks do from now on. With ``own_process``, the threads that they start are watched too."""
    global _installed, _own_thread
    PROBE.allowed = allowed
    _own_thread = threading.current_thread()
    if own_process:
        sys.dont_write_bytecode = True
    if not _installed:
        sys.addaudithook(_audit if own_process else _audit_while_active)
        _installed = True


def _audit_while_active(event: str, args: tuple[Any, ...]) -> None:
    """Watch only the hooks: in a process of the user, other threads belong to the program."""
    if PROBE.active and threading.current_thread() is _own_thread:
        _audit(event, args)


@contextmanager
def time_limit(seconds: float, heartbeat: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Interrupt a hook that judges the same moment for longer than ``seconds``.

    A timer looks four times in that period. Python handles its signal between two instructions, so code in C that does
    not return is not interrupted; then ``heartbeat`` is not called either, and the parent process notices.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield  # signals reach only the main thread
        return
    last = looks = 0

    def look(number: int, frame: FrameType | None) -> None:
        nonlocal last, looks
        heartbeat()
        if not PROBE.active or PROBE.position[0] != last:
            last, looks = PROBE.position[0], 0
            return
        looks += 1
        if looks >= _LOOKS:
            looks = 0
            raise RuleTimeoutError

    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, seconds / _LOOKS, seconds / _LOOKS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


_LOOKS = 4


def limit_memory(limit: int) -> None:
    """Let this process use at most ``limit`` bytes more than now. A hook that needs more gets a ``MemoryError``."""
    try:
        import resource

        with open("/proc/self/statm", "rb") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):
        return  # not Linux
    resource.setrlimit(resource.RLIMIT_AS, (now + limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
