"""Serve the routes of several components on one port, with uvicorn, inside the running event loop.

Only documented features of uvicorn are used. They do not include a limit on how long a client may take to send the
headers of a request, or on how long a connection stays open when the client stops reading; a reverse proxy has both.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from .._base.errors import HooklineError, NotInstalledError
from .._net.urls import bracketed
from .middleware import (
    PEER,
    App,
    CompleteRejection,
    Receive,
    Scope,
    SecurityMiddleware,
    Send,
    is_loopback,
    with_cors,
)
from .unix_socket import SocketError, UnixListener

if TYPE_CHECKING:
    from uvicorn import Server

log = logging.getLogger("hookline")

MAX_BODY = 1_000_000
"""Maximum size of a request body or a WebSocket message, in bytes."""
BODY_SECONDS = 20.0
"""Seconds that a client may take to send a request body."""
KEEP_ALIVE_SECONDS = 60
"""Seconds that an idle connection stays open: longer than clients wait before they reuse a connection."""
MAX_CONNECTIONS = 2000
"""Maximum number of open connections. Further requests get status 503."""


class WebError(HooklineError):
    """The HTTP server cannot start with these settings; the message says what to change."""


class WebComponent(Protocol):
    """A component with routes.

    Two further methods are optional: ``check_exposed()`` is called before the component is served to other machines
    and raises if that is unsafe; ``before_stop()`` is called before the server stops and ends requests that wait for
    something.
    """

    def routes(self) -> Sequence[Any]:
        """Return the Starlette routes to serve."""
        ...


class HttpServer:
    """Serve the routes of several components on one port, in the running event loop.

    Signals are left to the program::

        server = HttpServer([channel], port=0)
        await server.start()
        print(server.url)
        ...
        await server.stop()

    Args:
        components: channels, or any other objects with ``routes()``.
        host: the address to listen on. Other machines can connect only if it is not a loopback address.
        port: the port to listen on; 0 picks a free one, see :attr:`url`.
        hosts: host names to accept besides ``localhost`` and IP addresses, such as the name of a reverse proxy.
        origins: other origins whose pages may send requests and read the responses.
        max_body: the limit for a request body or a WebSocket message, in bytes.
        body_seconds: how long a client may take to send a request body.
        grace: how many seconds running requests get to finish when the server stops.
        extra: the extra to install if a package is missing.
        complete: completes the rejections of requests that no component sees.
        socket: the path of a Unix socket to listen on as well, for programs of this user; see :class:`UnixListener`.

    Raises:
        NotInstalledError: starlette, uvicorn or websockets is missing.
    """

    def __init__(
        self,
        components: Iterable[WebComponent],
        host: str = "127.0.0.1",
        port: int = 8080,
        *,
        hosts: Iterable[str] = (),
        origins: Iterable[str] = (),
        max_body: int = MAX_BODY,
        body_seconds: float = BODY_SECONDS,
        grace: float = 5.0,
        extra: str = "channels",
        complete: CompleteRejection | None = None,
        socket: str = "",
    ) -> None:
        if isinstance(hosts, str):
            raise TypeError(f"hosts must be a list of names such as ['chat.example.com'], not {hosts!r}")
        for package in ("starlette", "uvicorn", "websockets"):
            if find_spec(package) is None:
                raise NotInstalledError(package, extra)
        self.components = tuple(components)
        self.host = host
        self.port = port
        self._hosts = tuple(hosts)
        self._origins = tuple(origins)
        self._max_body = max_body
        self._body_seconds = body_seconds
        self._grace = grace
        self._complete = complete
        self._socket = socket
        self._unix: UnixListener | None = None
        self._server: Any = None
        self._app: Any = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """The base URL for clients on this machine; it has the real port once the server has started."""
        host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://{bracketed(host)}:{self.port}"

    @property
    def is_exposed(self) -> bool:
        """Whether other machines can reach the server."""
        return bool(self._hosts) or not is_loopback(self.host)

    async def start(self) -> None:
        """Listen on the port and return as soon as requests are accepted.

        Raises:
            WebError: the port is taken, the socket cannot be used, or two components have the same path.
            HooklineError: a component is unsafe to serve to other machines.
        """
        if self._serving is not None:
            raise WebError(f"{self.url} is already being served")
        from starlette.applications import Starlette

        self._app = Starlette(routes=self._routes())
        app = with_cors(
            SecurityMiddleware(
                self._app,
                hosts=self._hosts,
                origins=self._origins,
                max_body=self._max_body,
                body_seconds=self._body_seconds,
                complete=self._complete,
            ),
            self._origins,
        )
        listener = self._listen()
        self.port = listener.getsockname()[1]
        sockets = [listener]
        if self._socket:
            try:
                self._unix = UnixListener(Path(self._socket))
            except SocketError as error:
                listener.close()
                raise WebError(str(error)) from error
            sockets.append(self._unix)
            app = _naming_peers(app)
        self._server = _uvicorn_server(app, max_message=self._max_body, grace=self._grace)
        self._serving = asyncio.create_task(self._server.serve(sockets=sockets), name="hookline-http")
        while not self._server.started:
            if self._serving.done():
                await self.stop()
                raise WebError(f"the HTTP server at {self.url} failed to start; the log has the reason")
            await asyncio.sleep(0)

    def add(self, component: WebComponent) -> None:
        """Serve another component, also while the server runs.

        Raises:
            WebError: one of its paths is already in use.
            HooklineError: it is unsafe to serve to other machines.
        """
        self._replace_components((*self.components, component))

    def remove(self, component: WebComponent) -> None:
        """Stop serving a component."""
        self._replace_components(tuple(each for each in self.components if each is not component))

    def _replace_components(self, components: Sequence[WebComponent]) -> None:
        before, self.components = self.components, tuple(components)
        try:
            routes = self._routes()
        except BaseException:
            self.components = before
            raise
        if self._app is not None:
            self._app.router.routes[:] = routes

    async def stop(self) -> None:
        """Stop listening, let running requests finish within the grace period, and close all connections."""
        serving, self._serving = self._serving, None
        if serving is None:
            return
        for component in self.components:
            before_stop = getattr(component, "before_stop", None)
            if before_stop is not None:
                before_stop()
        self._server.should_exit = True
        if self._unix is not None:
            self._unix.remove()
        try:
            await serving
        except Exception:
            log.exception("the HTTP server at %s failed while stopping", self.url)

    def _routes(self) -> list[Any]:
        routes: list[Any] = []
        owners: dict[str, WebComponent] = {}
        for component in self.components:
            check_exposed = getattr(component, "check_exposed", None)
            if check_exposed is not None and self.is_exposed:
                check_exposed()
            for route in component.routes():
                if owners.setdefault(route.path, component) is not component:
                    raise WebError(f"two components have the path {route.path}: give one of them another path")
                routes.append(route)
        return routes

    def _listen(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        if not 0 <= self.port <= 65_535:
            raise WebError(f"{self.port} is not a valid port: use 0 to 65535")
        try:
            listener = socket.create_server((self.host, self.port), family=family, backlog=512)
        except OSError as error:
            if error.errno in (errno.EADDRNOTAVAIL, socket.EAI_NONAME):
                raise WebError(f"{self.host!r} is not an address of this machine: use 127.0.0.1 or 0.0.0.0") from None
            if error.errno == errno.EADDRINUSE:
                raise WebError(
                    f"port {self.port} is taken by another program: choose another, or 0 for a free one"
                ) from None
            raise WebError(f"cannot listen on {self.host}, port {self.port}: {error.strerror}") from error
        # asyncio sets TCP_NODELAY only on sockets that name TCP as their protocol, which create_server() leaves out.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=listener.detach())
        listener.setblocking(False)
        return listener


def _naming_peers(app: App) -> App:
    """Return an application that gets an address for the clients of the Unix socket, which have none."""

    async def named(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan" and scope.get("client") is None:
            scope["client"] = PEER
        await app(scope, receive, send)

    return named


def _uvicorn_server(app: App, *, max_message: int, grace: float) -> Server:
    """Return a uvicorn server that leaves signals to the program it runs in."""
    import uvicorn

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Generator[None, None, None]:
            yield

    config = uvicorn.Config(
        app,
        http="h11",
        ws="websockets-sansio",
        ws_max_size=max_message,
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        log_level="warning",  # at lower levels, the text of WebSocket messages would be logged
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=max(1, round(grace)),
    )
    return Server(config)
