"""SQL that SQLite and PostgreSQL both take: the interface of a database, and the differences that remain.

Every store writes its SQL once. ``?`` and ``:name`` stand for values, ``ON CONFLICT`` replaces rows, and ``RETURNING``
gives the number of a new row. Truth values are stored as 0 and 1 and compared as numbers. JSON is stored as JSON text
or as bytes. ``LIKE`` ignores the case of A to Z. A value that is compared with ``IS NULL`` needs a ``CAST``, because
PostgreSQL must know its type.

An object-relational mapper would be the library for this, but the one that fits best (SQLAlchemy) makes SQLite two to
four times slower, and takes 0.6 s to import.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from itertools import chain, islice
from typing import Any, NamedTuple, Protocol, runtime_checkable

import msgspec

from .errors import StoreError

Values = Sequence[Any] | Mapping[str, Any]
LAST_CHARACTER = "\U0010ffff"
"""Texts that begin with ``start`` are between ``start`` and ``start + LAST_CHARACTER``: an index finds them."""


class PerDialect(msgspec.Struct, frozen=True):
    """A statement that has to be written twice. An empty text means that this database needs no such statement."""

    sqlite: str
    postgres: str


Statement = str | PerDialect


class Schema(msgspec.Struct, frozen=True):
    """The tables of a store.

    Args:
        name: name of the store. On PostgreSQL its tables are in the schema ``hookline_NAME``.
        contents: a word for the contents, for messages.
        application_id: identifies SQLite files of this kind.
        version: version of the tables, stored with them.
        min_writer: the earliest version whose programs may write these tables. An upgrade that only expands them, so
            that those programs still work, leaves it as it is; one that contracts them raises it.
        statements: statements that create the tables.
        upgrades: for each earlier version, the statements that convert it to the next one.
        conversions: for each ``application_id`` of another kind of SQLite file, the statements that convert it.
    """

    name: str
    contents: str
    application_id: int
    version: int
    statements: Sequence[Statement]
    upgrades: Mapping[int, Sequence[Statement]] = msgspec.field(default_factory=dict)
    conversions: Mapping[int, Sequence[Statement]] = msgspec.field(default_factory=dict)
    min_writer: int = 1


class Cursor(Protocol):
    """The rows of a result."""

    @property
    def rowcount(self) -> int:
        """Number of rows that the statement changed."""
        ...

    def fetchone(self) -> Any:
        """Return the next row, or ``None``."""
        ...

    def fetchall(self) -> list[Any]:
        """Return all rows."""
        ...

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """What a store can do inside a transaction."""

    def execute(self, sql: str, values: Values = ..., /) -> Cursor:
        """Run a statement."""
        ...

    def executemany(self, sql: str, rows: Iterable[Values], /) -> object:
        """Run a statement once for each row of values. Rows that are inserted or updated have different keys."""
        ...


@runtime_checkable
class BulkConnection(Protocol):
    """A connection that inserts many rows with one statement of its own."""

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], on_conflict: str, /) -> bool:
        """Insert rows. Return false if they have values for which it has no such statement."""
        ...


class Owner(NamedTuple):
    """A process, as rows name it: its machine or its lease, its pid, and its start."""

    host: str
    pid: int
    born: float | None


WRITERS = """CREATE TABLE hookline_writers (
    host TEXT NOT NULL, pid INTEGER NOT NULL, born REAL, since REAL NOT NULL, format INTEGER NOT NULL,
    version TEXT NOT NULL, PRIMARY KEY (host, pid)
)"""
"""The processes that write the tables of a store, with the version of the tables that they know."""


class Writer(NamedTuple):
    """A process that writes tables: see ``WRITERS``."""

    host: str
    pid: int
    born: float | None
    since: float
    format: int
    version: str

    def __str__(self) -> str:
        machine = self.host.partition("#")[0]
        return f"process {self.pid} on {machine} (Hookline {self.version}, format {self.format})"


class Leases(Protocol):
    """Which processes still hold what they claimed in a database."""

    def owner(self) -> Owner:
        """Return this process, as the owner of rows.

        Raises:
            StoreError: the database cannot be used.
        """
        ...

    def is_held(self, host: str, pid: int, written_at: float, born: float | None = None) -> bool:
        """Whether the owner of a row may still be running.

        Args:
            host: its machine or its lease.
            pid: its process id.
            written_at: when it wrote the row, as Unix time.
            born: its start after the boot, which identifies it even if the clock changed or the pid was reused.

        Raises:
            StoreError: the database cannot be used.
        """
        ...


class Database(Protocol):
    """The tables of one store, in a SQLite file or in a PostgreSQL database.

    Example::

        with database.transaction(write=True) as db:
            db.execute("INSERT INTO notes (text) VALUES (?)", ("Buy milk.",))
    """

    schema: Schema
    path: str
    """Path of the file, or address of the database without its password."""
    in_memory: bool
    is_shared: bool
    """Whether the database is PostgreSQL, where :meth:`listen` hears of changes by other processes."""

    @property
    def leases(self) -> Leases:
        """Which processes still hold what they claimed in this database."""
        ...

    outages: tuple[type[Exception], ...]
    """Causes of errors that all transactions would have now, such as a full disk."""

    def transaction(
        self, *, write: bool = False, lock: str | Sequence[str] | None = ""
    ) -> AbstractContextManager[Connection]:
        """Run the block in a transaction, which an exception rolls back.

        Args:
            write: the block changes rows. No other block with ``write`` runs at the same time, so what it reads stays
                true until it writes.
            lock: on PostgreSQL, exclude only blocks with the same ``lock``, or one of the same, and those without one;
                ``None`` excludes none, which suits a block that only adds rows.

        Raises:
            StoreError: the database cannot be used; the message says why, and what to do.
        """
        ...

    def execute(self, sql: str, values: Values = ..., *, write: bool = False) -> list[Any]:
        """Run one statement as a transaction of its own, and return its rows. This is faster than :meth:`transaction`.

        Args:
            sql: the statement. If it changes rows, what it does must not depend on what other statements read before.
            values: its values.
            write: the statement changes rows.

        Raises:
            StoreError: the database cannot be used; the message says why, and what to do.
        """
        ...

    def exists(self) -> bool:
        """Whether the tables exist. They are created by the first transaction.

        Raises:
            StoreError: it cannot be determined.
        """
        ...

    def compact(self) -> None:
        """Remove the bytes of deleted rows, which may stay in the files until then.

        Raises:
            StoreError: the database cannot be used, or another connection kept reading.
        """
        ...

    def announce(self, *topics: str) -> None:
        """Tell listeners in all processes that these topics have changed. Call it after the transaction.

        Announcements are sent together and may be lost with a connection, so listeners also poll from time to time.
        """
        ...

    def listen(self, topic: str, callback: Callable[[], object]) -> AbstractContextManager[None]:
        """Inside the ``with`` block, call ``callback`` in another thread after announcements of ``topic``.

        It may be called without a change too. SQLite files have no announcements, so it is never called there.
        """
        ...

    def close(self) -> None:
        """Close the database. The data of a ``:memory:`` database is lost."""
        ...


def register_writer(db: Connection, writer: Writer, is_held: Callable[[str, int, float, float | None], bool]) -> None:
    """Add this process to the writers, inside a transaction, and delete those that have ended."""
    for other in map(Writer._make, db.execute(f"SELECT {_WRITER} FROM hookline_writers").fetchall()):
        if other[:2] != writer[:2] and not is_held(other.host, other.pid, other.since, other.born):
            db.execute("DELETE FROM hookline_writers WHERE host = ? AND pid = ?", other[:2])
    db.execute(upsert("hookline_writers", Writer._fields, ("host", "pid")), writer)


def older_writers(
    db: Connection, min_writer: int, is_held: Callable[[str, int, float, float | None], bool]
) -> list[Writer]:
    """Return the processes that still write tables, and know only versions before ``min_writer``."""
    query = f"SELECT {_WRITER} FROM hookline_writers WHERE format < ? ORDER BY host, pid"
    found = map(Writer._make, db.execute(query, (min_writer,)).fetchall())
    return [each for each in found if is_held(each.host, each.pid, each.since, each.born)]


def contraction_error(place: str, schema: Schema, older: Sequence[Writer]) -> StoreError:
    """Return the error that tables cannot be converted, because these processes could not write them any more."""
    return StoreError(
        f"the {schema.contents} in {place} cannot be converted to format {schema.version} while processes of earlier "
        f"versions use them: stop {', '.join(map(str, older))}, and try again (rows of processes that ended on another "
        "machine can be deleted from the table hookline_writers)"
    )


def newer_error(place: str, schema: Schema, version: int) -> StoreError:
    """Return the error that a newer Hookline has converted tables to a version that this one must not use."""
    return StoreError(
        f"the {schema.contents} in {place} were written by a newer Hookline (format {version}): update Hookline"
    )


_WRITER = ", ".join(Writer._fields)


def like_pattern(text: str) -> str:
    """Return the pattern of ``LIKE``, with a backslash as escape character, that finds a text anywhere."""
    return "%" + re.sub(r"([%_\\])", r"\\\1", text) + "%"


def upsert(table: str, columns: Sequence[str], keys: Sequence[str]) -> str:
    """Return the statement that adds a row, or replaces the row with the same keys."""
    changed = ", ".join(f"{column} = excluded.{column}" for column in columns if column not in keys)
    marks = ", ".join("?" * len(columns))
    names = ", ".join(columns)
    return f"INSERT INTO {table} ({names}) VALUES ({marks}) ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {changed}"


_ROWS = (128, 16, 4, 1)
"""Rows per statement. Many small statements take longer: Python may run another thread after each of them."""
_UNSTORABLE = (UnicodeEncodeError, OverflowError, TypeError, sqlite3.ProgrammingError, sqlite3.InterfaceError)
"""Errors because of a value that a database cannot store."""
_LARGEST = 2**63 - 1


def insert(
    db: Connection, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], on_conflict: str = ""
) -> None:
    """Insert rows with few statements. A value that the database cannot store is converted: see :func:`storable_value`.

    Args:
        db: the connection.
        table: the table.
        columns: the names of the columns: other versions may have more.
        rows: the rows, of which no two have the same key.
        on_conflict: what to do if a row exists.
    """
    if len(rows) > 1 and isinstance(db, BulkConnection) and db.insert(table, columns, rows, on_conflict):
        return
    waiting, left = iter(rows), len(rows)
    for count in _ROWS:
        while left >= count:
            statement = _insertion(table, tuple(columns), count, on_conflict)
            values = list(chain.from_iterable(islice(waiting, count)))
            try:
                db.execute(statement, values)
            except _UNSTORABLE:
                db.execute(statement, list(map(storable_value, values)))
            left -= count


@lru_cache
def _insertion(table: str, columns: tuple[str, ...], count: int, on_conflict: str) -> str:
    row = f"({','.join('?' * len(columns))})"
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES {','.join([row] * count)} {on_conflict}"


def storable(text: str) -> str:
    """Replace lone surrogates, which no database can store."""
    return text.encode(errors="replace").decode()


def storable_value(value: Any) -> Any:
    """Convert a value that a database cannot store: lone surrogates, integers beyond 64 bits, other types."""
    kind = value.__class__
    if kind is str:
        return value if value.isascii() else storable(value)
    if kind is int:
        return value if -_LARGEST <= value <= _LARGEST else max(-_LARGEST, min(value, _LARGEST))
    if value is None or kind is float or kind is bytes:
        return value
    return int(value) if isinstance(value, int) else storable(str(value))


def is_same(one: Database, other: Database) -> bool:
    """Whether two objects are one database. Each one in memory is a database of its own."""
    return one is other or (one.path == other.path and not one.in_memory)
