"""Check every request before the application sees it: host, origin, size of the body, and time limits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from functools import lru_cache
from ipaddress import ip_address
from typing import Any

import msgspec

from .._net.urls import UrlError, address_of, bracketed, parse_host, parse_url

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
CompleteRejection = Callable[[Scope, "RequestRejectedError"], None]
"""Adds headers to the rejection of an HTTP request, and a body in the form that errors have at its path."""

log = logging.getLogger("hookline")

HEADERS = {
    "content-security-policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
"""Headers that are added to every response that does not set them itself."""

EXPOSED_HEADERS = ("X-Hookline-Run", "X-Correlation-ID", "X-Request-ID", "Retry-After", "ETag")
"""Response headers that pages of other origins may read."""

PEER = ("unix", 0)
"""The address of a client on a Unix socket of the server, in the place of an IP address: a program of the same user."""

SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))
"""Methods that change nothing."""

SEND_SECONDS = 60.0
"""Seconds that one piece of a response may wait for a client that does not read, before the response is abandoned."""

_HEADERS = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
_DEFAULT_PORTS = {"http": 80, "https": 443}
_PROXY_HEADERS = frozenset(
    b"forwarded via x-real-ip x-client-ip x-cluster-client-ip x-original-forwarded-for x-original-host true-client-ip "
    b"cf-connecting-ip fly-client-ip cdn-loop x-envoy-external-address".split()
)  # added by proxies and tunnels
_DRAIN_BYTES, _DRAIN_SECONDS = 8_000_000, 2.0


class RequestRejectedError(Exception):
    """The middleware rejects the request and answers it.

    Code in between lets the error pass, and may add headers, or a body with its type in them.
    """

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers: list[tuple[bytes, bytes]] = []
        self.body: bytes | None = None


class ClientDisconnectedError(Exception):
    """The client closed its connection or stopped reading, so the response cannot be delivered."""


def with_cors(app: App, origins: Iterable[str], *, credentials: bool = False) -> App:
    """Return an application whose responses browsers show to pages of these origins.

    Args:
        app: the application.
        origins: the origins, such as ``https://app.example.com``; without any, the application is returned as it is.
        credentials: whether these pages may send the cookies of the application.
    """
    if not (allowed := tuple(origins)):
        return app
    from starlette.middleware.cors import CORSMiddleware

    return CORSMiddleware(
        app,
        allow_origins=allowed,
        allow_methods=("*",),
        allow_headers=("*",),
        allow_credentials=credentials,
        allow_private_network=True,
        expose_headers=EXPOSED_HEADERS,
    )


def check_origin(origin: str) -> None:
    """Check an origin as browsers send it.

    Raises:
        ValueError: it is not one.
    """
    try:
        valid = parse_url(origin).origin == origin
    except UrlError:
        valid = False
    if not valid:
        raise ValueError(
            f"origins has {origin!r:.80}: an origin is a scheme and a host in lower case, and a port if it is "
            "unusual, such as https://app.example.com or http://localhost:5173"
        )


class SecurityMiddleware:
    """Reject requests for unknown hosts or from other sites' pages, and bodies that are too long or too slow.

    The requested host must be an IP address, ``localhost`` or a listed name. This stops DNS rebinding: a page on
    another site, whose name resolves to this server, cannot request any of these. Requests by pages of another origin
    are rejected too, except for safe methods, whose responses browsers hide from such pages.

    Args:
        app: the application that handles the accepted requests.
        hosts: further host names to accept; ``None`` accepts every host, for an application that authenticates all
            callers: DNS rebinding gives a page no credentials.
        origins: other origins whose pages may send requests, such as ``https://app.example.com``.
        max_body: the limit for a request body, in bytes.
        body_seconds: how long a client may take to send a request body.
        complete: completes the rejections of requests that the application does not see.
    """

    def __init__(
        self,
        app: App,
        *,
        hosts: Iterable[str] | None = (),
        origins: Iterable[str] = (),
        max_body: int,
        body_seconds: float,
        complete: CompleteRejection | None = None,
    ) -> None:
        self._app = app
        self._complete = complete
        self._max_body = max_body
        self._body_seconds = body_seconds
        self._hosts = None if hosts is None else frozenset(name.lower() for name in hosts) | {"localhost"}
        self._origins = frozenset(origin.lower() for origin in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI request."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send, self._max_body, self._body_seconds)
        try:
            self._admit(scope)
            await self._app(scope, exchange.receive, exchange.send)
            if exchange.rejection is not None:
                raise exchange.rejection
        except RequestRejectedError as rejection:
            await exchange.reject(rejection)
        except ClientDisconnectedError:
            log.debug("a client disconnected before its request was complete")

    def _admit(self, scope: Scope) -> None:
        try:
            self._check(scope)
        except RequestRejectedError as rejection:
            if self._complete is not None and scope["type"] == "http":
                self._complete(scope, rejection)
            raise

    def _check(self, scope: Scope) -> None:
        try:
            host, port = parse_host(header(scope, b"host") or "")
        except UrlError:
            raise RequestRejectedError(400, "bad_host", "the Host header is missing or is not a valid host") from None
        if self._hosts is not None and address_of(host) is None and host not in self._hosts:
            raise RequestRejectedError(
                421, "unknown_host", f"this server does not accept the host name {host}: add it to the setting hosts"
            )
        origin = header(scope, b"origin")
        if origin is None or (scope["type"] == "http" and scope["method"] in SAFE_METHODS):
            return
        if origin.lower() in self._origins:
            return
        if not _is_origin_of(origin, host, port):
            raise RequestRejectedError(403, "other_origin", "requests from pages of another site are not allowed")


class _Exchange:
    """One request and its response."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, max_body: int, body_seconds: float) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._max_body = max_body
        self._body_left = max_body
        self._body_seconds = body_seconds
        self._deadline = asyncio.get_running_loop().time() + body_seconds
        self._body_complete = scope["type"] == "websocket"
        self._started = False
        self._ended = False  # rejected or disconnected: the application can no longer respond
        self.rejection: RequestRejectedError | None = None

    async def receive(self) -> Message:
        if self._body_complete:
            return await self._receive()
        length = header(self._scope, b"content-length")
        if length is not None and length.isdecimal() and int(length) > self._max_body:
            raise self._rejecting(self._too_long())
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            late = RequestRejectedError(
                408, "too_slow", f"the request body did not arrive within {self._body_seconds:g} seconds"
            )
            raise self._rejecting(late) from None
        if message["type"] == "http.disconnect":
            self._ended = True
            raise ClientDisconnectedError
        if message["type"] == "http.request":
            self._body_left -= len(message.get("body", b""))
            self._body_complete = not message.get("more_body", False)
            if self._body_left < 0:
                raise self._rejecting(self._too_long())
        return message

    async def send(self, message: Message) -> None:
        if self._ended:
            # The application caught our error and answers it: the code in between must still see the error.
            if self.rejection is not None and message["type"] == "http.response.start":
                raise self.rejection
            return
        if message["type"] == "http.response.start":
            self._started = True
            given = list(message.get("headers", ()))
            names = {bytes(name).lower() for name, _ in given}
            message = {**message, "headers": given + [each for each in _HEADERS if each[0] not in names]}
        elif message["type"] == "websocket.accept":
            self._started = True
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await self._send(message)
        except TimeoutError:
            log.info("abandoned the response to a client that did not read for %g s", SEND_SECONDS)
            self._ended = True
            raise ClientDisconnectedError from None
        if message.get("more_body"):
            # Sending to a closed connection never blocks, so a stream to it would block the event loop.
            await asyncio.sleep(0)

    def _rejecting(self, rejection: RequestRejectedError) -> RequestRejectedError:
        self._ended = not self._started
        self.rejection = rejection if self._ended else None
        return rejection

    def _too_long(self) -> RequestRejectedError:
        return RequestRejectedError(413, "too_long", f"the request body is longer than {self._max_body} bytes")

    async def reject(self, rejection: RequestRejectedError) -> None:
        if self._started:
            raise rejection
        self._ended = False
        if self._scope["type"] == "websocket":
            log.info("rejected a WebSocket connection: %s", rejection.message)
            await self._receive()
            await self._send({"type": "websocket.close", "code": 1008, "reason": rejection.code})
            return
        headers, body = list(rejection.headers), rejection.body
        if body is None:
            body = msgspec.json.encode({"error": {"code": rejection.code, "message": rejection.message}})
            headers.append((b"content-type", b"application/json"))
        headers.append((b"content-length", str(len(body)).encode()))
        if not self._body_complete:
            headers.append((b"connection", b"close"))
        await self.send({"type": "http.response.start", "status": rejection.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body, "more_body": True})
        await self._drain()
        await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _drain(self) -> None:
        """Read the rest of the request for a while: closing the connection while the client still sends would reset it,
        and the response would be lost.
        """
        left = 0 if self._body_complete or header(self._scope, b"expect") is not None else _DRAIN_BYTES
        try:
            async with asyncio.timeout(_DRAIN_SECONDS):
                while left > 0:
                    message = await self._receive()
                    left -= len(message.get("body", b""))
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            pass  # the client had enough time to read the response


