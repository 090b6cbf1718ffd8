"""Telegram: people talk to an agent in private chats, groups and topics, fetched by long polls."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..._base.errors import NotInstalledError
from ..._base.frozen import scrub
from ..._base.text import describe, error_text, is_number
from ...stores.messages import InboundMessage, OutboundMessage
from ..protocol import Address, Capabilities, ChannelError, Deliver, Health, UndeliverableError
from ..receiving import LONGEST_WAIT, Busy, Handover, Waits, pause, unless_stopped

if TYPE_CHECKING:
    from telegram import Update, User

    from .client import Line

log = logging.getLogger("hookline")

LONGEST = 4096
_TOKEN = re.compile(r"[0-9]{1,20}:[A-Za-z0-9_-]{1,200}")
_NUMBER = re.compile(r"-?[0-9]{1,20}")


class TelegramChannel:
    """A channel to people on Telegram, as the bot that the token belongs to.

    Telegram is told that a message arrived once the gateway has stored it. Edits of messages are left out; a photo, a
    voice message and the like come as a note that one was sent, with its caption.

    Args:
        name: the channel's name.
        token: the bot's, from @BotFather.
        base_url: another server of the Bot API, such as one of your own.
        proxy: a URL; the one in the environment if left out.
        poll_timeout: seconds for which Telegram holds a request when nobody says anything.

    Raises:
        ChannelError: a setting that cannot work.
        NotInstalledError: the package ``python-telegram-bot`` is missing.
    """

    def __init__(
        self,
        name: str = "telegram",
        *,
        token: str,
        base_url: str = "https://api.telegram.org",
        proxy: str | None = None,
        poll_timeout: int = 30,
    ) -> None:
        if not (isinstance(name, str) and name):
            raise ChannelError("a channel needs a name")
        if not (isinstance(token, str) and _TOKEN.fullmatch(token)):
            raise ChannelError("token is not one of a Telegram bot, such as 12345:AbC-dEf: @BotFather gives you one")
        for setting, url in (("base_url", base_url), ("proxy", proxy)):
            if url is not None and not re.match(r"(https?|socks5h?)://[^/]", str(url)):
                raise ChannelError(f"{setting} is not a URL such as http://localhost:8081")
        if not (is_number(poll_timeout) and 0 <= poll_timeout <= 50):
            raise ChannelError(f"poll_timeout {poll_timeout!r} is not a number of seconds from 0 to 50")
        if find_spec("telegram") is None:
            raise NotInstalledError("python-telegram-bot", "channels")
        self.name = name
        self.capabilities = Capabilities(max_length=LONGEST, length=_length, edit=True, typing=True)
        self._token, self._base_url, self._proxy = token, base_url.rstrip("/"), proxy
        self._poll_timeout = int(poll_timeout)
        self._line: Line | None = None
        self._me: User | None = None
        self._moved: dict[str, str] = {}
        self._offset: int | None = None
        self._singly = 0
        self._asking = Busy()
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._health = Health(False, "not started")

    async def start(self, deliver: Deliver) -> None:
        """Begin to fetch messages.

        Raises:
            ChannelError: Telegram does not know the token, or the channel is started already.
        """
        from telegram.error import InvalidToken, TelegramError

        from .client import Line

        if self._line is not None:
            raise ChannelError(f"the channel {self.name!r} is started already: stop it first")
        line = self._line = Line(self._token, self._base_url, self._proxy)
        self._stopping, self._health = asyncio.Event(), Health(False, "connecting to Telegram")
        try:
            self._me = await line.bot.get_me()
        except InvalidToken as error:
            await self._close()
            raise ChannelError(self._why(error)) from None
        except TelegramError as error:
            self._fails(error)
        except BaseException:
            await self._close()
            raise
        self._task = asyncio.create_task(self._serve(deliver, line), name=f"hookline telegram {self.name}")

    async def stop(self) -> None:
        """Fetch no more; Telegram keeps for a day what is said from now on."""
        if self._task is None:
            return
        self._stopping.set()
        try:
            await self._task
            await self._asking.over()
        finally:
            self._task, self._health = None, Health(False, "stopped")
            await self._close()

    async def send(self, address: Address, message: OutboundMessage, *, key: str) -> str:
        """Send a message and give its id.

        Raises:
            ChannelError: not now. UndeliverableError: chat deleted, bot blocked, or text refused.
        """
        from telegram import ReplyParameters

        thread = message.thread_id or address.thread_id
        reply = _number(message.reply_to)
        sent = await self._ask(
            "send_message",
            address,
            text=scrub(message.text),
            message_thread_id=_number(thread),
            reply_parameters=ReplyParameters(reply, allow_sending_without_reply=True) if reply is not None else None,
        )
        return str(sent.message_id)

    async def edit(self, address: Address, message_id: str, message: OutboundMessage) -> None:
        """Change the text of a message that we sent.

        Raises:
            ChannelError: not now. UndeliverableError: there is no such message.
        """
        try:
            await self._ask("edit_message_text", address, text=scrub(message.text), message_id=_number(message_id))
        except UndeliverableError as error:
            if "message is not modified" not in str(error).lower():
                raise

    async def typing(self, address: Address) -> None:
        """Show for some seconds that an answer is being written; that this fails is no reason to fail."""
        try:
            await self._ask("send_chat_action", address, action="typing", message_thread_id=_number(address.thread_id))
        except ChannelError as error:
            log.debug("channel %s: %s", self.name, error)

    def health(self) -> Health:
        """Whether messages can be fetched."""
        return self._health

    async def _ask(self, method: str, address: Address, **fields: Any) -> Any:
        from telegram.error import ChatMigrated

        if self._line is None:
            raise ChannelError(f"the channel {self.name!r} is not started")
        chat = self._moved.get(address.chat_id, address.chat_id)
        if not _NUMBER.fullmatch(chat):
            raise UndeliverableError(f"{chat!r} is not the id of a Telegram chat, which is a number")
        ask = getattr(self._line.bot, method)
        with self._asking, self._translated():
            try:
                return await ask(chat_id=int(chat), **fields)
            except ChatMigrated as moved:
                self._moved[address.chat_id] = str(moved.new_chat_id)
                return await ask(chat_id=moved.new_chat_id, **fields)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        from telegram.error import BadRequest, Forbidden, TelegramError

        from .client import Flooded

        try:
            yield
        except Flooded as error:
            raise ChannelError(self._why(error), retry_after=error.seconds) from None
        except (BadRequest, Forbidden) as error:
            raise UndeliverableError(self._why(error)) from None
        except (TelegramError, RuntimeError) as error:  # the latter: stopped meanwhile
            raise ChannelError(self._why(error)) from None

    async def _serve(self, deliver: Deliver, line: Line) -> None:
        from .client import Flooded

        handover, waits, failed = Handover(deliver, self._stopping, self._trouble), Waits(), 0.0
        while not self._stopping.is_set():
            try:
                if self._me is None:
                    self._me = await unless_stopped(line.bot.get_me(), self._stopping)
                updates = await unless_stopped(self._poll(line), self._stopping) if self._me else None
            except Exception as error:  # noqa: BLE001 - whatever it is, we try again
                self._fails(error)
                failed = time.monotonic()
                least = error.seconds if isinstance(error, Flooded) else 0.0
                await pause(max(least, waits.next()), self._stopping)
                continue
            if time.monotonic() - failed > LONGEST_WAIT:
                waits.reset()
            self._trouble("")
            if updates and await handover.take(self._messages(updates)):
                self._offset = updates[-1].update_id + 1

    async def _poll(self, line: Line) -> tuple[Update, ...]:
        from telegram.error import TelegramError

        try:
            updates = await line.bot.get_updates(
                offset=self._offset,
                limit=1 if self._singly else None,
                timeout=self._poll_timeout if self._health.ok else 0,  # to know soon whether it works
                allowed_updates=["message"],
            )
        except TelegramError:
            raise
        except Exception as error:  # noqa: BLE001 - an update that the library cannot read must not stop all others
            return self._unreadable(line.hearing.body, error)
        self._singly = max(0, self._singly - 1)
        return updates

    def _unreadable(self, body: bytes, error: Exception) -> tuple[Update, ...]:
        ids = [update["update_id"] for update in json.loads(body)["result"]]
        if len(ids) > 1:
            self._singly = len(ids)
        else:
            log.error("channel %s: the update %s cannot be read: %s", self.name, ids, describe(error))
            self._offset = ids[0] + 1
        return ()

    def _messages(self, updates: tuple[Update, ...]) -> Iterator[InboundMessage]:
        from .messages import incoming

        for update in updates:
            if update.message is None or self._me is None:
                continue
            try:
                message = incoming(update.message, self._me)
            except Exception as error:  # noqa: BLE001 - as above
                log.error("channel %s: the update %s cannot be read: %s", self.name, update.update_id, describe(error))
                continue
            if message is not None:
                yield message

    async def _close(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            await line.close()

    def _trouble(self, detail: str) -> None:
        self._health = Health(not detail, detail or f"connected as @{self._me.username}" if self._me else detail)

    def _fails(self, error: Exception) -> None:
        detail = self._why(error)
        if detail != self._health.detail:
            log.warning("channel %s: %s", self.name, detail)
        self._health = Health(False, detail)

    def _why(self, error: Exception) -> str:
        from telegram.error import Conflict, InvalidToken, TelegramError

        said = error_text(error) if isinstance(error, TelegramError) else describe(error)
        if isinstance(error, InvalidToken):
            said = f"{self._base_url} does not know the bot's token: make a new one with @BotFather ({said})"
        elif isinstance(error, Conflict) and "webhook" in said.lower():
            said = f"the bot has a webhook, so its messages cannot be fetched: call deleteWebhook once ({said})"
        elif isinstance(error, Conflict):
            said = f"another program fetches the messages of this bot: only one may ({said})"
        return said.replace(self._token, "(token)")


def _number(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None


def _length(text: str) -> int:
    """How long a text is for Telegram, which counts UTF-16 code units."""
    return len(text) + sum(c > "\uffff" for c in text)
