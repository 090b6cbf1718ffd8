"""Measure one peer in its own interpreter. This module imports the standard library only."""

import asyncio
import gc
import importlib
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from workload import Spec


def adapter(name: str) -> Any:
    return importlib.import_module(f"peers.{name}")


def check(name: str, steps: int = 10) -> dict[str, Any]:
    """Check that the peer does the work: assert steps and tool calls, and count the calls of its hooks."""
    peer = adapter(name)
    if not hasattr(peer, "build"):
        return {}
    run, aio = peer.build(Spec("async", steps)), asyncio.new_event_loop()
    aio.run_until_complete(run())
    seen: dict[int, FrameType] = {}

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename == peer.__file__:
            seen[id(frame)] = frame  # kept, so that a resumed coroutine is not counted again

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        made = aio.run_until_complete(run())
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    names = [frame.f_code.co_name for frame in seen.values()]
    tools = sum(map(names.count, peer.TOOLS))
    hooks = {hook: names.count(hook) for hook in sorted(peer.HOOKS)}
    assert made == steps, f"{name}: {made} model calls in place of {steps}"
    assert tools == steps - 1, f"{name}: {tools} tool calls in place of {steps - 1}"
    assert all(count and count % Spec().n == 0 for count in hooks.values()), f"{name}: hooks were called {hooks} times"
    return {"hook_calls": sum(hooks.values())}


WARM, LONG = 0.2, 0.01
"""Seconds of CPU time for which everything runs before it is measured, and which a measurement takes at least.

The interpreter specialises code while it runs, so the first runs of a short loop take twice as long as later ones.
"""


def dispatch(name: str, sizes: list[int], reps: int) -> dict[str, Any]:
    """Return CPU microseconds for one fire of n no-op hooks, per repetition."""
    peer = adapter(name)
    if not hasattr(peer, "dispatchers"):
        return {}
    aio = asyncio.new_event_loop()
    out: dict[str, Any] = {}
    for label, (is_async, make) in peer.dispatchers().items():
        out[label] = {"async": is_async, "sizes": {}}
        for n in sizes:
            fire = make(n)
            k = warmed(aio, fire, is_async) if reps > 1 else 1
            out[label]["sizes"][str(n)] = [timed(aio, fire, k, is_async) / k * 1e6 for _ in range(reps)]
    return out


def loop(name: str, specs: dict[str, dict[str, Any]], reps: int) -> dict[str, list[float]]:
    """Return CPU microseconds per step for each kind of run, per repetition; kinds are interleaved."""
    peer, aio = adapter(name), asyncio.new_event_loop()
    made = {label: Spec(**given) for label, given in specs.items()}
    runs = {label: peer.build(spec) for label, spec in made.items()}
    times: dict[str, int] = {}
    for label, run in runs.items():
        began = time.process_time()
        assert aio.run_until_complete(run()) == made[label].steps
        is_warm = time.process_time() - began >= WARM  # as after a run of 200 steps
        times[label] = 1 if is_warm or reps == 1 else warmed(aio, run)
    out: dict[str, list[float]] = {label: [] for label in runs}
    for _ in range(reps):
        for label, run in runs.items():
            took = timed(aio, run, times[label])
            out[label].append(took * 1e6 / times[label] / made[label].steps)
    return out


def warmed(aio: asyncio.AbstractEventLoop, work: Any, is_async: bool = True) -> int:
    """Run the work until it is warm. Return how often it runs in a measurement."""
    spent, k = 0.0, 1
    while (took := timed(aio, work, k, is_async)) < LONG or spent + took < WARM:
        spent += took
        if took < LONG:
            k *= 2
    return k


def timed(aio: asyncio.AbstractEventLoop, work: Any, k: int, is_async: bool = True) -> float:
    """Return the seconds of CPU time that the work takes k times."""

    async def awaited() -> float:
        began = time.process_time()
        for _ in range(k):
            await work()
        return time.process_time() - began

    if is_async:
        return aio.run_until_complete(awaited())
    began = time.process_time()
    for _ in range(k):
        work()
    return time.process_time() - began


def concurrent(name: str, runs: int, steps: int = 10, delay: float = 0.05) -> dict[str, float]:
    """Return the wall time of many concurrent runs with a sleeping model, relative to the ideal, and their memory."""
    run = adapter(name).build(Spec(steps=steps, delay=delay))

    def resident() -> int:
        pages = Path("/proc/self/statm").read_text().split()[1]
        return int(pages) * 4

    async def main() -> dict[str, float]:
        await run()
        gc.collect()
        before, peak = resident(), 0

        async def watch() -> None:
            nonlocal peak
            while True:
                peak = max(peak, resident())
                await asyncio.sleep(0.02)

        watcher = asyncio.create_task(watch())
        began = time.perf_counter()
        done = await asyncio.gather(*(run() for _ in range(runs)))
        wall = time.perf_counter() - began
        watcher.cancel()
        assert set(done) == {steps}
        return {"seconds": wall, "over_ideal": wall / (steps * delay), "kb_per_run": (peak - before) / runs}

    return asyncio.run(main())
