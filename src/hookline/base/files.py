"""Help with files: the user's own folders, whether a path stays in its folder, and writing that leaves no halves."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

_MAC = {"cache": "Library/Caches", "data": "Library/Application Support"}
_WINDOWS = {"cache": ("LOCALAPPDATA", "AppData/Local"), "data": ("APPDATA", "AppData/Roaming")}
_OTHERS = {"cache": ("XDG_CACHE_HOME", ".cache"), "data": ("XDG_DATA_HOME", ".local/share")}


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


def replace_file(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Put a whole new file in the place of ``path``; a link there is replaced, not followed.

    Raises:
        OSError: it cannot be written; what was there is still there.
    """
    fresh = path.with_name(f".{os.urandom(8).hex()}.tmp")
    try:
        with open(fresh, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except BaseException:
        with suppress(OSError):
            fresh.unlink()
        raise
