"""Then and now: the events of a replay against those on the tape."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any

import msgspec

from .._base.frozen import json_text, scrub
from .._base.text import snake_case
from .._kernel.events import Event
from .._kernel.points import APPROVAL_REQUESTED, ON_TOKEN
from .._kernel.results import HookAction
from . import entries as on
from .tape import Tape

AHEAD = 20
"""How far to look, after a difference, for where both go on together."""

_TIMES = ("seq", "at", "run_id", "duration", "ids")
"""Fields that may differ: numbers, times, and ids, which are the same where it matters."""


class Decision(msgspec.Struct, frozen=True):
    """What a hook said, or that it failed: where, who, what and why."""

    run_id: str
    point: str
    hook: str
    verb: str
    reason: str = ""
    error: str | None = None
    call_id: str = ""

    def __str__(self) -> str:
        why = self.error or self.reason
        return f"{self.point} {self.hook}: {self.verb}{f' ({why})' if why else ''}"


class Difference(msgspec.Struct, frozen=True):
    """A decision that was another one then, or none, or is none now."""

    then: Decision | None
    now: Decision | None

    def __str__(self) -> str:
        if self.then is None:
            return f"now {self.now}; then nothing"
        if self.now is None:
            return f"then {self.then}; now nothing"
        return f"then {self.then}; now {self.now}"


class Comparison:
    """Takes the events of a replay one by one."""

    def __init__(self, tape: Tape) -> None:
        self._then: dict[tuple[str, int], deque[tuple[int, dict[str, Any]]]] = {}
        """By run and lane: the events that have not come again, each with its position."""
        self._decided_then: list[tuple[int, Decision]] = []
        for position, entry in enumerate(tape.entries):
            if isinstance(entry, on.Happened) and self.is_compared(entry):
                self._then.setdefault((entry.event["run_id"], entry.lane), deque()).append((position, entry.event))
                if decision := _decision(entry.event):
                    self._decided_then.append((position, decision))
        self._decided: list[tuple[int, Decision]] = []
        self._found: list[tuple[int, str]] = []
        """The differences that may be the first one, each with its position."""

    @property
    def first(self) -> str:
        """The first difference by its position on the tape, in words."""
        return min(self._found, key=lambda pair: pair[0])[1] if self._found else ""

    @staticmethod
    def is_compared(entry: on.Happened) -> bool:
        """Whether a replay will have this event too."""
        return not entry.inside and _matters(entry.event)

    def take(self, event: Event, lane: int, next_in_lane: Callable[[], int]) -> tuple[int | None, str]:
        """Compare an event of a lane.

        Args:
            event: the event.
            lane: its lane.
            next_in_lane: gives the position of what the lane did next then.

        Returns:
            The event's position on the tape, or ``None``; and how it differs from what was next then, or ``""``.
        """
        data = scrub(event.payload)
        if not _matters(data):
            return None, ""
        then, core, decision = self._then.get((event.run_id, lane), deque()), _core(data), _decision(data)
        found = next((i for i in _next_ones(then) if _core(then[i][1]) == core), None)
        difference = ""
        if found is None:
            was = then[0][1] if then else None
            difference = f"then {_words(was, data) if was else 'nothing'}; now {_words(data, was)}"
            found = next((i for i in range(min(AHEAD, len(then))) if _core(then[i][1]) == core), None)
            if decision is not None:
                self._decided.append((next_in_lane() if found is None else then[found][0], decision))
            for _ in range(found or 0):
                then.popleft()
            found = found and 0
        elif decision is not None:
            self._decided.append((then[found][0], decision))
        if found is None:
            return None, difference
        position, _ = then[found]
        del then[found]
        return position, difference

    def differ(self, position: int, difference: str) -> None:
        """Note a difference that may be the first one."""
        self._found.append((position, difference))

    def forget(self) -> None:
        """Forget the differences: the replay ends before all of them."""
        self._found.clear()

    def missing(self, position: int, entry: on.Entry) -> None:
        """Note that an entry did not come again."""
        name = snake_case(type(entry).__name__).replace("_", " ")
        what = _words(entry.event, None) if isinstance(entry, on.Happened) else name
        self._found.append((position, f"then {what}; now nothing"))

    def finish(self, complete: bool) -> None:
        """There are no further events.

        Args:
            complete: whether the replay kept to the order of the tape to the end, so that events that are missing may
                be the first difference.
        """
        left = [then[0] for then in self._then.values() if then]
        if left and (complete or not self._found):
            position, event = min(left, key=lambda pair: pair[0])
            self._found.append((position, f"then {_words(event, None)}; now nothing"))

    def decisions(self, end: int, exact: bool) -> tuple[list[Decision], list[Decision]]:
        """The decisions made then before a position, and those made now, both in the order of the tape.

        Args:
            end: the position.
            exact: leave out decisions made now that came later then.
        """
        now = sorted(self._decided, key=lambda pair: pair[0])
        return (
            [decision for position, decision in self._decided_then if position < end],
            [decision for position, decision in now if position < end or not exact],
        )


def _next_ones(events: Sequence[tuple[int, dict[str, Any]]]) -> Iterator[int]:
    """The indices of the events that may come next: observers of one point run at once, and end in any order."""
    for index, (_, event) in enumerate(events):
        observed = event["type"] == "hook_executed" and event["phase"] == "observe"
        if not index or (observed and event["point"] == events[0][1]["point"]):
            yield index
        if not observed:
            return


def differences(then: Sequence[Decision], now: Sequence[Decision]) -> Iterator[Difference]:
    """The decisions that differ."""
    same = next((i for i, (a, b) in enumerate(zip(then, now, strict=False)) if a != b), min(len(then), len(now)))
    then, now = then[same:], now[same:]  # the rest takes its time if there are many
    for verb, a, b, c, d in SequenceMatcher(None, then, now, autojunk=False).get_opcodes():
        if verb != "equal":
            for was, new in zip_longest(then[a:b], now[c:d]):
                yield Difference(was, new)


def _matters(event: dict[str, Any]) -> bool:
    """Whether an event tells of the run's course; approvers are not asked again, and calls of no consequence are."""
    if event["type"] in ("point_fired", "hook_executed") and event["point"] == APPROVAL_REQUESTED:
        return False
    if event["type"] == "point_fired" and event["point"] == ON_TOKEN and event["verb"] == HookAction.CONTINUE:
        return False
    silent = event["type"] == "hook_executed" and event["verb"] == HookAction.CONTINUE and not event["reason"]
    return not (silent and event["error"] is None)


