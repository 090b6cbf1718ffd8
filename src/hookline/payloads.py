"""The payloads that hooks receive, one for each point, and the values in them."""

from ._base.lazy import attach

__getattr__, __dir__ = attach(__name__)
