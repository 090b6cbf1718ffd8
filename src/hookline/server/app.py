"""A server of agents: all transports of one service of runs, behind one gate, on one port."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from .._base.names import words
from .._base.workers import in_thread
from .._kernel.errors import HooklineError
from .._net.urls import parse_url
from .._web.guard import is_loopback
from .._web.host import HttpHost
from .._web.starting import Starting
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

HANG_UP = 5.0
"""Seconds that requests get to end when all runs are over."""


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
        self.service, self.gate, self.options, self.state = service, gate, options, "starting"
        self.keys, self.traffic, self._closing = keys, traffic or Traffic(), tuple(closing)
        self._host = HttpHost(
            [self], options.host, options.port, hosts=_names(options), max_body=options.max_body,
            seconds=options.body_seconds, grace=HANG_UP, extra="server",
        )  # fmt: skip
        from .openapi import OpenApi

        own: tuple[Any, ...] = HealthApi(service, lambda: self.state, metrics), *parts
        described = OpenApi(lambda: [each for part in own for each in part.endpoints()], url=options.public_url)
        self.parts: tuple[Any, ...] = *own, described
        self._begun: list[Any] = []
        self._starting = Starting()
        self._over, self._hurry = asyncio.Event(), asyncio.Event()

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
            WebError: the port is taken, there is no such address, or it was started before.
            StoreError: a file cannot be used.
        """
        if await self._starting.go(self._begin, lambda: self.stop(grace=0)) and self.state == "starting":
            self.state = "up"

    async def _begin(self) -> None:
        await in_thread(self._check_keys)
        await self._host.start()
        await self.service.open()
        for part in self.parts:
            if hasattr(part, "open"):
                await part.open()
                self._begun.append(part)

    async def stop(self, grace: float | None = None) -> None:
        """Stop: it is no longer ready and takes no more runs; those under way get ``grace`` seconds to finish.

        Where it is being stopped already, ``grace=0`` ends the wait.
        """
        grace = self.options.grace if grace is None else grace
        if grace <= 0:
            self._hurry.set()
        if self.state in ("stopping", "stopped"):
            await self._over.wait()
            return
        self.state = "stopping"
        try:
            await self._starting.break_off()
            await self._finish_runs(grace)
            for part in reversed(self._begun):
                await _closed(part)
            await self._host.stop()
            for close in self._closing:
                try:
                    await in_thread(close)
                except HooklineError as error:
                    log.error("%s", words(error))
        finally:
            self.state = "stopped"
            self._over.set()

    async def wait(self) -> None:
        """Go on until it is stopped. Cancelling this stops it."""
        try:
            await self._over.wait()
        finally:
            await self.stop()

    async def status(self, approvals: int = 20) -> Status:
        """What it is doing; of the calls that wait for approval, at most so many."""
        agents, waiting, names = await in_thread(self._look, approvals)
        runs = [(run, doing, names.get(run.owner, run.owner)) for run, doing in self.service.under_way()]
        return Status(
            self.state, self.url, self.gate.needs_keys, agents, tuple(runs), waiting,
            self.service.counts()["readers"], self.traffic.total, self.traffic.refused, self.traffic.per_second(),
            self.service.problem if self.state == "up" else "", self.options.host,
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

    async def _finish_runs(self, grace: float) -> None:
        closing = asyncio.create_task(self.service.close(grace))
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait([closing, hurry], return_when=asyncio.FIRST_COMPLETED)
        if not closing.done():
            await self.service.close(0)
        hurry.cancel()
        await asyncio.wait([closing, hurry])
        closing.result()


async def _closed(part: Any) -> None:
    try:
        await part.close()
    except Exception:
        log.exception("%s did not end well", type(part).__name__)


def _names(options: ServerOptions) -> list[str]:
    """The names that the server is known by."""
    own = [] if is_loopback(options.host) else [options.host]
    return [*options.hosts, *([parse_url(options.public_url).host] if options.public_url else []), *own]


def _why_exposed(options: ServerOptions) -> str:
    if not is_loopback(options.host):
        return f"other machines can reach it at {options.host}"
    named = next(name for name in ("hosts", "public_url", "trusted_proxies") if getattr(options, name))
    return f"others can reach it through a proxy ({named} is set)"
