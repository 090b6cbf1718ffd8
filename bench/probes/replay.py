"""Measure what recording a tape costs, and how fast tapes are replayed."""

import asyncio
import gc
import math
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

from peers.hookline_ import FakeModel, add
from workload import PROMPT, Spec

from hookline import Agent
from hookline.tape import TapeHook, areplay


def figures(sizes: list[int], total: int) -> dict[str, dict[str, float]]:
    """Return figures by the number of steps of a run.

    ``live`` and ``recorded`` are CPU microseconds per step without and with a tape, ``replayed`` those of a strict
    replay, ``bytes`` is the size of the tape per step. ``total`` is the number of steps that are measured.
    """
    out: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for steps in sizes:
            path, times = os.path.join(folder, f"{steps}.tape"), max(1, total // steps)
            live, recorded = agent(steps), agent(steps, TapeHook(path))
            found = out[str(steps)] = {}
            found["live"] = cpu(lambda live=live: live.arun(PROMPT), times) / steps
            found["recorded"] = cpu(lambda recorded=recorded: recorded.arun(PROMPT), times) / steps
            found["bytes"] = os.path.getsize(path) / steps
            assert asyncio.run(areplay(path, live)).same
            found["replayed"] = cpu(lambda path=path, live=live: areplay(path, live), times) / steps
    return out


def agent(steps: int, *hooks: Any) -> Agent:
    """Return the agent of the workload."""
    return Agent("bench", llm=FakeModel(Spec(steps=steps)), tools=[add], max_steps=math.inf, hooks=hooks)


def cpu(run: Callable[[], Any], times: int) -> float:
    """Return CPU microseconds of a run, after one that is not measured."""

    async def several(n: int) -> None:
        for _ in range(n):
            await run()

    asyncio.run(several(1))
    gc.collect()
    began = time.process_time()
    asyncio.run(several(times))
    return (time.process_time() - began) * 1e6 / times
