"""The sessions of conversations, and who takes part in them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable
from functools import lru_cache
from hashlib import sha256
from typing import Any

from .._base.text import describe
from .._kernel.points import Point
from .._kernel.results import Verdict
from .._run.context import AgentContext
from .._run.session import Session
from ..stores.mailbox import Mailbox
from ..stores.sessions import SessionStore
from .protocol import Address, Answerer

log = logging.getLogger("hookline")


def key_of(address: Address) -> str:
    """The key of a conversation: no two addresses have the same."""
    return json.dumps([address.channel, address.bot, address.chat_id, address.thread_id])


@lru_cache(4096)
def address_of(key: str) -> Address:
    """The address that a key was made of."""
    channel, bot, chat, thread = json.loads(key)
    return Address(channel, chat, thread, bot)


def session_id(key: str, generation: int = 0) -> str:
    """The id of a conversation's session, safe as the name of a file; each ``generation`` has its own."""
    channel = "".join(c if c.isascii() and c.isalnum() else "-" for c in address_of(key).channel)[:20]
    return f"{channel}-{sha256(key.encode()).hexdigest()[:32]}" + (f"-{generation}" if generation else "")


def place(key: str) -> str:
    """A conversation in words, for logs: the channel and the chat."""
    address = address_of(key)
    return f"{address.channel}, chat {address.chat_id!r:.80}" + (
        f", {address.thread_id!r:.80}" if address.thread_id else ""
    )


class Conversations:
    """Sessions by the key of their conversation: loaded when one is needed, held while it goes on."""

    def __init__(self, answerer: Answerer, mailbox: Mailbox, sessions: SessionStore) -> None:
        self._mailbox, self._sessions = mailbox, sessions
        self._hooks: Any = answerer.hooks
        self._hooks_for: Callable[[Session], Any] = getattr(answerer, "hooks_for", lambda session: answerer.hooks)
        allowed = getattr(answerer, "allowed_plugins", None)
        self._plugins_for: Callable[[Session], Any] = getattr(answerer, "plugins_for", lambda session: allowed)
        self._speaker_for: Callable[[Session], Any] = getattr(answerer, "speaker_for", lambda session: "")
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
        self._held[key] = Session(
            id, key=key, platform=old.platform, personality_id=old.personality_id,
            personality_changes=old.personality_changes,
        )  # fmt: skip
        await self.save(self._held[key])
        return self._held[key]

    def forget(self, key: str) -> None:
        """Hold a session no longer."""
        self._held.pop(key, None)

    async def fire(self, session: Session | None, point: Point[Any], payload: Any) -> Verdict:
        """Fire a point of a conversation: hooks and plugins of whoever speaks in it take part; all if it is ``None``.

        Raises:
            HookError: a hook failed closed.
        """
        hooks, allowed = (self._hooks, None) if session is None else self._taking_part(session)
        ctx = AgentContext(session=session, allowed_plugins=None if allowed is None else tuple(allowed))
        verdict: Verdict = await hooks.fire(point, payload, ctx=ctx, allowed_plugins=ctx.allowed_plugins)
        return verdict

    def _taking_part(self, session: Session) -> tuple[Any, Iterable[str] | None]:
        try:
            return self._hooks_for(session), self._plugins_for(session)
        except Exception as error:  # noqa: BLE001 - nobody may be able to speak in it, but people can be told so
            log.error("%s: %s", place(session.key), describe(error))
            return self._hooks, None

    def speaker(self, session: Session) -> str:
        """Who speaks in a session, as people are shown it; empty if nobody says."""
        try:
            return str(self._speaker_for(session) or "")
        except Exception as error:  # noqa: BLE001 - a name is not worth a message
            log.error("%s: %s", place(session.key), describe(error))
            return ""
