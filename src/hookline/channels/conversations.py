"""The sessions of conversations, and who takes part in them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from ..run.session import Session
from ..stores.mailbox import Mailbox
from ..stores.sessions import SessionStore
from .lanes import address_of, session_id
from .protocol import Answerer


class Conversations:
    """Sessions by the key of their conversation: loaded when one is needed, held while it goes on."""

    def __init__(self, answerer: Answerer, mailbox: Mailbox, sessions: SessionStore) -> None:
        self._mailbox, self._sessions = mailbox, sessions
        self._plugins_for: Any = getattr(answerer, "plugins_for", None)
        self._speaker_for: Any = getattr(answerer, "speaker_for", None)
        self._held: dict[str, Session] = {}
        self._loading: dict[str, asyncio.Lock] = {}

    @property
    def keys(self) -> list[str]:
        """The conversations that are held."""
        return list(self._held)

    async def session(self, key: str, platform: str = "") -> Session:
        """The session of a conversation, as it was left or new.

        Raises:
            StoreError: it cannot be read.
        """
        if key in self._held:
            return self._held[key]
        async with self._loading.setdefault(key, asyncio.Lock()):
            if key not in self._held:
                id = session_id(key, await self._mailbox.generation(key))
                found = await asyncio.to_thread(self._sessions.load, id)
                self._held[key] = found or Session(id, key=key, platform=platform or address_of(key).channel)
            self._loading.pop(key, None)
        return self._held[key]

    async def save(self, session: Session) -> None:
        """Keep a session.

        Raises:
            StoreError: it cannot be kept.
        """
        await asyncio.to_thread(self._sessions.save, session)

    async def renew(self, key: str) -> Session:
        """Begin another session, with the same personality; the old one stays where it is."""
        old = await self.session(key)
        id = session_id(key, await self._mailbox.generation(key, next=True))
        self._held[key] = Session(id, key=key, platform=old.platform, personality_id=old.personality_id)
        await self.save(self._held[key])
        return self._held[key]

    def forget(self, key: str) -> None:
        """Hold a session no longer."""
        self._held.pop(key, None)

    def plugins(self, session: Session) -> Iterable[str] | None:
        """The plugins whose hooks take part in a session; ``None`` for all."""
        found: Iterable[str] | None = None if self._plugins_for is None else self._plugins_for(session)
        return found

    def speaker(self, session: Session) -> str:
        """Who speaks in a session, as people are shown it; empty if nobody says."""
        return "" if self._speaker_for is None else str(self._speaker_for(session) or "")
