"""Then and now: the events of a replay against those on the tape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any

import msgspec

from .._base.event import Event
from .._base.frozen import scrub
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
        self._then: dict[tuple[str, int], list[tuple[int, dict[str, Any]]]] = {}
        for position, entry in enumerate(tape.entries):
            if isinstance(entry, on.Happened) and self.is_compared(entry):
                self._then.setdefault((entry.event["run_id"], entry.lane), []).append((position, entry.event))
        self._count = dict.fromkeys(self._then, 0)
        self._decided_then = [
            (position, decision)
            for position, entry in enumerate(tape.entries)
            if isinstance(entry, on.Happened) and self.is_compared(entry) and (decision := _decision(entry.event))
        ]
        self._decided: list[Decision] = []
        self.first = ""
        """The first difference, in words."""

    @property
    def differs(self) -> bool:
        """Whether anything was different so far."""
        return bool(self.first)

    @staticmethod
    def is_compared(entry: on.Happened) -> bool:
        """Whether a replay will have this event too."""
        return not entry.inside and _matters(entry.event)

    def take(self, event: Event, lane: int) -> int | None:
        """Compare an event of this lane; its position on the tape, if it is there too."""
        data = scrub(event.payload)
        if not _matters(data):
            return None
        if (decision := _decision(data)) is not None:
            self._decided.append(decision)
        place, core = (event.run_id, lane), _core(data)
        then, index = self._then.get(place, []), self._count.get(place, 0)
        if index < len(then) and _core(then[index][1]) == core:
            self._count[place] = index + 1
            return then[index][0]
        if not self.first:
            was = then[index][1] if index < len(then) else None
            self.first = f"then {_words(was, data) if was else 'nothing'}; now {_words(data, was)}"
        ahead = range(index, min(index + AHEAD, len(then)))
        found = next((i for i in ahead if _core(then[i][1]) == core), None)
        if found is None:
            return None
        self._count[place] = found + 1
        return then[found][0]

    def finish(self) -> None:
        """There are no further events."""
        left = [then[self._count[run]] for run, then in self._then.items() if self._count[run] < len(then)]
        if left and not self.first:
            self.first = f"then {_words(min(left, key=lambda pair: pair[0])[1], None)}; now nothing"

    def decisions(self, end: int) -> tuple[list[Decision], list[Decision]]:
        """Those that were made then, before that place on the tape, and those made now."""
        return [decision for position, decision in self._decided_then if position < end], self._decided


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
        return f"{event['point']}: {'nobody minds' if event['verb'] == HookAction.CONTINUE else event['verb']}{by}"
    core = _core(event)
    kind = core.pop("type").replace("_", " ")
    if other is not None and other["type"] == event["type"]:
        was = _core(other)
        core = {name: value for name, value in core.items() if was.get(name) != value}
    shown = [f"{name} {value!r:.80}" for name, value in core.items() if value not in ("", None, [], {})]
    return ", ".join([kind, *shown[:3]])
