"""Find out whether a process that wrote something still runs."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from socket import gethostname

_WAIT = 24 * 3600.0  # how long a program on another machine is taken to be still running


def is_running(host: str, pid: int, started: float, birth: float | None = None) -> bool:
    """Whether the program that began something then could still be at it; ``birth`` is what :func:`born` said."""
    if host != gethostname() or sys.platform == "win32":
        return started > time.time() - _WAIT
    if not is_there(pid):
        return False
    if birth is not None:  # neither a clock that is set nor a number that is given again, as in a container, matters
        return born(pid) in (birth, None)
    began = _began(pid)
    return began is None or began < started + 1  # else it is another one, which has got the number


def is_there(pid: int) -> bool:
    """Whether a process of this machine has that number."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass  # it is somebody else's
    return True


def born(pid: int) -> float | None:
    """How many seconds after the machine a process began, where the system tells. It is the same whenever asked."""
    with suppress(OSError, ValueError, IndexError, AttributeError):
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        return ticks / os.sysconf("SC_CLK_TCK")
    return None


def _began(pid: int) -> float | None:
    """When a process began, where the system tells."""
    after = born(pid)
    return None if after is None else time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + after
