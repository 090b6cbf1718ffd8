"""Where sessions are kept between programs: what a store does, and one of JSON files."""

from __future__ import annotations

import os
import string
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from ..base.files import replace_file
from ..base.frozen import EMPTY, Frozen
from ..kernel.values import Message
from ..run.session import Session
from .errors import StoreError

if TYPE_CHECKING:
    from pathlib import Path

VERSION = 1
"""The version of the file format."""

_PLAIN = frozenset(f"{string.ascii_lowercase}{string.digits}-_".encode())
_MAX_NAME, _MAX_TITLE = 150, 80


class SessionSummary(Frozen, frozen=True):
    """A stored session at a glance; ``problem`` says why it cannot be loaded, if so."""

    id: str
    messages: int = 0
    saved_at: float = 0.0
    title: str = ""
    problem: str = ""


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


class _Stored(Frozen, frozen=True):
    """The file of a session."""

    version: int
    id: str
    saved_at: float = 0.0
    key: str = ""
    platform: str = ""
    personality_id: str = ""
    started: bool = True
    metadata: Any = EMPTY
    messages: Sequence[Message] = ()


class _Version(msgspec.Struct):
    version: int


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

        self.folder = Path(folder).expanduser()
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
        session = Session(
            id, stored.messages, stored.metadata, key=stored.key, platform=stored.platform,
            personality_id=stored.personality_id,
        )  # fmt: skip
        if stored.started:
            session.first_run()
        return session

    def save(self, session: Session) -> None:
        """Keep the session as it is now. Cheap enough to do after every run.

        Raises:
            StoreError: the file cannot be written, the one in its place cannot be read, or the id cannot be used.
        """
        path = self._path(session.id)
        with self._lock:
            _read(path)
            messages, metadata = session.snapshot()
            stored = _Stored(
                VERSION, session.id, time.time(), session.key, session.platform, session.personality_id,
                session.started, metadata, messages,
            )  # fmt: skip
            try:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                replace_file(path, stored.to_json(), 0o600)
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
        """The file of a session: only characters that mean the same to every file system, others as ``%xx``."""
        if not id:
            raise StoreError("a session without an id cannot be stored: give it one")
        try:
            name = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02x}" for byte in id.encode())
        except UnicodeEncodeError:
            raise StoreError(f"the session id {id!r:.80} is not valid text: use another") from None
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
        said = next((message.content for message in found.messages if message.role == "user"), "")
        return SessionSummary(
            found.id, len(found.messages), found.saved_at, " ".join(said.split())[:_MAX_TITLE], problem
        )


def _read(path: Path) -> _Stored | None:
    try:
        data = path.read_bytes()
        version = msgspec.json.decode(data, type=_Version).version
        if version <= VERSION:
            return _Stored.from_json(data)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise StoreError(f"the session file {path} cannot be read ({error}): mend it or move it away") from error
    raise StoreError(f"the session file {path} was written by a newer Hookline (format {version}): update Hookline")
