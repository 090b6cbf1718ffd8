"""Look up the agents of a server by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .._base.frozen import EMPTY, Frozen, freeze_flat
from .._base.text import did_you_mean
from .._kernel.registry import HookStack
from .._run.hosted import HostedAgent, HostedTools
from .._run.run_hooks import clean_for, clean_with, redactions_of
from ..models.attachments import ANY_TYPE
from .errors import UnknownAgentError


class ServedAgent(Frozen, frozen=True):
    """The public description of an agent: ``tools`` are the names of its tools, ``about`` describes each of them.

    ``suggestions`` are what people could write first, ``attachment_types`` the media types of files that its model
    takes.
    """

    name: str
    description: str = ""
    tools: tuple[str, ...] = ()
    about: Mapping[str, str] = EMPTY
    suggestions: tuple[str, ...] = ()
    attachment_types: tuple[str, ...] = ANY_TYPE


class Answerer(NamedTuple):
    """The object that starts the runs of a served agent, with the name of the agent and the id of a personality."""

    name: str
    object: Any
    personality: str


class Agents:
    """The served agents, rosters and teams by name. Each personality of a roster is served under its own name.

    Args:
        answerers: the agents by name, or other objects that start runs like an ``Agent``. For a roster, the key is the
            name of its base agent.
        only: the names to serve; all if empty.
    """

    def __init__(self, answerers: Mapping[str, Any], only: Iterable[str] = ()) -> None:
        self._answerers = dict(answerers)
        self._hosted: dict[str, tuple[Any, HostedAgent]] = {}
        self._only: tuple[str, ...] = ()
        for name in (wanted := tuple(only)):
            self.answerer(name)
        self._only = wanted

    def list(self) -> list[ServedAgent]:
        """Return the current descriptions of all served agents."""
        return [_describe(name, answerer, id) for name, (answerer, id) in self._all().items()]

    def find(self, name: str = "") -> ServedAgent:
        """Return the current description of an agent by name; without a name, of the first agent.

        Raises:
            UnknownAgentError: there is no agent with this name.
        """
        return _describe(*self.answerer(name))

    def answerer(self, name: str = "") -> Answerer:
        """Return what runs an agent by name; without a name, the first agent.

        Raises:
            UnknownAgentError: there is no agent with this name.
        """
        served = self._all()
        name = name or next(iter(served), "")
        if name not in served:
            raise UnknownAgentError(
                f"there is no agent {name!r:.80}.{did_you_mean(name, served)} There are: {', '.join(served)}"
            )
        return Answerer(name, *served[name])

    def hooks(self) -> dict[str, HookStack]:
        """Return the hooks of all served agents by name; of a team, those of its first member."""
        found = {name: _agent_of(answerer, id) for name, (answerer, id) in self._all().items()}
        return {name: agent.hooks.stack for name, agent in found.items() if hasattr(agent, "hooks")}

    def hosted(self, name: str) -> tuple[HostedAgent, HostedTools]:
        """Return an agent with the hooks and limits of a served agent, for runs that a program executes, and its tools.

        They have the effects of the tools of the same names, and nothing calls them.

        Raises:
            UnknownAgentError: there is no agent with this name.
        """
        served, answerer, id = self.answerer(name)
        agent = _agent_of(answerer, id)
        known, hosted = self._hosted.get(served, (None, None))
        if hosted is None or known is not agent:
            hosted = HostedAgent(
                agent.name,
                llm=agent.model,
                hooks=agent.hooks,
                deps_type=agent.deps_type,
                limits=agent.limits,
                allowed_plugins=agent.allowed_plugins,
                max_attachment=agent.max_attachment,
            )
            hosted.sinks = agent.sinks
            self._hosted[served] = agent, hosted
        return hosted, HostedTools(effects={tool.name: tool.effects for tool in agent.tools})

    def redactions(self) -> Sequence[Any]:
        """Return what the hooks of all served agents declare for everything that is stored."""
        return [each for answerer in self._answerers.values() for each in redactions_of(answerer)]

    def clean(self, name: str, value: Any) -> Any:
        """Return a value about a run of this agent as it may be stored: its hooks declare what is replaced."""
        try:
            answerer = self.answerer(name)
        except UnknownAgentError:
            return value
        return clean_for(answerer.object, value)

    def clean_for_all(self, text: str) -> str:
        """Return a text as it may be stored, if it is not known which of the agents it is about: a subagent has a name
        that is not served.
        """
        return clean_with(self.redactions(), text)

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
    model = getattr(agent, "model", None)
    types = ANY_TYPE if model is None else tuple(getattr(model, "attachment_types", ()))
    return ServedAgent(name, description, tuple(tools), tools, getattr(agent, "suggestions", ()), types)
