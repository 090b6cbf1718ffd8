"""The web channel: a chat page for browsers."""

from __future__ import annotations

import asyncio
import html
import logging
import os
import shlex
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ..._base.attachment import MAX_SIZE, check_size, file_name, size_text
from ..._base.errors import NotInstalledError
from ..._base.files import user_folder
from ..._base.workers import in_thread
from ..._web.chat.page import ASSETS, chat_asset, chat_markup
from ..._web.chat.protocol import (
    BEAT,
    BEAT_SECONDS,
    EVENT_STREAM,
    SUGGESTIONS,
    NewDecision,
    NewFile,
    NewMessage,
    NewStop,
    Settings,
    chat_of,
    encode,
    is_id,
)
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
    Opening,
    Step,
    UndeliverableError,
)
from ..receiving import DeliveryGate
from ..validation import checked_name, checked_path
from .login import Login
from .parts import IDLE, STEPS, PageConnection, message_part, steps_text

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

log = logging.getLogger("hookline")

T = TypeVar("T", NewMessage, NewDecision, NewStop)

MAX_TEXT = 32_000
"""Longest message, in characters."""
MAX_PAGES = 1000
"""Maximum number of connected pages."""
POLL_INTERVAL = 1.0
"""Seconds between two checks for replies that another process stored."""

