"""Measure a step of this version of Hookline, or of an earlier one whose names differ."""

import asyncio
import random
import time
from typing import Any

from hookline import AFTER_LLM, AFTER_TOOL, BEFORE_LLM, BEFORE_TOOL, Agent, Limits, guard, hook, observer, tool

try:
    from hookline.models import ModelResponse
    from hookline.payloads import ToolCall
except ImportError:  # before there were these modules
    from hookline import ModelResponse, ToolCall  # type: ignore[attr-defined,no-redef]

POINTS = (BEFORE_LLM, AFTER_LLM, BEFORE_TOOL, AFTER_TOOL)
STEPS = 50


@tool
async def add(a: int, b: int) -> str:
    """Add two numbers."""
    return "3"


class Scripted:
    """A model that calls the tool in each step, and then replies."""

    name = provider = "fake"

    def __init__(self, steps: int) -> None:
        self._steps, self._calls = steps, 0

    async def complete(self, request: Any) -> ModelResponse:
        """Return the next reply."""
        self._calls += 1
        if self._calls % self._steps:
            return ModelResponse("", (ToolCall("c", "add", {"a": 1, "b": 2}),))
        return ModelResponse("done")

    def count_tokens(self, content: Any) -> int:
        """Return a number of tokens."""
        return 1


def passes(ctx: Any, payload: Any) -> None:
    pass


async def passes_later(ctx: Any, payload: Any) -> None:
    pass


def other_numbers(ctx: Any, request: Any) -> Any:
    return request.replace(arguments={"a": 3, "b": 4})


HOOKS: dict[str, Any] = {
    "no hooks": lambda: [],
    "a guard that lets each call pass": lambda: [guard(BEFORE_TOOL)(passes)],
    "a sync hook on each main point": lambda: [hook(*POINTS)(passes)],
    "an async hook on each main point": lambda: [hook(*POINTS)(passes_later)],
    "an observer on each main point": lambda: [observer(*POINTS)(passes)],
    "a hook that changes the arguments of each call": lambda: [hook(BEFORE_TOOL)(other_numbers)],
}
WHOLE_RUN = "a whole run of one step, without hooks"


def steps(reps: int) -> dict[str, float]:
    """Return the lowest CPU microseconds of a step with these hooks, and of a run of one step."""
    return asyncio.run(_steps(reps))


async def _steps(reps: int) -> dict[str, float]:
    agents = {label: (_agent(STEPS, hooks()), STEPS) for label, hooks in HOOKS.items()}
    agents[WHOLE_RUN] = _agent(1, []), 1
    for agent, length in agents.values():
        for _ in range(200 // length if reps > 1 else 1):
            await agent.arun("x")
    lowest: dict[str, float] = {}
    for number in range(reps):
        for label in random.Random(number).sample(list(agents), len(agents)):
            agent, length = agents[label]
            began = time.process_time()
            for _ in range(STEPS // length):
                await agent.arun("x")
            took = (time.process_time() - began) * 1e6 / STEPS
            lowest[label] = min(took, lowest.get(label, took))
    return {label: lowest[label] for label in agents}


def _agent(length: int, hooks: list[Any]) -> Any:
    model: Any = Scripted(length)
    return Agent("bench", llm=model, tools=[add], limits=Limits(steps=2 * STEPS), hooks=hooks)
