"""What every door has in common."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hookline import Agent, RunFailedError
from hookline.events import Event

from ..build import TASK
from ..vectors import Story, Vector


class Door:
    """A way to run an agent, or to see what it did. ``id`` is that in ``doors.toml``."""

    id = ""

    @asynccontextmanager
    async def open(self, folder: Path, vectors: Sequence[Vector]) -> AsyncIterator[None]:
        """Prepare what all vectors share, such as a server."""
        yield

    async def tell(self, vector: Vector, folder: Path) -> Story:
        """Run a vector and return the story that the door tells. The folder is new and empty."""
        raise NotImplementedError


async def events_of(agent: Agent, **options: Any) -> list[Event]:
    """Run an agent and return its events, whatever its end."""
    found: list[Event] = []
    try:
        await agent.arun(TASK, sinks=[found.append], **options)
    except RunFailedError:
        pass
    return found
