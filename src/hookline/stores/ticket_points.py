"""Hook points of tickets, and their payload (docs/design.md, section 3)."""

from __future__ import annotations

from .._base.frozen import Frozen
from .._kernel.points import Point


class Ticket(Frozen, frozen=True):
    """Payload of ``before_ticket_complete`` and, with ``reason`` and ``assignee``, ``after_ticket_revision``."""

    ticket_id: str
    summary: str
    criteria: tuple[str, ...] = ()
    tier: str = ""
    reason: str = ""
    assignee: str = ""
    success_ratio: float | None = None


BEFORE_TICKET_COMPLETE = Point(
    "before_ticket_complete",
    Ticket,
    model="claim",
    fired_by="a team",
    when="before a ticket is done; a claim rejects the completion",
    closed="the completion is rejected",
    names={"Ethos": "before_ticket_complete"},
)
AFTER_TICKET_REVISION = Point(
    "after_ticket_revision",
    Ticket,
    model="observe",
    fired_by="a team",
    when="after a completion was rejected",
    names={"Ethos": "after_ticket_revision"},
)
