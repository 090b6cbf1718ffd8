"""Spending of users, sessions and agents on model calls, and reservations for calls that are being made.

An amount is reserved before a call and settled after it. A reservation and the check of the limit are one transaction,
so all processes that use a database share a limit, and none of them can exceed it.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Literal, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from .._base.frozen import Frozen
from .._kernel.errors import RegistrationError
from .database import open_database
from .leases import database_time
from .paths import checked_path
from .sql import Connection, Database, Schema, storable

Window = Literal["1h", "1d", "1w", "1mo"]
WINDOWS: tuple[str, ...] = get_args(Window)
WINDOW_NAMES: Mapping[str, str] = {"1h": "this hour", "1d": "today", "1w": "this week", "1mo": "this month"}

REACHED = "Spending limit "
"""The beginning of the message of a run that was stopped, which is for the user of the run."""

KEEP_SECONDS = 7 * 86400.0
"""Seconds for which the calls of a window are kept after its end."""
_PRUNE_SECONDS = 600.0
_PRUNED_AT_ONCE = 100
_NANO = 1_000_000_000
"""Amounts are stored as whole numbers of a billionth of a USD, so that sums are exact."""
_MOST = 10**17
"""The largest number that is stored for a call: above it, a hundred million USD, sums would not fit into a column."""

SCHEMA = Schema(
    "spending",
    contents="spending limits",
    application_id=0x486B5350,
    version=1,
    statements=(
        """CREATE TABLE accounts (
            account TEXT NOT NULL, subject TEXT NOT NULL, since REAL NOT NULL, until REAL NOT NULL,
            usd INTEGER NOT NULL, tokens INTEGER NOT NULL, held_usd INTEGER NOT NULL, held_tokens INTEGER NOT NULL,
            calls INTEGER NOT NULL, usd_limit INTEGER, token_limit INTEGER, PRIMARY KEY (account, subject, since)
        )""",
        "CREATE INDEX accounts_by_end ON accounts (until)",
        """CREATE TABLE calls (
            account TEXT NOT NULL, subject TEXT NOT NULL, id TEXT NOT NULL, since REAL NOT NULL,
            usd INTEGER NOT NULL, tokens INTEGER NOT NULL, is_open INTEGER NOT NULL,
            PRIMARY KEY (account, subject, id)
        )""",
    ),
)

_COLUMNS = "account, subject, since, until, usd, tokens, held_usd, held_tokens, calls, usd_limit, token_limit"
_ACCOUNT = "account = ? AND subject = ? AND since = ?"
_CALL = "account = ? AND subject = ? AND id = ?"
_STORE_ACCOUNT = f"""INSERT INTO accounts ({_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,?)
    ON CONFLICT (account, subject, since) DO UPDATE SET held_usd = excluded.held_usd,
    held_tokens = excluded.held_tokens, usd_limit = excluded.usd_limit, token_limit = excluded.token_limit"""
_LEAST_LEFT_FIRST = """coalesce((usd + held_usd) * 1.0 / nullif(usd_limit, 0), 0)
    + coalesce((tokens + held_tokens) * 1.0 / nullif(token_limit, 0), 0) DESC, account, subject"""


class Amount(Frozen, frozen=True):
    """An amount to reserve, or that was spent."""

    usd: float = 0.0
    tokens: int = 0


class SpendingAccount(Frozen, frozen=True):
    """Spending of a subject in one window, which lasts from ``since`` to ``until`` (Unix time).

    ``reserved`` is for calls that have not been settled. The limits are those of the last call; ``None`` is no limit.
    """

    account: str
    subject: str
    since: float
    until: float
    spent: Amount = Amount()
    reserved: Amount = Amount()
    calls: int = 0
    usd_limit: float | None = None
    token_limit: int | None = None

    @property
    def usd_left(self) -> float | None:
        """The USD that are neither spent nor reserved; ``None`` if they are not limited."""
        used = self.spent.usd + self.reserved.usd
        return None if self.usd_limit is None else max(0.0, round(self.usd_limit - used, 9))

    @property
    def tokens_left(self) -> int | None:
        """The tokens that are neither spent nor reserved; ``None`` if they are not limited."""
        used = self.spent.tokens + self.reserved.tokens
        return None if self.token_limit is None else max(0, self.token_limit - used)

    @property
    def share(self) -> float:
        """How much of the stricter limit is used, from 0 to 1."""
        used = Amount(self.spent.usd + self.reserved.usd, self.spent.tokens + self.reserved.tokens)
        usd = used.usd / self.usd_limit if self.usd_limit else 0.0
        tokens = used.tokens / self.token_limit if self.token_limit else 0.0
        return min(1.0, max(usd, tokens))


class Reservation(Frozen, frozen=True):
    """Whether an amount was reserved, and the account: afterwards, or as it was if there was no room."""

    granted: bool
    account: SpendingAccount


class Calendar(Frozen, frozen=True):
    """Windows of time: hours, days from midnight, weeks from Monday, or months, in a time zone.

    Raises:
        RegistrationError: there is no such window or time zone.
    """

    window: str
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        if self.window not in WINDOWS:
            raise RegistrationError(f"window must be one of {', '.join(WINDOWS)}, not {self.window!r:.80}")
        _zone(self.timezone)

    def at(self, now: float) -> tuple[float, float]:
        """Return the beginning and the end of the window at a Unix time."""
        zone = _zone(self.timezone)
        local = datetime.fromtimestamp(now, zone)
        if self.window == "1h":
            offset = local.utcoffset() or timedelta()
            begin = math.floor((now + offset.total_seconds()) / 3600) * 3600 - offset.total_seconds()
            return begin, begin + 3600
        midnight = local.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None, fold=0)
        if self.window == "1d":
            begun, end = midnight, midnight + timedelta(days=1)
        elif self.window == "1w":
            begun = midnight - timedelta(days=midnight.weekday())
            end = begun + timedelta(days=7)
        else:
            begun = midnight.replace(day=1)
            end = (begun + timedelta(days=32)).replace(day=1)
        return begun.replace(tzinfo=zone).timestamp(), end.replace(tzinfo=zone).timestamp()

    def time_text(self, at: float) -> str:
        """Return a Unix time in the time zone, such as ``2026-03-01 00:00 UTC``."""
        return f"{datetime.fromtimestamp(at, _zone(self.timezone)):%Y-%m-%d %H:%M} {self.timezone}"


@lru_cache
def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        raise RegistrationError(
            f"timezone must be a name such as UTC or Europe/Berlin, not {name!r:.80}. If that is one, this system has "
            "no time zones: pip install tzdata"
        ) from None


class SpendingStore:
    """Store what was spent on model calls, in a SQLite file or a PostgreSQL database. All methods block.

    :class:`~hookline.hooks.SpendingLimit` uses it. People read it with ``hookline stats`` and on the Cost page of the
    console, and ``hookline spending NAME --reset`` lets somebody spend again.

    Example::

        store = SpendingStore("spending.db")
        agent = Agent("helper", llm=model, hooks=[SpendingLimit(usd=1.0, store=store)])
        for account in store.accounts():
            print(account.subject, account.spent.usd, account.usd_left)

    Args:
        path: a SQLite file, ``:memory:``, or the address of a PostgreSQL database.
        clock: returns the Unix time; by default the clock of the PostgreSQL database, or of the machine of a file.

    Raises:
        StoreError: the path or the address is not valid, or the library for PostgreSQL is missing.
    """

    def __init__(self, path: str | os.PathLike[str], *, clock: Callable[[], float] | None = None) -> None:
        self._db: Database = open_database(checked_path(path, "SpendingStore takes the path of a file"), SCHEMA)
        self._clock = clock
        self._pruned = -math.inf

    def __repr__(self) -> str:
        return f"SpendingStore({self.path!r})"

    @property
    def path(self) -> str:
        """The file, or the address of the database without its password."""
        return self._db.path

    @property
    def db(self) -> Database:
        """The database."""
        return self._db

    def reserve(
        self,
        account: str,
        subject: str,
        call: str,
        amount: Amount,
        *,
        calendar: Calendar,
        usd_limit: float | None = None,
        token_limit: int | None = None,
    ) -> Reservation:
        """Reserve an amount for a call, if the subject has not reached a limit with it.

        A call counts once in an account, also if several limits reserve for it, or if its run continues elsewhere.

        Args:
            account: the name of the account.
            subject: whose account it is.
            call: identifies the call.
            amount: what the call may cost at most.
            calendar: the windows of the account.
            usd_limit: the limit in USD in one window.
            token_limit: the limit in tokens in one window.

        Raises:
            StoreError: the database cannot be used.
        """
        account, subject, call = storable(account), storable(subject), storable(call)
        limits = None if usd_limit is None else _nanos(usd_limit, up=False), token_limit
        usd, tokens = _nanos(amount.usd), min(amount.tokens, _MOST)
        with self._db.transaction(write=True, lock=f"{account} {subject}") as db:
            since, until = calendar.at(self._now(db))
            query = f"SELECT since, usd, tokens, is_open FROM calls WHERE {_CALL}"
            known = db.execute(query, (account, subject, call)).fetchone()
            is_open = known is not None and bool(known[3])
            if known is not None:
                since = known[0]
            row = db.execute(f"SELECT {_COLUMNS} FROM accounts WHERE {_ACCOUNT}", (account, subject, since)).fetchone()
            begin = (account, subject, since, until, 0, 0, 0, 0, 0) if row is None else row[:9]
            row = (*begin, *limits)
            spent, spent_tokens, held, held_tokens = begin[4:8]
            if known is None:
                held, held_tokens = held + usd, held_tokens + tokens
            has_room = _is_within(spent + held, limits[0]) and _is_within(spent_tokens + held_tokens, limits[1])
            if has_room and known is None:
                row = (*row[:6], held, held_tokens, *row[8:])
                db.execute(
                    "INSERT INTO calls (account, subject, id, since, usd, tokens, is_open) VALUES (?,?,?,?,?,?,1)",
                    (account, subject, call, since, usd, tokens),
                )
            if known is None or is_open:
                db.execute(_STORE_ACCOUNT, row)
            self._prune(db)
        return Reservation(has_room or (known is not None and not is_open), _account(row))

    def settle(self, account: str, subject: str, call: str, spent: Amount | None, *, made: bool = True) -> bool:
        """Replace the reservation for a call by what it has spent. Return false if the call is settled already.

        Args:
            account: the name of the account.
            subject: whose account it is.
            call: identifies the call.
            spent: what it has spent; ``None`` if nobody knows, so that it counts with what was reserved.
            made: whether the model was called.

        Raises:
            StoreError: the database cannot be used.
        """
        account, subject, call = storable(account), storable(subject), storable(call)
        key = account, subject, call
        with self._db.transaction(write=True, lock=f"{account} {subject}") as db:
            found = db.execute(f"SELECT since, usd, tokens FROM calls WHERE {_CALL} AND is_open = 1", key).fetchone()
            if found is None:
                return False
            since, held_usd, held_tokens = found
            usd, tokens = held_usd, held_tokens
            if spent is not None:
                usd, tokens = _nanos(spent.usd), min(spent.tokens, _MOST)
            db.execute(f"UPDATE calls SET usd = ?, tokens = ?, is_open = 0 WHERE {_CALL}", (usd, tokens, *key))
            db.execute(
                f"""UPDATE accounts SET usd = usd + ?, tokens = tokens + ?, held_usd = held_usd - ?,
                    held_tokens = held_tokens - ?, calls = calls + ? WHERE {_ACCOUNT}""",
                (usd, tokens, held_usd, held_tokens, int(made), account, subject, since),
            )
        return True

    def accounts(self, subject: str | None = None, *, limit: int = 1000) -> list[SpendingAccount]:
        """Return the accounts of the windows that have not ended, those with the least left first.

        Raises:
            StoreError: the database cannot be used.
        """
        if not self._db.exists():
            return []
        where, values = ("", ()) if subject is None else (" AND subject = ?", (storable(subject),))
        with self._db.transaction() as db:
            query = f"""SELECT {_COLUMNS} FROM accounts WHERE since <= ? AND until > ?{where}
                ORDER BY {_LEAST_LEFT_FIRST} LIMIT ?"""
            now = self._now(db)
            rows = db.execute(query, (now, now, *values, limit)).fetchall()
        return list(map(_account, rows))

    def reset(self, subject: str, account: str | None = None) -> list[SpendingAccount]:
        """Let a subject spend again: forget what was spent and reserved in the windows that have not ended.

        A call that is being made then is not counted. Return the accounts as they were.

        Args:
            subject: whose accounts.
            account: the name of the only account to reset.

        Raises:
            StoreError: the database cannot be used.
        """
        found = [each for each in self.accounts(subject) if account in (None, each.account)]
        for each in found:
            with self._db.transaction(write=True, lock=f"{each.account} {each.subject}") as db:
                key = each.account, each.subject, each.since
                db.execute(f"UPDATE calls SET is_open = 0 WHERE {_ACCOUNT}", key)
                db.execute(
                    f"""UPDATE accounts SET usd = 0, tokens = 0, held_usd = 0, held_tokens = 0, calls = 0
                        WHERE {_ACCOUNT}""",
                    key,
                )
        return found

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def _now(self, db: Connection) -> float:
        return database_time(self._db, db) if self._clock is None else self._clock()

    def _prune(self, db: Connection) -> None:
        """Delete some of the accounts whose windows have ended, from time to time."""
        if time.monotonic() < self._pruned + _PRUNE_SECONDS:
            return
        query = "SELECT account, subject, since FROM accounts WHERE until < ? ORDER BY until, account, subject LIMIT ?"
        old = db.execute(query, (self._now(db) - KEEP_SECONDS, _PRUNED_AT_ONCE)).fetchall()
        for key in old:
            db.execute(f"DELETE FROM calls WHERE {_ACCOUNT}", key)
            db.execute(f"DELETE FROM accounts WHERE {_ACCOUNT}", key)
        if len(old) < _PRUNED_AT_ONCE:
            self._pruned = time.monotonic()


def _is_within(used: int, limit: int | None) -> bool:
    return limit is None or used <= limit


def _nanos(usd: float, *, up: bool = True) -> int:
    """Return an amount as a whole number. What is spent is rounded up, and a limit to the nearest number."""
    nanos = min(usd * _NANO, float(_MOST))
    return math.ceil(round(nanos, 3)) if up else round(nanos)


def _account(row: Any) -> SpendingAccount:
    account, subject, since, until, usd, tokens, held_usd, held_tokens, calls, usd_limit, token_limit = row
    return SpendingAccount(
        account,
        subject,
        since,
        until,
        Amount(usd / _NANO, tokens),
        Amount(held_usd / _NANO, held_tokens),
        calls,
        None if usd_limit is None else usd_limit / _NANO,
        token_limit,
    )
