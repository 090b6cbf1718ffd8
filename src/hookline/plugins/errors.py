"""What is wrong with code that should be loaded."""

from __future__ import annotations

from .._kernel.errors import HooklineError, RegistrationError


class LoadError(HooklineError, ImportError):
    """A file, module, name or plugin that hooks or tools should come from, and that cannot be used."""


class PluginError(LoadError, RegistrationError):
    """A plugin that cannot be found, loaded or switched on; nothing of it is left."""
