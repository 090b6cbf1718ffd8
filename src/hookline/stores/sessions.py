"""Sessions in JSON files or in one SQLite file."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from .._base.files import file_name_for, locked_folder, replace_file
from .._base.frozen import EMPTY, Frozen, History
from .._kernel.values import Message
from .._run.session import Session, added_messages
from .errors import StoreError
from .paths import checked_path, folder_advice
from .sqlite import Database

if TYPE_CHECKING:
    from pathlib import Path

VERSION = 1
"""The version of the format."""

_MAX_TITLE = 80


class SessionSummary(Frozen, frozen=True):
    """A stored session at a glance; ``problem`` says why it cannot be loaded, if so."""

    id: str
    messages: int = 0
    saved_at: float = 0.0
    title: str = ""
    problem: str = ""


class SessionRecord(Frozen, frozen=True):
    """Everything that makes up a session."""

    version: int
    id: str
    saved_at: float = 0.0
    key: str = ""
    platform: str = ""
    personality_id: str = ""
    personality_changes: Any = EMPTY
    started: bool = True
    metadata: Any = EMPTY
    messages: Sequence[Message] = ()

    @classmethod
    def read(cls, data: bytes, where: str, advice: str) -> SessionRecord:
        """The record that was written as ``data``; ``where`` names its place in messages, ``advice`` says what to do.

        Raises:
            StoreError: it cannot be read.
        """
        try:
            version = msgspec.json.decode(data, type=_Version).version
            if version <= VERSION:
                return cls.from_json(data)
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise StoreError(f"{where} cannot be read ({error}): {advice}") from error
        raise StoreError(f"{where} was written by a newer Hookline (format {version}): update Hookline")

    def session(self, place: Any) -> Session:
        """The session again, as it is stored at ``place``."""
        session = Session(
            self.id, self.messages, self.metadata, key=self.key, platform=self.platform,
            personality_id=self.personality_id, personality_changes=self.personality_changes,
        )  # fmt: skip
        if self.started:
            session.first_run()
        session.settle(place, session.messages, session.messages)
        return session

    def summary(self, problem: str = "") -> SessionSummary:
        """The session at a glance."""
        said = next((message.content for message in self.messages if message.role == "user"), "")
        return SessionSummary(self.id, len(self.messages), self.saved_at, " ".join(said.split())[:_MAX_TITLE], problem)


@contextmanager
def saving(session: Session, place: Any) -> Iterator[Callable[[SessionRecord | None], bytes]]:
    """Save a session at ``place``: call what this gives with the record that is there, and write what that gives.

    When the block is left without an error, the session holds what was written.
    """
    with session._saving:
        taken, metadata = session.snapshot()
        merged, started, data = taken, session.started, b""

        def merge(stored: SessionRecord | None) -> bytes:
            nonlocal merged, started, data
            if stored is not None:
                merged, started = _merged(session, place, taken, stored.messages), started or stored.started
            data = SessionRecord(
                VERSION, session.id, time.time(), session.key, session.platform, session.personality_id,
                session.personality_changes, started, metadata, merged,
            ).to_json()  # fmt: skip
            return data

        yield merge
        session.settle(place, taken, merged)
        session._written[place] = sha256(data).digest(), started


def as_written(session: Session, place: Any, data: bytes) -> SessionRecord | None:
    """The record at ``place``, unread, if it is still what this session wrote there last."""
    digest, started = session._written.get(place, (b"", True))
    if digest != sha256(data).digest():
        return None
    return SessionRecord(VERSION, session.id, started=started, messages=session._stored[place][1])


def _merged(session: Session, place: Any, messages: Sequence[Message], stored: Sequence[Message]) -> Sequence[Message]:
    """The messages of a session, or what is stored and what the session added, if others saved meanwhile."""
    own, known = session._stored.get(place) or [_common(session._given, stored)] * 2
    if list(own) == list(known) == list(stored):
        return messages
    return History((*stored, *added_messages(own, messages)))


def _common(one: Sequence[Message], other: Sequence[Message]) -> Sequence[Message]:
    """What both begin with."""
    return [message for message, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))]


class _Version(msgspec.Struct):
    version: int


def id_of(session: Session) -> str:
    """The id that a session is stored under.

    Raises:
        TypeError: it is not a session.
        StoreError: the id is empty, or not valid text.
    """
    if not isinstance(session, Session):
        raise TypeError(f"save() takes a Session, not {type(session).__name__}: save(Session(id, messages))")
    return checked_id(session.id)


def checked_id(id: str) -> str:
    """An id that a session can be stored under.

    Raises:
        StoreError: it is empty, or not valid text.
    """
    if not id:
        raise StoreError("a session without an id cannot be stored: give it one")
    try:
        id.encode()
    except UnicodeEncodeError:
        raise StoreError(f"the session id {id!r:.80} is not valid text: use another") from None
    return id


LOCK_SECONDS = 5.0
"""How long to wait for another program that holds the folder."""

SQLITE = (".db", ".sqlite", ".sqlite3")
"""How the name of a SQLite file ends."""

_MAX_NAME = 150


class SessionStore(Protocol):
    """Keeps sessions by their ids."""

    def load(self, id: str) -> Session | None:
        """The session as it was saved last; ``None`` if there is none."""
        ...

    def save(self, session: Session) -> None:
        """Keep the session; what others stored of it since it was loaded or saved is not lost."""
        ...

    def list(self) -> Sequence[SessionSummary]:
        """All sessions, the one saved last first."""
        ...

    def delete(self, id: str) -> bool:
        """Forget a session; whether there was one."""
        ...


class JsonSessionStore:
    """Keeps each session in a JSON file of its own.

    A file is replaced as a whole, so nobody ever sees half of one. Where two programs save the same session, nothing
    said is lost: what was stored meanwhile stays, and what this session added comes after it; of the metadata, the
    last one wins. File names are made of ids so that they stay in the folder and differ on every file system. A file
    that cannot be read is never overwritten. Who saves holds the file ``.lock`` of the folder.

    Args:
        folder: made when the first session is saved.

    Raises:
        TypeError: that is no path.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        from pathlib import Path

        self.folder = Path(checked_path(folder, "JsonSessionStore takes a folder")).expanduser().absolute()
        self._lock = threading.Lock()

    def load(self, id: str) -> Session | None:
        """The session as it was saved last; ``None`` if there is none.

        Raises:
            StoreError: its file cannot be read, or the id cannot be used.
        """
        path = self._path(id)
        stored = _read(path)
        if stored is None:
            return None
        if stored.id != id:
            raise StoreError(f"{path} holds the session {stored.id!r}, not {id!r}: give it back its old name")
        return stored.session(self._place(path))

    def save(self, session: Session) -> None:
        """Keep the session. Cheap enough to do after every run.

        What others stored of it meanwhile is kept, and is then in the session too.

        Raises:
            TypeError: it is not a session.
            StoreError: the file cannot be written, the one in its place cannot be read, or the id cannot be used.
        """
        path = self._path(id_of(session))
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with saving(session, self._place(path)) as merge, self._alone():
                replace_file(path, merge(_read(path)), 0o600)
        except OSError as error:
            raise StoreError(f"cannot save the session {session.id!r}: {error}{_advice(self.folder, error)}") from error

    def list(self) -> Sequence[SessionSummary]:
        """All sessions, the one saved last first; those that cannot be loaded say why.

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

    def delete(self, id: str) -> bool:
        """Forget a session; whether there was one.

        Raises:
            StoreError: its file cannot be deleted, or the id cannot be used.
        """
        try:
            path = self._path(id)
            path.lstat()
            with self._alone():
                path.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StoreError(f"cannot delete the session {id!r}: {error}{_advice(self.folder, error)}") from error
        return True

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else changes the folder meanwhile."""
        with self._lock, locked_folder(self.folder, LOCK_SECONDS):
            yield

    def _place(self, path: Path) -> str:
        return os.path.join(os.path.realpath(self.folder), path.name)

    def _path(self, id: str) -> Path:
        """The file of a session."""
        name = file_name_for(checked_id(id))
        if len(name) > _MAX_NAME:
            name = f"{name[: _MAX_NAME - 65]}~{sha256(id.encode()).hexdigest()}"
        return self.folder / f"session-{name}.json"

    def _summary(self, path: Path) -> SessionSummary:
        try:
            found = _read(path)
            problem = "" if found and self._path(found.id) == path else f"{path} is not named for its session"
        except StoreError as error:
            found, problem = None, str(error)
        if found is None:
            return SessionSummary(path.stem.removeprefix("session-"), problem=problem)
        return found.summary(problem)


