"""Sessions in JSON files or in one SQLite file."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from .._base.attachment import Attachment, is_digest, known_content
from .._base.attachment_files import available_data, folder_contents, remove_contents, save_contents
from .._base.files import file_name_for, locked_folder, replace_file
from .._base.frozen import EMPTY, Frozen, History
from .._base.own_files import OwnFile, register_own_file
from .._kernel.values import Message
from .._run.session import Session, added_messages
from .database import open_database
from .errors import StoreError
from .paths import SQLITE, checked_path, folder_advice, is_database_url
from .sql import Connection, Database, Schema

if TYPE_CHECKING:
    from pathlib import Path

VERSION = 1
"""Version of the stored format."""

_MAX_TITLE = 80


class SessionSummary(Frozen, frozen=True):
    """Summary of a stored session. ``problem`` says why the session cannot be loaded; empty if it can."""

    id: str
    messages: int = 0
    saved_at: float = 0.0
    title: str = ""
    problem: str = ""


class SessionRecord(Frozen, frozen=True):
    """A session as it is stored."""

    version: int
    id: str
    saved_at: float = 0.0
    key: str = ""
    platform: str = ""
    personality_id: str = ""
    personality_changes: Any = EMPTY
    handed_over_by: tuple[str, ...] = ()
    started: bool = True
    metadata: Any = EMPTY
    messages: Sequence[Message] = ()

    @classmethod
    def snapshot(cls, session: Session) -> SessionRecord:
        """Return the record of a session as it is now."""
        messages, metadata = session.snapshot()
        return cls(
            version=VERSION,
            id=session.id,
            saved_at=time.time(),
            key=session.key,
            platform=session.platform,
            personality_id=session.personality_id,
            personality_changes=session.personality_changes,
            handed_over_by=session.handed_over_by,
            started=session.started,
            metadata=metadata,
            messages=messages,
        )

    @classmethod
    def read(cls, data: bytes, where: str, advice: str) -> SessionRecord:
        """Decode a stored session.

        Args:
            data: JSON.
            where: location of the data, to begin an error message with.
            advice: what to do, to end an error message with.

        Raises:
            StoreError: the data cannot be read.
        """
        try:
            version = msgspec.json.decode(data, type=_Version).version
            if version <= VERSION:
                return cls.from_json(data)
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise StoreError(f"{where} cannot be read ({error}): {advice}") from error
        raise StoreError(f"{where} was written by a newer Hookline (format {version}): update Hookline")

    def session(self, place: Any) -> Session:
        """Create the session that is stored at ``place``."""
        session = Session(
            self.id,
            self.messages,
            self.metadata,
            key=self.key,
            platform=self.platform,
            personality_id=self.personality_id,
            personality_changes=self.personality_changes,
            handed_over_by=self.handed_over_by,
        )
        if self.started:
            session.first_run()
        session.adopt_stored(place, session.messages, session.messages)
        return session

    def summary(self, problem: str = "") -> SessionSummary:
        """Summarize the session. Its title is the beginning of the first user message."""
        first = next((message.content for message in self.messages if message.role == "user"), "")
        title = " ".join(first.split())[:_MAX_TITLE]
        return SessionSummary(self.id, len(self.messages), self.saved_at, title, problem)


_Merge = Callable[[SessionRecord | None], tuple[bytes, list[Attachment]]]


@contextmanager
def _saving(session: Session, place: Any) -> Iterator[_Merge]:
    """Save a session at ``place``.

    The ``with`` block gets a function. It calls this function with the stored record, and writes the returned bytes and
    the contents of the returned attachments. If the block succeeds, the session contains the messages that were
    written.
    """
    with session._saving:
        record = SessionRecord.snapshot(session)
        taken, data = record.messages, b""

        def merge(stored: SessionRecord | None) -> tuple[bytes, list[Attachment]]:
            nonlocal record, data
            if stored is not None:
                merged = _merged(session, place, taken, stored.messages)
                record = record.replace(messages=merged, started=record.started or stored.started)
            data = record.to_json()
            return data, [each for message in record.messages for each in message.attachments]

        yield merge
        session.adopt_stored(place, taken, record.messages)
        session._written[place] = sha256(data).digest(), record.started


def was_saved(store: SessionStore, session: Session, before: int) -> bool:
    """Whether a store has the messages of a session that began with ``before`` messages: its process ended after that.

    Raises:
        StoreError: the stored session cannot be read.
    """
    stored = store.load(session.id)
    if stored is None or len(stored.messages) == before or len(stored.messages) != len(session.messages):
        return False
    return all(one.to_json() == other.to_json() for one, other in zip(stored.messages, session.messages, strict=True))


def _if_unchanged(session: Session, place: Any, data: bytes) -> SessionRecord | None:
    """Return the record at ``place`` without decoding ``data``, if the session itself wrote this data last."""
    digest, started = session._written.get(place, (b"", True))
    if digest != sha256(data).digest():
        return None
    return SessionRecord(VERSION, session.id, started=started, messages=session._stored[place][1])


def _merged(session: Session, place: Any, messages: Sequence[Message], stored: Sequence[Message]) -> Sequence[Message]:
    """Return the messages to store: those of the session, or the stored ones plus the messages it added."""
    own, known = session._stored.get(place) or [_common(session._given, stored)] * 2
    if list(own) == list(known) == list(stored):
        return messages
    return History((*stored, *added_messages(own, messages)))


def _common(one: Sequence[Message], other: Sequence[Message]) -> Sequence[Message]:
    """Return the common beginning of two lists."""
    return [message for message, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))]


class _Version(msgspec.Struct):
    version: int


def _session_id(session: Session) -> str:
    """Return the id of a session.

    Raises:
        TypeError: the value is not a session.
        StoreError: the id is empty or not valid text.
    """
    if not isinstance(session, Session):
        raise TypeError(f"save() takes a Session, not {type(session).__name__}: save(Session(id, messages))")
    return _checked_id(session.id)


def _checked_id(id: str) -> str:
    """Return an id unchanged.

    Raises:
        StoreError: the id is empty or not valid text.
    """
    if not id:
        raise StoreError("a session without an id cannot be stored: give it an id")
    try:
        id.encode()
    except UnicodeEncodeError:
        raise StoreError(f"the session id {id!r:.80} is not valid text: use another id") from None
    return id


LOCK_SECONDS = 5.0
"""Seconds to wait while another process locks the folder."""

_MAX_NAME = 150


class SessionStore(Protocol):
    """A store of sessions."""

    def load(self, id: str) -> Session | None:
        """Return the last saved state of the session, or ``None`` if it is not stored."""
        ...

    def save(self, session: Session) -> None:
        """Save the session. Messages that other processes saved in the meantime are kept."""
        ...

    def list(self) -> Sequence[SessionSummary]:
        """Return summaries of all sessions, the last saved one first."""
        ...

    def delete(self, id: str) -> bool:
        """Delete a session; return whether it existed."""
        ...


class JsonSessionStore:
    """Store each session in a JSON file.

    Files are replaced atomically. If two processes save the same session, no message is lost: the stored messages stay,
    and the messages added by this session follow; the last saved metadata wins. File names are derived from the ids, so
    that they stay in the folder and differ on every file system. An unreadable file is never overwritten. A process
    that saves locks the file ``.lock`` in the folder. The contents of attachments are in a folder beside the file of
    their session, and are deleted with it.

    Args:
        folder: the folder, created when the first session is saved.

    Raises:
        TypeError: ``folder`` is not a path.

    Example::

        store = JsonSessionStore("sessions")
        session = store.load("talk-1") or Session("talk-1")
        agent.run("Hello.", session=session)
        store.save(session)
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        from pathlib import Path

        self.folder = Path(checked_path(folder, "JsonSessionStore takes a folder")).expanduser().absolute()
        register_own_file(self, OwnFile(str(self.folder), "Hookline's folder of sessions", is_folder=True))
        self._lock = threading.Lock()

    def load(self, id: str) -> Session | None:
        """Return the last saved state of the session, or ``None`` if it is not stored.

        Raises:
            StoreError: the file cannot be read, or the id is not valid.
        """
        path = self._path(id)
        contents = folder_contents(_attachments(path))  # the attachments in the file find them
        stored = _read_file(path)
        if stored is None:
            return None
        del contents
        if stored.id != id:
            raise StoreError(f"{path} holds the session {stored.id!r}, not {id!r}: rename the file back")
        return stored.session(self._place(path))

    def save(self, session: Session) -> None:
        """Save the session. This is fast enough to do after every run.

        Messages that others saved meanwhile are kept, and are added to the session.

        Raises:
            TypeError: the value is not a session.
            StoreError: the file cannot be written, the existing file cannot be read, or the id is not valid.
        """
        path = self._path(_session_id(session))
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _saving(session, self._place(path)) as merge, self._locked():
                data, found = merge(_read_file(path))
                save_contents(_attachments(path), found)
                replace_file(path, data, 0o600)
                remove_contents(_attachments(path), keep=[each.digest for each in found])
        except OSError as error:
            raise StoreError(f"cannot save the session {session.id!r}: {error}{_advice(self.folder, error)}") from error

    def list(self) -> Sequence[SessionSummary]:
        """Return summaries of all sessions, the last saved one first. An unreadable session has a ``problem``.

        Raises:
            StoreError: the folder cannot be read.
        """
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            advice = _advice(self.folder, error, "read")
            raise StoreError(f"the sessions in {self.folder} cannot be listed: {error}{advice}") from error
        files = [self.folder / name for name in names if name.startswith("session-") and name.endswith(".json")]
        return sorted(map(self._summary, files), key=lambda s: (-s.saved_at, s.id))

    def files(self) -> Iterator[tuple[str, bytes, dict[str, bytes]]]:
        """Yield id, stored data and contents of attachments of each session, the last saved one last.

        Raises:
            StoreError: a session cannot be read.
        """
        for summary in reversed(self.list()):
            if summary.problem:
                raise StoreError(summary.problem)
            path = self._path(summary.id)
            folder = _attachments(path)
            names = [name for name in os.listdir(folder) if is_digest(name)] if folder.is_dir() else []
            yield summary.id, path.read_bytes(), {name: (folder / name).read_bytes() for name in names}

    def delete(self, id: str) -> bool:
        """Delete a session; return whether it existed.

        Raises:
            StoreError: the file cannot be deleted, or the id is not valid.
        """
        try:
            path = self._path(id)
            path.lstat()
            with self._locked():
                remove_contents(_attachments(path))
                path.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StoreError(f"cannot delete the session {id!r}: {error}{_advice(self.folder, error)}") from error
        return True

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the folder against changes by other threads and processes."""
        with self._lock, locked_folder(self.folder, LOCK_SECONDS):
            yield

    def _place(self, path: Path) -> str:
        return os.path.join(os.path.realpath(self.folder), path.name)

    def _path(self, id: str) -> Path:
        name = file_name_for(_checked_id(id))
        if len(name) > _MAX_NAME:
            name = f"{name[: _MAX_NAME - 65]}~{sha256(id.encode()).hexdigest()}"
        return self.folder / f"session-{name}.json"

    def _summary(self, path: Path) -> SessionSummary:
        try:
            found = _read_file(path)
            problem = (
                ""
                if found and self._path(found.id) == path
                else f"{path} does not have the file name of its session: rename it"
            )
        except StoreError as error:
            found, problem = None, str(error)
        if found is None:
            return SessionSummary(path.stem.removeprefix("session-"), problem=problem)
        return found.summary(problem)


def _attachments(path: Path) -> Path:
    """Return the folder with the contents of the attachments of a session."""
    return path.with_suffix(".attachments")


def _read_file(path: Path) -> SessionRecord | None:
    where = f"the session file {path}"
    try:
        return SessionRecord.read(path.read_bytes(), where, "repair the file or move it away")
    except FileNotFoundError:
        return None
    except OSError as error:
        advice = _advice(path.parent, error, "read") or ": repair the file or move it away"
        raise StoreError(f"{where} cannot be read ({error}){advice}") from error


def _advice(folder: Path, error: OSError, access: str = "write to") -> str:
    return folder_advice(folder, error, access, "give a folder, or a file that ends in .db for SQLite")


def session_store_at(path: str | os.PathLike[str]) -> SessionStore:
    """Open a session store: PostgreSQL, a SQLite file if the extension says so, or a folder of JSON files."""
    if is_database_url(path) or os.fspath(path).lower().endswith(SQLITE):
        return SqliteSessionStore(path)
    return JsonSessionStore(path)


_ATTACHMENTS = """CREATE TABLE attachments (
    session TEXT NOT NULL, digest TEXT NOT NULL, data BLOB NOT NULL, PRIMARY KEY (session, digest)
)"""
_SESSIONS = """CREATE TABLE sessions (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, data BLOB NOT NULL
)"""
SCHEMA = Schema(
    "sessions",
    contents="sessions",
    application_id=0x486B4C53,
    version=2,
    statements=(_SESSIONS, _ATTACHMENTS),
    upgrades={1: (_ATTACHMENTS,)},
    min_writer=2,
)


class SqliteSessionStore:
    """Store all sessions in one SQLite file or in PostgreSQL, which suits many sessions and many processes.

    Sessions are saved atomically. If two processes save the same session, no message is lost: the stored messages stay,
    and the messages added by this session follow; the last saved metadata wins. An unreadable session is never
    overwritten. The contents of attachments are in the file too, and are deleted with their session.

    Args:
        path: the file, created when first used; ``:memory:`` keeps everything in memory; or the address of a
            PostgreSQL database.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._db = open_database(path, SCHEMA)
        self._where: object = self._db if self._db.in_memory else self._db.path
        """Where sessions remember that they are stored."""
        if not self._db.in_memory and not self._db.is_shared:
            self._where = os.path.realpath(self._db.path)

    @property
    def path(self) -> str:
        """Path of the file, or address of the database."""
        return self._db.path

    @property
    def database(self) -> Database:
        """The underlying database."""
        return self._db

    def load(self, id: str) -> Session | None:
        """Return the last saved state of the session, or ``None`` if it is not stored.

        Raises:
            StoreError: the session cannot be read, or the id is not valid.
        """
        query = """SELECT data, NULL FROM sessions WHERE id = :id
            UNION ALL SELECT NULL, digest FROM attachments WHERE session = :id"""
        rows = self._db.execute(query, {"id": _checked_id(id)})
        # The attachments in the data find their contents while the list exists.
        digests = [digest for _, digest in rows if digest is not None]
        contents = [known_content(digest, partial(self._content, id, digest)) for digest in digests]
        data = next((data for data, _ in rows if data is not None), None)
        session = None if data is None else self._read(id, data).session(self._place(id))
        contents.clear()
        return session

    def save(self, session: Session) -> None:
        """Save the session. This is fast enough to do after every run.

        Messages that others saved meanwhile are kept, and are added to the session.

        Raises:
            TypeError: the value is not a session.
            StoreError: the session cannot be written, the stored one cannot be read, or the id is not valid.
        """
        id = _session_id(session)
        place = self._place(id)
        with _saving(session, place) as merge:
            data, found = merge(None)
            if place in session._stored or found or not self._insert(id, data):
                self._replace(session, id, place, merge)

    def _insert(self, id: str, data: bytes) -> bool:
        """Add a session; return false if it exists. This is one statement, which most sessions of a server need."""
        statement = "INSERT INTO sessions (id, data) VALUES (?, ?) ON CONFLICT (id) DO NOTHING RETURNING 1"
        return bool(self._db.execute(statement, (id, data), write=True))

    def _replace(self, session: Session, id: str, place: tuple[object, str], merge: _Merge) -> None:
        """Save a session that may be stored, or that has attachments."""
        with self._db.transaction(write=True, lock=id) as db:
            row = db.execute("SELECT data FROM sessions WHERE id = ?", (id,)).fetchone()
            data, found = merge(
                None if row is None else _if_unchanged(session, place, row[0]) or self._read(id, row[0])
            )
            # The new row has the highest number. SQLite does both in one statement.
            if row is not None and self._db.is_shared:
                db.execute("DELETE FROM sessions WHERE id = ?", (id,))
            replacing = "" if self._db.is_shared else "OR REPLACE"
            db.execute(f"INSERT {replacing} INTO sessions (id, data) VALUES (?, ?)", (id, data))
            if row is not None or found:
                self._save_contents(db, id, found)

    def list(self) -> Sequence[SessionSummary]:
        """Return summaries of all sessions, the last saved one first. An unreadable session has a ``problem``.

        Raises:
            StoreError: the file cannot be used.
        """
        with self._db.transaction() as db:
            return [self._summary(*row) for row in db.execute("SELECT id, data FROM sessions ORDER BY seq DESC")]

    def delete(self, id: str) -> bool:
        """Delete a session; return whether it existed.

        Raises:
            StoreError: the file cannot be used, or the id is not valid.
        """
        with self._db.transaction(write=True) as db:
            db.execute("DELETE FROM attachments WHERE session = ?", (_checked_id(id),))
            return db.execute("DELETE FROM sessions WHERE id = ?", (id,)).rowcount > 0

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _save_contents(self, db: Connection, id: str, attachments: Sequence[Attachment]) -> None:
        """Save the contents of the attachments of a session, and delete those that it no longer has."""
        stored = {digest for (digest,) in db.execute("SELECT digest FROM attachments WHERE session = ?", (id,))}
        wanted = {each.digest: each for each in attachments}
        for digest in stored - wanted.keys():
            db.execute("DELETE FROM attachments WHERE session = ? AND digest = ?", (id, digest))
        for digest in wanted.keys() - stored:
            if (data := available_data(wanted[digest])) is not None:
                db.execute("INSERT INTO attachments (session, digest, data) VALUES (?, ?, ?)", (id, digest, data))

    def _content(self, id: str, digest: str) -> bytes:
        with self._db.transaction() as db:
            row = db.execute("SELECT data FROM attachments WHERE session = ? AND digest = ?", (id, digest)).fetchone()
        if row is None:
            raise FileNotFoundError(digest)
        return bytes(row[0])

    def _read(self, id: str, data: bytes) -> SessionRecord:
        where = f"the session {id!r} in {self.path}"
        found = SessionRecord.read(data, where, f"delete it with store.delete({id!r})")
        if found.id != id:
            raise StoreError(f"{where} holds the session {found.id!r}: change its id back")
        return found

    def _place(self, id: str) -> tuple[object, str]:
        return self._where, id

    def _summary(self, id: str, data: bytes) -> SessionSummary:
        try:
            return self._read(id, data).summary()
        except StoreError as error:
            return SessionSummary(id, problem=str(error))
