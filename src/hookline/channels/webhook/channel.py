"""A channel for programs: messages are posted, signed, and replies are posted back or fetched."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

from ..._base.errors import NotInstalledError
from ..._base.files import user_folder
from ..._base.workers import in_thread
from ...stores.chats import ChatStore
from ...stores.errors import StoreError
from ...stores.messages import InboundMessage, OutboundMessage
from ..protocol import Address, Capabilities, ChannelError, Deliver, Health
from ..receiving import Delivery
from ..validation import checked_name, checked_path, checked_secrets
from .callback import Callback
from .signatures import HEADER, TOLERANCE, SignatureError, verify

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

log = logging.getLogger("hookline")

MAX_ID = 200
"""Characters of an id."""
LONGEST_WAIT = 30.0
"""Seconds that somebody who fetches replies may wait for one."""
PAGE = 100
"""Replies in one answer."""

_REMEMBERED = 10_000
_ID = re.compile(rf"[^\x00-\x1f\x7f\ud800-\udfff]{{1,{MAX_ID}}}")
_FIELDS = ("id", "chat", "text", "sender", "thread")
_NEEDED = ("id", "chat", "text")


class _Refused(Exception):
    def __init__(self, status: int, code: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.code, self.headers = status, code, headers


class WebhookChannel:
    """Takes signed JSON messages by POST, and posts replies to a URL, or keeps them until they are fetched.

    Args:
        name: of the channel.
        secret: what senders sign with, at least 16 characters; several while one is being replaced: all are
            accepted, and the first one signs replies.
        path: where messages are posted to; ``/webhook/NAME`` if left out.
        callback: the URL that replies are posted to. Without one they are kept, to be fetched at ``PATH/replies``.
        private: whether the callback's name may lead into a network of your own.
        idempotent: whether the callback drops what comes again with the same ``Idempotency-Key``.
        store: the SQLite file where replies are kept that wait to be fetched; one of this user if left out.
        tolerance: how many seconds a signature may be off.
        seconds: how long a callback may take.

    Raises:
        ChannelError: the name, a secret, the path or the callback makes no sense.
    """

    def __init__(
        self,
        name: str = "webhook",
        *,
        secret: str | Sequence[str],
        path: str | None = None,
        callback: str | None = None,
        private: bool = False,
        idempotent: bool = False,
        store: str | os.PathLike[str] | None = None,
        tolerance: float = TOLERANCE,
        seconds: float = 20.0,
    ) -> None:
        self.name = checked_name(name)
        self.path = checked_path(path or f"/webhook/{name}").rstrip("/")
        self._secrets = checked_secrets(secret)
        self._tolerance = tolerance
        self._callback = None if callback is None else Callback(callback, self._secrets[0], private, seconds)
        self._store = None if callback is not None else ChatStore(store or user_folder("data") / "chats.db")
        self.capabilities = Capabilities(idempotent=idempotent or callback is None)
        self._delivery, self._bell = Delivery(), Bell()
        self._hung_up = False
        self._seen: OrderedDict[tuple[str, str], bytes] = OrderedDict()

    def __repr__(self) -> str:
        return f"WebhookChannel({self.name!r}, path={self.path!r})"

    async def start(self, deliver: Deliver) -> None:
        """Begin to take messages."""
        self._hung_up = False
        self._delivery.open(deliver)

    async def stop(self) -> None:
        """Take no more messages; who waits for replies is told that there are none."""
        await self._delivery.close()
        self._bell.ring_all()

    def before_stop(self) -> None:
        """The server is about to stop: who waits for replies is told that there are none yet."""
        self._hung_up = True
        self._bell.ring_all()

    def health(self) -> Health:
        """Whether messages are taken, and how the callback did last."""
        if not self._delivery.is_open:
            return Health(False, "not started")
        problem = self._callback.problem if self._callback is not None else None
        return Health(problem is None, problem or f"POST {self.path}")

    async def send(self, address: Address, message: OutboundMessage, *, key: str) -> str:
        """Post the reply to the callback, or keep it until it is fetched; the id is the key.

        Raises:
            ChannelError: the callback cannot take it now, or it cannot be stored; UndeliverableError: it never will.
        """
        thread = address.thread_id or message.thread_id
        if self._callback is not None:
            reply = _reply(key, address.chat_id, message.text, thread, message.reply_to)
            await self._callback.post(reply, key)
            return key
        assert self._store is not None
        try:
            await in_thread(
                self._store.add, self.name, address.chat_id, key, message.text, thread=thread, reply_to=message.reply_to
            )
        except StoreError as error:
            raise ChannelError(f"the reply cannot be kept: {error}") from error
        self._bell.ring(address.chat_id)
        return key

    def routes(self) -> Sequence[Any]:
        """POST for messages; GET for replies, if there is no callback.

        Raises:
            NotInstalledError: starlette is missing.
        """
        try:
            from starlette.routing import Route
        except ModuleNotFoundError:
            raise NotInstalledError("starlette", "channels") from None
        routes = [Route(self.path, self._post, methods=["POST"])]
        if self._store is not None:
            routes.append(Route(f"{self.path}/replies", self._get, methods=["GET"]))
        return routes

    async def _post(self, request: Request) -> Response:
        try:
            return await self._taken(request)
        except _Refused as refused:
            return _problem(refused)

    async def _taken(self, request: Request) -> Response:
        if not self._delivery.is_open:
            raise _Refused(503, "closed", "no messages are taken at the moment: try again soon", **{"Retry-After": "2"})
        kind = request.headers.get("content-type", "").replace(" ", "").lower()
        if kind not in ("application/json", "application/json;charset=utf-8"):
            raise _Refused(415, "bad_type", "send application/json, in UTF-8")
        if request.headers.get("content-encoding", "identity") != "identity":
            raise _Refused(415, "bad_type", "send it as it is, without a Content-Encoding")
        self._look_at_header(request)
        body = await request.body()
        self._verify(request, body)
        message = _message(body)
        try:
            fresh = await self._hand_over(message)
        except ChannelError as error:
            wait = {"Retry-After": str(max(1, round(error.retry_after or 5)))}
            raise _Refused(503, "not_now", str(error), **wait) from error
        except _Refused:
            raise
        except Exception as error:
            log.exception("the channel %r could not hand over a message", self.name)
            text = "the message could not be stored: try again soon"
            raise _Refused(503, "not_now", text, **{"Retry-After": "5"}) from error
        return _answer(202 if fresh else 200, {"status": "accepted" if fresh else "known", "id": message.message_id})

    async def _hand_over(self, message: InboundMessage) -> bool:
        """Whether the message is new. The gateway refuses an id that it knows; we see whether it meant another text."""
        which = (message.chat_id, message.message_id)
        digest = sha256(repr((message.text, message.sender, message.thread_id)).encode()).digest()
        if self._seen.setdefault(which, digest) != digest:
            raise _Refused(409, "id_taken", "this id was used for another message in this chat: give each its own")
        try:
            fresh = await self._delivery(message)
        except BaseException:
            self._seen.pop(which, None)
            raise
        while len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        return fresh

    def _look_at_header(self, request: Request) -> None:
        """Refuse who cannot have signed anything before the body is read."""
        if len(request.headers.getlist(HEADER)) != 1:
            raise _Refused(401, "no_signature", f"there must be one {HEADER} header")

    def _verify(self, request: Request, body: bytes) -> None:
        try:
            verify(self._secrets, request.headers[HEADER], body, tolerance=self._tolerance)
        except SignatureError as error:
            raise _Refused(401, error.code, str(error)) from None

    async def _get(self, request: Request) -> Response:
        try:
            return await self._replies(request)
        except _Refused as refused:
            return _problem(refused)

    async def _replies(self, request: Request) -> Response:
        self._look_at_header(request)
        query = request.scope["query_string"]
        self._verify(request, b"GET " + request.scope["raw_path"] + (b"?" + query if query else b""))
        chat, after, wait = _asked(request.query_params)
        assert self._store is not None
        end = time.monotonic() + wait
        while True:
            with self._bell.listening(chat) as news:
                try:
                    found = await in_thread(self._store.since, self.name, chat, after, limit=PAGE, side="out")
                except StoreError as error:
                    log.error("the replies of the channel %r cannot be read: %s", self.name, error)
                    raise _Refused(503, "not_now", "the replies cannot be read: try again soon") from None
                left = end - time.monotonic()
                if found or left <= 0 or self._hung_up or not self._delivery.is_open:
                    break
                try:
                    await asyncio.wait_for(news.wait(), min(left, 1.0))  # another process may have stored one
                except TimeoutError:
                    pass
        replies = [
            {**_reply(one.key, chat, one.text, one.thread, one.reply_to), "at": round(one.at, 3)} for one in found
        ]
        last = found[-1].rev if found else after
        return _answer(200, {"replies": replies, "after": last, "more": len(found) == PAGE})


def _reply(key: str, chat: str, text: str, thread: str, reply_to: str) -> dict[str, Any]:
    return {"type": "reply", "id": key, "chat": chat, "thread": thread, "text": text, "reply_to": reply_to}


def _asked(query: Mapping[str, str]) -> tuple[str, int, float]:
    chat, after, wait = query.get("chat", ""), query.get("after", "0"), query.get("wait", "0")
    if not _ID.fullmatch(chat):
        raise _Refused(422, "bad_query", "say which chat: ?chat=...")
    if not re.fullmatch(r"[0-9]{1,15}", after):
        raise _Refused(422, "bad_query", "after is the number that the answer before had as its after")
    if not re.fullmatch(r"[0-9]{1,2}", wait) or int(wait) > LONGEST_WAIT:
        raise _Refused(422, "bad_query", f"wait is a number of seconds, 0 to {LONGEST_WAIT:g}")
    return chat, int(after), float(wait)


def _message(body: bytes) -> InboundMessage:
    fields = _fields(body)
    unknown = sorted(set(fields) - set(_FIELDS))
    if unknown:
        raise _Refused(422, "unknown_field", f"{unknown[0]!r:.60} is no field of a message: {', '.join(_FIELDS)}")
    for name in _FIELDS:
        value = fields.get(name, "" if name not in _NEEDED else None)
        if value is None:
            raise _Refused(422, "missing_field", f"{name} is missing")
        if not isinstance(value, str):
            raise _Refused(422, "bad_field", f"{name} must be text")
        if name != "text" and (value or name in _NEEDED) and not _ID.fullmatch(value):
            text = f"{name} must have 1 to {MAX_ID} characters, and none that do not print"
            raise _Refused(422, "bad_field", text)
    text = fields["text"]
    if not text.strip():
        raise _Refused(422, "bad_field", "text is empty")
    if re.search(r"[\ud800-\udfff]", text):
        raise _Refused(422, "bad_field", "text has half a character (a lone surrogate)")
    return InboundMessage(
        text=text, platform="webhook", chat_id=fields["chat"], sender=fields.get("sender") or fields["chat"],
        message_id=fields["id"], thread_id=fields.get("thread", ""),
    )  # fmt: skip


def _fields(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise _Refused(400, "bad_json", f"the body is not UTF-8: byte {error.start} is wrong") from None
    except (ValueError, RecursionError) as error:
        said = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise _Refused(400, "bad_json", f"the body is not proper JSON: {said:.200}") from None
    if not isinstance(found, dict):
        raise _Refused(422, "bad_message", "the body must be a JSON object")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name!r:.60} is there twice")
        found[name] = value
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _answer(status: int, value: Any, headers: Mapping[str, str] | None = None) -> Response:
    from starlette.responses import Response

    return Response(msgspec.json.encode(value), status, headers, media_type="application/json")


def _problem(refused: _Refused) -> Response:
    return _answer(refused.status, {"error": {"code": refused.code, "message": str(refused)}}, refused.headers)


class Bell:
    """Rings for those who listen at a name; what nobody listens to is not remembered."""

    def __init__(self) -> None:
        self._events: dict[str, set[asyncio.Event]] = {}

    @contextmanager
    def listening(self, name: str) -> Iterator[asyncio.Event]:
        """An event that is set when it rings for this name, from now on."""
        event = asyncio.Event()
        self._events.setdefault(name, set()).add(event)
        try:
            yield event
        finally:
            events = self._events[name]
            events.discard(event)
            if not events:
                del self._events[name]

    def ring(self, name: str) -> None:
        """Wake all who listen at this name."""
        for event in self._events.get(name, ()):
            event.set()

    def ring_all(self) -> None:
        """Wake everybody."""
        for name in self._events:
            self.ring(name)
