"""Chat messages and files of channels whose platform does not store them, in one SQLite file."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import msgspec

from .database import open_database
from .sql import Connection, Schema, storable

MAX_MESSAGES = 500
"""Maximum number of messages per chat."""
KEEP_DAYS = 30.0
"""Days that a message is kept."""

MAX_FILES = 20
"""Maximum number of files per chat. They are kept for a day: an agent that has read a file has it in its session."""
MAX_FILE_BYTES = 1_000_000_000
"""Maximum number of bytes of all files."""

_FILES = """CREATE TABLE files (
    channel TEXT NOT NULL, chat TEXT NOT NULL, id TEXT NOT NULL, at REAL NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (channel, chat, id)
)"""
_TABLES = (
    """CREATE TABLE messages (
        seq INTEGER PRIMARY KEY, rev INTEGER NOT NULL, channel TEXT NOT NULL, chat TEXT NOT NULL, side TEXT NOT NULL,
        key TEXT NOT NULL, text TEXT NOT NULL, thread TEXT NOT NULL, reply_to TEXT NOT NULL, at REAL NOT NULL,
        speaker TEXT NOT NULL DEFAULT '', kind TEXT NOT NULL DEFAULT '', UNIQUE (channel, chat, side, key)
    )""",
    "CREATE INDEX by_rev ON messages (channel, rev)",
    "CREATE INDEX by_chat ON messages (channel, chat, rev)",
    "CREATE TABLE counter (last INTEGER NOT NULL)",
    "INSERT INTO counter VALUES (0)",
    _FILES,
)
_UPGRADES = {
    1: ("ALTER TABLE messages ADD COLUMN speaker TEXT NOT NULL DEFAULT ''",),
    2: (_FILES,),
    3: ("ALTER TABLE messages ADD COLUMN kind TEXT NOT NULL DEFAULT ''",),
}
SCHEMA = Schema(
    "chats",
    contents="chats",
    application_id=0x486B4C43,
    version=4,
    statements=_TABLES,
    upgrades=_UPGRADES,
    min_writer=4,
)
_COLUMNS = "seq, rev, side, key, text, thread, reply_to, at, speaker, kind"
_PRUNE_EVERY = 3600.0
_FILE_SECONDS = 86_400.0

Side = Literal["in", "out"]


class ChatMessage(msgspec.Struct, frozen=True):
    """A chat message. ``seq`` is its position in the chat; ``rev`` increases with each change.

    ``side`` is ``in`` for messages of people and ``out`` for messages of agents; ``speaker`` names the agent.
    ``kind`` is empty for a text, and otherwise what the text is, for the channel that wrote it.
    """

    seq: int
    rev: int
    side: Side
    key: str
    text: str
    thread: str
    reply_to: str
    at: float
    speaker: str = ""
    kind: str = ""


class ChatStore:
    """Store the last messages of every chat, so that a client can fetch the messages it missed.

    Args:
        path: the file, created when first used; ``:memory:`` keeps everything in memory; or the
            address of a PostgreSQL database.
        max_messages: maximum number of messages per chat.
        keep_days: days that a message is kept.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, max_messages: int = MAX_MESSAGES, keep_days: float = KEEP_DAYS
    ) -> None:
        self._db = open_database(path, SCHEMA)
        self._max_messages = max_messages
        self._keep_seconds = keep_days * 86_400
        self._pruned = 0.0
        self.clean: Callable[[str], str] = str
        """Replaces what must not be stored in the texts of messages."""

    @property
    def path(self) -> str:
        """Path of the file."""
        return self._db.path

    def add(
        self,
        channel: str,
        chat: str,
        key: str,
        text: str,
        *,
        side: Side = "out",
        thread: str = "",
        reply_to: str = "",
        speaker: str = "",
        kind: str = "",
    ) -> tuple[int, bool]:
        """Store a message unless the chat has one with the same ``side`` and ``key``.

        Returns:
            The ``seq`` of the message, and whether it is new.

        Raises:
            StoreError: the message cannot be stored.
        """
        now, text = time.time(), self.clean(text)
        with self._db.transaction(write=True) as db:
            found = db.execute(
                "SELECT seq FROM messages WHERE channel = ? AND chat = ? AND side = ? AND key = ?",
                (channel, chat, side, key),
            ).fetchone()
            if found is not None:
                return int(found[0]), False
            seq = _next(db)
            row = (seq, seq, channel, chat, side, key, storable(text), thread, reply_to, now, storable(speaker), kind)
            columns = "seq, rev, channel, chat, side, key, text, thread, reply_to, at, speaker, kind"
            db.execute(f"INSERT INTO messages ({columns}) VALUES ({', '.join('?' * len(row))})", row)
            db.execute(
                "DELETE FROM messages WHERE channel = ? AND chat = ? AND seq <= ("
                "SELECT seq FROM messages WHERE channel = ? AND chat = ? ORDER BY seq DESC LIMIT 1 OFFSET ?)",
                (channel, chat, channel, chat, self._max_messages),
            )
            if now - self._pruned > _PRUNE_EVERY:
                db.execute("DELETE FROM messages WHERE at < ?", (now - self._keep_seconds,))
                self._pruned = now
        return seq, True

    def edit(self, channel: str, chat: str, seq: int, text: str) -> bool:
        """Change the text of a message; return whether the message still exists.

        Raises:
            StoreError: the change cannot be stored.
        """
        with self._db.transaction(write=True) as db:
            where = (_next(db), storable(self.clean(text)), seq, channel, chat)
            changed = db.execute(
                "UPDATE messages SET rev = ?, text = ? WHERE seq = ? AND channel = ? AND chat = ?", where
            )
            return changed.rowcount > 0

    def find(self, channel: str, chat: str, key: str) -> ChatMessage | None:
        """Return the message of an agent with this key; ``None`` if it is not stored.

        Raises:
            StoreError: the file cannot be used.
        """
        with self._db.transaction() as db:
            row = db.execute(
                f"SELECT {_COLUMNS} FROM messages WHERE channel = ? AND chat = ? AND side = 'out' AND key = ?",
                (channel, chat, key),
            ).fetchone()
        return None if row is None else ChatMessage(*row)

    def since(
        self, channel: str, chat: str, rev: int = 0, *, limit: int = 100, side: Side | None = None
    ) -> Sequence[ChatMessage]:
        """Return messages that were added or changed after the revision ``rev``, in that order.

        Raises:
            StoreError: the file cannot be used.
        """
        with self._db.transaction() as db:
            rows = db.execute(
                f"SELECT {_COLUMNS} FROM messages WHERE channel = ? AND chat = ? AND rev > ? AND side IN (?, ?)"
                " ORDER BY rev LIMIT ?",
                (channel, chat, min(rev, 2**62), *((side, side) if side else get_args(Side)), limit),
            ).fetchall()
        return [ChatMessage(*row) for row in rows]

    def add_file_part(self, channel: str, chat: str, id: str, offset: int, data: bytes) -> int | None:
        """Append a part to a file, if the file ends at ``offset``.

        Returns:
            The size of the file, at which the next part begins; ``None`` if there is no space for the part.

        Raises:
            StoreError: the part cannot be stored.
        """
        now = time.time()
        with self._db.transaction(write=True) as db:
            size = self._file_size(db, channel, chat, id)
            if offset != size:
                return size
            db.execute("DELETE FROM files WHERE at < ?", (now - _FILE_SECONDS,))
            (used,) = db.execute("SELECT coalesce(sum(length(data)), 0) FROM files").fetchone()
            if used + len(data) > MAX_FILE_BYTES:
                return None
            db.execute(
                "INSERT INTO files (channel, chat, id, at, data) VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT (channel, chat, id) DO UPDATE "
                "SET data = CAST(files.data || excluded.data AS BLOB), at = excluded.at",
                (channel, chat, id, now, data),
            )
            db.execute(
                "DELETE FROM files WHERE channel = ? AND chat = ? AND id NOT IN "
                "(SELECT id FROM files WHERE channel = ? AND chat = ? ORDER BY at DESC LIMIT ?)",
                (channel, chat, channel, chat, MAX_FILES),
            )
        return size + len(data)

    def file_size(self, channel: str, chat: str, id: str) -> int:
        """Return the size of a file; 0 if it is not stored.

        Raises:
            StoreError: the file cannot be used.
        """
        with self._db.transaction() as db:
            return self._file_size(db, channel, chat, id)

    def file(self, channel: str, chat: str, id: str) -> bytes | None:
        """Return the content of a file; ``None`` if it is not stored.

        Raises:
            StoreError: the file cannot be used.
        """
        with self._db.transaction() as db:
            row = db.execute(
                "SELECT data FROM files WHERE channel = ? AND chat = ? AND id = ?", (channel, chat, id)
            ).fetchone()
        return None if row is None else bytes(row[0])

    def _file_size(self, db: Connection, channel: str, chat: str, id: str) -> int:
        row = db.execute(
            "SELECT length(data) FROM files WHERE channel = ? AND chat = ? AND id = ?", (channel, chat, id)
        ).fetchone()
        return 0 if row is None else int(row[0])

    def changed(self, channel: str, rev: int) -> tuple[int, Sequence[str]]:
        """Return the newest revision, and the chats of a channel with additions or changes after the revision ``rev``.

        Raises:
            StoreError: the file cannot be used.
        """
        with self._db.transaction() as db:
            (newest,) = db.execute("SELECT last FROM counter").fetchone()
            rows = db.execute("SELECT DISTINCT chat FROM messages WHERE channel = ? AND rev > ?", (channel, rev))
            return int(newest), [row[0] for row in rows]

    def close(self) -> None:
        """Close the file."""
        self._db.close()


def _next(db: Connection) -> int:
    db.execute("UPDATE counter SET last = last + 1")
    return int(db.execute("SELECT last FROM counter").fetchone()[0])
