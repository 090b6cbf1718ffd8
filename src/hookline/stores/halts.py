"""The stop switch of a project or a fleet: its halts, in the database of the runs (DESIGN 6.19).

Every process that uses the database reads it. At most one halt is in force; those that were released are kept.
"""

from __future__ import annotations

import time
from time import monotonic

from .._run.halt import Halt, HaltSwitch
from .audit.log import AuditLog
from .errors import StoreError
from .sql import Database, storable

SCHEMA = (
    """CREATE TABLE halts (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, reason TEXT NOT NULL, halted_by TEXT NOT NULL, at REAL NOT NULL,
        released REAL, released_by TEXT NOT NULL
    )""",
    "CREATE INDEX halts_in_force ON halts (seq) WHERE released IS NULL",
)
_COLUMNS = "reason, halted_by, at, released, released_by"
_IN_FORCE = f"SELECT {_COLUMNS} FROM halts WHERE released IS NULL ORDER BY seq DESC LIMIT 1"


class HaltStore(HaltSwitch):
    """The stop switch of all runs that use a database. All methods block.

    Example::

        halts = RunStore("runs.db").halts
        halts.halt("the payment API charges twice", by="ada")
        halts.release(by="ada")

    Args:
        db: the database of the runs.
    """

    def __init__(self, db: Database) -> None:
        super().__init__()
        self._db = db
        self._was_there = False

    def __eq__(self, other: object) -> bool:
        """Two switches in one file are the same one, so that a run reads it once."""
        return self is other or (isinstance(other, HaltStore) and self._key is not None and self._key == other._key)

    def __hash__(self) -> int:
        return hash(self._key or id(self))

    @property
    def _key(self) -> str | None:
        return None if self._db.in_memory or self._db.is_shared else self._db.path

    @property
    def place(self) -> str:
        """The file, or the address of the database without its password."""
        return self._db.path

    def halt(self, reason: str = "", *, by: str = "") -> Halt | None:
        """Switch it on: within seconds, no run begins a call. Return the halt, or ``None`` if it was on.

        Raises:
            StoreError: the database cannot be used.
        """
        values = (storable(reason), storable(by), time.time())
        with self._db.transaction(write=True) as db:
            found = db.execute(_IN_FORCE).fetchone()
            if found is None:
                db.execute("INSERT INTO halts (reason, halted_by, at, released_by) VALUES (?,?,?,'')", values)
        self._note(Halt(*values) if found is None else Halt(*found), monotonic())
        return Halt(*values) if found is None else None

    def release(self, *, by: str = "") -> Halt | None:
        """Switch it off: runs go on. Return the halt, or ``None`` if it was off.

        Raises:
            StoreError: the database cannot be used.
        """
        at, who = time.time(), storable(by)
        with self._db.transaction(write=True) as db:
            found = db.execute(_IN_FORCE).fetchone()
            if found is not None:
                db.execute("UPDATE halts SET released = ?, released_by = ? WHERE released IS NULL", (at, who))
        self._note(None, monotonic())
        return None if found is None else Halt(*found).replace(released=at, released_by=who)

    def read(self) -> Halt | None:
        """Return the halt that is in force, or ``None``.

        A database that does not exist has none, but one that was there and is not any more cannot be read.

        Raises:
            StoreError: the database cannot be used.
        """
        if not self._db.exists():
            if self._was_there:
                raise StoreError(f"{self._db.path} is gone: restore it, or restart the program")
            return None
        rows = self._db.execute(_IN_FORCE)
        self._was_there = True
        return Halt(*rows[0]) if rows else None

    def history(self, limit: int = 20) -> list[Halt]:
        """Return halts, newest first, also those that were released.

        Raises:
            StoreError: the database cannot be used.
        """
        query = f"SELECT {_COLUMNS} FROM halts ORDER BY seq DESC LIMIT ?"
        return [Halt(*row) for row in self._db.execute(query, (limit,))] if self._db.exists() else []


def audit_halt(audit: AuditLog | None, halt: Halt, correlation_id: str = "") -> None:
    """Add a record to the audit log: somebody has switched a halt on, or released it."""
    if audit is None:
        return
    action, by = ("halted", halt.by) if halt.released is None else ("released", halt.released_by)
    audit.record("halt", action=action, by=by, reason=halt.reason, correlation_id=correlation_id)
