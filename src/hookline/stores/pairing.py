"""Who may talk to a gateway: people who were let in by a code."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import sqlite3
import time
from collections.abc import Sequence

import msgspec

from .errors import StoreError
from .sqlite import Database

VALID_SECONDS = 3600.0
"""How long a code is good."""

MAX_PENDING = 20
"""How many codes of one channel may be open: more senders get none until one is used or expires."""

_ALPHABET = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"  # none that are taken for one another
_ROUNDS = 20_000


class Person(msgspec.Struct, frozen=True):
    """Somebody who was let in, or with ``until`` somebody whose code is open till then."""

    channel: str
    sender: str
    since: float = 0.0
    until: float = 0.0


def is_known(db: sqlite3.Connection, channel: str, sender: str) -> bool:
    """Whether somebody was let in."""
    found = db.execute("SELECT 1 FROM people WHERE channel = ? AND sender = ?", (channel, _kept(sender)))
    return found.fetchone() is not None


def new_code(db: sqlite3.Connection, channel: str, sender: str) -> str | None:
    """A code for somebody who is not known; ``None`` if they have an open one, or too many are open."""
    now = time.time()
    db.execute("DELETE FROM codes WHERE until <= ?", (now,))
    rows = db.execute("SELECT sender FROM codes WHERE channel = ?", (channel,)).fetchall()
    if len(rows) >= MAX_PENDING or (_kept(sender),) in rows:
        return None
    code = "".join(secrets.choice(_ALPHABET) for _ in range(8))
    salt = secrets.token_bytes(16)
    values = (channel, _kept(sender), salt, _hash(code, salt), now + VALID_SECONDS)
    db.execute("INSERT INTO codes VALUES (?, ?, ?, ?, ?)", values)
    return f"{code[:4]}-{code[4:]}"


def pair(database: Database, code: str) -> Person:
    """Let in whoever was given this code; it is good for once.

    Raises:
        StoreError: there is no such code, or it has expired.
    """
    plain = "".join(c for c in code.upper() if c in _ALPHABET)
    with database.transaction(write=True) as db:
        rows = db.execute("SELECT channel, sender, salt, hash FROM codes WHERE until > ?", (time.time(),)).fetchall()
        for channel, sender, salt, known in rows:
            if hmac.compare_digest(_hash(plain, salt), known):
                db.execute("DELETE FROM codes WHERE channel = ? AND sender = ?", (channel, sender))
                person = Person(channel, sender, time.time())
                db.execute("INSERT OR REPLACE INTO people VALUES (?, ?, ?)", (channel, sender, person.since))
                return person
    raise StoreError("there is no such code, or it has expired: let them write again, and they get a new one")


def people(database: Database) -> Sequence[Person]:
    """Everybody who was let in, then everybody who has an open code."""
    with database.transaction() as db:
        known = db.execute("SELECT channel, sender, since FROM people ORDER BY channel, since").fetchall()
        waiting = db.execute(
            "SELECT channel, sender, until FROM codes WHERE until > ? ORDER BY until", (time.time(),)
        ).fetchall()
    return [
        *(Person(*row) for row in known),
        *(Person(channel, sender, 0.0, until) for channel, sender, until in waiting),
    ]


def revoke(database: Database, channel: str, sender: str) -> bool:
    """Let somebody in no longer; whether they were known, or had a code."""
    with database.transaction(write=True) as db:
        gone = [
            db.execute(f"DELETE FROM {table} WHERE channel = ? AND sender = ?", (channel, _kept(sender))).rowcount
            for table in ("people", "codes")
        ]
    return any(gone)


def _hash(code: str, salt: bytes) -> bytes:
    return hashlib.pbkdf2_hmac("sha256", code.encode(), salt, _ROUNDS)


def _kept(text: str) -> str:
    """A sender as SQLite can hold it: half characters are written out, so that who differs only there stays apart."""
    return text.encode(errors="backslashreplace").decode()
