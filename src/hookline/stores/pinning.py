"""Versions of agents: a run is continued only where the hooks, instructions and tools are the same (DESIGN 6.17).

A version covers what decides how a run goes on: the code and the arguments of the hooks that decide, the instructions,
the description and the code of the tools, and the model. It has a digest for each of these parts, so that a run that no
worker can continue can say which part differs.

- A hook that decides: its points, phase, priority, globs, failure policy and place among the others; its code, which is
  that of the function, or of the class with its bases, without comments and docstrings; and its *arguments*: attributes
  with the name of a parameter of the constructor, or objects made of them, and the variables of an enclosing function.
  They are read once, before the first run. Counters, times and random keys are not arguments, nor are secrets, which
  are rotated, nor models and stores, which are places and not rules.
- A tool: not its arguments, because they are the environment in which it acts, and a committed call is not repeated.
- The code of a hook includes the functions and classes of its own project that it names, directly or through others,
  and constants of plain types: not those of Python, of installed packages and of Hookline, whose versions are the
  matter of a deployment. What a hook reaches in other ways (an attribute of an object, a dict of functions), what a
  tool calls, and files are not covered; recovery notices a difference in what is recorded.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import msgspec

from .._run.agent import Agent
from .._run.journal import JOURNAL_FORMAT
from ..records.rules import code_of, describe, digest, once, rule_parts


class AgentVersion(msgspec.Struct, frozen=True):
    """The parts of an agent that decide how it behaves: ``parts`` has a digest for each, such as ``hook budget``."""

    digest: str
    parts: Mapping[str, str]


_versions: dict[int, tuple[list[Any], AgentVersion]] = {}
_MAX_KNOWN = 10_000


def version_of(answerer: Any) -> AgentVersion:
    """Return the version of an agent, roster or team, with all the agents that it can hand over or delegate to.

    A hook is looked at when it is first seen, which is before its first run: what it remembers later is not part of its
    arguments.
    """
    agents = _agents_of(answerer)
    own = getattr(getattr(answerer, "hooks", None), "stack", None)
    seen = [answerer, own, *(each for agent in agents for each in (agent, agent.hooks.stack))]
    known = _versions.get(id(answerer))
    if known is not None and len(known[0]) == len(seen) and all(map(operator.is_, known[0], seen)):
        return known[1]
    parts = {} if own is None else rule_parts(own, "")
    for agent in agents:
        parts |= _agent_parts(agent)
        if agent.hooks.stack is not own:
            parts |= rule_parts(agent.hooks.stack, f" of {agent.name}")
    version = AgentVersion(digest([JOURNAL_FORMAT, sorted(parts.items())], 16), parts)
    if len(_versions) > _MAX_KNOWN:
        _versions.clear()
    _versions[id(answerer)] = seen, version
    return version


def digest_of(answerer: Any) -> str:
    """Return the digest of the version of an agent, roster or team."""
    return version_of(answerer).digest


def _agent_parts(agent: Agent[Any, Any]) -> dict[str, str]:
    settings = agent.model.name, agent.params, agent.response_format, describe(agent.output_type)
    parts = {f"instructions of {agent.name}": digest(agent.instructions), f"model of {agent.name}": digest(settings)}
    for tool in agent.tools:
        told = tool.name, tool.spec.description, tool.spec.parameters, tool.repeatable
        parts[f"tool {tool.name} of {agent.name}"] = digest([told, once(tool.fn, code_of)])
    return parts


def _agents_of(answerer: Any) -> list[Agent[Any, Any]]:
    """Return the agents of a roster or team, or the agent itself, with those that its tools run."""
    personalities = sorted(getattr(answerer, "personalities", None) or ())
    members = getattr(answerer, "members", None)
    first = [answerer[id] for id in personalities]
    first += members.values() if isinstance(members, Mapping) else [getattr(answerer, "base", answerer)]
    found: dict[int, Any] = {}
    while first:
        agent = first.pop()
        if id(agent) in found or not isinstance(agent, Agent):  # such as an object that only starts runs
            continue
        found[id(agent)] = agent
        for tool in agent.tools:
            if tool.runs_agents:
                first += getattr(getattr(tool.fn, "__self__", None), "members", {}).values()
    return sorted(found.values(), key=lambda agent: str(agent.name))
