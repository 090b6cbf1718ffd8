"""Measure the standard run with the hooks that stay on in production, including all writes."""

import asyncio
import math
import os
import random
import tempfile
import time
from typing import Any

from peers.hookline_ import FakeModel, add
from workload import PROMPT, Spec

from hookline import Agent, Limits
from hookline.hooks import AuditLogHook, ObservabilityHook, TimingHook


def hooks() -> dict[str, list[Any]]:
    """Return the hooks by name; their files are in the working folder."""
    audit, timing, observability = AuditLogHook("audit.jsonl"), TimingHook(), ObservabilityHook("runs.db")
    return {
        "none": [],
        "`TimingHook`": [timing],
        "`ObservabilityHook`": [observability],
        "`AuditLogHook`": [audit],
        "audit and observability": [audit, observability],
        "all three": [audit, timing, observability],
    }


def flush(given: list[Any]) -> None:
    """Wait until everything is written."""
    for hook in given:
        if hasattr(hook, "flush"):
            hook.flush()


def steps(reps: int, runs: int) -> dict[str, list[float]]:
    """Return CPU microseconds per step in all threads, per repetition; kinds are interleaved."""
    aio, spec = asyncio.new_event_loop(), Spec()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        kinds = hooks()
        agents = {
            label: Agent("bench", llm=FakeModel(spec), tools=[add], limits=Limits(steps=math.inf), hooks=given)
            for label, given in kinds.items()
        }
        out: dict[str, list[float]] = {label: [] for label in kinds}

        async def many(agent: Agent) -> None:
            for _ in range(runs):
                await agent.arun(PROMPT)

        for number in range(reps + 1):
            for label in random.Random(number).sample(list(kinds), len(kinds)):
                began = time.process_time()
                aio.run_until_complete(many(agents[label]))
                flush(kinds[label])
                if number:  # the first round warms up
                    out[label].append((time.process_time() - began) * 1e6 / spec.steps / runs)
        os.chdir(os.sep)
    return out
