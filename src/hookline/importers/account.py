"""The account of an import: what was read, and what was left out and why."""

from __future__ import annotations

from collections import Counter

import msgspec


class Account(msgspec.Struct):
    """Counts of an import.

    ``left_out`` counts content that a record has no place for, and ``unreadable`` what could not be understood.
    """

    files: int = 0
    lines: int = 0
    left_out: Counter[str] = msgspec.field(default_factory=Counter)
    unreadable: Counter[str] = msgspec.field(default_factory=Counter)

    def skip(self, why: str, count: int = 1) -> None:
        """Count content that is left out."""
        self.left_out[why] += count

    def fail(self, why: str, count: int = 1) -> None:
        """Count content that could not be read."""
        self.unreadable[why] += count
