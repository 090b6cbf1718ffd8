"""The Telegram channel: people write in private chats, groups and topics. Updates are fetched by long polling."""

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

from ..._base.attachment import check_size
from ..._base.errors import NotInstalledError
from ..._base.frozen import scrub
from ..._base.tasks import wait_at_most
from ..._base.text import describe, error_text, is_number
from ...stores.messages import InboundFile, InboundMessage, OutboundMessage
from ..protocol import Address, Capabilities, ChannelError, Deliver, Health, UndeliverableError
from ..receiving import MAX_DELAY, Backoff, InFlight, RetryingDelivery, await_unless_stopped

if TYPE_CHECKING:
    from telegram import Update, User

    from .client import BotClient

log = logging.getLogger("hookline")

MAX_LENGTH = 4096
_TOKEN = re.compile(r"[0-9]{1,20}:[A-Za-z0-9_-]{1,200}")
_NUMBER = re.compile(r"-?[0-9]{1,20}")


class TelegramChannel:
    """Exchange messages with people on Telegram, as the bot to which the token belongs.

    Updates are acknowledged once the gateway has stored their messages. Edits of messages are ignored. Photos,
    documents, voice messages and audio files are attached to the message; other kinds are received as a note with their
    caption.

    Example::

        TelegramChannel(token=os.environ["TELEGRAM_TOKEN"])

    Args:
        name: the name of the channel.
        token: the token of the bot, from @BotFather.
        base_url: the URL of another Bot API server, such as your own.
        proxy: the URL of a proxy; taken from the environment if left out.
        poll_timeout: how many seconds Telegram holds a request open while there are no updates.

    Raises:
        ChannelError: a setting is invalid.
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
            raise ChannelError("token is not a Telegram bot token, such as 12345:AbC-dEf: get one from @BotFather")
        for setting, url in (("base_url", base_url), ("proxy", proxy)):
            if url is not None and not re.match(r"(https?|socks5h?)://[^/]", str(url)):
                raise ChannelError(f"{setting} is not a URL, such as http://localhost:8081")
        if not (is_number(poll_timeout) and 0 <= poll_timeout <= 50):
            raise ChannelError(f"poll_timeout {poll_timeout!r} must be a number of seconds from 0 to 50")
        if find_spec("telegram") is None:
            raise NotInstalledError("python-telegram-bot", "channels")
        self.name = name
        self.capabilities = Capabilities(max_length=MAX_LENGTH, length=_length, edit=True, typing=True)
        self._token = token
        self._base_url = base_url.rstrip("/")
        self._proxy = proxy
        self._poll_timeout = int(poll_timeout)
        self._client: BotClient | None = None
        self._me: User | None = None
        self._migrated: dict[str, str] = {}  # chat ids of groups that became supergroups
        self._offset: int | None = None
        self._one_by_one = 0  # how many updates to fetch singly, to find one that cannot be parsed
        self._requests = InFlight()
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._health = Health(False, "not started")

    async def start(self, deliver: Deliver) -> None:
        """Start to fetch messages.

        Raises:
            ChannelError: Telegram rejects the token, or the channel is started already.
        """
        from telegram.error import InvalidToken, TelegramError

        from .client import BotClient

        if self._client is not None:
            raise ChannelError(f"the channel {self.name!r} is started already: stop it first")
        client = self._client = BotClient(self._token, self._base_url, self._proxy)
        self._stopping, self._health = asyncio.Event(), Health(False, "connecting to Telegram")
        try:
            self._me = await client.bot.get_me()
        except InvalidToken as error:
            await self._close()
            raise ChannelError(self._explain(error)) from None
        except TelegramError as error:
            self._record_failure(error)
        except BaseException:
            await self._close()
            raise
        self._task = asyncio.create_task(self._serve(deliver, client), name=f"hookline telegram {self.name}")

    async def stop(self) -> None:
        """Stop fetching. Telegram keeps new messages for a day."""
        if self._task is None:
            return
        self._stopping.set()
        try:
            await self._task
            await self._requests.wait_until_idle()
        finally:
            self._task, self._health = None, Health(False, "stopped")
            await self._close()

    async def send(self, address: Address, message: OutboundMessage, *, key: str) -> str:
        """Send a message and return its id.

        Raises:
            ChannelError: the message cannot be sent at the moment.
            UndeliverableError: the chat was deleted, the bot is blocked, or Telegram rejects the text.
        """
        from telegram import ReplyParameters

        thread = message.thread_id or address.thread_id
        reply = _number(message.reply_to)
        sent = await self._request(
            "send_message",
            address,
            text=scrub(message.text),
            message_thread_id=_number(thread),
            reply_parameters=ReplyParameters(reply, allow_sending_without_reply=True) if reply is not None else None,
        )
        return str(sent.message_id)

    async def edit(self, address: Address, message_id: str, message: OutboundMessage) -> None:
        """Change the text of a message that the bot sent.

        Raises:
            ChannelError: the message cannot be changed at the moment.
            UndeliverableError: there is no such message.
        """
        try:
            await self._request("edit_message_text", address, text=scrub(message.text), message_id=_number(message_id))
        except UndeliverableError as error:
            if "message is not modified" not in str(error).lower():
                raise

    async def typing(self, address: Address) -> None:
        """Show for some seconds that a reply is being written. A failure is only logged."""
        try:
            await self._request(
                "send_chat_action", address, action="typing", message_thread_id=_number(address.thread_id)
            )
        except ChannelError as error:
            log.debug("channel %s: %s", self.name, error)

    async def read_file(self, file: InboundFile, max_size: int | None) -> bytes:
        """Return the content of a photo, document, voice message or audio file.

        Raises:
            AttachmentError: it has more than ``max_size`` bytes.
            ChannelError: it cannot be read.
        """
        if self._client is None:
            raise ChannelError(f"the channel {self.name!r} is not started")
        with self._requests, self._translated_errors():
            found = await self._client.bot.get_file(file.id)
            check_size(found.file_size or 0, file.name or "the file", max_size)
            return bytes(await found.download_as_bytearray())

    def health(self) -> Health:
        """Whether messages can be fetched."""
        return self._health

    async def _request(self, method: str, address: Address, **fields: Any) -> Any:
        from telegram.error import ChatMigrated

        if self._client is None:
            raise ChannelError(f"the channel {self.name!r} is not started")
        chat = self._migrated.get(address.chat_id, address.chat_id)
        if not _NUMBER.fullmatch(chat):
            raise UndeliverableError(f"{chat!r} is not the id of a Telegram chat: these are numbers")
        call = getattr(self._client.bot, method)
        with self._requests, self._translated_errors():
            try:
                return await call(chat_id=int(chat), **fields)
            except ChatMigrated as migration:
                self._migrated[address.chat_id] = str(migration.new_chat_id)
                return await call(chat_id=migration.new_chat_id, **fields)

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        from telegram.error import BadRequest, Forbidden, TelegramError

        from .client import TooManyRequestsError

        try:
            yield
        except TooManyRequestsError as error:
            raise ChannelError(self._explain(error), retry_after=error.seconds) from None
        except (BadRequest, Forbidden) as error:
            raise UndeliverableError(self._explain(error)) from None
        except (TelegramError, RuntimeError) as error:  # RuntimeError: the client was closed
            raise ChannelError(self._explain(error)) from None

    async def _serve(self, deliver: Deliver, client: BotClient) -> None:
        from .client import TooManyRequestsError

        delivery, backoff, failed = RetryingDelivery(deliver, self._stopping, self._report), Backoff(), 0.0
        while not self._stopping.is_set():
            try:
                if self._me is None:
                    self._me = await await_unless_stopped(client.bot.get_me(), self._stopping)
                updates = await await_unless_stopped(self._poll(client), self._stopping) if self._me else None
            except Exception as error:  # noqa: BLE001 - every error is retried
                self._record_failure(error)
                failed = time.monotonic()
                required = error.seconds if isinstance(error, TooManyRequestsError) else 0.0
                await wait_at_most(self._stopping, max(required, backoff.next()))
                continue
            if time.monotonic() - failed > MAX_DELAY:
                backoff.reset()
            self._report("")
            if updates and await delivery.deliver_all(self._messages(updates)):
                self._offset = updates[-1].update_id + 1

    async def _poll(self, client: BotClient) -> tuple[Update, ...]:
        from telegram.error import TelegramError

        try:
            updates = await client.bot.get_updates(
                offset=self._offset,
                limit=1 if self._one_by_one else None,
                timeout=self._poll_timeout if self._health.ok else 0,  # 0: report the connection soon
                allowed_updates=["message"],
            )
        except TelegramError:
            raise
        except Exception as error:  # noqa: BLE001 - an update that the library cannot parse must not block the others
            return self._skip_unreadable(client.updates.body, error)
        self._one_by_one = max(0, self._one_by_one - 1)
        return updates

    def _skip_unreadable(self, body: bytes, error: Exception) -> tuple[Update, ...]:
        ids = [update["update_id"] for update in json.loads(body)["result"]]
        if len(ids) > 1:
            self._one_by_one = len(ids)
        else:
            log.error("channel %s: the update %s cannot be parsed and is skipped: %s", self.name, ids, describe(error))
            self._offset = ids[0] + 1
        return ()

    def _messages(self, updates: tuple[Update, ...]) -> Iterator[InboundMessage]:
        from .messages import to_inbound

        for update in updates:
            if update.message is None or self._me is None:
                continue
            try:
                message = to_inbound(update.message, self._me)
            except Exception as error:  # noqa: BLE001 - as above
                log.error(
                    "channel %s: the update %s cannot be parsed and is skipped: %s",
                    self.name,
                    update.update_id,
                    describe(error),
                )
                continue
            if message is not None:
                yield message

    async def _close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _report(self, detail: str) -> None:
        self._health = Health(not detail, detail or f"connected as @{self._me.username}" if self._me else detail)

    def _record_failure(self, error: Exception) -> None:
        detail = self._explain(error)
        if detail != self._health.detail:
            log.warning("channel %s: %s", self.name, detail)
        self._health = Health(False, detail)

    def _explain(self, error: Exception) -> str:
        from telegram.error import Conflict, InvalidToken, TelegramError

        text = error_text(error) if isinstance(error, TelegramError) else describe(error)
        if isinstance(error, InvalidToken):
            text = f"{self._base_url} rejects the token of the bot: get a new one from @BotFather ({text})"
        elif isinstance(error, Conflict) and "webhook" in text.lower():
            text = f"the bot has a webhook, so its messages cannot be fetched: call deleteWebhook once ({text})"
        elif isinstance(error, Conflict):
            text = f"another program fetches the messages of this bot, and only one can: stop the other ({text})"
        return text.replace(self._token, "(token)")


def _number(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None


def _length(text: str) -> int:
    """Return length of a text in UTF-16 code units, which Telegram counts."""
    return len(text) + sum(c > "\uffff" for c in text)
