"""The web channel: a chat page for browsers, connected through a WebSocket."""

from __future__ import annotations

import asyncio
import html
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from ..._base.attachment import MAX_SIZE, check_size, file_name, size_text
from ..._base.errors import NotInstalledError
from ..._base.files import user_folder
from ..._base.workers import in_thread
from ..._web.middleware import is_local
from ...explain.html import asset
from ...stores.chats import ChatMessage, ChatStore
from ...stores.errors import StoreError
from ...stores.messages import InboundFile, InboundMessage, OutboundMessage
from .. import notices
from ..protocol import (
    Address,
    ApprovalOutcome,
    ApprovalPrompt,
    Capabilities,
    ChannelError,
    Deliver,
    Draft,
    Health,
    Step,
    UndeliverableError,
)
from ..receiving import DeliveryGate
from ..validation import checked_name, checked_path
from .frames import (
    IDLE,
    STEPS,
    DecisionFrame,
    HelloFrame,
    MessageFrame,
    PageConnection,
    PingFrame,
    UploadedFile,
    close_socket,
    is_id,
    message_fields,
    receive_frame,
    steps_text,
)
from .login import Login

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.websockets import WebSocket

log = logging.getLogger("hookline")

MAX_TEXT = 32_000
"""Longest message, in characters."""
MAX_PAGES = 1000
"""Maximum number of connected pages."""
HELLO_SECONDS = 15.0
"""Seconds within which a page must send its first frame."""
POLL_INTERVAL = 1.0
"""Seconds between two checks for replies that another process stored."""

_BATCH = 50
_PAGE_FOLDER = Path(__file__).parent / "page"
_CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)


