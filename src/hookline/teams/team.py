"""Teams of agents that delegate tasks to each other and hand conversations over (DESIGN 7.10)."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from typing import Any, ClassVar, TypedDict, Unpack, overload
from weakref import WeakKeyDictionary

import msgspec

from .._base.frozen import EMPTY
from .._base.tasks import StillRunningError, with_timeout
from .._base.text import did_you_mean
from .._kernel.errors import CallRefusedError, HookError, HooklineError, RegistrationError
from .._kernel.payloads import ToolCallResult
from .._kernel.points import AFTER_TOOL, BEFORE_LLM, ON_RUN_END, ON_RUN_START, Point
from .._kernel.registry import EMPTY_STACK, HookRegistry
from .._kernel.results import HookResult, Verdict
from .._kernel.state import AgentResult
from .._kernel.values import ErrorInfo, Ids, ToolSpec
from .._run.agent import Agent
from .._run.cancellation import GRACE
from .._run.context import AgentContext, services_of
from .._run.engine import Engine
from .._run.journal import JournalStore, following_id, head_of
from .._run.options import RunOptions
from .._run.run import Run, warn_if_blocking
from .._run.run_hooks import GuardSource
from .._run.session import Session
from .._run.termination import RunFailedError
from ..tools._tool import Tool
from .errors import HandoffRefusedError, SubagentRefusedError, SubagentUnfinishedError
from .points import (
    PERSONALITY_SWITCHED,
    SUBAGENT_ENDED,
    SUBAGENT_SPAWNED,
    SUBAGENT_SPAWNING,
    PersonalityChange,
    PersonalitySwitched,
    Subagent,
    SubagentChange,
)

log = logging.getLogger("hookline")

Fire = Callable[[Point[Any], Any], Awaitable[Verdict]]


class AgentPerSession(ABC):
    """Base class for objects that run like an agent and choose the agent by the session."""

    def start(
        self, task: str, *, output_type: Any = None, keep: bool = True, **options: Unpack[RunOptions[Any]]
    ) -> Run[Any]:
        """Start a run of the session's agent; options as for :meth:`Agent.start`."""
        agent, _, full = self._prepare(options)
        return agent.start(task, output_type=output_type, keep=keep, **full)

    async def arun(self, task: str, *, output_type: Any = None, **options: Unpack[RunOptions[Any]]) -> AgentResult[Any]:
        """Run to the end, as :meth:`Agent.arun` does. After a handoff, continue with the next agent.

        Raises:
            RunFailedError: a run ended ``failed``; the error has the result.
        """
        _keep_iterables(options)
        while True:
            agent, session, full = self._prepare(options)
            options["session"] = session
            result = await agent.arun(task, output_type=output_type, **full)
            if (follow_up := self._continue(session, result, options)) is None:
                return result
            task = follow_up

    def run(self, task: str, *, output_type: Any = None, **options: Unpack[RunOptions[Any]]) -> AgentResult[Any]:
        """Run to the end and block; otherwise like :meth:`arun`.

        Raises:
            RunFailedError: a run ended ``failed``; the error has the result.
        """
        warn_if_blocking(f"{type(self).__name__}.run()", f"await {type(self).__name__}.arun(...)")
        _keep_iterables(options)
        while True:
            agent, session, full = self._prepare(options)
            options["session"] = session
            result = agent._run_blocking(task, output_type, full)
            if (follow_up := self._continue(session, result, options)) is None:
                return result
            task = follow_up

    @abstractmethod
    def follow_up(self, session: Session, result: AgentResult[Any]) -> str | None:
        """Return the task of the run that must follow this one because of a handoff; ``None`` without a handoff."""

    @abstractmethod
    def resume_handoffs(self, session: Session, count: int) -> None:
        """Continue a session in which another process has handed over ``count`` times since the user's message."""

    def _continue(self, session: Session, result: AgentResult[Any], options: RunOptions[Any]) -> str | None:
        """Return the task of the run that follows because of a handoff, and change the options for it."""
        options.pop("attachments", None)  # the session has them now
        task = self.follow_up(session, result)
        if (store := options.get("durable")) is not None:
            options["run_id"] = run_id = following_id(result.ids.run_id)
            task = task or self.stored_follow_up(session, store, run_id)
        return task

    def stored_follow_up(self, session: Session, store: JournalStore, run_id: str) -> str | None:
        """Return the task of a durable run that follows because of a handoff in another process; ``None`` without one.

        The session becomes what it was there: the agent that answers, and the agents whose guards still apply.
        """
        stored = store.journal.get(run_id)
        if stored is None:
            return None
        head = head_of(stored)
        session.messages, session.handed_over_by = head.messages, head.handed_over_by
        session.personality_id, session.personality_changes = head.personality, head.personality_changes or EMPTY
        self.resume_handoffs(session, int(run_id.rpartition("+")[2]))
        return head.task

    @abstractmethod
    def _prepare(self, options: RunOptions[Any]) -> tuple[Agent[Any, Any], Session, RunOptions[Any]]:
        """Return the agent of a run, its session, and its options including the session."""


