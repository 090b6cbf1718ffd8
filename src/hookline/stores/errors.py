"""What goes wrong in a store."""

from __future__ import annotations

from ..base.errors import PlainError


class StoreError(PlainError):
    """Something that cannot be loaded or saved; nothing that was stored is lost."""
