"""Messages that came in and messages that are to leave, in one SQLite file, which several programs may share."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from socket import gethostname
from typing import Any, TypeVar

import msgspec

from .errors import StoreError
from .messages import InboundMessage, OutboundMessage
from .processes import born, is_there
from .sqlite import Database, GroupCommit, storable

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


T = TypeVar("T")

LEASE = 30.0
"""Seconds after which the conversations of a program that has not been heard of are others' to take."""

KEEP_DAYS = 7.0
"""How long messages that are done with are known, so that one that is delivered again is not answered again.

Their texts are not kept.
"""

_LIVE = "SELECT id FROM programs WHERE until > ?"
_UNSENT = "state IN ('waiting', 'sending')"
_OPEN = f"""(SELECT key, channel, holder FROM inbox WHERE state = 'waiting'
    UNION ALL SELECT key, channel, holder FROM outbox WHERE {_UNSENT}) JOIN conversations USING (key)"""
_LEFT = "SELECT count(*) FROM inbox JOIN conversations USING (key) WHERE state = 'waiting' AND owner = ?"
_ABANDONED = f"SELECT DISTINCT key, channel FROM {_OPEN} WHERE owner IS NULL OR owner NOT IN ({_LIVE})"
_LEFT_OVER = f"""SELECT channel, sum(what = 'in'), sum(what = 'out') FROM (
    SELECT key, channel, 'in' AS what FROM inbox WHERE state = 'waiting'
    UNION ALL SELECT key, channel, 'out' FROM outbox WHERE {_UNSENT}
    ) JOIN conversations USING (key) WHERE owner IS NULL OR owner NOT IN ({_LIVE}) GROUP BY channel ORDER BY channel"""
_HANDED_IN = f"SELECT DISTINCT key, channel FROM {_OPEN} WHERE owner = ? AND holder != ?"


