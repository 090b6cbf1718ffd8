"""The way in: from a message in the mailbox to its place in the queue."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress

from .._base.text import closest_match, error_text
from .._kernel.errors import HookError
from .._run.session import Session
from ..stores.errors import StoreError
from ..stores.mailbox import InboxItem, LeaseLostError, Mailbox, PendingItems
from ..stores.messages import InboundMessage, OutboundMessage
from . import notices
from .access import Access
from .approvals import Approving
from .conversations import Conversations, key_of, place
from .options import GatewayOptions
from .outbox import Postman, Tally
from .points import INBOUND_CLAIM, MESSAGE_RECEIVED, Inbound
from .protocol import Address, Answerer, ChannelError, Command
from .queues import Lanes
from .runner import Answering, Order

log = logging.getLogger("hookline")

OWN = {
    "stop": "cancel what is running; /stop all drops what waits, too",
    "new": "begin anew, with nothing remembered",
    "help": "these commands",
}


LONGEST_NAME = 60
"""Characters of an unknown command that are repeated to who gave it."""


class Reception:
    """Puts messages to the hooks, carries out commands, and hands on what the agent is to answer."""

    def __init__(
        self, answerer: Answerer, conversations: Conversations, postman: Postman, answering: Answering,
        approving: Approving, options: GatewayOptions, tally: Tally,
    ) -> None:  # fmt: skip
        self._commands: Mapping[str, Command] = getattr(answerer, "commands", None) or {}
        self._conversations, self._postman, self._answering = conversations, postman, answering
        self._approving, self._options, self._tally = approving, options, tally
        self.lanes: Lanes[InboxItem] = Lanes(self._take)

    async def _take(self, key: str, letter: InboxItem) -> None:
        try:
            await self._receive(key, letter)
        except Exception:
            log.exception("a message of %s is not handled", place(key))
            await self._tell(letter, notices.NOT_HANDLED)

    async def _receive(self, key: str, letter: InboxItem) -> None:
        try:
            session = await self._conversations.session(key, letter.message.platform)
        except StoreError as error:
            log.error("%s: %s", place(key), error_text(error))
            await self._tell(letter, notices.FAILED)
            return
        payload = Inbound(letter.message, session.id)
        try:
            await self._conversations.fire(session, MESSAGE_RECEIVED, payload)
            verdict = await self._conversations.fire(session, INBOUND_CLAIM, payload)
        except HookError as error:
            log.error("a message of %s is not handled: %s", place(key), error_text(error))
            await self._tell(letter, notices.NOT_HANDLED)
            return
        if verdict.handled:
            log.info("%s claimed a message of %s (%s)", verdict.hook, place(key), verdict.reason)
            answer = (verdict.value or {}).get("reply") or (verdict.value or {}).get("text") or ""
            await self._tell(letter, *([str(answer)] if answer else []))
            return
        await self._hand_on(letter)

    async def _hand_on(self, letter: InboxItem) -> None:
        text = letter.message.text
        if text.startswith("//"):
            text = text[1:]
        elif text.startswith("/") and text[1:2].isalnum():
            await self._command(letter, text)
            return
        if not text.strip():
            await self._tell(letter)
            return
        if decided := await self._approving.plain(letter, text):
            await self._tell(letter, decided)
            return
        if self._options.when_busy == "steer" and self._answering.steer(letter, text):
            return
        if not letter.recovered and self._answering.is_full(letter.key):
            keeps = self._options.when_full == "queue"
            notice = self._options.busy_reply or (notices.BUSY_QUEUED if keeps else notices.BUSY)
            if not keeps:
                self._tally.refused += 1
                await self._tell(letter, notice)
                return
            with suppress(LeaseLostError):
                await self._postman.reply(letter.key, letter.channel, [], [notice])
        self._answering.put(letter, text)

    async def _command(self, letter: InboxItem, text: str) -> None:
        name, argument = [*text[1:].split(None, 1), ""][:2]
        name, argument = name.lower(), argument.strip()
        if name == "stop":
            await self._answering.stop_run(letter, all=argument.lower() == "all")
        elif name == "help":
            await self._tell(letter, self._help())
        elif name in self._approving.commands:
            await self._tell(letter, await self._approving.obey(letter, name, argument))
        elif name == "new":
            await self._in_turn(letter, self._renew)
        elif name in self._commands:
            call = self._commands[name].call
            if not argument and getattr(self._commands[name], "looks", False):
                session = await self._conversations.session(letter.key, letter.message.platform)
                await self._tell(letter, await call(session, ""))
                return

            async def order(session: Session) -> str:
                answer = await call(session, argument)
                await self._conversations.save(session)
                return answer

            await self._in_turn(letter, order)
        else:
            name = name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}…"
            near = closest_match(name, [*OWN, *self._approving.commands, *self._commands])
            hint = f" Did you mean /{near}?" if near else ""
            sent = f"To send it as a message, write //{name}."
            await self._tell(letter, f"There is no command /{name}.{hint} /help shows all. {sent}")

    async def _in_turn(self, letter: InboxItem, order: Order) -> None:
        """Have something done when it is its turn; say so if that is not now."""
        if self._answering.is_at_work(letter.key) and not letter.recovered:
            with suppress(LeaseLostError):
                await self._postman.reply(letter.key, letter.channel, [], [notices.LATER])
        self._answering.put(letter, order)

    async def _renew(self, session: Session) -> str:
        await self._conversations.renew(session.key)
        return notices.NEW

    def _help(self) -> str:
        texts = {**OWN, **self._approving.commands, **{name: command.help for name, command in self._commands.items()}}
        return "\n".join(f"/{name}: {text}" for name, text in texts.items())

    async def _tell(self, letter: InboxItem, *texts: str) -> None:
        with suppress(LeaseLostError):
            await self._postman.reply(letter.key, letter.channel, [letter], texts)


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
