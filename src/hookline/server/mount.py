"""Serve agents inside another ASGI application, such as a FastAPI or Starlette app."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from .._web.middleware import App, Receive, Scope, SecurityMiddleware, Send, with_cors
from ..config.errors import ConfigError
from ..config.factory import find_deps_factory
from ..config.settings import Settings
from ..stores.callers import DepsFactory
from .app import Server
from .auth import Authenticate
from .build import build_parts, check_installed, find_agents
from .options import ServerOptions

if TYPE_CHECKING:
    from types import TracebackType

log = logging.getLogger("hookline")

_NOT_STARTED = (
    "the agents are mounted but not started: pass lifespan=agents.lifespan to the outermost application, or use "
    "'async with agents' in its own lifespan"
)


def asgi(
    agents: Any,
    *,
    authenticate: Authenticate | None = None,
    deps: DepsFactory | None = None,
    settings: Settings | None = None,
    home: Path | None = None,
) -> MountedServer:
    """Make an ASGI app that serves agents: the JSON, SSE, A2A and OpenAI endpoints of ``hookline serve``.

    Mount it into a FastAPI or Starlette app, at any path. No file is opened before the app starts.

    Example::

        async def authenticate(request: Request) -> Caller | None:
            user = await user_of_session(request.cookies.get("session"))
            return None if user is None else Caller(user.id, user.name, {"read", "run"})

        agents = asgi(agent, authenticate=authenticate)
        app = FastAPI(lifespan=agents.lifespan)
        app.mount("/agents", agents)

    Args:
        agents: an agent or a roster; a list of them; or a dict of them by name.
        authenticate: returns the caller of a request, or ``None``, which answers it with status 401. It may be a
            coroutine function; a plain function runs in a thread. It may raise the ``HTTPException`` of the framework.
            Without it, callers need API keys (``hookline keys add``).
        deps: ``deps(caller)`` returns the ``ctx.deps`` of a run. It gets the id, the name and the metadata of the
            caller, without its rights, which may have changed when a durable run goes on: that creates its ``deps``
            anew. It may be a coroutine function; a plain function runs in a thread. If it fails, so does the run.
        settings: the files and limits, as for ``hookline serve``; the address to listen on is not used.
        home: the folder for relative paths; the working directory if left out.

    Raises:
        ConfigError: a setting has a wrong value, no agent or two agents of the same name are given, or an agent needs
            ``deps``, which nothing creates.
        NotInstalledError: a package is missing.
    """
    check_installed()
    given = Settings() if settings is None else settings
    options = ServerOptions.of(given.server)
    answerers = _by_name(agents)
    find_agents(answerers, options)
    deps = find_deps_factory(given, answerers.values(), deps, home)
    if options.approval_links is not None and not options.public_url:
        raise ConfigError(
            "server.approval_links needs server.public_url here: the address of the agents, such as "
            "https://example.com/agents"
        )
    if authenticate is not None and not callable(authenticate):
        raise ConfigError(f"authenticate= must be a function of a request, not {authenticate!r:.80}")

    def build() -> Server:
        return build_parts(given, answerers, options, home, deps=deps, authenticate=authenticate, listen=False)

    return MountedServer(build, options, cookies=authenticate is not None)


class MountedServer:
    """The ASGI app that :func:`asgi` makes.

    Frameworks do not run the lifespan of an app that is mounted, so the application has to start it: with
    ``FastAPI(lifespan=agents.lifespan)``, or in its own lifespan::

        @asynccontextmanager
        async def lifespan(app):
            async with agents:
                yield

    It can be started again after it has stopped. Runs that do not finish within ``server.grace`` seconds are
    interrupted when it stops.
    """

    def __init__(self, build: Callable[[], Server], options: ServerOptions, *, cookies: bool) -> None:
        self._build = build
        self._options = options
        self._cookies = cookies
        self._app: App | None = None
        self.server: Server | None = None
        """The server while it runs, for its status."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI request."""
        if scope["type"] == "lifespan":  # it is the whole application, and not mounted
            from starlette.routing import Router

            await Router(lifespan=self.lifespan)(scope, receive, send)
        elif self._app is not None:
            await self._app(scope, receive, send)
        else:
            log.error("%s", _NOT_STARTED)
            await _send_unavailable(scope, send)

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncGenerator[None]:
        """Run the server while the application runs: the ``lifespan`` of a FastAPI or Starlette app."""
        async with self:
            yield

    async def __aenter__(self) -> MountedServer:
        """Open the files and start accepting runs.

        Raises:
            RuntimeError: it runs already.
            StoreError: a file cannot be used.
        """
        if self.server is not None:
            raise RuntimeError("the agents run already: start them once, in one lifespan")
        from starlette.routing import Router

        self.server = self._build()
        try:
            await self.server.start()
        except BaseException:
            self.server = None
            raise
        secured = SecurityMiddleware(
            Router(self.server.routes()),
            hosts=None,
            origins=self._options.origins,
            max_body=self._options.max_body,
            body_seconds=self._options.body_seconds,
            complete=self.server.gate.complete,
        )
        self._app = with_cors(secured, self._options.origins, credentials=self._cookies)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Let runs finish within the grace period, and close everything."""
        server, self.server, self._app = self.server, None, None
        if server is not None:
            await server.stop()


def _by_name(agents: Any) -> dict[str, Any]:
    if isinstance(agents, Mapping) and not hasattr(agents, "hooks"):  # a roster is a mapping too
        found = dict(agents)
    else:
        listed = list(agents) if isinstance(agents, (list, tuple, set, frozenset)) else [agents]
        found = {_name_of(agent): agent for agent in listed}
        if len(found) < len(listed):
            raise ConfigError("two agents have the same name: pass a dict with a name for each")
    if not found:
        raise ConfigError("there is no agent to serve")
    for agent in found.values():
        _name_of(agent)
    return found


def _name_of(agent: Any) -> str:
    if not hasattr(agent, "hooks") or isinstance(agent, type):
        raise ConfigError(f"{agent!r:.80} is not an agent or a roster")
    return str(getattr(agent, "name", None) or "hookline")


async def _send_unavailable(scope: Scope, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1013})
        return
    body = msgspec.json.encode({"error": {"code": "not_started", "message": _NOT_STARTED}})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})
