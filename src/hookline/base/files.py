"""Help with files: whether a path stays in its folder, and writing that leaves nothing half written."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


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
