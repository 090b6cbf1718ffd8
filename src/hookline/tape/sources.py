"""Clock readings, random numbers and ids of a replay, which come from the tape."""

from __future__ import annotations

import asyncio
import contextvars
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from . import format as fmt
from .order import Order


class ReplayClock:
    """The clock of a replay. It shows the time of the last entry that was produced again."""

    def __init__(self, header: fmt.HeaderEntry) -> None:
        self._header, self._offset = header, 0.0

    def time(self) -> float:
        """Return the Unix time."""
        return self._header.time + self._offset

    def monotonic(self) -> float:
        """Return seconds that never run backwards."""
        return self._header.monotonic + self._offset

    def advance(self, offset: float) -> None:
        """Set the time to at least ``offset`` seconds after the start of the tape."""
        self._offset = max(self._offset, offset)


_NO_VALUES: deque[Any] = deque()


class ReplayReadings:
    """The recorded values of ``ctx.clock``, ``ctx.random`` and ``ctx.new_id``, by lane and position."""

    def __init__(
        self, entries: Sequence[fmt.TapeEntry], order: Order, clock: ReplayClock, header: fmt.HeaderEntry
    ) -> None:
        self._order, self._clock, self._header = order, clock, header
        self._values: dict[tuple[str, str], deque[tuple[int, Any]]] = {}
        lanes, self._end = order.lanes, len(entries)
        for index, entry in enumerate(entries):
            for kind, value in entry.readings:
                ahead = lanes.positions(entry.lane)
                following = bisect_left(ahead, index)
                before = ahead[following] if following < len(ahead) else self._end
                self._values.setdefault((entry.lane, kind), deque()).append((before, value))
        self._ahead = {lane: deque(lanes.positions(lane)) for lane, _ in self._values}

    def read(self, lane: str, kind: str, real: Callable[[], Any]) -> Any:
        """Return the value that was recorded at this position of a lane, or ``real()`` if there is none."""
        values, ahead = self._values.get((lane, kind), _NO_VALUES), self._ahead.get(lane, _NO_VALUES)
        while ahead and not self._order.is_pending(ahead[0]):
            ahead.popleft()
        here = ahead[0] if ahead else self._end
        while values and values[0][0] < here:
            values.popleft()
        early = bool(values) and values[0][0] > here and (kind != "id" or not self._order.intact)
        if not values or early:
            return real()
        value = values.popleft()[1]
        if kind == "monotonic":
            self._clock.advance(value - self._header.monotonic)
        return value


class ReplayTimers:
    """The timers of time limits. Each fires at its position on the tape, not by a clock."""

    def __init__(self) -> None:
        self._timers: dict[tuple[str, int], ReplayTimer] = {}
        self._counts: dict[str, int] = {}

    def set(self, lane: str, callback: Callable[[], object]) -> ReplayTimer:
        """Set the next timer of a lane."""
        self._counts[lane] = number = self._counts.get(lane, 0) + 1
        self._timers[lane, number] = timer = ReplayTimer(callback)
        return timer

    def fire(self, entry: fmt.TimerEntry) -> None:
        """Fire the timer of an entry."""
        timer = self._timers.pop((entry.lane, entry.number), None)
        if timer is not None:
            timer.fire()


class ReplayTimer:
    """A callback that is called at most once, in the event loop and context in which the timer was set."""

    def __init__(self, callback: Callable[[], object]) -> None:
        self._callback, self._cancelled = callback, False
        self._loop, self._context = asyncio.get_running_loop(), contextvars.copy_context()

    def fire(self) -> None:
        """Schedule the callback."""
        self._loop.call_soon_threadsafe(self._call, context=self._context)

    def cancel(self) -> None:
        """Cancel the callback."""
        self._cancelled = True

    def _call(self) -> None:
        if not self._cancelled:
            self._callback()
