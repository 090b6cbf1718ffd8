"""Carrying out a run: its turn, its place, its conversation, and the agents that answer in it."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from .._base.text import error_text
from .._kernel.errors import HooklineError
from .._kernel.state import AgentResult
from .._run.context import AgentContext, services_of
from .._run.environment import make_id
from .._run.session import Session
from .._run.termination import RunFailedError
from ..hooks.approvals import ApprovalsHook
from ..stores.approvals import ApprovalStore
from ..stores.errors import StoreError
from ..stores.sessions import SessionStore
from .callers import Caller
from .live import Live
from .log_fields import LogFieldsHook, log_waiting
from .options import ServerOptions
from .outcome import outcome_of
from .places import Places
from .turns import Turns

log = logging.getLogger("hookline")

MAX_FOLLOW_UPS = 8
"""How many runs may follow one another in one served run, each handed over by the one before."""


class Performer:
    """Carries out runs: those of one conversation one after another, so many at once.

    Args:
        approvals: where calls wait for approval.
        sessions: where conversations are kept.
        options: limits, and how long things take.
        context: makes the context of a run, with its budget.
        metadata: what hooks are told in every run.
    """

    def __init__(
        self, approvals: ApprovalStore, sessions: SessionStore, options: ServerOptions,
        context: Callable[[Session], AgentContext], metadata: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self._approvals, self._sessions, self._seconds = approvals, sessions, options.approval_seconds
        self._context, self._metadata = context, metadata
        self._turns, self._places = Turns(), Places(options.max_runs)

    async def perform(
        self, live: Live, caller: Caller, answerer: Any, personality: str, session: Session | None
    ) -> None:
        """Carry out a run, when it is its turn; however that goes, it is closed then.

        Args:
            live: the run.
            caller: whose it is.
            answerer: who answers.
            personality: who the agent is in a new conversation.
            session: the conversation, if the caller keeps it itself; else it is loaded, and kept.
        """
        try:
            async with self._turns.of(live.record.session_id), live.place(self._places):
                if not live.closed:
                    await self._run(live, caller, answerer, personality, session)
        except asyncio.CancelledError:
            live.finish("interrupted", reason="the server stopped")
        except HooklineError as error:
            live.finish("failed", error=error_text(error))
        except Exception as error:  # a caller must not be left waiting for ever
            log.exception("the run %s could not be made", live.record.id)
            live.finish("failed", error=f"the run could not be made: {type(error).__name__}")

    async def _run(self, live: Live, caller: Caller, answerer: Any, personality: str, session: Session | None) -> None:
        record, keep = live.record, session is None
        if session is None:
            session = await asyncio.to_thread(self._sessions.load, record.session_id)
        if session is None:
            session = Session(record.session_id, platform=record.transport, personality_id=personality)
        live.change(status="running", started=time.time())
        task: str | None = record.task
        results: list[AgentResult[Any]] = []
        broken = ""
        try:
            while task is not None and len(results) <= MAX_FOLLOW_UPS and not (results and live.stopping):
                results.append(await self._answer(live, caller, answerer, session, task, first=not results))
                follow_up = getattr(answerer, "follow_up", None)
                task = None if follow_up is None else follow_up(session, results[-1])
                task = await task if inspect.isawaitable(task) else task
        except Exception as error:
            if not results:
                raise
            log.exception("what was to follow in the run %s could not be made", record.id)
            broken = f"what was to follow could not be made: {type(error).__name__}"
        problem = await self._saved(session) if keep else ""
        status, fields = outcome_of(results, problem)
        if broken:  # what was said before is kept all the same
            status, fields["error"] = "failed", broken
        if task is not None and status == "completed":  # whom it handed over to never began
            status, fields["reason"] = "stopped", f"handed over more than {MAX_FOLLOW_UPS} times"
            status = "cancelled" if live.stopping else status
        if live.stopping and status == "cancelled":
            status, fields["reason"] = live.ending or status, live.stopping
        live.finish(status, **fields)

    async def _answer(
        self, live: Live, caller: Caller, answerer: Any, session: Session, task: str, *, first: bool
    ) -> AgentResult[Any]:
        """One of the runs that a served run is made of; the first one has its id."""
        record = live.record
        approver = ApprovalsHook(
            self._approvals, seconds=self._seconds, owner=caller.id, root_id=record.id, tell=log_waiting
        )
        ctx = self._context(session)
        if first:
            services_of(ctx).environment.new_id = _first_id(record.id)
        about = {"caller": caller.name, "caller_id": caller.id, "platform": record.transport, "session": record.session}
        live.run = run = answerer.start(
            task, session=session, ctx=ctx, hooks=[approver, LogFieldsHook()], sinks=[live.take], keep=False,
            metadata={**self._metadata, **caller.metadata, **about}, task_id=record.task_id,
            correlation_id=record.correlation_id,
        )  # fmt: skip
        try:
            result: AgentResult[Any] = await run.result()
        except RunFailedError as failure:
            return failure.result
        return result

    async def _saved(self, session: Session) -> str:
        """Keep a conversation; what went wrong, if something did: the answer is there all the same."""
        try:
            await asyncio.to_thread(self._sessions.save, session)
        except StoreError as error:
            log.error("the session %s is not stored: %s", session.id, error_text(error))
            return f"the conversation could not be stored: {error_text(error)}"
        return ""


def _first_id(run_id: str) -> Callable[[str], str]:
    """Makes ids; the first one of a run is given."""
    given = [run_id]

    def make(prefix: str = "id") -> str:
        return given.pop() if prefix == "run" and given else make_id(prefix)

    return make
