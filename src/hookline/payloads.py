"""What hooks receive: a payload for each point, and the values in it."""

from ._base.lazy import attach

__getattr__, __dir__ = attach(__name__)
