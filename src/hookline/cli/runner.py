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
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from .._base.attachment import Attachment
from .._base.frozen import EMPTY
from .._kernel.errors import HooklineError
from .._kernel.events import Event, HookExecuted
from .._kernel.state import AgentResult
from .._kernel.values import Usage
from .._run.agent import Agent
from .._run.context import AgentContext, set_deps, set_origin
from .._run.events import RunFinished, Sink, SubagentEvent
from .._run.journal import following_id
from .._run.run import Run, background_loop
from .._run.session import Session
from .._run.termination import RunFailedError
from ..config.errors import ConfigError
from ..config.settings import Settings
from ..config.sources import Configuration
from ..explain.totals import SubagentTotals
from .errors import CANCELLED, FAILED, print_error, print_note
from .terminal import restore_modes

if TYPE_CHECKING:
    from ..plugins.manager import PluginManager
    from ..stores.runs import RunStore
    from ..stores.sessions import SessionStore
    from ..teams.roster import Roster


T = TypeVar("T")


class RunOutcome(msgspec.Struct, frozen=True):
    """The result of a run, its error if it failed, the names of failed hooks, and the totals of its subagents."""

    result: AgentResult[Any]
    failure: RunFailedError | None = None
    failed_hooks: Collection[str] = ()
    subagents: SubagentTotals = SubagentTotals()


def make_terminal_context(settings: Settings, home: Path, session: Session | None) -> AgentContext:
    """Create the context of a run in this terminal, with the limits and the ``deps`` of the settings.

    Raises:
        HooklineError: the settings name no function for the ``deps``, or it failed.
    """
    from ..config.factory import find_deps_factory, make_context

    ctx = make_context(settings, session)
    make = find_deps_factory(settings, (), home=home)
    if make is not None:
        from ..stores.callers import Caller, create_deps
        from .approval_prompt import current_user

        work = create_deps(make, Caller(current_user(), metadata=settings.metadata))
        set_deps(ctx, asyncio.run_coroutine_threadsafe(work, background_loop()).result())  # in the loop of the run
    return ctx


def run_with_handovers(
    answerer: Agent[Any, Any] | Roster,
    task: str,
    ctx: AgentContext,
    sinks: Sequence[Sink],
    metadata: Mapping[str, Any] = EMPTY,
    attachments: Sequence[Attachment] = (),
    store: RunStore | None = None,
    run_id: str | None = None,
) -> Iterator[RunOutcome]:
    """Run an agent, then each agent that the conversation is handed over to. Yield an outcome for each run.

    With a ``store``, the runs are durable, and the first one has the id ``run_id``.

    Raises:
        RunWaitingError, RunSuspendedError: a durable run was suspended.
    """
    text: str | None = task
    while text is not None:
        outcome = run_once(answerer, text, ctx, sinks, metadata, attachments, store, run_id)
        attachments, text = (), None  # the session has them now
        if not isinstance(answerer, Agent):
            text = answerer.follow_up(ctx.session, outcome.result)
            if store is not None:
                run_id = following_id(outcome.result.ids.run_id)
                text = text or answerer.stored_follow_up(ctx.session, store, run_id)
        yield outcome


def combine(outcomes: Sequence[RunOutcome]) -> RunOutcome:
    """Combine consecutive runs into one outcome: the last status, and the total usage."""
    *_, last = outcomes
    if len(outcomes) == 1:
        return last
    results = [outcome.result for outcome in outcomes]
    costs = [result.cost for result in results]
    replies = "\n\n".join(filter(None, (result.output_text for result in results)))
    result = last.result.replace(
        reply=replies,
        output=replies,
        steps=tuple(step for result in results for step in result.steps),
        usage=sum((result.usage for result in results), Usage()),
        cost=None if None in costs else sum(cost for cost in costs if cost is not None),
        tool_calls=sum(result.tool_calls for result in results),
        errors=tuple(error for result in results for error in result.errors),
        elapsed=sum(result.elapsed for result in results),
    )
    subagents = sum((outcome.subagents for outcome in outcomes), SubagentTotals())
    return RunOutcome(result, last.failure, {name for outcome in outcomes for name in outcome.failed_hooks}, subagents)


