"""The decorators for writing hooks, and the built-in hooks, which use only the public interface."""

from .._base.lazy import attach

__getattr__, __dir__ = attach(__name__)