def _read(path: Path) -> SessionRecord | None:
    where = f"the session file {path}"
    try:
        return SessionRecord.read(path.read_bytes(), where, "mend it or move it away")
    except FileNotFoundError:
        return None
    except OSError as error:
        advice = _advice(path.parent, error, "read") or ": mend it or move it away"
        raise StoreError(f"{where} cannot be read ({error}){advice}") from error


def _advice(folder: Path, error: OSError, access: str = "write to") -> str:
    return folder_advice(folder, error, access, "give a folder, or a file that ends in .db for SQLite")


def session_store_at(path: str | os.PathLike[str]) -> SessionStore:
    """The store of sessions at a path: a SQLite file if it is named like one, else a folder of JSON files."""
    if os.fspath(path).lower().endswith(SQLITE):
        return SqliteSessionStore(path)
    return JsonSessionStore(path)


_SCHEMA = (
    """CREATE TABLE sessions (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, data BLOB NOT NULL
    )""",
)


class SqliteSessionStore:
    """Keeps all sessions in one SQLite file, for many of them, or many programs.

    A session is saved as a whole or not at all. Where two programs save the same session, nothing said is
    lost: what was stored meanwhile stays, and what this session added comes after it; of the metadata, the last one
    wins. A session that cannot be read is never overwritten.

    Args:
        path: the file, made when it is first needed; ``:memory:`` forgets with the program.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._db = Database(path, holds="sessions", mark=0x486B4C53, version=1, schema=_SCHEMA)

    @property
    def path(self) -> str:
        """The file."""
        return self._db.path

    def load(self, id: str) -> Session | None:
        """The session as it was saved last; ``None`` if there is none.

        Raises:
            StoreError: it cannot be read, or the id cannot be used.
        """
        with self._db.transaction() as db:
            row = db.execute("SELECT data FROM sessions WHERE id = ?", (checked_id(id),)).fetchone()
        return None if row is None else self._read(id, row[0]).session(self._place(id))

    def save(self, session: Session) -> None:
        """Keep the session. Cheap enough to do after every run.

        What others stored of it meanwhile is kept, and is then in the session too.

        Raises:
            TypeError: it is not a session.
            StoreError: it cannot be written, the one in its place cannot be read, or the id cannot be used.
        """
        id = id_of(session)
        place = self._place(id)
        with saving(session, place) as merge, self._db.transaction(write=True) as db:
            row = db.execute("SELECT data FROM sessions WHERE id = ?", (id,)).fetchone()
            data = merge(None if row is None else as_written(session, place, row[0]) or self._read(id, row[0]))
            db.execute("INSERT OR REPLACE INTO sessions (id, data) VALUES (?, ?)", (id, data))

    def list(self) -> Sequence[SessionSummary]:
        """All sessions, the one saved last first; those that cannot be loaded say why.

        Raises:
            StoreError: the file cannot be used.
        """
        with self._db.transaction() as db:
            return [self._summary(*row) for row in db.execute("SELECT id, data FROM sessions ORDER BY seq DESC")]

    def delete(self, id: str) -> bool:
        """Forget a session; whether there was one.

        Raises:
            StoreError: the file cannot be used, or the id cannot.
        """
        with self._db.transaction(write=True) as db:
            return db.execute("DELETE FROM sessions WHERE id = ?", (checked_id(id),)).rowcount > 0

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _read(self, id: str, data: bytes) -> SessionRecord:
        where = f"the session {id!r} in {self.path}"
        found = SessionRecord.read(data, where, f"delete it with store.delete({id!r})")
        if found.id != id:
            raise StoreError(f"{where} holds the session {found.id!r}: give it back its old id")
        return found

    def _place(self, id: str) -> tuple[object, str]:
        return self._db if self._db.in_memory else os.path.realpath(self.path), id

    def _summary(self, id: str, data: bytes) -> SessionSummary:
        try:
            return self._read(id, data).summary()
        except StoreError as error:
            return SessionSummary(id, problem=str(error))
