"""Replay a tape: run it again with other hooks, without models and tools."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property
from typing import Any

import msgspec

from .._base.frozen import any_digest, freeze, thaw
from .._base.tasks import abandon
from .._kernel.errors import OutputError
from .._kernel.hook import Hook
from .._kernel.registry import HookRegistry
from .._kernel.state import AgentResult
from .._run.agent import Agent
from .._run.budget import Budget, Limits
from .._run.context import AgentContext, services_of
from .._run.events import OutputChecked
from .._run.output import InvalidOutputError, Output, OutputSpec, find_json
from .._run.run import background_loop, needs_own_loop, own_loop, warn_if_blocking
from .._run.session import Session
from .._run.termination import RunFailedError
from ..models.scripted import ScriptedModel
from ..tools._tool import CheckedArguments, Tool
from . import format as fmt
from .compare import Decision, Difference, differences
from .format import TapeError
from .player import Player
from .tape import Tape, tape_files

ReplayHooks = Agent[Any, Any] | Iterable[Hook] | HookRegistry
"""The hooks of a replay; or the recorded agent, for its hooks and its subagents."""


class Replay(msgspec.Struct, frozen=True):
    """The outcome of a replay.

    Attributes:
        tape: the tape.
        result: the result of the replayed run.
        first_difference: the first difference between recording and replay, as text; ``""`` if there is none.
        stop_reason: why the replay ended before the end of the tape; ``""`` if it reached the end.
        recorded: the recorded decisions, up to the point at which the replay ended.
        replayed: the decisions of the replay.
        differences: the decisions that differ.
        notes: the limits of a replay of this tape.
    """

    tape: Tape
    result: AgentResult[Any]
    first_difference: str
    stop_reason: str
    recorded: tuple[Decision, ...]
    replayed: tuple[Decision, ...]
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether every event, decision and reply was the same."""
        return not self.first_difference and not self.stop_reason


def replay(
    tape: Tape | str | os.PathLike[str],
    hooks: Agent[Any, Any] | Iterable[Hook] | HookRegistry = (),
    *,
    ctx: AgentContext | None = None,
    run_hooks: Iterable[Hook] = (),
    strict: bool = True,
) -> Replay:
    """Replay a tape with these hooks, and block until it ends. No model, tool or approver is called.

    Args:
        tape: the tape or its file.
        hooks: the hooks; or the recorded agent, for its hooks and its subagents.
        ctx: a context with the services that hooks need: hooks of the conversation, memory, deps.
        run_hooks: the hooks that were passed to the run itself.
        strict: whether the replay ends where the request to the model differs from the recorded one. If false, the
            model replies as recorded.

    Raises:
        TapeError: the tape cannot be replayed.

    Example::

        again = replay("tapes/run-1.tape", [MyNewGuard()])
        print(again.first_difference or "no difference")
    """
    warn_if_blocking("replay()", "await areplay(...)")
    work = areplay(tape, hooks, ctx=ctx, run_hooks=run_hooks, strict=strict)
    if needs_own_loop():
        with own_loop() as aio:
            return _wait(asyncio.run_coroutine_threadsafe(work, aio))
    return _wait(asyncio.run_coroutine_threadsafe(work, background_loop()))


def replay_all(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    hooks: ReplayHooks | Callable[[], ReplayHooks] = (),
    *,
    since: float | None = None,
    strict: bool = True,
    on_error: Callable[[TapeError], object] | None = None,
) -> Iterator[Replay]:
    """Replay many tapes, one after the other. Only one of them is in memory at a time.

    Args:
        paths: a folder, which is searched at any depth; or several files and folders.
        hooks: the hooks, as for :func:`replay`; or a function that makes new ones for each tape.
        since: leave out runs that started before this Unix time.
        strict: as for :func:`replay`.
        on_error: called with the error of a tape that cannot be replayed; by default, the error is raised.

    Raises:
        TapeError: a tape cannot be replayed, and there is no ``on_error``.

    Example::

        for again in replay_all("tapes/", [MyNewGuard()]):
            if not again.same:
                print(again.tape.name, again.first_difference or again.stop_reason)
    """
    many = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    if not isinstance(hooks, (Agent, HookRegistry)) and isinstance(hooks, Iterable):
        hooks = tuple(hooks)  # for every tape
    for file in tape_files(many, since=since):
        given = hooks if isinstance(hooks, (Agent, HookRegistry, Iterable)) else hooks()
        try:
            again = replay(file, given, strict=strict)
        except TapeError as error:
            if on_error is None:
                raise
            on_error(error)
        else:
            yield again


