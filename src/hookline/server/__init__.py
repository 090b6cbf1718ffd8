"""Agents over HTTP: one service of runs, and the transports that use it."""

from .._base.lazy import attach

__getattr__, __dir__ = attach(__name__)
