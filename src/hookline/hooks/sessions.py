"""Conversations that are kept without being asked to."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

from .._kernel.errors import RegistrationError
from .._kernel.points import ON_RUN_END
from .._kernel.state import AgentResult
from .._run.session import Session
from ..stores.sessions import session_store_at
from ._support.validation import check_method, check_path

_EXPECTED = "store takes a JsonSessionStore, a SqliteSessionStore or its path"


class PersistSessionHook:
    """Saves the session, with the whole conversation so far, at the end of every run.

    However the run ended. A session that cannot be saved is reported; the result of the run stands. Runs inside a run
    are conversations of their own: they are saved if their own agent has such a hook.

    Args:
        store: a session store, or its path: a SQLite file if it ends in ``.db``, ``.sqlite`` or ``.sqlite3``, else the
            folder for JSON files.
        session_id: what to save it under; its own id if left out. Runs inside a run are then never saved.

    Raises:
        RegistrationError: a store that saves nothing, or an id that is not text.
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
            raise RegistrationError(f"session_id is text that is not empty, not {session_id!r}")
        self.session_id = session_id
        self._lock = threading.Lock()

    async def __call__(self, point: str, ctx: Any, result: AgentResult[Any]) -> None:
        """Save the session of one run."""
        if self.session_id is not None and result.ids.parent_run_id:
            return  # a conversation inside this one must not take its place
        await asyncio.to_thread(self._save, ctx.session)

    def _save(self, session: Session) -> None:
        with self._lock:  # what is saved last is what was said last
            self.store.save(session if self.session_id is None else session.renamed(self.session_id))
