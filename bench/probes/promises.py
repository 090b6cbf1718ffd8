"""Measure what the parts of a step cost, and what it adds to switch something on."""

import asyncio
import math
import random
from collections.abc import Callable
from typing import Any

from peers.hookline_ import MAIN, FakeModel, add, noop, noop_sync
from probes.peer import timed, warmed
from workload import ARGUMENTS, PROMPT, Spec

from hookline import AFTER_TOOL, BEFORE_LLM, BEFORE_TOOL, Agent, Message, ModelRequest, guard, hook, observer
from hookline.agents import Budget, Limits
from hookline.events import StepFinished, TextDelta
from hookline.payloads import ModelReply, StepStart, ToolCall, ToolCallRequest, ToolCallResult, Usage

STEPS = 100
"""Steps of a run, so that what a run costs at its start counts little."""


def consumer(*kinds: type[Any]) -> Callable[[Any], None]:
    """Return a consumer of these kinds of events; of all if none is given."""

    def take(event: Any) -> None:
        pass

    if kinds:
        vars(take)["events"] = frozenset(kinds)
    return take


def brief(ctx: Any, request: ModelRequest) -> ModelRequest:
    return request.replace(params={"max_tokens": 200})


def other_numbers(ctx: Any, request: ToolCallRequest) -> ToolCallRequest:
    return request.replace(arguments={"a": 3, "b": 4})


def other_result(ctx: Any, result: ToolCallResult) -> ToolCallResult:
    return result.replace(result="7")


SWITCHED_ON: dict[str, Callable[[], dict[str, Any]]] = {
    "nothing": lambda: {},
    "limits of tokens, cost and time": lambda: {"limits": Limits(steps=math.inf, tokens=10**12, cost=1e9, seconds=1e6)},
    "a guard of one tool": lambda: {"hooks": [guard(BEFORE_TOOL, tools="add")(noop_sync)]},
    "`strict=True`, and that guard": lambda: {"hooks": [guard(BEFORE_TOOL, tools="add")(noop_sync)], "strict": True},
    "a sync hook on each main point": lambda: {"hooks": [hook(*MAIN)(noop_sync)]},
    "an async hook on each main point": lambda: {"hooks": [hook(*MAIN)(noop)]},
    "an observer on each main point": lambda: {"hooks": [observer(*MAIN)(noop_sync)]},
    "a hook that changes each request": lambda: {"hooks": [hook(BEFORE_LLM)(brief)]},
    "a hook that changes the arguments of each call": lambda: {"hooks": [hook(BEFORE_TOOL)(other_numbers)]},
    "a hook that changes each result": lambda: {"hooks": [hook(AFTER_TOOL)(other_result)]},
    "a consumer of one kind of event": lambda: {"sinks": [consumer(StepFinished)]},
    "a consumer of streamed text": lambda: {"sinks": [consumer(TextDelta)]},
    "a consumer of every event, fires included": lambda: {"sinks": [consumer()]},
}


def count() -> None:
    budget.charge(Usage(10, 10), 0.0)
    budget.count_tool_call()
    budget.count_step()
    assert budget.exceeded() is None


def payloads() -> None:
    StepStart(1)
    request = ModelRequest((), (), "fake")
    ModelReply("", (), request=request)
    ToolCallRequest("c1", "add", arguments)
    ToolCallResult("c1", "add", arguments, "3")


def messages() -> None:
    Message("assistant", "", (call,))
    Message("tool", "3", (), "c1", "add")


budget, call = Budget(Limits(tokens=10**12)), ToolCall("c1", "add", ARGUMENTS)
arguments = call.arguments
ALONE: dict[str, Callable[[], Any]] = {
    "parse the arguments of a call, and freeze them": lambda: ToolCall("c1", "add", ARGUMENTS),
    "validate them, and make sure that JSON can express them": lambda: add.validate(arguments),
    "make the payloads of five points": payloads,
    "make the messages of the transcript": messages,
    "count tokens, cost, calls and steps, and check the limits": count,
}


def steps(reps: int, length: int = STEPS) -> dict[str, list[float]]:
    """Return CPU microseconds per step for everything that is switched on; the variants are interleaved."""
    aio = asyncio.new_event_loop()
    runs = {label: _run(options(), length) for label, options in SWITCHED_ON.items()}
    times = {label: warmed(aio, run) if reps > 1 else 1 for label, run in runs.items()}
    out: dict[str, list[float]] = {label: [] for label in runs}
    for number in range(reps):
        for label in random.Random(number).sample(list(runs), len(runs)):
            took = timed(aio, runs[label], times[label])
            out[label].append(took * 1e6 / times[label] / length)
    return out


def _run(options: dict[str, Any], length: int) -> Callable[[], Any]:
    options.setdefault("limits", Limits(steps=math.inf))
    agent = Agent("bench", llm=FakeModel(Spec(steps=length)), tools=[add], **options)
    return lambda: agent.arun(PROMPT)


def alone(reps: int) -> dict[str, list[float]]:
    """Return CPU microseconds of the parts of a step, each measured alone."""
    aio, out = asyncio.new_event_loop(), dict[str, list[float]]()
    for label, work in ALONE.items():
        k = warmed(aio, work, is_async=False) if reps > 1 else 1
        out[label] = [timed(aio, work, k, is_async=False) / k * 1e6 for _ in range(reps)]
    return out
