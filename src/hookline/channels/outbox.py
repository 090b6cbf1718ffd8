"""Store replies in the mailbox and send them, in order per conversation, until the platform has accepted them."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, TypeVar

from .._base.text import describe, error_text, is_number
from .._kernel.errors import HookError
from .._run.session import Session
from ..stores.channel_points import BEFORE_DISPATCH, MESSAGE_SENDING, MESSAGE_SENT, Outbound
from ..stores.errors import StoreError
from ..stores.mailbox import InboxItem, LeaseLostError, Mailbox, OutboxItem
from ..stores.messages import OutboundMessage
from .conversations import Conversations, address_of, label_of
from .options import GatewayOptions
from .protocol import Channel, ChannelError, UndeliverableError
from .queues import ConversationQueues
from .splitting import split

log = logging.getLogger("hookline")

T = TypeVar("T")

MAX_DELAY = 60.0
"""Longest delay between two attempts to send, in seconds, unless the platform asks for a longer one."""


class Counters:
    """Counts of the work of a gateway since it started."""

    def __init__(self) -> None:
        self.received = 0
        self.duplicates = 0
        self.refused = 0
        self.sent = 0
        self.failed = 0
        self.retried = 0


async def retry_store(operation: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Repeat a mailbox or session operation until the file can be used, so that no message is lost.

    Raises:
        LeaseLostError: another process has claimed the conversation.
    """
    delay = 0.1
    while True:
        try:
            return await operation(*args)
        except LeaseLostError:
            raise
        except StoreError as error:
            log.error("trying again in %.1f s: %s", delay, error_text(error))
        await asyncio.sleep(delay)
        delay = min(delay * 2, 10.0)


