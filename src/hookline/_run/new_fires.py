"""The base class of fire observers that count: in a durable run, they skip what an earlier process has counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from .._kernel.fire_observers import CallReport, FireObserver, FireReport

if TYPE_CHECKING:
    from .engine import Engine


class NewFireObserver(FireObserver):
    """Observes the fires of a run with hooks, and those of ``points``, except fires of an earlier process.

    Args:
        engine: the run.
    """

    wants_hooked_fires = True
    wants_calls: Literal["none", "results", "all"] = "all"

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._repeated: set[int] = set()

    def new_fire(self, fire: FireReport) -> None:
        """Handle the end of a fire that no earlier process has seen."""
        raise NotImplementedError

    def hook_called(self, call: CallReport) -> None:
        """Note that an earlier process made this call, before its event is compared with the journal."""
        boundary = self._engine.boundary
        if not boundary.is_direct and (call.result is not None or call.error is not None) and boundary.is_repeating():
            self._repeated.add(id(call))

    def fire_ended(self, fire: FireReport) -> None:
        """Pass on a fire, unless it is repeated, or another process continues the run."""
        engine = self._engine  # a run of a direct boundary is not suspended
        if engine.boundary.is_direct or (not engine.suspended and not self._is_repeated(fire)):
            self.new_fire(fire)

    def _is_repeated(self, fire: FireReport) -> bool:
        """Whether an earlier process has counted this fire of a durable run: it had made all calls with a result."""
        boundary = self._engine.boundary
        if not (results := {id(call) for call in fire.results}):
            return bool(boundary.is_repeating())
        repeated, self._repeated = results & self._repeated, self._repeated - results
        return repeated == results
