"""All points at which hooks are called, and the class to declare your own."""

from ._base.lazy import attach

__getattr__, __dir__ = attach(__name__)
