"""A folder for the files and servers of a process, which goes away with the process, also if that is killed."""

import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path

MEMORY = Path("/dev/shm")

# Another process does this, because one that is killed cannot clean up. The end of the first one closes the pipe.
_REMOVE = """
read -r _
for file in "$0"/*/data/postmaster.pid; do
    if test -e "$file"; then
        pid=$(head -n 1 "$file")
        kill -CONT "$pid"
        kill -QUIT "$pid"
        while kill -0 "$pid"; do sleep 0.02; done
    fi
done
for attempt in 1 2 3 4 5; do
    rm -rf "$0" && break
    sleep 1  # somebody still writes there
done
"""


class RunFolder:
    """Make a folder, and remove it at the end of this process with the PostgreSQL servers that have their data in it.

    It is in memory where that has room: databases wait for the disk at each commit.
    """

    def __init__(self) -> None:
        place = MEMORY if memory_has_room() else None
        # The path is short, because that of a socket has at most 107 bytes.
        self.path = tempfile.mkdtemp(prefix="hookline-", dir=place)
        os.chmod(self.path, 0o711)  # noqa: S103 - the user of PostgreSQL has a folder in it
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        command = ["sh", "-c", _REMOVE, self.path]
        self._remover = subprocess.Popen(command, cwd="/", start_new_session=True, **streams)

    def remove(self) -> None:
        """Remove the folder now."""
        self._remover.communicate(b"\n")  # a forked process may keep the pipe open


@cache
def memory_has_room() -> bool:
    """Whether a folder in memory can be used like one on disk."""
    found = os.statvfs(MEMORY) if os.access(MEMORY, os.W_OK) else None
    return found is not None and not found.f_flag & os.ST_NOEXEC and found.f_bavail * found.f_frsize > 2**30
