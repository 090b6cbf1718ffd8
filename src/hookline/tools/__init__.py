"""Tools that a model may call: the tool protocol, MCP servers and the shipped tools."""

from .._base.lazy import attach

__getattr__, __dir__ = attach(__name__)
