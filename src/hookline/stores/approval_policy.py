"""Who may approve which calls. A policy is stored with each call that it applies to, so that every program obeys it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from fnmatch import fnmatchcase
from math import isfinite
from typing import Any

import msgspec

from .._base.frozen import scrub
from .._base.text import is_number, printable

MAX_ID = 300
"""Maximum length of the name of a person, or of one of their ids."""

_NUMBER = re.compile(r"[+-]?\d{1,300}(\.\d{1,300})?")


class CallPattern(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A pattern of calls: those of a tool, with certain arguments, and with an amount between two limits.

    Example::

        CallPattern(tool="refund", where={"currency": "EUR"}, up_to=500)

    Args:
        tool: name of the tool, or a glob.
        where: a glob for each argument that matters. Texts are compared as they are, other values as JSON.
        amount: name of the argument that is the amount. Its sign does not matter.
        up_to: the largest amount.
        above: the amount must be larger than this.

    Raises:
        ValueError: an argument cannot work.
    """

    tool: str = "*"
    where: dict[str, str] = {}
    amount: str = "amount"
    up_to: float | None = None
    above: float | None = None

    def __post_init__(self) -> None:
        if not self.tool or not self.amount:
            raise ValueError("tool and amount must not be empty")
        for name in ("up_to", "above"):
            limit = getattr(self, name)
            if limit is not None and (not is_number(limit) or not isfinite(limit) or limit < 0):
                raise ValueError(f"{name} must be a number, 0 or more, not {limit!r:.80}")
        if self.up_to is not None and self.above is not None and self.above >= self.up_to:
            raise ValueError(f"no amount is above {self.above:g} and up to {self.up_to:g}")

    def matches(self, tool: str, arguments: Mapping[str, Any], *, unknown: bool) -> bool:
        """Whether the pattern covers a call.

        Args:
            tool: name of the tool.
            arguments: arguments of the call.
            unknown: what counts for an argument that the call does not have, and for an amount that is not a number.
        """
        if not fnmatchcase(tool, self.tool):
            return False
        for name, glob in self.where.items():
            if not (fnmatchcase(as_text(arguments[name]), glob) if name in arguments else unknown):
                return False
        if self.up_to is None and self.above is None:
            return True
        amount = _number(arguments.get(self.amount))
        if amount is None:
            return unknown
        above, up_to = _number(self.above), _number(self.up_to)
        return (above is None or amount > above) and (up_to is None or amount <= up_to)


_NO_CALL = CallPattern(tool="(none)")
"""No tool can have this name."""


