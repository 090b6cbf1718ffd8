"""Accept messages from channels into the mailbox, carry out commands, and queue runs for the other messages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress

from .._base.text import closest_match, error_text
from .._kernel.errors import HookError
from .._run.session import Session
from ..stores.channel_points import INBOUND_CLAIM, MESSAGE_RECEIVED, Inbound
from ..stores.errors import StoreError
from ..stores.mailbox import InboxItem, LeaseLostError, Mailbox, PendingItems
from ..stores.messages import InboundMessage, OutboundMessage
from . import notices
from .access import Access
from .approvals import Approvals
from .conversations import Conversations, key_of, label_of
from .options import GatewayOptions
from .outbox import Counters, Outbox
from .protocol import Address, Answerer, Channel, ChannelError, Command
from .queues import ConversationQueues
from .runner import CommandCall, Runner, text_of

log = logging.getLogger("hookline")

BUILT_IN_COMMANDS = {
    "stop": "cancel the current run; /stop all also drops the waiting messages",
    "new": "start a new conversation, without the history",
    "help": "list these commands",
}

MAX_ECHO = 60
"""Maximum number of characters of an unknown command that the reply repeats."""


class Inbox:
    """Receive the messages of all channels.

    Args:
        answerer: provides further slash commands.
        channels: the channels by name.
        access: the access rules by channel name. Channels without rules accept everyone.
        mailbox: stores the messages.
        conversations: the sessions.
        outbox: sends replies to commands.
        runner: runs the agent.
        approvals: handles decisions about calls.
        options: of the gateway.
        counters: counts messages.
    """

    def __init__(
        self,
        answerer: Answerer,
        channels: Mapping[str, Channel],
        access: Mapping[str, Access],
        mailbox: Mailbox,
        conversations: Conversations,
        outbox: Outbox,
        runner: Runner,
        approvals: Approvals,
        options: GatewayOptions,
        counters: Counters,
    ) -> None:
        self._commands: Mapping[str, Command] = getattr(answerer, "commands", None) or {}
        self._channels = channels
        self._access = access
        self._mailbox = mailbox
        self._conversations = conversations
        self._outbox = outbox
        self._runner = runner
        self._approvals = approvals
        self._options = options
        self._counters = counters
        self._closed = False
        self._accepting: set[asyncio.Task[bool]] = set()
        self.queues: ConversationQueues[InboxItem] = ConversationQueues(self._process)

    async def deliver(self, channel: str, message: InboundMessage) -> bool:
        """Accept a message from a channel, as described at ``Deliver``.

        The message is processed even if the channel stops waiting for this call.
        """
        task = asyncio.create_task(self._accept(channel, message))
        self._accepting.add(task)
        task.add_done_callback(self._accepting.discard)
        return await asyncio.shield(task)

    def enqueue(self, pending: PendingItems) -> None:
        """Process stored messages and send stored replies. After :meth:`close` they stay in the mailbox."""
        for key in pending.claimed:
            self._conversations.forget(key)  # another process may have continued it
        if self._closed:
            return
        for item in pending.inbox:
            if item.channel in self._channels:
                self.queues.put(item.key, item)
        self._outbox.enqueue(pending.outbox)

    def close(self) -> None:
        """Process no more messages. They are still stored, for the next start."""
        self._closed = True
        self.queues.pause()

    async def _accept(self, channel: str, message: InboundMessage) -> bool:
        if not message.message_id:
            raise ChannelError(
                f"the channel {channel!r} delivered a message without a message_id: duplicates cannot be detected"
            )
        message = message if message.platform else message.replace(platform=channel)
        key = key_of(Address(channel, message.chat_id, message.thread_id, message.bot))
        access = self._access.get(channel)
        if access is not None:
            if await self._is_reply_in_thread(channel, key, message):
                message = message.replace(mentioned=True)
            decision = await access.check(channel, message, self._mailbox)
            if not decision.allowed:
                self._counters.refused += 1
                log.info("%s: a message from %r is not accepted: %s", channel, message.sender, decision.reason)
                answer = decision.reply or (notices.MAY_NOT_APPROVE if message.digest else "")
                if answer:
                    reply = OutboundMessage(answer, message.message_id, message.thread_id)
                    self.enqueue(await self._mailbox.accept(key, channel, message, done=True, replies=[reply]))
                return True
        accepted = await self._mailbox.accept(key, channel, message)
        if not accepted.is_new:
            self._counters.duplicates += 1
            log.info("%s: the message %r was delivered before", channel, message.message_id)
            return False
        self._counters.received += 1
        self.enqueue(accepted)
        return True

    async def _is_reply_in_thread(self, channel: str, key: str, message: InboundMessage) -> bool:
        """Whether a message without a mention replies in a thread that the agent has a conversation in."""
        if message.mentioned or message.direct or message.thread_id in ("", message.message_id):
            return False
        return self._channels[channel].capabilities.threads and await self._conversations.exists(key)

    async def _process(self, key: str, item: InboxItem) -> None:
        try:
            await self._apply_hooks(key, item)
        except Exception:
            log.exception("a message from %s could not be processed", label_of(key))
            await self._reply(item, notices.NOT_HANDLED)

    async def _apply_hooks(self, key: str, item: InboxItem) -> None:
        try:
            session = await self._conversations.session(key, item.message.platform)
        except StoreError as error:
            log.error("%s: %s", label_of(key), error_text(error))
            await self._reply(item, notices.FAILED)
            return
        payload = Inbound(item.message, session.id, item.channel)
        try:
            await self._conversations.fire(session, MESSAGE_RECEIVED, payload)
            verdict = await self._conversations.fire(session, INBOUND_CLAIM, payload)
        except HookError as error:
            log.error("a message from %s is not processed: %s", label_of(key), error_text(error))
            await self._reply(item, notices.NOT_HANDLED)
            return
        if verdict.handled:
            log.info("%s claimed a message from %s (%s)", verdict.hook, label_of(key), verdict.reason)
            value = verdict.value or {}
            reply = value.get("reply") or value.get("text") or ""
            await self._reply(item, *([str(reply)] if reply else []))
            return
        await self._handle(item)

    async def _handle(self, item: InboxItem) -> None:
        text = text_of(item.message)
        if text == item.message.text and text.startswith("/") and text[1:2].isalnum():
            await self._run_command(item, text)
            return
        if not text.strip():
            await self._reply(item)
            return
        if decision := await self._approvals.plain_decision(item, text):
            await self._reply(item, decision)
            return
        if self._options.when_busy == "steer" and await self._runner.steer(item, text):
            return
        if not item.recovered and self._runner.is_full(item.key):
            keep = self._options.when_full == "queue"
            notice = self._options.busy_reply or (notices.BUSY_QUEUED if keep else notices.BUSY)
            if not keep:
                self._counters.refused += 1
                await self._reply(item, notice)
                return
            await self._notify(item, notice)
        self._runner.put(item, text)

    async def _run_command(self, item: InboxItem, text: str) -> None:
        name, argument = [*text[1:].split(None, 1), ""][:2]
        name, argument = name.lower(), argument.strip()
        if name == "stop":
            await self._runner.stop_run(item, all=argument.lower() == "all")
        elif name == "help":
            await self._reply(item, self._help())
        elif name in self._approvals.commands:
            await self._reply(item, await self._approvals.run_command(item, name, argument))
        elif name == "new":
            await self._queue_command(item, self._start_new_session)
        elif name in self._commands:
            command = self._commands[name]
            if not argument and getattr(command, "read_only", False):
                session = await self._conversations.session(item.key, item.message.platform)
                await self._reply(item, await command.call(session, ""))
                return

            async def call(session: Session) -> str:
                reply = await command.call(session, argument)
                await self._conversations.save(session)
                return reply

            await self._queue_command(item, call)
        else:
            await self._reply(item, self._unknown_command(name))

    async def _queue_command(self, item: InboxItem, call: CommandCall) -> None:
        """Run a command after the messages before it, and say so if there are any."""
        if self._runner.has_runs(item.key) and not item.recovered:
            await self._notify(item, notices.LATER)
        self._runner.put(item, call)

    async def _start_new_session(self, session: Session) -> str:
        await self._conversations.start_new_session(session.key)
        return notices.NEW

    def _help(self) -> str:
        own = {name: command.help for name, command in self._commands.items()}
        texts = {**BUILT_IN_COMMANDS, **self._approvals.commands, **own}
        return "\n".join(f"/{name}: {text}" for name, text in texts.items())

    def _unknown_command(self, name: str) -> str:
        name = name if len(name) <= MAX_ECHO else f"{name[:MAX_ECHO]}…"
        match = closest_match(name, [*BUILT_IN_COMMANDS, *self._approvals.commands, *self._commands])
        hint = f" Did you mean /{match}?" if match else ""
        return f"There is no command /{name}.{hint} /help lists all commands. To send it as a message, write //{name}."

    async def _reply(self, item: InboxItem, *texts: str) -> None:
        """Mark a message as done, with these replies."""
        with suppress(LeaseLostError):
            await self._outbox.reply(item.key, item.channel, [item], texts)

    async def _notify(self, item: InboxItem, text: str) -> None:
        """Send a text to the conversation of a message that is not done yet."""
        with suppress(LeaseLostError):
            await self._outbox.reply(item.key, item.channel, [], [text])
