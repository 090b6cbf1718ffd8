"""Push subscriptions: where callers want to be notified of the progress of their runs."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from socket import gethostname
from typing import Any

import msgspec

from .processes import is_running
from .sqlite import Database, storable

SCHEMA = """CREATE TABLE pushes (
    run_id TEXT NOT NULL, id TEXT NOT NULL, owner TEXT NOT NULL, url TEXT NOT NULL, token TEXT NOT NULL,
    scheme TEXT NOT NULL, credentials TEXT NOT NULL, version TEXT NOT NULL, created REAL NOT NULL, seq INTEGER NOT NULL,
    done INTEGER NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL, claimed REAL NOT NULL, PRIMARY KEY (run_id, id)
) WITHOUT ROWID"""


class PushRow(msgspec.Struct, frozen=True):
    """One receiver of one run.

    ``token``, ``scheme`` and ``credentials`` are what it knows the sender by; ``version`` is that of the protocol;
    ``seq`` is the last event that it was told of, ``done`` whether nothing more will follow.
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

    def __repr__(self) -> str:  # with no secrets in it
        return f"PushRow({self.run_id!r}, {self.id!r})"


class Pushes:
    """Keeps receivers, for several threads and programs. Everything here waits for the file.

    Args:
        db: the file of the runs.
    """

    def __init__(self, db: Database) -> None:
        self.db = db

    def put(self, row: PushRow, most: int) -> bool:
        """Keep a receiver, in place of one of the same run and id; false if the run has so many others already.

        Raises:
            StoreError: the file cannot be used.
        """
        values = [storable(each) if isinstance(each, str) else each for each in msgspec.structs.astuple(row)]
        with self.db.transaction(write=True) as db:
            query = "SELECT count(*) FROM pushes WHERE run_id = ? AND id != ?"
            (others,) = db.execute(query, values[:2]).fetchone()
            if others >= most:
                return False
            db.execute(f"INSERT OR REPLACE INTO pushes VALUES ({','.join('?' * 14)})", (*values, *_me()))
        return True

    def of(self, run_id: str) -> list[PushRow]:
        """The receivers of a run.

        Raises:
            StoreError: the file cannot be used.
        """
        with self.db.transaction() as db:
            query = f"SELECT {_FIELDS} FROM pushes WHERE run_id = ? ORDER BY created, id"
            return [_row(row) for row in db.execute(query, (storable(run_id),))]

    def sent(self, row: PushRow, seq: int, *, done: bool) -> None:
        """Note what a receiver was told, if it is still there.

        Raises:
            StoreError: the file cannot be used.
        """
        with self.db.transaction(write=True) as db:
            query = "UPDATE pushes SET seq = ?, done = ? WHERE run_id = ? AND id = ? AND created = ?"
            db.execute(query, (seq, done, storable(row.run_id), storable(row.id), row.created))

    def delete(self, run_id: str, id: str) -> bool:
        """Forget a receiver; false if there is none.

        Raises:
            StoreError: the file cannot be used.
        """
        with self.db.transaction(write=True) as db:
            found = db.execute("DELETE FROM pushes WHERE run_id = ? AND id = ?", (storable(run_id), storable(id)))
            return found.rowcount > 0

    def adopt(self) -> list[PushRow]:
        """The receivers that have not been told all, and whose program is gone: from now on they are this program's.

        Raises:
            StoreError: the file cannot be used.
        """
        mine = _me()
        with self.db.transaction(write=True) as db:
            rows = db.execute(f"SELECT host, pid, claimed, {_FIELDS} FROM pushes WHERE NOT done ORDER BY created, id")
            left = [_row(row[3:]) for row in rows.fetchall() if row[:2] == mine[:2] or not is_running(*row[:3])]
            db.executemany(
                "UPDATE pushes SET host = ?, pid = ?, claimed = ? WHERE run_id = ? AND id = ?",
                [(*mine, row.run_id, row.id) for row in left],
            )
        return left


_FIELDS = ", ".join(PushRow.__struct_fields__)


def _row(values: Sequence[Any]) -> PushRow:
    fields: list[Any] = [*values[:-1], bool(values[-1])]
    return PushRow(*fields)


def _me() -> tuple[str, int, float]:
    return gethostname(), os.getpid(), time.time()
