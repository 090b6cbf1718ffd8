"""One turn from the command line: a run, and those that follow it; Ctrl-C once cancels, twice kills."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import traceback
from collections.abc import Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from .._base.frozen import EMPTY
from .._kernel.events import Event, HookExecuted
from .._kernel.state import AgentResult
from .._kernel.values import Usage
from .._run.agent import Agent, Run
from .._run.causes import RunFailedError
from .._run.context import AgentContext
from .._run.event_loops import background_loop
from .._run.events import RunFinished, Sink, SubagentEvent
from .exits import CANCELLED, FAILED
from .failures import say_error
from .text import Within

if TYPE_CHECKING:
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
