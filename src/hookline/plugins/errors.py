"""What is wrong with code that should be loaded."""

from __future__ import annotations

from ..kernel.errors import HooklineError


class LoadError(HooklineError, ImportError):
    """A file, module, name or plugin that hooks or tools should come from, and that cannot be used."""
