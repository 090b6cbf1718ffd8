"""What goes wrong in a store."""

from __future__ import annotations

from ..kernel.errors import HooklineError


class StoreError(HooklineError):
    """Something that cannot be loaded or saved; nothing that was stored is lost."""
