"""Replaying: the run again, with these hooks, no model and no tool."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import msgspec

from .._base.frozen import digest, freeze, thaw
from .._kernel.errors import OutputError
from .._kernel.hook import Hook
from .._kernel.registry import HookRegistry
from .._kernel.state import AgentResult
from .._run.agent import Agent
from .._run.budget import Budget
from .._run.context import AgentContext, services_of
from .._run.events import OutputChecked
from .._run.output import InvalidOutputError, Output, OutputSpec, find_json
from .._run.run import background_loop, needs_own_loop, own_loop
from .._run.session import Session
from .._run.termination import RunFailedError
from ..models.scripted import ScriptedModel
from ..tools._tool import Checked, Tool
from ..tools.arguments import paths_in
from . import entries as on
from .compare import Decision, Difference, differences
from .errors import TapeError
from .play import Player
from .tape import Tape


class Replay(msgspec.Struct, frozen=True):
    """What hooks made of a tape.

    ``first`` tells the first difference, ``left`` why the replay could not go on, if it could not; both are empty if
    all was the same. ``differences`` are the decisions that differ, as far as the replay came. ``notes`` tell what a
    replay of this tape does not show.
    """

    tape: Tape
    result: AgentResult[Any]
    first: str
    left: str
    then: tuple[Decision, ...]
    now: tuple[Decision, ...]
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether every event, decision and reply was the same."""
        return not self.first and not self.left


def replay(
    tape: Tape | str | os.PathLike[str],
    hooks: Agent[Any, Any] | Iterable[Hook] | HookRegistry = (),
    *,
    ctx: AgentContext | None = None,
    run_hooks: Iterable[Hook] = (),
    strict: bool = True,
) -> Replay:
    """Run again what is on a tape, under these hooks, and block; no model, tool or approver is asked.

    Args:
        tape: the tape, or its file.
        hooks: the hooks; or the agent that was recorded, for its hooks and for the agents that it runs.
        ctx: a context with the services that hooks need: hooks of the conversation, memory, deps.
        run_hooks: hooks that the run had been given on its own.
        strict: whether the replay ends where the model would have been sent something else; else the model says the
            same as then.

    Raises:
        TapeError: the tape cannot be replayed.
    """
    work = areplay(tape, hooks, ctx=ctx, run_hooks=run_hooks, strict=strict)
    if needs_own_loop():
        with own_loop() as aio:
            return _wait(asyncio.run_coroutine_threadsafe(work, aio))
    return _wait(asyncio.run_coroutine_threadsafe(work, background_loop()))


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
    """:func:`replay`, without blocking. Cancelling the caller ends it.

    Raises:
        TapeError: the tape cannot be replayed.
    """
    tape = tape if isinstance(tape, Tape) else Tape.load(tape)
    agent = hooks if isinstance(hooks, Agent) else stand_in(tape, hooks)
    player, began = Player(tape, strict), tape.run
    playback = player.playback
    playback.run = agent.start(
        began.task, ctx=_context(tape, ctx, player), session=_session(began), hooks=[*run_hooks, player],
        metadata=began.metadata or {}, task_id=began.ids.task_id, correlation_id=began.ids.correlation_id,
        allowed_plugins=began.allowed_plugins, keep=False,
        output_type=_taped_output(tape) if agent.output_type is None else None,
    )  # fmt: skip
    try:
        result = await playback.run.result()
    except RunFailedError as failed:
        result = failed.result
    except asyncio.CancelledError:
        playback.run.cancel("the replay was given up")
        raise
    then, now = playback.finish()
    return Replay(
        tape, result, playback.compare.first, playback.left, tuple(then), tuple(now), tuple(differences(then, now)),
        tuple(_notes(tape)),
    )  # fmt: skip


def stand_in(tape: Tape, hooks: Iterable[Hook] | HookRegistry) -> Agent:
    """An agent like the one that was recorded, with these hooks, tools that only look like its own, and no model."""
    began = tape.run
    first = next((request for request in tape.requests if request.purpose == "step"), None)
    checks = {
        (entry.tool, digest(thaw(entry.arguments))): entry
        for entry in tape.entries
        if isinstance(entry, on.ArgumentsChecked)
    }
    return Agent(
        began.ids.agent, "", began.instructions, llm=_Nobody(began.model, began.provider),
        tools=[StandIn(tool, checks) for tool in began.tools], hooks=hooks, max_steps=math.inf,
        params=first.params if first is not None else {}, response_format=began.response_format,
        output_retries=max((check.retries_left for check in _output_checks(tape)), default=0),
    )  # fmt: skip


