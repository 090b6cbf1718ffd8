"""Errors of teams and personalities."""

from __future__ import annotations

from .._base.errors import PlainError


class SubagentRefusedError(PlainError):
    """A subagent was not started. ``by`` is the hook that refused it; empty for a limit or an unknown name."""

    def __init__(self, message: str, *, by: str = "") -> None:
        super().__init__(message)
        self.by = by


class SubagentUnfinishedError(PlainError):
    """A subagent did not complete its task; the message says how it ended."""


class SwitchRefusedError(PlainError):
    """A conversation keeps its personality: the other one does not exist, or a hook rejected the switch."""


class HandoffRefusedError(PlainError):
    """A conversation was not handed over; the message says what to do instead."""
