"""Serve all APIs of one run service on one port, behind the gate that authenticates requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import msgspec

from .._base.lifecycle import Lifecycle, State, stop_component
from .._base.workers import in_thread
from .._net.urls import parse_url
from .._web.http_server import HttpServer
from .._web.middleware import is_loopback
from ..config.errors import ConfigError
from ..hooks.metrics import MetricsHook
from ..stores.approvals import ApprovalRow
from ..stores.errors import StoreError
from ..stores.keys import KeyStore
from ..stores.runs import RunRecord
from .agents import ServedAgent
from .health import HealthApi, Traffic
from .options import ServerOptions
from .routing import Endpoint, Gate
from .runs import RunService

REQUEST_SECONDS = 5.0
"""Seconds that open requests get to finish once all runs have ended."""


class Api(Protocol):
    """A set of endpoints for the run service.

    It may also have coroutine methods ``open()`` and ``close()`` for background work: ``open()`` is called
    when the service accepts runs, ``close()`` when all runs have ended.
    """

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the endpoints."""
        ...


class Status(msgspec.Struct, frozen=True):
    """The status of a server. ``runs`` are the unfinished runs, each with its activity and the name of its owner."""

    state: str
    url: str
    needs_keys: bool
    agents: tuple[ServedAgent, ...]
    runs: tuple[tuple[RunRecord, str, str], ...]
    approvals: tuple[ApprovalRow, ...]
    streams: int
    requests: int
    refused: int
    per_second: float
    problem: str
    host: str = "127.0.0.1"


