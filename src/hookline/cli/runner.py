"""Build an agent from the settings, run it, record it and keep its session."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import traceback
from collections.abc import Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from .._base.frozen import EMPTY
from .._kernel.errors import HooklineError
from .._kernel.events import Event, HookExecuted
from .._kernel.state import AgentResult
from .._kernel.values import Usage
from .._run.agent import Agent
from .._run.context import AgentContext
from .._run.events import RunFinished, Sink, SubagentEvent
from .._run.run import Run, background_loop
from .._run.session import Session
from .._run.termination import RunFailedError
from ..config.errors import ConfigError
from ..config.settings import Settings
from ..config.sources import Configuration
from .errors import CANCELLED, FAILED, say_error, say_note
from .text import Within

if TYPE_CHECKING:
    from ..plugins.manager import PluginManager
    from ..stores.sessions import SessionStore
    from ..teams.roster import Roster


T = TypeVar("T")


class Outcome(msgspec.Struct, frozen=True):
    """How a run ended, what it failed of, the names of the hooks that failed, and what the runs inside it did."""

    result: AgentResult[Any]
    failure: RunFailedError | None = None
    broken: Collection[str] = ()
    within: Within = msgspec.field(default_factory=Within)


def perform_all(
    answerer: Agent[Any, Any] | Roster,
    task: str,
    ctx: AgentContext,
    sinks: Sequence[Sink],
    metadata: Mapping[str, Any] = EMPTY,
) -> Iterator[Outcome]:
    """Run to the end, and go on for as long as the conversation is handed over to another one; an outcome for each."""
    follow_up = getattr(answerer, "follow_up", None)
    said: str | None = task
    while said is not None:
        outcome = perform(answerer, said, ctx, sinks, metadata)
        said = follow_up(ctx.session, outcome.result) if follow_up is not None else None
        yield outcome


def together(outcomes: Sequence[Outcome]) -> Outcome:
    """What several runs one after another come to: the end of the last one, and what all of them used."""
    *_, last = outcomes
    if len(outcomes) == 1:
        return last
    results = [outcome.result for outcome in outcomes]
    costs = [result.cost for result in results]
    said = "\n\n".join(text for result in results if (text := result.output_text))
    result = last.result.replace(
        reply=said,
        output=said,
        steps=tuple(step for result in results for step in result.steps),
        usage=sum((result.usage for result in results), Usage()),
        cost=None if None in costs else sum(cost for cost in costs if cost is not None),
        tool_calls=sum(result.tool_calls for result in results),
        errors=tuple(error for result in results for error in result.errors),
        elapsed=sum(result.elapsed for result in results),
    )
    within = Within(
        sum(outcome.within.runs for outcome in outcomes), sum(outcome.within.steps for outcome in outcomes),
        sum(outcome.within.tool_calls for outcome in outcomes),
    )  # fmt: skip
    return Outcome(result, last.failure, {name for outcome in outcomes for name in outcome.broken}, within)


def awaited(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine gives, in the loop that runs are in too."""
    return asyncio.run_coroutine_threadsafe(work, background_loop()).result()


def perform(
    answerer: Agent[Any, Any] | Roster,
    task: str,
    ctx: AgentContext,
    sinks: Sequence[Sink],
    metadata: Mapping[str, Any] = EMPTY,
) -> Outcome:
    """Run to the end, whatever the end is."""
    broken: set[str] = set()
    within = Within()

    def note(event: Event) -> None:
        if isinstance(event, SubagentEvent):
            event = event.event
            if isinstance(event, RunFinished):
                within.add(event.result)
        if isinstance(event, HookExecuted) and event.error is not None:
            broken.add(event.hook)

    run = answerer.start(task, ctx=ctx, sinks=[*sinks, note], metadata=metadata)
    with _interruptible(run):
        try:
            return Outcome(run.wait(), broken=broken, within=within)
        except RunFailedError as failed:
            return Outcome(failed.result, failed, broken, within)
        except SystemExit as left:  # a hook's; silence and exit code 0 would look like success
            place = traceback.extract_tb(left.__traceback__)[-1]
            say_error(f"{place.name} at {place.filename}:{place.lineno} exited the program in the middle of a run")
            raise SystemExit(FAILED) from left


@contextmanager
def _interruptible(run: Run[Any]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # signals belong to the main thread
        return
    pressed = False

    def interrupt(*_: object) -> None:
        nonlocal pressed
        if pressed:
            if sys.stderr.isatty():
                os.write(2, b"\x1b[?25h\n")  # a live view may have hidden the cursor
            os._exit(CANCELLED)
        pressed = True
        run.cancel("Ctrl-C")

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def answering(
    config: Configuration, hooks: Sequence[Any], session: Session, plugins: PluginManager
) -> tuple[Agent[Any, Any] | Roster, Agent[Any, Any]]:
    """Who answers under these settings, and the agent of this session.

    A personality that is given as an option is taken on also in a session that was in another one.
    """
    from ..teams.build import build_answerer

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
    from .approval_prompt import Approver

    mode, file = config.settings.approvals, config.settings.approval_file
    decided = [Approver(mode, nullcontext, file)] if mode in ("yes", "deny") else []  # else calls wait in the file
    return answering(config, [*decided, *hooks], Session(), plugins)


def agent_of(answerer: Agent[Any, Any] | Roster, session: Session) -> Agent[Any, Any]:
    """The agent that speaks in a session."""
    return answerer if isinstance(answerer, Agent) else answerer.agent_for(session)


PATIENCE = 5.0
"""Seconds that the end of a run waits for the file."""


def recorder(settings: Settings) -> list[Any]:
    """The hook that records runs, if it is wanted and can; if it cannot, that is said, and the run goes on."""
    from ..config.build import build_recorder

    try:
        hook = build_recorder(settings)
        if hook is None:
            return []
        hook.store.open()
    except HooklineError as error:
        say_note(f"this is not recorded: {error}")
        return []
    return [hook]


def recorded(hooks: list[Any]) -> None:
    """Wait a moment until all is recorded; what was not is said."""
    for hook in hooks:
        hook.flush(PATIENCE)
        if (problem := hook.problem()) is not None:
            say_note(problem)


def opened(settings: Settings, name: str | None) -> Session | None:
    """The session of that name, as it was left or new; ``None`` if no name is given."""
    if name is None:
        return None
    return store_at(settings.sessions).load(name) or Session(name)


def saved(settings: Settings, name: str | None, session: Session | None) -> None:
    """Keep a session that has a name."""
    if name is not None and session is not None:
        store_at(settings.sessions).save(session)


@lru_cache
def store_at(path: str) -> SessionStore:
    """The store of sessions at a path, the same one each time.

    Raises:
        ConfigError: there is a file that is not named like one of SQLite's.
    """
    from ..stores.sessions import SQLITE, JsonSessionStore, session_store_at

    store = session_store_at(path)
    if isinstance(store, JsonSessionStore) and store.folder.is_file():
        raise ConfigError(f"sessions: {path} is a file: name a folder, or a SQLite file ({', '.join(SQLITE)})")
    return store
