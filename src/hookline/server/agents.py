"""The agents that are served, by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .._base.frozen import EMPTY, Frozen, freeze_flat
from .._base.text import did_you_mean
from .errors import UnknownAgentError


class ServedAgent(Frozen, frozen=True):
    """An agent as callers see it: ``tools`` are the names of its tools, ``about`` what each of them is for."""

    name: str
    description: str = ""
    tools: tuple[str, ...] = ()
    about: Mapping[str, str] = EMPTY


class Agents:
    """What is served: agents, rosters and teams, each under a name; a roster also under the names of its personalities.

    Args:
        answerers: who answers, by name: an ``Agent``, or what starts runs as one does. Of a roster, each personality
            is an agent of its own; the key is then the name of the agent that it stands on.
        only: the names that are served; all if empty.
    """

    def __init__(self, answerers: Mapping[str, Any], only: Iterable[str] = ()) -> None:
        self._answerers = dict(answerers)
        self._only: tuple[str, ...] = ()
        for name in (wanted := tuple(only)):
            self.find(name)
        self._only = wanted

    def list(self) -> list[ServedAgent]:
        """All of them, as they are now."""
        return [_described(name, answerer, id) for name, (answerer, id) in self._all().items()]

    def find(self, name: str = "") -> tuple[ServedAgent, Any, str]:
        """An agent, who answers for it, and the personality that it is; the first one if no name is given.

        Raises:
            UnknownAgentError: there is none of that name.
        """
        there = self._all()
        name = name or next(iter(there), "")
        if name not in there:
            raise UnknownAgentError(
                f"there is no agent {name!r:.80}.{did_you_mean(name, there)} There are: {', '.join(there)}"
            )
        answerer, id = there[name]
        return _described(name, answerer, id), answerer, id

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


def _described(name: str, answerer: Any, id: str) -> ServedAgent:
    agent = answerer[id] if id else getattr(answerer, "base", answerer)
    about = getattr(answerer, "personalities", {}).get(id)
    text = getattr(about, "description", "") or getattr(agent, "description", "")
    tools = getattr(agent, "tools", ())
    said = freeze_flat({tool.name: tool.spec.description for tool in tools})
    return ServedAgent(name, text, tuple(said), said)
