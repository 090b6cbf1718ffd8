"""A worker for the tests of fleets: ``python worker_scene.py WORLD DATABASE`` executes runs of the durable scene."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from hookline.config.settings import Settings
from hookline.server.build import build_worker
from tests.durable_scene import World, make_agent

LEASE = 1.5


def settings_of(folder: Path, database: str) -> Settings:
    """Return the settings of the servers and workers of a test."""
    return Settings(
        runs=database,
        approval_file=database,
        sessions=str(folder / "sessions"),
        server={"lease_seconds": LEASE, "durable": True, "max_runs": 6, "grace": 20},
    )


async def main() -> None:
    """Work until SIGTERM."""
    world = World(Path(sys.argv[1]), pace=float(os.environ.get("PACE", "0.05")))
    worker = build_worker(settings_of(world.folder, sys.argv[2]), make_agent(world))
    loop, stops = asyncio.get_running_loop(), []
    loop.add_signal_handler(signal.SIGTERM, lambda: stops.append(asyncio.ensure_future(worker.stop())))
    await worker.start()
    world.note("workers", os.getpid())
    await worker.wait()
    world.note("left", os.getpid())


if __name__ == "__main__":
    asyncio.run(main())
