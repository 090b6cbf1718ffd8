"""What hooks are written with, and the built-in hooks. A built-in hook is made of what any hook can use."""

from .._base.lazy import attach

__getattr__, __dir__ = attach(__name__)
