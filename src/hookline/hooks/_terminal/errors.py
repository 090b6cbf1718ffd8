"""The verdicts of the terminal guard on one command."""

from __future__ import annotations


class BlockedError(Exception):
    """The command must not run.

    Args:
        reason: the rule, in a few words.
        message: what is not allowed, and what to do instead; shown to the model.
        final: whether the command is blocked even where unknown commands need approval.
    """

    def __init__(self, reason: str, message: str, final: bool = False) -> None:
        super().__init__(message)
        self.reason, self.message, self.final = reason, message, final


class ApprovalNeededError(BlockedError):
    """The command may run if a person approves it."""
