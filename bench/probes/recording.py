"""Measure what records and tapes add to a step of the standard run, at two lengths."""

import asyncio
import math
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

from peers.hookline_ import FakeModel, add
from workload import PROMPT, Spec

from hookline import Agent, Limits
from hookline.records import RecordHook
from hookline.tape import TapeHook

TEXT = "The quick brown fox jumps over the lazy dog, and then it returns to its den in the old forest. "

HOOKS: dict[str, Callable[[str], list[Any]]] = {
    "nothing": lambda folder: [],
    "moments, main points": lambda folder: [RecordHook(f"{folder}/main")],
    "moments, main points, without redaction": lambda folder: [RecordHook(f"{folder}/raw", redact=False)],
    "moments, all points": lambda folder: [RecordHook(f"{folder}/all", points="all")],
    "tape": lambda folder: [TapeHook(f"{folder}/tapes")],
}


def steps(reps: int, total: int, lengths: list[int]) -> dict[str, dict[str, Any]]:
    """Return CPU microseconds and bytes per step, by number of steps in a run and variant.

    Args:
        reps: number of repetitions, each of all variants.
        total: number of steps of a repetition.
        lengths: numbers of steps in a run.
    """
    aio = asyncio.new_event_loop()
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for length in lengths:
            spec, runs = Spec(steps=length), max(1, total // length)
            agents = {
                name: Agent(
                    "bench",
                    llm=FakeModel(spec),
                    tools=[add],
                    hooks=make(f"{folder}/{length}"),
                    limits=Limits(steps=math.inf),
                )
                for name, make in HOOKS.items()
            }
            times: dict[str, list[float]] = {name: [] for name in agents}
            sizes = dict.fromkeys(agents, 0.0)
            for _ in range(reps):
                for name, agent in agents.items():
                    before = _size(folder)
                    times[name].append(_cpu(aio, agent, runs) / length)
                    sizes[name] = (_size(folder) - before) / (runs * length)
            found[str(length)] = {"times": times, "bytes": sizes}
    aio.close()
    return found


def texts(reps: int, sizes: list[int]) -> dict[str, dict[str, list[float]]]:
    """Return CPU microseconds per step for results of different texts of these sizes, without and with redaction."""
    from hookline import tool

    aio = asyncio.new_event_loop()
    found: dict[str, dict[str, list[float]]] = {}
    numbers = iter(range(10**9))
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:

            @tool(name="add")
            async def long_add(a: int, b: int, size: int = size) -> str:
                """Add two numbers."""
                return f"{next(numbers)} {TEXT * (size // len(TEXT) + 1)}"[:size]

            spec = Spec(steps=20)
            agents = {
                name: Agent("bench", llm=FakeModel(spec), tools=[long_add], hooks=hooks, limits=Limits(steps=math.inf))
                for name, hooks in {
                    "nothing": [],
                    "without redaction": [RecordHook(f"{folder}/raw", redact=False)],
                    "with redaction": [RecordHook(f"{folder}/redacted")],
                }.items()
            }
            times: dict[str, list[float]] = {name: [] for name in agents}
            for _ in range(reps):
                for name, agent in agents.items():
                    times[name].append(_cpu(aio, agent, 10) / spec.steps)
            found[str(size)] = times
    aio.close()
    return found


def _size(folder: str) -> int:
    return sum(os.path.getsize(os.path.join(place, name)) for place, _, names in os.walk(folder) for name in names)


def _cpu(aio: asyncio.AbstractEventLoop, agent: Agent, times: int) -> float:
    async def body() -> None:
        for _ in range(times):
            await agent.arun(PROMPT)

    began = time.process_time()
    aio.run_until_complete(body())
    return (time.process_time() - began) * 1e6 / times
