"""The webhook channel: other programs post signed messages, and replies are posted back or fetched."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

from ..._base.errors import NotInstalledError
from ..._base.files import user_folder
from ..._base.tasks import wait_at_most
from ..._base.workers import in_thread
from ..._net.signatures import HEADER, TOLERANCE, SignatureError, verify
from ...stores.chats import ChatStore
from ...stores.errors import StoreError
from ...stores.messages import InboundMessage, OutboundMessage
from ..protocol import Address, Capabilities, ChannelError, Deliver, Health
from ..receiving import DeliveryGate
from ..validation import checked_name, checked_path, checked_secrets
from .callback import Callback

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

log = logging.getLogger("hookline")

MAX_ID = 200
"""Longest id, in characters."""
MAX_WAIT = 30.0
"""Longest time that a request for replies may wait, in seconds."""
PAGE = 100
"""Number of replies in one response."""

_MAX_REMEMBERED = 10_000
_ID = re.compile(rf"[^\x00-\x1f\x7f\ud800-\udfff]{{1,{MAX_ID}}}")
_FIELDS = ("id", "chat", "text", "sender", "thread")
_REQUIRED = ("id", "chat", "text")
_FLAG = "automated"


class _RequestError(Exception):
    def __init__(self, status: int, code: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers


class WebhookChannel:
    """Receive signed JSON messages by POST, and post the replies to a URL or keep them until they are fetched.

    Example::

        WebhookChannel(secret=os.environ["WEBHOOK_SECRET"], callback="https://example.org/replies")

    Args:
        name: the name of the channel.
        secret: the secret for signatures, at least 16 characters. Several secrets are accepted while one is being
            replaced; the first one signs replies.
        path: the path for messages; ``/webhook/NAME`` if left out.
        callback: the URL for replies. Without one, replies are stored and can be fetched at ``PATH/replies``.
        private: whether the host name of the callback may resolve to a private address.
        idempotent: whether the callback ignores a repeated ``Idempotency-Key``.
        store: the SQLite file for replies that wait to be fetched; by default in the data folder of the user.
        tolerance: how many seconds the time of a signature may differ from our clock.
        seconds: how long a request to the callback may take.

    Raises:
        ChannelError: the name, a secret, the path or the callback is invalid.
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
        self._deliver = DeliveryGate()
        self._new_reply = _Notifier()
        self._server_stops = False
        self._digests: OrderedDict[tuple[str, str], bytes] = OrderedDict()

    def __repr__(self) -> str:
        return f"WebhookChannel({self.name!r}, path={self.path!r})"

    def clean_stored(self, clean: Callable[[str], str]) -> None:
        """Clean the texts of all replies before they are stored."""
        if self._store is not None:
            self._store.clean = clean

    async def start(self, deliver: Deliver) -> None:
        """Start to accept messages."""
        self._server_stops = False
        self._deliver.open(deliver)

    async def stop(self) -> None:
        """Accept no more messages, and end the requests that wait for replies."""
        await self._deliver.close()
        self._new_reply.notify_all()

    def before_stop(self) -> None:
        """End the requests that wait for replies, before the web server stops."""
        self._server_stops = True
        self._new_reply.notify_all()

    def health(self) -> Health:
        """Whether messages are accepted, and whether the last request to the callback succeeded."""
        if not self._deliver.is_open:
            return Health(False, "not started")
        problem = self._callback.problem if self._callback is not None else None
        return Health(problem is None, problem or f"POST {self.path}")

    async def send(self, address: Address, message: OutboundMessage, *, key: str) -> str:
        """Post the reply to the callback, or store it until it is fetched. The key is its id.

        Raises:
            ChannelError: the callback does not accept it at the moment, or it cannot be stored.
            UndeliverableError: the callback rejected it.
        """
        thread = address.thread_id or message.thread_id
        if self._callback is not None:
            await self._callback.post(_reply(key, address.chat_id, message.text, thread, message.reply_to), key)
            return key
        assert self._store is not None
        try:
            await in_thread(
                self._store.add, self.name, address.chat_id, key, message.text, thread=thread, reply_to=message.reply_to
            )
        except StoreError as error:
            raise ChannelError(f"the reply cannot be stored: {error}") from error
        self._new_reply.notify(address.chat_id)
        return key

    def routes(self) -> Sequence[Any]:
        """Return a POST route for messages, and a GET route for replies if there is no callback.

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
            return await self._receive(request)
        except _RequestError as error:
            return _error_response(error)

    async def _receive(self, request: Request) -> Response:
        if not self._deliver.is_open:
            text = "the channel accepts no messages at the moment: try again soon"
            raise _RequestError(503, "closed", text, **{"Retry-After": "2"})
        content_type = request.headers.get("content-type", "").replace(" ", "").lower()
        if content_type not in ("application/json", "application/json;charset=utf-8"):
            raise _RequestError(415, "bad_type", "the Content-Type must be application/json, in UTF-8")
        if request.headers.get("content-encoding", "identity") != "identity":
            raise _RequestError(415, "bad_type", "compressed bodies are not accepted: send no Content-Encoding")
        self._require_signature(request)
        body = await request.body()
        self._verify(request, body)
        message = _parse_message(body)
        try:
            is_new = await self._accept(message)
        except ChannelError as error:
            retry_after = {"Retry-After": str(max(1, round(error.retry_after or 5)))}
            raise _RequestError(503, "not_now", str(error), **retry_after) from error
        except _RequestError:
            raise
        except Exception as error:
            log.exception("the channel %r could not store a message", self.name)
            text = "the message could not be stored: try again soon"
            raise _RequestError(503, "not_now", text, **{"Retry-After": "5"}) from error
        status = "accepted" if is_new else "known"
        return _json_response(202 if is_new else 200, {"status": status, "id": message.message_id})

    async def _accept(self, message: InboundMessage) -> bool:
        """Deliver a message and return whether it is new.

        The gateway ignores an id that it has already received. An id that was used for a different message is an error
        of the sender.
        """
        identity = (message.chat_id, message.message_id)
        digest = sha256(repr((message.text, message.sender, message.thread_id)).encode()).digest()
        if self._digests.setdefault(identity, digest) != digest:
            raise _RequestError(
                409, "id_taken", "this id was used for a different message in this chat: use a new id for each message"
            )
        try:
            is_new = await self._deliver(message)
        except BaseException:
            self._digests.pop(identity, None)
            raise
        while len(self._digests) > _MAX_REMEMBERED:
            self._digests.popitem(last=False)
        return is_new

    def _require_signature(self, request: Request) -> None:
        """Reject a request without a signature before its body is read."""
        if len(request.headers.getlist(HEADER)) != 1:
            raise _RequestError(401, "no_signature", f"the request must have exactly one {HEADER} header")

    def _verify(self, request: Request, body: bytes) -> None:
        try:
            verify(self._secrets, request.headers[HEADER], body, tolerance=self._tolerance)
        except SignatureError as error:
            raise _RequestError(401, error.code, str(error)) from None

    async def _get(self, request: Request) -> Response:
        try:
            return await self._fetch_replies(request)
        except _RequestError as error:
            return _error_response(error)

    async def _fetch_replies(self, request: Request) -> Response:
        self._require_signature(request)
        query = request.scope["query_string"]
        self._verify(request, b"GET " + request.scope["raw_path"] + (b"?" + query if query else b""))
        chat, after, wait = _parse_query(request.query_params)
        assert self._store is not None
        deadline = time.monotonic() + wait
        while True:
            with self._new_reply.subscribe(chat) as new_reply:
                try:
                    found = await in_thread(self._store.since, self.name, chat, after, limit=PAGE, side="out")
                except StoreError as error:
                    log.error("the replies of the channel %r cannot be read: %s", self.name, error)
                    raise _RequestError(503, "not_now", "the replies cannot be read: try again soon") from None
                left = deadline - time.monotonic()
                if found or left <= 0 or self._server_stops or not self._deliver.is_open:
                    break
                await wait_at_most(new_reply, min(left, 1.0))  # another process may store one
        replies = [
            {**_reply(each.key, chat, each.text, each.thread, each.reply_to), "at": round(each.at, 3)} for each in found
        ]
        last = found[-1].rev if found else after
        return _json_response(200, {"replies": replies, "after": last, "more": len(found) == PAGE})


class _Notifier:
    """Wake the requests that wait for replies in a chat."""

    def __init__(self) -> None:
        self._events: dict[str, set[asyncio.Event]] = {}

    @contextmanager
    def subscribe(self, chat: str) -> Iterator[asyncio.Event]:
        """Yield an event that is set by the next notification for the chat."""
        event = asyncio.Event()
        self._events.setdefault(chat, set()).add(event)
        try:
            yield event
        finally:
            events = self._events[chat]
            events.discard(event)
            if not events:
                del self._events[chat]

    def notify(self, chat: str) -> None:
        for event in self._events.get(chat, ()):
            event.set()

    def notify_all(self) -> None:
        for chat in self._events:
            self.notify(chat)


def _reply(key: str, chat: str, text: str, thread: str, reply_to: str) -> dict[str, Any]:
    return {"type": "reply", "id": key, "chat": chat, "thread": thread, "text": text, "reply_to": reply_to}


def _parse_query(query: Mapping[str, str]) -> tuple[str, int, float]:
    chat, after, wait = query.get("chat", ""), query.get("after", "0"), query.get("wait", "0")
    if not _ID.fullmatch(chat):
        raise _RequestError(422, "bad_query", "the query must name a chat: ?chat=...")
    if not re.fullmatch(r"[0-9]{1,15}", after):
        raise _RequestError(422, "bad_query", "after must be the number from the previous response")
    if not re.fullmatch(r"[0-9]{1,2}", wait) or int(wait) > MAX_WAIT:
        raise _RequestError(422, "bad_query", f"wait must be a number of seconds from 0 to {MAX_WAIT:g}")
    return chat, int(after), float(wait)


def _parse_message(body: bytes) -> InboundMessage:
    fields = _parse_object(body)
    automated = fields.pop(_FLAG, False)
    unknown = sorted(set(fields) - set(_FIELDS))
    if unknown:
        text = f"a message has no field {unknown[0]!r:.60}; its fields are {', '.join((*_FIELDS, _FLAG))}"
        raise _RequestError(422, "unknown_field", text)
    if not isinstance(automated, bool):
        raise _RequestError(422, "bad_field", f"{_FLAG} must be true or false")
    for name in _FIELDS:
        value = fields.get(name, "" if name not in _REQUIRED else None)
        if value is None:
            raise _RequestError(422, "missing_field", f"{name} is missing")
        if not isinstance(value, str):
            raise _RequestError(422, "bad_field", f"{name} must be a string")
        if name != "text" and (value or name in _REQUIRED) and not _ID.fullmatch(value):
            text = f"{name} must have 1 to {MAX_ID} characters and no control characters"
            raise _RequestError(422, "bad_field", text)
    text = fields["text"]
    if not text.strip():
        raise _RequestError(422, "bad_field", "text is empty")
    if re.search(r"[\ud800-\udfff]", text):
        raise _RequestError(422, "bad_field", "text contains a lone surrogate (half a character)")
    return InboundMessage(
        text=text,
        platform="webhook",
        chat_id=fields["chat"],
        sender=fields.get("sender") or fields["chat"],
        message_id=fields["id"],
        thread_id=fields.get("thread", ""),
        automated=automated,
    )


def _parse_object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body.decode("utf-8"), object_pairs_hook=_unique_fields, parse_constant=_reject_constant)
    except UnicodeDecodeError as error:
        raise _RequestError(400, "bad_json", f"the body is not UTF-8: byte {error.start} is wrong") from None
    except (ValueError, RecursionError) as error:
        problem = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise _RequestError(400, "bad_json", f"the body is not valid JSON: {problem:.200}") from None
    if not isinstance(found, dict):
        raise _RequestError(422, "bad_message", "the body must be a JSON object")
    return found


def _unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the field {name!r:.60} is repeated")
        found[name] = value
    return found


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _json_response(status: int, value: Any, headers: Mapping[str, str] | None = None) -> Response:
    from starlette.responses import Response

    return Response(msgspec.json.encode(value), status, headers, media_type="application/json")


def _error_response(error: _RequestError) -> Response:
    return _json_response(error.status, {"error": {"code": error.code, "message": str(error)}}, error.headers)
