"""Plugins: what they are, where they are found, how they are switched on and off."""

from .._base.lazy import attach

__getattr__, __dir__ = attach(__name__)
