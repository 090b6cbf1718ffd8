"""Sessions in one SQLite file."""

from __future__ import annotations

import os
from collections.abc import Sequence

from .._run.session import Session
from .errors import StoreError
from .session_record import SessionRecord, SessionSummary, as_written, checked_id, id_of, saving
from .sqlite import Database

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