_BATCH = 50
_PAGE_FOLDER = Path(__file__).parent / "page"
_FILES: Mapping[str, Callable[[str], str]] = {
    **dict.fromkeys(ASSETS, chat_asset),
    "theme.css": asset,
    "login.css": lambda name: (_PAGE_FOLDER / name).read_text("utf-8"),
}
"""The static files of the page, and what reads them."""
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
        self._opening: Callable[[], Opening] = Opening
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

    def introduce(self, opening: Callable[[], Opening]) -> None:
        """Show who answers, who else can be chosen, and what people could write first."""
        self._opening = opening

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
        self.before_stop()

    def before_stop(self) -> None:
        """End the streams of open pages."""
        for page in tuple(self._pages):
            page.closed = True
            page.wake.set()

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
        """Return routes of the page, its files, the login and the endpoints of the chat.

        Raises:
            NotInstalledError: starlette is missing.
        """
        try:
            from starlette.routing import Route
        except ModuleNotFoundError:
            raise NotInstalledError("starlette", "channels") from None
        return [
            Route(self.path, self._page, methods=["GET"]),
            *(Route(f"{self.path}{name}", self._file, methods=["GET"]) for name in _FILES),
            Route(f"{self.path}login", self._login.get, methods=["GET"]),
            Route(f"{self.path}login", self._login.post, methods=["POST"]),
            Route(f"{self.path}files", self._upload, methods=["POST"]),
            Route(f"{self.path}stream", self._stream, methods=["GET"]),
            *(
                Route(f"{self.path}{name}", handler, methods=["POST"])
                for name, handler in (("messages", self._message), ("decisions", self._decision), ("stop", self._stop))
            ),
        ]

    async def _page(self, request: Request) -> Response:
        from starlette.responses import HTMLResponse, PlainTextResponse

        if not self._is_allowed(request.scope):
            return PlainTextResponse("This chat has no token, so only the machine that serves it can use it.", 403)
        opening = self._opening()
        settings = Settings(
            title=self.title,
            root="",
            renderer="./text.js",
            speakers=opening.speakers,
            speaker=opening.speakers[0].id if opening.speakers else "",
            suggestions=opening.suggestions or SUGGESTIONS,
            about=opening.about,
            max_text=self._max_text,
            max_file=self._max_file,
            parts=True,
            commands=True,
            new_text=notices.NEW,
        )
        template = Template((_PAGE_FOLDER / "index.html").read_text("utf-8"))
        page = template.substitute(title=html.escape(self.title), chat=chat_markup(settings))
        return HTMLResponse(page, headers={"Content-Security-Policy": _CONTENT_SECURITY_POLICY})

    async def _file(self, request: Request) -> Response:
        from starlette.responses import Response

        name = request.url.path.rpartition("/")[2]
        kind = "text/css" if name.endswith(".css") else "text/javascript"
        text = _FILES[name](name)
        return Response(text, headers={"Cache-Control": "no-cache"}, media_type=kind)

    async def _upload(self, request: Request) -> Response:
        """Store a part of a file. Parts are smaller than the usual limit for requests, which protects all routes."""
        from starlette.responses import JSONResponse

        if not self._is_allowed(request.scope) or not self._login.is_logged_in(request.cookies):
            return _error(401, "You are not logged in.")
        chat, (id, offset) = chat_of(request), (request.headers.get(f"x-{name}", "") for name in ("file", "offset"))
        if not (is_id(chat) and is_id(id) and offset.isascii() and offset.isdecimal() and len(offset) <= 12):
            return _error(400, "The headers X-Chat, X-File and X-Offset are needed.")
        data = await request.body()
        if int(offset) + len(data) > self._max_file:
            return _error(413, f"A file may have at most {size_text(self._max_file)}.")
        try:
            size = await in_thread(self._store.add_file_part, self.name, hashed_chat_id(chat), id, int(offset), data)
        except StoreError as error:
            log.error("the web chat %r cannot store a file: %s", self.name, error)
            return _error(503, "The file could not be stored.")
        if size is None:
            return _error(503, "There is no space for more files: try again later.")
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

    def _refusal(self, request: Request) -> Response | None:
        """Return the response to a request that is not allowed, or does not name a conversation."""
        if not self._is_allowed(request.scope):
            return _error(403, "This chat has no token, so only the machine that serves it can use it.")
        if not self._login.is_logged_in(request.cookies):
            return _error(401, "You are not logged in.")
        if not is_id(chat_of(request)):
            return _error(400, "The header X-Chat must have the id of a conversation.")
        return None if self._deliver.is_open else _error(503, "The server is starting or stopping.")

    async def _stream(self, request: Request) -> Response:
        from starlette.responses import StreamingResponse

        if (refusal := self._refusal(request)) is not None:
            return refusal
        if len(self._pages) >= MAX_PAGES:
            return _error(503, "Too many pages are open: try again soon.")
        given = request.query_params.get("after", "0")
        after = int(given) if given.isascii() and given.isdecimal() and len(given) <= 15 else -1
        try:
            newest, _ = await in_thread(self._store.changed, self.name, 2**62)
        except StoreError as error:
            log.error("the web chat %r cannot read its messages: %s", self.name, error)
            return _error(503, "The messages cannot be read now.")
        reset = not 0 <= after <= newest
        page = PageConnection(hashed_chat_id(chat_of(request)), 0 if reset else after)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(self._events(page, reset), headers=headers, media_type=EVENT_STREAM)

    async def _events(self, page: PageConnection, reset: bool) -> AsyncIterator[bytes]:
        """Yield new and changed messages and states whenever the page is woken, and a sign of life every second."""
        self._pages.add(page)
        try:
            yield encode({"ready": {"reset": reset}})
            while not page.closed:
                page.wake.clear()
                found: Sequence[ChatMessage] = await in_thread(
                    self._store.since, self.name, page.chat, page.rev, limit=_BATCH
                )
                parts = page.changes(
                    self._activity.get(page.chat, IDLE), self._prompts.get(page.chat, ()), self._drafts.get(page.chat)
                )
                for message in found:
                    parts[f"message:{message.seq}"] = message_part(message)
                    page.rev = message.rev
                if parts:
                    yield encode(parts)
                while len(found) < _BATCH and not page.wake.is_set():
                    with suppress(TimeoutError):
                        async with asyncio.timeout(BEAT_SECONDS):
                            await page.wake.wait()
                    if not page.wake.is_set():
                        yield BEAT
        except StoreError as error:  # the page reconnects and gets the messages then
            log.error("the web chat %r cannot read its messages: %s", self.name, error)
        finally:
            self._pages.discard(page)

    async def _message(self, request: Request) -> Response:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        given = await _body(request, NewMessage)
        if given is None:
            return _invalid()
        chat = hashed_chat_id(chat_of(request))
        if len(given.text) > self._max_text or not (given.text.strip() or given.files):
            return _error(422, f"a message must have 1 to {self._max_text} characters")
        files = [await self._uploaded(chat, file) for file in given.files]
        if missing := [file.name for file in files if not file.size]:
            return _error(422, f"{missing[0]} is not stored any more: attach it again")
        text = " ".join([*(f"[{file.name}]" for file in files), given.text]).rstrip()
        message = InboundMessage(
            text=text,
            platform="web",
            chat_id=chat,
            sender=chat,
            message_id=given.id,
            attachments=("file",) * len(files),
            files=tuple(files),
        )
        try:  # stored in the chat first, so that it comes before its reply
            await in_thread(self._store.add, self.name, chat, given.id, text, side="in")
            await self._deliver(message)
        except Exception as error:  # noqa: BLE001 - the page sends the message again
            log.warning("the web chat %r could not store a message: %s", self.name, error)
            return _error(503, "The message could not be stored.")
        self._wake(chat)
        return _done()

    async def _decision(self, request: Request) -> Response:
        """Pass a decision on as the command that it stands for, with the digest of the call that the person saw."""
        if (refusal := self._refusal(request)) is not None:
            return refusal
        given = await _body(request, NewDecision)
        if given is None:
            return _invalid()
        chat = hashed_chat_id(chat_of(request))
        prompt = next((each for each in self._prompts.get(chat, ()) if each.key == given.key), None)
        if prompt is None:
            return _done()  # it was decided meanwhile, and the page gets the outcome
        command = f"/{given.decision} {prompt.code} {_argument_of(given)}".rstrip()
        self._presses[given.id] = prompt.key
        if not await self._pass_on(chat, given.id, command, given.digest):
            del self._presses[given.id]
            return _error(503, "The decision could not be stored. Try again.")
        return _done()

    async def _stop(self, request: Request) -> Response:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        given = await _body(request, NewStop)
        if given is None:
            return _invalid()
        stored = await self._pass_on(hashed_chat_id(chat_of(request)), given.id, "/stop")
        return _done() if stored else _error(503, "The server could not stop it now. Try again.")

    async def _pass_on(self, chat: str, id: str, command: str, digest: str = "") -> bool:
        """Deliver a command that a button of the page stands for, and return whether it is stored."""
        message = InboundMessage(text=command, platform="web", chat_id=chat, sender=chat, message_id=id, digest=digest)
        try:
            await self._deliver(message)
        except Exception as error:  # noqa: BLE001 - the person can press the button again
            log.warning("the web chat %r could not store a command: %s", self.name, error)
            return False
        return True

    async def _uploaded(self, chat: str, file: NewFile) -> InboundFile:
        """Describe a file of this chat; its size is 0 if it is not stored."""
        size = await in_thread(self._store.file_size, self.name, chat, file.id) if is_id(file.id) else 0
        return InboundFile(f"{chat}/{file.id}", file_name(file.name) or "file", size)

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


def _error(status: int, message: str) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse({"error": message}, status)


def _invalid() -> Response:
    return _error(400, "The request is not valid.")


def _done() -> Response:
    from starlette.responses import Response

    return Response(status_code=204)


async def _body(request: Request, kind: type[T]) -> T | None:
    """Return the body of a request; ``None`` if it is invalid."""
    try:
        given = msgspec.json.decode(await request.body(), type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None
    return given if is_id(given.id) else None


def _argument_of(given: NewDecision) -> str:
    """Return what follows the code of a call in the command for a decision."""
    if given.decision == "edit":
        return given.arguments
    if given.decision == "deny":
        return " ".join(given.message.split())
    words = [f"{name}={glob}" for name, glob in (given.pattern or {}).items()]
    return "" if given.remember == "once" else shlex.join([given.remember, *words])
