"""API keys of a server, in a SQLite file that several processes may share."""

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
KeyState = Literal["active", "expired", "revoked"]
RIGHTS: tuple[Right, ...] = get_args(Right)
"""Rights of a caller: read runs, start and cancel runs, decide approvals; ``admin`` covers runs of all callers."""

CACHE_SECONDS = 0.25
"""Seconds that keys are cached. A key that another process revoked is accepted for at most this time."""
USED_SECONDS = 60.0
"""Minimum time between two updates of ``last_used``."""
MAX_NAME, MAX_METADATA = 64, 4096
"""Maximum length of a name in characters, and of metadata in bytes of JSON."""

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
_NO_HASH = bytes(32)


class KeyRow(msgspec.Struct, frozen=True):
    """A key without its secret, which is not stored. Hooks get ``metadata`` as information about the caller."""

    id: str
    name: str
    scopes: tuple[str, ...]
    metadata: Mapping[str, Any]
    created: float
    expires: float | None = None
    revoked: float | None = None
    last_used: float | None = None

    def state(self, now: float) -> KeyState:
        """Whether the key is valid at the Unix time ``now``, or why it is not."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= now else "active"


class KeyStore:
    """Create, find, list and revoke API keys such as ``hl_4k2m9x7q_...``.

    Only a SHA-256 of the secret is stored. Salted slow hashes protect passwords that people choose and attackers
    can guess; 256 random bits cannot be guessed, however fast the hash is.

    Keys are cached in memory. At most every quarter of a second the store reads one row, which shows whether any key
    has changed, so changes by other processes take effect at once.

    Args:
        path: the file, created with the first key, or ``:memory:``.
        clock: returns the Unix time.

    Example::

        keys = KeyStore("keys.db")
        row, secret = keys.add("ci", ["run"], metadata={"user_role": "robot"})
        assert keys.find(secret) == row
    """

    def __init__(self, path: str | os.PathLike[str], *, clock: Callable[[], float] = time.time) -> None:
        self._database = _database(path)
        # A separate connection, so that writing does not block readers.
        self._marking = self._database if self._database.in_memory else _database(path)
        self._clock = clock
        self._lock = threading.Lock()
        self._cache: dict[str, tuple[KeyRow, bytes]] = {}
        self._stamp: bytes | None = None
        self._cached_until = 0.0
        self.problem: StoreError | None = None
        """The error of the last attempt to read the keys. While it is set, every request must be rejected."""
        self._marked: dict[str, float] = {}
        self._marks: BackgroundWriter[tuple[str, float]] = BackgroundWriter(
            self._write_marks, self._on_mark_error, limit=10_000
        )

    @property
    def path(self) -> str:
        """Path of the file."""
        return self._database.path

    def add(
        self, name: str, scopes: Iterable[str], *, expires: float | None = None, metadata: Mapping[str, Any] = EMPTY
    ) -> tuple[KeyRow, str]:
        """Create a key.

        Args:
            name: name of the caller. Keys that are not revoked have different names.
            scopes: rights of the caller: ``read``, ``run``, ``approve``, ``admin``.
            expires: Unix time at which the key expires; ``None`` for never.
            metadata: information about the caller for hooks, such as ``{"user_role": "customer"}``.

        Returns:
            The stored key, and the secret, which cannot be shown again.

        Raises:
            StoreError: an argument is not valid, the name is taken, or the file cannot be used.
        """
        now = self._clock()
        name, rights, data = _name(name), _rights(scopes), _metadata(metadata)
        if expires is not None and not expires > now:
            raise StoreError("the key would already be expired: give a time in the future")
        secret = "".join(secrets.choice(_LETTERS) for _ in range(43))  # 62**43 > 2**256
        with self._database.transaction(write=True) as db:
            taken = db.execute("SELECT expires FROM keys WHERE name = ? AND revoked IS NULL", (name,)).fetchone()
            if taken is not None:
                expired = "an expired" if taken[0] is not None and taken[0] <= now else "a"
                raise StoreError(f"there is already {expired} key {name!r}: revoke it first, or choose another name")
            id = _new_id(db)
            values = (id, _hash(secret), name, " ".join(rights), data, now, expires)
            db.execute("INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, ?, NULL, NULL)", values)
        self._cached_until = 0.0
        return KeyRow(id, name, rights, msgspec.json.decode(data), now, expires), f"hl_{id}_{secret}"

    def keys(self) -> list[KeyRow]:
        """Return all keys in the order of creation, including revoked ones.

        Raises:
            StoreError: the file cannot be read.
        """
        if self._is_missing():
            return []
        with self._database.transaction() as db:
            rows = db.execute(f"SELECT {_COLUMNS} FROM keys ORDER BY created, rowid").fetchall()
        return [_row(row)[0] for row in rows]

    def revoke(self, id_or_name: str) -> KeyRow:
        """Revoke a key, given its id or its name. It stays in the list.

        Raises:
            StoreError: the key does not exist or is already revoked, or the file cannot be used.
        """
        found = self.keys()
        row = next((key for key in found if key.id == id_or_name), None)
        row = row or next((key for key in found if key.name == id_or_name and key.revoked is None), None)
        if row is None and any(key.name == id_or_name for key in found):
            raise StoreError(f"the key {id_or_name!r} is already revoked")
        if row is None:
            hint = did_you_mean(id_or_name, [name for key in found for name in (key.id, key.name)])
            raise StoreError(f"there is no key {id_or_name!r:.80}.{hint} hookline keys shows all")
        if row.revoked is not None:
            raise StoreError(f"the key {id_or_name!r} is already revoked")
        now = self._clock()
        with self._database.transaction(write=True) as db:
            db.execute("UPDATE keys SET revoked = ? WHERE id = ? AND revoked IS NULL", (now, row.id))
        self._cached_until = 0.0
        return msgspec.structs.replace(row, revoked=now)

    def find(self, secret: str) -> KeyRow | None:
        """Return the valid key with this secret, or ``None``; updates ``last_used``.

        Raises:
            StoreError: the file cannot be read, so that the caller must be rejected.
        """
        self.refresh()
        row = self.lookup(secret)
        if row is None or self.state(row) != "active":
            return None
        self.mark_used(row)
        return row

    def state(self, row: KeyRow) -> KeyState:
        """Whether a key is valid now, or why it is not, according to the cache."""
        row, _ = self._cache.get(row.id, (msgspec.structs.replace(row, revoked=0.0), b""))
        return row.state(self._clock())

    # Parts of find() for callers that must not block.

    @property
    def is_stale(self) -> bool:
        """Whether :meth:`refresh` must be called before :meth:`lookup`."""
        return time.monotonic() >= self._cached_until

    @property
    def is_empty(self) -> bool:
        """Whether the cache contains no key, not even a revoked one."""
        return not self._cache

    def refresh(self) -> None:
        """Update the cache unless it is fresh.

        Raises:
            StoreError: the file cannot be read, or could not be read within the last ``CACHE_SECONDS``.
        """
        with self._lock:
            if self.is_stale:
                try:
                    self._read()
                    self.problem = None
                except StoreError as error:
                    self.problem = error
                self._cached_until = time.monotonic() + CACHE_SECONDS
            if self.problem is not None:
                raise self.problem

    def lookup(self, secret: str) -> KeyRow | None:
        """Return the cached key with this secret, even if revoked or expired. Unknown secrets take equally long."""
        start, _, rest = secret.partition("_")
        id, _, own = rest.partition("_")
        row, expected = self._cache.get(id, (None, _NO_HASH))
        same = hmac.compare_digest(_hash(own), expected)
        return row if same and start == "hl" else None

    def mark_used(self, row: KeyRow) -> None:
        """Update ``last_used`` in the background, at most once a minute."""
        now = self._clock()
        if now - self._marked.get(row.id, row.last_used or 0.0) >= USED_SECONDS:
            self._marked[row.id] = now
            self._marks.put((row.id, now), 1)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all updates of ``last_used`` are written; return false on timeout."""
        return self._marks.flush(timeout)

    def close(self) -> None:
        """Write pending updates, and close the file."""
        self.flush(2.0)
        self._database.close()
        self._marking.close()

    def _read(self) -> None:
        if self._is_missing():
            if self._stamp is not None:
                raise StoreError(f"{self.path} was deleted: restore it, or restart the server")
            return
        with self._database.transaction() as db:
            (stamp,) = db.execute("SELECT value FROM stamp").fetchone() or (None,)
            if not isinstance(stamp, bytes):
                raise StoreError(f"{self.path} was changed by another program: move it away, and create new keys")
            if stamp == self._stamp:
                return
            rows = db.execute(f"SELECT {_COLUMNS} FROM keys").fetchall()
        self._cache = {key.id: (key, hash) for key, hash in map(_row, rows)}
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

    def _write_marks(self, items: list[tuple[str, float]]) -> None:
        if not self._is_missing():
            with self._marking.transaction(write=True) as db:
                db.executemany(
                    "UPDATE keys SET last_used = max(coalesce(last_used, 0), ?) WHERE id = ?",
                    [(at, id) for id, at in items],
                )

    def _on_mark_error(self, error: Exception, items: list[tuple[str, float]]) -> None:
        log.debug("cannot update last_used of %d keys: %s", len(items), error)