def _keep_iterables(options: RunOptions[Any]) -> None:
    """Read the options that are iterators: the run that follows a handoff gets them too."""
    kept: Any = options
    for name, given in kept.items():
        if isinstance(given, Iterator):
            kept[name] = tuple(given)


def session_of(options: RunOptions[Any]) -> Session:
    """Return the session of a run. A run inside a run has a new session unless one is given.

    Raises:
        TypeError: ``session`` is not a :class:`Session`.
    """
    given, session = options.get("ctx"), options.get("session")
    if session is None:
        session = given.session if isinstance(given, AgentContext) and not given.run_id else Session()
    if not isinstance(session, Session):
        raise TypeError(f"session= takes a Session, not {type(session).__name__}")
    return session


def restore_guards(session: Session, agents: Mapping[str, Agent[Any, Any]]) -> None:
    """Find the guards of the agents that handed over a session which was loaded from a store."""
    for name in session.handed_over_by:
        if name in session._guards:
            continue
        if name in agents:
            session._guards[name] = GuardSource(agents[name], HookRegistry(), EMPTY_STACK, agents[name].allowed_plugins)
        else:
            log.warning(
                "session %s was handed over by the agent %r, which no longer exists: its guards no longer apply",
                session.id,
                name,
            )


class Members:
    """The agents of a team by name. A mapping is not copied, so that its changes take effect."""

    def __init__(
        self,
        agents: Iterable[Agent[Any, Any]] | Mapping[str, Agent[Any, Any]],
        first: str | None,
        may: Callable[[str, str], bool] | None,
    ) -> None:
        self._first, self._may = first, may
        self.agents: Mapping[str, Agent[Any, Any]] = {}
        if isinstance(agents, Mapping):
            self.agents = agents  # pyright: ignore[reportAttributeAccessIssue] # by name: no mapping has agents as keys
        else:
            if isinstance(agents, str) or not isinstance(agents, Iterable):
                raise RegistrationError(
                    f"members must be a list of agents, or a mapping of names to agents, not {type(agents).__name__}"
                )
            for agent in agents:
                self.add(agent)
            if first is not None and self.agents:
                self.check_member(first, RegistrationError)

    def add(self, agent: Agent[Any, Any], name: str | None = None) -> None:
        """Add an agent under its own name, or another."""
        if not isinstance(agent, Agent):
            raise RegistrationError(f"{agent!r:.80} is not an agent")
        name = name or agent.name
        if not isinstance(self.agents, MutableMapping):
            raise RegistrationError(f"{type(self.agents).__name__} cannot be changed by the team: add {name!r} there")
        if name in self.agents:
            raise RegistrationError(f"two members are named {name!r}; give one another name")
        self.agents[name] = agent

    @property
    def first(self) -> str:
        """The name of the member that starts a conversation."""
        if self._first is not None:
            return self.check_member(self._first, HooklineError)
        for name in self.agents:
            return str(name)
        raise HooklineError("the team has no members: Team([agent, ...]), or team.add(agent)")

    def member_of(self, session: Session) -> str:
        """Return the name of the member that a session belongs to; the first member if that member was removed."""
        name = session.personality_id
        if name and name not in self.agents:
            log.warning(
                "session %s belongs to %r, which is no longer a member; %r continues", session.id, name, self.first
            )
        return name if name in self.agents else self.first

    def allowed_for(self, ctx: Any) -> list[str]:
        """Return the names of the members that the agent of this run may delegate or hand over to."""
        who = ctx.agent_name if ctx.agent_name in self.agents else ctx.session.personality_id
        if self._may is None:
            return [name for name in self.agents if name != who]
        return [name for name in self.agents if self._may(who, name)]

    def check_allowed(self, ctx: Any, name: object, error: type[Exception]) -> str:
        """Return the name if the agent of this run may delegate or hand over to that member."""
        if name in (allowed := self.allowed_for(ctx)):
            return str(name)
        choices = f"Choose from: {', '.join(allowed)}." if allowed else "No other agent is available."
        if isinstance(name, str) and name in self.agents:
            raise error(f"{ctx.agent_name} may not use {name}. {choices}")
        raise error(f"there is no agent {str(name)!r:.80}.{did_you_mean(str(name), allowed)} {choices}")

    def check_member(self, name: str, error: type[Exception]) -> str:
        """Return the name if it is that of a member."""
        if name not in self.agents:
            known = ", ".join(self.agents) or "none"
            raise error(f"there is no member {name!r:.80}.{did_you_mean(name, self.agents)} Members: {known}")
        return name


