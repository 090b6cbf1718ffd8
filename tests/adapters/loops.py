"""What a loop gets and gives in the suite of behaviours, and the loops that are installed here.

A driver is a module in ``drivers/`` with a class ``Driver``. It runs a case in its framework, with the framework's own
model and tools around the scripted ones, and with the hooks attached as a user would attach them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from hookline.adapters._foreign import Support
from hookline.events import Event
from hookline.models import ScriptedModel

FRAMEWORKS = {
    "langchain": "langchain",
    "openai_agents": "agents",
    "pydantic_ai": "pydantic_ai",
    "strands": "strands",
    "google_adk": "google.adk",
    "agent_framework": "agent_framework",
}
"""The drivers of other frameworks, and the package that each of them imports."""


@dataclass
class Case:
    """One run.

    ``model`` answers as its script says: call ``await model.complete(ModelRequest(messages))``, or ``model.stream``,
    with the messages that the framework's model got. ``tools`` are plain functions with types and docstrings.
    ``mode`` is ``async``, ``sync`` or ``stream``.
    """

    model: ScriptedModel
    tools: list[Callable[..., Any]]
    hooks: tuple[Any, ...]
    options: Mapping[str, Any]
    task: str = "Go."
    system: str = "You are a helper."
    mode: str = "async"


@dataclass
class Outcome:
    """What the user of the framework gets: the final text, the streamed text, and the error that was raised."""

    reply: str = ""
    shown: str = ""
    error: BaseException | None = None
    events: list[Event] = field(default_factory=list)

    @property
    def status(self) -> str:
        """The status of Hookline's run."""
        return self.result.status

    @property
    def result(self) -> Any:
        """The result of Hookline's run."""
        (finished,) = [event for event in self.events if type(event).__name__ == "RunFinished"]
        return finished.result


class LoopDriver:
    """One loop. Subclasses are named ``Driver``."""

    name = ""
    support: Support | None = None
    modes: tuple[str, ...] = ("async",)
    cannot: Mapping[str, str] = {}
    """Behaviours that the framework cannot express for a reason that is not in ``support.missing``, with the reason."""

    async def run(self, case: Case) -> Outcome:
        """Run a case. An error of the framework is in the outcome; an error of attaching is raised."""
        raise NotImplementedError


async def in_thread(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a function that blocks, and close the event loop that its framework keeps for later calls in the thread."""

    def call() -> Any:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            return function(*args, **options)
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    return await asyncio.to_thread(call)


def installed() -> list[LoopDriver]:
    """Return the drivers of Hookline's own loop, of a plain one, and of the frameworks that can be imported."""
    names = ["hookline", "plain", *(name for name, package in FRAMEWORKS.items() if is_there(package))]
    drivers = []
    for name in names:
        try:
            module = import_module(f".drivers.{name}", __package__)
        except ModuleNotFoundError as error:
            if not (error.name or "").endswith(f"drivers.{name}"):
                raise
            continue  # an adapter that does not exist yet
        drivers.append(module.Driver())
    return drivers


def is_there(package: str) -> bool:
    """Return whether a package can be imported."""
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False
