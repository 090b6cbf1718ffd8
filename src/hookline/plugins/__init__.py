"""Define, find and load plugins, and switch them on and off."""

from .._base.lazy import attach

__getattr__, __dir__ = attach(__name__)
