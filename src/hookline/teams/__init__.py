"""Agents that work together: subagents, personalities, tickets."""

from .._base.lazy import attach

__getattr__, __dir__ = attach(__name__)
