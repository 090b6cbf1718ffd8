"""The way in: from a message in the mailbox to its place in the queue."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress

from .._base.text import closest_match, error_text
from .._kernel.errors import HookError
from .._run.session import Session
from ..stores.errors import StoreError
from ..stores.mailbox import InboxItem, LeaseLostError
from . import wording
from .answering import Answering, Order
from .approving import Approving
from .conversations import Conversations
from .lanes import Lanes, place
from .options import GatewayOptions
from .points import INBOUND_CLAIM, MESSAGE_RECEIVED, Inbound
from .postman import Postman, Tally
from .protocol import Answerer, Command

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
            await self._tell(letter, wording.NOT_HANDLED)

    async def _receive(self, key: str, letter: InboxItem) -> None:
        try:
            session = await self._conversations.session(key, letter.message.platform)
        except StoreError as error:
            log.error("%s: %s", place(key), error_text(error))
            await self._tell(letter, wording.FAILED)
            return
        payload = Inbound(letter.message, session.id)
        try:
            await self._conversations.fire(session, MESSAGE_RECEIVED, payload)
            verdict = await self._conversations.fire(session, INBOUND_CLAIM, payload)
        except HookError as error:
            log.error("a message of %s is not handled: %s", place(key), error_text(error))
            await self._tell(letter, wording.NOT_HANDLED)
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
            notice = self._options.busy_reply or (wording.BUSY_QUEUED if keeps else wording.BUSY)
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
                await self._postman.reply(letter.key, letter.channel, [], [wording.LATER])
        self._answering.put(letter, order)

    async def _renew(self, session: Session) -> str:
        await self._conversations.renew(session.key)
        return wording.NEW

    def _help(self) -> str:
        texts = {**OWN, **self._approving.commands, **{name: command.help for name, command in self._commands.items()}}
        return "\n".join(f"/{name}: {text}" for name, text in texts.items())

    async def _tell(self, letter: InboxItem, *texts: str) -> None:
        with suppress(LeaseLostError):
            await self._postman.reply(letter.key, letter.channel, [letter], texts)
