"""The tables of every store, and their databases at one address."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from .sql import Schema

if TYPE_CHECKING:
    from .postgres import PostgresDatabase

STORES = (
    "runs",
    "approvals",
    "sessions",
    "keys",
    "mailbox",
    "chats",
    "tickets",
    "memory",
    "artifacts",
    "notes",
    "leases",
    "limits",
    "audit.index",
    "skills",
    "blackboard",
    "spending",
    "calls",
)
"""Modules of stores with tables."""


def all_schemas() -> list[Schema]:
    """Return the tables of every store."""
    return [import_module(f".{name}", __package__).SCHEMA for name in STORES]


def databases_at(url: str) -> list[PostgresDatabase]:
    """Return the database of every store at an address.

    Raises:
        StoreError: the address is not valid, or the library for PostgreSQL is missing.
    """
    from .postgres import PostgresDatabase

    return [PostgresDatabase(url, schema) for schema in all_schemas()]


def check_database(url: str) -> None:
    """Check the tables of all stores at an address, so that a program does not start on those of another version.

    Raises:
        StoreError: the database cannot be used, or a store has tables of an earlier or newer version.
    """
    for database in databases_at(url):
        try:
            database.check()
        finally:
            database.close()
