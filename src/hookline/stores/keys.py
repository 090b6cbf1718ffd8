"""API keys: who may call a server, in a SQLite file that several programs may share."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
import sqlite3
import string
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, get_args

import msgspec

from .._base.background_writer import BackgroundWriter
from .._base.frozen import EMPTY, plain
from .._base.text import did_you_mean
from .errors import StoreError
from .sqlite import Database, storable

log = logging.getLogger("hookline")

Right = Literal["read", "run", "approve", "admin"]
State = Literal["active", "expired", "revoked"]
RIGHTS: tuple[Right, ...] = get_args(Right)
"""What a caller may do: look at runs, start and cancel them, decide about calls; ``admin``: with everybody's."""

FRESH_SECONDS = 0.25
"""For how long what was read is taken for true: a key that is revoked by another program works no longer than that."""
USED_SECONDS = 60.0
"""How often it is written at most that a key was used."""
MAX_NAME, MAX_METADATA = 64, 4096
"""Characters of a name; bytes of what hooks are told of a caller."""

_SCHEMA = (
    """CREATE TABLE keys (
        id TEXT PRIMARY KEY, hash BLOB NOT NULL, name TEXT NOT NULL, scopes TEXT NOT NULL, metadata TEXT NOT NULL,
        created REAL NOT NULL, expires REAL, revoked REAL, last_used REAL
    )""",
    "CREATE UNIQUE INDEX keys_by_name ON keys (name) WHERE revoked IS NULL",
    "CREATE TABLE stamp (value BLOB NOT NULL)",
    "INSERT INTO stamp VALUES (randomblob(16))",
    *(
        f"""CREATE TRIGGER keys_{what.split()[0].lower()} AFTER {what} ON keys
        BEGIN UPDATE stamp SET value = randomblob(16); END"""
        for what in ("INSERT", "DELETE", "UPDATE OF id, hash, name, scopes, metadata, created, expires, revoked")
    ),
)
_COLUMNS = "id, name, scopes, metadata, created, expires, revoked, last_used, hash"
_LETTERS = string.ascii_letters + string.digits
_NOBODY = bytes(32)


