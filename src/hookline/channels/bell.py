"""Waking those who wait for news of a chat."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Bell:
    """Rings for those who listen at a name; what nobody listens to is not remembered."""

    def __init__(self) -> None:
        self._events: dict[str, set[asyncio.Event]] = {}

    @contextmanager
    def listening(self, name: str) -> Iterator[asyncio.Event]:
        """An event that is set when it rings for this name, from now on."""
        event = asyncio.Event()
        self._events.setdefault(name, set()).add(event)
        try:
            yield event
        finally:
            events = self._events[name]
            events.discard(event)
            if not events:
                del self._events[name]

    def ring(self, name: str) -> None:
        """Wake all who listen at this name."""
        for event in self._events.get(name, ()):
            event.set()

    def ring_all(self) -> None:
        """Wake everybody."""
        for name in self._events:
            self.ring(name)