def _wait(work: Future[Replay]) -> Replay:
    try:
        return work.result()
    except KeyboardInterrupt:
        work.cancel()
        raise


async def areplay(
    tape: Tape | str | os.PathLike[str],
    hooks: Agent[Any, Any] | Iterable[Hook] | HookRegistry = (),
    *,
    ctx: AgentContext | None = None,
    run_hooks: Iterable[Hook] = (),
    strict: bool = True,
) -> Replay:
    """Replay a tape without blocking; see :func:`replay`. Cancelling the caller ends the replay.

    Raises:
        TapeError: the tape cannot be replayed.
    """
    tape = tape if isinstance(tape, Tape) else Tape.load(tape)
    agent = hooks if isinstance(hooks, Agent) else replay_agent(tape, hooks)
    player, began = Player(tape, strict), tape.run
    playback = player.playback
    playback.run = agent.start(
        began.task,
        ctx=_context(tape, ctx, player),
        session=_session(began),
        hooks=[*run_hooks, player],
        metadata=began.metadata or {},
        attachments=began.attachments,
        task_id=began.ids.task_id,
        correlation_id=began.ids.correlation_id,
        allowed_plugins=began.allowed_plugins,
        keep=False,
        output_type=_replay_output(tape) if agent.output_type is None else None,
    )
    watch = asyncio.ensure_future(playback.order.watch())
    try:
        result = await playback.run.result()
    except RunFailedError as failed:
        result = failed.result
    except asyncio.CancelledError:
        playback.run.cancel("the replay was cancelled")
        raise
    finally:
        abandon(watch)
    then, now = playback.finish()
    player.end_detached()
    return Replay(
        tape,
        result,
        playback.compare.first,
        playback.stop_reason,
        tuple(then),
        tuple(now),
        tuple(differences(then, now)),
        tuple(_notes(tape)),
    )


def replay_agent(tape: Tape, hooks: Iterable[Hook] | HookRegistry) -> Agent:
    """Make an agent like the recorded one, with these hooks, placeholders for its tools, and no model."""
    began = tape.run
    first = tape.first_request
    checks = {
        (entry.tool, any_digest(thaw(entry.arguments))): entry
        for entry in tape.entries
        if isinstance(entry, fmt.ValidationEntry)
    }
    return Agent(
        began.ids.agent,
        "",
        began.instructions,
        llm=_NamedModel(began.model, began.provider),
        tools=[ReplayTool(tool, checks) for tool in began.tools],
        hooks=hooks,
        limits=Limits(steps=math.inf),
        params=first.params if first is not None else {},
        response_format=began.response_format,
        output_retries=max((check.retries_left for check in _output_checks(tape)), default=0),
        stream=began.stream,
        max_attachment=None,
    )


class ReplayOutput(OutputSpec):
    """The recorded output type. It returns the recorded result of validating a reply."""

    def __init__(self, schema: Any, checks: Sequence[OutputChecked]) -> None:
        self.name, self.schema = checks[0].output_type, freeze(schema)
        self._checks = {check.content: check for check in reversed(checks)}  # the first of equal texts counts

    def read(self, text: str) -> Output:
        """Return the recorded result for this reply. The JSON of an unknown reply is not validated."""
        known = self._checks.get(text)
        if known is not None and known.problem:
            if not known.retries_left:
                raise OutputError(self.name, text, known.problem)
            raise InvalidOutputError(known.problem)
        form = freeze(msgspec.json.decode(find_json(text)) if known is None else known.output)
        return Output(thaw(form), form)


def _replay_output(tape: Tape) -> ReplayOutput | None:
    checks = _output_checks(tape)
    return ReplayOutput(tape.run.response_format, checks) if checks else None


