"""A server of agents: all transports of one service of runs, behind one gate, on one port."""

from __future__ import annotations

import logging
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
from .endpoints import Endpoint
from .gate import Gate
from .health import HealthApi
from .options import ServerOptions
from .service import RunService
from .traffic import Traffic

log = logging.getLogger("hookline")

REQUEST_SECONDS = 5.0
"""How long requests get to finish once all runs have ended."""


class Part(Protocol):
    """A way to reach the service.

    It may also have coroutines ``open()`` and ``close()``, for what it does beside its endpoints: called when runs are
    taken, and when all are over.
    """

    def endpoints(self) -> Sequence[Endpoint]:
        """What can be asked for."""
        ...


class Status(msgspec.Struct, frozen=True):
    """What a server is doing. ``runs`` are those under way, with what each does now and whose it is."""

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
    """Serves agents over HTTP, in the running loop. Signals are the caller's.

    Args:
        service: the runs.
        parts: the transports, each with ``endpoints()``; health, metrics and a description of all are added.
        gate: who may call.
        options: where it listens, and its limits.
        keys: the keys that the gate knows; where others than this machine may call, there must be one.
        metrics: counts for ``/metrics``, which is there only with it.
        traffic: what the gate counts requests with.
        closing: called when it has stopped, to close what it was made with.

    Raises:
        NotInstalledError: a package is missing.
    """

    def __init__(
        self,
        service: RunService,
        parts: Iterable[Part],
        gate: Gate,
        options: ServerOptions,
        *,
        keys: KeyStore | None = None,
        metrics: MetricsHook | None = None,
        traffic: Traffic | None = None,
        closing: Iterable[Callable[[], object]] = (),
    ) -> None:
        self.service, self.gate, self.options = service, gate, options
        self.keys, self.traffic, self._closing = keys, traffic or Traffic(), tuple(closing)
        self._host = HttpServer(
            [self], options.host, options.port, hosts=_names(options), max_body=options.max_body,
            body_seconds=options.body_seconds, grace=REQUEST_SECONDS, extra="server",
        )  # fmt: skip
        from .openapi import OpenApi

        own: tuple[Any, ...] = HealthApi(service, lambda: self.state, metrics), *parts
        described = OpenApi(lambda: [each for part in own for each in part.endpoints()], url=options.public_url)
        self.parts: tuple[Any, ...] = *own, described
        self._opened: list[Any] = []
        self._lifecycle = Lifecycle(self._start, self._stop, grace=options.grace)

    @property
    def state(self) -> State:
        """``new``, ``starting``, ``running``, ``stopping`` or ``stopped``."""
        return self._lifecycle.state

    @property
    def url(self) -> str:
        """Where it can be reached from this machine; with the real port once it has started."""
        return self._host.url

    def endpoints(self) -> list[Endpoint]:
        """All that can be asked for."""
        return [endpoint for part in self.parts for endpoint in part.endpoints()]

    def routes(self) -> list[Any]:
        """The routes, all behind the gate."""
        return [*self.gate.routes(self.endpoints()), self.gate.rest()]

    async def start(self) -> None:
        """Listen, and take runs; it returns as soon as it does. Until then ``/readyz`` says that it starts.

        If it is stopped before or meanwhile, it does not.

        Raises:
            ConfigError: others may reach it, but there is no key.
            WebError: the port is taken, or there is no such address.
            RuntimeError: it was started before.
            StoreError: a file cannot be used.
        """
        await self._lifecycle.start()

    async def _start(self) -> None:
        await in_thread(self._check_keys)
        await self._host.start()
        await self.service.open()
        for part in self.parts:
            if hasattr(part, "open"):
                await part.open()
                self._opened.append(part)

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
        for part in reversed(self._opened):
            await stop_component(type(part).__name__, part.close)
        await self._host.stop()
        for close in self._closing:
            await stop_component("a store", partial(in_thread, close))

    async def wait(self) -> None:
        """Wait until the server has stopped. Cancelling this call stops it."""
        await self._lifecycle.wait()

    async def status(self, approvals: int = 20) -> Status:
        """What it is doing; of the calls that wait for approval, at most so many."""
        agents, waiting, names = await in_thread(self._look, approvals)
        runs = [(run, doing, names.get(run.owner, run.owner)) for run, doing in self.service.under_way()]
        return Status(
            self.state, self.url, self.gate.needs_keys, agents, tuple(runs), waiting,
            self.service.counts()["readers"], self.traffic.total, self.traffic.refused, self.traffic.per_second(),
            self.service.problem if self.state == "running" else "", self.options.host,
        )  # fmt: skip

    def _look(self, most: int) -> tuple[tuple[ServedAgent, ...], tuple[ApprovalRow, ...], dict[str, str]]:
        """What is in files."""
        waiting: tuple[ApprovalRow, ...] = ()
        names: dict[str, str] = {}
        with suppress(StoreError):
            waiting = tuple(self.service.approvals.rows(status="pending", limit=most))
        with suppress(StoreError):
            if self.keys is not None:
                self.keys.refresh()
                names = {key.id: key.name for key in self.keys.keys()}  # noqa: SIM118 - no dict
        return tuple(self.service.agents.list()), waiting, names

    def _check_keys(self) -> None:
        if self.keys is not None:
            self.keys.refresh()  # if they cannot be read, nobody could be let in
        if not self.options.exposed:
            return
        now, there = time.time(), [] if self.keys is None else self.keys.keys()
        if not any(key.state(now) == "active" for key in there):
            raise ConfigError(
                f"server: {_why_exposed(self.options)}, so callers need keys, and there is none: "
                "make one with hookline keys add NAME --scope read,run"
            )


def _names(options: ServerOptions) -> list[str]:
    """The names that the server is known by."""
    own = [] if is_loopback(options.host) else [options.host]
    return [*options.hosts, *([parse_url(options.public_url).host] if options.public_url else []), *own]


def _why_exposed(options: ServerOptions) -> str:
    if not is_loopback(options.host):
        return f"other machines can reach it at {options.host}"
    named = next(name for name in ("hosts", "public_url", "trusted_proxies") if getattr(options, name))
    return f"others can reach it through a proxy ({named} is set)"
