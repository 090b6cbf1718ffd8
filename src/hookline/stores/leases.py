"""Leases: which processes still hold what they claimed in a database, such as runs and approvals.

A row that a process claims names its owner. In a SQLite file, which the processes of one machine use, the operating
system knows whether the owner still runs. In a PostgreSQL database, which several machines share, each process renews a
lease, and one whose lease has expired by the clock of the database is considered gone. It stays so: a process that was
paused for too long gets a new lease, and what it held belongs to others.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from socket import gethostname

from .._base.workers import after_fork_in_child
from .errors import StoreError
from .sql import Connection, Database, Owner, Schema

log = logging.getLogger("hookline")

LEASE_SECONDS = 15.0
"""Seconds after which a process that has not renewed its lease is considered gone."""
RENEW_SECONDS = 3.0
"""Seconds between two renewals."""
REMEMBER_SECONDS = 1.0
"""Seconds for which the leases of other processes are remembered."""

_REMOTE_SECONDS = 24 * 3600.0  # how long a process on another machine counts as running
_MARK = "#"  # between the name of the machine and the id of the lease
NOW = "CAST(extract(epoch FROM clock_timestamp()) AS DOUBLE PRECISION)"
"""The clock of PostgreSQL, as Unix time."""

SCHEMA = Schema(
    "leases",
    contents="leases",
    application_id=0x486B4C45,
    version=1,
    statements=("CREATE TABLE leases (id TEXT PRIMARY KEY, pid INTEGER NOT NULL, until REAL NOT NULL)",),
)


class ProcessLeases:
    """The processes of this machine, for SQLite files."""

    def owner(self) -> Owner:
        """Return this process, as the owner of rows."""
        return _this_process(os.getpid())

    def is_held(self, host: str, pid: int, written_at: float, born: float | None = None) -> bool:
        """Whether the owner of a row may still be running."""
        return is_process_running(host, pid, written_at, born)


class DatabaseLeases:
    """The leases of processes in a PostgreSQL database. A thread renews that of this process.

    Args:
        open: opens the database of the leases. It has connections of its own: its callers may hold all others.
    """

    def __init__(self, open: Callable[[], Database]) -> None:
        self._open = open
        self.reset()
        _all_leases.add(self)

    def reset(self) -> None:
        """Initialize the state of this process. A forked child needs a lease of its own."""
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._database: Database | None = None
        self._thread: threading.Thread | None = None
        self._owner: Owner | None = None
        self._until: dict[str, float] = {}  # by the monotonic clock of this process
        self._read = float("-inf")
        self._gone: set[str] = set()

    def owner(self) -> Owner:
        """Return this process, as the owner of rows; the first call takes a lease."""
        with self._lock:
            if self._owner is None:
                self._register()
            assert self._owner is not None
            return self._owner

    @property
    def current(self) -> Owner | None:
        """This process, if it has a lease."""
        return self._owner

    def is_held(self, host: str, pid: int, written_at: float, born: float | None = None) -> bool:
        """Whether the owner of a row has a lease. An owner without one, copied from a SQLite file, is a process."""
        if _MARK not in host:
            return is_process_running(host, pid, written_at, born)
        with self._lock:
            if self._owner is not None and self._owner.host == host:
                return True
            if host in self._gone:
                return False
            now = time.monotonic()
            if self._read < now - REMEMBER_SECONDS or self._until.get(host, 0.0) <= now:
                self._refresh()
            if self._until.get(host, 0.0) > time.monotonic():
                return True
            self._gone.add(host)  # an expired lease is never renewed
            return False

    def close(self) -> None:
        """Give up the lease of this process, so that others can take what it holds at once."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._stopping.set()
        if thread is not None:
            thread.join(RENEW_SECONDS)
        with self._lock:
            owner, self._owner = self._owner, None
            database, self._database = self._database, None
            if database is None:
                return
            with suppress(StoreError):
                if owner is not None:
                    with database.transaction(write=True, lock=None) as db:
                        db.execute("DELETE FROM leases WHERE id = ?", (owner.host,))
            database.close()

    @property
    def _db(self) -> Database:
        if self._database is None:
            self._database = self._open()
        return self._database

    def _register(self) -> None:
        pid = os.getpid()
        owner = Owner(f"{gethostname()}{_MARK}{secrets.token_hex(8)}", pid, None)
        with self._db.transaction(write=True, lock=None) as db:
            db.execute(f"DELETE FROM leases WHERE until < {NOW}")
            db.execute(
                f"INSERT INTO leases (id, pid, until) VALUES (?, ?, {NOW} + ?)", (owner.host, pid, LEASE_SECONDS)
            )
        self._owner = owner
        if self._thread is None:
            self._stopping.clear()
            thread = threading.Thread(target=self._renew, name="hookline-lease", daemon=True)
            thread.start()
            self._thread = thread

    def _refresh(self) -> None:
        with self._db.transaction() as db:
            rows = db.execute(f"SELECT id, until - {NOW} FROM leases").fetchall()
        self._read = time.monotonic()
        self._until = {id: self._read + left for id, left in rows if left > 0}
        if len(self._gone) > 10_000:
            self._gone.clear()

    def _renew(self) -> None:
        reported = False
        while not self._stopping.wait(RENEW_SECONDS):
            try:
                with self._lock:
                    owner = self._owner
                    if owner is None:
                        return
                    with self._db.transaction(write=True, lock=None) as db:
                        renewed = db.execute(
                            f"UPDATE leases SET until = {NOW} + ? WHERE id = ? AND until > {NOW}",
                            (LEASE_SECONDS, owner.host),
                        ).rowcount
                    if not renewed:
                        log.error("the lease of this process expired: other processes take over its runs")
                        self._register()
                reported = False
            except StoreError as error:
                if not reported:
                    log.error("the lease of this process cannot be renewed: %s", error)
                reported = True


