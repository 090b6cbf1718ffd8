"""The way out: from a reply to messages that left."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from .._base.text import describe, error_text, is_number
from .._kernel.errors import HookError
from .._run.session import Session
from ..stores.errors import StoreError
from ..stores.mailbox import InboxItem, LeaseLostError, Mailbox, OutboxItem
from ..stores.messages import OutboundMessage
from .conversations import Conversations, address_of, place
from .options import GatewayOptions
from .points import BEFORE_DISPATCH, MESSAGE_SENDING, MESSAGE_SENT, Outbound
from .protocol import Channel, ChannelError, UndeliverableError
from .queues import Lanes
from .splitting import split

log = logging.getLogger("hookline")

T = TypeVar("T")

MAX_PAUSE = 60.0
"""The longest pause between two tries to send, unless the platform wants a longer one."""


class Tally:
    """What a gateway has done since it started."""

    def __init__(self) -> None:
        self.received = self.duplicates = self.refused = self.sent = self.failed = self.retried = 0


async def insist(act: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Do something with the mailbox, again and again while its file cannot be used: nothing may get lost."""
    pause = 0.1
    while True:
        try:
            return await act(*args)
        except LeaseLostError:
            raise
        except StoreError as error:
            log.error("trying again in %.1f s: %s", pause, error_text(error))
        await asyncio.sleep(pause)
        pause = min(pause * 2, 10.0)


