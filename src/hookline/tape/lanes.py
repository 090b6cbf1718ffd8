"""Where in a run we are, for each tape that is written or played: two may be at it at once, one inside the other."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar, Token

_NONE: Mapping[object, int] = {}


class PerTape:
    """A number that goes with the task we are in, one for each tape; 0 where none was set."""

    def __init__(self, name: str) -> None:
        self._numbers: ContextVar[Mapping[object, int]] = ContextVar(name, default=_NONE)

    def get(self, tape: object) -> int:
        """The number for this tape."""
        return self._numbers.get().get(tape, 0)

    def set(self, tape: object, number: int) -> Token[Mapping[object, int]]:
        """Set it here and in what is started from here."""
        return self._numbers.set({**self._numbers.get(), tape: number})

    def reset(self, token: Token[Mapping[object, int]]) -> None:
        """Take back what was set."""
        self._numbers.reset(token)


LANE = PerTape("hookline_tape_lane")
"""The lane that we are in: the number of a call of a tool or of an approval; below 0 for what a tool reports."""

INSIDE = PerTape("hookline_tape_inside")
"""The number of the tool call that we are in, if it is one that a replay does not call."""
