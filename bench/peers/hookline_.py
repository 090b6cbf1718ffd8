"""Hookline through its public API."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from workload import ARGUMENTS, FINAL, PROMPT, Spec

from hookline import (
    AFTER_LLM,
    AFTER_TOOL,
    BEFORE_LLM,
    BEFORE_STEP,
    BEFORE_TOOL,
    ON_RUN_END,
    ON_RUN_START,
    Agent,
    AgentContext,
    HookRegistry,
    Limits,
    Message,
    ModelRequest,
    tool,
)
from hookline._kernel.dispatch import fire
from hookline._kernel.scope import scope_of
from hookline.models import ModelResponse
from hookline.payloads import StepStart, ToolCall

HOOKS, TOOLS = {"noop"}, {"add"}
MAIN = (ON_RUN_START, BEFORE_LLM, AFTER_LLM, BEFORE_TOOL, AFTER_TOOL, ON_RUN_END)


@tool
async def add(a: int, b: int) -> str:
    """Add two numbers."""
    return "3"


async def noop(ctx: Any, payload: Any) -> None:
    pass


def noop_sync(ctx: Any, payload: Any) -> None:
    pass


class FakeModel:
    """The workload's model, in a conversation that already has a number of messages."""

    name = provider = "fake"

    def __init__(self, spec: Spec, before: int = 0) -> None:
        self.spec, self.before = spec, before

    async def complete(self, request: ModelRequest) -> ModelResponse:
        if self.spec.delay:
            await asyncio.sleep(self.spec.delay)
        done = (len(request.messages) - self.before) // 2
        if done < self.spec.steps - 1:
            return ModelResponse("", (ToolCall(f"c{done}", "add", ARGUMENTS),))
        return ModelResponse(FINAL)

    async def stream(self, request: ModelRequest) -> AsyncIterator[str | ModelResponse]:
        yield await self.complete(request)

    def count_tokens(self, content: str | Sequence[Message]) -> int:
        return 1


def build(spec: Spec) -> Callable[[], Awaitable[int]]:
    agent = Agent("bench", llm=FakeModel(spec), tools=[add], limits=Limits(steps=math.inf))
    if spec.events:
        agent.sinks = (lambda event: None,)
    for _ in range(spec.count()):
        for point in MAIN:
            agent.hooks.on(point, noop_sync if spec.hooks == "sync" else noop)

    async def run() -> int:
        result = await agent.arun(PROMPT)
        assert result.reply == FINAL
        return len(result.steps)

    return run


def dispatchers() -> dict[str, tuple[bool, Callable[[int], Callable[[], Any]]]]:
    scope, payload = scope_of(AgentContext()), StepStart(1)

    def of(fn: Any) -> Callable[[int], Callable[[], Any]]:
        def make(n: int) -> Callable[[], Any]:
            registry = HookRegistry()
            for _ in range(n):
                registry.on(BEFORE_STEP, fn)
            chain = registry.stack.chain(BEFORE_STEP)
            return lambda: fire(chain, BEFORE_STEP, payload, scope)

        return make

    return {"hookline, sync hooks": (True, of(noop_sync)), "hookline, async hooks": (True, of(noop))}
