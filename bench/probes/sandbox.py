"""Measure one command of the shell tool, without a sandbox and at each level."""

import asyncio
import tempfile
import time

from hookline._toolbox.sandbox import LEVELS, level_state
from hookline.tools import shell_tool


def commands(reps: int) -> dict[str, list[float]]:
    """For each level that works here, and for none, return the milliseconds of each run of ``true``."""

    async def measure(folder: str) -> dict[str, list[float]]:
        works = [level for level in LEVELS if not level_state(level).problem]
        tools = {"off": shell_tool(folder, sandbox="off")} | {name: shell_tool(folder, sandbox=name) for name in works}
        taken: dict[str, list[float]] = {name: [] for name in tools}
        for tool in tools.values():
            await tool("true")
        for _ in range(reps):
            for name, tool in tools.items():
                began = time.perf_counter()
                await tool("true")
                taken[name].append((time.perf_counter() - began) * 1000)
        return taken

    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(measure(folder))
