"""Where sessions are kept between programs: what a store does, and one of JSON files."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from .._base.files import locked_folder, name_in_file, replace_file
from .._run.session import Session
from .errors import StoreError
from .paths import checked_path, folder_advice
from .session_record import SessionRecord, SessionSummary, checked_id, id_of, saving

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["JsonSessionStore", "SessionStore", "SessionSummary", "session_store_at"]

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
        name = name_in_file(checked_id(id))
        if len(name) > _MAX_NAME:
            from hashlib import sha256

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


def _advice(folder: Path, error: OSError, may: str = "write") -> str:
    return folder_advice(folder, error, may, "give a folder, or a file that ends in .db for SQLite")


def session_store_at(path: str | os.PathLike[str]) -> SessionStore:
    """The store of sessions at a path: a SQLite file if it is named like one, else a folder of JSON files."""
    if os.fspath(path).lower().endswith(SQLITE):
        from .sqlite_sessions import SqliteSessionStore

        return SqliteSessionStore(path)
    return JsonSessionStore(path)
