"""Agents, runs, sessions, contexts and budgets."""

from ._base.lazy import attach

__getattr__, __dir__ = attach(__name__)
