"""Who belongs to a team, and who may turn to whom."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any

from .._base.text import did_you_mean
from .._kernel.errors import HooklineError, RegistrationError
from .._run.agent import Agent
from .._run.session import Session

log = logging.getLogger("hookline")


class Members:
    """Agents by name. A mapping is looked at each time, so it may change; others are kept here."""

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
                raise RegistrationError(f"members are a list of agents, or a mapping, not {type(agents).__name__}")
            for agent in agents:
                self.add(agent)
            if first is not None and self.agents:
                self.known(first, RegistrationError)

    def add(self, agent: Agent[Any, Any], name: str | None = None) -> None:
        """Take in an agent under its own name, or another."""
        if not isinstance(agent, Agent):
            raise RegistrationError(f"{agent!r:.80} is no agent")
        name = name or agent.name
        if not isinstance(self.agents, MutableMapping):
            raise RegistrationError(f"{type(self.agents).__name__} is looked at, not written: add {name!r} there")
        if name in self.agents:
            raise RegistrationError(f"two members are named {name!r}; give one another name")
        self.agents[name] = agent

    @property
    def first(self) -> str:
        """The name of the member that begins."""
        if self._first is not None:
            return self.known(self._first, HooklineError)
        for name in self.agents:
            return str(name)
        raise HooklineError("the team has no members: Team([agent, ...]), or team.add(agent)")

    def of(self, session: Session) -> str:
        """The name of the member that a session belongs to; the first one's, if that is gone."""
        name = session.personality_id
        if name and name not in self.agents:
            log.warning("session %s belongs to %r, who is no member any more; %r goes on", session.id, name, self.first)
        return name if name in self.agents else self.first

    def around(self, ctx: Any) -> list[str]:
        """The names of those whom the agent of this run may turn to."""
        who = ctx.agent_name if ctx.agent_name in self.agents else ctx.session.personality_id
        if self._may is None:
            return [name for name in self.agents if name != who]
        return [name for name in self.agents if self._may(who, name)]

    def chosen(self, ctx: Any, name: object, refusal: type[Exception]) -> str:
        """This name, if the agent of this run may turn to it."""
        if name in (allowed := self.around(ctx)):
            return str(name)
        known = f"Choose from: {', '.join(allowed)}." if allowed else "There is nobody to turn to."
        if isinstance(name, str) and name in self.agents:
            raise refusal(f"{ctx.agent_name} may not turn to {name}. {known}")
        raise refusal(f"there is no {str(name)!r:.80}.{did_you_mean(str(name), allowed)} {known}")

    def known(self, name: str, refusal: type[Exception]) -> str:
        """This name, if it is a member's."""
        if name not in self.agents:
            known = ", ".join(self.agents) or "none"
            raise refusal(f"there is no member {name!r:.80}.{did_you_mean(name, self.agents)} Members: {known}")
        return name
