"""Whether files have changed since they were looked at, without reading them each time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

RACY = 2_000_000_000
"""Nanoseconds in which a file can change twice and look the same: file systems keep times coarsely."""

Stamp = tuple[int, ...]


class Watch:
    """Remembers how files looked. A file that had just been written is taken as changed once more."""

    def __init__(self) -> None:
        self._seen: dict[Path, Stamp | None] | None = None
        self._racy = False

    def changed(self, files: Iterable[Path]) -> bool:
        """Whether these are other files than the last time, or look different, or might."""
        now = time.time_ns()
        seen = {file: _stamp(file) for file in files}
        if seen == self._seen and not self._racy:
            return False
        self._seen = seen
        self._racy = any(stamp is not None and abs(now - max(stamp[:2])) < RACY for stamp in seen.values())
        return True

    def forget(self) -> None:
        """Take everything as changed the next time."""
        self._seen = None


def _stamp(file: Path) -> Stamp | None:
    try:
        state = os.stat(file)
    except OSError:
        return None
    return state.st_mtime_ns, state.st_ctime_ns, state.st_size, state.st_ino, state.st_mode, state.st_uid
