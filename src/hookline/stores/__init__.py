"""Stores of data that outlives a run: sessions, memory, notes, artifacts, tickets, approvals, keys, runs, audit log."""

from .._base.lazy import attach

__getattr__, __dir__ = attach(__name__)