class WebChannel:
    """Serve a chat page. Messages are stored, so that a browser that was offline receives them when it is back.

    The browser generates a random id for its conversation. Everyone who knows this id can read the conversation; the
    gateway and its logs only see a hash of it.

    Example::

        WebChannel(title="Support", token=os.environ["CHAT_TOKEN"])

    Args:
        name: the name of the channel.
        title: the title of the page, also shown as the speaker of messages without one.
        path: the path of the page.
        token: the token that people must enter; required if other machines can reach the page.
        store: the SQLite file for messages; by default in the data folder of the user.
        max_text: the longest message, in characters.
        max_file: the largest file that people can attach, in bytes; 0 for no files. The limit of the agent applies too.

    Raises:
        ChannelError: the name, the path or the token is invalid.
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
        max_file: int = MAX_SIZE,
    ) -> None:
        self.name = checked_name(name)
        self.path = checked_path(path).rstrip("/") + "/"
        self.title = title
        self.capabilities = Capabilities(edit=True, typing=True, idempotent=True, buttons=True, cards=True)
        self._login = Login(self.name, self.path, token)
        self._store = ChatStore(store or user_folder("data") / "chats.db")
        self._max_text = max_text
        self._max_file = max_file
        self._deliver = DeliveryGate()
        self._pages: set[PageConnection] = set()
        self._activity: dict[str, tuple[str, int]] = {}
        self._prompts: dict[str, Sequence[ApprovalPrompt]] = {}
        self._drafts: dict[str, Draft] = {}
        self._presses: dict[str, str] = {}
        """By the id of a pressed button, the key of the message above it; empty once that shows the outcome."""
        self._outcomes: set[asyncio.Task[None]] = set()
        self._newest = 0
        self._polling: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"WebChannel({self.name!r}, path={self.path!r})"

    def check_exposed(self) -> None:
        """Check that the page may be served to other machines.

        Raises:
            ChannelError: the page has no token, so anyone could use it.
        """
        if not self._login.is_required:
            raise ChannelError(
                f"the web chat {self.name!r} can be reached from other machines but has no token: set one "
                "(`openssl rand -hex 32` creates one), or listen at 127.0.0.1"
            )

    def clean_stored(self, clean: Callable[[str], str]) -> None:
        """Clean the texts of all messages before they are stored."""
        self._store.clean = clean

    async def start(self, deliver: Deliver) -> None:
        """Start to accept messages.

        Raises:
            ChannelError: the store cannot be used.
        """
        try:
            self._newest, _ = await in_thread(self._store.changed, self.name, 2**62)
        except StoreError as error:
            raise ChannelError(f"the web chat {self.name!r} cannot store messages: {error}") from error
        self._deliver.open(deliver)
        self._polling = asyncio.create_task(self._poll(), name=f"hookline-{self.name}-poll")

    async def stop(self) -> None:
        """Accept no more messages, and close the connections. Pages reconnect when the channel is back."""
        await self._deliver.close()
        polling, self._polling = self._polling, None
        if polling is not None:
            polling.cancel()
            await asyncio.wait({polling, *self._outcomes})
        for page in tuple(self._pages):
            await close_socket(page.socket, 1012, "the server is stopping")

    def health(self) -> Health:
        """Whether messages are accepted, and how many pages are open."""
        if not self._deliver.is_open:
            return Health(False, "not started")
        count = len(self._pages)
        return Health(True, f"{count} page{'' if count == 1 else 's'} open at {self.path}")

    async def send(self, address: Address, message: OutboundMessage, *, key: str) -> str:
        """Store a reply, and show it on the open pages of the conversation.

        The reply to a pressed button is left out if the call above the button shows the outcome.

        Raises:
            ChannelError: the reply cannot be stored.
        """
        if self._presses.pop(message.reply_to, None) == "":
            return ""
        try:
            seq, _ = await in_thread(
                self._store.add,
                self.name,
                address.chat_id,
                key,
                message.text,
                reply_to=message.reply_to,
                speaker=message.speaker,
            )
        except StoreError as error:
            raise ChannelError(f"the reply cannot be stored: {error}") from error
        self._stop_typing(address.chat_id)
        if message.reply_to:
            self._drafts.pop(address.chat_id, None)
        self._wake(address.chat_id)
        return str(seq)

    async def edit(self, address: Address, message_id: str, message: OutboundMessage) -> None:
        """Change a message, also on the pages that show it.

        Raises:
            ChannelError: the change cannot be stored.
            UndeliverableError: the message no longer exists.
        """
        try:
            done = await in_thread(self._store.edit, self.name, address.chat_id, int(message_id), message.text)
        except StoreError as error:
            raise ChannelError(f"the edit cannot be stored: {error}") from error
        if not done:
            raise UndeliverableError(f"the message {message_id} no longer exists")
        self._wake(address.chat_id)

    async def typing(self, address: Address) -> None:
        """Show for some seconds that a reply is being written."""
        self._wake(address.chat_id, typing=True)

    def activity_changed(self, address: Address, message_id: str, waiting: int) -> None:
        """Show which message is being answered and how many wait, also on pages that are opened later."""
        activity = (message_id, waiting)
        draft = self._drafts.get(address.chat_id)
        if draft is not None and message_id and draft.reply_to != message_id:
            del self._drafts[address.chat_id]
        if activity == IDLE:
            self._activity.pop(address.chat_id, None)
        else:
            self._activity[address.chat_id] = activity
        self._wake(address.chat_id)

    def approvals_changed(self, address: Address, prompts: Sequence[ApprovalPrompt]) -> None:
        """Show buttons below the messages that request approvals, also on pages that are opened later."""
        if prompts:
            self._prompts[address.chat_id] = tuple(prompts)
        else:
            self._prompts.pop(address.chat_id, None)
        self._wake(address.chat_id)

    def approval_closed(self, address: Address, outcome: ApprovalOutcome) -> None:
        """Show the outcome of a call below it."""
        for id, key in self._presses.items():
            if key == outcome.key:
                self._presses[id] = ""
        task = asyncio.create_task(self._show_outcome(address.chat_id, outcome))
        self._outcomes.add(task)
        task.add_done_callback(self._outcomes.discard)

    async def _show_outcome(self, chat: str, outcome: ApprovalOutcome) -> None:
        own = outcome.by == f"{self.name}:{chat}"
        text = outcome.text.replace(f"by {outcome.by}", "by you") if own else outcome.text
        try:
            message = await in_thread(self._store.find, self.name, chat, outcome.key)
            if message is not None:
                await in_thread(self._store.edit, self.name, chat, message.seq, f"{message.text}\n\n> {text}")
        except StoreError as error:
            log.error("the web chat %r cannot store the outcome of a call: %s", self.name, error)
        self._wake(chat)

    async def show_steps(self, address: Address, key: str, reply_to: str, speaker: str, steps: Sequence[Step]) -> None:
        """Show the tool calls of a run below its reply.

        Raises:
            StoreError: they cannot be stored.
        """
        chat, text = address.chat_id, steps_text(steps, you=f"{self.name}:{address.chat_id}")
        seq, is_new = await in_thread(
            self._store.add, self.name, chat, key, text, reply_to=reply_to, speaker=speaker, kind=STEPS
        )
        if not is_new:
            await in_thread(self._store.edit, self.name, chat, seq, text)
        self._wake(chat)

    def draft_changed(self, address: Address, draft: Draft) -> None:
        """Show a reply while it is written, also on pages that are opened meanwhile."""
        self._drafts[address.chat_id] = draft
        self._wake(address.chat_id)

    def routes(self) -> Sequence[Any]:
        """Return routes of the page, its files, the login and the WebSocket.

        Raises:
            NotInstalledError: starlette is missing.
        """
        try:
            from starlette.routing import Route, WebSocketRoute
        except ModuleNotFoundError:
            raise NotInstalledError("starlette", "channels") from None
        return [
            Route(self.path, self._page, methods=["GET"]),
            Route(f"{self.path}chat.css", self._file, methods=["GET"]),
            Route(f"{self.path}chat.js", self._file, methods=["GET"]),
            Route(f"{self.path}text.js", self._file, methods=["GET"]),
            Route(f"{self.path}login", self._login.get, methods=["GET"]),
            Route(f"{self.path}login", self._login.post, methods=["POST"]),
            Route(f"{self.path}files", self._upload, methods=["POST"]),
            WebSocketRoute(f"{self.path}socket", self._connect),
        ]

    async def _page(self, request: Request) -> Response:
        from starlette.responses import HTMLResponse, PlainTextResponse

        if not self._is_allowed(request.scope):
            return PlainTextResponse("This chat has no token, so only the machine that serves it can use it.", 403)
        template = Template((_PAGE_FOLDER / "chat.html").read_text("utf-8"))
        page = template.substitute(
            title=html.escape(self.title), max=self._max_text, max_file=self._max_file, new=html.escape(notices.NEW)
        )
        return HTMLResponse(page, headers={"Content-Security-Policy": _CONTENT_SECURITY_POLICY})

    async def _file(self, request: Request) -> Response:
        from starlette.responses import Response

        name = request.url.path.rpartition("/")[2]
        kind = "text/css" if name.endswith(".css") else "text/javascript"
        text = asset(name) if name == "text.js" else (_PAGE_FOLDER / name).read_text("utf-8")
        return Response(text, headers={"Cache-Control": "no-cache"}, media_type=kind)

    async def _upload(self, request: Request) -> Response:
        """Store a part of a file. Parts are smaller than the usual limit for requests, which protects all routes."""
        from starlette.responses import JSONResponse

        if not self._is_allowed(request.scope) or not self._login.is_logged_in(request.cookies):
            return JSONResponse({"error": "You are not logged in."}, 401)
        chat, id, offset = (request.headers.get(f"x-{name}", "") for name in ("chat", "file", "offset"))
        if not (is_id(chat) and is_id(id) and offset.isascii() and offset.isdecimal() and len(offset) <= 12):
            return JSONResponse({"error": "The headers X-Chat, X-File and X-Offset are needed."}, 400)
        data = await request.body()
        if int(offset) + len(data) > self._max_file:
            return JSONResponse({"error": f"A file may have at most {size_text(self._max_file)}."}, 413)
        try:
            size = await in_thread(self._store.add_file_part, self.name, hashed_chat_id(chat), id, int(offset), data)
        except StoreError as error:
            log.error("the web chat %r cannot store a file: %s", self.name, error)
            return JSONResponse({"error": "The file could not be stored."}, 503)
        if size is None:
            return JSONResponse({"error": "There is no space for more files: try again later."}, 503)
        return JSONResponse({"size": size})

    async def read_file(self, file: InboundFile, max_size: int | None) -> bytes:
        """Return the content of a file that a page has uploaded.

        Raises:
            AttachmentError: it has more than ``max_size`` bytes.
            ChannelError: it is not stored.
        """
        chat, _, id = file.id.partition("/")
        data: bytes | None = await in_thread(self._store.file, self.name, chat, id)
        if data is None:
            raise ChannelError(f"the file {file.name!r:.80} is not stored any more")
        check_size(len(data), file.name or "the file", max_size)
        return data

    def _is_allowed(self, scope: Any) -> bool:
        return self._login.is_required or is_local(scope)

    async def _connect(self, socket: WebSocket) -> None:
        from starlette.websockets import WebSocketDisconnect

        if not self._is_allowed(socket.scope) or not self._login.is_logged_in(socket.cookies):
            await socket.close()
            return
        await socket.accept()
        if not self._deliver.is_open or len(self._pages) >= MAX_PAGES:
            await close_socket(socket, 1013, "try again soon")
            return
        try:
            page = await self._receive_hello(socket)
            if page is not None:
                await self._serve(page)
        except (WebSocketDisconnect, RuntimeError, OSError) as error:
            log.debug("a page of %r disconnected: %s", self.name, error)
        except StoreError as error:
            log.error("the web chat %r cannot read its messages: %s", self.name, error)
            await close_socket(socket, 1011, "the server has a problem")

    async def _receive_hello(self, socket: WebSocket) -> PageConnection | None:
        frame = None
        with suppress(TimeoutError):
            async with asyncio.timeout(HELLO_SECONDS):
                frame = await receive_frame(socket)
        if not isinstance(frame, HelloFrame) or not is_id(frame.chat):
            await close_socket(socket, 1008, "the first frame must be hello")
            return None
        newest, _ = await in_thread(self._store.changed, self.name, 2**62)
        reset = not 0 <= frame.after <= newest
        page = PageConnection(socket, hashed_chat_id(frame.chat), 0 if reset else frame.after)
        await page.send("ready", reset=reset)
        return page

    async def _serve(self, page: PageConnection) -> None:
        self._pages.add(page)
        updating = asyncio.create_task(self._send_updates(page))
        try:
            while True:
                frame = await receive_frame(page.socket)
                if isinstance(frame, PingFrame):
                    await page.send("pong")
                elif isinstance(frame, MessageFrame) and is_id(frame.id):
                    await self._receive(page, frame)
                elif isinstance(frame, DecisionFrame) and is_id(frame.id):
                    await self._decide(page, frame)
                else:
                    await close_socket(page.socket, 1008, "invalid frame")
                    return
        finally:
            self._pages.discard(page)
            updating.cancel()
            await asyncio.wait({updating})

    async def _receive(self, page: PageConnection, frame: MessageFrame) -> None:
        if len(frame.text) > self._max_text or not (frame.text.strip() or frame.files):
            why = f"a message must have 1 to {self._max_text} characters"
            await page.send("refused", id=frame.id, why=why)
            return
        files = [await self._uploaded(page.chat, file) for file in frame.files]
        if missing := [file.name for file in files if not file.size]:
            await page.send("refused", id=frame.id, why=f"{missing[0]} is not stored any more: attach it again")
            return
        text = " ".join([*(f"[{file.name}]" for file in files), frame.text]).rstrip()
        message = InboundMessage(
            text=text,
            platform="web",
            chat_id=page.chat,
            sender=page.chat,
            message_id=frame.id,
            attachments=("file",) * len(files),
            files=tuple(files),
        )
        try:  # stored in the chat first, so that it comes before its reply
            await in_thread(self._store.add, self.name, page.chat, frame.id, text, side="in")
            await self._deliver(message)
        except Exception as error:  # noqa: BLE001 - the page sends the message again
            log.warning("the web chat %r could not store a message: %s", self.name, error)
            await page.send("later", id=frame.id)
            return
        await page.send("taken", id=frame.id)
        self._wake(page.chat)

    async def _decide(self, page: PageConnection, frame: DecisionFrame) -> None:
        """Pass a pressed button on as the command that it stands for, with the digest of the call above it."""
        prompt = next((each for each in self._prompts.get(page.chat, ()) if each.key == frame.key), None)
        if prompt is None:
            return  # it was decided meanwhile, and the page gets the outcome
        command = {"approve": "/approve {}", "session": "/approve {} session", "deny": "/deny {}"}[frame.decision]
        message = InboundMessage(
            text=command.format(prompt.code),
            platform="web",
            chat_id=page.chat,
            sender=page.chat,
            message_id=frame.id,
            digest=prompt.digest,
        )
        self._presses[frame.id] = prompt.key
        try:
            await self._deliver(message)
        except Exception as error:  # noqa: BLE001 - the person can press the button again
            log.warning("the web chat %r could not store a decision: %s", self.name, error)
            del self._presses[frame.id]
            await page.send("asked", open=page.prompts)

    async def _uploaded(self, chat: str, file: UploadedFile) -> InboundFile:
        """Describe a file of this chat; its size is 0 if it is not stored."""
        size = await in_thread(self._store.file_size, self.name, chat, file.id) if is_id(file.id) else 0
        return InboundFile(f"{chat}/{file.id}", file_name(file.name) or "file", size)

    async def _send_updates(self, page: PageConnection) -> None:
        """Send new and changed messages and states to a page, whenever it is woken."""
        try:
            while True:
                page.wake.clear()
                if page.typing:
                    page.typing = False
                    await page.send("typing")
                activity = self._activity.get(page.chat, IDLE)
                if activity != page.activity:
                    page.activity = activity
                    await page.send("work", answering=activity[0], waiting=activity[1])
                prompts = self._prompts.get(page.chat, ())
                if prompts != page.prompts:
                    page.prompts = prompts
                    await page.send("asked", open=prompts)
                draft = self._drafts.get(page.chat)
                if draft != page.draft:
                    await page.send_draft(draft)
                found: Sequence[ChatMessage] = await in_thread(
                    self._store.since, self.name, page.chat, page.rev, limit=_BATCH
                )
                for message in found:
                    await page.send("message", **message_fields(message))
                    page.rev = message.rev
                if len(found) < _BATCH:
                    await page.wake.wait()
        except Exception as error:  # noqa: BLE001 - the page reconnects and gets the messages then
            log.debug("updates of a page of %r ended: %s", self.name, error)
            await close_socket(page.socket, 1011, "the server has a problem")

    async def _poll(self) -> None:
        """Wake the pages of conversations in which another process stored a message."""
        while True:
            await asyncio.sleep(POLL_INTERVAL)
            if not self._pages:
                continue
            try:
                self._newest, chats = await in_thread(self._store.changed, self.name, self._newest)
            except StoreError as error:
                log.error("the web chat %r cannot read its messages: %s", self.name, error)
                continue
            for chat in chats:
                self._wake(chat)

    def _stop_typing(self, chat: str) -> None:
        for page in self._pages:
            if page.chat == chat:
                page.typing = False

    def _wake(self, chat: str, typing: bool = False) -> None:
        for page in self._pages:
            if page.chat == chat:
                page.typing = page.typing or typing
                page.wake.set()


def hashed_chat_id(id: str) -> str:
    """Return the chat id of a conversation for the gateway: a hash of the secret id that the browser generated."""
    return "web-" + sha256(f"hookline chat {id}".encode()).hexdigest()[:32]
