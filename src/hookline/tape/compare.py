"""Compare the events of a replay with the events on its tape."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import zip_longest
from operator import attrgetter
from typing import Any

import msgspec

from .._base.frozen import json_text, scrub
from .._base.text import snake_case, without_addresses
from .._kernel.events import Event, HookExecuted, PointFired
from .._kernel.points import APPROVAL_REQUESTED, ON_TOKEN
from .._kernel.results import HookAction
from .._run.events import compared_fields, ignored_fields
from ..explain.words import verb_phrase
from . import format as fmt
from .tape import TEXT_EVENTS, Tape

AnyEvent = Event | dict[str, Any]
"""An event; as a dict if the program that reads the tape does not know its type."""

LOOKAHEAD = 20
"""Maximum number of events to search, after a difference, for the point where recording and replay agree again."""

_NO_EVENTS: deque[tuple[int, AnyEvent]] = deque()


class Decision(msgspec.Struct, frozen=True):
    """A decision or failure of a hook: where it was made, by which hook, and why."""

    run_id: str
    point: str
    hook: str
    verb: str
    reason: str = ""
    error: str | None = None
    call_id: str = ""

    @property
    def what(self) -> str:
        """The action of the hook, such as ``no_mail blocked the call at before_tool``."""
        return f"{self.hook} {verb_phrase(self.verb, self.point)}"

    def __str__(self) -> str:
        why = self.error or self.reason
        return f"{self.what}{f': {why}' if why else ''}"


class Difference(msgspec.Struct, frozen=True, rename={"recorded": "then", "replayed": "now"}):
    """A decision that differs between recording and replay, or exists in only one of them."""

    recorded: Decision | None
    replayed: Decision | None

    def __str__(self) -> str:
        if self.recorded is None:
            return f"recorded: nothing; replayed: {self.replayed}"
        return f"recorded: {self.recorded}; replayed: {self.replayed or 'nothing'}"


class Comparison:
    """Compares the events of a replay one by one with those on the tape."""

    def __init__(self, tape: Tape) -> None:
        self._recorded: dict[tuple[str, str], deque[tuple[int, AnyEvent]]] = {}
        """The recorded events that the replay has not produced yet, by run and lane, each with its position."""
        self._recorded_decisions: list[tuple[int, Decision]] = []
        for position, entry in enumerate(tape.entries):
            if isinstance(entry, fmt.EventEntry) and not entry.inside and is_compared(event := entry.event):
                key = run_of(event), entry.lane
                then = self._recorded.get(key)
                if then is None:
                    then = self._recorded[key] = deque()
                then.append((position, event))
                if type(event) is HookExecuted:
                    self._recorded_decisions.append((position, _decision(event)))
        self._text_runs = tape.text_runs
        self._decisions: list[tuple[int, Decision]] = []
        self._found: list[tuple[int, str]] = []
        """The differences that may be the first one, each with its position."""

    @property
    def first(self) -> str:
        """The first difference by its position on the tape, as text."""
        return min(self._found, key=lambda pair: pair[0])[1] if self._found else ""

    def take(self, event: Event, lane: str, next_in: Callable[[str], int]) -> tuple[int | None, str]:
        """Compare the next event of a lane.

        Args:
            event: the event.
            lane: its lane.
            next_in: returns the position of a lane's next recorded entry.

        Returns:
            The event's position on the tape, or ``None``; and how it differs from the next recorded event, or ``""``.
        """
        if not is_compared(event) or (type(event) in TEXT_EVENTS and event.run_id not in self._text_runs):
            return None, ""
        then = self._recorded.get((event.run_id, lane), _NO_EVENTS)
        decision = _decision(event) if type(event) is HookExecuted else None
        if decision is None and then and _is_same(then[0][1], event):  # nearly always
            return then.popleft()[0], ""
        found = next((i for i in _next_candidates(then) if _is_same(then[i][1], event)), None)
        difference = ""
        if found is None:
            was = then[0][1] if then else None
            now = _describe(event, was)
            difference = f"recorded: {_describe(was, event) if was is not None else 'nothing'}; replayed: {now}"
            found = next((i for i in range(min(LOOKAHEAD, len(then))) if _is_same(then[i][1], event)), None)
            if decision is not None:
                self._decisions.append((next_in(lane) if found is None else then[found][0], decision))
            for _ in range(found or 0):
                then.popleft()
            found = found and 0
        elif decision is not None:
            self._decisions.append((then[found][0], decision))
        if found is None:
            return None, difference
        position, _ = then[found]
        del then[found]
        return position, difference

    def differ(self, position: int, difference: str) -> None:
        """Record a difference."""
        self._found.append((position, difference))

    def forget(self) -> None:
        """Forget all differences because the replay ended before them."""
        self._found.clear()

    def missing(self, position: int, entry: fmt.TapeEntry) -> None:
        """Record an entry that the replay did not produce."""
        name = snake_case(type(entry).__name__).removesuffix("_entry").replace("_", " ")
        what = _describe(entry.event, None) if isinstance(entry, fmt.EventEntry) else name
        self._found.append((position, f"recorded: {what}; replayed: nothing"))

    def finish(self, complete: bool) -> None:
        """Compare the remaining recorded events after the last event of the replay.

        Args:
            complete: whether the replay followed the order of the tape to the end, so that a missing event may be the
                first difference.
        """
        left = [then[0] for then in self._recorded.values() if then]
        if left and (complete or not self._found):
            position, event = min(left, key=lambda pair: pair[0])
            self._found.append((position, f"recorded: {_describe(event, None)}; replayed: nothing"))

    def decisions(self, end: int, exact: bool) -> tuple[list[Decision], list[Decision]]:
        """Return the recorded decisions before a position and the decisions of the replay, in the order of the tape.

        Args:
            end: the position.
            exact: whether to leave out decisions of the replay that were recorded at or after ``end``.
        """
        now = sorted(self._decisions, key=lambda pair: pair[0])
        return (
            [decision for position, decision in self._recorded_decisions if position < end],
            [decision for position, decision in now if position < end or not exact],
        )


def _next_candidates(events: Sequence[tuple[int, AnyEvent]]) -> Iterator[int]:
    """Yield the indices of the events that may come next. Observers of a point run concurrently, in any order."""
    first = events[0][1] if events else None
    for index, (_, event) in enumerate(events):
        observed = isinstance(event, HookExecuted) and event.phase == "observe"
        if not index or (observed and event.point == getattr(first, "point", None)):  # type: ignore[union-attr]
            yield index
        if not observed:
            return


def differences(then: Sequence[Decision], now: Sequence[Decision]) -> Iterator[Difference]:
    """Yield the decisions that differ."""
    same = next((i for i, (a, b) in enumerate(zip(then, now, strict=False)) if a != b), min(len(then), len(now)))
    then, now = then[same:], now[same:]  # SequenceMatcher is slow for long sequences
    if not then and not now:
        return
    for verb, a, b, c, d in SequenceMatcher(None, then, now, autojunk=False).get_opcodes():
        if verb != "equal":
            for was, new in zip_longest(then[a:b], now[c:d]):
                yield Difference(was, new)


def is_compared(event: AnyEvent) -> bool:
    """Return whether to compare an event. A replay asks no approvers, and hooks that did nothing do not matter."""
    if type(event) is PointFired:
        return event.point not in (ON_TOKEN, APPROVAL_REQUESTED)
    if type(event) is HookExecuted:
        silent = event.verb == HookAction.CONT and not event.reason and event.error is None
        return not silent and event.point != APPROVAL_REQUESTED
    return True


def run_of(event: AnyEvent) -> str:
    """Return the id of the run of an event."""
    return event.run_id if isinstance(event, Event) else str(event["run_id"])


def _decision(event: HookExecuted) -> Decision:
    names = ("run_id", "point", "hook", "verb", "reason", "error", "call_id")
    return Decision(**{name: _without_addresses(scrub(str_of(getattr(event, name)))) for name in names})


def str_of(value: Any) -> Any:
    """Return a point or a verb as a plain string."""
    return str(value) if isinstance(value, str) else value


@lru_cache(maxsize=256)
def _values_of(kind: type[Event]) -> Callable[[Any], Any]:
    """Return a function that returns the values of the fields that must be the same."""
    names = compared_fields(kind)
    return attrgetter(*names) if names else lambda event: ()


def _is_same(recorded: AnyEvent, event: Event) -> bool:
    """Return whether two events are the same. Usually their values are equal, which is fast to see."""
    kind = type(event)
    if type(recorded) is kind:
        values = _values_of(kind)
        if values(recorded) == values(event):
            return True
    elif isinstance(recorded, Event):
        return False
    return _comparable(_data(recorded)) == _comparable(_data(event))


def _data(event: AnyEvent) -> dict[str, Any]:
    return scrub(event.payload) if isinstance(event, Event) else event


def _comparable(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event without the fields that may differ between recording and replay."""
    ignored = ignored_fields(event["type"])
    core = {name: _without_addresses(value) for name, value in event.items() if name not in ignored}
    if event["type"] == "run_finished":
        result = {name: value for name, value in core["result"].items() if name not in ("elapsed", "ids")}
        result["errors"] = sorted(result["errors"], key=json_text)  # errors of concurrent calls come in any order
        result["steps"] = [{**step, "duration": 0} for step in result["steps"]]
        core["result"] = result
    return core


def _without_addresses(value: Any) -> Any:
    """Return a value without object addresses."""
    if isinstance(value, str):
        return without_addresses(value)
    if isinstance(value, dict):
        return {name: _without_addresses(item) for name, item in value.items()}
    return [_without_addresses(item) for item in value] if isinstance(value, list) else value


def _describe(event: AnyEvent, other: AnyEvent | None) -> str:
    """Describe an event in words: its type and, compared with another event of the type, the fields that differ."""
    if isinstance(event, HookExecuted):
        return str(_decision(event))
    if isinstance(event, PointFired):
        return f"{event.hook or 'all hooks'} {verb_phrase(event.verb, event.point)}"
    core = _comparable(_data(event))
    kind = core.pop("type").replace("_", " ")
    if other is not None and _data(other)["type"] == _data(event)["type"]:
        was = _comparable(_data(other))
        core = {name: value for name, value in core.items() if was.get(name) != value}
    shown = [f"{name} {value!r:.80}" for name, value in core.items() if value not in ("", None, [], {})]
    return ", ".join([kind, *shown[:3]])
