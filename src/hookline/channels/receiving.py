"""Helpers for channels that receive messages: retries, backoff, and delivery to the gateway."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from .._base.tasks import wait_at_most
from .._base.text import describe
from ..stores.messages import InboundMessage
from .protocol import ChannelError, Deliver

log = logging.getLogger("hookline")

T = TypeVar("T")

MIN_DELAY, MAX_DELAY = 0.2, 30.0


class Backoff:
    """Delays between attempts, in seconds: each is about twice as long as the one before, up to a limit."""

    def __init__(self, first: float = MIN_DELAY, longest: float = MAX_DELAY) -> None:
        self._first = first
        self._longest = longest
        self._next = first

    def reset(self) -> None:
        """Start again with the first delay, after a success."""
        self._next = self._first

    def next(self) -> float:
        """Return the delay before the next attempt."""
        delay, self._next = self._next, min(self._next * 2, self._longest)
        return delay * random.uniform(0.75, 1.25)


class InFlight:
    """Count operations in progress with ``with in_flight: ...``, and wait until there are none."""

    def __init__(self) -> None:
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def __enter__(self) -> None:
        self._count += 1
        self._idle.clear()

    def __exit__(self, *failure: object) -> None:
        self._count -= 1
        if not self._count:
            self._idle.set()

    async def wait_until_idle(self) -> None:
        """Wait until no operation is in progress."""
        await self._idle.wait()


async def await_unless_stopped(awaitable: Awaitable[T], stopping: asyncio.Event) -> T | None:
    """Await something. If ``stopping`` is set first, cancel it and return ``None``."""
    task, stop = asyncio.ensure_future(awaitable), asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        return await task if task.done() else None
    finally:
        for each in (task, stop):
            each.cancel()
        await asyncio.gather(task, stop, return_exceptions=True)


class DeliveryGate:
    """Deliver messages to the gateway while the channel is started. Closing waits for deliveries in progress."""

    def __init__(self) -> None:
        self._deliver: Deliver | None = None
        self._in_flight = InFlight()

    @property
    def is_open(self) -> bool:
        """Whether messages are accepted."""
        return self._deliver is not None

    def open(self, deliver: Deliver) -> None:
        """Accept messages from now on."""
        self._deliver = deliver

    async def close(self) -> None:
        """Accept no more messages, and wait for deliveries in progress."""
        self._deliver = None
        await self._in_flight.wait_until_idle()

    async def __call__(self, message: InboundMessage) -> bool:
        """Deliver a message. Return false if the gateway already has it.

        Raises:
            ChannelError: messages are not accepted at the moment.
        """
        deliver = self._deliver
        if deliver is None:
            raise ChannelError("the channel accepts no messages at the moment: try again soon", retry_after=2.0)
        with self._in_flight:
            return await deliver(message)


class RetryingDelivery:
    """Deliver messages to the gateway, in order per conversation, and retry until they are stored.

    Args:
        deliver: the function of the gateway.
        stopping: set when the channel stops. Then messages that could not be stored are left to the platform.
        report: called with a description of each problem, and with ``""`` when it is solved.
    """

    def __init__(self, deliver: Deliver, stopping: asyncio.Event, report: Callable[[str], None]) -> None:
        self._deliver = deliver
        self._stopping = stopping
        self._report = report

    async def deliver_all(self, messages: Iterable[InboundMessage]) -> bool:
        """Deliver messages, several conversations concurrently. Return false if the channel stopped before the end."""
        by_conversation: dict[tuple[str, str], list[InboundMessage]] = {}
        for message in messages:
            by_conversation.setdefault((message.chat_id, message.thread_id), []).append(message)
        return all(await asyncio.gather(*map(self._deliver_in_order, by_conversation.values())))

    async def _deliver_in_order(self, messages: list[InboundMessage]) -> bool:
        for message in messages:
            if not await self._deliver_one(message):
                return False
        return True

    async def _deliver_one(self, message: InboundMessage) -> bool:
        backoff, failed = Backoff(), False
        while True:
            try:
                await self._deliver(message)
            except Exception as error:  # noqa: BLE001 - no error may lose the message
                failed = True
                log.warning("a message from %s could not be stored, trying again: %s", message.chat_id, describe(error))
                self._report(f"messages cannot be stored: {describe(error)}")
            else:
                if failed:
                    self._report("")
                return True
            if await wait_at_most(self._stopping, backoff.next()):
                return False
