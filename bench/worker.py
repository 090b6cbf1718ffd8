"""One measurement of one peer in this interpreter; prints a line of JSON."""

import argparse
import asyncio
import gc
import importlib
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from workload import Spec

sys.path.insert(0, str(Path(__file__).parent))


def dispatch(peer: Any, reps: int) -> dict[str, dict[str, float]]:
    """Microseconds for one fire of n no-op hooks."""
    loop = asyncio.new_event_loop()
    out: dict[str, dict[str, float]] = {}

    def timed(is_async: bool, fire: Any, k: int) -> float:
        async def body() -> float:
            began = time.perf_counter()
            for _ in range(k):
                await fire()
            return time.perf_counter() - began

        if is_async:
            return loop.run_until_complete(body())
        began = time.perf_counter()
        for _ in range(k):
            fire()
        return time.perf_counter() - began

    for label, (is_async, make) in peer.dispatchers().items():
        for n in (10, 100):
            fire, k = make(n), 100
            while timed(is_async, fire, k) < 0.01:
                k *= 2
            out.setdefault(label, {})[str(n)] = (
                statistics.median(timed(is_async, fire, k) / k for _ in range(reps)) * 1e6
            )
    return out


def loop(peer: Any, spec: Spec, reps: int) -> list[float]:
    """CPU microseconds per step, for each repetition."""
    run, aio, out = peer.build(spec), asyncio.new_event_loop(), []
    for _ in range(3):
        assert aio.run_until_complete(run()) == spec.steps
    for _ in range(reps):
        began = time.process_time()
        aio.run_until_complete(run())
        out.append((time.process_time() - began) * 1e6 / spec.steps)
    return out


def watched(peer: Any, spec: Spec, reps: int, runs: int) -> dict[str, list[float]]:
    """CPU microseconds per step, in all threads, of many runs that are watched, and until all is written."""
    aio = asyncio.new_event_loop()
    out: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for label, (run, flush) in peer.watched(spec).items():

            async def many(run: Any = run) -> None:
                for _ in range(runs):
                    await run()

            out[label] = []
            for _ in range(reps + 1):
                began = time.process_time()
                aio.run_until_complete(many())
                flush()
                out[label].append((time.process_time() - began) * 1e6 / spec.steps / runs)
            del out[label][0]  # that was to warm up
        os.chdir(os.sep)
    return out


def concurrent(peer: Any, spec: Spec, runs: int) -> dict[str, float]:
    """Wall time of many runs whose model sleeps, over the ideal, and the memory they take."""
    run = peer.build(spec)

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
        await asyncio.gather(*(run() for _ in range(runs)))
        wall = time.perf_counter() - began
        watcher.cancel()
        return {"over_ideal": wall / (spec.steps * spec.delay), "kb_per_run": (peak - before) / runs}

    return asyncio.run(main())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["dispatch", "loop", "watched", "concurrent"])
    parser.add_argument("peer")
    parser.add_argument("--hooks", default="none")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--reps", type=int, default=20)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--events", action="store_true")
    args = parser.parse_args()
    peer = importlib.import_module(f"peers.{args.peer}")
    result: Any
    if args.what == "dispatch":
        result = dispatch(peer, args.reps)
    elif args.what == "loop":
        result = loop(peer, Spec(args.hooks, args.steps, events=args.events), args.reps)
    elif args.what == "watched":
        result = watched(peer, Spec(), args.reps, args.runs)
    else:
        result = concurrent(peer, Spec(args.hooks, args.steps, delay=0.05), args.runs)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
