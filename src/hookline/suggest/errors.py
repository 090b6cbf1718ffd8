"""Errors of proposals."""

from __future__ import annotations

from .._base.errors import PlainError


class SuggestError(PlainError):
    """Rules cannot be proposed. The message says why."""
