"""Messages in and out: channels, and the gateway between them and an agent."""

from .._base.lazy import attach

__getattr__, __dir__ = attach(__name__)
