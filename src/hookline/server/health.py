"""Health checks and metrics: ``/healthz``, ``/readyz`` and ``/metrics``."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar, cast

import msgspec

from .._base.package import __version__
from .._base.text import error_text
from .._base.workers import in_thread
from ..config.errors import ConfigError
from ..hooks.metrics import MetricsHook
from ..stores.run_queries import QueueState, queue_state
from ..stores.runs import RunStore
from .auth import PUBLIC
from .consistency import ConsistencyCheck
from .errors import RETRY_SECONDS
from .routing import Endpoint, json_response
from .runs import RunService

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

T = TypeVar("T")
R = TypeVar("R")

RATE_WINDOW = 10.0
"""Seconds over which the current request rate is measured."""
_BUCKET_SECONDS = 0.5


class Health(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether the server is alive or ready, and the problem if it is not."""

    status: str
    problem: str = ""


class HealthApi:
    """``/healthz``: the process is alive; ``/readyz``: runs are accepted; ``/metrics``: numbers for Prometheus.

    The public endpoints do not mention files and their errors, which are in the log.

    Args:
        service: runs the agents.
        state: returns the state of the server, see :attr:`Server.state`.
        metrics: the metrics; without them there is no ``/metrics``.
    """

    def __init__(self, service: RunService, state: Callable[[], str], metrics: MetricsHook | None = None) -> None:
        self._service = service
        self._state = state
        self._metrics = metrics
        if metrics is None:
            return
        started = time.time()
        metrics.gauge("hookline_served_runs", "Unfinished runs of this server, by state.", self._runs, ["state"])
        metrics.gauge("hookline_streams_open", "Open event streams.", lambda: service.counts()["readers"])
        metrics.gauge("hookline_store_problem", "1 if runs cannot be stored.", self._store_problem)
        metrics.gauge("hookline_server_ready", "1 if runs are accepted.", lambda: float(not self.problem()))
        metrics.gauge("hookline_server_start_time_seconds", "Start time of the server (Unix time).", lambda: started)
        metrics.gauge("hookline_server_info", "Version of the server.", lambda: {__version__: 1.0}, ["version"])

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints."""
        found = [
            Endpoint(
                "GET", "/healthz", self._healthz, PUBLIC, "health", "Check that the server is alive", response=Health
            ),
            Endpoint(
                "GET",
                "/readyz",
                self._readyz,
                PUBLIC,
                "ready",
                "Check that the server accepts runs",
                response=Health,
                errors=(503,),
            ),
        ]
        if self._metrics is not None:
            summary = "Get metrics in the text format of Prometheus"
            found.append(
                Endpoint("GET", "/metrics", self._metrics_text, ("admin",), "metrics", summary, media="text/plain")
            )
        return found

    def problem(self) -> str:
        """Return why no runs are accepted, without private details; empty if runs are accepted."""
        state = self._state()
        if state != "running":
            return f"the server is {state}"
        return "runs cannot be stored now" if self._service.problem else ""

    def _runs(self) -> dict[str, float]:
        return {state: count for state, count in self._service.counts().items() if state != "readers"}

    def _store_problem(self) -> float:
        return float(self._state() == "running" and bool(self._service.problem))

    async def _healthz(self, request: Request) -> Response:
        return json_response(Health("ok"))

    async def _readyz(self, request: Request) -> Response:
        problem = self.problem()
        if not problem:
            return json_response(Health("ready"))
        return json_response(Health("not ready", problem), 503, {"Retry-After": f"{RETRY_SECONDS:.0f}"})

    async def _metrics_text(self, request: Request) -> Response:
        from starlette.responses import Response

        assert self._metrics is not None
        text = await in_thread(self._metrics.text)
        return Response(text, media_type=self._metrics.content_type)


class _Reading(Generic[T]):
    """A value from the database that several gauges show. It is read once for an export of all of them."""

    def __init__(self, read: Callable[[], T]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._value: T | None = None
        self._shown: set[object] = set()
        """The gauges that have shown the value."""

    def gauge(self, part: Callable[[T], R]) -> Callable[[], R]:
        """Return the function that reads one of the gauges."""

        def read() -> R:
            with self._lock:
                if not self._shown or part in self._shown:
                    self._shown.clear()
                    self._value = self._read()
                self._shown.add(part)
                return part(cast(T, self._value))

        return read


def add_fleet_metrics(metrics: MetricsHook, store: RunStore) -> Callable[[], object]:
    """Add metrics of all servers and workers that share a database. They are read from it when they are exported.

    Returns what closes a connection of their own. The caller closes the store.
    """
    queue, journal = _Reading(lambda: queue_state(store)), _Reading(store.journal.states)
    totals = _Reading(store.journal.totals)

    def starts(state: QueueState) -> dict[str, float]:
        return {"0.5": state.start_median, "0.95": state.start_95}

    def slots(state: QueueState) -> dict[str, float]:
        return {"used": state.used, "all": state.slots}

    def leases(states: dict[str, int]) -> dict[str, float]:
        return {"held": states["running"], "expired": states["expired"]}

    def idle(states: dict[str, int]) -> dict[str, float]:
        return {state: states[state] for state in ("new", "waiting", "interrupted")}

    def workers() -> dict[str, float]:
        return dict(Counter(digest for worker in store.workers.running() for digest in worker.digests))

    def total(name: str, part: int) -> Callable[[], float]:
        return totals.gauge(lambda found: found[name][part])

    # A check reads many rows, so it does not use the connection that the server needs for its runs.
    is_pooled = store.db.in_memory or store.db.is_shared
    checked = store if is_pooled else RunStore(store.path, approvals=store.approvals)
    consistency = ConsistencyCheck(checked)
    contradictions = "Rows about durable runs that contradict each other, by kind."
    metrics.gauge("hookline_contradictions", contradictions, consistency.counts, ["kind"])
    metrics.gauge("hookline_halted", "1 if all runs are halted.", lambda: float(store.halts.current() is not None))
    depth, oldest = queue.gauge(lambda state: state.depth), queue.gauge(lambda state: state.oldest)
    started = "Time from acceptance to start of recent runs."
    used = "Runs that workers execute at once, and those that they can."
    metrics.gauge("hookline_queue_depth", "Queued runs of all servers.", depth)
    metrics.gauge("hookline_queue_oldest_seconds", "Age of the oldest queued run.", oldest)
    metrics.gauge("hookline_start_seconds", started, queue.gauge(starts), ["quantile"])
    metrics.gauge("hookline_slots", used, queue.gauge(slots), ["state"])
    metrics.gauge("hookline_leases", "Durable runs that a process executes, or lost.", journal.gauge(leases), ["state"])
    metrics.gauge("hookline_durable_runs", "Durable runs that no process executes.", journal.gauge(idle), ["state"])
    metrics.gauge("hookline_workers", "Processes that execute durable runs, by version.", workers, ["digest"])
    waiting = "Durable runs that no process can continue, by the version they need."
    metrics.gauge("hookline_pinned_runs", waiting, store.workers.pinned_by_digest, ["digest"])
    lost, continued = "Runs taken from a process that vanished.", "Runs continued from their journal."
    metrics.gauge("hookline_takeovers_total", lost, total("takeovers", 0))
    metrics.gauge("hookline_takeover_seconds_total", "Time from its last sign to the takeover.", total("takeovers", 1))
    metrics.gauge("hookline_recoveries_total", continued, total("recoveries", 0))
    metrics.gauge("hookline_recovery_seconds_total", "Time from claim to first new entry.", total("recoveries", 1))
    return (lambda: None) if is_pooled else checked.close


class MetricsServer:
    """Serve metrics over HTTP in a thread, without keys: for a worker, which has no other port.

    Args:
        metrics: the metrics.
        address: where to listen: ``HOST:PORT``; port 0 takes a free one.

    Raises:
        ConfigError: the address is not valid.
    """

    def __init__(self, metrics: MetricsHook, address: str) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise ConfigError(f"the address for metrics must be like 127.0.0.1:9464, not {address!r:.80}")
        self._metrics = metrics
        self._host, self._port = host.strip("[]"), int(port)
        self._stop: Callable[[], object] = lambda: None

    def start(self) -> str:
        """Start to listen, and return the address of the metrics.

        Raises:
            ConfigError: the address cannot be used.
        """
        from prometheus_client import start_http_server

        try:
            server, thread = start_http_server(self._port, self._host, registry=self._metrics.registry)
        except OSError as error:
            where = f"{self._host}:{self._port}"
            raise ConfigError(f"metrics cannot be served at {where}: {error_text(error)}: give another one") from error

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        self._stop = stop
        return f"http://{self._host}:{server.server_port}/metrics"

    def stop(self) -> None:
        """Stop listening."""
        self._stop()


class Traffic:
    """Count requests, for the terminal view and for Prometheus. The gate calls it after every request.

    Args:
        metrics: a registry that gets the numbers too.
        clock: returns the time in seconds.
    """

    def __init__(self, metrics: MetricsHook | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.total = 0
        self.refused = 0
        """The number of requests that got status 401, 403 or 429."""
        self._clock = clock
        self._started = clock()
        self._buckets: deque[tuple[int, int]] = deque()
        self._requests = self._seconds = None
        if metrics is not None:
            labels = ["method", "route", "status"]
            self._requests = metrics.counter("hookline_http_requests_total", "Handled HTTP requests.", labels)
            self._seconds = metrics.histogram(
                "hookline_http_request_seconds", "Duration of HTTP requests; of streams until their end.", ["route"]
            )

    def __call__(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request."""
        self.total += 1
        self.refused += status in (401, 403, 429)
        now = int(self._clock() / _BUCKET_SECONDS)
        if self._buckets and self._buckets[-1][0] == now:
            self._buckets[-1] = now, self._buckets[-1][1] + 1
        else:
            self._buckets.append((now, 1))
            self._drop_old(now)
        if self._requests is not None and self._seconds is not None:
            self._requests.add(method, route, str(status))
            self._seconds.observe(seconds, route)

    def per_second(self) -> float:
        """Return the current request rate per second."""
        now = self._clock()
        self._drop_old(int(now / _BUCKET_SECONDS))
        return sum(count for _, count in self._buckets) / max(1.0, min(RATE_WINDOW, now - self._started))

    def _drop_old(self, now: int) -> None:
        while self._buckets and self._buckets[0][0] <= now - RATE_WINDOW / _BUCKET_SECONDS:
            self._buckets.popleft()
