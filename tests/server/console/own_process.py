"""A server with a console in a process of its own, which a test can stop without ending it."""

import asyncio
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

from .asking import cleaner
from .rig import console


@asynccontextmanager
async def own_process(folder, agent=""):
    """Start the process, with the agent ``cleaner`` or one that echoes. Yields it, with the address as ``url``."""
    command = sys.executable, "-m", __name__, str(folder), agent
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[3]
    )
    try:
        url = (await process.stdout.readline()).decode().strip()
        yield SimpleNamespace(url=url, send_signal=process.send_signal)
    finally:
        process.kill()
        await process.wait()


async def _serve(folder, agent):
    async with console(folder, cleaner() if agent == "cleaner" else None) as made:
        print(made.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), sys.argv[2]))
