"""Errors of stores."""

from __future__ import annotations

from .._base.errors import PlainError


class StoreError(PlainError):
    """Something cannot be loaded or saved. Stored data is not lost."""


class LockedFileError(StoreError):
    """Another process kept the file locked for too long. A later attempt may succeed."""


class NotFoundError(StoreError):
    """No entry has this id, or the entry belongs to another owner."""
