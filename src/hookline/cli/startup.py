"""The start of the program: Python looks for garbage less often while it imports modules, because they stay."""

from __future__ import annotations

import gc

THRESHOLD = 100_000
"""Number of new objects after which Python looks for garbage during the start."""

_usual: tuple[int, int, int] | None = None


def begin() -> None:
    """Look for garbage less often. Only the program does this, not one that imports Hookline."""
    global _usual
    _usual = gc.get_threshold()
    gc.set_threshold(THRESHOLD)


def finish() -> None:
    """Look for garbage as usual, but not among what was made during the start: a server does this all day."""
    global _usual
    if _usual is not None:
        gc.freeze()
        gc.set_threshold(*_usual)
        _usual = None
