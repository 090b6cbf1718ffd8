"""What hooks read of clocks, chance and ids: noted while a run is recorded, handed out again in a replay."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from .._run.engine import Engine


class Source(Protocol):
    """Gives the value of a kind: ``time``, ``monotonic``, ``random``, ``bits`` or ``id``."""

    def __call__(self, kind: str, real: Callable[[], Any]) -> Any:
        """The value; ``real()`` is the one of here and now."""
        ...


class SetAlarm(Protocol):
    """Has a callback called later; the object returned has a ``cancel()``."""

    def __call__(self, clock: Any, seconds: float, callback: Callable[[], object]) -> Any:
        """``clock`` is the one to go by, if it has a ``call_later`` of its own."""
        ...


class TapedClock:
    """A clock whose readings are on the tape.

    Args:
        inner: the clock of here and now; what else it can do is there, too.
        source: where readings come from.
        alarm: sets an alarm of the inner clock.
    """

    def __init__(self, inner: Any, source: Source, alarm: SetAlarm) -> None:
        self.inner, self._source, self._alarm = inner, source, alarm

    def time(self) -> float:
        """Unix time."""
        return float(self._source("time", self.inner.time))

    def monotonic(self) -> float:
        """Seconds that never run backwards."""
        return float(self._source("monotonic", self.inner.monotonic))

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Any:
        """Set an alarm; the object returned has a ``cancel()``."""
        return self._alarm(self.inner, seconds, callback)

    def stamp(self) -> float:
        """The time of an event, which no hook reads from here."""
        return float(unwrapped(self).time())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class TapedRandom(Random):
    """Chance that is on the tape: all its methods are made of these two."""

    inner: Random
    source: Source

    def seed(self, a: Any = None, version: int = 2) -> None:
        """Begin a sequence anew."""
        super().seed(a, version)
        if hasattr(self, "inner"):  # not while it is made
            self.inner.seed(a, version)

    def random(self) -> float:
        """A number from 0 to 1."""
        return float(self.source("random", self.inner.random))

    def getrandbits(self, k: int) -> int:
        """So many random bits."""
        return int(self.source("bits", lambda: f"{self.inner.getrandbits(k):x}"), 16)


def supply(engine: Engine, source: Source, alarm: SetAlarm) -> None:
    """Have a run, and the runs inside it, read from ``source`` and set alarms with ``alarm``."""
    environment, chance = engine.environment, TapedRandom()
    chance.inner, chance.source = environment.random, source
    real = environment.new_id
    environment.clock = engine.budget.clock = TapedClock(environment.clock, source, alarm)
    environment.random = chance

    def new_id(prefix: str = "id") -> str:
        return str(source("id", lambda: real(prefix)))

    environment.new_id = new_id


def unwrapped(clock: Any) -> Any:
    """The clock itself."""
    while isinstance(clock, TapedClock):
        clock = clock.inner
    return clock
