"""The turns that calls of a durable run have taken from scripted models (DESIGN 6.17).

A journal has the number of the turn of each call, so that a process that resumes the run continues each script after
the turns that the run has had, and makes a call that was in flight with the turn that it had then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from .._base.frozen import json_encoder
from .._kernel.payloads import ModelRequest
from ..models.protocol import Model
from .journal import JournalEntry

_PREFIX = "turn "
"""The beginning of the key of a count that is the number of a turn."""


class _Place(msgspec.Struct, array_like=True, frozen=True):
    """Where a turn was taken: the agent, its model, and the call."""

    agent: str
    provider: str
    model: str
    lane: str
    key: str
    """The key of the call; empty for a call inside a tool or an observer, which the journal does not have."""
    number: int = 0
    """The turn of a call without a key."""


_decode_place = msgspec.json.Decoder(_Place).decode


class Turns:
    """The turns of a run.

    Args:
        counts: the counts in the journal of the run.
        entries: the other entries of that journal.
        put: writes a count to the journal.
    """

    def __init__(
        self, counts: Mapping[str, Any], entries: Iterable[JournalEntry], put: Callable[[str, int], object]
    ) -> None:
        self._put = put
        self._numbers: dict[tuple[str, str], int] = {}
        """The turn of each call of the run, by lane and key."""
        self._repeated: dict[str, deque[int]] = {}
        """The turns of the calls inside the tools in flight, by lane. They are made again."""
        self._last: dict[tuple[str, str, str], int] = {}
        """The last turn of the calls inside tools and observers that have ended, by agent and model."""
        self._last_step: dict[tuple[str, str, str], int] = {}
        """The last turn of the steps, by agent and model."""
        in_flight: set[str] = set()
        for entry in entries:
            if entry.key.startswith("tool ") and entry.kind in ("asked", "answered"):
                (in_flight.add if entry.kind == "asked" else in_flight.discard)(entry.lane)
        for name, number in counts.items():
            if name.startswith(_PREFIX):
                place = _decode_place(name.removeprefix(_PREFIX))
                owner = place.agent, place.provider, place.model
                if place.key:
                    self._numbers[place.lane, place.key] = number
                    if place.key.startswith("model step "):
                        self._last_step[owner] = max(number, self._last_step.get(owner, 0))
                elif place.lane in in_flight:
                    self._repeated.setdefault(place.lane, deque()).append(number)
                else:
                    self._last[owner] = max(number, self._last.get(owner, 0))

    def skip(self, model: Any, lane: str, key: str) -> None:
        """Skip the turn of a call that is answered from the journal."""
        number = self._numbers.get((lane, key))
        if number is not None and hasattr(model, "skip_turn"):
            model.skip_turn(number)

    def take(self, model: Any, request: ModelRequest, lane: str, key: str) -> None:
        """Take the turn of a call and record it. ``key`` is empty for a call inside a tool or an observer."""
        if not hasattr(model, "take_turn"):
            return
        owner = request.ids.agent, model.provider, model.name
        number = self._numbers.get((lane, key))
        if number is None and not key and self._repeated.get(lane):
            number = self._repeated[lane].popleft()
        if number is None and owner in self._last:
            model.skip_turn(self._last[owner])
        number = model.take_turn(request, f"{lane} {key}" if key else "", number)
        place = _Place(*owner, lane, key, 0 if key else number)
        self._put(_PREFIX + json_encoder.encode(place).decode(), number)

    def skip_steps(self, model: Model, agent: str) -> None:
        """Skip the turns of the steps of an agent, because its run has ended."""
        number = self._last_step.get((agent, model.provider, model.name))
        if number is not None:
            model.skip_turn(number)  # type: ignore[attr-defined]
