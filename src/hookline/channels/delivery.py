"""The way of messages into the gateway, which is open between start and stop."""

from __future__ import annotations

from ..stores.messages import InboundMessage
from .fetching import Busy
from .protocol import ChannelError, Deliver


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
