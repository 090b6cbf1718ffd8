"""A channel in memory, for tests and for programs that pass messages directly."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from ..stores.messages import InboundMessage, OutboundMessage
from .protocol import Address, Capabilities, ChannelError, Deliver, Health


class Sent(msgspec.Struct, frozen=True):
    """A message that was sent through a :class:`MemoryChannel`."""

    address: Address
    message: OutboundMessage
    key: str
    id: str


class MemoryChannel:
    """Receive messages through a method call, and keep the replies in a list.

    ``sent`` holds the sent messages, ``edited`` the edits, and ``typed`` the conversations in which typing was shown.
    The exceptions in ``failures`` are raised by the next sends, one by one.

    Example::

        await channel.say("Hello")
        assert await channel.replies(1) == ["Hi!"]

    Args:
        name: the name of the channel.
        capabilities: the features and limits to simulate.
    """

    def __init__(self, name: str = "memory", *, capabilities: Capabilities | None = None) -> None:
        self.name = name
        self.capabilities = capabilities or Capabilities()
        self.sent: list[Sent] = []
        self.edited: list[tuple[str, str]] = []
        self.typed: list[Address] = []
        self.failures: deque[BaseException] = deque()
        self.working = True
        self._deliver: Deliver | None = None
        self._received = 0
        self._prefix = uuid.uuid4().hex  # a mailbox on disk remembers the ids of earlier channels
        self._sent_changed = asyncio.Condition()

    async def say(
        self, text: str, *, chat: str = "chat", sender: str = "somebody", message_id: str = "", **fields: Any
    ) -> bool:
        """Deliver a message to the gateway. Return false if the gateway already has it.

        Args:
            text: the text of the message.
            chat: the chat in which it was written.
            sender: the sender of the message.
            message_id: its id; a new one if left out.
            fields: further fields of ``InboundMessage``.

        Raises:
            ChannelError: the channel is not started.
        """
        if self._deliver is None:
            raise ChannelError(f"the channel {self.name!r} is not started")
        self._received += 1
        message_id = message_id or f"{self._prefix}-{self._received}"
        return await self._deliver(InboundMessage(text, self.name, chat, sender, message_id, **fields))

    def texts(self, chat: str = "chat") -> Sequence[str]:
        """Return the texts that were sent to a chat."""
        return [each.message.text for each in self.sent if each.address.chat_id == chat]

    async def replies(self, count: int, chat: str = "chat") -> Sequence[str]:
        """Wait until at least ``count`` messages were sent to a chat, and return the texts of all of them."""
        async with self._sent_changed:
            await self._sent_changed.wait_for(lambda: len(self.texts(chat)) >= count)
        return self.texts(chat)

    async def start(self, deliver: Deliver) -> None:
        """Accept messages from now on."""
        self._deliver = deliver

    async def stop(self) -> None:
        """Accept no more messages."""
        self._deliver = None

    async def send(self, address: Address, message: OutboundMessage, *, key: str) -> str:
        """Append the message to ``sent``."""
        if self.failures:
            raise self.failures.popleft()
        if self.capabilities.idempotent and (known := [each for each in self.sent if each.key == key]):
            return known[0].id
        async with self._sent_changed:
            self.sent.append(Sent(address, message, key, str(len(self.sent) + 1)))
            self._sent_changed.notify_all()
        return self.sent[-1].id

    async def edit(self, address: Address, message_id: str, message: OutboundMessage) -> None:
        """Append the change to ``edited``."""
        self.edited.append((message_id, message.text))

    async def typing(self, address: Address) -> None:
        """Append the conversation to ``typed``."""
        self.typed.append(address)

    def health(self) -> Health:
        """Report healthy while ``working`` is true."""
        return Health(self.working, "" if self.working else "switched off")
