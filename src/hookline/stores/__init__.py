"""What outlives a run: conversations, memory, notes, files, tickets, approvals, keys, messages, runs, the audit log."""

from .._base.lazy import attach

__getattr__, __dir__ = attach(__name__)
