"""Work for somebody who may leave before it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.requests import ClientDisconnect

from .._web.middleware import Receive

T = TypeVar("T")


async def until_gone(receive: Receive) -> None:
    """Wait until nobody is there any more to be answered."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(receive: Receive, work: Awaitable[T]) -> T:
    """What the work gives; it is cancelled when nobody is there any more to get it.

    Raises:
        ClientDisconnect: nobody is.
    """
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(until_gone(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.wait((working, leaving))
