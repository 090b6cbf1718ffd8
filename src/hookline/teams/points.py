"""The points of subagents and personalities, and their payloads (DESIGN 3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._base.frozen import Frozen
from .._kernel.points import Point
from .._kernel.values import Ids


class Subagent(Frozen, frozen=True):
    """Payload of ``subagent_spawning``, ``subagent_spawned`` (with ids) and ``subagent_ended`` (with the result)."""

    parent: Ids
    prompt: str
    personality_id: str = ""
    child: Ids = Ids()
    status: str = ""
    reply: str = ""


class SubagentChange(Frozen, frozen=True):
    """Result of hooks at ``subagent_spawning``; ``error`` refuses the subagent."""

    prompt: str | None = None
    personality: str | None = None
    error: str | None = None


class PersonalitySwitched(Frozen, frozen=True):
    """Payload of ``personality_switched``."""

    session_id: str
    to: str
    from_: str = ""


class PersonalityChange(Frozen, frozen=True):
    """Result of hooks at ``personality_switched``: another id, or changed fields of the personality."""

    personality: str | Mapping[str, Any] | None = None


SUBAGENT_SPAWNING = Point(
    "subagent_spawning",
    Subagent,
    model="merge",
    result=SubagentChange,
    fired_by="a team",
    when="before a subagent starts",
    closed="the subagent is refused",
    names={"Ethos": "subagent_spawning", "Claude Code": "SubagentStart"},
)
SUBAGENT_SPAWNED = Point(
    "subagent_spawned",
    Subagent,
    model="observe",
    fired_by="a team",
    when="after a subagent started",
    names={"Ethos": "subagent_spawned"},
)
SUBAGENT_ENDED = Point(
    "subagent_ended",
    Subagent,
    model="observe",
    fired_by="a team",
    when="after a subagent ended",
    names={"Ethos": "subagent_ended"},
)
PERSONALITY_SWITCHED = Point(
    "personality_switched",
    PersonalitySwitched,
    model="merge",
    result=PersonalityChange,
    fired_by="a team",
    when="before a switch takes effect",
    closed="the switch is rejected",
    names={"Ethos": "personality_switched"},
)
