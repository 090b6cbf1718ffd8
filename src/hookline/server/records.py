"""What a server adds to the events of a run: a first and a last one, which every run has, however it goes."""

from __future__ import annotations

from .._kernel.events import Event
from .._kernel.values import Usage


class RunAccepted(Event, frozen=True):
    """The first event of a served run: it is stored, and waits for its turn."""

    agent: str = ""
    session: str = ""
    task_id: str = ""
    correlation_id: str = ""


class RunClosed(Event, frozen=True):
    """The last event of a served run, also of one that never began or whose program was gone."""

    status: str = ""
    reply: str = ""
    error: str = ""
    reason: str = ""
    usage: Usage = Usage()
    cost: float | None = 0.0
