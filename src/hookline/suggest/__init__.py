"""Propose rules from recorded runs, and measure what they would have cost (DESIGN 6.13)."""

from .._base.lazy import attach

__getattr__, __dir__ = attach(__name__)
