"""Pairing of a gateway with the people who may talk to it, by one-time codes."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Sequence

import msgspec

from .errors import StoreError
from .sql import Connection, Database, upsert

VALID_SECONDS = 3600.0
"""Seconds that a code is valid."""

MAX_PENDING = 20
"""Maximum number of unused codes of one channel. Other senders get no code until one is used or expires."""

_ALPHABET = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"  # no characters that look alike
_ROUNDS = 20_000
_PERSON_ROW = upsert("people", ("channel", "sender", "since"), ("channel", "sender"))


class Person(msgspec.Struct, frozen=True):
    """A paired sender, or with ``until`` a sender whose code is valid until that time."""

    channel: str
    sender: str
    since: float = 0.0
    until: float = 0.0


def is_paired(db: Connection, channel: str, sender: str) -> bool:
    """Whether a sender is paired."""
    found = db.execute("SELECT 1 FROM people WHERE channel = ? AND sender = ?", (channel, _storable(sender)))
    return found.fetchone() is not None


def create_code(db: Connection, channel: str, sender: str) -> str | None:
    """Create a code for a sender; ``None`` if the sender has one already, or if too many codes are unused."""
    now = time.time()
    db.execute("DELETE FROM codes WHERE until <= ?", (now,))
    rows = db.execute("SELECT sender FROM codes WHERE channel = ?", (channel,)).fetchall()
    if len(rows) >= MAX_PENDING or (_storable(sender),) in rows:
        return None
    code = "".join(secrets.choice(_ALPHABET) for _ in range(8))
    salt = secrets.token_bytes(16)
    values = (channel, _storable(sender), salt, _hash(code, salt), now + VALID_SECONDS)
    db.execute("INSERT INTO codes (channel, sender, salt, hash, until) VALUES (?, ?, ?, ?, ?)", values)
    return f"{code[:4]}-{code[4:]}"


def pair(database: Database, code: str) -> Person:
    """Pair the sender who got this code, and delete the code.

    Raises:
        StoreError: the code does not exist or has expired.
    """
    plain = "".join(c for c in code.upper() if c in _ALPHABET)
    with database.transaction(write=True) as db:
        rows = db.execute("SELECT channel, sender, salt, hash FROM codes WHERE until > ?", (time.time(),)).fetchall()
        for channel, sender, salt, known in rows:
            if hmac.compare_digest(_hash(plain, salt), known):
                db.execute("DELETE FROM codes WHERE channel = ? AND sender = ?", (channel, sender))
                person = Person(channel, sender, time.time())
                db.execute(_PERSON_ROW, (channel, sender, person.since))
                return person
    raise StoreError("the code does not exist or has expired: the sender gets a new one by writing again")


def people(database: Database) -> Sequence[Person]:
    """Return all paired senders, then all senders with a valid code."""
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
    """Remove a sender and their code; return whether there was either."""
    with database.transaction(write=True) as db:
        deleted = [
            db.execute(f"DELETE FROM {table} WHERE channel = ? AND sender = ?", (channel, _storable(sender))).rowcount
            for table in ("people", "codes")
        ]
    return any(deleted)


def _hash(code: str, salt: bytes) -> bytes:
    return hashlib.pbkdf2_hmac("sha256", code.encode(), salt, _ROUNDS)


def _storable(text: str) -> str:
    """Escape lone surrogates, which SQLite cannot store, so that different senders stay different."""
    return text.encode(errors="backslashreplace").decode()