def _database(path: str | os.PathLike[str]) -> Database:
    return Database(path, contents="API keys", application_id=0x486B4C4B, version=1, schema=_SCHEMA)


def _row(row: Any) -> tuple[KeyRow, bytes]:
    id, name, scopes, metadata, created, expires, revoked, last_used, hash = row
    try:
        data = msgspec.json.decode(metadata, type=dict[str, Any])
        values = (id, name, str.split(scopes), data, created, expires, revoked, last_used)
        return msgspec.convert(dict(zip(KeyRow.__struct_fields__, values, strict=True)), KeyRow), bytes(hash)
    except (msgspec.MsgspecError, TypeError, ValueError):
        raise StoreError(f"the key {str(id)!r:.40} is damaged: move the file away, and create new keys") from None


def _new_id(db: sqlite3.Connection) -> str:
    while True:
        id = "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(8))
        if db.execute("SELECT 1 FROM keys WHERE id = ? OR name = ?", (id, id)).fetchone() is None:
            return id


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="replace")).digest()


def _name(name: str) -> str:
    if not (0 < len(name) <= MAX_NAME and name.isprintable() and name == name.strip() == storable(name)):
        raise StoreError(f"a key needs a name of 1 to {MAX_NAME} printable characters, such as 'ci', not {name!r:.80}")
    return name


def _rights(scopes: Iterable[str]) -> tuple[str, ...]:
    given = [scopes] if isinstance(scopes, str) else list(scopes)
    for scope in given:
        if scope not in RIGHTS:
            raise StoreError(
                f"there is no right {scope!r:.80}.{did_you_mean(scope, RIGHTS)} Known: {', '.join(RIGHTS)}"
            )
    if not given:
        raise StoreError(f"a key needs at least one right: {', '.join(RIGHTS)}")
    return tuple(right for right in RIGHTS if right in given)


def _metadata(metadata: Mapping[str, Any]) -> str:
    try:
        data = msgspec.json.encode(plain(dict(metadata)))
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(f"metadata must be a JSON object: {error}") from None
    if len(data) > MAX_METADATA:
        raise StoreError(f"metadata must have at most {MAX_METADATA:,} bytes, not {len(data):,}")
    return data.decode()
