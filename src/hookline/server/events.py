"""The first and the last event of every served run."""

from __future__ import annotations

from .._kernel.events import Event
from .._kernel.values import Usage


class RunAccepted(Event, frozen=True):
    """The first event of a served run: the run is stored and queued."""

    agent: str = ""
    session: str = ""
    task_id: str = ""
    correlation_id: str = ""


class RunClosed(Event, frozen=True):
    """The last event of a served run, also if it never started or its process died."""

    status: str = ""
    reply: str = ""
    error: str = ""
    reason: str = ""
    usage: Usage = Usage()
    cost: float | None = 0.0
