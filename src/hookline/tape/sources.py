"""Clock readings, random numbers and ids: recorded during a run, and returned again by a replay."""

from __future__ import annotations

import asyncio
import contextvars
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Protocol

from .._run.engine import Engine
from .._run.environment import Environment
from . import format as fmt
from .order import Order


class ReadValue(Protocol):
    """A function that returns a value of a kind: ``time``, ``monotonic``, ``random``, ``bits`` or ``id``."""

    def __call__(self, kind: str, real: Callable[[], Any]) -> Any:
        """Return the value; ``real()`` reads the actual one."""
        ...


class SetTimer(Protocol):
    """A function that schedules a callback; the returned object has a ``cancel()``."""

    def __call__(self, clock: Any, seconds: float, callback: Callable[[], object]) -> Any:
        """Set the timer, with ``clock.call_later`` if the clock has that method."""
        ...


class RecordedClock:
    """A clock whose readings go through a tape.

    Args:
        inner: the actual clock. Its other attributes are available too.
        read: returns the readings.
        set_timer: sets a timer of the actual clock.
    """

    def __init__(self, inner: Any, read: ReadValue, set_timer: SetTimer) -> None:
        self.inner, self._read, self._set_timer = inner, read, set_timer
        self._real_time = real_clock(inner).time

    def time(self) -> float:
        """Return the Unix time."""
        return float(self._read("time", self.inner.time))

    def monotonic(self) -> float:
        """Return seconds that never run backwards."""
        return float(self._read("monotonic", self.inner.monotonic))

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Any:
        """Set a timer; the returned object has a ``cancel()``."""
        return self._set_timer(self.inner, seconds, callback)

    def stamp(self) -> float:
        """Return the time of an event. It is not recorded because no hook reads it from here."""
        return float(self._real_time())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class RecordedRandom(Random):
    """A random generator whose numbers go through a tape. All methods of ``Random`` build on the two below."""

    environment: Environment
    """Contains the actual generator, which it makes when it is needed."""
    read: ReadValue

    def __init__(self, x: Any = None) -> None:  # to seed a generator takes long, and its own numbers are not used
        self.gauss_next = None

    @property
    def inner(self) -> Random:
        """The actual generator."""
        return self.environment.random

    def seed(self, a: Any = None, version: int = 2) -> None:
        """Restart the sequence from a seed."""
        super().seed(a, version)
        self.inner.seed(a, version)

    def random(self) -> float:
        """Return a number from 0 to 1."""
        return float(self.read("random", self.inner.random))

    def getrandbits(self, k: int) -> int:
        """Return ``k`` random bits."""
        return int(self.read("bits", lambda: f"{self.inner.getrandbits(k):x}"), 16)


def install_sources(engine: Engine, read: ReadValue, set_timer: SetTimer) -> None:
    """Route the clock, random numbers, ids and timers of a run and its nested runs through these functions."""
    # A seed of its own would cost a system call; the numbers come from ``inner``.
    environment, generator = engine.environment, RecordedRandom(0)
    generator.environment, generator.read = environment.copy(), read
    real = environment.new_id
    environment.clock = engine.budget.clock = RecordedClock(environment.clock, read, set_timer)
    environment.random = generator

    def new_id(prefix: str = "id") -> str:
        return str(read("id", lambda: real(prefix)))

    environment.new_id = new_id


def real_clock(clock: Any) -> Any:
    """Return the actual clock behind a recorded one."""
    while isinstance(clock, RecordedClock):
        clock = clock.inner
    return clock


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
    """The recorded values of ``ctx.clock``, ``ctx.random`` and ``ctx.new_id``, by branch and position."""

    def __init__(self, entries: Sequence[fmt.Entry], order: Order, clock: ReplayClock, header: fmt.HeaderEntry) -> None:
        self._order, self._clock, self._header = order, clock, header
        self._values: dict[tuple[int, str], deque[tuple[int, Any]]] = {}
        branches, self._end = order.branches, len(entries)
        for index, entry in enumerate(entries):
            for kind, value in entry.readings:
                ahead = branches.positions(entry.branch)
                following = bisect_left(ahead, index)
                before = ahead[following] if following < len(ahead) else self._end
                self._values.setdefault((entry.branch, kind), deque()).append((before, value))
        self._ahead = {branch: deque(branches.positions(branch)) for branch, _ in self._values}

    def read(self, branch: int, kind: str, real: Callable[[], Any]) -> Any:
        """Return the value that was recorded at this position of a branch, or ``real()`` if there is none."""
        values, ahead = self._values.get((branch, kind), _NO_VALUES), self._ahead.get(branch, _NO_VALUES)
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
        self._timers: dict[tuple[int, int], ReplayTimer] = {}
        self._counts: dict[int, int] = {}

    def set(self, branch: int, callback: Callable[[], object]) -> ReplayTimer:
        """Set the next timer of a branch."""
        self._counts[branch] = number = self._counts.get(branch, 0) + 1
        self._timers[branch, number] = timer = ReplayTimer(callback)
        return timer

    def fire(self, entry: fmt.TimerEntry) -> None:
        """Fire the timer of an entry."""
        timer = self._timers.pop((entry.branch, entry.number), None)
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
