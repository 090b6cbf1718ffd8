"""A worker for the tests of fleets: ``python worker_scene.py WORLD DATABASE`` executes runs of the durable scene.

Moments for ``KILL_AT``, besides those of the scene, are ``control_taken``, when the worker has taken a message to a
run, and ``control_unwritten`` and ``control_written``, before and after the commit of a message to the journal.
``MAX_ATTEMPTS`` is the number of processes that may end while they execute a run.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from hookline._run.journal import control_of
from hookline.config.settings import Settings
from hookline.server.build import build_worker
from hookline.stores.controls import ControlStore
from hookline.stores.journal import Journal
from tests.durable_scene import World, make_agent
from tests.stacks import log_with_times, write_stacks_on_signal

LEASE = float(os.environ.get("LEASE", "1.5"))


def settings_of(folder: Path, database: str) -> Settings:
    """Return the settings of the servers and workers of a test."""
    return Settings(
        runs=database,
        approval_file=database,
        sessions=str(folder / "sessions"),
        server={
            "lease_seconds": LEASE,
            "durable": True,
            "max_runs": 6,
            "grace": 20,
            "max_attempts": int(os.environ.get("MAX_ATTEMPTS", "10")),
        },
    )


def reach_moments_of_controls(world: World) -> None:
    """Let the worker be killed around the messages that it carries out."""
    take, append = ControlStore.take, Journal.append

    def taken(*args: Any) -> Any:
        found = take(*args)
        if found:
            world.reach("control_taken")
        return found

    def appended(self: Journal, write: Any, **options: Any) -> None:
        has_control = any(map(control_of, write.entries))
        if has_control:
            world.reach("control_unwritten")
        append(self, write, **options)
        if has_control:
            world.reach("control_written")

    ControlStore.take, Journal.append = taken, appended  # type: ignore[method-assign]


async def main() -> None:
    """Work until SIGTERM."""
    write_stacks_on_signal()
    world = World(Path(sys.argv[1]), pace=float(os.environ.get("PACE", "0.05")))
    if os.environ.get("KILL_AT", "").startswith("control"):
        reach_moments_of_controls(world)
    worker = build_worker(settings_of(world.folder, sys.argv[2]), make_agent(world))
    loop, stops = asyncio.get_running_loop(), []
    loop.add_signal_handler(signal.SIGTERM, lambda: stops.append(asyncio.ensure_future(worker.stop())))
    await worker.start()
    world.note("workers", os.getpid())
    await worker.wait()
    world.note("left", os.getpid())


if __name__ == "__main__":
    log_with_times()
    asyncio.run(main())