class ApproverRights(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A person, and the calls that this person may approve.

    Args:
        by: the ids of the person: ``user:NAME`` behind a proxy that authenticates, the id of an API key,
            ``USER@terminal``, ``CHANNEL:SENDER``, or ``NAME (link)``. A program gives its own to ``decide``. The name
            of the person in the policy counts as well.
        can_approve: patterns of the calls.

    Raises:
        ValueError: an argument cannot work.
    """

    by: tuple[str, ...] = ()
    can_approve: tuple[CallPattern, ...]

    def __post_init__(self) -> None:
        if not self.can_approve:
            raise ValueError('can_approve is empty: list patterns of calls, such as { tool = "refund", up_to = 500 }')


class ApprovalPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Who may approve which calls, and which calls two people must approve.

    Example::

        ApprovalPolicy(
            people={
                "ann": ApproverRights(by=("ann@terminal",), can_approve=(CallPattern(tool="refund", up_to=500),)),
                "ben": ApproverRights(by=("user:ben@example.org",), can_approve=(CallPattern(),)),
            },
            four_eyes=(CallPattern(tool="refund", above=300),),
        )

    Args:
        people: the people by name.
        four_eyes: patterns of calls that two different people must approve.
        own_calls: whether people may approve the calls of runs that they have started.

    Raises:
        ValueError: the policy cannot work.
    """

    people: dict[str, ApproverRights]
    four_eyes: tuple[CallPattern, ...] = ()
    own_calls: bool = False

    def __post_init__(self) -> None:
        if not self.people:
            raise ValueError("people is empty, so nobody may approve a call")
        if self.four_eyes and len(self.people) < 2:
            raise ValueError("four_eyes needs two people, and people has only one")
        owners: dict[str, str] = {}
        for name, person in self.people.items():
            for id in {name, *person.by}:
                if not id.strip() or id != id.strip() or not id.isprintable() or len(id) > MAX_ID:
                    raise ValueError(f"people.{name:.80} has {id!r:.80}: use a visible name without spaces around it")
                if id in owners:
                    raise ValueError(f"{id!r:.80} stands for two people: {owners[id]:.80} and {name:.80}")
                owners[id] = name

    def person(self, id: str) -> str:
        """Return the name of the person with this id; the id itself if the policy does not name it."""
        return next((name for name, person in self.people.items() if id in (name, *person.by)), id)

    def needed(self, tool: str, arguments: Mapping[str, Any]) -> int:
        """Return how many people must approve a call. Arguments that cannot be judged count against the call."""
        return 2 if any(each.matches(tool, arguments, unknown=True) for each in self.four_eyes) else 1

    def for_hidden_arguments(self, tool: str, arguments: Mapping[str, Any]) -> ApprovalPolicy:
        """Return the policy for a call whose arguments are not stored as they are, so that they cannot be judged later.

        Args:
            tool: name of the tool.
            arguments: the arguments of the call.
        """
        people = {
            name: person
            if any(each.matches(tool, arguments, unknown=False) for each in person.can_approve)
            else msgspec.structs.replace(person, can_approve=(_NO_CALL,))
            for name, person in self.people.items()
        }
        four_eyes = (CallPattern(),) if self.needed(tool, arguments) > 1 else self.four_eyes
        return msgspec.structs.replace(self, people=people, four_eyes=four_eyes)

    def approvers(
        self, tool: str, arguments: Mapping[str, Any], asked_by: str, approved: Iterable[str] = ()
    ) -> tuple[str, ...]:
        """Return the names of the people who may approve a call, without those who have approved it already."""
        done = set(approved)
        return tuple(
            name for name in self.people if name not in done and not self._objection(name, tool, arguments, asked_by)
        )

    def objection(
        self, id: str, tool: str, arguments: Mapping[str, Any], asked_by: str, approved: Iterable[str] = ()
    ) -> str:
        """Return the reason why somebody may not approve a call; empty if they may.

        Args:
            id: id of the person who decides.
            tool: name of the tool.
            arguments: arguments of the call.
            asked_by: id of the person who started the run that asks.
            approved: names of the people who have approved the call already.
        """
        person = self.person(id)
        if person in set(approved):
            return f"{person} has approved this call already, and it needs another person"
        return self._objection(person, tool, arguments, asked_by)

    def _objection(self, person: str, tool: str, arguments: Mapping[str, Any], asked_by: str) -> str:
        if person not in self.people:
            return f"{person} is not in people of the approval policy"
        if not self.own_calls and asked_by and self.person(asked_by) == person:
            return f"{person} started the run that asks, so another person must approve its calls"
        if not any(each.matches(tool, arguments, unknown=False) for each in self.people[person].can_approve):
            return f"{person} may not approve this call of {printable(tool, keep='')}: can_approve does not cover it"
        return ""


def as_text(value: Any) -> str:
    """Return the text of an argument that globs are compared with: a text itself, anything else as JSON."""
    value = scrub(value)
    return value if isinstance(value, str) else msgspec.json.encode(value, order="sorted").decode()


def _number(value: Any) -> Decimal | None:
    """Return the size of an amount, also if it is written as text, with all its digits; ``None`` if it is no number."""
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        return Decimal(value.strip()).copy_abs()
    if not is_number(value):
        return None
    return Decimal(value if isinstance(value, int) else repr(value)).copy_abs()  # 0.1 is 0.1, as it was written