class Outbox:
    """Pass replies through the hooks, store them, and send them."""

    def __init__(
        self,
        mailbox: Mailbox,
        conversations: Conversations,
        channels: Mapping[str, Channel],
        options: GatewayOptions,
        counters: Counters,
    ) -> None:
        self._mailbox = mailbox
        self._conversations = conversations
        self._channels = channels
        self._options = options
        self._counters = counters
        self.queues: ConversationQueues[OutboxItem] = ConversationQueues(self._process)
        self._delayed: set[str] = set()
        self._tracked: dict[str, bool | None] = {}

    async def apply_hooks(self, key: str, message: OutboundMessage) -> OutboundMessage | None:
        """Return the message as the hooks changed it, or ``None`` if a hook suppressed it or failed closed."""
        session, chat, platform = await self._context(key)
        try:
            payload = Outbound(chat, message, platform, channel=address_of(key).channel)
            verdict = await self._conversations.fire(session, MESSAGE_SENDING, payload)
            message = getattr(verdict.value, "message", None) or message
            verdict = await self._conversations.fire(session, BEFORE_DISPATCH, payload.replace(message=message))
        except HookError as error:
            self._counters.failed += 1
            log.error("a message to %s is not sent: %s", label_of(key), error_text(error))
            return None
        if verdict.handled:
            log.info("a message to %s is not sent: %s claimed it (%s)", label_of(key), verdict.hook, verdict.reason)
            return None
        return message

    async def reply(
        self,
        key: str,
        channel: str,
        answered: Sequence[InboxItem],
        replies: Iterable[str | OutboundMessage],
        *,
        token: str = "",
    ) -> Sequence[OutboxItem]:
        """Store replies and mark the messages they answer as done, in one transaction; then send the replies.

        Args:
            key: the conversation.
            channel: the name of its channel.
            answered: the messages that are done.
            replies: texts, or messages that name their speaker. Each passes the hooks first.
            token: identifies the replies, so that they are sent only once, also by another process.

        Returns:
            the stored replies; :meth:`wait_until_sent` waits for them.

        Raises:
            LeaseLostError: another process has claimed the conversation.
        """
        reply_to = answered[-1].message.message_id if answered else ""
        accepted: list[OutboundMessage] = []
        for reply in replies:
            message = OutboundMessage(reply) if isinstance(reply, str) else reply
            message = message.replace(reply_to=reply_to, thread_id=address_of(key).thread_id)
            if (allowed := await self.apply_hooks(key, message)) is not None:
                accepted += self._parts(channel, allowed)
        tokens = [sha256(f"{token} {i}".encode()).hexdigest()[:32] for i in range(len(accepted))] if token else []
        for each in tokens:  # another task may be sending it already
            self._tracked.setdefault(each, None)
        store = partial(self._mailbox.complete, tokens=tokens)
        items = await retry_store(store, key, channel, answered, accepted)
        self.enqueue(item for item in items if not item.state)
        return items

    def enqueue(self, items: Iterable[OutboxItem]) -> None:
        """Send stored messages. Messages of a channel that the gateway does not have stay in the mailbox."""
        for item in items:
            if item.channel in self._channels:
                self.queues.put(item.key, item)

    def track(self, items: Iterable[OutboxItem]) -> None:
        """Record the outcome of these messages for :meth:`wait_until_sent`."""
        outcomes = {"sent": True, "failed": False}
        for item in items:
            self._tracked[item.token] = outcomes.get(item.state, self._tracked.get(item.token))

    def untrack(self, items: Iterable[OutboxItem]) -> None:
        """Stop recording the outcome of these messages."""
        for item in items:
            self._tracked.pop(item.token, None)

    async def wait_until_sent(self, items: Sequence[OutboxItem], timeout: float) -> bool:
        """Wait until these tracked messages are sent. Return false if one failed or the timeout expired."""
        deadline = time.monotonic() + timeout
        while not all(outcomes := [self._tracked.get(item.token) for item in items]):
            if False in outcomes or time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.02)
        return True

    async def cancel(self, keys: Sequence[str], timeout: float) -> None:
        """Send no more in these conversations. A send in progress gets ``timeout`` seconds, a delayed retry none."""
        await self.queues.cancel(self._delayed.intersection(keys), 0)
        await self.queues.cancel(keys, timeout)

    def _parts(self, channel: str, message: OutboundMessage) -> list[OutboundMessage]:
        """Split a message by the length limit of its channel. Only the first part is a reply to a message."""
        target = self._channels.get(channel)
        if target is None:
            return [message]
        parts = split(message.text, target.capabilities.max_length, target.capabilities.length)
        return [message.replace(text=part, reply_to="" if i else message.reply_to) for i, part in enumerate(parts)]

    async def _process(self, key: str, item: OutboxItem) -> None:
        try:
            await self._send(key, item)
        except LeaseLostError as error:
            log.warning("%s", error_text(error))

    async def _send(self, key: str, item: OutboxItem) -> None:
        """Send one message, with as many attempts as needed."""
        channel = self._channels.get(item.channel)
        if channel is None:
            return  # the channel was removed: the message stays in the mailbox
        if item.in_doubt and not channel.capabilities.idempotent:
            log.warning("a message to %s may arrive twice: the process ended while sending it", label_of(key))
        # If the clock was set back since the message was stored, its due time means nothing.
        if item.due > time.time() >= item.at:
            await self._wait(key, item.due - time.time())
        tries = item.tries
        while True:
            tries += 1
            try:
                await retry_store(self._mailbox.mark_sending, item)
                async with asyncio.timeout(self._options.send_timeout):
                    message_id = await channel.send(address_of(key), item.message, key=item.token)
            except LeaseLostError:
                raise
            except UndeliverableError as error:
                await self._give_up(item, error_text(error))
                return
            except TimeoutError:
                delay = self._delay(tries)
                problem = f"no response within {self._options.send_timeout:g} s"
                if not channel.capabilities.idempotent:
                    problem += ": the message may have arrived, and may arrive twice"
            except ChannelError as error:
                delay, problem = self._delay(tries, error.retry_after), error_text(error)
            except Exception as error:  # noqa: BLE001 - a bug in a channel must not lose a message
                delay, problem = self._delay(tries), describe(error)
            else:
                await self._complete(item, str(message_id or ""))
                return
            if time.time() + delay > item.at + self._options.give_up * 3600:
                await self._give_up(item, problem)
                return
            self._counters.retried += 1
            log.warning("%s: attempt %d failed, the next is in %.1f s: %s", label_of(key), tries, delay, problem)
            await retry_store(self._mailbox.postpone, item, time.time() + delay, problem)
            await self._wait(key, delay)

    async def _wait(self, key: str, seconds: float) -> None:
        self._delayed.add(key)
        try:
            await asyncio.sleep(seconds)
        finally:
            self._delayed.discard(key)

    async def _complete(self, item: OutboxItem, message_id: str) -> None:
        await retry_store(self._mailbox.mark_sent, item, message_id)
        self._counters.sent += 1
        self._record(item, True)
        if item.notice:
            return
        session, chat, platform = await self._context(item.key)
        try:
            payload = Outbound(chat, item.message, platform, message_id, item.channel)
            await self._conversations.fire(session, MESSAGE_SENT, payload)
        except HookError as error:
            log.error("after a message was sent to %s: %s", label_of(item.key), error_text(error))

    async def _give_up(self, item: OutboxItem, problem: str) -> None:
        self._counters.failed += 1
        self._record(item, False)
        log.error("a message to %s cannot be delivered: %s", label_of(item.key), problem)
        await retry_store(self._mailbox.mark_failed, item, problem)

    def _record(self, item: OutboxItem, sent: bool) -> None:
        if item.token in self._tracked:
            self._tracked[item.token] = sent

    async def _context(self, key: str) -> tuple[Session | None, str, str]:
        """Return the session, chat and platform of a conversation. Without a session, all hooks see the message."""
        address = address_of(key)
        try:
            session = await self._conversations.session(key)
            return session, address.chat_id, session.platform
        except Exception as error:  # noqa: BLE001 - an unreadable session must not block the queue
            log.warning("%s: the session cannot be loaded, so all hooks are used: %s", label_of(key), describe(error))
            return None, address.chat_id, address.channel

    @staticmethod
    def _delay(tries: int, requested: Any = None) -> float:
        """Return seconds until the next attempt: exponential, or as the platform requests, but never a busy loop."""
        grown = 2.0 ** min(tries, 10)
        if is_number(requested):
            return max(float(requested), min(1.0, 0.01 * grown))
        return min(MAX_DELAY, 0.5 * grown) * random.uniform(0.5, 1.0)
