"""Find out whether the process that wrote a row is still running."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from socket import gethostname

_REMOTE_SECONDS = 24 * 3600.0  # how long a process on another machine counts as running


def is_process_running(host: str, pid: int, written_at: float, start: float | None = None) -> bool:
    """Whether the process that wrote a row at the Unix time ``written_at`` may still be running.

    Args:
        host: name of its machine.
        pid: its process id.
        written_at: when it wrote the row.
        start: its :func:`process_start`, which identifies it even if the clock changed or the pid was reused, as
            happens in containers.
    """
    if host != gethostname() or sys.platform == "win32":
        return written_at > time.time() - _REMOTE_SECONDS
    if not pid_exists(pid):
        return False
    if start is not None:
        return process_start(pid) in (start, None)
    began = _started_at(pid)
    return began is None or began < written_at + 1  # a later start means that another process now has the pid


def pid_exists(pid: int) -> bool:
    """Whether a process of this machine has this pid."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass  # the process belongs to another user
    return True


def process_start(pid: int) -> float | None:
    """Start of a process in seconds after the boot of the machine; ``None`` if the system does not provide it."""
    with suppress(OSError, ValueError, IndexError, AttributeError):
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        return ticks / os.sysconf("SC_CLK_TCK")
    return None


def _started_at(pid: int) -> float | None:
    """Return unix time at which a process started; ``None`` if the system does not provide it."""
    start = process_start(pid)
    return None if start is None else time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + start
