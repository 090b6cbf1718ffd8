"""Serve agents over HTTP: one service that executes runs, and the APIs on top of it."""

from .._base.lazy import attach

__getattr__, __dir__ = attach(__name__)
