"""Load settings from files, the environment and flags, and build agents from them."""

from .._base.lazy import attach

__getattr__, __dir__ = attach(__name__)
