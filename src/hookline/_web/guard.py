"""What every request passes before anybody sees it: who is asked for, from where, how much, and how long."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from ipaddress import ip_address
from typing import Any

import msgspec

from .._net.urls import UrlError, address_of, bracketed, parse_host

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

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
"""Sent with every answer that does not say otherwise."""

_HEADERS = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
_SAFE = frozenset(("GET", "HEAD", "OPTIONS"))
_BETWEEN = frozenset(
    b"forwarded via x-real-ip x-client-ip x-cluster-client-ip x-original-forwarded-for x-original-host true-client-ip "
    b"cf-connecting-ip fly-client-ip cdn-loop x-envoy-external-address".split()
)  # what proxies and tunnels add
_DRAIN_BYTES, _DRAIN_SECONDS = 8_000_000, 2.0


class Refused(Exception):
    """What the guard answers itself. Whoever is in between lets it pass, and may add ``headers`` to the answer."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.headers: list[tuple[bytes, bytes]] = []


class Gone(Exception):
    """Nobody is there any more who could be answered."""


class HttpGuard:
    """Refuses requests for another host or from another site's page, and bodies that are too long or too slow.

    A host is an address, ``localhost`` or a listed name: a page elsewhere whose name leads here cannot ask for one of
    these. What browsers do for pages of another origin is refused, but for plain reading, which they keep from them.

    Args:
        app: gets what passes.
        hosts: further names that this server is known by.
        max_body: bytes of a body.
        seconds: how long a body may take to arrive.
    """

    def __init__(self, app: App, *, hosts: Iterable[str] = (), max_body: int, seconds: float) -> None:
        self._app, self._max_body, self._seconds = app, max_body, seconds
        self._hosts = frozenset(name.lower() for name in hosts) | {"localhost"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, as ASGI has it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send, self._max_body, self._seconds)
        try:
            self._check(scope)
            await self._app(scope, exchange.receive, exchange.send)
            if exchange.refusal is not None:
                raise exchange.refusal
        except Refused as refused:
            await exchange.refuse(refused)
        except Gone:
            log.debug("somebody was gone before the whole body was there")

    def _check(self, scope: Scope) -> None:
        asked = header(scope, b"host")
        try:
            host, port = parse_host(asked or "")
        except UrlError:
            raise Refused(400, "bad_host", "the Host header is missing, or is not one host") from None
        if address_of(host) is None and host not in self._hosts:
            raise Refused(
                421, "unknown_host", f"this server is not known as {host}: list the name under hosts, if it is yours"
            )
        origin = header(scope, b"origin")
        if origin is None or (scope["type"] == "http" and scope["method"] in _SAFE):
            return
        scheme, _, place = origin.partition("://")
        usual = {"http": 80, "https": 443}.get(scheme, 0)
        try:
            same = usual and _with_port(*parse_host(place), usual) == _with_port(host, port, usual)
        except UrlError:
            same = False
        if not same:
            raise Refused(403, "other_origin", "this comes from a page of another site, which may not do that")


class _Exchange:
    """One request and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, max_body: int, seconds: float) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._left, self._max_body, self._seconds = max_body, max_body, seconds
        self._end = asyncio.get_running_loop().time() + seconds
        self._all_here = scope["type"] == "websocket"
        self._started = self._refused = False
        self.refusal: Refused | None = None

    async def receive(self) -> Message:
        if self._all_here:
            return await self._receive()
        length = header(self._scope, b"content-length")
        if length is not None and length.isdecimal() and int(length) > self._max_body:
            raise self._refusing(self._too_long())
        try:
            async with asyncio.timeout_at(self._end):
                message = await self._receive()
        except TimeoutError:
            late = Refused(408, "too_slow", f"the body did not arrive in {self._seconds:g} s")
            raise self._refusing(late) from None
        if message["type"] == "http.disconnect":
            self._refused = True
            raise Gone
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            self._all_here = not message.get("more_body", False)
            if self._left < 0:
                raise self._refusing(self._too_long())
        return message

    async def send(self, message: Message) -> None:
        if self._refused:  # this is what the app says about our refusal
            if self.refusal is not None and message["type"] == "http.response.start":
                raise self.refusal  # whoever stands between is to see it, also if the app caught it
            return
        if message["type"] == "http.response.start":
            self._started = True
            given = list(message.get("headers", ()))
            named = {bytes(name).lower() for name, _ in given}
            message = {**message, "headers": given + [each for each in _HEADERS if each[0] not in named]}
        elif message["type"] == "websocket.accept":
            self._started = True
        await self._send(message)
        if message.get("more_body"):  # sending need not wait for anything, least of all when nobody is there any more
            await asyncio.sleep(0)

    def _refusing(self, refused: Refused) -> Refused:
        self._refused = not self._started
        self.refusal = refused if self._refused else None
        return refused

    def _too_long(self) -> Refused:
        return Refused(413, "too_long", f"the body has more than {self._max_body} bytes")

    async def refuse(self, refused: Refused) -> None:
        if self._started:
            raise refused
        self._refused = False
        if self._scope["type"] == "websocket":
            log.info("a WebSocket is refused: %s", refused.message)
            await self._receive()
            await self._send({"type": "websocket.close", "code": 1008, "reason": refused.code})
            return
        body = msgspec.json.encode({"error": {"code": refused.code, "message": refused.message}})
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        headers += refused.headers
        if not self._all_here:
            headers.append((b"connection", b"close"))
        await self.send({"type": "http.response.start", "status": refused.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body, "more_body": True})
        await self._drain()
        await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _drain(self) -> None:
        """Let a client that is still sending read the answer: to close at once would take it away from under it."""
        left = 0 if self._all_here or header(self._scope, b"expect") is not None else _DRAIN_BYTES
        try:
            async with asyncio.timeout(_DRAIN_SECONDS):
                while left > 0:
                    message = await self._receive()
                    left -= len(message.get("body", b""))
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            pass  # it had its time


def header(scope: Scope, name: bytes) -> str | None:
    """A header of a request; ``None`` if it is not there, empty if it is there twice."""
    found = [value for key, value in scope["headers"] if key == name]
    return None if not found else found[0].decode("latin-1") if len(found) == 1 else ""


def is_loopback(host: str) -> bool:
    """Whether a host, with or without a port, is this machine alone."""
    try:
        name, _ = parse_host(bracketed(host) if host.count(":") > 1 and not host.startswith("[") else host)
    except UrlError:
        return False
    return name == "localhost" or (address_of(name) is not None and ip_address(name).is_loopback)


def is_local(scope: Scope) -> bool:
    """Whether a request comes from this machine and asks for it, not through somebody in between."""
    address = str((scope.get("client") or ("",))[0])
    passed_on = any(key in _BETWEEN or key.startswith(b"x-forwarded-") for key, _ in scope["headers"])
    return is_loopback(address) and is_loopback(header(scope, b"host") or "") and not passed_on


def _with_port(host: str, port: int | None, usual: int) -> tuple[str, int]:
    return host, port or usual
