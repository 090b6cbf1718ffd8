"""Whether a file that was found, not named, may say what code runs: only if nobody else could have written it."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path


def why_not_trusted(path: Path) -> str | None:
    """Why somebody else may have written this file, ``None`` if only its user or root could. For POSIX systems."""
    if sys.platform == "win32":
        return None
    try:
        found = (path.lstat(), path.stat())  # whoever makes a link chooses the folder that its paths start at
    except OSError as error:
        return f"it cannot be looked at: {error.strerror}"
    for state in found:
        if state.st_uid not in (os.geteuid(), 0):
            return "it belongs to another user"
    if stat.S_IMODE(found[1].st_mode) & stat.S_IWOTH:
        return "everybody may write it"
    return None
