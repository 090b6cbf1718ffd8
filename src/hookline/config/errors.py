"""What is wrong with a configuration, in words that say what to do."""

from __future__ import annotations

from .._kernel.errors import HooklineError


class ConfigError(HooklineError, ValueError):
    """A setting that does not exist or has a value it cannot have."""
