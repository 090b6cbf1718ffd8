"""Plugins: defining, finding and loading them, and switching them on and off."""

from .._base.lazy import attach

__getattr__, __dir__ = attach(__name__)
