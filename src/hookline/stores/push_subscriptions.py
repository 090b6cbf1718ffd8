"""Push subscriptions: URLs that are notified of the progress of a run, stored in the file of the runs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from .sql import Database, storable, upsert

SCHEMA = """CREATE TABLE pushes (
    run_id TEXT NOT NULL, id TEXT NOT NULL, owner TEXT NOT NULL, url TEXT NOT NULL, token TEXT NOT NULL,
    scheme TEXT NOT NULL, credentials TEXT NOT NULL, version TEXT NOT NULL, created REAL NOT NULL, seq INTEGER NOT NULL,
    done INTEGER NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL, claimed REAL NOT NULL, PRIMARY KEY (run_id, id)
) WITHOUT ROWID"""


class PushSubscription(msgspec.Struct, frozen=True):
    """A URL to notify of the progress of one run.

    ``token``, ``scheme`` and ``credentials`` authenticate the sender; ``version`` is the version of the protocol.
    ``seq`` is the number of the last event that was delivered, and ``done`` is true after the final one.
    """

    run_id: str
    id: str
    owner: str
    url: str
    token: str = ""
    scheme: str = ""
    credentials: str = ""
    version: str = "1.0"
    created: float = 0.0
    seq: int = 0
    done: bool = False

    def __repr__(self) -> str:  # without secrets
        return f"PushSubscription({self.run_id!r}, {self.id!r})"


class PushSubscriptionStore:
    """Store push subscriptions. All methods are thread-safe, and block while they use the file.

    Args:
        db: database of the runs.
    """

    def __init__(self, db: Database) -> None:
        self.db = db

    def save(self, row: PushSubscription, limit: int) -> bool:
        """Store a subscription, replacing one of the same run and id.

        Returns:
            False if the run already has ``limit`` other subscriptions.

        Raises:
            StoreError: the file cannot be used.
        """
        values = [storable(each) if isinstance(each, str) else each for each in msgspec.structs.astuple(row)]
        owner = self.db.leases.owner()
        with self.db.transaction(write=True) as db:
            query = "SELECT count(*) FROM pushes WHERE run_id = ? AND id != ?"
            (others,) = db.execute(query, values[:2]).fetchone()
            if others >= limit:
                return False
            db.execute(_PUT_ROW, (*values, owner.host, owner.pid, time.time()))
        return True

    def for_run(self, run_id: str) -> list[PushSubscription]:
        """Return the subscriptions of a run, oldest first.

        Raises:
            StoreError: the file cannot be used.
        """
        with self.db.transaction() as db:
            query = f"SELECT {_FIELDS} FROM pushes WHERE run_id = ? ORDER BY created, id"
            return [_row(row) for row in db.execute(query, (storable(run_id),))]

    def mark_delivered(self, row: PushSubscription, seq: int, *, done: bool) -> None:
        """Record the last delivered event, unless the subscription was deleted or replaced.

        Raises:
            StoreError: the file cannot be used.
        """
        with self.db.transaction(write=True) as db:
            query = "UPDATE pushes SET seq = ?, done = ? WHERE run_id = ? AND id = ? AND created = ?"
            db.execute(query, (seq, done, storable(row.run_id), storable(row.id), row.created))

    def delete(self, run_id: str, id: str) -> bool:
        """Delete a subscription; return whether it existed.

        Raises:
            StoreError: the file cannot be used.
        """
        with self.db.transaction(write=True) as db:
            found = db.execute("DELETE FROM pushes WHERE run_id = ? AND id = ?", (storable(run_id), storable(id)))
            return found.rowcount > 0

    def remove(self, row: PushSubscription) -> None:
        """Delete a subscription, unless it was replaced by another one with its id.

        Raises:
            StoreError: the file cannot be used.
        """
        with self.db.transaction(write=True) as db:
            query = "DELETE FROM pushes WHERE run_id = ? AND id = ? AND created = ?"
            db.execute(query, (storable(row.run_id), storable(row.id), row.created))

    def claim_abandoned(self) -> list[PushSubscription]:
        """Take over the unfinished subscriptions whose process has ended, and return them.

        A SQLite file does not tell a process from an earlier one with the same pid, as in a restarted container. So it
        returns the subscriptions of this process too: call it once there, before any is saved.

        Raises:
            StoreError: the file cannot be used.
        """
        owner, leases = self.db.leases.owner(), self.db.leases
        mine = (owner.host, owner.pid, time.time())
        with self.db.transaction(write=True) as db:
            rows = db.execute(f"SELECT host, pid, claimed, {_FIELDS} FROM pushes WHERE done = 0 ORDER BY created, id")
            claimed = [
                _row(row[3:])
                for row in rows.fetchall()
                if (row[:2] == mine[:2] and not self.db.is_shared) or not leases.is_held(*row[:3])
            ]
            db.executemany(
                "UPDATE pushes SET host = ?, pid = ?, claimed = ? WHERE run_id = ? AND id = ?",
                [(*mine, row.run_id, row.id) for row in claimed],
            )
        return claimed

    def release(self, keys: Iterable[tuple[str, str]]) -> None:
        """Give up the unfinished subscriptions with these ids of runs and of their own: any process may claim them.

        Raises:
            StoreError: the file cannot be used.
        """
        owner = self.db.leases.owner()
        rows = [(storable(run_id), storable(id), owner.host, owner.pid) for run_id, id in keys]
        with self.db.transaction(write=True) as db:
            query = "UPDATE pushes SET host = '', claimed = 0 WHERE run_id = ? AND id = ? AND host = ? AND pid = ?"
            db.executemany(query, rows)


_FIELDS = ", ".join(PushSubscription.__struct_fields__)
_PUT_ROW = upsert("pushes", (*PushSubscription.__struct_fields__, "host", "pid", "claimed"), ("run_id", "id"))


def _row(values: Sequence[Any]) -> PushSubscription:
    fields: list[Any] = [*values[:-1], bool(values[-1])]
    return PushSubscription(*fields)
