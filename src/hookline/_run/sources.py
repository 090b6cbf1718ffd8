"""Clock, random numbers, ids and timers of a run that go through a tape or a journal (DESIGN 6.11, 6.17)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from .boundary import Boundary
from .engine import Engine
from .environment import Environment


class RoutedClock:
    """A clock whose readings go through a tape or a journal.

    Args:
        inner: the actual clock. Its other attributes are available too.
        boundary: returns the readings, and sets timers of the actual clock.
    """

    def __init__(self, inner: Any, boundary: Boundary) -> None:
        self.inner, self._read, self._set_timer = inner, boundary.read, boundary.set_timer
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
        """Return the time of an event. It does not go through the tape, because no hook reads it from here."""
        return float(self._real_time())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class RoutedRandom(Random):
    """A random generator whose numbers go through a tape or a journal.

    All methods of ``Random`` build on the two below.
    """

    environment: Environment
    """Contains the actual generator, which it makes when it is needed."""
    read: Callable[[str, Callable[[], Any]], Any]

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


def install_sources(engine: Engine, boundary: Boundary) -> None:
    """Route the clock, random numbers, ids and timers of a run and its nested runs through a boundary."""
    # A seed of its own would cost a system call; the numbers come from ``inner``.
    environment, generator = engine.environment, RoutedRandom(0)
    generator.environment = environment.real = environment.copy()
    read = generator.read = boundary.read
    real = environment.new_id
    environment.clock = engine.budget.clock = RoutedClock(environment.clock, boundary)
    environment.random = generator

    def new_id(prefix: str = "id") -> str:
        return str(read("id", lambda: real(prefix)))

    environment.new_id = new_id


def real_clock(clock: Any) -> Any:
    """Return the actual clock behind a routed one."""
    while isinstance(clock, RoutedClock):
        clock = clock.inner
    return clock