def header(scope: Scope, name: bytes) -> str | None:
    """Return a request header: ``None`` if it is absent, empty if it occurs more than once."""
    found = [value for key, value in scope["headers"] if key == name]
    return None if not found else found[0].decode("latin-1") if len(found) == 1 else ""


def is_same_origin(scope: Scope) -> bool:
    """Return whether the page that sends a request is one of this server, as the browser says in ``Origin``."""
    try:
        return _is_origin_of(header(scope, b"origin") or "", *parse_host(header(scope, b"host") or ""))
    except UrlError:
        return False


def _is_origin_of(origin: str, host: str, port: int | None) -> bool:
    """Return whether an origin is that of the pages at a host; ``port`` is ``None`` for the usual one."""
    scheme, _, location = origin.partition("://")
    default = _DEFAULT_PORTS.get(scheme, 0)
    try:
        origin_host, origin_port = parse_host(location)
    except UrlError:
        return False
    return bool(default) and (origin_host, origin_port or default) == (host, port or default)


@lru_cache(maxsize=1024)
def is_loopback(host: str) -> bool:
    """Return whether a host, with or without a port, can only be this machine."""
    try:
        name, _ = parse_host(bracketed(host) if host.count(":") > 1 and not host.startswith("[") else host)
    except UrlError:
        return False
    return name == "localhost" or (address_of(name) is not None and ip_address(name).is_loopback)


def is_local(scope: Scope) -> bool:
    """Return whether a request comes directly from this machine, not through a proxy."""
    address = str((scope.get("client") or ("",))[0])
    proxied = any(key in _PROXY_HEADERS or key.startswith(b"x-forwarded-") for key, _ in scope["headers"])
    here = address == PEER[0] or is_loopback(address)
    return here and is_loopback(header(scope, b"host") or "") and not proxied


def is_peer(scope: Scope) -> bool:
    """Return whether a request comes directly from a program of this user, through a Unix socket."""
    return (scope.get("client") or ("",))[0] == PEER[0] and is_local(scope)
