"""Sessions that outlive the program, by name."""

from __future__ import annotations

from ..config.settings import Settings
from ..run.session import Session


def opened(settings: Settings, name: str | None) -> Session | None:
    """The session of that name, as it was left or new; ``None`` if no name is given."""
    if name is None:
        return None
    from ..stores.sessions import JsonSessionStore

    return JsonSessionStore(settings.sessions).load(name) or Session(name)


def saved(settings: Settings, name: str | None, session: Session | None) -> None:
    """Keep a session that has a name."""
    if name is not None and session is not None:
        from ..stores.sessions import JsonSessionStore

        JsonSessionStore(settings.sessions).save(session)
