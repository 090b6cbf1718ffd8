"""Execute served runs: wait for the session and a slot, load the session, run the agents, store the outcome."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any

from .._base.text import error_text, stop_text
from .._base.workers import in_thread
from .._kernel.errors import HooklineError
from .._kernel.events import Event
from .._kernel.registry import stack_of
from .._kernel.state import AgentResult
from .._run.context import AgentContext, services_of, set_deps, set_origin
from .._run.halt import POLL_SECONDS, HaltSwitch
from .._run.hosted import HostedAgent, HostedRun, HostedTools
from .._run.session import Session
from .._run.termination import RunFailedError
from ..hooks.approvals import ApprovalsHook, Notifier
from ..stores.approvals import ApprovalStore
from ..stores.callers import Caller, DepsFactory, create_deps
from ..stores.errors import StoreError
from ..stores.runs import RunRecord
from ..stores.sessions import SessionStore, was_saved
from ..stores.sql import Database
from .concurrency import KeyedLocks, RunSlots
from .facts import ServedFacts
from .live_run import LiveRun
from .logs import LogFieldsHook
from .options import ServerOptions

log = logging.getLogger("hookline")

HOLD_SECONDS = 5.0
"""Seconds that a durable run waits for the approval of a call before it is suspended."""
MAX_FOLLOW_UPS = 8
"""Maximum number of handoffs in one served run."""


_RUN: ContextVar[RunRecord] = ContextVar("hookline_served_run")
"""The served run that the current task executes."""


class ServedApprovals(ApprovalsHook):
    """Asks for approvals in the name of the served run, also for its subagents and the agents that it hands over to.

    All runs share one hook, so that they have the same rules.
    """

    def asked_for(self) -> tuple[str, str]:
        """Return the owner and the id of the served run."""
        run = _RUN.get()
        return run.owner, run.id


class RunExecutor:
    """Execute runs: at most ``options.max_runs`` at once, and the runs of one session one after another.

    Args:
        approvals: the store of calls that wait for approval.
        sessions: the store of conversations.
        options: limits and time limits.
        context: makes the context of a run, with its budget.
        metadata: metadata for the hooks of every run.
        notify: announces calls that wait for approval.
        wait_for_turn: waits until other servers have no run in the conversation of a run.
        db: the database of the runs.
        problem: says why runs cannot be stored now, if they fail then; ``None`` if they go on.
        halts: the stop switch. A run does not begin while it is on.
        deps: creates the ``deps`` of a run for its caller.
    """

    def __init__(
        self,
        approvals: ApprovalStore,
        sessions: SessionStore,
        options: ServerOptions,
        context: Callable[[Session], AgentContext],
        metadata: Mapping[str, Any],
        notify: Notifier,
        wait_for_turn: Callable[[RunRecord], Awaitable[None]],
        db: Database,
        problem: Callable[[], str] | None,
        halts: HaltSwitch,
        deps: DepsFactory | None,
    ) -> None:
        self._sessions = sessions
        self._context = context
        self._metadata = metadata
        self._wait_for_turn = wait_for_turn
        self._halts = halts
        self._deps = deps
        self._session_locks = KeyedLocks()
        self._slots = RunSlots(options.max_runs)
        asking = ServedApprovals(approvals, seconds=options.approval_seconds, hold_seconds=HOLD_SECONDS, notify=notify)
        self._facts = ServedFacts(db, problem)
        self.hooks = stack_of([asking, LogFieldsHook(), self._facts])
        """The hooks that every served run has in addition to those of its agent."""

    async def execute(
        self,
        live: LiveRun,
        caller: Caller,
        answerer: Any,
        personality: str,
        session: Session | None,
        *,
        is_new: bool = False,
    ) -> None:
        """Execute a run once its session and a slot are free, and runs are not halted.

        The run is always finished when this returns.

        Args:
            live: the run.
            caller: the owner of the run.
            answerer: the agent, roster or team that answers.
            personality: the personality of the agent in a new conversation.
            session: the conversation, if the caller keeps it; otherwise it is loaded and saved here.
            is_new: whether the conversation begins with this run, so that nothing is stored of it.
        """
        save = self.save if session is None else None
        if session is None and is_new:
            session = self.new_session(live.record, personality)
        try:
            async with self._session_locks.hold(live.record.session_id):
                await self._wait_for_turn(live.record)
                async with live.slot(self._slots):
                    while not live.closed and await self._halts.current_async() is not None:
                        await asyncio.sleep(POLL_SECONDS)
                    if not live.closed:
                        if session is None:
                            session = await self.load(live.record, personality)
                        await self._run(live, caller, answerer, session, save)
        except asyncio.CancelledError:
            live.finish("interrupted", reason="the server stopped")
        except HooklineError as error:
            live.finish("failed", error=error_text(error))
        except Exception as error:  # the run must be finished, or its caller would wait forever
            log.exception("the run %s failed", live.record.id)
            live.finish("failed", error=f"the run failed with an internal error: {type(error).__name__}")

    async def _run(
        self,
        live: LiveRun,
        caller: Caller,
        answerer: Any,
        session: Session,
        save: Callable[[Session], Awaitable[str]] | None,
    ) -> None:
        live.update(status="running", started=time.time())
        metadata = self.metadata_of(live.record, caller)
        status, fields = await self.run_agents(live, answerer, session, metadata, save=save)
        live.finish(status, **fields)

    async def host(
        self,
        live: LiveRun,
        caller: Caller,
        agent: HostedAgent,
        tools: HostedTools,
        personality: str,
        sink: Callable[[Event], object],
        opened: asyncio.Future[HostedRun],
    ) -> None:
        """Execute a run of a program that asks about its moments. Hosted runs need no slot: they wait for nothing.

        The run is always finished when this returns.

        Args:
            live: the run.
            caller: the owner of the run.
            agent: the agent whose hooks decide.
            tools: the tools that are known.
            personality: the personality of the agent in a new conversation.
            sink: gets the events of the run.
            opened: gets the run when the hooks have judged its task, or the error because of which it did not begin.
        """
        record = live.record
        try:
            session = await self.load(record, personality)
            metadata = session.metadata = self.metadata_of(record, caller)
            with self._facts.recording(record, live.put_fact):
                ctx = self._context_for(record, session, await self._create_deps(metadata))
                services_of(ctx).environment.name_run(record.id)
                hosted = await agent.host(
                    live.given_task,
                    tools=tools,
                    session=session,
                    ctx=ctx,
                    hooks=self.hooks,
                    sinks=[live.add_event, sink],
                    metadata=metadata,
                    task_id=record.task_id,
                    correlation_id=record.correlation_id,
                    attachments=live.attachments,
                )
                live.begin(hosted.run)
                opened.set_result(hosted)
                try:
                    result = await hosted.run.result()
                except RunFailedError as failure:
                    result = failure.result
            status, fields = outcome_of([result], await self.save(session))
            if live.stop_reason and status == "cancelled":
                status, fields["reason"] = live.final_status or status, live.stop_reason
            live.finish(status, **fields)
        except asyncio.CancelledError:
            live.finish("interrupted", reason="the server stopped")
        except Exception as error:
            if not isinstance(error, HooklineError):
                log.exception("the run %s failed", record.id)
            known = isinstance(error, HooklineError)
            live.finish("failed", error=error_text(error) if known else f"internal error: {type(error).__name__}")
            if not opened.done():
                opened.set_exception(error)
        finally:
            opened.cancel()

    async def load(self, record: RunRecord, personality: str) -> Session:
        """Load the conversation of a run, or create it.

        Raises:
            StoreError: the conversation cannot be read.
        """
        session = await asyncio.to_thread(self._sessions.load, record.session_id)
        return self.new_session(record, personality) if session is None else session

    def new_session(self, record: RunRecord, personality: str) -> Session:
        """Return the conversation of a run that begins it."""
        return Session(record.session_id, platform=record.transport, personality_id=personality)

    def metadata_of(self, record: RunRecord, caller: Caller) -> dict[str, Any]:
        """Return the metadata for the hooks of a run."""
        origin = {
            "caller": caller.name,
            "caller_id": caller.id,
            "platform": record.transport,
            "session": record.session,
        }
        return {**self._metadata, **caller.metadata, **origin}

    async def run_agents(
        self,
        live: LiveRun,
        answerer: Any,
        session: Session,
        metadata: Mapping[str, Any],
        *,
        save: Callable[[Session], Awaitable[str]] | None,
    ) -> tuple[str, dict[str, Any]]:
        """Run the agent of a served run, and those that it hands over to. Return the final status and fields.

        Args:
            live: the run.
            answerer: the agent, roster or team that answers.
            session: the conversation.
            metadata: metadata for the hooks.
            save: saves the session, and returns the error as text if that fails.

        Raises:
            HooklineError: the run did not start, or a durable run goes on elsewhere or later.
        """
        record, durable = live.record, live.durable
        deps = await self._create_deps(metadata)
        task: str | None = live.given_task
        results: list[AgentResult[Any]] = []
        follow_up_error = ""
        try:
            with self._facts.recording(record, live.put_fact):
                while task is not None and len(results) <= MAX_FOLLOW_UPS and not (results and live.stop_reason):
                    number = len(results) + 1
                    results.append(await self._run_agent(live, answerer, session, task, metadata, deps, number))
                    follow_up = getattr(answerer, "follow_up", None)
                    task = None if follow_up is None else follow_up(session, results[-1])
                    task = await task if inspect.isawaitable(task) else task
        except Exception as error:
            if not results or (durable is not None and durable.error is not None):
                raise
            log.exception("the follow-up of the run %s failed", record.id)
            follow_up_error = f"the follow-up failed with an internal error: {type(error).__name__}"
        problem = await save(session) if save is not None else ""
        status, fields = outcome_of(results, problem)
        if follow_up_error:  # the replies so far are kept
            status, fields["error"] = "failed", follow_up_error
        if task is not None and status == "completed":  # the next agent has not started
            status, fields["reason"] = "stopped", f"handed over more than {MAX_FOLLOW_UPS} times"
            status = "cancelled" if live.stop_reason else status
        if live.stop_reason and status == "cancelled":
            status, fields["reason"] = live.final_status or status, live.stop_reason
        return status, fields

    async def _create_deps(self, metadata: Mapping[str, Any]) -> Any:
        """Return the ``deps`` of a run, also of one that another process began, which stored this metadata."""
        if self._deps is None:
            return None
        return await create_deps(self._deps, Caller(metadata["caller_id"], metadata["caller"], metadata=metadata))

    async def _run_agent(
        self,
        live: LiveRun,
        answerer: Any,
        session: Session,
        task: str,
        metadata: Mapping[str, Any],
        deps: Any,
        number: int,
    ) -> AgentResult[Any]:
        """Run one agent of a served run. The first one gets the id of the served run."""
        record, durable = live.record, live.durable
        ctx = self._context_for(record, session, deps)
        environment = services_of(ctx).environment
        if number == 1:
            environment.name_run(record.id)
        elif durable is not None:  # the same in every process
            environment.name_run(f"{record.id}_{number}")
        if durable is not None:
            environment.boundary = durable
        session.metadata = metadata  # rights that the caller had in earlier runs do not count
        run = answerer.start(
            task,
            session=session,
            ctx=ctx,
            hooks=self.hooks,
            sinks=[live.add_event],
            keep=False,
            metadata=metadata,
            task_id=record.task_id,
            correlation_id=record.correlation_id,
            **({"attachments": live.attachments} if number == 1 and live.attachments else {}),
        )
        live.begin(run)
        if live.stop_reason and durable is not None:  # it was asked to stop before it was taken up
            durable.defer(partial(run.cancel, live.stop_reason))
        try:
            result: AgentResult[Any] = await run.result()
        except RunFailedError as failure:
            return failure.result
        return result

    def _context_for(self, record: RunRecord, session: Session, deps: Any) -> AgentContext:
        """Return the context of a run that begins in this task."""
        _RUN.set(record)
        ctx = self._context(session)
        set_origin(ctx, record.origin, record.id)
        if self._deps is not None:
            set_deps(ctx, deps)
        return ctx

    async def was_saved(self, session: Session, before: int) -> bool:
        """Whether a session that began with ``before`` messages has been saved by a process that ended after that.

        Raises:
            StoreError: the stored conversation cannot be read.
        """
        return await asyncio.to_thread(was_saved, self._sessions, session, before)

    async def save(self, session: Session) -> str:
        """Save a session. Return the error as text if that fails; the reply is still valid."""
        try:
            await in_thread(self._sessions.save, session)
        except StoreError as error:
            log.error("the session %s could not be stored: %s", session.id, error_text(error))
            return f"the conversation could not be stored: {error_text(error)}"
        return ""


def outcome_of(results: Sequence[AgentResult[Any]], problem: str = "") -> tuple[str, dict[str, Any]]:
    """Return the final status and fields of a served run, from the results of its agents."""
    last, costs = results[-1], [result.cost for result in results]
    fatal = [f"{error.type}: {error.message}" for error in last.errors if error.fatal]
    stop = "" if last.stop is None else stop_text(last.stop.kind, last.stop.message)
    return last.status, {
        "reply": "\n\n".join(text for result in results if (text := result.output_text)),
        "error": fatal[-1] if fatal else problem,
        "reason": last.hook_ended or ("" if last.status == "completed" else stop),
        "stop": "" if last.stop is None else last.stop.kind,
        "steps": sum(len(result.steps) for result in results),
        "tool_calls": sum(result.tool_calls for result in results),
        "input_tokens": sum(result.usage.input_tokens for result in results),
        "output_tokens": sum(result.usage.output_tokens for result in results),
        "cached_tokens": sum(result.usage.cached_tokens for result in results),
        "cost": None if None in costs else sum(cost for cost in costs if cost is not None),
        "elapsed": sum(result.elapsed for result in results),
    }
