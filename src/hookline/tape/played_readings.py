"""What hooks read in a replay: the time of the tape, and the values that were read then."""

from __future__ import annotations

import asyncio
import contextvars
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

from . import entries as on
from .order import Lanes, Order


class PlayedClock:
    """The time of the tape: it stands still until the next entry comes again."""

    def __init__(self, head: on.TapeBegan) -> None:
        self._head, self._offset = head, 0.0

    def time(self) -> float:
        """Unix time."""
        return self._head.time + self._offset

    def monotonic(self) -> float:
        """Seconds that never run backwards."""
        return self._head.monotonic + self._offset

    def advance(self, offset: float) -> None:
        """Set the time to at least ``offset`` seconds after the beginning of the tape."""
        self._offset = max(self._offset, offset)


class PlayedReadings:
    """The values of ``ctx.clock``, ``ctx.random`` and ``ctx.new_id`` on a tape, each for its lane and place in it."""

    def __init__(self, entries: Sequence[on.Entry], order: Order, clock: PlayedClock, head: on.TapeBegan) -> None:
        self._order, self._clock, self._head = order, clock, head
        self._values: dict[tuple[int, str], list[tuple[int, Any]]] = {}
        lanes, self._end = Lanes(entries), len(entries)
        for index, entry in enumerate(entries):
            for kind, value in entry.values if isinstance(entry, on.Drawn) else ():
                ahead = lanes.positions(entry.lane)
                place = bisect_left(ahead, index)
                before = ahead[place] if place < len(ahead) else self._end
                self._values.setdefault((entry.lane, kind), []).append((before, value))
        self._ahead = {lane: list(lanes.positions(lane)) for lane, _ in self._values}

    def read(self, lane: int, kind: str, real: Callable[[], Any]) -> Any:
        """The value that was read at this place; ``real()`` where none was."""
        values, ahead = self._values.get((lane, kind), []), self._ahead.get(lane, [])
        while ahead and not self._order.is_open(ahead[0]):
            ahead.pop(0)
        here = ahead[0] if ahead else self._end
        while values and values[0][0] < here:
            values.pop(0)
        early = bool(values) and values[0][0] > here and (kind != "id" or not self._order.kept)
        if not values or early:
            return real()
        value = values.pop(0)[1]
        if kind == "monotonic":
            self._clock.advance(value - self._head.monotonic)
        return value


class PlayedAlarms:
    """The alarms of time limits. Each rings where it rang on the tape, and not by a clock."""

    def __init__(self) -> None:
        self._alarms: dict[tuple[int, int], Alarm] = {}
        self._counts: dict[int, int] = {}

    def set(self, lane: int, callback: Callable[[], object]) -> Alarm:
        """Set the next alarm of a lane."""
        self._counts[lane] = number = self._counts.get(lane, 0) + 1
        self._alarms[lane, number] = alarm = Alarm(callback)
        return alarm

    def ring(self, entry: on.AlarmRang) -> None:
        """Ring the alarm that rang then."""
        alarm = self._alarms.pop((entry.lane, entry.number), None)
        if alarm is not None:
            alarm.ring()


class Alarm:
    """A callback that is called once, in the loop and the context in which it was set, unless it is cancelled."""

    def __init__(self, callback: Callable[[], object]) -> None:
        self._callback, self._cancelled = callback, False
        self._loop, self._context = asyncio.get_running_loop(), contextvars.copy_context()

    def ring(self) -> None:
        """Have the callback called."""
        self._loop.call_soon_threadsafe(self._call, context=self._context)

    def cancel(self) -> None:
        """Do not call it any more."""
        self._cancelled = True

    def _call(self) -> None:
        if not self._cancelled:
            self._callback()
