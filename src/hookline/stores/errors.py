"""What goes wrong in a store."""

from __future__ import annotations

from .._base.errors import PlainError


class StoreError(PlainError):
    """Something that cannot be loaded or saved; nothing that was stored is lost."""


class LockedFileError(StoreError):
    """Another program held the file for too long; it may be free the next time."""


class NotFoundError(StoreError):
    """There is nothing with that id, or it is somebody else's."""
