"""SQL that SQLite and PostgreSQL both take: the interface of a database, and the differences that remain.

Every store writes its SQL once. ``?`` and ``:name`` stand for values, ``ON CONFLICT`` replaces rows, and ``RETURNING``
gives the number of a new row. Truth values are stored as 0 and 1 and compared as numbers. JSON is stored as JSON text
or as bytes. ``LIKE`` ignores the case of A to Z. A value that is compared with ``IS NULL`` needs a ``CAST``, because
PostgreSQL must know its type.

An object-relational mapper would be the library for this, but the one that fits best (SQLAlchemy) makes SQLite two to
four times slower, and takes 0.6 s to import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import msgspec

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


class Owner(NamedTuple):
    """A process, as rows name it: its machine or its lease, its pid, and its start."""

    host: str
    pid: int
    born: float | None


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

    def transaction(self, *, write: bool = False, lock: str | None = "") -> AbstractContextManager[Connection]:
        """Run the block in a transaction, which an exception rolls back.

        Args:
            write: the block changes rows. No other block with ``write`` runs at the same time, so what it reads stays
                true until it writes.
            lock: on PostgreSQL, exclude only blocks with the same ``lock`` and those without one; ``None`` excludes
                none, which suits a block that only adds rows.

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


def upsert(table: str, columns: Sequence[str], keys: Sequence[str]) -> str:
    """Return the statement that adds a row, or replaces the row with the same keys."""
    changed = ", ".join(f"{column} = excluded.{column}" for column in columns if column not in keys)
    marks = ", ".join("?" * len(columns))
    names = ", ".join(columns)
    return f"INSERT INTO {table} ({names}) VALUES ({marks}) ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {changed}"


def storable(text: str) -> str:
    """Replace lone surrogates, which no database can store."""
    return text.encode(errors="replace").decode()
