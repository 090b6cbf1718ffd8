"""Tickets as values: their columns and tiers, what may be written on them, and how they are called."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal, get_args

import msgspec

from .._base.frozen import scrub
from .._base.text import did_you_mean, shorten
from .errors import StoreError

Column = Literal["todo", "running", "verifying", "needs_revision", "review", "done", "cancelled"]
Tier = Literal["auto", "review", "ask"]
COLUMNS: tuple[str, ...] = get_args(Column)
"""The columns of a board, in the order in which they are shown."""
OPEN = COLUMNS[:5]
"""Those whose tickets are not over."""
TIERS: tuple[str, ...] = get_args(Tier)
"""How much an agent may do alone."""

MAX_TITLE, MAX_TEXT, MAX_NAME, MAX_CRITERIA, MAX_CRITERION = 200, 20_000, 100, 20, 500

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_ID = re.compile(r"(?:[Tt]-|#)?0*([1-9][0-9]{0,17})")


class TicketError(StoreError):
    """A ticket that is not there, or a change that its column, its assignee or somebody quicker does not allow."""


class TicketRow(msgspec.Struct, frozen=True):
    """A ticket as it is now; ``summary`` is what the last completion said, ``reason`` why it was rejected.

    ``changes`` counts the entries of its history.
    """

    id: str
    title: str
    description: str
    criteria: tuple[str, ...]
    column: str
    tier: str
    assignee: str
    created_by: str
    created: float
    changed: float
    summary: str
    reason: str
    changes: int


class TicketChange(msgspec.Struct, frozen=True):
    """One entry of a ticket's history: what who did when, between which columns, and what they said to it.

    ``assignee`` is whose ticket it was then, ``run_id`` the run that did it.
    """

    seq: int
    at: float
    by: str
    what: str
    from_column: str
    to_column: str
    text: str
    assignee: str
    run_id: str


def number_of(id: object) -> int:
    """The number in an id such as ``T-12``; ``t-12``, ``#12`` and ``12`` are the same.

    Raises:
        TicketError: it is no id.
    """
    found = _ID.fullmatch(str(id).strip()) if isinstance(id, (str, int)) and not isinstance(id, bool) else None
    if found is None:
        raise TicketError(f"{id!r:.80} is no ticket: ids look like T-1")
    return int(found[1])


def cleaned(text: object, name: str, limit: int, *, one_line: bool = False) -> str:
    """A text that can be kept and shown: without control characters or halves of characters.

    Raises:
        TicketError: it is no text, or too long.
    """
    if not isinstance(text, str):
        raise TicketError(f"the {name} is text, not {type(text).__name__}")
    if len(text) > 4 * limit:
        raise TicketError(f"the {name} has {len(text):,} characters: at most {limit:,} are kept, make it shorter")
    kept = _CONTROL.sub("", scrub(text.replace("\r\n", "\n"))).strip()
    kept = " ".join(kept.split()) if one_line else kept
    if len(kept) > limit:
        raise TicketError(f"the {name} has {len(kept):,} characters: at most {limit:,} are kept, make it shorter")
    return kept


def cut(text: object, limit: int = MAX_TEXT) -> str:
    """A reason that somebody else gave, shortened where it is too long: it may not stand in the way."""
    kept = _CONTROL.sub("", scrub(str(text)[: limit + 1])).strip()
    return shorten(kept, limit)


def name_of(name: object, what: str) -> str:
    """Who somebody is.

    Raises:
        TicketError: it is no name, or empty.
    """
    kept = cleaned(name, what, MAX_NAME, one_line=True)
    if not kept:
        raise TicketError(f"the {what} is empty: say who it is")
    return kept


def criteria_of(criteria: Any) -> tuple[str, ...]:
    """What must be so for a ticket to be done; empty ones are left out.

    Raises:
        TicketError: no list of texts, or too many.
    """
    if isinstance(criteria, str) or not isinstance(criteria, Iterable):
        raise TicketError(f"the criteria are a list of texts, not {criteria!r:.80}")
    found = [cleaned(item, "criterion", MAX_CRITERION, one_line=True) for item in criteria]
    found = [item for item in found if item]
    if len(found) > MAX_CRITERIA:
        raise TicketError(f"{len(found)} criteria are too many: at most {MAX_CRITERIA}, make several tickets of it")
    return tuple(found)


def one_of(value: object, known: Iterable[str], what: str) -> str:
    """One of the names that there are.

    Raises:
        TicketError: it is none of them.
    """
    names = tuple(known)
    if not isinstance(value, str) or value not in names:
        hint = did_you_mean(value, names) if isinstance(value, str) else ""
        raise TicketError(f"{value!r:.80} is no {what}: give one of {', '.join(names)}.{hint}")
    return value
