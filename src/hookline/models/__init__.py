"""What a model is to the loop, and a scripted one."""

from .._base.lazy import attach

__getattr__, __dir__ = attach(__name__)
