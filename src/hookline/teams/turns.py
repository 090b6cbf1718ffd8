"""Runs that follow one another, because one handed the conversation over."""

from __future__ import annotations

from typing import Any, Unpack

from .._kernel.state import AgentResult
from .._run.agent import Agent
from .._run.context import AgentContext
from .._run.options import RunOptions
from .._run.run import Run
from .._run.session import Session


class Turns:
    """What answers as an agent does, with several behind it: who does is asked anew for each run."""

    def start(
        self, task: str, *, output_type: Any = None, keep: bool = True, **options: Unpack[RunOptions[Any]]
    ) -> Run[Any]:
        """Start a run of whoever the session belongs to; options as for :meth:`Agent.start`."""
        agent, _, full = self._prepared(options)
        return agent.start(task, output_type=output_type, keep=keep, **full)

    async def arun(self, task: str, *, output_type: Any = None, **options: Unpack[RunOptions[Any]]) -> AgentResult[Any]:
        """Run to the end, as :meth:`Agent.arun` does; after a handoff, go on with the one who took over.

        Raises:
            RunFailedError: a run ended ``failed``; it carries the result.
        """
        while True:
            agent, session, full = self._prepared(options)
            options["session"] = session
            result = await agent.arun(task, output_type=output_type, **full)
            follow_up = self.follow_up(session, result)
            if follow_up is None:
                return result
            task = follow_up

    def run(self, task: str, *, output_type: Any = None, **options: Unpack[RunOptions[Any]]) -> AgentResult[Any]:
        """The same, and block.

        Raises:
            RunFailedError: a run ended ``failed``; it carries the result.
        """
        while True:
            agent, session, full = self._prepared(options)
            options["session"] = session
            result = agent.run(task, output_type=output_type, **full)
            follow_up = self.follow_up(session, result)
            if follow_up is None:
                return result
            task = follow_up

    def follow_up(self, session: Session, result: AgentResult[Any]) -> str | None:
        """The task of a run that is to follow this one at once, because it handed over; ``None`` if none is."""
        raise NotImplementedError

    def _prepared(self, options: RunOptions[Any]) -> tuple[Agent[Any, Any], Session, RunOptions[Any]]:
        """The agent of a run, its session, and its options with that in them."""
        raise NotImplementedError


def session_of(options: RunOptions[Any]) -> Session:
    """The session that a run is to be in: a run inside a run is a conversation of its own.

    Raises:
        TypeError: something else was given.
    """
    given, session = options.get("ctx"), options.get("session")
    if session is None:
        session = given.session if isinstance(given, AgentContext) and not given.run_id else Session()
    if not isinstance(session, Session):
        raise TypeError(f"session= takes a Session, not {type(session).__name__}")
    return session
