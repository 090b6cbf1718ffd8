"""Show what happened in a recorded run, hook by hook, and how two runs differ."""

from .._base.lazy import attach

__getattr__, __dir__ = attach(__name__)
