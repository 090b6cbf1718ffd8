"""The clock of a replay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from . import entries as on


class PlayedClock:
    """The time of the tape: it stands still until the next thing happens."""

    def __init__(self, head: on.TapeBegan) -> None:
        self._head, self._offset = head, 0.0
        self._alarms: list[Alarm] = []

    def time(self) -> float:
        """Unix time."""
        return self._head.time + self._offset

    def monotonic(self) -> float:
        """Seconds that never run backwards."""
        return self._head.monotonic + self._offset

    def advance(self, offset: float) -> None:
        """It is so late now, at least; alarms that are due go off."""
        self._offset = max(self._offset, offset)
        due = [alarm for alarm in self._alarms if alarm.at <= self._offset]
        self._alarms = [alarm for alarm in self._alarms if alarm.at > self._offset]
        for alarm in due:
            alarm.ring()

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Alarm:
        """Have something called when so much of the tape's time has passed."""
        alarm = Alarm(self._offset + seconds, callback)
        self._alarms.append(alarm)
        return alarm


class Alarm:
    """What is called at a time of the tape, unless it is cancelled."""

    def __init__(self, at: float, callback: Callable[[], object]) -> None:
        self.at, self._callback = at, callback
        self._loop, self._cancelled = asyncio.get_running_loop(), False

    def ring(self) -> None:
        """It is time."""
        self._loop.call_soon_threadsafe(lambda: None if self._cancelled else self._callback())

    def cancel(self) -> None:
        """Do not call it any more."""
        self._cancelled = True
