"""Save the session at the end of each run."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

from .._kernel.errors import RegistrationError
from .._kernel.points import ON_RUN_END
from .._kernel.state import AgentResult
from .._kernel.validation import check_method, check_path
from .._run.session import Session
from ..stores.sessions import session_store_at

_EXPECTED = "store must be a JsonSessionStore, a SqliteSessionStore or its path"


class PersistSessionHook:
    """Saves the session, with the whole conversation so far, at the end of every run.

    It does so whatever the status of the run. If saving fails, the error is reported and the result of the run is
    unchanged. Sessions of subagents are saved only if the subagent has such a hook.

    Args:
        store: a session store, or its path: a SQLite file if it ends in ``.db``, ``.sqlite`` or ``.sqlite3``, else a
            folder of JSON files.
        session_id: id to save the session under; by default its own. With an id, sessions of subagents are not saved.

    Raises:
        RegistrationError: an argument is invalid.
    """

    points = frozenset({ON_RUN_END})
    phase = "observe"
    priority = 0
    inherit = False

    def __init__(self, store: Any, session_id: str | None = None) -> None:
        if isinstance(store, (str, os.PathLike)):
            store = session_store_at(check_path(store, _EXPECTED))
        check_method(store, "save", _EXPECTED)
        self.store = store
        if session_id is not None and not (isinstance(session_id, str) and session_id):
            raise RegistrationError(f"session_id must be non-empty text, not {session_id!r}")
        self.session_id = session_id
        self._lock = threading.Lock()

    async def __call__(self, point: str, ctx: Any, result: AgentResult[Any]) -> None:
        """Save the session of one run."""
        if self.session_id is not None and result.ids.parent_run_id:
            return  # the session of a subagent must not overwrite this one
        await asyncio.to_thread(self._save, ctx.session)

    def _save(self, session: Session) -> None:
        with self._lock:  # one at a time: a run must not overwrite the session with older messages
            self.store.save(session if self.session_id is None else session.renamed(self.session_id))
