"""The account of a reader: which lines and files it skipped, and why."""

from __future__ import annotations

import os
from collections import Counter

from .._base.frozen import Frozen

INCOMPLETE = "the last line is incomplete"
NOT_A_LINE = "the line is not a line of a record"
NO_RUN = "the line belongs to a run that the file does not contain"
MAX_LINE = 64 << 20
"""Longer lines are skipped, so that a damaged file cannot fill the memory."""
TOO_LONG = f"a line is longer than {MAX_LINE >> 20} MB"


class Skipped(Frozen, frozen=True):
    """Lines of a file that were skipped for one reason. ``first`` is the first of them, from 1; 0 if unknown."""

    file: str
    reason: str
    count: int = 1
    first: int = 0

    def __str__(self) -> str:
        at = f", first in line {self.first:,}" if self.first else ""
        return f"{self.file}: skipped {self.count:,}: {self.reason}{at}"


class Account:
    """The lines that were skipped while reading, with the reasons.

    Example::

        account = Account()
        for run in read_runs(["records/"], account=account):
            ...
        print(account.skipped)  # {("records/a.moments", "the last line is incomplete"): 1}
    """

    def __init__(self) -> None:
        self.skipped: Counter[tuple[str, str]] = Counter()
        self._first: dict[tuple[str, str], int] = {}

    def skip(self, file: str | os.PathLike[str], reason: str, line: int = 0) -> None:
        """Count a skipped line or file."""
        key = str(file), reason
        self.skipped[key] += 1
        self._first.setdefault(key, line)

    def entries(self) -> tuple[Skipped, ...]:
        """Return what was skipped, with the first line for each file and reason."""
        return tuple(Skipped(*key, count, self._first[key]) for key, count in self.skipped.items())

    def __bool__(self) -> bool:
        return bool(self.skipped)
