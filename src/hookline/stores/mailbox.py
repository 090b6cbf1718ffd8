"""The inbox and outbox of a gateway, in one database that several processes may share."""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from socket import gethostname
from typing import Any, TypeVar

import msgspec

from .database import open_database
from .errors import StoreError
from .group_commit import AsyncGroupCommit
from .leases import database_time, pid_exists, process_start
from .messages import InboundMessage, OutboundMessage
from .sql import Connection, Database, Schema, storable, upsert

T = TypeVar("T")

LEASE = 30.0
"""Seconds after which other processes may claim the conversations of a process that has stopped renewing its lease."""

POLL_SECONDS, WATCHED_POLL_SECONDS = 1.0, 5.0
"""Intervals in seconds at which a process looks for items of others: in a file, and where they are announced."""

LEAVE_SECONDS = 10.0
"""Seconds for which a process does not claim a conversation that it has left to others."""

KEEP_DAYS = 7.0
"""Days that the ids of finished messages are kept, so that a redelivered message is not answered again.

Their texts are deleted at once.
"""

_TABLES = (
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

SCHEMA = Schema("gateway", contents="messages", application_id=0x486B4C47, version=1, statements=_TABLES)

_TOPIC = "items"
_STORED_REPLY = "SELECT seq, at, state FROM outbox WHERE token = ?"
_INBOX = "seq, channel, message, tries, base, at"
_LIVE = "SELECT id FROM programs WHERE until > ?"
_PENDING = "state IN ('waiting', 'sending')"
_OPEN = f"""(SELECT key, channel, holder FROM inbox WHERE state = 'waiting'
    UNION ALL SELECT key, channel, holder FROM outbox WHERE {_PENDING}) AS box JOIN conversations USING (key)"""
_MY_INBOX = "SELECT count(*) FROM inbox JOIN conversations USING (key) WHERE state = 'waiting' AND owner = ?"
_ABANDONED = f"SELECT DISTINCT key, channel FROM {_OPEN} WHERE owner IS NULL OR owner NOT IN ({_LIVE})"
_UNCLAIMED = f"""SELECT channel, count(*) FILTER (WHERE box = 'in'), count(*) FILTER (WHERE box = 'out') FROM (
    SELECT key, channel, 'in' AS box FROM inbox WHERE state = 'waiting'
    UNION ALL SELECT key, channel, 'out' FROM outbox WHERE {_PENDING}
    ) AS open JOIN conversations USING (key) WHERE owner IS NULL OR owner NOT IN ({_LIVE})
    GROUP BY channel ORDER BY channel"""
_PROGRAM_ROW = upsert("programs", ("id", "host", "pid", "born", "until"), ("id",))
_ADDED_BY_OTHERS = f"SELECT DISTINCT key, channel FROM {_OPEN} WHERE owner = ? AND holder != ?"


class LeaseLostError(StoreError):
    """Another process has claimed the conversation, because the lease of this process expired."""


class InboxItem(msgspec.Struct, frozen=True):
    """A received message that is not answered yet.

    ``tries`` counts the runs that were started for it, and ``base`` is the number of messages in the transcript when
    the last one started. ``recovered`` is true if the message was accepted by another process or before a restart.
    ``at`` is the Unix time at which it was accepted.
    """

    seq: int
    key: str
    channel: str
    message: InboundMessage
    tries: int = 0
    base: int | None = None
    recovered: bool = False
    at: float = 0.0


class OutboxItem(msgspec.Struct, frozen=True):
    """A message to send.

    ``in_doubt`` is true if a process ended while sending it, so that it may have been sent. ``state`` is set if
    a message with the same token was stored before.
    """

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
    state: str = ""


class PendingItems(msgspec.Struct, frozen=True):
    """Items that this process has to handle.

    ``is_new`` is false if an accepted message was known already. ``claimed`` are the conversations that belong to this
    process only now: others may have continued them before.
    """

    inbox: Sequence[InboxItem] = ()
    outbox: Sequence[OutboxItem] = ()
    is_new: bool = True
    claimed: Sequence[str] = ()


def gateway_database(path: str | os.PathLike[str]) -> Database:
    """Return the database of a gateway: its inbox, its outbox, and the people who may talk to it."""
    return open_database(path, SCHEMA, durable=True)


class Mailbox:
    """Keep received messages until they are answered, and replies until they are sent.

    Each conversation belongs to one process at a time, and only that process answers and sends in it: the process that
    accepted its first message. When a process ends, or does not renew its lease for ``lease`` seconds, other processes
    claim its conversations. The lease is not that of the process (``stores/leases.py``): several gateways may be in one
    process, and one that hangs must lose its conversations, also on the machine of a file. Each change is committed to
    disk before the call returns; concurrent changes share a transaction.

    Args:
        path: the file, created when first used; ``:memory:`` keeps everything in memory; or the
            address of a PostgreSQL database.
        lease: seconds for which a conversation stays claimed without renewal.
        keep_days: days for which finished messages stay known; their texts are deleted at once.

    Example::

        gateway = Gateway(agent, [channel], mailbox=Mailbox("gateway.db"), sessions=SqliteSessionStore("sessions.db"))
    """

    def __init__(self, path: str | os.PathLike[str], *, lease: float = LEASE, keep_days: float = KEEP_DAYS) -> None:
        self._commits = AsyncGroupCommit(gateway_database(path))
        self._lease = lease
        self._keep_days = keep_days
        self._pruned = float("-inf")
        self._left: dict[str, float] = {}
        self._me = f"{gethostname()}:{os.getpid()}:{uuid.uuid4().hex}"

    @property
    def poll_seconds(self) -> float:
        """Interval in seconds at which :meth:`poll` should be called: several times within the lease."""
        return min(WATCHED_POLL_SECONDS if self.database.is_shared else POLL_SECONDS, self._lease / 4)

    def watch(self, callback: Callable[[], object]) -> AbstractContextManager[None]:
        """Inside the ``with`` block, call ``callback`` in another thread when other processes leave items.

        A file has no announcements: call :meth:`poll` from time to time as well.
        """
        return self.database.listen(_TOPIC, callback)

    @property
    def path(self) -> str:
        """Path of the file."""
        return self._commits.db.path

    @property
    def database(self) -> Database:
        """The underlying database."""
        return self._commits.db

    async def transact(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` on the same file, in one transaction with other pending changes."""
        return await self._commits.transact(work)

    async def open(self) -> None:
        """Register this process, so that it can claim conversations.

        Raises:
            StoreError: the file cannot be used.
        """
        await self.transact(self._renew)

    async def close(self) -> int:
        """Release all conversations, so that other processes can claim them at once, and close the file.

        Returns:
            The number of inbox items that were left unanswered.
        """

        def unregister(db: Connection) -> int:
            (left,) = db.execute(_MY_INBOX, (self._me,)).fetchone()
            db.execute("UPDATE conversations SET owner = NULL WHERE owner = ?", (self._me,))
            db.execute("DELETE FROM programs WHERE id = ?", (self._me,))
            return int(left)

        try:
            left = await self.transact(unregister)
            self.database.announce(_TOPIC)
            return left
        finally:
            await self._commits.close()

    async def detach(self) -> None:
        """Close the file and keep all claims, as if the process had been killed."""
        await self._commits.close()

    async def accept(
        self,
        key: str,
        channel: str,
        message: InboundMessage,
        *,
        done: bool = False,
        replies: Sequence[OutboundMessage] = (),
    ) -> PendingItems:
        """Store a received message unless it is known, and return the items to handle in its conversation.

        Args:
            key: key of the conversation.
            channel: name of the channel that received the message.
            message: the message.
            done: store the message as finished: it needs no answer.
            replies: messages to send right away.

        Raises:
            StoreError: the message could not be stored.
        """
        identity = json.dumps([channel, message.bot, message.chat_id, message.message_id])
        data = "" if done else _encode(message)
        state = "done" if done else "waiting"

        def store(db: Connection) -> tuple[PendingItems, bool]:
            now = database_time(self.database, db)
            mine = self._is_mine(db, key)
            row = db.execute(
                "INSERT INTO inbox (identity, key, channel, message, at, state, holder) VALUES (?, ?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (identity) DO NOTHING RETURNING seq",
                (identity, key, channel, data, now, state, self._me if mine else ""),
            ).fetchone()
            if row is None:
                return PendingItems(is_new=False), True
            claimed = [key] if not mine and self._claim(db, key, now) else []
            mine = mine or bool(claimed)
            added = self._insert(db, key, channel, replies, notice=True, mine=mine)
            if not mine:
                return PendingItems(), False
            outbox = [*self._take_outbox(db, key), *added]
            return PendingItems(self._take_inbox(db, key, row[0]), outbox, claimed=claimed), True

        pending, mine = await self.transact(store)
        if not mine:
            self.database.announce(_TOPIC)
        return pending

    async def following(self, item: InboxItem) -> list[InboxItem]:
        """Return the unanswered messages of a conversation that came after this one, in order.

        Raises:
            StoreError: the file cannot be used.
        """

        def read(db: Connection) -> list[InboxItem]:
            where = "WHERE key = ? AND state = 'waiting' AND seq > ? ORDER BY seq"
            rows = db.execute(f"SELECT {_INBOX} FROM inbox {where}", (item.key, item.seq)).fetchall()
            return [_inbox_item(item.key, row, recovered=True) for row in rows]

        return await self.transact(read)

    async def begin_attempt(self, item: InboxItem, base: int) -> None:
        """Record that a run starts for this item, on a transcript of ``base`` messages.

        Raises:
            LeaseLostError: another process has claimed the conversation.
            StoreError: the file cannot be used.
        """

        def mark(db: Connection) -> None:
            self._check_mine(db, item.key)
            self._update(db, item, "inbox SET tries = tries + 1, base = ?", base)

        await self.transact(mark)

    async def discard_attempt(self, item: InboxItem) -> None:
        """Undo :meth:`begin_attempt` for a run that was interrupted for reasons unrelated to this item."""
        await self.transact(lambda db: self._update(db, item, "inbox SET tries = ?, base = NULL", item.tries))

    async def complete(
        self,
        key: str,
        channel: str,
        items: Iterable[InboxItem],
        replies: Sequence[OutboundMessage] = (),
        *,
        notice: bool = False,
        tokens: Sequence[str] = (),
    ) -> Sequence[OutboxItem]:
        """Mark inbox items as done and store the replies to send, in one transaction.

        A reply with one of ``tokens`` that is stored already is not stored again: the stored one is returned.

        Raises:
            LeaseLostError: another process has claimed the conversation, or one of the items.
            StoreError: the file cannot be used.
        """
        done = list(items)

        def store(db: Connection) -> Sequence[OutboxItem]:
            self._check_mine(db, key)
            for item in done:
                self._update(db, item, "inbox SET state = 'done', message = ''")
            return self._insert(db, key, channel, replies, notice=notice, tokens=tokens)

        return await self.transact(store)

    async def mark_sending(self, item: OutboxItem) -> None:
        """Record that an item is about to be sent.

        Raises:
            LeaseLostError: another process has claimed the conversation.
            StoreError: the file cannot be used.
        """

        def mark(db: Connection) -> None:
            self._check_mine(db, item.key)
            self._update(db, item, "outbox SET state = 'sending', tries = tries + 1")

        await self.transact(mark)

    async def mark_sent(self, item: OutboxItem, message_id: str) -> None:
        """Record that an item was sent and which id the platform gave it, even if another process claimed it since."""
        await self.transact(
            lambda db: db.execute(
                "UPDATE outbox SET state = 'sent', message_id = ?, message = '' WHERE seq = ?",
                (storable(message_id), item.seq),
            )
        )

    async def mark_failed(self, item: OutboxItem, problem: str) -> None:
        """Record that an item will never be sent.

        Raises:
            LeaseLostError: another process has claimed the item.
            StoreError: the file cannot be used.
        """
        change = "outbox SET state = 'failed', problem = ?"
        await self.transact(lambda db: self._update(db, item, change, storable(problem)))

    async def postpone(self, item: OutboxItem, due: float, problem: str) -> None:
        """Schedule an item that could not be sent for another attempt at the Unix time ``due``.

        Raises:
            LeaseLostError: another process has claimed the item.
            StoreError: the file cannot be used.
        """
        change = "outbox SET state = 'waiting', due = ?, problem = ?"
        await self.transact(lambda db: self._update(db, item, change, due, storable(problem)))

    async def poll(self, channels: Iterable[str]) -> PendingItems:
        """Renew the lease, and claim open conversations of these channels that belong to no running process.

        Returns:
            The items of claimed conversations, and items that other processes added to conversations of this one.

        Raises:
            StoreError: the file cannot be used.
        """
        ours = set(channels)

        def claim(db: Connection) -> PendingItems:
            now = database_time(self.database, db)
            self._renew(db)
            self._remove_dead_processes(db, now)
            inbox: list[InboxItem] = []
            outbox: list[OutboxItem] = []
            abandoned = db.execute(_ABANDONED, (now,)).fetchall()
            claimed = [key for key, channel in abandoned if channel in ours and self._claim(db, key, now)]
            for key, channel in db.execute(_ADDED_BY_OTHERS, (self._me, self._me)).fetchall():
                if channel in ours:
                    inbox += self._take_inbox(db, key)
                    outbox += self._take_outbox(db, key)
            if time.monotonic() > self._pruned + 3600:
                self._prune(db, now)
                self._pruned = time.monotonic()
            return PendingItems(inbox, outbox, claimed=claimed)

        return await self.transact(claim)

    async def release(self, keys: Iterable[str]) -> set[str]:
        """Release conversations that have no pending items; return the keys that no longer belong to this process.

        Raises:
            StoreError: the file cannot be used.
        """
        given = list(keys)

        def release_idle(db: Connection) -> set[str]:
            for key in given:
                db.execute(
                    "UPDATE conversations SET owner = NULL WHERE key = :key AND owner = :me "
                    "AND NOT EXISTS (SELECT 1 FROM inbox WHERE key = :key AND state = 'waiting') "
                    f"AND NOT EXISTS (SELECT 1 FROM outbox WHERE key = :key AND {_PENDING})",
                    {"key": key, "me": self._me},
                )
            return {key for key in given if not self._is_mine(db, key)}

        return await self.transact(release_idle)

    async def release_channel(self, channel: str) -> None:
        """Release the conversations of a channel that this process has claimed, so that any process can claim them.

        Raises:
            StoreError: the file cannot be used.
        """

        def release_all(db: Connection) -> None:
            for table, pending in (("inbox", "state = 'waiting'"), ("outbox", _PENDING)):
                where = f"channel = ? AND holder = ? AND {pending}"
                db.execute(f"UPDATE {table} SET holder = '' WHERE {where}", (channel, self._me))
            db.execute(
                "UPDATE conversations SET owner = NULL WHERE owner = ? AND key IN "
                "(SELECT key FROM inbox WHERE channel = ? UNION SELECT key FROM outbox WHERE channel = ?)",
                (self._me, channel, channel),
            )

        await self.transact(release_all)
        self.database.announce(_TOPIC)

    async def leave(self, key: str) -> None:
        """Release a conversation with its pending items, and let other processes claim it for a while.

        Raises:
            StoreError: the file cannot be used.
        """

        def release(db: Connection) -> None:
            for table, pending in (("inbox", "state = 'waiting'"), ("outbox", _PENDING)):
                db.execute(
                    f"UPDATE {table} SET holder = '' WHERE key = ? AND holder = ? AND {pending}", (key, self._me)
                )
            db.execute("UPDATE conversations SET owner = NULL WHERE key = ? AND owner = ?", (key, self._me))

        now = time.monotonic()
        self._left = {each: until for each, until in self._left.items() if until > now} | {key: now + LEAVE_SECONDS}
        await self.transact(release)
        self.database.announce(_TOPIC)

    async def unclaimed(self, channels: Iterable[str]) -> dict[str, tuple[int, int]]:
        """Count the inbox and outbox items of channels other than these that belong to no running process.

        Raises:
            StoreError: the file cannot be used.
        """
        ours = set(channels)

        def count(db: Connection) -> dict[str, tuple[int, int]]:
            rows = db.execute(_UNCLAIMED, (database_time(self.database, db),)).fetchall()
            return {channel: (inbox, outbox) for channel, inbox, outbox in rows if channel not in ours}

        return await self.transact(count)

    async def generation(self, key: str, *, next: bool = False) -> int:
        """Return number of earlier sessions of this conversation; ``next`` starts a new session first."""

        def count(db: Connection) -> int:
            if next:
                db.execute("UPDATE conversations SET generation = generation + 1 WHERE key = ?", (key,))
            row = db.execute("SELECT generation FROM conversations WHERE key = ?", (key,)).fetchone()
            return row[0] if row else 0

        return await self.transact(count)

    def _update(self, db: Connection, item: InboxItem | OutboxItem, change: str, *values: Any) -> None:
        """Change a pending item that is still held by this process."""
        where = f"seq = ? AND holder = ? AND {_PENDING}"
        if not db.execute(f"UPDATE {change} WHERE {where}", (*values, item.seq, self._me)).rowcount:
            raise LeaseLostError(f"another process has claimed a message of the conversation {item.key}")

    def _renew(self, db: Connection) -> None:
        until = database_time(self.database, db) + self._lease
        db.execute(_PROGRAM_ROW, (self._me, gethostname(), os.getpid(), process_start(os.getpid()), until))

    def _remove_dead_processes(self, db: Connection, now: float) -> None:
        """Delete expired registrations, and registrations in a file whose process of this machine has ended.

        On PostgreSQL only the lease counts: containers on several machines may have the same name and the same pids.
        """
        for id, host, pid, began, until in db.execute("SELECT id, host, pid, born, until FROM programs").fetchall():
            here = host == gethostname() and sys.platform != "win32" and not self.database.is_shared
            if until <= now or (here and not (pid_exists(pid) and process_start(pid) == began)):
                db.execute("DELETE FROM programs WHERE id = ?", (id,))

    def _claim(self, db: Connection, key: str, now: float) -> bool:
        if self._left.get(key, 0.0) > time.monotonic():
            return False
        return bool(
            db.execute(
                "INSERT INTO conversations (key, owner) VALUES (?, ?) ON CONFLICT (key) DO UPDATE "
                "SET owner = excluded.owner WHERE conversations.owner IS NULL "
                f"OR conversations.owner NOT IN ({_LIVE})",
                (key, self._me, now),
            ).rowcount
        )

    def _is_mine(self, db: Connection, key: str) -> bool:
        row = db.execute("SELECT owner FROM conversations WHERE key = ?", (key,)).fetchone()
        return row is not None and row[0] == self._me

    def _check_mine(self, db: Connection, key: str) -> None:
        if not self._is_mine(db, key):
            raise LeaseLostError(f"another process has claimed the conversation {key}")

    def _take_inbox(self, db: Connection, key: str, new: int = 0) -> list[InboxItem]:
        """Hold the inbox items of a conversation; return the items not held before, and the one numbered ``new``."""
        rows = db.execute(
            f"SELECT {_INBOX}, holder FROM inbox "
            "WHERE key = ? AND state = 'waiting' AND (holder != ? OR seq = ?) ORDER BY seq",
            (key, self._me, new),
        ).fetchall()
        if any(row[-1] != self._me for row in rows):
            db.execute("UPDATE inbox SET holder = ? WHERE key = ? AND state = 'waiting'", (self._me, key))
        return [_inbox_item(key, row[:-1], recovered=row[0] != new) for row in rows]

    def _take_outbox(self, db: Connection, key: str) -> list[OutboxItem]:
        """Hold the outbox items of a conversation; return the items not held before."""
        rows = db.execute(
            "SELECT seq, channel, message, token, notice, at, tries, due, state FROM outbox "
            f"WHERE key = ? AND {_PENDING} AND holder != ? ORDER BY seq",
            (key, self._me),
        ).fetchall()
        if rows:
            db.execute(f"UPDATE outbox SET holder = ? WHERE key = ? AND {_PENDING}", (self._me, key))
        found = []
        for seq, channel, text, token, notice, at, tries, due, state in rows:
            message = OutboundMessage.of(json.loads(text))
            in_doubt = state == "sending"
            found.append(OutboxItem(seq, key, channel, message, token, bool(notice), at, tries, due, in_doubt))
        return found

    def _insert(
        self,
        db: Connection,
        key: str,
        channel: str,
        replies: Sequence[OutboundMessage],
        *,
        notice: bool,
        mine: bool = True,
        tokens: Sequence[str] = (),
    ) -> list[OutboxItem]:
        items = []
        now = database_time(self.database, db)
        for number, message in enumerate(replies):
            token = tokens[number] if tokens else uuid.uuid4().hex
            if tokens and (known := db.execute(_STORED_REPLY, (token,)).fetchone()) is not None:
                seq, at, state = known
                items.append(OutboxItem(seq, key, channel, message, token, notice, at, state=state))
                continue
            (seq,) = db.execute(
                "INSERT INTO outbox (key, channel, message, token, notice, at, state, holder) "
                "VALUES (?, ?, ?, ?, ?, ?, 'waiting', ?) RETURNING seq",
                (key, channel, _encode(message), token, notice, now, self._me if mine else ""),
            ).fetchone()
            items.append(OutboxItem(seq, key, channel, message, token, notice, now))
        return items

    def _prune(self, db: Connection, now: float) -> None:
        before = (now - self._keep_days * 24 * 3600,)
        db.execute("DELETE FROM inbox WHERE state = 'done' AND at < ?", before)
        db.execute("DELETE FROM outbox WHERE state IN ('sent', 'failed') AND at < ?", before)
        db.execute("DELETE FROM codes WHERE until < ?", (now,))


def _inbox_item(key: str, row: Sequence[Any], *, recovered: bool) -> InboxItem:
    seq, channel, message, tries, base, at = row
    return InboxItem(seq, key, channel, InboundMessage.of(json.loads(message)), tries, base, recovered, at)


def _encode(message: InboundMessage | OutboundMessage) -> str:
    return json.dumps(message, default=msgspec.structs.asdict)  # ASCII, so that lone surrogates survive
