"""What channels that fetch their messages share: waits that grow, and handing on until the gateway has everything."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from .._base.text import describe
from ..stores.messages import InboundMessage
from .protocol import ChannelError, Deliver

log = logging.getLogger("hookline")

T = TypeVar("T")

FIRST_WAIT, LONGEST_WAIT = 0.2, 30.0


class Waits:
    """How many seconds to wait after each failure: twice as long each time, with chance in it, up to a limit."""

    def __init__(self, first: float = FIRST_WAIT, longest: float = LONGEST_WAIT) -> None:
        self._first, self._longest, self._next = first, longest, first

    def reset(self) -> None:
        """It worked: the next failure counts as the first."""
        self._next = self._first

    def next(self) -> float:
        """Seconds until the next try."""
        now, self._next = self._next, min(self._next * 2, self._longest)
        return now * random.uniform(0.75, 1.25)


class Busy:
    """Counts what is under way: ``with busy: ...``; ``await busy.over()`` waits until nothing is."""

    def __init__(self) -> None:
        self._count, self._idle = 0, asyncio.Event()
        self._idle.set()

    def __enter__(self) -> None:
        self._count += 1
        self._idle.clear()

    def __exit__(self, *failure: object) -> None:
        self._count -= 1
        if not self._count:
            self._idle.set()

    async def over(self) -> None:
        """Wait until nothing is under way."""
        await self._idle.wait()


async def pause(seconds: float, stopping: asyncio.Event) -> bool:
    """Wait, but no longer than until ``stopping`` is set; whether it is."""
    try:
        await asyncio.wait_for(stopping.wait(), seconds)
    except TimeoutError:
        pass
    return stopping.is_set()


class Handover:
    """Hands messages on to the gateway, those of one conversation in order, and again until it has stored them.

    Args:
        deliver: the gateway's.
        stopping: set when the channel stops: then what could not be stored is left to the platform.
        trouble: told in words what goes wrong, and ``""`` when it is over.
    """

    def __init__(self, deliver: Deliver, stopping: asyncio.Event, trouble: Callable[[str], None]) -> None:
        self._deliver, self._stopping, self._trouble = deliver, stopping, trouble

    async def take(self, messages: Iterable[InboundMessage]) -> bool:
        """Hand all of them on; different conversations do not wait for one another. False: stopped before the end."""
        lanes: dict[tuple[str, str], list[InboundMessage]] = {}
        for message in messages:
            lanes.setdefault((message.chat_id, message.thread_id), []).append(message)
        return all(await asyncio.gather(*map(self._in_order, lanes.values())))

    async def _in_order(self, messages: list[InboundMessage]) -> bool:
        for message in messages:
            if not await self._hand_on(message):
                return False
        return True

    async def _hand_on(self, message: InboundMessage) -> bool:
        waits, failed = Waits(), False
        while True:
            try:
                await self._deliver(message)
            except Exception as error:  # noqa: BLE001 - whatever it is, the message must not be lost
                failed = True
                log.warning("a message from %s could not be stored, trying again: %s", message.chat_id, describe(error))
                self._trouble(f"messages cannot be stored: {describe(error)}")
            else:
                if failed:
                    self._trouble("")
                return True
            if await pause(waits.next(), self._stopping):
                return False


async def unless_stopped(awaitable: Awaitable[T], stopping: asyncio.Event) -> T | None:
    """What is awaited, or ``None`` if ``stopping`` is set before it is there: then it is cancelled."""
    task, stop = asyncio.ensure_future(awaitable), asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        return await task if task.done() else None
    finally:
        for one in (task, stop):
            one.cancel()
        await asyncio.gather(task, stop, return_exceptions=True)


class Delivery:
    """Hands messages to the gateway while it takes any; closing it waits for those on their way."""

    def __init__(self) -> None:
        self._deliver: Deliver | None = None
        self._busy = Busy()

    @property
    def is_open(self) -> bool:
        """Whether messages are taken."""
        return self._deliver is not None

    def open(self, deliver: Deliver) -> None:
        """Take messages from now on."""
        self._deliver = deliver

    async def close(self) -> None:
        """Take no more, and wait for those on their way."""
        self._deliver = None
        await self._busy.over()

    async def __call__(self, message: InboundMessage) -> bool:
        """Hand a message over; false if the gateway knew it already.

        Raises:
            ChannelError: none are taken now.
        """
        deliver = self._deliver
        if deliver is None:
            raise ChannelError("no messages are taken at the moment: try again soon", retry_after=2.0)
        with self._busy:
            return await deliver(message)