def run_coroutine(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the event loop that runs use, and return its result."""
    return asyncio.run_coroutine_threadsafe(work, background_loop()).result()


def run_once(
    answerer: Agent[Any, Any] | Roster,
    task: str,
    ctx: AgentContext,
    sinks: Sequence[Sink],
    metadata: Mapping[str, Any] = EMPTY,
    attachments: Sequence[Attachment] = (),
    store: RunStore | None = None,
    run_id: str | None = None,
) -> RunOutcome:
    """Run an agent once. A failed run is an outcome too, not an exception.

    Its user is that of the terminal, unless the metadata name one.
    """
    from .approval_prompt import current_user

    kept = ctx.session.metadata.get("user")  # a saved session keeps what --metadata said
    user = kept if kept and not str(kept).endswith("@terminal") else current_user()
    set_origin(ctx, "command line")
    failed_hooks: set[str] = set()
    subagents = SubagentTotals()

    def note(event: Event) -> None:
        nonlocal subagents
        if isinstance(event, SubagentEvent):
            event = event.event
            if isinstance(event, RunFinished):
                subagents += SubagentTotals.of(event.result)
        if isinstance(event, HookExecuted) and event.error is not None:
            failed_hooks.add(event.hook)

    run = answerer.start(
        task,
        ctx=ctx,
        sinks=[*sinks, note],
        metadata={"user": user, **metadata},
        attachments=attachments,
        durable=store,
        run_id=run_id,
    )
    for sink in sinks:
        if (attach := getattr(sink, "attach", None)) is not None:
            attach(run)
    with _interruptible(run):
        try:
            return RunOutcome(run.wait(), failed_hooks=failed_hooks, subagents=subagents)
        except RunFailedError as failed:
            return RunOutcome(failed.result, failed, failed_hooks, subagents)
        except SystemExit as left:  # raised by a hook; exit code 0 would look like success
            place = traceback.extract_tb(left.__traceback__)[-1]
            print_error(f"{place.name} at {place.filename}:{place.lineno} called sys.exit() during a run")
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
                restore_modes()
            os._exit(CANCELLED)
        pressed = True
        run.suspend("Ctrl-C")

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def prepare_agent(
    config: Configuration, hooks: Sequence[Any], session: Session, plugins: PluginManager
) -> tuple[Agent[Any, Any] | Roster, Agent[Any, Any]]:
    """Build the agent or roster of the settings, and return it with the agent that is active in the session.

    A personality given as an option overrides the one saved in the session.
    """
    from ..teams.build import build_answerer

    answerer = build_answerer(
        config.settings, home=config.home, hooks=hooks, file=config.hooks_file, plugins=plugins, notify=print_note
    )
    for hook in answerer.hooks:
        for note in getattr(hook, "not_called", ()):
            print_note(note)
    if isinstance(answerer, Agent):
        return answerer, answerer
    for problem in answerer.problems.values():
        print_note(problem)
    wanted, now = config.settings.personality, session.personality_id
    if wanted and now and now != wanted and config.origins["personality"].startswith("flag:"):
        run_coroutine(answerer.switch(session, wanted))
    return answerer, answerer.agent_for(session)


@contextmanager
def unattended_agent(
    config: Configuration, *hooks: Any, record: bool = False
) -> Iterator[tuple[Agent[Any, Any] | Roster, Agent[Any, Any], PluginManager]]:
    """Build the agent or roster for a server, worker or gateway, where nobody is at the terminal to approve calls.

    Yields the agent or roster, its base agent, and the plugins, which are closed at the end. ``hooks`` are added, and
    with ``record`` the one that records runs: a server and a worker record theirs themselves.
    """
    from ..config.factory import approval_policy, build_plugins
    from .approval_prompt import Approver
    from .plugins import close_plugins

    mode, file = config.settings.approvals, config.settings.approval_file
    # In the other modes, calls wait in the approval file.
    policy = approval_policy(config.settings)
    decided = [Approver(mode, nullcontext, file, policy)] if mode in ("yes", "deny") else []
    recorders = start_recording(config.settings, needs_database=True) if record else []
    plugins = build_plugins(config.settings, config.home)
    try:
        yield *prepare_agent(config, [*decided, *recorders, *hooks], Session(), plugins), plugins
    finally:
        close_plugins(plugins)
        finish_recording(recorders)


def current_agent(answerer: Agent[Any, Any] | Roster, session: Session) -> Agent[Any, Any]:
    """Return the agent that is active in a session."""
    return answerer if isinstance(answerer, Agent) else answerer.agent_for(session)


FLUSH_SECONDS = 5.0
"""Seconds that the end of a run waits for its records to be written."""


def start_recording(settings: Settings, *, needs_database: bool = False) -> list[Any]:
    """Return the hook that records runs; none if recording is off or impossible, which prints a note.

    Raises:
        HooklineError: the database is not available, and runs must be recorded or the caller needs it for more.
    """
    from ..config.factory import build_recorder

    try:
        hook = build_recorder(settings)
        if hook is None:
            return []
        hook.store.open()
    except HooklineError as error:
        if settings.runs_required or (needs_database and settings.database):
            raise
        print_note(f"this run is not recorded: {error}")
        return []
    return [hook]


def finish_recording(hooks: list[Any]) -> None:
    """Wait until the records are written, and print a note if some could not be."""
    for hook in hooks:
        hook.flush(FLUSH_SECONDS)
        if (problem := hook.problem()) is not None:
            print_note(problem)


def finish_audit(answerer: Agent[Any, Any] | Roster) -> None:
    """Wait until the audit log is written, and print a note if that takes too long."""
    from ..hooks.audit_log import AuditLogHook

    for hook in answerer.hooks:
        if isinstance(hook, AuditLogHook) and not hook.flush(FLUSH_SECONDS):
            print_note(
                f"the last records of the audit log {hook.log.path} are not written yet: its disk does not respond"
            )


def load_session(settings: Settings, name: str | None) -> Session | None:
    """Return the saved session with this name, or a new one; ``None`` without a name."""
    if name is None:
        return None
    return session_store(settings.sessions).load(name) or Session(name)


def save_session(settings: Settings, name: str | None, session: Session | None) -> None:
    """Save a session that has a name."""
    if name is not None and session is not None:
        session_store(settings.sessions).save(session)


@lru_cache
def session_store(path: str) -> SessionStore:
    """Return the session store at a path, the same object each time.

    Raises:
        ConfigError: the path is a file whose name does not end like that of a SQLite file.
    """
    from ..stores.paths import SQLITE
    from ..stores.sessions import JsonSessionStore, session_store_at

    store = session_store_at(path)
    if isinstance(store, JsonSessionStore) and store.folder.is_file():
        raise ConfigError(f"sessions: {path} is a file: give a folder, or a SQLite file ({', '.join(SQLITE)})")
    return store
