"""Measure the CPU time of a step of served runs, in all threads, with parts of the server on and off.

The server is built as ``hookline serve`` builds it. Each run has ten steps and nine tool calls, which one guard judges.
Without the part ``events`` the same agent runs with the same hooks but without a server.
"""

import asyncio
import gc
import math
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from peers.hookline_ import FakeModel, add, noop_sync
from probes.watched import flush
from workload import FINAL, PROMPT, Spec

from hookline import BEFORE_TOOL, Agent, Limits, guard
from hookline.config.settings import Settings
from hookline.hooks import AuditLogHook, MetricsHook, ObservabilityHook
from hookline.records import RecordHook
from hookline.server import Caller
from hookline.server.build import build_server

PARTS = ("events", "records", "audit", "metrics", "facts")
KINDS = {
    "nothing": (),
    "everything": PARTS,
    **{f"all but {part}": tuple(each for each in PARTS if each != part) for part in PARTS},
    **{f"only {part}": (part,) for part in PARTS},
}
STEPS = 10
AT_ONCE = 5
"""Runs at the same time."""
ME = Caller("local", "local", frozenset(("read", "run")))

Runs = Callable[[int], Awaitable[None]]


@asynccontextmanager
async def serving(folder: Path, parts: tuple[str, ...]) -> Any:
    """Yield a function that does a number of runs, and returns when everything about them is written."""
    database = str(folder / "runs.db")
    hooks: list[Any] = [guard(BEFORE_TOOL, tools="add")(noop_sync)]
    if "audit" in parts:
        hooks.append(AuditLogHook(folder / "audit.jsonl"))
    if "records" in parts:
        hooks.append(RecordHook(folder / "records"))
    if "facts" in parts:
        hooks.append(ObservabilityHook(database))
    agent = Agent("bench", llm=FakeModel(Spec(steps=STEPS)), tools=[add], limits=Limits(steps=math.inf), hooks=hooks)
    if "events" not in parts:
        agent.hooks.extend([MetricsHook(every_call=True)] if "metrics" in parts else [])
        yield _many(lambda: agent.arun(PROMPT), hooks)
        return
    settings = Settings(
        server={"port": 0, "max_runs": 100, "max_runs_per_caller": 100, "rate": 1e9, "burst": 1_000_000},
        runs=database,
        sessions=str(folder / "sessions.db"),
        approval_file=str(folder / "approvals.db"),
    )
    server = build_server(settings, agent, home=folder)
    if "metrics" not in parts:
        agent.hooks.unregister(next(each for each in agent.hooks if isinstance(each, MetricsHook)))
    await server.start()

    async def served() -> None:
        run = await server.service.start(ME, PROMPT)
        reader = await server.service.read(run.id, ME)
        last = [event async for event in reader][-1]
        reader.close()
        assert FINAL.encode() in last.data

    yield _many(served, hooks)
    await server.stop(grace=0)


def _many(run: Callable[[], Awaitable[Any]], hooks: list[Any]) -> Runs:
    async def many(count: int) -> None:
        for _ in range(count // AT_ONCE):
            await asyncio.gather(*(run() for _ in range(AT_ONCE)))
        await asyncio.to_thread(flush, hooks)

    return many


async def _measured(parts: tuple[str, ...], reps: int, runs: int) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        async with serving(Path(folder), parts) as many:
            found = []
            for _ in range(reps + 1):
                gc.collect()
                began = time.process_time()
                await many(runs)
                found.append((time.process_time() - began) * 1e6 / STEPS / runs)
    return found[1:]  # the first round warms up


def steps(reps: int, runs: int, kinds: list[str] | None = None, seed: int = 0) -> dict[str, list[float]]:
    """Return CPU microseconds per step by kind, per repetition."""
    names = list(kinds or KINDS)
    random.Random(seed).shuffle(names)
    return {name: asyncio.run(_measured(KINDS[name], reps, runs)) for name in names}
