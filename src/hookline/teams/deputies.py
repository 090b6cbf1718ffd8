"""Personalities that delegate to others, and hand conversations over to them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any
from weakref import WeakKeyDictionary

from .._base.frozen import EMPTY
from .._base.text import error_text
from .._kernel.registry import HookStack, fire_outside_run
from .._kernel.results import Verdict
from .._kernel.scope import scope_of
from .._kernel.state import AgentResult
from .._run.agent import Agent
from .._run.context import AgentContext
from .._run.run import Run
from .._run.session import Session
from .crew import Crew
from .errors import HandoffRefusedError, SwitchRefusedError
from .points import PERSONALITY_SWITCHED, PersonalitySwitched
from .subagents import Team

Fire = Callable[[PersonalitySwitched], Awaitable[Verdict]]
Agree = Callable[[Fire, Session, str, str], Awaitable[tuple[str, Mapping[str, Any]]]]
"""Puts a switch to its handlers: given how, where, from and to, gives an id and what is changed about it."""


class Deputies(Team):
    """The team of a crew: each may turn to its ``delegates``.

    Args:
        crew: gives the personalities, when it is first used.
        agree: asks the handlers of ``personality_switched``.
    """

    def __init__(self, crew: Callable[[], Crew], agree: Agree) -> None:
        super().__init__(_Agents(crew), may=self._may)
        self._crew, self._agree = crew, agree
        self._agreed: WeakKeyDictionary[Session, tuple[str, Mapping[str, Any]]] = WeakKeyDictionary()

    def _may(self, who: str, whom: str) -> bool:
        member = self._crew().members.get(who)
        return member is not None and who != whom and any(fnmatchcase(whom, d) for d in member.personality.delegates)

    async def switch(self, ctx: AgentContext, to: str) -> str:
        """Who takes over in the end, after the handlers of ``personality_switched`` were asked."""
        try:
            found, changes = await self._agree(
                lambda payload: self._asked(ctx, to, payload), ctx.session, ctx.agent_name, to
            )
        except SwitchRefusedError as refused:
            raise HandoffRefusedError(error_text(refused)) from refused
        if not found:
            raise HandoffRefusedError(f"{to} cannot take over: a hook wants nobody to")
        self._agreed[ctx.session] = found, changes
        return found

    async def _asked(self, ctx: AgentContext, to: str, payload: PersonalitySwitched) -> Verdict:
        """All hooks of the run, then those of the plugins that take part only from now on, as after any switch."""
        verdict = await ctx.fire(PERSONALITY_SWITCHED, payload)
        members = self._crew().members
        mine, new = ctx.allowed_plugins, members[to].personality.plugins
        if mine is None or ctx.agent_name not in members or mine != members[ctx.agent_name].personality.plugins:
            return verdict  # all were asked; or whoever started the run filters too, and that is not ours to widen
        stack = self._crew().base.hooks.stack.only(new)
        later = HookStack(*(tuple(e for e in layer if e.plugin and e.plugin not in mine) for layer in stack.layers))
        outside = AgentContext(session=ctx.session, allowed_plugins=new)
        more = await fire_outside_run(
            later.chain(PERSONALITY_SWITCHED), PERSONALITY_SWITCHED, payload, scope_of(outside)
        )
        return more if getattr(verdict.value, "personality", None) is None else verdict

    def _at_the_end(self, ctx: Any, result: AgentResult[Any]) -> None:
        super()._at_the_end(ctx, result)
        found, changes = self._agreed.pop(ctx.session, ("", EMPTY))
        turn = self._turns.get(ctx.session)
        if turn is not None and turn.run_id == ctx.run_id:  # it was handed over
            ctx.session.personality_changes = changes if found == ctx.session.personality_id else EMPTY

    def _start(self, task: str, ctx: AgentContext, session: Session) -> Run[Any]:
        self._crew().refresh()
        return super()._start(task, ctx, session)


class _Agents(Mapping[str, Agent]):
    """The agents of a crew as they were when it was last looked at: cheap enough for every model call."""

    def __init__(self, crew: Callable[[], Crew]) -> None:
        self._crew = crew

    def __getitem__(self, id: str) -> Agent[Any, Any]:
        return self._crew().members[id].agent

    def __iter__(self) -> Iterator[str]:
        return iter(self._crew().members)

    def __len__(self) -> int:
        return len(self._crew().members)
