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
