"""What goes wrong with a tape."""

from __future__ import annotations

from .._base.errors import PlainError


class TapeError(PlainError):
    """A tape that cannot be read, written or replayed; the message says what to do."""