def _output_checks(tape: Tape) -> list[OutputChecked]:
    return [event for event in tape.events() if isinstance(event, OutputChecked)]


class _NamedModel(ScriptedModel):
    """A model that has only a name."""

    def __init__(self, name: str, provider: str) -> None:
        super().__init__(name=name)
        self.provider = provider


class ReplayTool(Tool):
    """A placeholder for a recorded tool. It returns the recorded result of validating arguments."""

    def __init__(self, recorded: fmt.RecordedTool, checks: Mapping[tuple[str, str], fmt.ValidationEntry]) -> None:
        def call(**arguments: Any) -> Any:
            raise TapeError(f"{recorded.spec.name} is a recorded tool: a replay cannot call it")

        super().__init__(
            call,
            name=recorded.spec.name,
            timeout=recorded.timeout,
            folder=recorded.folder,
            untrusted=recorded.untrusted,
            dangerous=recorded.dangerous,
            effects=recorded.effects,
            offer=None if recorded.offered else lambda ctx: None,
        )
        self.spec, self.sandbox, self.texts = recorded.spec, recorded.sandbox, frozenset(recorded.texts)
        self._recorded_tool, self._recorded_checks, self.takes_ctx = recorded, checks, True

    def validate(self, arguments: Mapping[str, Any]) -> CheckedArguments | str:
        """Return the recorded result for these arguments. Unknown arguments are not validated."""
        known = self._recorded_checks.get((self.name, any_digest(thaw(arguments))))
        if known is not None and known.problem:
            return known.problem
        checked = freeze(arguments if known is None else known.checked)
        return CheckedArguments(checked, thaw(checked))

    @cached_property
    def _path_params(self) -> frozenset[str]:
        return frozenset(self._recorded_tool.paths)


def _context(tape: Tape, given: AgentContext | None, player: Player) -> AgentContext:
    services: dict[str, Any] = {}
    if given is not None:
        services = {name: getattr(given, name) for name in ("hooks", "memory", "artifacts", "blackboard", "deps")}
    ctx = AgentContext(budget=_budget(tape, player), clock=player.clock, new_id=player.new_id, **services)
    services_of(ctx).environment.boundary = player
    return ctx


def _session(began: fmt.RunEntry) -> Session:
    recorded = began.session
    session = Session(
        recorded.id,
        began.messages,
        began.metadata or {},
        key=recorded.key,
        platform=recorded.platform,
        personality_id=recorded.personality_id,
        personality_changes=recorded.personality_changes or {},
    )
    if not recorded.fresh:
        session.first_run()
    return session


def _budget(tape: Tape, player: Player) -> Budget:
    """Rebuild the budgets of the run as they were when it started."""
    budget: Budget | None = None
    for ledger in reversed(tape.run.budgets):
        budget = Budget(ledger.limits, parent=budget, clock=player.clock)
        budget._input, budget._output, budget._cached = ledger.input, ledger.output, ledger.cached
        budget._cost, budget._priced, budget.tool_calls = ledger.cost, ledger.priced, ledger.tool_calls
        if ledger.elapsed is not None:
            budget._began = player.clock.monotonic() - ledger.elapsed
    return Budget(tape.run.limits, parent=budget, clock=player.clock)


def _notes(tape: Tape) -> Iterable[str]:
    if tape.truncated:
        yield "its last line is incomplete: the program was killed while it wrote"
    if tape.result is None:
        yield "it ends before its run does"
    inside = {e.inside for e in tape.entries if e.inside and isinstance(e, (fmt.ModelRequestEntry, fmt.RunEntry))}
    calls = [entry for entry in tape.entries if isinstance(entry, fmt.ToolCallEntry)] if inside else []
    if names := sorted({entry.request.name for entry in calls if entry.lane in inside and not entry.inside}):
        yield f"model calls and runs inside {', '.join(names)} are not replayed because a replay calls no tools"
    root = tape.run.ids.run_id
    if any(isinstance(entry, fmt.SteeringEntry) and entry.run != root for entry in tape.entries):
        yield "steering messages to nested runs are not replayed"