class _TeamState(msgspec.Struct):
    """The state of a team in one run. ``to`` is the member to hand over to, once ``confirmed``."""

    children: int = 0
    gate: asyncio.Semaphore | None = None
    to: str = ""
    message: str = ""
    confirmed: bool = False
    hook_active: bool = False


class _Handoffs(msgspec.Struct):
    """The handoffs since the last message of the user. ``task`` is for the run that follows the run ``run_id``."""

    count: int = 0
    run_id: str = ""
    task: str = ""
    following: bool = False


class TeamHook:
    """The hook of a team: it ends a run that hands over, and records which run follows."""

    name = "team"

    points = frozenset({ON_RUN_START, BEFORE_LLM, AFTER_TOOL, ON_RUN_END})
    phase: ClassVar[Mapping[str, str]] = {ON_RUN_START: "observe", BEFORE_LLM: "observe", AFTER_TOOL: "guard"}
    priority: ClassVar[Mapping[str, float]] = {AFTER_TOOL: -200, ON_RUN_END: 300}

    def __init__(self, handle: Callable[[str, Any, Any], Any]) -> None:
        self._handle = handle

    def __call__(self, point: str, ctx: Any, payload: Any) -> Any:
        """Pass a point on to the team."""
        return self._handle(point, ctx, payload)


class TeamOptions(TypedDict, total=False):
    """The keyword options of :class:`Team`, for its overloaded signatures."""

    first: str | None
    may: Callable[[str, str], bool] | None
    max_depth: int
    max_children: int
    max_parallel: int
    max_handoffs: int


