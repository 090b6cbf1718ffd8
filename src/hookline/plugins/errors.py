"""Errors of loading code and plugins."""

from __future__ import annotations

from .._kernel.errors import HooklineError, RegistrationError


class LoadError(HooklineError, ImportError):
    """A file, module, name or plugin that should provide hooks or tools cannot be used."""


class PluginError(LoadError, RegistrationError):
    """A plugin cannot be found, loaded or switched on. No part of it is active."""


class UntrustedFileError(HooklineError):
    """A file may not be used: the user has not trusted its content, or other users could have written it.

    It is not an ``ImportError``, so that code which tries to import an optional module does not hide it.
    """
