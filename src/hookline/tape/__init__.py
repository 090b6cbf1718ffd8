"""Tapes: the recording of a run, and what the same or other hooks make of it (DESIGN 6.11)."""

from .._base.lazy import attach

__getattr__, __dir__ = attach(__name__)
