"""Which part of a run the current task belongs to, for each tape that is written or played at the moment."""

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
"""The number of the lane of this task: of a call of a tool, an approval or a run inside. What a tool reports has the
number of its call, negated."""

INSIDE = PerTape("hookline_tape_inside")
"""The number of the tool call that we are in, if it is one that a replay does not call."""