class Mailbox:
    """Keeps what came in until it is answered, and what is to leave until it left.

    A conversation belongs to one program at a time, which alone answers and sends in it: to the one that accepted a
    message of it first. A program that ends, or is not heard of for ``lease`` seconds, loses its conversations to the
    others. Everything is done in few transactions, each of which is on disk before it counts.

    Args:
        path: the file, made when it is first needed; ``:memory:`` forgets with the program.
        lease: see above.
        keep_days: how long messages that are done with are known; their texts are not kept.
    """

    def __init__(self, path: str | os.PathLike[str], *, lease: float = LEASE, keep_days: float = KEEP_DAYS) -> None:
        self._commits = GroupCommit(gateway_database(path))
        self._lease, self._keep_days = lease, keep_days
        self._pruned = float("-inf")
        self._me = f"{gethostname()}:{os.getpid()}:{uuid.uuid4().hex}"

    @property
    def path(self) -> str:
        """The file."""
        return self._commits.db.path

    @property
    def database(self) -> Database:
        """The file, as it is opened."""
        return self._commits.db

    async def do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Something else on the same file, in a transaction with what else waits."""
        return await self._commits.do(work)

    async def open(self) -> None:
        """Begin: from here on this program may hold conversations.

        Raises:
            StoreError: the file cannot be used.
        """
        await self.do(self._renew)

    async def close(self) -> int:
        """End: what is not done is others' to take, at once; how many letters that are."""

        def leave(db: sqlite3.Connection) -> int:
            (left,) = db.execute(_LEFT, (self._me,)).fetchone()
            db.execute("UPDATE conversations SET owner = NULL WHERE owner = ?", (self._me,))
            db.execute("DELETE FROM programs WHERE id = ?", (self._me,))
            return int(left)

        try:
            return await self.do(leave)
        finally:
            await self._commits.close()

    async def abandon(self) -> None:
        """Close the file and leave everything as it is, as a program does that is killed."""
        await self._commits.close()

    async def accept(
        self, key: str, channel: str, message: InboundMessage, *, done: bool = False,
        replies: Sequence[OutboundMessage] = (),
    ) -> Open:  # fmt: skip
        """Keep a message that came in, if it is not known, and tell what there is to do in its conversation now.

        Args:
            key: the conversation's.
            channel: the name of the channel it came through.
            message: the message.
            done: nobody is to answer it.
            replies: what is to be sent instead.

        Raises:
            StoreError: it could not be kept.
        """
        identity = json.dumps([channel, message.bot, message.chat_id, message.message_id])
        data = _dumped(message)

        def keep(db: sqlite3.Connection) -> Open:
            now = time.time()
            mine = self._is_mine(db, key)
            row = db.execute(
                "INSERT INTO inbox (identity, key, channel, message, at, state, holder) VALUES (?, ?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (identity) DO NOTHING RETURNING seq",
                (
                    identity,
                    key,
                    channel,
                    "" if done else data,
                    now,
                    "done" if done else "waiting",
                    self._me if mine else "",
                ),
            ).fetchone()
            if row is None:
                return Open(new=False)
            mine = mine or self._claim(db, key, now)
            parcels = self._insert(db, key, channel, replies, notice=True, mine=mine)
            if not mine:
                return Open()
            return Open(self._letters(db, key, row[0]), [*self._parcels(db, key), *parcels])

        return await self.do(keep)

    async def begin(self, letter: Letter, base: int) -> None:
        """A run for this letter begins, on a transcript of ``base`` messages.

        Raises:
            Lost: it is another program's now.
            StoreError: the file cannot be used.
        """

        def mark(db: sqlite3.Connection) -> None:
            self._still_mine(db, letter.key)
            self._change(db, letter, "inbox SET tries = tries + 1, base = ?", base)

        await self.do(mark)

    async def begun_for_nothing(self, letter: Letter) -> None:
        """The run for this letter was broken off, which is not the letter's fault."""
        await self.do(lambda db: self._change(db, letter, "inbox SET tries = ?, base = NULL", letter.tries))

    async def answer(
        self, key: str, channel: str, letters: Iterable[Letter], replies: Sequence[OutboundMessage] = (), *,
        notice: bool = False,
    ) -> Sequence[Parcel]:  # fmt: skip
        """Keep the replies, and be done with the letters: both or neither.

        Raises:
            Lost: the conversation is another program's now, or was: then that one has the letters.
            StoreError: the file cannot be used.
        """
        done = list(letters)

        def keep(db: sqlite3.Connection) -> Sequence[Parcel]:
            self._still_mine(db, key)
            for letter in done:
                self._change(db, letter, "inbox SET state = 'done', message = ''")
            return self._insert(db, key, channel, replies, notice=notice)

        return await self.do(keep)

    async def sending(self, parcel: Parcel) -> None:
        """A parcel is about to be sent.

        Raises:
            Lost: the conversation is another program's now.
            StoreError: the file cannot be used.
        """

        def mark(db: sqlite3.Connection) -> None:
            self._still_mine(db, parcel.key)
            self._change(db, parcel, "outbox SET state = 'sending', tries = tries + 1")

        await self.do(mark)

    async def sent(self, parcel: Parcel, message_id: str) -> None:
        """A parcel left, and the platform knows it by this id, whoever has it now."""
        await self.do(
            lambda db: db.execute(
                "UPDATE outbox SET state = 'sent', message_id = ?, message = '' WHERE seq = ?",
                (storable(message_id), parcel.seq),
            )
        )

    async def failed(self, parcel: Parcel, problem: str) -> None:
        """A parcel will never leave.

        Raises:
            Lost: another program has it now.
            StoreError: the file cannot be used.
        """
        change = "outbox SET state = 'failed', problem = ?"
        await self.do(lambda db: self._change(db, parcel, change, storable(problem)))

    async def postpone(self, parcel: Parcel, due: float, problem: str) -> None:
        """A parcel did not leave, and is to be sent at that Unix time.

        Raises:
            Lost: another program has it now.
            StoreError: the file cannot be used.
        """
        change = "outbox SET state = 'waiting', due = ?, problem = ?"
        await self.do(lambda db: self._change(db, parcel, change, due, storable(problem)))

    async def look_around(self, channels: Iterable[str]) -> Open:
        """Be heard of; take over what there is to do, on these channels, that nobody else does.

        Raises:
            StoreError: the file cannot be used.
        """
        ours = set(channels)

        def look(db: sqlite3.Connection) -> Open:
            now = time.time()
            self._renew(db)
            self._bury(db, now)
            letters: list[Letter] = []
            parcels: list[Parcel] = []
            for key, channel in db.execute(_ABANDONED, (now,)).fetchall():
                if channel in ours:
                    self._claim(db, key, now)
            for key, channel in db.execute(_HANDED_IN, (self._me, self._me)).fetchall():
                if channel in ours:
                    letters += self._letters(db, key)
                    parcels += self._parcels(db, key)
            if time.monotonic() > self._pruned + 3600:
                self._prune(db, now)
                self._pruned = time.monotonic()
            return Open(letters, parcels)

        return await self.do(look)

    async def release(self, keys: Iterable[str]) -> set[str]:
        """Give conversations back in which there is nothing left to do; which are not this program's then.

        Raises:
            StoreError: the file cannot be used.
        """
        given = list(keys)

        def give(db: sqlite3.Connection) -> set[str]:
            for key in given:
                db.execute(
                    "UPDATE conversations SET owner = NULL WHERE key = ?1 AND owner = ?2 "
                    "AND NOT EXISTS (SELECT 1 FROM inbox WHERE key = ?1 AND state = 'waiting') "
                    f"AND NOT EXISTS (SELECT 1 FROM outbox WHERE key = ?1 AND {_UNSENT})",
                    (key, self._me),
                )
            return {key for key in given if not self._is_mine(db, key)}

        return await self.do(give)

    async def leave(self, channel: str) -> None:
        """Hold nothing of a channel any more: what is not done there is others' to take, or ours at a later look.

        Raises:
            StoreError: the file cannot be used.
        """

        def give(db: sqlite3.Connection) -> None:
            for table, still in (("inbox", "state = 'waiting'"), ("outbox", _UNSENT)):
                db.execute(f"UPDATE {table} SET holder = '' WHERE channel = ? AND {still}", (channel,))
            db.execute(
                "UPDATE conversations SET owner = NULL WHERE owner = ?1 AND key IN "
                "(SELECT key FROM inbox WHERE channel = ?2 UNION SELECT key FROM outbox WHERE channel = ?2)",
                (self._me, channel),
            )

        await self.do(give)

    async def left_over(self, channels: Iterable[str]) -> dict[str, tuple[int, int]]:
        """How many letters and parcels wait on other channels than these, and for no program that runs.

        Raises:
            StoreError: the file cannot be used.
        """
        ours = set(channels)

        def count(db: sqlite3.Connection) -> dict[str, tuple[int, int]]:
            rows = db.execute(_LEFT_OVER, (time.time(),)).fetchall()
            return {channel: (letters, parcels) for channel, letters, parcels in rows if channel not in ours}

        return await self.do(count)

    async def generation(self, key: str, *, next: bool = False) -> int:
        """How many sessions the conversation has had before this one; with ``next``, one more from now on."""

        def count(db: sqlite3.Connection) -> int:
            if next:
                db.execute("UPDATE conversations SET generation = generation + 1 WHERE key = ?", (key,))
            row = db.execute("SELECT generation FROM conversations WHERE key = ?", (key,)).fetchone()
            return row[0] if row else 0

        return await self.do(count)

    def _change(self, db: sqlite3.Connection, which: Letter | Parcel, change: str, *values: Any) -> None:
        """Change a letter or a parcel that is not done with, and that no other program has taken meanwhile."""
        where = f"seq = ? AND holder = ? AND {_UNSENT}"
        if not db.execute(f"UPDATE {change} WHERE {where}", (*values, which.seq, self._me)).rowcount:
            raise Lost(f"another program has taken over a message of the conversation {which.key}")

    def _renew(self, db: sqlite3.Connection) -> None:
        db.execute(
            "INSERT OR REPLACE INTO programs VALUES (?, ?, ?, ?, ?)",
            (self._me, gethostname(), os.getpid(), born(os.getpid()), time.time() + self._lease),
        )

    def _bury(self, db: sqlite3.Connection, now: float) -> None:
        """Forget the programs that are gone; the clock, which may be set, does not tell which of this machine are."""
        for id, host, pid, began, until in db.execute("SELECT * FROM programs").fetchall():
            here = host == gethostname() and sys.platform != "win32"
            if until <= now or (here and not (is_there(pid) and born(pid) == began)):
                db.execute("DELETE FROM programs WHERE id = ?", (id,))

    def _claim(self, db: sqlite3.Connection, key: str, now: float) -> bool:
        return bool(
            db.execute(
                "INSERT INTO conversations (key, owner) VALUES (?, ?) ON CONFLICT (key) DO UPDATE "
                f"SET owner = excluded.owner WHERE owner IS NULL OR owner NOT IN ({_LIVE})",
                (key, self._me, now),
            ).rowcount
        )

    def _is_mine(self, db: sqlite3.Connection, key: str) -> bool:
        row = db.execute("SELECT owner FROM conversations WHERE key = ?", (key,)).fetchone()
        return row is not None and row[0] == self._me

    def _still_mine(self, db: sqlite3.Connection, key: str) -> None:
        if not self._is_mine(db, key):
            raise Lost(f"another program has taken over the conversation {key}")

    def _letters(self, db: sqlite3.Connection, key: str, new: int = 0) -> list[Letter]:
        """The letters of a conversation that this program does not hold yet, and the ``new`` one."""
        rows = db.execute(
            "SELECT seq, channel, message, tries, base, holder FROM inbox "
            "WHERE key = ? AND state = 'waiting' AND (holder != ? OR seq = ?) ORDER BY seq",
            (key, self._me, new),
        ).fetchall()
        if any(row[-1] != self._me for row in rows):
            db.execute("UPDATE inbox SET holder = ? WHERE key = ? AND state = 'waiting'", (self._me, key))
        return [
            Letter(seq, key, channel, InboundMessage.of(json.loads(message)), tries, base, recovered=seq != new)
            for seq, channel, message, tries, base, _ in rows
        ]

    def _parcels(self, db: sqlite3.Connection, key: str) -> list[Parcel]:
        """The parcels of a conversation that this program does not hold yet."""
        rows = db.execute(
            "SELECT seq, channel, message, token, notice, at, tries, due, state FROM outbox "
            f"WHERE key = ? AND {_UNSENT} AND holder != ? ORDER BY seq",
            (key, self._me),
        ).fetchall()
        if rows:
            db.execute(f"UPDATE outbox SET holder = ? WHERE key = ? AND {_UNSENT}", (self._me, key))
        return [
            Parcel(seq, key, channel, OutboundMessage.of(json.loads(message)), token, bool(notice), at, tries, due,
                   in_doubt=state == "sending")
            for seq, channel, message, token, notice, at, tries, due, state in rows
        ]  # fmt: skip

    def _insert(
        self, db: sqlite3.Connection, key: str, channel: str, replies: Sequence[OutboundMessage], *, notice: bool,
        mine: bool = True,
    ) -> list[Parcel]:  # fmt: skip
        parcels, now = [], time.time()
        for message in replies:
            token = uuid.uuid4().hex
            row = db.execute(
                "INSERT INTO outbox (key, channel, message, token, notice, at, state, holder) "
                "VALUES (?, ?, ?, ?, ?, ?, 'waiting', ?)",
                (key, channel, _dumped(message), token, notice, now, self._me if mine else ""),
            )
            parcels.append(Parcel(row.lastrowid or 0, key, channel, message, token, notice, now))
        return parcels

    def _prune(self, db: sqlite3.Connection, now: float) -> None:
        before = (now - self._keep_days * 24 * 3600,)
        db.execute("DELETE FROM inbox WHERE state = 'done' AND at < ?", before)
        db.execute("DELETE FROM outbox WHERE state IN ('sent', 'failed') AND at < ?", before)
        db.execute("DELETE FROM codes WHERE until < ?", (now,))


def _dumped(message: InboundMessage | OutboundMessage) -> str:
    return json.dumps(msgspec.structs.asdict(message))  # pure ASCII: half characters of a platform survive too
