"""Tools that a model may call."""

from .._base.lazy import attach

__getattr__, __dir__ = attach(__name__)