class Team(AgentPerSession):
    """Agents that can delegate tasks to each other and hand conversations over.

    Give the team to an agent as a tool, ``Agent(..., tools=[team])``, and its model has ``delegate(to, task)`` and
    ``handoff(to, message)``; the hook of the team is added automatically. ``start``, ``arun`` and ``run`` run the
    member that a session belongs to, and continue after a handoff.

    Example:
        >>> team = Team(may=lambda who, whom: who == "clerk")
        >>> team.add(Agent("clerk", llm="openai:gpt-5-mini", tools=[team]))
        >>> team.add(Agent("expert", "Knows the law.", llm="openai:gpt-5"))
        >>> team.run("May I keep the deposit?")

    Args:
        members: agents, or a mapping of names to agents; changes of the mapping take effect.
        first: the name of the member that starts a conversation; by default the first one.
        may: ``may(who, whom)`` returns whether a member may delegate or hand over to another; by default all may.
        max_depth: the maximum depth of runs inside runs.
        max_children: the maximum number of subagents that one run may start; with 0 there is no ``delegate``.
        max_parallel: the maximum number of subagents of one run at the same time.
        max_handoffs: the maximum number of handoffs in one turn; with 0 there is no ``handoff``.

    Raises:
        RegistrationError: a member is not an agent, two have the same name, or a limit is not a whole number.
    """

    # Two signatures, because type checkers cannot infer a literal that may be a mapping or a list.
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
                raise RegistrationError(f"{name} must be a whole number, {least} or more, not {limit!r}")
        self.max_depth, self.max_children, self.max_parallel = max_depth, max_children, max_parallel
        self.max_handoffs = max_handoffs
        self._members = Members(members, first, may)
        self._delegate = Tool(self._delegate_tool, name="delegate", effects=[], offer=self._offer_delegate)
        self._handoff = Tool(
            self._handoff_tool, name="handoff", effects=[], offer=lambda ctx: self._offer(self._handoff, ctx)
        )
        self._delegate.runs_agents = self._handoff.runs_agents = True
        self.tool_hooks = (TeamHook(self._handle),)
        self._handoffs: WeakKeyDictionary[Session, _Handoffs] = WeakKeyDictionary()

    @property
    def members(self) -> Mapping[str, Agent[Any, Any]]:
        """The agents by name."""
        return self._members.agents

    @property
    def first(self) -> str:
        """The name of the member that starts a conversation."""
        return self._members.first

    def add(self, agent: Agent[Any, Any], name: str | None = None) -> None:
        """Add a member, from the next model call on; by default under its own name."""
        self._members.add(agent, name)

    def tools(self) -> tuple[Tool, ...]:
        """Return the tools ``delegate`` and ``handoff``."""
        delegate = (self._delegate,) if self.max_children else ()
        return (*delegate, self._handoff) if self.max_handoffs else delegate

    def _offer(self, tool: Tool, ctx: Any) -> ToolSpec | None:
        """Return the description of a tool for the model, with the members that it may choose from now."""
        names = self._members.allowed_for(ctx)
        if not names:
            return None
        about = "\n".join(f"- {name}: {self._members.agents[name].description or name}" for name in names)
        fields: Any = {**tool.spec.parameters["properties"]}
        fields["to"] = {**fields["to"], "enum": names}
        parameters = {**tool.spec.parameters, "properties": fields}
        return ToolSpec(tool.name, f"{tool.spec.description}\n\nAgents:\n{about}", parameters)

    def _state(self, ctx: Any) -> _TeamState:
        state: _TeamState = ctx.own_state(self, _TeamState)
        return state

    # Delegation.

    def _offer_delegate(self, ctx: Any) -> ToolSpec | None:
        """Do not offer the tool to a run that is too deep to delegate."""
        return self._offer(self._delegate, ctx) if ctx.depth < self.max_depth else None

    async def _delegate_tool(self, to: str, task: str, ctx: Any) -> str:  # noqa: D417 - ctx is not a parameter for models
        """Give a task to another agent, and get its answer.

        Args:
            to: the agent that does the task
            task: the task, with everything the agent must know: it does not see this conversation
        """
        result = await self.delegate(ctx, to, task)
        if result.status == "completed":
            return result.output_text
        raise SubagentUnfinishedError(_describe_end(result))

    async def delegate(self, ctx: AgentContext, to: str, task: str) -> AgentResult[Any]:
        """Give a task to a member, in a run nested in the run of ``ctx``, and return its result, whatever its status.

        Raises:
            SubagentRefusedError: the run was not started; the message says why.
            CallRefusedError: a hook failed closed after the start. If it is not caught, the run of ``ctx`` fails.
        """
        if not ctx.run_id:
            raise HooklineError("delegate needs the context of a run; outside of one, use team.arun(task)")
        name = self._members.check_allowed(ctx, to, SubagentRefusedError)
        if not isinstance(task, str) or not task.strip():
            raise SubagentRefusedError(f"the task for {name} is empty: describe it")
        if ctx.depth >= self.max_depth:
            raise SubagentRefusedError(
                f"the maximum depth of {self.max_depth} runs inside each other is reached: do it without {name}"
            )
        state = self._state(ctx)
        if state.children >= self.max_children:
            raise SubagentRefusedError(f"this run has already started the maximum of {self.max_children} subagents")
        state.children += 1
        gate = state.gate = state.gate or asyncio.Semaphore(self.max_parallel)
        spawned = False
        try:
            waits = gate.locked()
            async with gate:
                await services_of(ctx).environment.boundary.wake_up(f"turn of {name}", waited=waits)
                subagent = await self._ask_hooks(ctx, Subagent(ctx.ids, task, name))
                spawned = True
                return await self._run_subagent(ctx, subagent)
        finally:
            state.children -= not spawned

    async def delegate_all(self, ctx: AgentContext, tasks: Iterable[tuple[str, str]]) -> list[AgentResult[Any]]:
        """Delegate several ``(to, task)`` pairs in parallel, within the limits; the results are in the same order.

        If a subagent is not started, its result is ``failed`` and has the error.

        Example:
            >>> results = await team.delegate_all(ctx, [("chemist", "What is salt?"), ("cook", "How much salt?")])

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

    async def _ask_hooks(self, ctx: AgentContext, subagent: Subagent) -> Subagent:
        """Fire ``subagent_spawning``, whose hooks may change or refuse the subagent."""
        who = subagent.personality_id
        try:
            verdict = await ctx.fire(SUBAGENT_SPAWNING, subagent)
        except HookError as failed:
            raise SubagentRefusedError(f"{who} was refused: {failed}", by=failed.hook) from failed
        change: SubagentChange = verdict.value or SubagentChange()
        if change.error is not None:
            raise SubagentRefusedError(f"{who} was refused by {verdict.hook}: {change.error}", by=verdict.hook)
        if change.personality is not None:
            who = self._members.check_member(change.personality, SubagentRefusedError)
        prompt = subagent.prompt if change.prompt is None else change.prompt
        return subagent.replace(prompt=prompt, personality_id=who)

    async def _run_subagent(self, ctx: AgentContext, subagent: Subagent) -> AgentResult[Any]:
        """Run a subagent to its end. ``subagent_ended`` always fires, even if the caller is cancelled."""
        engine = services_of(ctx).run
        assert isinstance(engine, Engine)  # subagent_spawning was fired with it
        fire = engine.fire_from_hook
        session = Session(ctx.new_id("session"), personality_id=subagent.personality_id)
        run = self._start(subagent.prompt, ctx, session)
        subagent = subagent.replace(child=run.ids)
        over = engine.children.add(run.cancel)
        try:
            try:
                await _fire_closed(fire, SUBAGENT_SPAWNED, subagent)
                result = await _result(run)
                await engine.boundary.wake_up(f"end of {run.ids.run_id}")
                while (task := self.follow_up(session, result)) is not None:
                    run = self._start(task, ctx, session)
                    result = await _result(run)
                    await engine.boundary.wake_up(f"end of {run.ids.run_id}")
            except BaseException as cause:
                run.cancel("its caller did not wait for it")
                result = await _last_result(run)
                with suppress(StillRunningError, HookError, CallRefusedError):  # reported; the first cause is raised
                    ended = fire(SUBAGENT_ENDED, subagent.replace(status=result.status, reply=result.reply))
                    await with_timeout(GRACE, ended, shielded=True)
                raise cause
            await _fire_closed(fire, SUBAGENT_ENDED, subagent.replace(status=result.status, reply=result.reply))
        finally:
            over.set_result(None)
        return result

    def _start(self, task: str, ctx: AgentContext, session: Session) -> Run[Any]:
        return self._members.agents[session.personality_id].start(task, ctx=ctx, session=session, keep=False)

    # Handoffs: the tool, the hook that ends the run, and the run that follows.

    @property
    def hooks(self) -> HookRegistry:
        """The hooks of the first member, for points outside of a run."""
        return self._members.agents[self._members.first].hooks

    def speaker_for(self, session: Session) -> str:
        """Return the name of the member that a session belongs to."""
        return self._members.member_of(session)

    def follow_up(self, session: Session, result: AgentResult[Any]) -> str | None:
        """Return the task of the run that must follow this one because of a handoff; ``None`` without a handoff."""
        handoffs = self._handoffs.get(session)
        if handoffs is None or not handoffs.run_id or handoffs.run_id != result.ids.run_id:
            return None
        handoffs.run_id, handoffs.following = "", True
        handoffs.count += 1
        return handoffs.task

    def resume_handoffs(self, session: Session, count: int) -> None:
        """Continue a session in which another process has handed over ``count`` times since the user's message."""
        self._handoffs[session] = _Handoffs(count=count, following=True)

    def _prepare(self, options: RunOptions[Any]) -> tuple[Agent[Any, Any], Session, RunOptions[Any]]:
        session = session_of(options)
        session.personality_id = self._members.member_of(session)
        restore_guards(session, self._members.agents)
        return self._members.agents[session.personality_id], session, {**options, "session": session}

    async def _handoff_tool(self, to: str, message: str, ctx: Any) -> str:  # noqa: D417 - ctx is not for models
        """Hand this conversation over to another agent, which answers the user from now on.

        Args:
            to: the agent that takes over
            message: what that agent should know or do first; it sees the conversation so far
        """
        state, handoffs = self._state(ctx), self._handoffs.get(ctx.session)
        if not state.hook_active:
            raise HandoffRefusedError("the hook of the team is missing: give the team as Agent(..., tools=[team])")
        name = self._members.check_allowed(ctx, to, HandoffRefusedError)
        if handoffs is not None and handoffs.count >= self.max_handoffs:
            raise HandoffRefusedError("this conversation was handed over too often: answer it yourself")
        if state.to and state.to != name:
            raise HandoffRefusedError(f"{state.to} already takes over")
        state.to, state.message = name, message
        try:
            state.to = await self.switch(ctx, name)
        except BaseException:
            state.to = ""
            raise
        return f"{state.to} takes over this conversation."

    async def switch(self, ctx: AgentContext, to: str) -> str:
        """Fire ``personality_switched`` for a handoff, and return the member that takes over.

        Raises:
            HandoffRefusedError: a hook failed closed, or named an agent that is not a member.
        """
        switched = PersonalitySwitched(ctx.session.id, to, ctx.session.personality_id or ctx.agent_name)
        try:
            change: PersonalityChange | None = (await ctx.fire(PERSONALITY_SWITCHED, switched)).value
        except HookError as failed:
            raise HandoffRefusedError(f"{to} cannot take over: {failed}") from failed
        if change is None or change.personality is None:
            return to
        if not isinstance(change.personality, str):
            raise HandoffRefusedError(
                f"{to} cannot take over: a hook changed fields of the personality, which only a Roster supports"
            )
        return self._members.check_member(change.personality, HandoffRefusedError)

    def _handle(self, point: str, ctx: Any, payload: Any) -> Any:
        if point == BEFORE_LLM:
            if payload.purpose == "step":
                state = self._state(ctx)
                state.to, state.confirmed = "", False  # a hook continued the run in spite of the handoff
            return None
        if point == AFTER_TOOL:
            return self._after_tool(ctx, payload)
        if point == ON_RUN_START:
            self._state(ctx).hook_active = True
            handoffs = self._handoffs.get(ctx.session)
            if handoffs is not None:
                handoffs.count, handoffs.following = handoffs.count if handoffs.following else 0, False
        else:
            self._on_run_end(ctx, payload)
        return None

    def _after_tool(self, ctx: Any, result: ToolCallResult) -> HookResult | None:
        state, tools = self._state(ctx), services_of(ctx).tools
        if not state.to or tools is None or tools.get(result.name) is not self._handoff:
            return None
        if result.outcome != "ok" or result.error is not None:  # a hook may have rejected it
            return None
        state.confirmed = True
        return HookResult.stop(f"{state.to} takes over.", kind="finish_reason")

    def _on_run_end(self, ctx: Any, result: AgentResult[Any]) -> None:
        state = self._state(ctx)
        if not state.confirmed or result.status != "completed":
            return
        note = f" {state.message}" if state.message.strip() else ""
        handoffs = self._handoffs.setdefault(ctx.session, _Handoffs())
        handoffs.run_id, handoffs.task = ctx.run_id, f"You take over this conversation from {ctx.agent_name}.{note}"
        engine = services_of(ctx).run
        assert isinstance(engine, Engine)
        ctx.session.hand_over(ctx.session.personality_id or ctx.agent_name, engine.hooks.guard_source())
        ctx.session.personality_id = state.to
        engine.boundary.hand_off(ctx.run_id, self._members.agents[state.to].name, handoffs.task)


