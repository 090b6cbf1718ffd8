"""Who answers at the command line: an agent, or the personality of the conversation."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from .._run.agent import Agent
from .._run.session import Session
from ..config.sources import Configuration
from .failures import say_note

if TYPE_CHECKING:
    from ..plugins.manager import PluginManager
    from ..teams.roster import Roster


def answering(
    config: Configuration, hooks: Sequence[Any], session: Session, plugins: PluginManager
) -> tuple[Agent[Any, Any] | Roster, Agent[Any, Any]]:
    """Who answers under these settings, and the agent of this session.

    A personality that is given as an option is taken on also in a session that was in another one.
    """
    from ..teams.build import build_answerer
    from .turn import awaited

    answerer = build_answerer(
        config.settings, home=config.home, hooks=hooks, file=config.hooks_file, plugins=plugins, tell=say_note
    )
    if isinstance(answerer, Agent):
        return answerer, answerer
    for problem in answerer.problems.values():
        say_note(problem)
    wanted, now = config.settings.personality, session.personality_id
    if wanted and now and now != wanted and config.origins["personality"].startswith("flag:"):
        awaited(answerer.switch(session, wanted))
    return answerer, answerer.agent_for(session)


def answering_unattended(
    config: Configuration, hooks: Sequence[Any], plugins: PluginManager
) -> tuple[Agent[Any, Any] | Roster, Agent[Any, Any]]:
    """The same where nobody sits at the terminal, and the agent that a new conversation begins with."""
    from .approver import Approver

    mode, file = config.settings.approvals, config.settings.approval_file
    decided = [Approver(mode, nullcontext, file)] if mode in ("yes", "deny") else []  # else calls wait in the file
    return answering(config, [*decided, *hooks], Session(), plugins)


def agent_of(answerer: Agent[Any, Any] | Roster, session: Session) -> Agent[Any, Any]:
    """The agent that speaks in a session."""
    return answerer if isinstance(answerer, Agent) else answerer.agent_for(session)
