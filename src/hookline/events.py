"""The events that a run emits."""

from ._base.lazy import attach

__getattr__, __dir__ = attach(__name__)
