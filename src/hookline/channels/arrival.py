"""From a channel into the mailbox: each message once, of those who may talk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from ..stores.mailbox import Mailbox, PendingItems
from ..stores.messages import InboundMessage, OutboundMessage
from .access import Access
from .lanes import key_of
from .postman import Tally
from .protocol import Address, ChannelError

log = logging.getLogger("hookline")


class Arrival:
    """Takes in what channels deliver.

    Args:
        mailbox: where messages are kept.
        access: who may talk, by the name of the channel; everybody where there is none.
        tally: counts them.
        take_up: gets what is to be done for a message that was kept.
    """

    def __init__(
        self, mailbox: Mailbox, access: Mapping[str, Access], tally: Tally, take_up: Callable[[PendingItems], None]
    ) -> None:
        self._mailbox, self._access, self._tally, self._take_up = mailbox, access, tally, take_up
        self._tasks: set[asyncio.Task[bool]] = set()

    async def deliver(self, name: str, message: InboundMessage) -> bool:
        """What channels call: see ``Deliver``. What is kept is answered, also if the channel stops waiting for that."""
        task = asyncio.create_task(self._take(name, message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def _take(self, name: str, message: InboundMessage) -> bool:
        if not message.message_id:
            raise ChannelError(
                f"the channel {name!r} gave a message without a message_id: it cannot be told from others"
            )
        message = message if message.platform else message.replace(platform=name)
        address = Address(name, message.chat_id, message.thread_id, message.bot)
        key, access = key_of(address), self._access.get(name)
        if access is not None:
            verdict = await access.judge(name, message, self._mailbox)
            if not verdict.admitted:
                self._tally.refused += 1
                log.info("%s: a message of %r is not let in: %s", name, message.sender, verdict.why)
                if verdict.reply:
                    reply = OutboundMessage(verdict.reply, message.message_id, message.thread_id)
                    self._take_up(await self._mailbox.accept(key, name, message, done=True, replies=[reply]))
                return True
        taken = await self._mailbox.accept(key, name, message)
        if not taken.is_new:
            self._tally.duplicates += 1
            log.info("%s: the message %r is known already", name, message.message_id)
            return False
        self._tally.received += 1
        self._take_up(taken)
        return True