class Postman:
    """Puts replies to the hooks, keeps them, and sends them, those of a conversation in order."""

    def __init__(
        self, mailbox: Mailbox, conversations: Conversations, channels: Mapping[str, Channel],
        options: GatewayOptions, tally: Tally,
    ) -> None:  # fmt: skip
        self._mailbox, self._conversations, self._channels = mailbox, conversations, channels
        self._options, self._tally = options, tally
        self.lanes: Lanes[OutboxItem] = Lanes(self._send)
        self._resting: set[str] = set()
        self._fates: dict[str, bool | None] = {}

    async def judge(self, key: str, message: OutboundMessage) -> OutboundMessage | None:
        """The message as the hooks let it leave; ``None`` if they do not."""
        session, chat, platform = await self._about(key)
        try:
            payload = Outbound(chat, message, platform)
            verdict = await self._conversations.fire(session, MESSAGE_SENDING, payload)
            message = getattr(verdict.value, "message", None) or message
            verdict = await self._conversations.fire(session, BEFORE_DISPATCH, payload.replace(message=message))
        except HookError as error:
            self._tally.failed += 1
            log.error("a message to %s is not sent: %s", place(key), error_text(error))
            return None
        if verdict.handled:
            log.info("a message to %s is not sent: %s claimed it (%s)", place(key), verdict.hook, verdict.reason)
            return None
        return message

    async def reply(
        self, key: str, channel: str, letters: Sequence[InboxItem], texts: Iterable[str | OutboundMessage]
    ) -> Sequence[OutboxItem]:
        """Answer letters, with texts or with messages that say who speaks: what the hooks let pass is kept, then sent.

        Returns:
            what is to be sent; :meth:`arrived` says what became of it.

        Raises:
            LeaseLostError: the conversation is another program's now.
        """
        to = letters[-1].message if letters else None
        replies: list[OutboundMessage] = []
        for said in texts:
            message = OutboundMessage(said) if isinstance(said, str) else said
            judged = await self.judge(
                key, message.replace(reply_to=to.message_id if to else "", thread_id=address_of(key).thread_id)
            )
            if judged is not None:
                replies += self._parts(channel, judged)
        parcels = await insist(self._mailbox.complete, key, channel, letters, replies)
        self.take(parcels)
        return parcels

    def watch(self, parcels: Iterable[OutboxItem]) -> None:
        """Remember of these what becomes of them."""
        self._fates.update((parcel.token, None) for parcel in parcels)

    def forget(self, parcels: Iterable[OutboxItem]) -> None:
        """Remember it no longer."""
        for parcel in parcels:
            self._fates.pop(parcel.token, None)

    async def arrived(self, parcels: Sequence[OutboxItem], seconds: float) -> bool:
        """Whether all of these, which are watched, have left, or do so within some seconds."""
        until = time.monotonic() + seconds
        while not all(fates := [self._fates.get(parcel.token) for parcel in parcels]):
            if False in fates or time.monotonic() > until:
                return False
            await asyncio.sleep(0.02)
        return True

    def take(self, parcels: Iterable[OutboxItem]) -> None:
        """Send what is in the mailbox; what is for a channel that is not there stays."""
        for parcel in parcels:
            if parcel.channel in self._channels:
                self.lanes.put(parcel.key, parcel)

    async def let_go(self, keys: Sequence[str], seconds: float) -> None:
        """Send no more in these conversations; a send that is under way may take so many seconds."""
        await self.lanes.let_go(self._resting.intersection(keys), 0)
        await self.lanes.let_go(keys, seconds)

    async def _rest(self, key: str, seconds: float) -> None:
        self._resting.add(key)
        try:
            await asyncio.sleep(seconds)
        finally:
            self._resting.discard(key)

    def _parts(self, channel: str, message: OutboundMessage) -> list[OutboundMessage]:
        there = self._channels.get(channel)
        if there is None:
            return [message]
        parts = split(message.text, there.capabilities.max_length, there.capabilities.length)
        return [message.replace(text=part, reply_to="" if i else message.reply_to) for i, part in enumerate(parts)]

    async def _send(self, key: str, parcel: OutboxItem) -> None:
        try:
            await self._keep_sending(key, parcel)
        except LeaseLostError as error:
            log.warning("%s", error_text(error))

    async def _keep_sending(self, key: str, parcel: OutboxItem) -> None:
        """Send one parcel, however often it takes."""
        channel, tries = self._channels.get(parcel.channel), parcel.tries
        if channel is None:
            return  # it stays in the mailbox
        if parcel.in_doubt and not channel.capabilities.idempotent:
            log.warning("a message to %s may arrive twice: its program ended while it was being sent", place(key))
        if parcel.due > time.time() >= parcel.at:  # else the clock was set back, and nobody knows when that is
            await self._rest(key, parcel.due - time.time())
        while True:
            tries += 1
            try:
                await insist(self._mailbox.mark_sending, parcel)
                async with asyncio.timeout(self._options.send_timeout):
                    message_id = await channel.send(address_of(key), parcel.message, key=parcel.token)
            except LeaseLostError:
                raise
            except UndeliverableError as error:
                await self._give_up(parcel, error_text(error))
                return
            except TimeoutError:
                pause, problem = self._pause(tries), f"no answer for {self._options.send_timeout:g} s"
                if not channel.capabilities.idempotent:
                    problem += ": it may have arrived, and may arrive twice"
            except ChannelError as error:
                pause, problem = self._pause(tries, error.retry_after), error_text(error)
            except Exception as error:  # noqa: BLE001 - a channel's own mistake may not lose a message
                pause, problem = self._pause(tries), describe(error)
            else:
                await insist(self._mailbox.mark_sent, parcel, str(message_id or ""))
                self._tally.sent += 1
                self._told(parcel, True)
                await self._tell(parcel, str(message_id or ""))
                return
            if time.time() + pause > parcel.at + self._options.give_up * 3600:
                await self._give_up(parcel, problem)
                return
            self._tally.retried += 1
            log.warning("%s: try %d failed, the next is in %.1f s: %s", place(key), tries, pause, problem)
            await insist(self._mailbox.postpone, parcel, time.time() + pause, problem)
            await self._rest(key, pause)

    def _told(self, parcel: OutboxItem, arrived: bool) -> None:
        if parcel.token in self._fates:
            self._fates[parcel.token] = arrived

    async def _give_up(self, parcel: OutboxItem, problem: str) -> None:
        self._tally.failed += 1
        self._told(parcel, False)
        log.error("a message to %s will never arrive: %s", place(parcel.key), problem)
        await insist(self._mailbox.mark_failed, parcel, problem)

    async def _tell(self, parcel: OutboxItem, message_id: str) -> None:
        if parcel.notice:
            return
        session, chat, platform = await self._about(parcel.key)
        try:
            payload = Outbound(chat, parcel.message, platform, message_id)
            await self._conversations.fire(session, MESSAGE_SENT, payload)
        except HookError as error:
            log.error("after a message was sent to %s: %s", place(parcel.key), error_text(error))

    async def _about(self, key: str) -> tuple[Session | None, str, str]:
        address = address_of(key)
        try:
            session = await self._conversations.session(key)
            return session, address.chat_id, session.platform
        except Exception as error:  # noqa: BLE001 - a message may not get stuck: here, all hooks take part
            log.warning("the hooks of %s cannot be told apart: %s", place(key), describe(error))
            return None, address.chat_id, address.channel

    @staticmethod
    def _pause(tries: int, wanted: Any = None) -> float:
        """Seconds until the next try: as the platform wants, but not so few that it is asked all the time."""
        grown = 2.0 ** min(tries, 10)
        if is_number(wanted):
            return max(float(wanted), min(1.0, 0.01 * grown))
        return min(MAX_PAUSE, 0.5 * grown) * random.uniform(0.5, 1.0)
