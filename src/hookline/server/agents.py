"""Look up the agents of a server by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .._base.frozen import EMPTY, Frozen, freeze_flat
from .._base.text import did_you_mean
from .._kernel.registry import HookStack
from .errors import UnknownAgentError


class ServedAgent(Frozen, frozen=True):
    """The public description of an agent: ``tools`` are the names of its tools, ``about`` describes each of them."""

    name: str
    description: str = ""
    tools: tuple[str, ...] = ()
    about: Mapping[str, str] = EMPTY


class Agents:
    """The served agents, rosters and teams by name. Each personality of a roster is served under its own name.

    Args:
        answerers: the agents by name, or other objects that start runs like an ``Agent``. For a roster, the key is the
            name of its base agent.
        only: the names to serve; all if empty.
    """

    def __init__(self, answerers: Mapping[str, Any], only: Iterable[str] = ()) -> None:
        self._answerers = dict(answerers)
        self._only: tuple[str, ...] = ()
        for name in (wanted := tuple(only)):
            self.find(name)
        self._only = wanted

    def list(self) -> list[ServedAgent]:
        """Return the current descriptions of all served agents."""
        return [_describe(name, answerer, id) for name, (answerer, id) in self._all().items()]

    def find(self, name: str = "") -> tuple[ServedAgent, Any, str]:
        """Find an agent by name; without a name, the first agent.

        Returns:
            The description of the agent, the object that runs it, and the id of its personality.

        Raises:
            UnknownAgentError: there is no agent with this name.
        """
        served = self._all()
        name = name or next(iter(served), "")
        if name not in served:
            raise UnknownAgentError(
                f"there is no agent {name!r:.80}.{did_you_mean(name, served)} There are: {', '.join(served)}"
            )
        answerer, id = served[name]
        return _describe(name, answerer, id), answerer, id

    def hooks(self) -> dict[str, HookStack]:
        """Return the hooks of all served agents by name; of a team, those of its first member."""
        found = {name: _agent_of(answerer, id) for name, (answerer, id) in self._all().items()}
        return {name: agent.hooks.stack for name, agent in found.items() if hasattr(agent, "hooks")}

    def _all(self) -> dict[str, tuple[Any, str]]:
        found: dict[str, tuple[Any, str]] = {}
        for name, answerer in self._answerers.items():
            personalities = getattr(answerer, "personalities", None)
            if not personalities:
                found[name] = answerer, ""
                continue
            first = getattr(answerer, "first", "")
            ids = sorted(personalities, key=lambda id: (id != first, id))
            found |= {id: (answerer, id) for id in ids}
            if not first:
                found = {name: (answerer, ""), **found}
        return {name: each for name, each in found.items() if not self._only or name in self._only}


def _agent_of(answerer: Any, id: str) -> Any:
    agent = answerer[id] if id else getattr(answerer, "base", answerer)
    if isinstance(members := getattr(agent, "members", None), Mapping):  # a team: callers meet its first member
        agent = members[agent.first]
    return agent


def _describe(name: str, answerer: Any, id: str) -> ServedAgent:
    agent = _agent_of(answerer, id)
    personality = getattr(answerer, "personalities", {}).get(id)
    description = getattr(personality, "description", "") or getattr(agent, "description", "")
    tools = freeze_flat({tool.name: tool.spec.description for tool in getattr(agent, "tools", ())})
    return ServedAgent(name, description, tuple(tools), tools)
