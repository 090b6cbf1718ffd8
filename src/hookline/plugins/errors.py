"""Errors of loading code and plugins."""

from __future__ import annotations

from .._kernel.errors import HooklineError, RegistrationError


class LoadError(HooklineError, ImportError):
    """A file, module, name or plugin that should provide hooks or tools cannot be used."""


class PluginError(LoadError, RegistrationError):
    """A plugin cannot be found, loaded or switched on. No part of it is active."""
