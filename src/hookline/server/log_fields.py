"""Fields of whatever is logged: who asked, and in which run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any

from .._base.frozen import EMPTY
from .._kernel.payloads import RunStart
from .._kernel.points import SESSION_START

if TYPE_CHECKING:
    from ..stores.approvals import ApprovalRow

log = logging.getLogger("hookline.waiting")

log_fields: ContextVar[Mapping[str, str]] = ContextVar("hookline_log_fields", default=EMPTY)
"""The fields here and now: in this task, and in the tasks and threads that were started in it."""


class logging_with:  # noqa: N801 - used like a function
    """``with logging_with(correlation_id=...)``: what is logged inside has these fields too, if they are not empty."""

    def __init__(self, **fields: str) -> None:
        self._fields = {name: value for name, value in fields.items() if value}
        self._token: Token[Mapping[str, str]] | None = None

    def __enter__(self) -> None:
        self._token = log_fields.set({**log_fields.get(), **self._fields})

    def __exit__(self, *_: object) -> None:
        token, self._token = self._token, None
        if token is not None:
            with suppress(ValueError):  # a coroutine that was closed elsewhere, where nothing was set
                log_fields.reset(token)


class LogFieldsHook:
    """Gives whatever is logged inside a run its ids, also what tools and other libraries log there."""

    points = frozenset({SESSION_START})
    phase = "observe"
    priority = 0

    def __call__(self, point: str, ctx: Any, payload: Any) -> None:
        """Nothing is to be done here."""

    def wrap(self, ctx: Any, payload: Any) -> AbstractContextManager[None] | None:
        """Set the fields around a run."""
        if not isinstance(payload, RunStart):
            return None
        ids = payload.ids
        return logging_with(run_id=ids.run_id, task_id=ids.task_id, correlation_id=ids.correlation_id)


async def log_waiting(row: ApprovalRow) -> None:
    """Log that a call waits for a person, and what to do about it; its arguments are not for logs."""
    log.info("%s waits for approval of %s: hookline approvals show %s", row.root_id, row.tool, row.id[5:13])
