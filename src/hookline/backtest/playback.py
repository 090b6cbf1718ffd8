"""Recorded decisions, played back at the place of their hooks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from .._kernel.dispatch import Chain
from .._kernel.hook import HookEntry, compile_hook, matches
from .._kernel.points import Point
from .._kernel.results import HookAction, HookResult
from ..records.format import Decision, HookAtPoint, HookInfo
from ..records.reading import apply_changes

PHASES = ("rewrite", "guard", "observe")


class PlayedFailureError(Exception):
    """A recorded hook failed at this moment."""


def played_entry(decision: Decision, point: Point[Any], at: HookAtPoint | None, failed_closed: bool) -> HookEntry:
    """Return an entry that decides what a hook decided when the moment was recorded."""

    def call(ctx: Any, payload: Any, **verdict: Any) -> Any:
        return _result(decision, payload)

    on_failure: Any = at.on_failure if at is not None else "closed" if failed_closed else "open"
    ids = frozenset((id(call),))
    template = _template(point, decision.phase)
    return msgspec.structs.replace(
        template, hook=call, call=call, name=decision.hook, on_failure=on_failure, id_set=ids
    )


def is_playable(decision: Decision) -> bool:
    """Whether a recorded decision is one that a hook can make; a damaged record may contain anything."""
    return decision.phase in PHASES and decision.verb in _VERBS


_VERBS = frozenset(map(str, HookAction))


@lru_cache(maxsize=256)
def _template(point: Point[Any], phase: Any) -> HookEntry:
    """Return an entry at a point, to be changed: compiling a hook for each decision would be slow."""

    def played(ctx: Any, payload: Any) -> None: ...

    return next(compile_hook(played, points=(point,), phase=phase))


def _result(decision: Decision, payload: Any) -> Any:
    verb = decision.verb
    if verb == HookAction.FAILED:
        raise PlayedFailureError(decision.error or "it failed")
    if verb == HookAction.REPLACE:
        return HookResult.replace(apply_changes(payload, decision.changed or {}), reason=decision.reason)
    if verb == HookAction.STOP:
        value = decision.value if isinstance(decision.value, dict) else {}
        return HookResult.stop(value.get("message", ""), value.get("kind", "stop_requested"), reason=decision.reason)
    return HookResult(HookAction(verb), decision.value, decision.reason)


def chain_of(entries: Sequence[HookEntry]) -> Chain:
    """Return a chain of these entries, which are in calling order within each phase."""
    rewriters, guards, observers = (tuple(e for e in entries if e.phase == phase) for phase in PHASES)
    return Chain(rewriters, guards, observers, simple=not guards and not observers)


class Slot(msgspec.Struct, frozen=True):
    """A place in the order of the hooks of a point: of a tested hook (``entry``) or of a recorded one."""

    name: str
    phase: str
    entry: HookEntry | None = None
    at: HookAtPoint | None = None


def merged_order(
    entries: Sequence[HookEntry], recorded: Sequence[HookInfo], point: str, dropped: frozenset[str]
) -> tuple[Slot, ...]:
    """Return the order of tested and recorded hooks at a point.

    A tested hook takes the place of the recorded hook with its name if phase and priority are the same. Otherwise it
    comes after the recorded hooks of its phase with the same or a higher priority.
    """
    known = sorted(
        ((info.points[point], info.name) for info in recorded if point in info.points), key=lambda pair: pair[0].order
    )
    order = [Slot(name, at.phase, None, at) for at, name in known]
    for entry in entries:
        place = next(
            (
                index
                for index, slot in enumerate(order)
                if slot.entry is None
                and slot.name == entry.name
                and slot.at is not None
                and (slot.phase, slot.at.priority) == (entry.phase, entry.priority)
            ),
            None,
        )
        new = Slot(entry.name, entry.phase, entry)
        if place is not None:
            order[place] = Slot(entry.name, entry.phase, entry, order[place].at)
        else:
            order.insert(_place(order, entry), new)
    return tuple(slot for slot in order if slot.entry is not None or slot.name not in dropped)


def _place(order: list[Slot], entry: HookEntry) -> int:
    rank, place = PHASES.index(entry.phase), 0
    for index, slot in enumerate(order):
        other = PHASES.index(slot.phase)
        priority = slot.entry.priority if slot.entry is not None else slot.at.priority if slot.at is not None else 0
        if other < rank or (other == rank and priority >= entry.priority):
            place = index + 1
    return place


def merged_chain(
    order: Sequence[Slot], decisions: Sequence[Decision], point: Point[Any], *, failed_closed: bool
) -> Chain:
    """Return the tested hooks, and the recorded decisions at their places."""
    waiting = list(decisions)
    entries: list[HookEntry] = []
    for slot in order:
        if slot.entry is not None:
            entries.append(slot.entry)
            continue
        for decision in waiting:
            if decision.hook == slot.name and decision.phase == slot.phase:
                entries.append(played_entry(decision, point, slot.at, failed_closed))
                waiting.remove(decision)
                break
    if waiting:  # the record does not say where these hooks were: they come first in their phase
        played = [played_entry(decision, point, None, failed_closed) for decision in waiting]
        entries = [*played, *entries]
    return chain_of(entries)


def not_called(order: Sequence[Slot], decider: str, tool: str) -> list[str]:
    """Return the recorded hooks that were not called, because ``decider`` settled the point before them."""
    names = [slot.name for slot in order]
    if decider not in names:
        return []
    return [
        slot.name
        for slot in order[names.index(decider) + 1 :]
        if slot.entry is None
        and slot.phase != "observe"
        and (slot.at is None or not slot.at.tools or matches(tool, slot.at.tools))
    ]
