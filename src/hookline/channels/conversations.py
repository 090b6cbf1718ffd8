"""Conversations of a gateway: their keys, their sessions, and the hooks that take part in them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable
from functools import lru_cache
from hashlib import sha256
from typing import Any

from .._base.text import describe
from .._kernel.points import ON_RUN_END, Point
from .._kernel.results import Verdict
from .._run.context import AgentContext
from .._run.session import Session
from .._web.chat.protocol import Speaker
from ..stores.channel_points import BEFORE_DISPATCH, MESSAGE_SENDING
from ..stores.mailbox import Mailbox
from ..stores.sessions import SessionStore, was_saved
from .protocol import Address, Answerer, Opening

log = logging.getLogger("hookline")

DEFAULT_PERSONALITY = "default"
"""How the command ``/personality`` names the agent without a personality."""


def key_of(address: Address) -> str:
    """Return the key of a conversation, unique for each address."""
    return json.dumps([address.channel, address.bot, address.chat_id, address.thread_id])


@lru_cache(4096)
def address_of(key: str) -> Address:
    """Return the address that a key was made from."""
    channel, bot, chat, thread = json.loads(key)
    return Address(channel, chat, thread, bot)


def label_of(key: str) -> str:
    """Return channel and chat of a conversation, for log messages."""
    address = address_of(key)
    thread = f", {address.thread_id!r:.80}" if address.thread_id else ""
    return f"{address.channel}, chat {address.chat_id!r:.80}{thread}"


def session_id(key: str, generation: int = 0) -> str:
    """Return the session id of a conversation, safe as a file name. ``/new`` starts the next ``generation``."""
    channel = "".join(c if c.isascii() and c.isalnum() else "-" for c in address_of(key).channel)[:20]
    return f"{channel}-{sha256(key.encode()).hexdigest()[:32]}" + (f"-{generation}" if generation else "")


def opening_of(answerer: Any) -> Opening:
    """Return what channels can show before a conversation with an agent or a roster begins."""
    first: str = getattr(answerer, "first", "")
    personalities: dict[str, Any] = getattr(answerer, "personalities", {})
    agent = answerer[first] if first in personalities else getattr(answerer, "base", answerer)
    speakers = [
        Speaker(id, each.display_name, each.description, answerer[id].suggestions)
        for id, each in sorted(personalities.items(), key=lambda item: (item[0] != first, item[0]))
    ]
    if speakers and not first and DEFAULT_PERSONALITY not in personalities:
        speakers.insert(0, Speaker(DEFAULT_PERSONALITY, agent.name, agent.description, agent.suggestions))
    return Opening(getattr(agent, "description", ""), getattr(agent, "suggestions", ()), tuple(speakers))


class Conversations:
    """Sessions by conversation key: loaded when first needed and cached while the conversation is active."""

    def __init__(self, answerer: Answerer, mailbox: Mailbox, sessions: SessionStore) -> None:
        self._mailbox = mailbox
        self._store = sessions
        self._hooks: Any = answerer.hooks
        self._hooks_for: Callable[[Session], Any] = getattr(answerer, "hooks_for", lambda session: answerer.hooks)
        allowed = getattr(answerer, "allowed_plugins", None)
        self._plugins_for: Callable[[Session], Any] = getattr(answerer, "plugins_for", lambda session: allowed)
        self._speaker_for: Callable[[Session], Any] = getattr(answerer, "speaker_for", lambda session: "")
        self._agent_for: Callable[[Session], Any] = getattr(answerer, "agent_for", lambda session: answerer)
        self._cached: dict[str, Session] = {}
        self._loading: dict[str, asyncio.Lock] = {}

    @property
    def keys(self) -> list[str]:
        """Conversations with a cached session."""
        return list(self._cached)

    async def session(self, key: str, platform: str = "") -> Session:
        """Return the session of a conversation: cached, loaded from the store, or new.

        Raises:
            StoreError: the session cannot be read.
        """
        if key in self._cached:
            return self._cached[key]
        async with self._loading.setdefault(key, asyncio.Lock()):
            if key not in self._cached:
                id = session_id(key, await self._mailbox.generation(key))
                found = await asyncio.to_thread(self._store.load, id)
                self._cached[key] = found or Session(id, key=key, platform=platform or address_of(key).channel)
            self._loading.pop(key, None)
        return self._cached[key]

    async def exists(self, key: str) -> bool:
        """Whether the agent has taken part in a conversation.

        Raises:
            StoreError: the session cannot be read.
        """
        session = self._cached.get(key)
        if session is None:
            id = session_id(key, await self._mailbox.generation(key))
            session = await asyncio.to_thread(self._store.load, id)
        return session is not None and bool(session.messages)

    async def save(self, session: Session) -> None:
        """Save a session.

        Raises:
            StoreError: the session cannot be written.
        """
        await asyncio.to_thread(self._store.save, session)

    async def save_once(self, session: Session, before: int) -> None:
        """Save a session that began with ``before`` messages, unless another process did so just before it ended.

        Raises:
            StoreError: the session cannot be read or written.
        """
        if await asyncio.to_thread(was_saved, self._store, session, before):
            self.forget(session.key)  # the stored one knows what is stored
        else:
            await self.save(session)

    def replace(self, key: str, session: Session) -> None:
        """Let a conversation have this session from now on."""
        self._cached[key] = session

    async def start_new_session(self, key: str) -> Session:
        """Give the conversation an empty session with the same personality. The old session stays in the store."""
        old = await self.session(key)
        self._cached[key] = session = Session(
            session_id(key, await self._mailbox.generation(key, next=True)),
            key=key,
            platform=old.platform,
            personality_id=old.personality_id,
            personality_changes=old.personality_changes,
            handed_over_by=old.handed_over_by,
        )
        await self.save(session)
        return session

    def forget(self, key: str) -> None:
        """Remove a session from the cache."""
        self._cached.pop(key, None)

    async def fire(self, session: Session | None, point: Point[Any], payload: Any) -> Verdict:
        """Fire a point with the hooks and plugins of the session's agent, or with all hooks if there is no session.

        Raises:
            HookError: a hook failed closed.
        """
        hooks, allowed = (self._hooks, None) if session is None else self._participants(session)
        ctx = AgentContext(session=session, allowed_plugins=None if allowed is None else tuple(allowed))
        verdict: Verdict = await hooks.fire(point, payload, ctx=ctx, allowed_plugins=ctx.allowed_plugins)
        return verdict

    def judges_replies(self, session: Session) -> bool:
        """Whether a hook may reject, change or withhold a reply, so that people must not see it before.

        This holds for an agent with ``stream="live"`` too, which shows text to programs that can take it back.
        """
        hooks, allowed = self._participants(session)
        stack = hooks.stack.only(allowed)
        changes = stack.holds_text or stack.may_change_text(ON_RUN_END)
        return changes or any(stack.at(point) for point in (MESSAGE_SENDING, BEFORE_DISPATCH))

    def _participants(self, session: Session) -> tuple[Any, Iterable[str] | None]:
        try:
            return self._hooks_for(session), self._plugins_for(session)
        except Exception as error:  # noqa: BLE001 - a missing personality must not prevent the error notice
            log.error("%s: the hooks of this conversation are unknown: %s", label_of(session.key), describe(error))
            return self._hooks, None

    def agent(self, session: Session) -> Any:
        """Return the agent that answers in a session: it knows its model and its limits.

        Raises:
            ConfigError: the changes made for this session are no longer valid.
        """
        return self._agent_for(session)

    def speaker(self, session: Session) -> str:
        """Return display name of the agent that answers in a session; empty if the answerer has none."""
        try:
            return str(self._speaker_for(session) or "")
        except Exception as error:  # noqa: BLE001 - a message without a name is better than no message
            log.error("%s: the speaker of this conversation is unknown: %s", label_of(session.key), describe(error))
            return ""
