"""A session as stores write it down."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from ..base.frozen import EMPTY, Frozen
from ..kernel.values import Message
from ..run.session import Session
from .errors import StoreError

VERSION = 1
"""The version of the format."""

_MAX_TITLE = 80


class SessionSummary(Frozen, frozen=True):
    """A stored session at a glance; ``problem`` says why it cannot be loaded, if so."""

    id: str
    messages: int = 0
    saved_at: float = 0.0
    title: str = ""
    problem: str = ""


class SessionRecord(Frozen, frozen=True):
    """Everything that makes up a session."""

    version: int
    id: str
    saved_at: float = 0.0
    key: str = ""
    platform: str = ""
    personality_id: str = ""
    started: bool = True
    metadata: Any = EMPTY
    messages: Sequence[Message] = ()

    @classmethod
    def taken(cls, session: Session) -> SessionRecord:
        """A session as it is now."""
        messages, metadata = session.snapshot()
        return cls(
            VERSION, session.id, time.time(), session.key, session.platform, session.personality_id,
            session.started, metadata, messages,
        )  # fmt: skip

    @classmethod
    def read(cls, data: bytes, where: str) -> SessionRecord:
        """The record that was written as ``data``; ``where`` names its place in messages.

        Raises:
            StoreError: it cannot be read.
        """
        try:
            version = msgspec.json.decode(data, type=_Version).version
            if version <= VERSION:
                return cls.from_json(data)
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise StoreError(f"{where} cannot be read ({error}): mend it or move it away") from error
        raise StoreError(f"{where} was written by a newer Hookline (format {version}): update Hookline")

    def session(self) -> Session:
        """The session again."""
        session = Session(
            self.id, self.messages, self.metadata, key=self.key, platform=self.platform,
            personality_id=self.personality_id,
        )  # fmt: skip
        if self.started:
            session.first_run()
        return session

    def summary(self, problem: str = "") -> SessionSummary:
        """The session at a glance."""
        said = next((message.content for message in self.messages if message.role == "user"), "")
        return SessionSummary(self.id, len(self.messages), self.saved_at, " ".join(said.split())[:_MAX_TITLE], problem)


class _Version(msgspec.Struct):
    version: int


def checked_id(id: str) -> str:
    """An id that a session can be stored under.

    Raises:
        StoreError: it is empty, or not valid text.
    """
    if not id:
        raise StoreError("a session without an id cannot be stored: give it one")
    try:
        id.encode()
    except UnicodeEncodeError:
        raise StoreError(f"the session id {id!r:.80} is not valid text: use another") from None
    return id
