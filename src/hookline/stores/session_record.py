"""A session as stores write it down."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from itertools import takewhile
from typing import Any

import msgspec

from .._base.frozen import EMPTY, Frozen, History
from .._kernel.values import Message
from .._run.session import Session, news
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
    personality_changes: Any = EMPTY
    started: bool = True
    metadata: Any = EMPTY
    messages: Sequence[Message] = ()

    @classmethod
    def read(cls, data: bytes, where: str, advice: str) -> SessionRecord:
        """The record that was written as ``data``; ``where`` names its place in messages, ``advice`` says what to do.

        Raises:
            StoreError: it cannot be read.
        """
        try:
            version = msgspec.json.decode(data, type=_Version).version
            if version <= VERSION:
                return cls.from_json(data)
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise StoreError(f"{where} cannot be read ({error}): {advice}") from error
        raise StoreError(f"{where} was written by a newer Hookline (format {version}): update Hookline")

    def session(self, place: Any) -> Session:
        """The session again, as it is stored at ``place``."""
        session = Session(
            self.id, self.messages, self.metadata, key=self.key, platform=self.platform,
            personality_id=self.personality_id, personality_changes=self.personality_changes,
        )  # fmt: skip
        if self.started:
            session.first_run()
        session.settle(place, session.messages, session.messages)
        return session

    def summary(self, problem: str = "") -> SessionSummary:
        """The session at a glance."""
        said = next((message.content for message in self.messages if message.role == "user"), "")
        return SessionSummary(self.id, len(self.messages), self.saved_at, " ".join(said.split())[:_MAX_TITLE], problem)


@contextmanager
def saving(session: Session, place: Any) -> Iterator[Callable[[SessionRecord | None], bytes]]:
    """Save a session at ``place``: call what this gives with the record that is there, and write what that gives.

    When the block is left without an error, the session holds what was written.
    """
    with session._saving:
        taken, metadata = session.snapshot()
        merged, started, data = taken, session.started, b""

        def merge(stored: SessionRecord | None) -> bytes:
            nonlocal merged, started, data
            if stored is not None:
                merged, started = _merged(session, place, taken, stored.messages), started or stored.started
            data = SessionRecord(
                VERSION, session.id, time.time(), session.key, session.platform, session.personality_id,
                session.personality_changes, started, metadata, merged,
            ).to_json()  # fmt: skip
            return data

        yield merge
        session.settle(place, taken, merged)
        session._written[place] = sha256(data).digest(), started


def as_written(session: Session, place: Any, data: bytes) -> SessionRecord | None:
    """The record at ``place``, unread, if it is still what this session wrote there last."""
    digest, started = session._written.get(place, (b"", True))
    if digest != sha256(data).digest():
        return None
    return SessionRecord(VERSION, session.id, started=started, messages=session._stored[place][1])


def _merged(session: Session, place: Any, messages: Sequence[Message], stored: Sequence[Message]) -> Sequence[Message]:
    """The messages of a session, or what is stored and what the session added, if others saved meanwhile."""
    own, known = session._stored.get(place) or [_common(session._given, stored)] * 2
    if list(own) == list(known) == list(stored):
        return messages
    return History((*stored, *news(own, messages)))


def _common(one: Sequence[Message], other: Sequence[Message]) -> Sequence[Message]:
    """What both begin with."""
    return [message for message, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))]


class _Version(msgspec.Struct):
    version: int


def id_of(session: Session) -> str:
    """The id that a session is stored under.

    Raises:
        TypeError: it is not a session.
        StoreError: the id is empty, or not valid text.
    """
    if not isinstance(session, Session):
        raise TypeError(f"save() takes a Session, not {type(session).__name__}: save(Session(id, messages))")
    return checked_id(session.id)


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
