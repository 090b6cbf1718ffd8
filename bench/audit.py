"""What the audit log costs; prints a line of JSON.

By kind of log: records a second from ``on_event`` to the file, in one process, and microseconds of the run's own thread
for each. ``steps``: CPU microseconds of all threads for a step of the standard run, without a log and with one.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from peers import hookline_
from workload import PROMPT, Spec

from hookline import Agent, AuditLogHook, HookExecuted, Ids, RunStarted, verify_audit
from hookline.stores.audit.keys import make_keys


def rate(hook: AuditLogHook, count: int) -> tuple[float, float]:
    """Records a second, and microseconds of the caller's thread for each."""
    hook.on_event(RunStarted(1, time.time(), "run_1", ids=Ids("run_1", "task_1", "task_1", "session_1", "bench")))
    event = HookExecuted(2, time.time(), "run_1", "before_tool", "careful", "guard", "block", "the amount is too high")
    began = time.perf_counter()
    for _ in range(count):
        hook.on_event(event)
    put = time.perf_counter() - began
    assert hook.flush()
    assert not hook.log.lost
    return count / (time.perf_counter() - began), put / count * 1e6


def steps(folder: Path, reps: int) -> dict[str, float]:
    """CPU microseconds of a step, all threads, the kinds taking turns."""
    hooks: dict[str, list[Any]] = {"none": [], "log": [AuditLogHook(folder / "steps.jsonl")]}
    agents = {
        name: Agent("bench", llm=hookline_.FakeModel(Spec()), tools=[hookline_.add], max_steps=None, hooks=given)
        for name, given in hooks.items()
    }
    seen: dict[str, list[float]] = {name: [] for name in agents}

    async def run() -> None:
        for _ in range(reps + 1):
            for name, agent in agents.items():
                began = time.process_time()
                for _ in range(30):
                    await agent.arun(PROMPT)
                for hook in hooks[name]:
                    hook.flush()
                seen[name].append((time.process_time() - began) / 300 * 1e6)

    asyncio.run(run())
    return {name: statistics.median(times[1:]) for name, times in seen.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--reps", type=int, default=20)
    reps = parser.parse_args().reps
    count = 2000 if reps <= 3 else 50_000
    out: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        private, _, _ = make_keys(folder / "key")
        options: dict[str, dict[str, Any]] = {
            "never": {"fsync": "never"},
            "batch": {"fsync": "batch"},
            "signed": {"sign": private},
        }
        for kind, given in options.items():
            hook = AuditLogHook(folder / f"{kind}.jsonl", **given)
            out[kind] = rate(hook, count // 10 if kind == "signed" else count)
            hook.log.close()
        began = time.perf_counter()
        records = verify_audit(folder / "batch.jsonl").records
        out["verify"] = records / (time.perf_counter() - began)
        out["steps"] = steps(folder, reps)
    print(json.dumps(out))


if __name__ == "__main__":
    main()
