"""Agents, and what belongs to one run."""

from ._base.lazy import attach

__getattr__, __dir__ = attach(__name__)