_all_leases: weakref.WeakSet[DatabaseLeases] = weakref.WeakSet()


def _after_fork() -> None:
    for leases in list(_all_leases):
        leases.reset()


after_fork_in_child(_after_fork)


def database_time(database: Database, db: Connection) -> float:
    """Return the Unix time by the clock that all processes share: that of PostgreSQL, or of the machine of a file."""
    return float(db.execute(f"SELECT {NOW}").fetchone()[0]) if database.is_shared else time.time()


@lru_cache(maxsize=4)
def _this_process(pid: int) -> Owner:
    return Owner(gethostname(), pid, process_start(pid))


def is_process_running(host: str, pid: int, written_at: float, start: float | None = None) -> bool:
    """Whether the process that wrote a row at the Unix time ``written_at`` may still be running.

    Args:
        host: name of its machine.
        pid: its process id.
        written_at: when it wrote the row.
        start: its :func:`process_start`, which identifies it even if the clock changed or the pid was reused, as
            happens in containers.
    """
    if host != gethostname() or sys.platform == "win32":
        return written_at > time.time() - _REMOTE_SECONDS
    if not pid_exists(pid):
        return False
    if start is not None:
        return process_start(pid) in (start, None)
    began = _started_at(pid)
    return began is None or began < written_at + 1  # a later start means that another process now has the pid


def pid_exists(pid: int) -> bool:
    """Whether a process of this machine has this pid."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass  # the process belongs to another user
    return True


def process_start(pid: int) -> float | None:
    """Start of a process in seconds after the boot of the machine; ``None`` if the system does not provide it."""
    with suppress(OSError, ValueError, IndexError, AttributeError):
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        return ticks / os.sysconf("SC_CLK_TCK")
    return None


def _started_at(pid: int) -> float | None:
    """Return unix time at which a process started; ``None`` if the system does not provide it."""
    start = process_start(pid)
    return None if start is None else time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + start
