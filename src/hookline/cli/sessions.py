"""Sessions that outlive the program, by name."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from .._run.session import Session
from ..config.errors import ConfigError
from ..config.settings import Settings

if TYPE_CHECKING:
    from ..stores.sessions import SessionStore


def opened(settings: Settings, name: str | None) -> Session | None:
    """The session of that name, as it was left or new; ``None`` if no name is given."""
    if name is None:
        return None
    return store_at(settings.sessions).load(name) or Session(name)


def saved(settings: Settings, name: str | None, session: Session | None) -> None:
    """Keep a session that has a name."""
    if name is not None and session is not None:
        store_at(settings.sessions).save(session)


@lru_cache
def store_at(path: str) -> SessionStore:
    """The store of sessions at a path, the same one each time.

    Raises:
        ConfigError: there is a file that is not named like one of SQLite's.
    """
    from ..stores.sessions import SQLITE, JsonSessionStore, session_store_at

    store = session_store_at(path)
    if isinstance(store, JsonSessionStore) and store.folder.is_file():
        raise ConfigError(f"sessions: {path} is a file: name a folder, or a SQLite file ({', '.join(SQLITE)})")
    return store
