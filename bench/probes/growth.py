"""Measure how the cost grows with hooks, messages, tools and steps."""

import asyncio
import gc
import math
import os
import random
import tempfile
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

from peers.hookline_ import MAIN, FakeModel, add, noop
from probes.watched import flush
from workload import PROMPT, Spec

from hookline import BEFORE_STEP, Agent, HookRegistry, Limits, Message, ModelRequest, Session
from hookline.hooks import AuditLogHook, ObservabilityHook
from hookline.models import ModelResponse
from hookline.tools import Tool

Run = Callable[[], Awaitable[Any]]
Made = tuple[Run, int]
"""A run, and how many steps it has."""


def with_hooks(n: int, hooks: list[Any]) -> Made:
    """Build a run with n hooks on each main point."""
    agent = Agent("bench", llm=FakeModel(Spec()), tools=[add], limits=Limits(steps=math.inf), hooks=hooks)
    for point in MAIN:
        for _ in range(n):
            agent.hooks.on(point, noop)
    return lambda: agent.arun(PROMPT), 10


def with_messages(n: int, hooks: list[Any]) -> Made:
    """Build a run with a history of n messages."""
    earlier = history(n)
    agent = Agent("bench", llm=FakeModel(Spec(), before=n), tools=[add], limits=Limits(steps=math.inf), hooks=hooks)
    return lambda: agent.arun(PROMPT, session=Session(messages=earlier)), 10


def history(n: int) -> list[Message]:
    """Return a history of questions and answers."""
    return [Message("user", f"What is {i}?") if i % 2 == 0 else Message("assistant", f"It is {i}.") for i in range(n)]


def with_tools(n: int, hooks: list[Any]) -> Made:
    """Build a run with n tools."""
    agent = Agent(
        "bench", llm=FakeModel(Spec()), tools=[add, *others(n - 1)], limits=Limits(steps=math.inf), hooks=hooks
    )
    return lambda: agent.arun(PROMPT), 10


def others(n: int) -> list[Tool]:
    """Return tools that are never called."""

    async def other(a: int, b: int) -> str:
        """Do something else with two numbers."""
        return "4"

    return [Tool(other, name=f"other_{i}") for i in range(n)]


def with_steps(n: int, hooks: list[Any]) -> Made:
    """Build a run with n steps."""
    agent = Agent("bench", llm=FakeModel(Spec(steps=n)), tools=[add], limits=Limits(steps=math.inf), hooks=hooks)
    return lambda: agent.arun(PROMPT), n


KINDS: dict[str, Callable[[int, list[Any]], Made]] = {
    "hooks": with_hooks,
    "messages": with_messages,
    "tools": with_tools,
    "steps": with_steps,
}


def steps(kind: str, sizes: list[int], reps: int, watched: bool) -> dict[str, list[float]]:
    """Return CPU microseconds per step in all threads, per repetition; sizes are interleaved.

    ``watched``: with audit and observability on, including all writes.
    """
    aio = asyncio.new_event_loop()

    def cpu(run: Run, times: int) -> float:
        gc.collect()
        began = time.process_time()
        for _ in range(times):
            aio.run_until_complete(run())
        flush(hooks)
        return (time.process_time() - began) * 1e6 / times

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        hooks: list[Any] = [AuditLogHook("audit.jsonl"), ObservabilityHook("runs.db")] if watched else []
        made = {n: KINDS[kind](n, hooks) for n in sizes}
        times = {n: max(1, int(20_000 / cpu(run, 1))) if reps > 1 else 1 for n, (run, _) in made.items()}
        out: dict[str, list[float]] = {str(n): [] for n in sizes}
        for number in range(reps):
            for n in random.Random(number).sample(sizes, len(sizes)):
                run, count = made[n]
                out[str(n)].append(cpu(run, times[n]) / count)
        os.chdir(os.sep)
    return out


def register(n: int) -> None:
    """Register n hooks one by one."""
    registry = HookRegistry()
    for _ in range(n):
        registry.on(BEFORE_STEP, noop)
    assert len(registry.stack.entries(BEFORE_STEP)) == n


def made(sizes: list[int], reps: int) -> dict[str, dict[str, list[float]]]:
    """Return CPU microseconds of set-up: registering n hooks, and making n tools and an agent."""
    ways: dict[str, Callable[[int], Any]] = {
        "hooks registered one by one": register,
        "tools made, and an agent with them": lambda n: Agent("bench", llm=FakeModel(Spec()), tools=others(n)),
    }
    out: dict[str, dict[str, list[float]]] = {}
    for way, make in ways.items():
        make(1)  # warm up
        for _ in range(reps):
            for n in sizes:
                began = time.process_time()
                make(n)
                out.setdefault(way, {}).setdefault(str(n), []).append((time.process_time() - began) * 1e6)
    return out


class Clocked(FakeModel):
    """A model that records the CPU time of each call."""

    def __init__(self, spec: Spec, before: int) -> None:
        super().__init__(spec, before)
        self.times: list[float] = []

    async def complete(self, request: ModelRequest) -> ModelResponse:
        self.times.append(time.process_time())
        return await super().complete(request)


def later_steps(sizes: list[int], reps: int) -> dict[str, list[float]]:
    """Return CPU microseconds between model calls in a conversation of n messages."""
    aio, count = asyncio.new_event_loop(), 50
    out: dict[str, list[float]] = {str(n): [] for n in sizes}
    for number in range(reps):
        for n in random.Random(number).sample(sizes, len(sizes)):
            model = Clocked(Spec(steps=count), n)
            agent = Agent("bench", llm=model, tools=[add], limits=Limits(steps=math.inf))
            aio.run_until_complete(agent.arun(PROMPT, session=Session(messages=history(n))))
            out[str(n)].append((model.times[-1] - model.times[1]) * 1e6 / (count - 2))
    return out


def memory(sizes: list[int]) -> dict[str, float]:
    """Return the peak memory of a run in bytes, by number of steps."""
    aio, out = asyncio.new_event_loop(), {}
    for n in sizes:
        run, _ = with_steps(n, [])
        aio.run_until_complete(run())
        gc.collect()
        tracemalloc.start()
        aio.run_until_complete(run())
        out[str(n)] = float(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    return out
