"""Measure how fast tapes are replayed."""

import asyncio
import gc
import math
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from peers.hookline_ import FakeModel, add
from workload import PROMPT, Spec

from hookline import Agent, Limits
from hookline.tape import TapeHook, areplay


def steps(sizes: list[int], total: int) -> dict[str, dict[str, float]]:
    """Return CPU microseconds per step of a live run and of a strict replay, by the number of steps of a run.

    Args:
        sizes: numbers of steps of a run.
        total: number of steps that are measured.
    """
    out: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            path, times = os.path.join(folder, f"{size}.tape"), max(1, total // size)
            agent = Agent("bench", llm=FakeModel(Spec(steps=size)), tools=[add], limits=Limits(steps=math.inf))
            asyncio.run(agent.arun(PROMPT, hooks=[TapeHook(path)]))
            assert asyncio.run(areplay(path, agent)).same
            out[str(size)] = {
                "live": cpu(partial(agent.arun, PROMPT), times) / size,
                "replayed": cpu(partial(areplay, path, agent), times) / size,
            }
    return out


def cpu(run: Callable[[], Awaitable[Any]], times: int) -> float:
    """Return CPU microseconds of a run, after one that is not measured."""

    async def several(n: int) -> None:
        for _ in range(n):
            await run()

    asyncio.run(several(1))
    gc.collect()
    began = time.process_time()
    asyncio.run(several(times))
    return (time.process_time() - began) * 1e6 / times
