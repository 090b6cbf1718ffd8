"""Fire observers: they watch the fires of points and decide nothing (DESIGN 4.11).

The records and the tape of a run, the comparison of a replay, and the events of the dispatcher are fire observers. A
scope has one list of them, :class:`FireObservers`. They are not hooks: hooks in the phase ``observe`` are.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

import msgspec

from .events import Emit, HookExecuted, PointFired
from .hook import HookEntry, tool_of
from .payloads import ApprovalAnswer, ApprovalRequest
from .points import Point
from .results import HookAction, HookResult, Verdict
from .state import AgentState

_NOTED = frozenset((HookAction.RETRY, HookAction.KEEP_GOING))
"""Verbs whose value is a text for the model."""


class EveryPoint:
    """The set of all points, including those of the program that are declared later."""

    def __contains__(self, point: object) -> bool:
        return True

    def __or__(self, other: object) -> EveryPoint:
        return self

    __ror__ = __or__


EVERY_POINT = EveryPoint()
Points = frozenset[str] | EveryPoint


class CallReport(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One call of a hook. ``payload`` is the payload that the hook got."""

    entry: HookEntry
    point: Point[Any]
    payload: Any
    result: HookResult | None = None
    """``None`` if the hook returned nothing or failed."""
    error: str | None = None
    location: str = ""
    """Where the code of the hook raised the error."""
    refused: bool = False
    """Whether the hook prevented something."""
    took: float = 0
    """Duration in seconds; 0 if no fire observer wants the time."""
    state: AgentState | None = None
    """The state before the hook's ``state=``, if it returned one."""

    @property
    def is_postponed(self) -> bool:
        """Whether the hook is an approver that waits: it decides when it is asked again."""
        answer = None if self.result is None else self.result.value
        return isinstance(answer, ApprovalAnswer) and answer.wait


class FireReport(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One fire of a point that has ended. ``payload`` is the payload as it arrived."""

    point: Point[Any]
    payload: Any
    verdict: Verdict
    calls: tuple[CallReport, ...] = ()
    """The calls of the hooks that returned something or failed; all calls if some fire observer wants all of them."""
    took: float = 0
    """Duration in seconds; 0 for a point without hooks, or if no fire observer wants the time."""

    @property
    def results(self) -> list[CallReport]:
        """The calls of the hooks that returned something or failed."""
        return [call for call in self.calls if call.result is not None or call.error is not None]


class FireObserver:
    """The base class of fire observers: it watches nothing. The methods must not raise."""

    points: Points = frozenset()
    """The points whose fires are reported to it when they end, also without any hooks."""
    wants_hooked_fires: bool = False
    """Whether the fires of every point that has hooks are reported to it too."""
    wants_time: bool = False
    """Whether the calls of hooks at these points are timed."""
    wants_calls: Literal["none", "results", "all"] = "none"
    """The calls of hooks that are reported to it, at every point: those that return something or fail, or all of them,
    with their time."""

    def fire_ended(self, fire: FireReport) -> None:
        """Handle the end of a fire of one of its points."""

    def hook_called(self, call: CallReport) -> None:
        """Handle a call of a hook, before its result takes effect."""


class PointWatch(msgspec.Struct, frozen=True, eq=False):
    """The fire observers of one point, by what is reported to them."""

    of_fires: tuple[FireObserver, ...]
    of_bare_fires: tuple[FireObserver, ...]
    """The observers that also get the fires of points without hooks."""
    of_results: tuple[FireObserver, ...]
    of_all_calls: tuple[FireObserver, ...]
    is_timed: bool


class FireObservers(dict[str, PointWatch]):
    """The fire observers of a scope, by point."""

    def __init__(self, *observers: FireObserver) -> None:
        super().__init__()
        self._observers = observers
        self._of_results = tuple(each for each in observers if each.wants_calls != "none")
        self._of_all_calls = tuple(each for each in observers if each.wants_calls == "all")
        self.points: Points = frozenset()
        """The points whose fires are reported to some observer."""
        for observer in observers:
            self.points = self.points | observer.points
        self.watched_points: Points = EVERY_POINT if self._of_all_calls else self.points
        """The points at which every fire, or every call of a hook, is reported to some observer."""

    def __missing__(self, point: str) -> PointWatch:
        of_fires = tuple([each for each in self._observers if each.wants_hooked_fires or point in each.points])
        of_bare_fires = tuple([each for each in of_fires if point in each.points])
        is_timed = bool(self._of_all_calls) or any(each.wants_time for each in of_fires)
        watch = self[point] = PointWatch(of_fires, of_bare_fires, self._of_results, self._of_all_calls, is_timed)
        return watch

    def without(self, observers: Collection[FireObserver]) -> FireObservers:
        """Return a list without these observers."""
        return FireObservers(*(each for each in self._observers if each not in observers))

    def joined_by(self, observer: FireObserver) -> FireObservers:
        """Return a list with one more observer.

        The events come last: a consumer of an event may cancel the run, and a record must contain the fire then.
        """
        return FireObservers(*sorted((*self._observers, observer), key=lambda each: isinstance(each, FireEvents)))

    def report_without_hooks(self, point: Point[Any], payload: Any) -> Verdict:
        """Report a fire of a point that has no hooks, and return its verdict."""
        verdict = Verdict(payload)
        if point in self.points:
            fire = FireReport(point, payload, verdict)
            for observer in self[point].of_bare_fires:
                observer.fire_ended(fire)
        return verdict


NO_FIRE_OBSERVERS = FireObservers()


class FireEvents(FireObserver):
    """Emits the events of fires and of calls of hooks.

    Args:
        emit: adds an event to the stream.
        every_fire: whether to emit an event for every fire.
        every_call: whether to emit an event for every call of a hook, with its duration; otherwise only for calls that
            return something or fail.
    """

    def __init__(self, emit: Emit, *, every_fire: bool = False, every_call: bool = False) -> None:
        self._emit, self._every_call = emit, every_call
        self.points = EVERY_POINT if every_fire else frozenset()
        self.wants_calls = "all" if every_call else "results"

    def fire_ended(self, fire: FireReport) -> None:
        """Emit the event of a fire."""
        verdict = fire.verdict
        self._emit(PointFired, point=fire.point, verb=verdict.action, hook=verdict.hook, reason=verdict.reason)

    def hook_called(self, call: CallReport) -> None:
        """Emit the event of a call, unless the hook is asked again."""
        if call.is_postponed:
            return
        entry, point, result = call.entry, call.point, call.result
        asked = isinstance(call.payload, ApprovalRequest)
        about = call.payload.call if asked else call.payload
        verb, reason, note = HookAction.CONT if call.error is None else HookAction.FAILED, "", ""
        if result is not None:
            verb, reason = result.action, result.reason
            note = result.value if verb in _NOTED else ""
        self._emit(
            HookExecuted,
            point=point,
            hook=entry.name,
            phase=entry.phase,
            verb=verb,
            reason=str(reason),
            error=call.error,
            duration=call.took if self._every_call else None,
            call_id=str(getattr(about, "id", getattr(about, "call_id", ""))),
            note=note,
            tool=tool_of(about) if point.tool or asked else "",
            refused=call.refused,
            location=call.location,
        )
