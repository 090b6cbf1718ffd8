"""A channel in memory: for tests, and for programs that are their own platform."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from ..stores.messages import InboundMessage, OutboundMessage
from .protocol import Address, Capabilities, ChannelError, Deliver, Health


class Sent(msgspec.Struct, frozen=True):
    """A message that was sent: where to, what, and with which key."""

    address: Address
    message: OutboundMessage
    key: str
    id: str


class MemoryChannel:
    """Takes messages by a call, and keeps what is sent.

    ``sent`` is what was sent, ``edited`` what was changed, ``typed`` where typing was shown. What is put into
    ``failures`` is raised by the next sends, one by one.

    Args:
        name: of the channel.
        capabilities: what it is to be able to do.
    """

    def __init__(self, name: str = "memory", *, capabilities: Capabilities | None = None) -> None:
        self.name, self.capabilities = name, capabilities or Capabilities()
        self.sent: list[Sent] = []
        self.edited: list[tuple[str, str]] = []
        self.typed: list[Address] = []
        self.failures: deque[BaseException] = deque()
        self.working = True
        self._deliver: Deliver | None = None
        self._said = 0
        self._news = asyncio.Condition()

    async def say(
        self, text: str, *, chat: str = "chat", sender: str = "somebody", message_id: str = "", **fields: Any
    ) -> bool:
        """Let somebody say something; false if the message is known. ``fields`` are those of ``InboundMessage``.

        Raises:
            ChannelError: no gateway takes messages.
        """
        if self._deliver is None:
            raise ChannelError(f"the channel {self.name!r} is not started")
        self._said += 1
        message_id = message_id or f"{id(self):x}-{self._said}"
        return await self._deliver(InboundMessage(text, self.name, chat, sender, message_id, **fields))

    def texts(self, chat: str = "chat") -> Sequence[str]:
        """What was sent to a chat."""
        return [each.message.text for each in self.sent if each.address.chat_id == chat]

    async def replies(self, count: int, chat: str = "chat") -> Sequence[str]:
        """What was sent to a chat, once that are so many messages."""
        async with self._news:
            await self._news.wait_for(lambda: len(self.texts(chat)) >= count)
        return self.texts(chat)

    async def start(self, deliver: Deliver) -> None:
        """Take messages from now on."""
        self._deliver = deliver

    async def stop(self) -> None:
        """Take no more."""
        self._deliver = None

    async def send(self, address: Address, message: OutboundMessage, *, key: str) -> str:
        """Keep the message."""
        if self.failures:
            raise self.failures.popleft()
        if self.capabilities.idempotent and (known := [each for each in self.sent if each.key == key]):
            return known[0].id
        async with self._news:
            self.sent.append(Sent(address, message, key, str(len(self.sent) + 1)))
            self._news.notify_all()
        return self.sent[-1].id

    async def edit(self, address: Address, message_id: str, message: OutboundMessage) -> None:
        """Keep the change."""
        self.edited.append((message_id, message.text))

    async def typing(self, address: Address) -> None:
        """Note that typing is shown."""
        self.typed.append(address)

    def health(self) -> Health:
        """As ``working`` says."""
        return Health(self.working, "" if self.working else "switched off")
