"""Combine agents: teams, subagents, handoffs and personalities."""

from .._base.lazy import attach

__getattr__, __dir__ = attach(__name__)