class Server:
    """Serve agents over HTTP, in the running event loop. Signals are left to the program.

    Example::

        server = build_server(settings, agent)
        await server.start()
        print(server.url)
        await server.wait()

    Args:
        service: runs the agents.
        apis: the APIs, each with ``endpoints()``; health, metrics and the API description are added.
        gate: authenticates requests.
        options: the address to listen on, and limits.
        keys: the API keys that the gate uses. There must be one if other machines can reach the server.
        metrics: the metrics for ``/metrics``; without them, there is no such endpoint.
        traffic: counts the requests of the gate.
        closing: called after the server has stopped, to close its stores.
        listen: whether to listen on a port; a server that is mounted in another application does not.

    Raises:
        NotInstalledError: a package is missing.
    """

    def __init__(
        self,
        service: RunService,
        apis: Iterable[Api],
        gate: Gate,
        options: ServerOptions,
        *,
        keys: KeyStore | None = None,
        metrics: MetricsHook | None = None,
        traffic: Traffic | None = None,
        closing: Iterable[Callable[[], object]] = (),
        listen: bool = True,
    ) -> None:
        self.service = service
        self.gate = gate
        self.options = options
        self.keys = keys
        self.traffic = traffic or Traffic()
        self._closing = tuple(closing)
        self._http = _http_server(self, options) if listen else None
        from .openapi import OpenApi

        described: tuple[Any, ...] = HealthApi(service, lambda: self.state, metrics), *apis
        openapi = OpenApi(
            lambda: [each for api in described for each in api.endpoints()],
            url=options.public_url,
            keys=gate.uses_keys,
        )
        self.apis: tuple[Any, ...] = *described, openapi
        self._opened: list[Any] = []
        self._lifecycle = Lifecycle(self._start, self._stop, grace=options.grace)

    @property
    def state(self) -> State:
        """``new``, ``starting``, ``running``, ``stopping`` or ``stopped``."""
        return self._lifecycle.state

    @property
    def url(self) -> str:
        """The base URL for clients on this machine; it has the real port once the server has started.

        A mounted server has its public URL, or none.
        """
        return self.options.public_url if self._http is None else self._http.url

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints of all APIs."""
        return [endpoint for api in self.apis for endpoint in api.endpoints()]

    def routes(self) -> list[Any]:
        """Return the Starlette routes, all behind the gate."""
        return [*self.gate.routes(self.endpoints()), self.gate.fallback()]

    async def start(self) -> None:
        """Start listening and accepting runs. Until this returns, ``/readyz`` reports that the server is starting.

        A server that is stopped before this returns does not start.

        Raises:
            ConfigError: other machines can reach the server, but there is no key.
            WebError: the port is taken, or the address does not exist.
            StoreError: a file cannot be used.
            RuntimeError: the server was started before.
        """
        await self._lifecycle.start()

    async def _start(self) -> None:
        await in_thread(self._check_keys)
        if self._http is not None:
            await self._http.start()
        await self.service.open()
        for api in self.apis:
            if hasattr(api, "open"):
                await api.open()
                self._opened.append(api)
        self.service.start_tidying()

    async def stop(self, grace: float | None = None) -> None:
        """Stop accepting runs, let running ones finish within the grace period, and close everything.

        Args:
            grace: how many seconds running runs may take to finish; ``options.grace`` if left out. Zero also ends the
                grace period of a shutdown in progress.
        """
        await self._lifecycle.stop(grace)

    async def _stop(self, grace: float) -> None:
        await self._lifecycle.wait_within_grace(grace, self.service.drain())
        await self.service.close(grace=0)
        for api in reversed(self._opened):
            await stop_component(type(api).__name__, api.close)
        if self._http is not None:
            await self._http.stop()
        for close in self._closing:
            await stop_component("a store", partial(in_thread, close))

    async def wait(self) -> None:
        """Wait until the server has stopped. Cancelling this call stops it."""
        await self._lifecycle.wait()

    def console_link(self) -> str:
        """Return the address of the console. Where a key is needed, it logs a browser in, once and within ten minutes.

        Raises:
            StoreError: the file of the keys cannot be used.
        """
        from .console.login import login_link

        return login_link(self.keys, self.url) if self.keys is not None and self.gate.needs_keys else f"{self.url}/"

    async def status(self, approvals: int = 20) -> Status:
        """Return the current status, with at most ``approvals`` waiting approvals."""
        agents, waiting, names = await in_thread(self._stored_status, approvals)
        runs = [(run, activity, names.get(run.owner, run.owner)) for run, activity in self.service.unfinished()]
        return Status(
            self.state,
            self.url,
            self.gate.needs_keys,
            agents,
            tuple(runs),
            waiting,
            self.service.counts()["readers"],
            self.traffic.total,
            self.traffic.refused,
            self.traffic.per_second(),
            self.service.problem if self.state == "running" else "",
            self.options.host,
        )

    def _stored_status(self, limit: int) -> tuple[tuple[ServedAgent, ...], tuple[ApprovalRow, ...], dict[str, str]]:
        """Return the part of the status that has to be read from files."""
        waiting: tuple[ApprovalRow, ...] = ()
        names: dict[str, str] = {}
        with suppress(StoreError):
            waiting = tuple(self.service.approvals.rows(status="pending", limit=limit))
        with suppress(StoreError):
            if self.keys is not None:
                self.keys.refresh()
                names = {key.id: key.name for key in self.keys.keys()}  # noqa: SIM118 - no dict
        return tuple(self.service.agents.list()), waiting, names

    def _check_keys(self) -> None:
        if self.keys is not None:
            self.keys.refresh()  # fail now: with unreadable keys every request would be rejected
        if self._http is None or not self.options.exposed or self.options.login is not None:
            return  # only callers on this machine, or those whom a proxy authenticates, need no key
        now, keys = time.time(), [] if self.keys is None else self.keys.keys()
        if not any(key.state(now) == "active" for key in keys):
            raise ConfigError(
                f"server: {_exposed_because(self.options)}, so callers need keys, and there is none: "
                "make one with hookline keys add NAME --scope read,run"
            )


def _http_server(server: Server, options: ServerOptions) -> HttpServer:
    return HttpServer(
        [server],
        options.host,
        options.port,
        hosts=_host_names(options),
        origins=options.origins,
        max_body=options.max_body,
        body_seconds=options.body_seconds,
        grace=REQUEST_SECONDS,
        extra="server",
        complete=server.gate.complete,
        socket=options.socket,
    )


def _host_names(options: ServerOptions) -> list[str]:
    """Return the host names that the server accepts."""
    own = [] if is_loopback(options.host) else [options.host]
    return [*options.hosts, *([parse_url(options.public_url).host] if options.public_url else []), *own]


def _exposed_because(options: ServerOptions) -> str:
    if not is_loopback(options.host):
        return f"other machines can reach it at {options.host}"
    name = next(name for name in ("hosts", "public_url", "trusted_proxies") if getattr(options, name))
    return f"others can reach it through a proxy ({name} is set)"
