"""The processes that execute durable runs, and the versions of the agents that they have (DESIGN 6.17).

A run that was begun with one version of its agent is continued by processes with the same version. So the processes say
here which versions they have, and a run that none of them can continue says so.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import msgspec

from .._run.journal import JOURNAL_FORMAT, JournalFormatError, format_of
from .._sensitive.encryption import DataKeyError, decrypted
from .leases import database_time
from .sql import Database, upsert

KEEP_SECONDS = 30 * 24 * 3600.0
"""Seconds for which a version is remembered that no process has and no run needs."""

SCHEMA = (
    """CREATE TABLE workers (
        id TEXT PRIMARY KEY, host TEXT NOT NULL, pid INTEGER NOT NULL, born REAL, since REAL NOT NULL,
        digests TEXT NOT NULL
    )""",
    "CREATE TABLE agent_versions (digest TEXT PRIMARY KEY, parts BLOB NOT NULL, seen REAL NOT NULL)",
)

SLOTS = ("ALTER TABLE workers ADD COLUMN slots INTEGER NOT NULL DEFAULT 0",)
"""How many runs of servers each process executes at once: since format 7."""

_UNABLE = """digest != '' AND (status IN ('interrupted', 'waiting') OR (status = 'running' AND lease < ?))"""
_Parts = Mapping[str, str]


class WorkerRow(msgspec.Struct, frozen=True):
    """A process that executes durable runs. ``digests`` are those of its agents.

    ``slots`` is how many runs of servers it executes at once; 0 for a gateway, which executes only its own.
    """

    host: str
    pid: int
    since: float
    digests: tuple[str, ...]
    slots: int


class PinnedRun(msgspec.Struct, frozen=True):
    """A durable run that no running process can continue, because none has the version that it was begun with.

    ``digests`` are those of the running processes. ``different`` are the parts that differ from the most similar one of
    their versions; it is empty if they are not known. ``format`` is the format of its journal.
    """

    run_id: str
    digest: str
    status: str
    digests: tuple[str, ...]
    different: tuple[str, ...]
    format: int

    @property
    def problem(self) -> str:
        """Say what the run waits for, and what to do."""
        if self.format != JOURNAL_FORMAT:
            return str(JournalFormatError(self.run_id, self.format))
        have = f"the running workers have {', '.join(self.digests)}" if self.digests else "no worker is running"
        return (
            f"run {self.run_id} waits for a worker with digest {self.digest}; {have}{self._parts}: start a worker with "
            f"the hooks, instructions and tools that the run was begun with, or let it go on with others: "
            f"hookline runs unpin {self.run_id}"
        )

    @property
    def refusal(self) -> str:
        """Say why the run has failed."""
        if self.format != JOURNAL_FORMAT:
            return (
                f"the run was begun by a version of Hookline whose journals have format {self.format}, and no worker "
                "of that version is left"
            )
        return (
            "the run was begun with other hooks, instructions or tools, and no worker that has them is left"
            f"{self._parts}"
        )

    @property
    def _parts(self) -> str:
        return f" (different: {', '.join(self.different)})" if self.different else ""


class WorkerStore:
    """The processes that execute durable runs. All methods block, and raise ``StoreError`` without the database.

    Args:
        db: the database of the run store.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._id = secrets.token_hex(8)  # a process may have several servers
        self._registered: Any = None

    def register(self, versions: Mapping[str, _Parts], slots: int = 0) -> None:
        """Say that this process executes runs with these versions: the parts of each by its digest.

        Nothing is written if this was said before. The rows of processes that have ended are deleted.

        Args:
            versions: the parts of each version by its digest.
            slots: how many runs of servers this process executes at once.
        """
        owner = self._db.leases.owner()
        if self._registered == (owner, versions):
            return
        with self._db.transaction(write=True, lock="workers") as db:
            now = database_time(self._db, db)
            for id, host, pid, born, since in db.execute("SELECT id, host, pid, born, since FROM workers").fetchall():
                if not self._db.leases.is_held(host, pid, since, born):
                    db.execute("DELETE FROM workers WHERE id = ?", (id,))
            columns = ("id", "host", "pid", "born", "since", "digests", "slots")
            values = (self._id, *owner, now, " ".join(sorted(versions)), slots)
            db.execute(upsert("workers", columns, ("id",)), values)
            for digest, parts in versions.items():
                statement = upsert("agent_versions", ("digest", "parts", "seen"), ("digest",))
                db.execute(statement, (digest, msgspec.json.encode(parts), now))
            db.execute(
                """DELETE FROM agent_versions WHERE seen < ?
                AND NOT EXISTS (SELECT 1 FROM durable_runs AS d WHERE d.digest = agent_versions.digest)""",
                (now - KEEP_SECONDS,),
            )
        self._registered = owner, dict(versions)

    def unregister(self) -> None:
        """Say that this process does not execute runs any more."""
        if self._registered is not None:
            self._registered = None
            with self._db.transaction(write=True, lock="workers") as db:
                db.execute("DELETE FROM workers WHERE id = ?", (self._id,))

    def running(self) -> list[WorkerRow]:
        """Return the processes that execute runs now."""
        with self._db.transaction() as db:
            rows = db.execute("SELECT host, pid, born, since, digests, slots FROM workers ORDER BY since").fetchall()
        is_held = self._db.leases.is_held
        return [
            WorkerRow(host, pid, since, tuple(digests.split()), slots)
            for host, pid, born, since, digests, slots in rows
            if is_held(host, pid, since, born)
        ]

    def digests(self) -> set[str]:
        """Return the digests of all versions that a running process has."""
        return {digest for worker in self.running() for digest in worker.digests}

    def pinned(self, *run_ids: str, limit: int = 1000) -> list[PinnedRun]:
        """Return the runs that no running process can continue, those that changed last first; or those of ``run_ids``.

        A run that waits for an approval is among them: it could not go on after the decision.
        """
        have = tuple(sorted(self.digests()))
        chosen = f"run_id IN ({','.join('?' * len(run_ids))})" if run_ids else _UNABLE
        others = f"AND digest NOT IN ({','.join('?' * len(have))})" if have else ""
        query = f"""SELECT run_id, digest, status, start FROM durable_runs WHERE {chosen} {others}
            ORDER BY changed DESC LIMIT ?"""
        with self._db.transaction() as db:
            values = run_ids or (database_time(self._db, db),)
            rows = db.execute(query, (*values, *have, limit)).fetchall()
            known = db.execute("SELECT digest, parts FROM agent_versions").fetchall() if rows else []
        parts = {digest: msgspec.json.decode(data, type=dict[str, str]) for digest, data in known}
        return [
            PinnedRun(id, digest, status, have, _different(parts, digest, have), _format(start))
            for id, digest, status, start in rows
        ]

    def pinned_by_digest(self) -> dict[str, int]:
        """Return the number of runs that no running process can continue, by the digest that they need."""
        query = f"SELECT digest, count(*) FROM durable_runs WHERE {_UNABLE} GROUP BY digest"
        with self._db.transaction() as db:
            found = dict(db.execute(query, (database_time(self._db, db),)).fetchall())
        have = self.digests() if found else set()
        return {digest: count for digest, count in found.items() if digest not in have}


def _format(start: bytes) -> int:
    """Return the format of a journal; the current one if this process does not have the key of the journal."""
    try:
        return format_of(decrypted(start, ""))
    except DataKeyError:
        return JOURNAL_FORMAT


def _different(parts: Mapping[str, _Parts], digest: str, have: tuple[str, ...]) -> tuple[str, ...]:
    """Return the parts in which a version differs from the most similar one of others."""
    own = parts.get(digest)
    found = [_changes(own, other) for each in have if own is not None and (other := parts.get(each)) is not None]
    return min(found, key=len, default=())


def _changes(one: _Parts, other: _Parts) -> tuple[str, ...]:
    return tuple(sorted(name for name in {*one, *other} if one.get(name) != other.get(name)))
