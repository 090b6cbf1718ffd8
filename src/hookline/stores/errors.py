"""Errors of stores."""

from __future__ import annotations

from .._base.errors import PlainError


class StoreError(PlainError):
    """A store cannot load or save data. Data that is already stored is not lost."""


class LockedFileError(StoreError):
    """Another process kept the database locked for too long. A later attempt may succeed."""


class NotFoundError(StoreError):
    """No entry has this id, or the entry belongs to another owner."""
