"""Token buckets in a PostgreSQL database, so that all replicas of a server share the rate limit of a caller."""

from __future__ import annotations

import os
import time

from .database import open_database
from .leases import NOW
from .sql import PerDialect, Schema

KEEP_SECONDS = 24 * 3600.0
"""Seconds after which the bucket of a caller that sends nothing is deleted."""

# A crash of the server empties the table, which only lets callers send a little more. In return, nothing is written to
# the log of the database.
_TABLE = "TABLE buckets (caller TEXT PRIMARY KEY, level DOUBLE PRECISION NOT NULL, at DOUBLE PRECISION NOT NULL)"
SCHEMA = Schema(
    "limits",
    contents="rate limits",
    application_id=0x486B4C49,
    version=1,
    statements=(PerDialect(f"CREATE {_TABLE}", f"CREATE UNLOGGED {_TABLE}"),),
)

# Of two requests at once, the one that is counted last may have read the clock first.
_AT = "greatest(excluded.at, buckets.at)"
_LEVEL = f"least(:burst, buckets.level + ({_AT} - buckets.at) * :rate)"
_TAKE = f"""INSERT INTO buckets (caller, level, at) VALUES (:caller, :burst - 1, {NOW})
    ON CONFLICT (caller) DO UPDATE SET level = {_LEVEL} - 1, at = {_AT} WHERE {_LEVEL} >= 1 RETURNING level"""
_WAIT = f"SELECT (1 - level) / :rate - ({NOW} - at) FROM buckets WHERE caller = :caller"


class BucketStore:
    """One token bucket per caller: ``burst`` requests, refilled with ``rate`` requests per second.

    Args:
        url: address of a PostgreSQL database.
        rate: requests per second.
        burst: requests at once.
    """

    def __init__(self, url: str | os.PathLike[str], rate: float, burst: int) -> None:
        self._db = open_database(url, SCHEMA)
        self._values = {"rate": float(rate), "burst": float(burst)}
        self._pruned = time.monotonic()

    def take(self, caller: str) -> float:
        """Take one token. Return 0, or the seconds until the next token if the bucket is empty.

        Raises:
            StoreError: the database cannot be used.
        """
        values = {**self._values, "caller": caller}
        if time.monotonic() > self._pruned + KEEP_SECONDS:
            self._pruned = time.monotonic()
            self._db.execute(f"DELETE FROM buckets WHERE at < {NOW} - ?", (KEEP_SECONDS,), write=True)
        if self._db.execute(_TAKE, values, write=True):
            return 0.0
        rows = self._db.execute(_WAIT, values)
        return max(float(rows[0][0]), 0.001) if rows else 0.001

    def close(self) -> None:
        """Close the database."""
        self._db.close()
