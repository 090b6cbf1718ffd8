"""The file of a gateway: its tables, and the messages that are not done with as they are kept there."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from .errors import StoreError
from .messages import InboundMessage, OutboundMessage
from .sqlite import Database

_SCHEMA = (
    "CREATE TABLE programs (id TEXT PRIMARY KEY, host TEXT, pid INTEGER, born REAL, until REAL)",
    """CREATE TABLE conversations (
        key TEXT PRIMARY KEY, owner TEXT, generation INTEGER NOT NULL DEFAULT 0
    )""",
    """CREATE TABLE inbox (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, identity TEXT NOT NULL UNIQUE, key TEXT NOT NULL, channel TEXT NOT NULL,
        message TEXT NOT NULL, at REAL NOT NULL, state TEXT NOT NULL, holder TEXT NOT NULL,
        tries INTEGER NOT NULL DEFAULT 0, base INTEGER
    )""",
    "CREATE INDEX inbox_open ON inbox (key, seq) WHERE state = 'waiting'",
    "CREATE INDEX inbox_done ON inbox (at) WHERE state = 'done'",
    """CREATE TABLE outbox (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL, channel TEXT NOT NULL, message TEXT NOT NULL,
        token TEXT NOT NULL UNIQUE, notice INTEGER NOT NULL, at REAL NOT NULL, state TEXT NOT NULL,
        holder TEXT NOT NULL, tries INTEGER NOT NULL DEFAULT 0, due REAL NOT NULL DEFAULT 0,
        message_id TEXT, problem TEXT
    )""",
    "CREATE INDEX outbox_open ON outbox (key, seq) WHERE state IN ('waiting', 'sending')",
    "CREATE INDEX outbox_done ON outbox (at) WHERE state IN ('sent', 'failed')",
    """CREATE TABLE people (
        channel TEXT NOT NULL, sender TEXT NOT NULL, since REAL NOT NULL, PRIMARY KEY (channel, sender)
    )""",
    """CREATE TABLE codes (
        channel TEXT NOT NULL, sender TEXT NOT NULL, salt BLOB NOT NULL, hash BLOB NOT NULL, until REAL NOT NULL,
        PRIMARY KEY (channel, sender)
    )""",
)


def gateway_database(path: str | os.PathLike[str]) -> Database:
    """The file of a gateway: what came in, what is to leave, and who may talk to it."""
    return Database(path, holds="messages", mark=0x486B4C47, version=1, schema=_SCHEMA, durable=True)


class Lost(StoreError):
    """The conversation is another program's now, which took this one for dead."""


class Letter(msgspec.Struct, frozen=True):
    """A message that came in and is not answered yet.

    ``tries`` is how often its run was begun, ``base`` how many messages the transcript had then. ``recovered``: it
    was accepted by a program, or at a time, that is gone.
    """

    seq: int
    key: str
    channel: str
    message: InboundMessage
    tries: int = 0
    base: int | None = None
    recovered: bool = False


class Parcel(msgspec.Struct, frozen=True):
    """A message that is to leave. ``in_doubt``: it may have left already, when its program ended."""

    seq: int
    key: str
    channel: str
    message: OutboundMessage
    token: str
    notice: bool
    at: float
    tries: int = 0
    due: float = 0.0
    in_doubt: bool = False


class Open(msgspec.Struct, frozen=True):
    """What there is to do in a conversation; ``new`` is whether the message that was accepted was not known."""

    letters: Sequence[Letter] = ()
    parcels: Sequence[Parcel] = ()
    new: bool = True
