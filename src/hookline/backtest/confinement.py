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
"""The possible elements of ``allow``."""

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


def _is_watched() -> bool:
    """Whether the current code is that of a hook.

    In a process of its own, every other thread was started by a hook. In a process of the user it was not.
    """
    if not PROBE.active and not _owns_process:
        return False
    is_own = threading.get_ident() == _engine_thread
    return PROBE.active if is_own else _owns_process


def _audit(event: str, args: tuple[Any, ...]) -> None:
    """Refuse what hooks must not do. Called for every audited event of the process."""
    if event not in _REFUSED and event != "open":
        return
    if not _is_watched():
        return
    if event == "open":
        _audit_open(*args)
        return
    action, what = _REFUSED[event]
    if action not in PROBE.allowed:
        raise PROBE.refuse(f"{what} ({event})")


def _audit_open(path: Any, mode: Any, flags: Any) -> None:
    if isinstance(path, int):  # a descriptor that is already open
        return
    name = os.fsdecode(path)
    if (isinstance(mode, str) and any(letter in mode for letter in "wax+")) or (flags or 0) & _WRITING:
        if "files" not in PROBE.allowed and name != os.devnull:
            raise PROBE.refuse(f"writing files: {name}")
    elif not name.endswith(_CODE):  # an import is not a read
        PROBE.note(f"the file {name}")


_engine_thread = 0
_owns_process = False
_installed = False


def confine(allowed: frozenset[str], *, own_process: bool) -> None:
    """Watch what hooks do from now on. With ``own_process``, the threads that they start are watched too."""
    global _installed, _owns_process, _engine_thread
    PROBE.allowed = allowed
    _engine_thread, _owns_process = threading.get_ident(), own_process
    if own_process:
        sys.dont_write_bytecode = True
    if not _installed:
        sys.addaudithook(_audit)
        _installed = True


@contextmanager
def time_limit(
    seconds: float, heartbeat: Callable[[], None] = lambda: None, give_up: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Interrupt a hook that judges the same moment for longer than ``seconds``.

    A timer looks four times in that period. Python handles its signal between two instructions, so code in C that does
    not return is not interrupted; then ``heartbeat`` is not called either, and the parent process notices. A hook that
    catches the interruption is interrupted again; after the third time, ``give_up`` is called.
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
        if looks >= 3 * _LOOKS:
            give_up()
        if looks % _LOOKS == 0:
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