async def _fire_closed(fire: Fire, point: Point[Any], subagent: Subagent) -> None:
    """Fire a point at which a closed failure fails the run, because the event has already happened (DESIGN 5.1)."""
    try:
        await fire(point, subagent)
    except HookError as failed:
        raise CallRefusedError(str(failed), status="failed", hook=failed.hook) from failed


async def _result(run: Run[Any]) -> AgentResult[Any]:
    try:
        return await run.result()
    except RunFailedError as failed:
        return failed.result


async def _last_result(run: Run[Any]) -> AgentResult[Any]:
    """Return the result of a cancelled run, if it ends within the grace period."""
    with suppress(StillRunningError):
        await with_timeout(GRACE, run.settled(), shielded=True)
    if run.done:
        with suppress(Exception):
            result: AgentResult[Any] = await with_timeout(GRACE, _result(run), shielded=True)
            return result
    return AgentResult(status="cancelled", ids=run.ids)


def _describe_end(result: AgentResult[Any]) -> str:
    """Describe how an incomplete run ended, for the model that delegated."""
    who, why = result.ids.agent or "the subagent", ""
    if result.stop is not None:
        why = result.stop.message or result.stop.kind
    elif result.status == "ended":
        why = f"by {result.hook_ended}"
    elif errors := [error for error in result.errors if error.fatal]:
        why = errors[-1].message
    ends = {"stopped": "was stopped", "ended": "was ended", "cancelled": "was cancelled", "failed": "failed"}
    reply = f" Its reply: {result.reply}" if result.reply else ""
    return f"{who} {ends[result.status]}{f': {why}' if why else ''}.{reply}"
