"""Several MCP servers behind one endpoint of streamable HTTP, for clients of both forms of the protocol.

A client of the handshake form has a session with servers of its own. Clients of the stateless form share the servers of
their caller: of their API key, or of this machine. ``_web`` checks hosts, origins and the size of bodies.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any

from ..._base.errors import HooklineError, NotInstalledError
from ..._base.workers import in_thread
from ..._web.http_server import HttpServer
from ..._web.middleware import ClientDisconnectedError, is_local
from ...stores.errors import StoreError
from ...stores.keys import KeyStore
from .guards import Guards
from .hub import HANDSHAKE, STATELESS, Hub, ServerSettings
from .process import MAX_MESSAGE
from .protocol import (
    INVALID_REQUEST,
    REFUSED,
    VERSION,
    Message,
    MessageError,
    decode,
    encode,
    error_of,
    id_key,
    is_id,
    meta_of,
)

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

PATH = "/mcp"
SESSION, PROTOCOL = "mcp-session-id", "mcp-protocol-version"
MAX_SESSIONS = 100
"""Maximum number of sessions: each has processes of its own."""
IDLE_SECONDS = 1800.0
MAX_QUEUED = 10_000
"""Maximum number of messages that wait for a client that does not read them."""
PING_SECONDS = 15.0
LOCAL = "local"

log = logging.getLogger("hookline")


class Exchange:
    """One request of a client, and the messages that belong to it."""

    def __init__(self, ident: Any, token: Any) -> None:
        self.ident, self.token = ident, token
        self.messages: asyncio.Queue[Message] = asyncio.Queue(MAX_QUEUED)


class HttpSession:
    """One session, or the requests of one caller without sessions."""

    def __init__(self, make_hub: Callable[[Any], Hub], caller: str) -> None:
        self.id = secrets.token_urlsafe(32)
        self.caller = caller
        self.hub = make_hub(self._to_client)
        self.used = time.monotonic()
        self.exchanges: dict[int, Exchange] = {}
        self.listeners: list[asyncio.Queue[Message]] = []
        self._numbers = count(1)

    async def open(self, message: Message) -> tuple[int, Exchange]:
        """Pass on a request under an id of our own, because clients without a session may use the same."""
        number = next(self._numbers)
        params: Message = message.get("params") or {}
        meta: Mapping[str, Any] = meta_of(params)
        exchange = self.exchanges[number] = Exchange(message["id"], meta.get("progressToken"))
        if "progressToken" in meta:
            message = {**message, "params": {**params, "_meta": {**meta, "progressToken": number}}}
        await self.hub.take(encode({**message, "id": number}))
        return number, exchange

    async def cancel(self, number: int) -> None:
        """Cancel a request, because its client has gone."""
        if self.exchanges.pop(number, None) is not None:
            params = {"requestId": number, "reason": "the client has gone"}
            await self.hub.take(encode({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}))

    async def note(self, message: Message) -> None:
        """Pass on a notification or an answer."""
        if message.get("method") == "notifications/cancelled":
            params = message.get("params")
            wanted = id_key(params.get("requestId")) if isinstance(params, dict) else None
            for number, exchange in list(self.exchanges.items()):
                if id_key(exchange.ident) == wanted:
                    await self.cancel(number)
                    _put(exchange.messages, error_of(exchange.ident, REFUSED, "cancelled"))
            return
        await self.hub.take(encode(message))

    async def _to_client(self, line: bytes) -> None:
        message = decode(line)
        if "method" not in message:
            exchange = self.exchanges.pop(message.get("id"), None)  # type: ignore[arg-type]
            if exchange is not None:
                _put(exchange.messages, {**message, "id": exchange.ident})
            return
        given = message.get("params")
        params: Message = given if isinstance(given, dict) else {}
        number = params.get("progressToken")
        if message["method"] == "notifications/progress" and number in self.exchanges:
            exchange = self.exchanges[number]
            _put(exchange.messages, {**message, "params": {**params, "progressToken": exchange.token}})
        elif "id" in message and self.exchanges:
            _put(next(reversed(self.exchanges.values())).messages, message)
        else:
            for listener in self.listeners:
                _put(listener, message)

    @property
    def is_idle(self) -> bool:
        """Whether nobody has used the session for long."""
        return not self.exchanges and not self.listeners and time.monotonic() > self.used + IDLE_SECONDS


class Endpoint:
    """The routes of the gateway.

    Args:
        servers: the servers behind it.
        guards: the hooks.
        keys: the API keys; callers need one as soon as there is one, and from other machines.
    """

    def __init__(
        self,
        servers: Sequence[ServerSettings],
        guards: Guards,
        keys: KeyStore,
        *,
        ask_first: bool = False,
        max_message: int = MAX_MESSAGE,
    ) -> None:
        self._keys = keys
        self._sessions: dict[str, HttpSession] = {}
        self._stateless: dict[str, HttpSession] = {}
        self._make_hub = lambda send: Hub(servers, guards, send, ask_first=ask_first, max_message=max_message)

    def routes(self) -> Sequence[Any]:
        """Return the Starlette routes to serve."""
        from starlette.routing import Route

        return [Route(PATH, self._handle, methods=["GET", "POST", "DELETE"])]

    def check_exposed(self) -> None:
        """Check that other machines need a key.

        Raises:
            HooklineError: there are no keys.
        """
        with suppress(StoreError):
            self._keys.refresh()
        if self._keys.is_empty:
            raise HooklineError(
                "callers from other machines need API keys: create one with hookline keys add NAME --scope run"
            )

    async def close(self) -> None:
        """End all sessions."""
        sessions = [*self._sessions.values(), *self._stateless.values()]
        self._sessions, self._stateless = {}, {}
        await asyncio.gather(*(each.hub.close() for each in sessions))

    async def _handle(self, request: Request) -> Response:
        from starlette.responses import Response

        caller = await self._caller(request)
        if caller is None:
            return Response("send Authorization: Bearer hl_...", 401, {"www-authenticate": "Bearer"})
        await self._end_idle()
        if request.method == "POST":
            return await self._post(request, caller)
        session = self._session(request, caller)
        if session is None:
            return Response("there is no such session", 404)
        if request.method == "DELETE":
            del self._sessions[session.id]
            await session.hub.close()
            return Response(status_code=204)
        return _stream(_listen(session))

    async def _caller(self, request: Request) -> str | None:
        """Return the caller of a request; ``None`` if it has no valid key and needs one."""
        try:
            await in_thread(self._keys.refresh)
            if self._keys.is_empty:
                return LOCAL if is_local(request.scope) else None
            scheme, _, secret = request.headers.get("authorization", "").partition(" ")
            row = await in_thread(self._keys.find, secret.strip()) if scheme.lower() == "bearer" else None
        except StoreError:
            log.exception("the keys cannot be read")
            return None
        return None if row is None or not {"run", "admin"} & set(row.scopes) else row.id

    def _session(self, request: Request, caller: str) -> HttpSession | None:
        session = self._sessions.get(request.headers.get(SESSION, ""))
        if session is None or session.caller != caller:
            return None
        session.used = time.monotonic()
        return session

    async def _end_idle(self) -> None:
        for known in (self._sessions, self._stateless):
            for key, session in list(known.items()):
                if session.is_idle:
                    del known[key]
                    await session.hub.close()

    async def _post(self, request: Request, caller: str) -> Response:
        from starlette.responses import JSONResponse, Response

        try:
            message = decode(await request.body())
        except MessageError as error:
            return JSONResponse(error_of(None, error.code, str(error)), 400)
        params = message.get("params") or {}
        if not isinstance(params, dict) or not isinstance(message.get("method", ""), str):
            return JSONResponse(error_of(None, INVALID_REQUEST, "this is not a JSON-RPC message"), 400)
        modern = VERSION in meta_of(params) or request.headers.get(PROTOCOL) in STATELESS
        if modern:
            if (problem := _stateless_problem(request, message)) is not None:
                return JSONResponse(problem, 400)
            if "id" not in message or "method" not in message:
                return Response(status_code=202)
            session = self._stateless.get(caller)
            if session is None:
                session = self._stateless[caller] = HttpSession(self._make_hub, caller)
            if (problem := await _param_problem(request, message, session.hub)) is not None:
                return JSONResponse(problem, 400)
        elif message.get("method") == "initialize":
            if len(self._sessions) >= MAX_SESSIONS:
                return JSONResponse(error_of(message.get("id"), REFUSED, "there are too many sessions"), 503)
            session = HttpSession(self._make_hub, caller)
            self._sessions[session.id] = session
        elif (found := self._session(request, caller)) is None:
            status = 404 if SESSION in request.headers else 400
            return JSONResponse(error_of(None, INVALID_REQUEST, "there is no such session: initialize one"), status)
        else:
            session = found
            if (version := request.headers.get(PROTOCOL)) is not None and version not in HANDSHAKE:
                return JSONResponse(error_of(None, INVALID_REQUEST, f"unknown protocol version {version:.40}"), 400)
        session.used = time.monotonic()
        if "method" not in message or "id" not in message:
            await session.note(message)
            return Response(status_code=202)
        if any(id_key(each.ident) == id_key(message["id"]) for each in session.exchanges.values()) and not modern:
            return JSONResponse(error_of(None, INVALID_REQUEST, "a request with this id is in flight"), 400)
        number, exchange = await session.open(message)
        headers = {SESSION: session.id} if message["method"] == "initialize" else {}
        first = await self._first(request, session, number, exchange)
        if first is None:
            return Response(status_code=499)
        if "method" not in first:
            return JSONResponse(first, headers=headers)
        return _stream(_answers(session, number, exchange, first, ends=modern), headers)

    async def _first(self, request: Request, session: HttpSession, number: int, exchange: Exchange) -> Message | None:
        """Return the first message for a request; ``None`` if its client has gone."""
        first = asyncio.ensure_future(exchange.messages.get())
        gone = asyncio.ensure_future(_gone(request))
        try:
            await asyncio.wait((first, gone), return_when=asyncio.FIRST_COMPLETED)
            if first.done():
                return first.result()
            await session.cancel(number)
            return None
        finally:
            first.cancel()
            gone.cancel()


async def _gone(request: Request) -> None:
    """Wait until the client has closed its connection."""
    with suppress(ClientDisconnectedError):
        while (await request.receive())["type"] != "http.disconnect":
            pass


async def _answers(
    session: HttpSession, number: int, exchange: Exchange, first: Message, *, ends: bool
) -> AsyncIterator[bytes]:
    """Yield the messages of a request, and its response."""
    message = first
    try:
        while True:
            yield _event(message)
            if "method" not in message:
                return
            message = await _next(exchange.messages)
            while not message:
                yield b": ping\n\n"
                message = await _next(exchange.messages)
    finally:
        if ends or number in session.exchanges:
            await session.cancel(number)


async def _listen(session: HttpSession) -> AsyncIterator[bytes]:
    """Yield what the servers say outside of requests."""
    queue: asyncio.Queue[Message] = asyncio.Queue(MAX_QUEUED)
    session.listeners.append(queue)
    try:
        yield b": open\n\n"
        while True:
            message = await _next(queue)
            yield _event(message) if message else b": ping\n\n"
    finally:
        session.listeners.remove(queue)
        session.used = time.monotonic()


async def _next(queue: asyncio.Queue[Message]) -> Message:
    """Return the next message, or an empty one after a while."""
    try:
        async with asyncio.timeout(PING_SECONDS):
            return await queue.get()
    except TimeoutError:
        return {}


def _put(queue: asyncio.Queue[Message], message: Message) -> None:
    with suppress(asyncio.QueueFull):  # the client does not read
        queue.put_nowait(message)


def _event(message: Message) -> bytes:
    return b"event: message\ndata: " + encode(message) + b"\n\n"


def _stream(events: AsyncIterator[bytes], headers: dict[str, str] | None = None) -> Response:
    from starlette.responses import StreamingResponse

    return StreamingResponse(events, media_type="text/event-stream", headers=headers)


def _stateless_problem(request: Request, message: Message) -> Message | None:
    """Return the error of a request whose headers do not say what its body says: other programs route by them."""
    from mcp.shared.inbound import InboundLadderRejection, classify_inbound_request, find_duplicated_routing_header

    if "id" not in message:
        return None
    ident = message["id"] if is_id(message["id"]) else None
    if (name := find_duplicated_routing_header(request.headers.items())) is not None:
        return error_of(ident, INVALID_REQUEST, f"the header {name} occurs twice")
    found = classify_inbound_request(message, headers=request.headers, supported_modern_versions=STATELESS)
    if not isinstance(found, InboundLadderRejection):
        return None
    answer = error_of(ident, found.code, found.message)
    if found.data is not None:
        answer["error"]["data"] = found.data
    return answer


async def _param_problem(request: Request, message: Message, hub: Hub) -> Message | None:
    """Return the error of a call whose ``Mcp-Param-*`` headers are not those of its arguments."""
    from mcp.shared.inbound import MCP_PARAM_HEADER_PREFIX, validate_mcp_param_headers

    params = message.get("params") or {}
    arguments = params.get("arguments") or {}
    if message["method"] != "tools/call" or not isinstance(arguments, dict):
        return None
    if not arguments and not any(name.startswith(MCP_PARAM_HEADER_PREFIX.lower()) for name in request.headers):
        return None
    schema = await hub.schema_of(str(params.get("name")))
    found = None if schema is None else validate_mcp_param_headers(schema, arguments, request.headers)
    return None if found is None else error_of(message["id"], found.code, found.message)


async def start(endpoint: Endpoint, host: str, port: int, *, max_message: int = MAX_MESSAGE) -> HttpServer:
    """Serve an endpoint, and return its server.

    Raises:
        HooklineError: it cannot be served.
    """
    try:
        import mcp.shared.inbound  # noqa: F401
    except ImportError as error:
        raise NotInstalledError("mcp", "mcp") from error
    server = HttpServer([endpoint], host, port, max_body=max_message, extra="server")
    await server.start()
    return server
