"""A conversation across runs: its transcript and the user's data about it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..base.frozen import EMPTY, History, freeze
from ..kernel.values import Message


class Session:
    """What outlives a run. Hand the same session to several runs and they share a transcript.

    Args:
        id: how stores and channels know it; made up if left out.
        messages: what was said before, as messages or mappings of their fields.
        metadata: the user's data; each run starts from it and leaves its own here.
        key: how a channel found it.
        platform: where it takes place.
        personality_id: who the agent is in it.
    """

    def __init__(
        self,
        id: str = "",
        messages: Iterable[Message] = (),
        metadata: Mapping[str, Any] = EMPTY,
        *,
        key: str = "",
        platform: str = "",
        personality_id: str = "",
    ) -> None:
        self.id = id
        self.messages: Sequence[Message] = tuple(map(Message.of, messages)) if messages else ()
        self.metadata: Mapping[str, Any] = freeze(metadata)
        self.key, self.platform, self.personality_id = key, platform, personality_id
        self._fresh = [] if self.messages else [True]
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Session({self.id!r}, {len(self.messages)} messages)"

    def first_run(self) -> bool:
        """Whether this is the first run of the session; true once."""
        try:
            return self._fresh.pop()
        except IndexError:
            return False

    @property
    def started(self) -> bool:
        """Whether it has had its first run."""
        return not self._fresh

    def snapshot(self) -> tuple[Sequence[Message], Mapping[str, Any]]:
        """Messages and metadata as one and the same run left them, for stores."""
        with self._lock:
            return self.messages, self.metadata

    def save(
        self, base: Sequence[Message], messages: Sequence[Message], added: Sequence[Message], data: Mapping[str, Any]
    ) -> None:
        """Take over what a run made of ``base``.

        If another run saved meanwhile, only the messages this run ``added`` are put after its.
        """
        with self._lock:
            self.messages = messages if self.messages is base else History((*self.messages, *added))
            self.metadata = data
