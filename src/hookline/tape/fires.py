"""The fires of a run for its tape, in order with its events."""

from __future__ import annotations

from .._kernel.fire_observers import FireObserver, FireReport
from .._run.engine import Engine


class OrderedFires(FireObserver):
    """Reports the fires of a run to another observer, in order with the events of the run.

    The code of a hook may fire a point in a thread of its own. The events of that fire are delivered in the event loop
    of the run, so the fire is reported there too.

    Args:
        engine: the run.
        observer: the observer.
    """

    def __init__(self, engine: Engine, observer: FireObserver) -> None:
        self.points, self.wants_time = observer.points, observer.wants_time
        self._in_order, self._report = engine.events.in_order, observer.fire_ended

    def fire_ended(self, fire: FireReport) -> None:
        """Report a fire."""
        self._in_order(self._report, fire)