def _decision(event: dict[str, Any]) -> Decision | None:
    if event["type"] != "hook_executed":
        return None
    names = ("run_id", "point", "hook", "verb", "reason", "error", "call_id")
    return Decision(**{name: _steady(event[name]) for name in names})


def _core(event: dict[str, Any]) -> dict[str, Any]:
    """An event without what may differ."""
    core = {name: _steady(value) for name, value in event.items() if name not in _TIMES}
    if event["type"] == "run_finished":
        result = {name: value for name, value in core["result"].items() if name not in ("elapsed", "ids")}
        result["errors"] = sorted(result["errors"], key=json_text)  # those of calls that went on at once: in any order
        result["steps"] = [{**step, "duration": 0} for step in result["steps"]]
        core["result"] = result
    return core


def _steady(value: Any) -> Any:
    """A value without the addresses of objects."""
    if isinstance(value, str):
        return on.without_addresses(value)
    if isinstance(value, dict):
        return {name: _steady(item) for name, item in value.items()}
    return [_steady(item) for item in value] if isinstance(value, list) else value


def _words(event: dict[str, Any], other: dict[str, Any] | None) -> str:
    """An event in words: what it is, and, against another one of its type, the fields that differ."""
    if (decision := _decision(event)) is not None:
        return str(decision)
    if event["type"] == "point_fired":
        by = f" by {event['hook']}" if event["hook"] else ""
        return f"{event['point']}: {'allowed' if event['verb'] == HookAction.CONTINUE else event['verb']}{by}"
    core = _core(event)
    kind = core.pop("type").replace("_", " ")
    if other is not None and other["type"] == event["type"]:
        was = _core(other)
        core = {name: value for name, value in core.items() if was.get(name) != value}
    shown = [f"{name} {value!r:.80}" for name, value in core.items() if value not in ("", None, [], {})]
    return ", ".join([kind, *shown[:3]])
