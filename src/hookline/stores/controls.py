"""Messages to runs that another process executes: cancel a run, or give it a message of the user.

They are stored with the runs. Any process writes them, and the process that executes the run takes them, in order. A
message stays until it has been carried out: a process that ends before that leaves it to the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Literal

import msgspec

from .._sensitive.encryption import DataKeyError, decrypted, encrypted
from .sql import Connection, Database

SCHEMA = (
    """CREATE TABLE controls (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, kind TEXT NOT NULL, data BLOB NOT NULL,
        at REAL NOT NULL, taken INTEGER NOT NULL, answer TEXT
    )""",
    "CREATE INDEX controls_waiting ON controls (run_id, seq) WHERE taken = 0",
    "CREATE INDEX controls_by_run ON controls (run_id)",
)

Kind = Literal["cancel", "steer"]
_TOPIC = "controls"


class Control(msgspec.Struct, frozen=True):
    """A message to a run; ``data`` is JSON that depends on the kind. ``problem`` says why it cannot be read."""

    seq: int
    run_id: str
    kind: Kind
    data: bytes
    problem: str = ""


class ControlStore:
    """Store messages to runs. All methods block, and raise ``StoreError`` if the database cannot be used.

    A message of the user is encrypted like the journal of its run: who does not have the key of the run sends none.

    Args:
        db: the database of the runs.
    """

    def __init__(self, db: Database) -> None:
        self._db = db

    def send(self, run_id: str, kind: Kind, data: bytes) -> int:
        """Store a message, wake the process that executes the run, and return the number of the message.

        Raises:
            DataKeyError: it is a message of the user, and this process does not have the key of the run.
            StoreError: the database cannot be used.
        """
        with self._db.transaction(write=True, lock=None) as db:
            if kind == "steer":
                query = "SELECT start FROM durable_runs WHERE run_id = ?"
                for (start,) in db.execute(query, (run_id,)).fetchall():
                    decrypted(bytes(start), f"the journal of run {run_id}")
            (seq,) = db.execute(
                "INSERT INTO controls (run_id, kind, data, at, taken) VALUES (?,?,?,?,0) RETURNING seq",
                (run_id, kind, encrypted(data), time.time()),
            ).fetchone()
        self._db.announce(_TOPIC)
        return int(seq)

    def take(self, run_ids: Sequence[str], *kinds: Kind) -> list[Control]:
        """Take the messages to these runs, in the order in which they were sent.

        A message is returned each time, also to other processes, until :meth:`answer` says what became of it. One that
        is encrypted with a key that this process does not have holds up no other.
        """
        if not run_ids:
            return []
        where, values = f"run_id IN ({_marks(run_ids)}) AND kind IN ({_marks(kinds)})", (*run_ids, *kinds)
        query = f"SELECT seq, run_id, kind, data, taken FROM controls WHERE {where} AND answer IS NULL ORDER BY seq"
        rows = self._db.execute(query, values)
        if any(not row[-1] for row in rows):  # usually there is none, so nothing is locked
            with self._db.transaction(write=True, lock=_TOPIC) as db:
                rows = db.execute(query, values).fetchall()  # a sender may have withdrawn one
                db.executemany("UPDATE controls SET taken = 1 WHERE seq = ?", [row[:1] for row in rows])
        return [_control(*row[:4]) for row in rows]

    def withdraw(self, seq: int) -> bool:
        """Take back a message; return false if a process has taken it already."""
        with self._db.transaction(write=True, lock=_TOPIC) as db:
            return db.execute("DELETE FROM controls WHERE seq = ? AND taken = 0", (seq,)).rowcount == 1

    def waiting(self, run_id: str) -> int:
        """Return the number of messages of users that a run has not got."""
        query = "SELECT count(*) FROM controls WHERE run_id = ? AND kind = 'steer' AND answer IS NULL"
        return int(self._db.execute(query, (run_id,))[0][0])

    def cancelled(self) -> set[str]:
        """Return the ids of the durable runs that were suspended, and that a message asks to stop."""
        query = """SELECT c.run_id FROM durable_runs d JOIN controls c ON c.run_id = d.run_id
            WHERE d.status = 'waiting' AND c.kind = 'cancel' AND c.answer IS NULL"""
        return {run_id for (run_id,) in self._db.execute(query)}

    def answer(self, seqs: Iterable[int], answer: str) -> None:
        """Store what became of messages, for their senders. They have been carried out, or refused."""
        seqs = list(seqs)
        with self._db.transaction(write=True, lock=None) as db:
            self.answer_in(db, seqs, answer)
        self.announce_answers(seqs)

    def answer_in(self, db: Connection, seqs: Iterable[int], answer: str) -> None:
        """Store what became of messages, in a transaction of the caller; :meth:`announce_answers` follows it."""
        values = [(answer, b"", seq) for seq in seqs]
        db.executemany("UPDATE controls SET answer = ?, data = ? WHERE seq = ?", values)

    def announce_answers(self, seqs: Iterable[int]) -> None:
        """Wake the senders of messages that were answered."""
        self._db.announce(*map(_topic, seqs))

    def answer_to(self, seq: int) -> str | None:
        """Return what became of a message; ``None`` if that is not known yet."""
        with self._db.transaction() as db:
            row = db.execute("SELECT answer FROM controls WHERE seq = ?", (seq,)).fetchone()
        return None if row is None else row[0]

    def watch(self, callback: Callable[[], object], seq: int | None = None) -> AbstractContextManager[None]:
        """Inside the ``with`` block, call ``callback`` in another thread after new messages, or after an answer."""
        return self._db.listen(_TOPIC if seq is None else _topic(seq), callback)


def _control(seq: int, run_id: str, kind: Kind, data: bytes) -> Control:
    try:
        return Control(seq, run_id, kind, decrypted(data, f"a message to run {run_id}"))
    except DataKeyError as error:
        return Control(seq, run_id, kind, b"", str(error))


def _topic(seq: int) -> str:
    return f"answer {seq}"


def _marks(values: Sequence[str]) -> str:
    return ",".join("?" * len(values))
