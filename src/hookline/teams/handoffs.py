"""Handing a conversation over: the tool, the hook that ends the run then, and the run that follows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import msgspec

from .._kernel.errors import HookError
from .._kernel.payloads import ToolCallResult
from .._kernel.points import AFTER_TOOL, BEFORE_LLM, ON_RUN_END, ON_RUN_START
from .._kernel.registry import HookRegistry
from .._kernel.results import HookResult
from .._kernel.state import AgentResult
from .._kernel.values import ToolSpec
from .._run.agent import Agent
from .._run.context import AgentContext, services_of
from .._run.options import RunOptions
from .._run.session import Session
from ..tools._tool import Tool
from .errors import HandoffRefusedError
from .members import Members
from .points import PERSONALITY_SWITCHED, PersonalityChange, PersonalitySwitched
from .turns import Turns, session_of


class Tally(msgspec.Struct):
    """What one run did with the team. ``to`` is whom it hands over to, once ``sure``."""

    children: int = 0
    gate: asyncio.Semaphore | None = None
    to: str = ""
    message: str = ""
    sure: bool = False
    heard: bool = False


class Turn(msgspec.Struct):
    """The handoffs since the user spoke. ``task`` is that of the run that follows the one of ``run_id``."""

    count: int = 0
    run_id: str = ""
    task: str = ""
    following: bool = False


class TeamHook:
    """What a team does in the runs of its members: it ends a run that hands over, and says which one follows."""

    name = "team"

    points = frozenset({ON_RUN_START, BEFORE_LLM, AFTER_TOOL, ON_RUN_END})
    phase: ClassVar[Mapping[str, str]] = {ON_RUN_START: "observe", BEFORE_LLM: "observe", AFTER_TOOL: "guard"}
    priority: ClassVar[Mapping[str, float]] = {AFTER_TOOL: -200, ON_RUN_END: 300}

    def __init__(self, at: Callable[[str, Any, Any], Any]) -> None:
        self._at = at

    def __call__(self, point: str, ctx: Any, payload: Any) -> Any:
        """Look at one point."""
        return self._at(point, ctx, payload)


class Handoffs(Turns):
    """The part of a team that lets a session belong to one member after another."""

    def __init__(self, members: Members, max_handoffs: int) -> None:
        self._members, self.max_handoffs = members, max_handoffs
        self._handoff = Tool(self._handoff_call, name="handoff", offer=lambda ctx: self._told(self._handoff, ctx))
        self._handoff.runs_agents = True
        self.tool_hooks = (TeamHook(self._at),)
        self._turns: WeakKeyDictionary[Session, Turn] = WeakKeyDictionary()

    # As an agent that answers.

    @property
    def hooks(self) -> HookRegistry:
        """The first member's: they are asked at the points outside of a run."""
        return self._members.agents[self._members.first].hooks

    def follow_up(self, session: Session, result: AgentResult[Any]) -> str | None:
        """The task of the run that is to follow this one at once, because it handed over; ``None`` if none is."""
        turn = self._turns.get(session)
        if turn is None or not turn.run_id or turn.run_id != result.ids.run_id:
            return None
        turn.run_id, turn.following = "", True
        turn.count += 1
        return turn.task

    def speaker_for(self, session: Session) -> str:
        """The name of the member that a session belongs to."""
        return self._members.of(session)

    def _prepared(self, options: RunOptions[Any]) -> tuple[Agent[Any, Any], Session, RunOptions[Any]]:
        session = session_of(options)
        session.personality_id = self._members.of(session)
        return self._members.agents[session.personality_id], session, {**options, "session": session}

    # As a toolset.

    def tools(self) -> tuple[Tool, ...]:
        """``handoff``."""
        return (self._handoff,) if self.max_handoffs else ()

    def _told(self, tool: Tool, ctx: Any) -> ToolSpec | None:
        """What the model is told of a tool, with those it may turn to now."""
        names = self._members.around(ctx)
        if not names:
            return None
        about = "\n".join(f"- {name}: {self._members.agents[name].description or name}" for name in names)
        fields: Any = {**tool.spec.parameters["properties"]}
        fields["to"] = {**fields["to"], "enum": names}
        parameters = {**tool.spec.parameters, "properties": fields}
        return ToolSpec(tool.name, f"{tool.spec.description}\n\nWho is there:\n{about}", parameters)

    async def _handoff_call(self, to: str, message: str, ctx: Any) -> str:  # noqa: D417 - a model gives no ctx
        """Hand this conversation over to another agent, who answers the user from here on.

        Args:
            to: who takes over
            message: what the other should know or do first; it sees the conversation so far
        """
        tally, turn = self._tally(ctx), self._turns.get(ctx.session)
        if not tally.heard:
            raise HandoffRefusedError("the team is no hook of this agent: give it as Agent(..., tools=[team])")
        name = self._members.chosen(ctx, to, HandoffRefusedError)
        if turn is not None and turn.count >= self.max_handoffs:
            raise HandoffRefusedError("this was handed over too often already: answer it yourself")
        if tally.to and tally.to != name:
            raise HandoffRefusedError(f"{tally.to} takes over already")
        tally.to, tally.message = name, message
        try:
            tally.to = await self.switch(ctx, name)
        except BaseException:
            tally.to = ""
            raise
        return f"{tally.to} takes over this conversation."

    async def switch(self, ctx: AgentContext, to: str) -> str:
        """Fire ``personality_switched`` for a handoff; who takes over in the end.

        Raises:
            HandoffRefusedError: a hook failed closed, or wants somebody who is no member.
        """
        told = PersonalitySwitched(ctx.session.id, to, ctx.session.personality_id or ctx.agent_name)
        try:
            change: PersonalityChange | None = (await ctx.fire(PERSONALITY_SWITCHED, told)).value
        except HookError as failed:
            raise HandoffRefusedError(f"{to} cannot take over: {failed}") from failed
        if change is None or change.personality is None:
            return to
        if not isinstance(change.personality, str):
            raise HandoffRefusedError(f"{to} cannot take over: a hook wants to change its config, and a team has none")
        return self._members.known(change.personality, HandoffRefusedError)

    # As a hook.

    def _at(self, point: str, ctx: Any, payload: Any) -> Any:
        if point == BEFORE_LLM:
            if payload.purpose == "step":
                tally = self._tally(ctx)
                tally.to, tally.sure = "", False  # a hook made the run go on
            return None
        if point == AFTER_TOOL:
            return self._after_tool(ctx, payload)
        if point == ON_RUN_START:
            self._tally(ctx).heard = True
            turn = self._turns.get(ctx.session)
            if turn is not None:
                turn.count, turn.following = turn.count if turn.following else 0, False
        else:
            self._at_the_end(ctx, payload)
        return None

    def _is_other_tool(self, ctx: Any, name: str) -> bool:
        tools = services_of(ctx).tools
        return tools is None or tools.get(name) is not self._handoff

    def _after_tool(self, ctx: Any, result: ToolCallResult) -> HookResult | None:
        tally = self._tally(ctx)
        if not tally.to or self._is_other_tool(ctx, result.name):
            return None
        if result.outcome != "ok" or result.error is not None:  # a hook may have taken it back
            return None
        tally.sure = True
        return HookResult.stop(f"{tally.to} takes over.", kind="finish_reason")

    def _at_the_end(self, ctx: Any, result: AgentResult[Any]) -> None:
        tally = self._tally(ctx)
        if not tally.sure or result.status != "completed":
            return
        note = f" {tally.message}" if tally.message.strip() else ""
        turn = self._turns.setdefault(ctx.session, Turn())
        turn.run_id, turn.task = ctx.run_id, f"You take over this conversation from {ctx.agent_name}.{note}"
        ctx.session.personality_id = tally.to

    def _tally(self, ctx: Any) -> Tally:
        tally: Tally = ctx.hook_state.setdefault(id(self), Tally())
        return tally
