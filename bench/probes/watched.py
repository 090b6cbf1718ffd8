"""The standard run with those hooks on that people leave on, and until all of it is written."""

import asyncio
import os
import random
import tempfile
import time
from typing import Any

from peers.hookline_ import FakeModel, add
from workload import PROMPT, Spec

from hookline import Agent
from hookline.hooks import AuditLogHook, ObservabilityHook, TimingHook


def hooks() -> dict[str, list[Any]]:
    """What is on, by what it is called; their files are in the working folder."""
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
    """Wait until all is written."""
    for hook in given:
        if hasattr(hook, "flush"):
            hook.flush()


def steps(reps: int, runs: int) -> dict[str, list[float]]:
    """CPU microseconds per step in all threads, for each repetition, the kinds taking turns."""
    aio, spec = asyncio.new_event_loop(), Spec()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        kinds = hooks()
        agents = {
            label: Agent("bench", llm=FakeModel(spec), tools=[add], max_steps=None, hooks=given)
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
                if number:  # the first is to warm up
                    out[label].append((time.process_time() - began) * 1e6 / spec.steps / runs)
        os.chdir(os.sep)
    return out
