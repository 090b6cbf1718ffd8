"""A channel for people: a small page to chat with, over a WebSocket."""

from __future__ import annotations

import asyncio
import html
import logging
import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from ..._base.errors import NotInstalledError
from ..._base.files import user_folder
from ..._base.workers import in_thread
from ..._web.middleware import is_local
from ...stores.chats import ChatMessage, ChatStore
from ...stores.errors import StoreError
from ...stores.messages import InboundMessage, OutboundMessage
from .. import notices
from ..protocol import Address, Asked, Capabilities, ChannelError, Deliver, Health, UndeliverableError
from ..receiving import Delivery
from ..validation import checked_name, checked_path
from .frames import IDLE, Browser, Hello, Ping, Said, close, fields_of, frame_of, is_id
from .login import Door

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.websockets import WebSocket

log = logging.getLogger("hookline")

MAX_TEXT = 32_000
"""Characters of a message."""
MAX_BROWSERS = 1000
"""How many browsers may be connected."""
HELLO_SECONDS = 15.0
"""How long a browser may take to say which conversation it is in."""
LOOK_SECONDS = 1.0
"""How often to look for replies that another process stored."""

_BATCH = 50
_PAGE = Path(__file__).parent / "page"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)


class WebChannel:
    """A page to chat with. What is said is kept, so that a browser that was away has it when it comes back.

    Who knows the id of a conversation, which the browser makes up and keeps, can read it; the gateway and
    its logs only see what is derived from it.

    Args:
        name: of the channel.
        title: of the page, and who speaks there unless a message says who does.
        path: where the page is.
        token: what people must know to use it; needed if other machines can reach it.
        store: the SQLite file with what is said; one of this user if left out.
        max_text: characters of a message.

    Raises:
        ChannelError: the name, the path or the token makes no sense.
    """

    def __init__(
        self,
        name: str = "web",
        *,
        title: str = "Hookline",
        path: str = "/",
        token: str | None = None,
        store: str | os.PathLike[str] | None = None,
        max_text: int = MAX_TEXT,
    ) -> None:
        self.name = checked_name(name)
        self.path = checked_path(path).rstrip("/") + "/"
        self.title = title
        self.capabilities = Capabilities(edit=True, typing=True, idempotent=True)
        self._door = Door(self.name, self.path, token)
        self._store = ChatStore(store or user_folder("data") / "chats.db")
        self._max_text = max_text
        self._delivery = Delivery()
        self._browsers: set[Browser] = set()
        self._at_work: dict[str, tuple[str, int]] = {}
        self._asked: dict[str, Sequence[Asked]] = {}
        self._newest = 0
        self._looking: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"WebChannel({self.name!r}, path={self.path!r})"

    def check_exposed(self) -> None:
        """Other machines will be able to reach the page.

        Raises:
            ChannelError: anybody could use it.
        """
        if not self._door.locked:
            raise ChannelError(
                f"the web chat {self.name!r} can be reached from other machines, but has no token: give it one "
                "(`openssl rand -hex 32` makes one), or listen at 127.0.0.1"
            )

    async def start(self, deliver: Deliver) -> None:
        """Begin to take messages.

        Raises:
            ChannelError: the file of the store cannot be used.
        """
        try:
            self._newest, _ = await in_thread(self._store.changed, self.name, 2**62)
        except StoreError as error:
            raise ChannelError(f"the web chat {self.name!r} cannot keep what is said: {error}") from error
        self._delivery.open(deliver)
        self._looking = asyncio.create_task(self._look(), name=f"hookline-{self.name}-look")

    async def stop(self) -> None:
        """Take no more messages, and close the pages' connections: they connect again when it is back."""
        await self._delivery.close()
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
            await asyncio.wait({looking})
        for browser in tuple(self._browsers):
            await close(browser.socket, 1012, "the server stops")

    def health(self) -> Health:
        """Whether messages are taken, and how many pages are open."""
        if not self._delivery.is_open:
            return Health(False, "not started")
        count = len(self._browsers)
        return Health(True, f"{count} page{'' if count == 1 else 's'} open at {self.path}")

    async def send(self, address: Address, message: OutboundMessage, *, key: str) -> str:
        """Keep a reply, and show it where the conversation is open.

        Raises:
            ChannelError: it cannot be stored.
        """
        try:
            seq, _ = await in_thread(
                self._store.add, self.name, address.chat_id, key, message.text,
                reply_to=message.reply_to, speaker=message.speaker,
            )  # fmt: skip
        except StoreError as error:
            raise ChannelError(f"the reply cannot be kept: {error}") from error
        self._news(address.chat_id)
        return str(seq)

    async def edit(self, address: Address, message_id: str, message: OutboundMessage) -> None:
        """Change a message, also where it is shown already.

        Raises:
            ChannelError: it cannot be stored; ``UndeliverableError``: it is not there any more.
        """
        try:
            done = await in_thread(self._store.edit, self.name, address.chat_id, int(message_id), message.text)
        except StoreError as error:
            raise ChannelError(f"the change cannot be kept: {error}") from error
        if not done:
            raise UndeliverableError(f"the message {message_id} is not there any more")
        self._wake(address.chat_id)

    async def typing(self, address: Address) -> None:
        """Show for some seconds that a reply is being made."""
        self._wake(address.chat_id, typing=True)

    def at_work(self, address: Address, message_id: str, waiting: int) -> None:
        """Show which message is being answered, if any, and how many wait, also to pages that are opened later."""
        now = (message_id, waiting)
        if now == IDLE:
            self._at_work.pop(address.chat_id, None)
        else:
            self._at_work[address.chat_id] = now
        self._wake(address.chat_id)

    def asked(self, address: Address, questions: Sequence[Asked]) -> None:
        """Show buttons below the messages that ask about calls, also to pages that are opened later."""
        if questions:
            self._asked[address.chat_id] = tuple(questions)
        else:
            self._asked.pop(address.chat_id, None)
        self._wake(address.chat_id)

    def routes(self) -> Sequence[Any]:
        """The page, what belongs to it, its WebSocket, and a door if there is a token.

        Raises:
            NotInstalledError: starlette is missing.
        """
        try:
            from starlette.routing import Route, WebSocketRoute
        except ModuleNotFoundError:
            raise NotInstalledError("starlette", "channels") from None
        return [
            Route(self.path, self._page, methods=["GET"]),
            Route(f"{self.path}chat.css", self._part, methods=["GET"]),
            Route(f"{self.path}chat.js", self._part, methods=["GET"]),
            Route(f"{self.path}text.js", self._part, methods=["GET"]),
            Route(f"{self.path}door", self._door.look, methods=["GET"]),
            Route(f"{self.path}door", self._door.open, methods=["POST"]),
            WebSocketRoute(f"{self.path}socket", self._talk),
        ]

    async def _page(self, request: Request) -> Response:
        from starlette.responses import HTMLResponse, PlainTextResponse

        if not self._welcome(request.scope):
            return PlainTextResponse("This chat has no token, so it can only be used on its own machine.", 403)
        page = Template((_PAGE / "chat.html").read_text("utf-8"))
        made = page.substitute(title=html.escape(self.title), max=self._max_text, new=html.escape(notices.NEW))
        return HTMLResponse(made, headers={"Content-Security-Policy": _POLICY})

    async def _part(self, request: Request) -> Response:
        from starlette.responses import FileResponse

        name = request.url.path.rpartition("/")[2]
        kind = "text/css" if name.endswith(".css") else "text/javascript"
        return FileResponse(_PAGE / name, headers={"Cache-Control": "no-cache"}, media_type=kind)

    def _welcome(self, scope: Any) -> bool:
        return self._door.locked or is_local(scope)

    async def _talk(self, socket: WebSocket) -> None:
        from starlette.websockets import WebSocketDisconnect

        if not self._welcome(socket.scope) or not self._door.knows(socket.cookies):
            await socket.close()
            return
        await socket.accept()
        if not self._delivery.is_open or len(self._browsers) >= MAX_BROWSERS:
            await close(socket, 1013, "try again soon")
            return
        try:
            browser = await self._met(socket)
            if browser is not None:
                await self._serve(browser)
        except (WebSocketDisconnect, RuntimeError, OSError) as error:
            log.debug("a page of %r is gone: %s", self.name, error)
        except StoreError as error:
            log.error("the web chat %r cannot read what was said: %s", self.name, error)
            await close(socket, 1011, "the server has a problem")

    async def _met(self, socket: WebSocket) -> Browser | None:
        """The browser, once it has said which conversation it is in."""
        try:
            frame = await asyncio.wait_for(frame_of(socket), HELLO_SECONDS)
        except TimeoutError:
            frame = None
        if not isinstance(frame, Hello) or not is_id(frame.chat):
            await close(socket, 1008, "say hello first")
            return None
        newest, _ = await in_thread(self._store.changed, self.name, 2**62)
        reset = not 0 <= frame.after <= newest
        browser = Browser(socket, chat_of(frame.chat), 0 if reset else frame.after)
        await browser.tell("ready", reset=reset)
        return browser

    async def _serve(self, browser: Browser) -> None:
        self._browsers.add(browser)
        showing = asyncio.create_task(self._show(browser))
        try:
            while True:
                frame = await frame_of(browser.socket)
                if isinstance(frame, Ping):
                    await browser.tell("pong")
                elif isinstance(frame, Said) and is_id(frame.id):
                    await self._take(browser, frame)
                else:
                    await close(browser.socket, 1008, "not understood")
                    return
        finally:
            self._browsers.discard(browser)
            showing.cancel()
            await asyncio.wait({showing})

    async def _take(self, browser: Browser, said: Said) -> None:
        if not said.text.strip() or len(said.text) > self._max_text:
            why = f"a message has 1 to {self._max_text} characters"
            await browser.tell("refused", id=said.id, why=why)
            return
        message = InboundMessage(
            text=said.text, platform="web", chat_id=browser.chat, sender=browser.chat, message_id=said.id
        )
        try:  # kept first, so that it stands before its reply
            await in_thread(self._store.add, self.name, browser.chat, said.id, said.text, side="in")
            await self._delivery(message)
        except Exception as error:  # noqa: BLE001 - the page sends it again, whatever it was
            log.warning("the web chat %r could not take a message: %s", self.name, error)
            await browser.tell("later", id=said.id)
            return
        await browser.tell("taken", id=said.id)
        self._wake(browser.chat)

    async def _show(self, browser: Browser) -> None:
        """Send what came or changed since this browser looked last, again and again."""
        try:
            while True:
                browser.wake.clear()
                if browser.typing:
                    browser.typing = False
                    await browser.tell("typing")
                now = self._at_work.get(browser.chat, IDLE)
                if now != browser.shown:
                    browser.shown = now
                    await browser.tell("work", answering=now[0], waiting=now[1])
                asked = self._asked.get(browser.chat, ())
                if asked != browser.asked:
                    browser.asked = asked
                    await browser.tell("asked", open=asked)
                found: Sequence[ChatMessage] = await in_thread(
                    self._store.since, self.name, browser.chat, browser.rev, limit=_BATCH
                )
                for one in found:
                    await browser.tell("message", **fields_of(one))
                    browser.rev = one.rev
                if len(found) < _BATCH:
                    await browser.wake.wait()
        except Exception as error:  # noqa: BLE001 - the page connects again and has it then
            log.debug("a page of %r gets nothing more: %s", self.name, error)
            await close(browser.socket, 1011, "the server has a problem")

    async def _look(self) -> None:
        """Notice what another process stored."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if not self._browsers:
                continue
            try:
                self._newest, chats = await in_thread(self._store.changed, self.name, self._newest)
            except StoreError as error:
                log.error("the web chat %r cannot read what was said: %s", self.name, error)
                continue
            for chat in chats:
                self._wake(chat)

    def _news(self, chat: str) -> None:
        for browser in self._browsers:
            if browser.chat == chat:
                browser.typing = False
        self._wake(chat)

    def _wake(self, chat: str, typing: bool = False) -> None:
        for browser in self._browsers:
            if browser.chat == chat:
                browser.typing = browser.typing or typing
                browser.wake.set()


def chat_of(id: str) -> str:
    """What a conversation is called outside the browser that made up its id."""
    return "web-" + sha256(f"hookline chat {id}".encode()).hexdigest()[:32]
