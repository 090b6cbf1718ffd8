"""Where sessions are kept between programs: what a store does, and one of JSON files."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from ..base.files import name_in_file, replace_file
from ..run.session import Session
from .errors import StoreError
from .record import SessionRecord, SessionSummary, checked_id

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["JsonSessionStore", "SessionStore", "SessionSummary"]

_MAX_NAME = 150


class SessionStore(Protocol):
    """Keeps sessions by their ids."""

    def load(self, id: str) -> Session | None:
        """The session as it was saved last; ``None`` if there is none."""

    def save(self, session: Session) -> None:
        """Keep the session as it is now, in the place of what was saved before."""

    def list(self) -> Sequence[SessionSummary]:
        """All sessions, the one saved last first."""

    def delete(self, id: str) -> bool:
        """Forget a session; whether there was one."""


class JsonSessionStore:
    """Keeps each session in a JSON file of its own.

    A file is replaced as a whole, so nobody ever sees half of one. Where two programs save the
    same session, the last one wins. File names are made of ids so that they stay in the folder and
    differ on every file system. A file that cannot be read is never overwritten.

    Args:
        folder: made when the first session is saved.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        from pathlib import Path

        self.folder = Path(folder).expanduser().absolute()
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
        return stored.session()

    def save(self, session: Session) -> None:
        """Keep the session as it is now. Cheap enough to do after every run.

        Raises:
            StoreError: the file cannot be written, the one in its place cannot be read, or the id cannot be used.
        """
        path = self._path(session.id)
        with self._lock:
            _read(path)
            try:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                replace_file(path, SessionRecord.taken(session).to_json(), 0o600)
            except OSError as error:
                raise StoreError(f"cannot save the session {session.id!r}: {error}") from error

    def list(self) -> Sequence[SessionSummary]:
        """All sessions, the one saved last first; those that cannot be loaded say why."""
        return sorted(map(self._summary, self.folder.glob("session-*.json")), key=lambda s: (-s.saved_at, s.id))

    def delete(self, id: str) -> bool:
        """Forget a session; whether there was one.

        Raises:
            StoreError: its file cannot be deleted, or the id cannot be used.
        """
        try:
            self._path(id).unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StoreError(f"cannot delete the session {id!r}: {error}") from error
        return True

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
        return SessionRecord.read(path.read_bytes(), where)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{where} cannot be read ({error}): mend it or move it away") from error