class KeyRow(msgspec.Struct, frozen=True):
    """What is known of a key. ``metadata`` is what hooks are told of its caller; the secret is known to nobody."""

    id: str
    name: str
    scopes: tuple[str, ...]
    metadata: Mapping[str, Any]
    created: float
    expires: float | None = None
    revoked: float | None = None
    last_used: float | None = None

    def state(self, now: float) -> State:
        """Whether it may be used, or why not."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= now else "active"


class KeyStore:
    """Keys such as ``hl_4k2m9x7q_...``: made, found, listed and revoked.

    Of the secret only a SHA-256 is kept. Slow hashes with salt protect what people choose, which can be guessed; 256
    random bits cannot, however fast the hash is.

    What was read is kept in memory. At most every quarter of a second one row is looked at, which says whether
    anything has changed; so keys that other programs make or revoke count at once.

    Args:
        path: the file, or ``:memory:``. It is made with the first key.
        clock: tells the time.
    """

    def __init__(self, path: str | os.PathLike[str], *, clock: Callable[[], float] = time.time) -> None:
        self._database = _database(path)
        self._marking = self._database if self._database.in_memory else _database(path)  # never in a reader's way
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, tuple[KeyRow, bytes]] = {}
        self._stamp: bytes | None = None
        self._until = 0.0
        self.problem: StoreError | None = None
        """Why the keys could not be read, if that is so: then nobody can be let in."""
        self._marked: dict[str, float] = {}
        self._marks: BackgroundWriter[tuple[str, float]] = BackgroundWriter(self._mark, self._unmarked, limit=10_000)

    @property
    def path(self) -> str:
        """Where the keys are."""
        return self._database.path

    def add(
        self, name: str, scopes: Iterable[str], *, expires: float | None = None, metadata: Mapping[str, Any] = EMPTY
    ) -> tuple[KeyRow, str]:
        """Make a key: what is known of it, and the key itself, which nobody can show again.

        Args:
            name: whose it is; no two keys that are not revoked have the same.
            scopes: what it may be used for: ``read``, ``run``, ``approve``, ``admin``.
            expires: until when it is good, as a Unix time; ``None`` for ever.
            metadata: what hooks are told of its caller, such as ``{"user_role": "customer"}``.

        Raises:
            StoreError: a name, a right or a time that cannot be, a name that is taken, or a file that cannot be used.
        """
        now = self._clock()
        name, rights, told = _name(name), _rights(scopes), _metadata(metadata)
        if expires is not None and not expires > now:
            raise StoreError("the key would have expired already: give a time to come")
        secret = "".join(secrets.choice(_LETTERS) for _ in range(43))  # 62**43 > 2**256
        with self._database.transaction(write=True) as db:
            taken = db.execute("SELECT expires FROM keys WHERE name = ? AND revoked IS NULL", (name,)).fetchone()
            if taken is not None:
                was = "that has expired" if taken[0] is not None and taken[0] <= now else "already"
                raise StoreError(f"there is a key {name!r} {was}: revoke it first, or choose another name")
            id = _new_id(db)
            values = (id, _hash(secret), name, " ".join(rights), told, now, expires)
            db.execute("INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, ?, NULL, NULL)", values)
        self._until = 0.0
        return KeyRow(id, name, rights, msgspec.json.decode(told), now, expires), f"hl_{id}_{secret}"

    def keys(self) -> list[KeyRow]:
        """All keys, in the order they were made, revoked ones too.

        Raises:
            StoreError: the file cannot be read.
        """
        if self._is_missing():
            return []
        with self._database.transaction() as db:
            rows = db.execute(f"SELECT {_COLUMNS} FROM keys ORDER BY created, rowid").fetchall()
        return [_row(row)[0] for row in rows]

    def revoke(self, which: str) -> KeyRow:
        """End a key, by its id or its name. It stays in the list.

        Raises:
            StoreError: there is none, or the file cannot be used.
        """
        found = self.keys()
        row = next((key for key in found if key.id == which), None)
        row = row or next((key for key in found if key.name == which and key.revoked is None), None)
        if row is None and any(key.name == which for key in found):
            raise StoreError(f"the key {which!r} is revoked already")
        if row is None:
            hint = did_you_mean(which, [name for key in found for name in (key.id, key.name)])
            raise StoreError(f"there is no key {which!r:.80}.{hint} hookline keys shows all")
        if row.revoked is not None:
            raise StoreError(f"the key {which!r} is revoked already")
        now = self._clock()
        with self._database.transaction(write=True) as db:
            db.execute("UPDATE keys SET revoked = ? WHERE id = ? AND revoked IS NULL", (now, row.id))
        self._until = 0.0
        return msgspec.structs.replace(row, revoked=now)

    def find(self, secret: str) -> KeyRow | None:
        """Whose key this is, if it may be used now.

        Raises:
            StoreError: the file cannot be read: nobody can be let in.
        """
        self.refresh()
        row = self.known(secret)
        if row is None or self.state(row) != "active":
            return None
        self.used(row)
        return row

    def state(self, row: KeyRow) -> State:
        """Whether a key may be used now, or why not, as far as was read."""
        row, _ = self._known.get(row.id, (msgspec.structs.replace(row, revoked=0.0), b""))
        return row.state(self._clock())

    # For those who must not wait.

    @property
    def is_due(self) -> bool:
        """Whether the file should be looked at, with :meth:`refresh`, before :meth:`known` is asked."""
        return time.monotonic() >= self._until

    @property
    def is_empty(self) -> bool:
        """Whether there never was a key, as far as is known."""
        return not self._known

    def refresh(self) -> None:
        """Look whether the keys have changed, unless that was done just now.

        Raises:
            StoreError: the file cannot be read, also if it was gone or unreadable just now.
        """
        with self._lock:
            if self.is_due:
                try:
                    self._read()
                    self.problem = None
                except StoreError as error:
                    self.problem = error
                self._until = time.monotonic() + FRESH_SECONDS
            if self.problem is not None:
                raise self.problem

    def known(self, secret: str) -> KeyRow | None:
        """Whose key this is, revoked or expired ones too, as far as was read; it takes as long if it is nobody's."""
        start, _, rest = secret.partition("_")
        id, _, own = rest.partition("_")
        row, expected = self._known.get(id, (None, _NOBODY))
        same = hmac.compare_digest(_hash(own), expected)
        return row if same and start == "hl" else None

    def used(self, row: KeyRow) -> None:
        """Note that a key was used, without waiting; it is written once a minute at most."""
        now = self._clock()
        if now - self._marked.get(row.id, row.last_used or 0.0) >= USED_SECONDS:
            self._marked[row.id] = now
            self._marks.put((row.id, now), 1)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until it is written which keys were used; false if time ran out."""
        return self._marks.flush(timeout)

    def close(self) -> None:
        """Write what waits, and close the file."""
        self.flush(2.0)
        self._database.close()
        self._marking.close()

    def _read(self) -> None:
        if self._is_missing():
            if self._stamp is not None:
                raise StoreError(f"{self.path} is gone: bring it back, or start the server again")
            return
        with self._database.transaction() as db:
            (stamp,) = db.execute("SELECT value FROM stamp").fetchone() or (None,)
            if not isinstance(stamp, bytes):
                raise StoreError(f"{self.path} is not as Hookline made it: move it away, and make new keys")
            if stamp == self._stamp:
                return
            rows = db.execute(f"SELECT {_COLUMNS} FROM keys").fetchall()
        self._known = {key.id: (key, hash) for key, hash in map(_row, rows)}
        self._stamp = stamp

    def _is_missing(self) -> bool:
        if self._database.in_memory:
            return False
        try:
            os.stat(self.path)
        except FileNotFoundError:
            return True
        except OSError as error:
            raise StoreError(f"{self.path} cannot be read ({error.strerror}): make it readable") from None
        return False

    def _mark(self, items: list[tuple[str, float]]) -> None:
        if not self._is_missing():
            with self._marking.transaction(write=True) as db:
                db.executemany(
                    "UPDATE keys SET last_used = max(coalesce(last_used, 0), ?) WHERE id = ?",
                    [(at, id) for id, at in items],
                )

    def _unmarked(self, error: Exception, items: list[tuple[str, float]]) -> None:
        log.debug("it could not be written that %d keys were used: %s", len(items), error)


def _database(path: str | os.PathLike[str]) -> Database:
    return Database(path, holds="API keys", mark=0x486B4C4B, version=1, schema=_SCHEMA)


def _row(row: Any) -> tuple[KeyRow, bytes]:
    id, name, scopes, metadata, created, expires, revoked, last_used, hash = row
    try:
        told = msgspec.json.decode(metadata, type=dict[str, Any])
        values = (id, name, str.split(scopes), told, created, expires, revoked, last_used)
        return msgspec.convert(dict(zip(KeyRow.__struct_fields__, values, strict=True)), KeyRow), bytes(hash)
    except (msgspec.MsgspecError, TypeError, ValueError):
        raise StoreError(f"the key {str(id)!r:.40} is damaged: move the file away, and make new keys") from None


def _new_id(db: sqlite3.Connection) -> str:
    while True:
        id = "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(8))
        if db.execute("SELECT 1 FROM keys WHERE id = ? OR name = ?", (id, id)).fetchone() is None:
            return id


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="replace")).digest()


def _name(name: str) -> str:
    if not (0 < len(name) <= MAX_NAME and name.isprintable() and name == name.strip() == storable(name)):
        raise StoreError(f"a key has a name of 1 to {MAX_NAME} letters, such as 'ci', not {name!r:.80}")
    return name


def _rights(scopes: Iterable[str]) -> tuple[str, ...]:
    given = [scopes] if isinstance(scopes, str) else list(scopes)
    for scope in given:
        if scope not in RIGHTS:
            raise StoreError(
                f"there is no right {scope!r:.80}.{did_you_mean(scope, RIGHTS)} Known: {', '.join(RIGHTS)}"
            )
    if not given:
        raise StoreError(f"a key needs a right at least: {', '.join(RIGHTS)}")
    return tuple(right for right in RIGHTS if right in given)


def _metadata(metadata: Mapping[str, Any]) -> str:
    try:
        told = msgspec.json.encode(plain(dict(metadata)))
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(f"metadata is names with values that are JSON ({error})") from None
    if len(told) > MAX_METADATA:
        raise StoreError(f"metadata has {MAX_METADATA:,} bytes at most, not {len(told):,}")
    return told.decode()
