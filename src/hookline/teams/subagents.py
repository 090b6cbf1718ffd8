"""Agents that ask one another: delegation, and handing over a conversation (DESIGN 7.10)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, TypedDict, Unpack, overload

from .._base.tasks import StillRunningError, with_timeout
from .._kernel.errors import CallRefusedError, HookError, HooklineError, RegistrationError
from .._kernel.points import Point
from .._kernel.results import Verdict
from .._kernel.state import AgentResult
from .._kernel.values import ErrorInfo, Ids, ToolSpec
from .._run.agent import Agent
from .._run.cancellation import GRACE
from .._run.context import AgentContext, services_of
from .._run.engine import Engine
from .._run.run import Run
from .._run.session import Session
from .._run.termination import RunFailedError
from ..tools._tool import Tool
from .errors import SubagentRefusedError, SubagentUnfinishedError
from .handoffs import Handoffs
from .members import Members
from .points import SUBAGENT_ENDED, SUBAGENT_SPAWNED, SUBAGENT_SPAWNING, Subagent, SubagentChange

Fire = Callable[[Point[Any], Any], Awaitable[Verdict]]


class TeamOptions(TypedDict, total=False):
    """The keyword options of :class:`Team`, for the signatures that type checkers choose from."""

    first: str | None
    may: Callable[[str, str], bool] | None
    max_depth: int
    max_children: int
    max_parallel: int
    max_handoffs: int


class Team(Handoffs):
    """Agents that may delegate tasks to one another and hand a conversation over.

    Give it to an agent as a tool, ``Agent(..., tools=[team])``, and its model has ``delegate(to, task)`` and
    ``handoff(to, message)``; the team joins the agent's hooks by itself. ``start``, ``arun`` and ``run`` let the
    member answer that a session belongs to, and go on after a handoff.

    Args:
        members: agents, or a mapping of names to agents, which is looked at anew each time.
        first: the name of the member that begins; the first one if left out.
        may: ``may(who, whom)`` says who may turn to whom; everybody to all others if left out.
        max_depth: how deep runs may be inside one another.
        max_children: how many subagents one run may start; with 0 there is no ``delegate``.
        max_parallel: how many of them may be at work at once.
        max_handoffs: how often one turn may be handed over; with 0 there is no ``handoff``.

    Raises:
        RegistrationError: members that are none, two of one name, or a limit that is no whole number.
    """

    # Two signatures: type checkers do not know what to expect in a literal that may be a mapping or a list.
    @overload
    def __init__(self, members: Mapping[str, Agent[Any, Any]], **options: Unpack[TeamOptions]) -> None: ...
    @overload
    def __init__(self, members: Iterable[Agent[Any, Any]] = (), **options: Unpack[TeamOptions]) -> None: ...
    def __init__(
        self,
        members: Iterable[Agent[Any, Any]] | Mapping[str, Agent[Any, Any]] = (),
        *,
        first: str | None = None,
        may: Callable[[str, str], bool] | None = None,
        max_depth: int = 3,
        max_children: int = 8,
        max_parallel: int = 4,
        max_handoffs: int = 4,
    ) -> None:
        limits = {"max_depth": max_depth, "max_children": max_children, "max_handoffs": max_handoffs}
        for name, limit in {**limits, "max_parallel": max_parallel}.items():
            least = int(name == "max_parallel")
            if isinstance(limit, bool) or not isinstance(limit, int) or limit < least:
                raise RegistrationError(f"{name} is a whole number, {least} or more, not {limit!r}")
        self.max_depth, self.max_children, self.max_parallel = max_depth, max_children, max_parallel
        super().__init__(Members(members, first, may), max_handoffs)
        self._delegate = Tool(self._delegate_call, name="delegate", offer=self._told_of_delegate)
        self._delegate.runs_agents = True

    @property
    def members(self) -> Mapping[str, Agent[Any, Any]]:
        """The agents by name."""
        return self._members.agents

    def add(self, agent: Agent[Any, Any], name: str | None = None) -> None:
        """Take in another member, from the next model call on; under its own name if left out."""
        self._members.add(agent, name)

    def tools(self) -> tuple[Tool, ...]:
        """``delegate`` and ``handoff``."""
        return (*((self._delegate,) if self.max_children else ()), *super().tools())

    def _told_of_delegate(self, ctx: Any) -> ToolSpec | None:
        """A run that is too deep to delegate is not offered the tool."""
        return self._told(self._delegate, ctx) if ctx.depth < self.max_depth else None

    async def _delegate_call(self, to: str, task: str, ctx: Any) -> str:  # noqa: D417 - a model gives no ctx
        """Have another agent do a task, and get its answer.

        Args:
            to: who is to do it
            task: what to do, with all that the other must know: it sees nothing else of this conversation
        """
        result = await self.delegate(ctx, to, task)
        if result.status == "completed":
            return result.output_text
        raise SubagentUnfinishedError(_ending(result))

    async def delegate(self, ctx: AgentContext, to: str, task: str) -> AgentResult[Any]:
        """Have a member do a task, in a run inside the run of ``ctx``, and give its result, however it ended.

        Raises:
            SubagentRefusedError: it was not started; the message says why.
            CallRefusedError: a hook failed closed once it was; uncaught, that fails the run of ``ctx``.
        """
        if not ctx.run_id:
            raise HooklineError("delegate needs the context of a run; outside of one, use team.arun(task)")
        name = self._members.chosen(ctx, to, SubagentRefusedError)
        if not isinstance(task, str) or not task.strip():
            raise SubagentRefusedError(f"say in words what {name} is to do")
        if ctx.depth >= self.max_depth:
            raise SubagentRefusedError(f"runs may be {self.max_depth} deep, and this one is: do it without {name}")
        tally = self._tally(ctx)
        if tally.children >= self.max_children:
            raise SubagentRefusedError(f"a run may start {self.max_children} subagents, and this one has")
        tally.children += 1
        gate = tally.gate = tally.gate or asyncio.Semaphore(self.max_parallel)
        spawned = False
        try:
            async with gate:
                told = await self._spawning(ctx, Subagent(ctx.ids, task, name))
                spawned = True
                return await self._attend(ctx, told)
        finally:
            tally.children -= not spawned

    async def delegate_all(self, ctx: AgentContext, tasks: Iterable[tuple[str, str]]) -> list[AgentResult[Any]]:
        """Have several ``(to, task)`` done at once, as far as the limits allow; the results are in their order.

        The result of a refused one is ``failed``, with the refusal among its errors.

        Raises:
            CallRefusedError: as for :meth:`delegate`.
        """

        async def one(to: str, task: str) -> AgentResult[Any]:
            try:
                return await self.delegate(ctx, to, task)
            except SubagentRefusedError as refused:
                error = ErrorInfo("tool", "SubagentRefusedError", str(refused), refused.by or str(to), fatal=True)
                ids = Ids(agent=str(to), parent_run_id=ctx.run_id)
                return AgentResult(status="failed", task=str(task), errors=(error,), ids=ids)

        try:
            async with asyncio.TaskGroup() as group:
                work = [group.create_task(one(to, task)) for to, task in tasks]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [task.result() for task in work]

    async def _spawning(self, ctx: AgentContext, asked: Subagent) -> Subagent:
        """Put it to the hooks, which may change or refuse it."""
        who = asked.personality_id
        try:
            verdict = await ctx.fire(SUBAGENT_SPAWNING, asked)
        except HookError as failed:
            raise SubagentRefusedError(f"{who} was refused: {failed}", by=failed.hook) from failed
        change: SubagentChange = verdict.value or SubagentChange()
        if change.error is not None:
            raise SubagentRefusedError(f"{who} was refused by {verdict.hook}: {change.error}", by=verdict.hook)
        if change.personality is not None:
            who = self._members.known(change.personality, SubagentRefusedError)
        return asked.replace(prompt=asked.prompt if change.prompt is None else change.prompt, personality_id=who)

    async def _attend(self, ctx: AgentContext, told: Subagent) -> AgentResult[Any]:
        """Start the run, see it to its end, and say so, whatever happens."""
        engine = services_of(ctx).run
        assert isinstance(engine, Engine)  # the point before was fired with it
        fire = engine.fire_from_hook
        session = Session(ctx.new_id("session"), personality_id=told.personality_id)
        run = self._start(told.prompt, ctx, session)
        told = told.replace(child=run.ids)
        over = engine.add_child(run.cancel)
        try:
            try:
                await _tell(fire, SUBAGENT_SPAWNED, told)
                result = await _result(run)
                while (task := self.follow_up(session, result)) is not None:
                    run = self._start(task, ctx, session)
                    result = await _result(run)
            except BaseException as cause:
                run.cancel("its caller did not wait for it")
                result = await _last_result(run)
                with suppress(StillRunningError, HookError, CallRefusedError):  # it is reported; this cause came first
                    ended = fire(SUBAGENT_ENDED, told.replace(status=result.status, reply=result.reply))
                    await with_timeout(GRACE, ended, shielded=True)
                raise cause
            await _tell(fire, SUBAGENT_ENDED, told.replace(status=result.status, reply=result.reply))
        finally:
            over.set_result(None)
        return result

    def _start(self, task: str, ctx: AgentContext, session: Session) -> Run[Any]:
        return self._members.agents[session.personality_id].start(task, ctx=ctx, session=session, keep=False)


async def _tell(fire: Fire, point: Point[Any], told: Subagent) -> None:
    """Fire a point where the run fails if a hook fails closed: what it is about has happened (DESIGN 5.1)."""
    try:
        await fire(point, told)
    except HookError as failed:
        raise CallRefusedError(str(failed), status="failed", hook=failed.hook) from failed


async def _result(run: Run[Any]) -> AgentResult[Any]:
    try:
        return await run.result()
    except RunFailedError as failed:
        return failed.result


async def _last_result(run: Run[Any]) -> AgentResult[Any]:
    """The result of a run that was cancelled, if it comes in time."""
    with suppress(StillRunningError):
        await with_timeout(GRACE, run.settled(), shielded=True)
    if run.done:
        with suppress(Exception):
            result: AgentResult[Any] = await with_timeout(GRACE, _result(run), shielded=True)
            return result
    return AgentResult(status="cancelled", ids=run.ids)


def _ending(result: AgentResult[Any]) -> str:
    """How a run ended that did not complete, in words for the model that asked for it."""
    who, why = result.ids.agent or "the subagent", ""
    if result.stop is not None:
        why = result.stop.message or result.stop.kind
    elif result.status == "ended":
        why = f"by {result.hook_ended}"
    elif errors := [error for error in result.errors if error.fatal]:
        why = errors[-1].message
    words = {"stopped": "was stopped", "ended": "was ended", "cancelled": "was cancelled", "failed": "failed"}
    said = f" It said: {result.reply}" if result.reply else ""
    return f"{who} {words[result.status]}{f': {why}' if why else ''}.{said}"
