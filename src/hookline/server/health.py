"""Whether a server is up and ready, and its numbers: for whoever runs it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from .._base.package import __version__
from .._base.workers import in_thread
from ..hooks.metrics import MetricsHook
from .endpoints import OPEN, Endpoint
from .service import RunService

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

AGAIN = 5
"""Seconds after which it may be worth to ask again."""


class Health(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether the server is up, or ready; if it is not, why."""

    status: str
    problem: str = ""


class HealthApi:
    """``/healthz``: the process is up; ``/readyz``: it takes runs; ``/metrics``: its numbers, for Prometheus.

    What is open to everybody says nothing of files and their errors: those are in the log.

    Args:
        service: the runs.
        state: gives the state of the server, see :attr:`Server.state`.
        metrics: the numbers; there is no ``/metrics`` without.
    """

    def __init__(self, service: RunService, state: Callable[[], str], metrics: MetricsHook | None = None) -> None:
        self._service, self._state, self._metrics = service, state, metrics
        if metrics is None:
            return
        began = time.time()
        metrics.gauge("hookline_served_runs", "Runs of this server, by state.", self._runs, ["state"])
        metrics.gauge("hookline_streams_open", "Streams of events.", lambda: service.counts()["readers"])
        metrics.gauge("hookline_store_problem", "1 if runs cannot be stored.", self._store_problem)
        metrics.gauge("hookline_server_ready", "1 if runs are taken.", lambda: float(not self.problem()))
        metrics.gauge("hookline_server_start_time_seconds", "When it was started, as Unix time.", lambda: began)
        metrics.gauge("hookline_server_info", "Which version it is.", lambda: {__version__: 1.0}, ["version"])

    def endpoints(self) -> list[Endpoint]:
        """What can be asked for."""
        found = [
            Endpoint("GET", "/healthz", self._up, OPEN, "health", "Whether the process is up", answer=Health),
            Endpoint(
                "GET", "/readyz", self._ready, OPEN, "ready", "Whether runs are taken", answer=Health, problems=(503,)
            ),
        ]
        if self._metrics is not None:
            what = "Numbers in the text format of Prometheus"
            found.append(Endpoint("GET", "/metrics", self._numbers, ("admin",), "metrics", what, media="text/plain"))
        return found

    def problem(self) -> str:
        """Why no runs are taken, in words that anybody may read; empty if they are."""
        state = self._state()
        if state != "running":
            return f"the server is {state}"
        return "runs cannot be stored now" if self._service.problem else ""

    def _runs(self) -> dict[str, float]:
        return {state: count for state, count in self._service.counts().items() if state != "readers"}

    def _store_problem(self) -> float:
        return float(self._state() == "running" and bool(self._service.problem))

    async def _up(self, request: Request) -> Response:
        return _answer(Health("ok"))

    async def _ready(self, request: Request) -> Response:
        problem = self.problem()
        return _answer(Health("not ready", problem) if problem else Health("ready"), 503 if problem else 200)

    async def _numbers(self, request: Request) -> Response:
        from starlette.responses import Response

        assert self._metrics is not None
        text = await in_thread(self._metrics.text)
        return Response(text, media_type=self._metrics.content_type)


def _answer(health: Health, status: int = 200) -> Response:
    from starlette.responses import Response

    headers = {"Retry-After": str(AGAIN)} if status == 503 else None
    return Response(msgspec.json.encode(health), status, headers, "application/json")