class TapedOutput(OutputSpec):
    """An output type that looks like the one on a tape; it finds in a reply what that one found."""

    def __init__(self, schema: Any, checks: Sequence[OutputChecked]) -> None:
        self.name, self.schema = checks[0].output_type, freeze(schema)
        self._checks = {check.content: check for check in reversed(checks)}  # the first of equal ones

    def read(self, text: str) -> Output:
        """What the type said of this reply; JSON in another one is taken as it is."""
        known = self._checks.get(text)
        if known is not None and known.problem:
            if not known.retries_left:
                raise OutputError(self.name, text, known.problem)
            raise InvalidOutputError(known.problem)
        form = freeze(msgspec.json.decode(find_json(text)) if known is None else known.output)
        return Output(thaw(form), form)


def _taped_output(tape: Tape) -> TapedOutput | None:
    checks = _output_checks(tape)
    return TapedOutput(tape.run.response_format, checks) if checks else None


def _output_checks(tape: Tape) -> list[OutputChecked]:
    return [event for event in tape.events() if isinstance(event, OutputChecked)]


class _Nobody(ScriptedModel):
    """The name of a model."""

    def __init__(self, name: str, provider: str) -> None:
        super().__init__(name=name)
        self.provider = provider


class StandIn(Tool):
    """A tool that looks like one on a tape; it finds with arguments what that one found."""

    def __init__(self, taped: on.TapedTool, checks: Mapping[tuple[str, str], on.ArgumentsChecked]) -> None:
        def call(**arguments: Any) -> Any:
            raise TapeError(f"{taped.spec.name} is on a tape: it cannot be called")

        super().__init__(
            call, name=taped.spec.name, timeout=taped.timeout, folder=taped.folder, untrusted=taped.untrusted,
            dangerous=taped.dangerous, offer=None if taped.offered else lambda ctx: None,
        )  # fmt: skip
        self.spec = taped.spec
        self._taped, self._checks, self.takes_ctx = taped, checks, True

    def validate(self, arguments: Mapping[str, Any]) -> Checked | str:
        """What the tool said of these arguments; others are taken as they are."""
        known = self._checks.get((self.name, digest(thaw(arguments))))
        if known is not None and known.problem:
            return known.problem
        checked = freeze(arguments if known is None else known.checked)
        return Checked(checked, thaw(checked))

    def paths(self, arguments: Mapping[str, Any]) -> list[str]:
        """The paths that these arguments name."""
        return paths_in(arguments, frozenset(self._taped.paths))


def _context(tape: Tape, given: AgentContext | None, player: Player) -> AgentContext:
    services = given if given is not None else AgentContext()
    ctx = AgentContext(
        hooks=services.hooks, budget=_budget(tape, player), memory=services.memory, artifacts=services.artifacts,
        blackboard=services.blackboard, deps=services.deps, clock=player.clock, new_id=player.new_id,
    )  # fmt: skip
    services_of(ctx).environment.boundary = player
    return ctx


def _session(began: on.RunBegan) -> Session:
    taped = began.session
    session = Session(
        taped.id, began.messages, began.metadata or {}, key=taped.key, platform=taped.platform,
        personality_id=taped.personality_id, personality_changes=taped.personality_changes or {},
    )  # fmt: skip
    if not taped.fresh:
        session.first_run()
    return session


def _budget(tape: Tape, player: Player) -> Budget:
    """The ledgers that the run counted in, as they were when it began."""
    budget: Budget | None = None
    for ledger in reversed(tape.run.ledgers):
        budget = Budget(ledger.limits, parent=budget, clock=player.clock)
        budget._input, budget._output, budget._cached = ledger.input, ledger.output, ledger.cached
        budget._cost, budget._priced, budget.tool_calls = ledger.cost, ledger.priced, ledger.tool_calls
        if ledger.elapsed is not None:
            budget._began = player.clock.monotonic() - ledger.elapsed
    return Budget(tape.run.limits, parent=budget, clock=player.clock)


def _notes(tape: Tape) -> Iterable[str]:
    if tape.torn:
        yield "its last line is torn: the program was killed while it wrote"
    if tape.result is None:
        yield "it ends before its run does"
    called = {entry.number: entry.request.name for entry in tape.entries if isinstance(entry, on.ToolCalled)}
    inside = {
        entry.inside for entry in tape.entries if entry.inside and isinstance(entry, (on.ModelAsked, on.RunBegan))
    }
    if names := sorted({called[number] for number in inside if number in called}):
        yield f"model calls and runs inside {', '.join(names)} are not replayed: no tool is called"
    root = tape.run.ids.run_id
    if any(isinstance(entry, on.SteeredIn) and entry.run != root for entry in tape.entries):
        yield "messages that were put into runs inside it are not replayed"
