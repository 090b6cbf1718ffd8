"""Errors in a configuration."""

from __future__ import annotations

from .._kernel.errors import HooklineError


class ConfigError(HooklineError, ValueError):
    """A setting is unknown or has an invalid value. The message names the setting and its source."""
