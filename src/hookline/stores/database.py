"""Open the database of a store: a SQLite file, or PostgreSQL for an address such as ``postgresql://host/name``."""

from __future__ import annotations

import glob
import os

from .paths import is_database_url
from .sql import Database, Schema
from .sqlite import SqliteDatabase


def open_database(
    path: str | os.PathLike[str], schema: Schema, *, durable: bool = False, pinned: bool = False
) -> Database:
    """Return the database of a store. It is opened, and its tables are created, when it is first used.

    Args:
        path: a SQLite file, ``:memory:``, or the address of a PostgreSQL database.
        schema: the tables.
        durable: sync each commit of a SQLite file to disk. PostgreSQL does so unless its settings say otherwise.
        pinned: refuse to write a SQLite file that was moved or deleted.

    Raises:
        StoreError: the path or the address is not valid, or the library for PostgreSQL is missing.
    """
    if is_database_url(path):
        from .postgres import PostgresDatabase

        return PostgresDatabase(str(path), schema)
    return SqliteDatabase(path, schema, durable=durable, pinned=pinned)


def database_files(database: Database) -> tuple[str, ...]:
    """Return the files that an agent's tools must not write: the SQLite file, and globs for those beside it."""
    if database.is_shared or database.in_memory:
        return ()
    name = glob.escape(os.path.basename(database.path))
    return database.path, f"{name}-wal", f"{name}-shm", f"{name}-journal"
