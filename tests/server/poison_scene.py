"""A worker for the test of poison runs: ``python -m tests.server.poison_scene FOLDER``. A tool kills it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from hookline import Agent, ScriptedModel, call, reply, tool
from hookline.config.settings import Settings
from hookline.server.build import build_worker


def make_agent(folder: Path) -> Agent:
    """Return an agent whose tool kills its process."""

    @tool
    def die() -> str:
        """Die."""
        with open(folder / "deaths", "a") as file:
            file.write("died\n")
        os.kill(os.getpid(), signal.SIGKILL)
        return ""

    def turn(request: Any) -> Any:
        return reply("alive") if request.messages[-1].content == "Live." else call("die")

    return Agent("helper", llm=ScriptedModel([turn], loop=True), tools=[die])


async def main() -> None:
    """Work until the process is killed, or until the file ``stop`` appears."""
    folder = Path(sys.argv[1])
    settings = Settings(
        runs=str(folder / "runs.db"),
        approval_file=str(folder / "approvals.db"),
        sessions=str(folder / "sessions"),
        server={"durable": True, "max_attempts": 3, "max_runs": 1},
    )
    worker = build_worker(settings, make_agent(folder))
    await worker.start()
    while not (folder / "stop").exists():
        await asyncio.sleep(0.02)
    await worker.stop(grace=0)


if __name__ == "__main__":
    asyncio.run(main())
