"""One web server for all that is reached through HTTP."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import Any, Protocol

from .._base.installing import NotInstalledError
from .._net.urls import bracketed
from .errors import WebError
from .guard import HttpGuard, is_loopback

log = logging.getLogger("hookline")

MAX_BODY = 1_000_000
"""Bytes of a body or of a WebSocket message."""
BODY_SECONDS = 20.0
"""How long a body may take to arrive."""


class Served(Protocol):
    """What a server serves.

    It may also have ``exposed()``, called before it is served to other machines; it raises if that would
    not be safe; and ``hang_up()``, called before the server stops, to let go of those who wait for something.
    """

    def routes(self) -> Sequence[Any]:
        """Its Starlette routes."""
        ...


class HttpHost:
    """Serves the routes of several parts on one port, in the running loop. Signals are the caller's.

    Args:
        parts: what to serve: channels, or anything else with ``routes()``.
        host: the address to listen at; other machines can only reach it if that is not a loopback address.
        port: 0 takes a free one; :attr:`url` tells which.
        hosts: names that this server is known by, beside its addresses and ``localhost``: those of a proxy before it.
        max_body: bytes of a body, or of a WebSocket message.
        seconds: how long a body may take to arrive.
        grace: how many seconds requests may go on when it stops.
        extra: what to install if a package is missing.

    Raises:
        NotInstalledError: starlette, uvicorn or websockets is missing.
    """

    def __init__(
        self,
        parts: Iterable[Served],
        host: str = "127.0.0.1",
        port: int = 8080,
        *,
        hosts: Iterable[str] = (),
        max_body: int = MAX_BODY,
        seconds: float = BODY_SECONDS,
        grace: float = 5.0,
        extra: str = "channels",
    ) -> None:
        if isinstance(hosts, str):
            raise TypeError(f"hosts is a list of names such as ['chat.example.com'], not {hosts!r}")
        for package in ("starlette", "uvicorn", "websockets"):
            if find_spec(package) is None:
                raise NotInstalledError(package, extra)
        self.parts, self.host, self.port = tuple(parts), host, port
        self._hosts, self._max_body, self._seconds, self._grace = tuple(hosts), max_body, seconds, grace
        self._server: Any = None
        self._app: Any = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where it can be reached from this machine; with the real port once it has started."""
        host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://{bracketed(host)}:{self.port}"

    @property
    def exposed(self) -> bool:
        """Whether other machines may reach it."""
        return bool(self._hosts) or not is_loopback(self.host)

    async def start(self) -> None:
        """Listen; it returns as soon as it does.

        Raises:
            WebError: the port is taken, or the parts do not fit together.
            HooklineError: one is not safe to be served there.
        """
        if self._serving is not None:
            raise WebError(f"{self.url} is being served already")
        from starlette.applications import Starlette

        from .uvicorn import server_of

        self._app = Starlette(routes=self._routes())
        guard = HttpGuard(self._app, hosts=self._hosts, max_body=self._max_body, seconds=self._seconds)
        listening = self._listening()
        self.port = listening.getsockname()[1]
        self._server = server_of(guard, max_message=self._max_body, grace=self._grace)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listening]), name="hookline-http")
        while not self._server.started:
            if self._serving.done():
                await self.stop()
                raise WebError(f"{self.url} could not be served")
            await asyncio.sleep(0)

    def add(self, part: Served) -> None:
        """Serve one more, also while it runs.

        Raises:
            WebError: it does not fit to the others.
            HooklineError: it is not safe to be served there.
        """
        self._serve((*self.parts, part))

    def remove(self, part: Served) -> None:
        """Serve this one no longer."""
        self._serve(tuple(each for each in self.parts if each is not part))

    def _serve(self, parts: Sequence[Served]) -> None:
        before, self.parts = self.parts, tuple(parts)
        try:
            routes = self._routes()
        except BaseException:
            self.parts = before
            raise
        if self._app is not None:
            self._app.router.routes[:] = routes

    async def stop(self) -> None:
        """Take no more requests, let those under way end, and close what is still open then."""
        serving, self._serving = self._serving, None
        if serving is None:
            return
        for part in self.parts:
            hang_up = getattr(part, "hang_up", None)
            if hang_up is not None:
                hang_up()
        self._server.should_exit = True
        try:
            await serving
        except Exception:
            log.exception("the web server at %s did not end well", self.url)
        finally:
            self._server.abort()

    def _routes(self) -> list[Any]:
        routes: list[Any] = []
        owners: dict[str, Served] = {}
        for part in self.parts:
            check = getattr(part, "exposed", None)
            if check is not None and self.exposed:
                check()
            for route in part.routes():
                if owners.setdefault(route.path, part) is not part:
                    raise WebError(f"two parts are to be served at {route.path}: give one another path")
                routes.append(route)
        return routes

    def _listening(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        if not 0 <= self.port <= 65_535:
            raise WebError(f"{self.port} is no port: use 0 to 65535")
        try:
            listening = socket.create_server((self.host, self.port), family=family, backlog=512)
        except OSError as error:
            if error.errno in (errno.EADDRNOTAVAIL, socket.EAI_NONAME):
                raise WebError(f"{self.host!r} is no address of this machine: use 127.0.0.1 or 0.0.0.0") from None
            if error.errno == errno.EADDRINUSE:
                raise WebError(
                    f"port {self.port} is taken by another program: choose another, or 0 for a free one"
                ) from None
            raise WebError(f"cannot listen at {self.host}, port {self.port}: {error.strerror}") from error
        # asyncio spares the pauses between small packets only where it knows the protocol
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=listening.detach())
        listening.setblocking(False)
        return listening
