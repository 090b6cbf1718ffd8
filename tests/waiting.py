"""Wait in tests for a condition, without a time limit: pytest's own timeout is the limit."""

import asyncio
import time
from collections.abc import Callable

INTERVAL = 0.005


def block_until(condition: Callable[[], object]) -> None:
    """Block the thread until the condition is true."""
    while not condition():
        time.sleep(INTERVAL)


async def wait_until(condition: Callable[[], object]) -> None:
    """Wait until the condition is true, while other tasks go on."""
    while not condition():
        await asyncio.sleep(INTERVAL)


async def until_others_wait() -> None:
    """Let the other tasks of this event loop go on until all of them wait: for a timer, a thread or something else."""
    loop = asyncio.get_running_loop()
    await asyncio.sleep(0)
    while loop._ready:  # type: ignore[attr-defined] # the callbacks that this loop is about to call
        await asyncio.sleep(0)
