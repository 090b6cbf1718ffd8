"""Build a server from settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from .._base.errors import NotInstalledError
from ..config.errors import ConfigError
from ..config.factory import KEEP_DAYS, NAME, approval_store, find_deps_factory, make_context
from ..config.settings import Settings
from ..hooks.audit_log import AuditLogHook
from ..hooks.metrics import MetricsHook
from ..hooks.observability import ObservabilityHook
from ..hooks.spending_limit import SpendingLimit
from ..records.hook import RecordHook
from ..stores.approvals import ApprovalStore
from ..stores.audit.log import AuditLog
from ..stores.callers import DepsFactory
from ..stores.keys import KeyStore
from ..stores.limits import BucketStore
from ..stores.runs import RunStore
from ..stores.schemas import check_database
from ..stores.sessions import SessionStore, SqliteSessionStore, session_store_at
from ..stores.tickets import TicketBoard
from .agents import Agents
from .app import Api, Server
from .auth import Authenticate
from .errors import UnknownAgentError
from .health import MetricsServer, Traffic, add_fleet_metrics
from .logs import AUDIT_LOGGER
from .options import ServerOptions
from .routing import Gate
from .runs import RunService

if TYPE_CHECKING:
    from .worker import Worker


FLUSH_SECONDS = 5.0
"""Seconds for which a server that stops waits until the runs of its program are stored."""
IN_MEMORY = ":memory:"


def build_server(
    settings: Settings, answerer: Any, *, home: Path | None = None, deps: DepsFactory | None = None
) -> Server:
    """Build the server that the settings describe.

    A metrics hook is added to the hooks of ``answerer``.

    Example::

        server = build_server(Settings(runs="runs.db", server={"port": 8420}), agent)
        await server.start()

    Args:
        settings: the settings, above all the table ``server``.
        answerer: the agent to serve, or a roster; each personality of a roster is served under its own name.
        home: the folder for relative paths; the working directory if left out.
        deps: creates the ``deps`` of a run for its caller, as for :func:`asgi`.

    Raises:
        ConfigError: a setting has a wrong value, or an agent needs ``deps``, which nothing creates.
        StoreError: a path cannot be used.
        NotInstalledError: a package is missing.
    """
    check_installed()
    answerers = {getattr(answerer, "name", NAME): answerer}
    return build_parts(settings, answerers, ServerOptions.of(settings.server), home, deps=deps)


def check_installed() -> None:
    """Check that the packages of the extra ``server`` are installed.

    Raises:
        NotInstalledError: a package is missing.
    """
    for module, package in (
        ("starlette", "starlette"),
        ("uvicorn", "uvicorn"),
        ("a2a", "a2a-sdk"),
        ("jinja2", "jinja2"),
    ):
        if find_spec(module) is None:
            raise NotInstalledError(package, "server")


def find_agents(answerers: Mapping[str, Any], options: ServerOptions) -> Agents:
    """Return the agents to serve.

    Raises:
        ConfigError: the options name an agent that does not exist.
    """
    try:
        return Agents(answerers, options.agents)
    except UnknownAgentError as error:
        raise ConfigError(f"server.agents: {error}") from None


def build_parts(
    settings: Settings,
    answerers: Mapping[str, Any],
    options: ServerOptions,
    home: Path | None = None,
    *,
    deps: DepsFactory | None = None,
    authenticate: Authenticate | None = None,
    listen: bool = True,
) -> Server:
    """Build a server for agents by name, and add hooks to each of them until the server stops.

    One counts for the metrics. The other lists the runs that the program itself starts with these agents, beside those
    of callers; they obey the stop switch of this list.

    Args:
        settings: the settings.
        answerers: the agents and rosters by name.
        options: the options in ``settings.server``.
        home: the folder for relative paths.
        deps: creates the ``deps`` of a run for its caller.
        authenticate: identifies callers, instead of API keys.
        listen: whether the server listens on a port. Callers of one that does not always need a key.
    """
    from .a2a.api import A2aApi
    from .api import RunsApi
    from .approvals import ApprovalsApi
    from .audit import AuditApi, AuditService
    from .chat.api import ChatApi
    from .console.api import ConsoleApi
    from .decide.api import DecideApi
    from .explain import ExplainApi, RunRecords
    from .halts import HaltApi, HaltService
    from .links import LinksApi, build_links
    from .replay import ReplayApi, ReplayService
    from .statistics import StatisticsApi

    home = Path.cwd() if home is None else home
    if options.socket:
        options = msgspec.structs.replace(options, socket=str(home / Path(options.socket).expanduser()))
    agents = find_agents(answerers, options)
    deps = find_deps_factory(settings, answerers.values(), deps, home)
    hooks = [hook for answerer in answerers.values() for hook in answerer.hooks]
    metrics = MetricsHook(every_call=True)  # the metrics include the duration of every hook
    traffic = Traffic(metrics)
    stores = _open_stores(settings, options)
    store = stores.runs
    close_metrics = add_fleet_metrics(metrics, store)
    if authenticate is not None and options.login is not None:
        raise ConfigError("server.login has no effect with authenticate=, which identifies the callers: remove one")
    keys = None if authenticate is not None else KeyStore(options.keys_path(settings.runs, home))
    buckets = None
    if settings.runs and store.db.is_shared:
        buckets = BucketStore(settings.runs, options.rate / 60, options.burst)
    links = build_links(options, stores.approvals)
    service = _build_service(settings, agents, options, stores, links, deps)
    audit = _audit_log(settings, hooks)
    if options.audit_stream:
        if audit is None:
            raise ConfigError("server.audit_stream copies the audit log, and there is none: set audit")
        audit.copy_to(AUDIT_LOGGER)
    halts = HaltService(store.halts, audit)
    log = AuditService(audit, settings.audit_index or "", store.nested_ids)
    folders = [hook.folder for hook in hooks if isinstance(hook, RecordHook)]
    if settings.records and Path(settings.records).is_dir():  # those of other programs of the project
        folders.append(Path(settings.records))
    records = RunRecords(list(dict.fromkeys(folders)), settings.tapes)
    replays = ReplayService(service, records, options.rules, home)
    gate = Gate(
        keys,
        options,
        keys_required=not listen,
        audit=audit,
        count=traffic,
        authenticate=authenticate,
        buckets=buckets,
    )
    apis: list[Api] = [
        RunsApi(service, options.public_url),
        ApprovalsApi(service, audit),
        A2aApi(service, store, gate, audit),
        ChatApi(service),
        ExplainApi(service, records),
        StatisticsApi(service),
        AuditApi(log),
        ReplayApi(replays, service),
        HaltApi(halts),
        DecideApi(service),
    ]
    if links is not None:
        apis.append(LinksApi(links, lambda: server.url))
    tickets = TicketBoard(settings.tickets) if settings.tickets else None
    limits = [hook for hook in hooks if isinstance(hook, SpendingLimit)]
    apis.append(ConsoleApi(service, keys, gate, records, log, replays, halts, audit, tickets, limits))

    registries = list({id(answerer.hooks): answerer.hooks for answerer in answerers.values()}.values())
    recorder = ObservabilityHook(store)
    unlisted = [registry for registry in registries if not any(_lists_runs(hook, store) for hook in registry)]
    listing = [recorder, *(hook for hook in hooks if _lists_runs(hook, store) and hook.halts is None)]

    def detach_hooks() -> None:
        for hook in listing:
            hook.halts = None
        for registry in registries:
            registry.unregister(metrics)
        for registry in unlisted:
            registry.unregister(recorder)
        recorder.flush(FLUSH_SECONDS)

    server = Server(
        service,
        apis,
        gate,
        options,
        keys=keys,
        metrics=metrics,
        traffic=traffic,
        closing=[detach_hooks, close_metrics, *(each.close for each in (stores, keys, buckets) if each is not None)],
        listen=listen,
    )
    for hook in listing:
        hook.halts = store.halts
    for registry in registries:
        registry.extend([metrics, recorder] if registry in unlisted else [metrics])
    return server


def _lists_runs(hook: Any, store: RunStore) -> bool:
    """Whether a hook puts runs into the list of this server."""
    return isinstance(hook, ObservabilityHook) and hook.store.path == store.path and store.path != IN_MEMORY


def build_worker(
    settings: Settings,
    answerer: Any,
    *,
    home: Path | None = None,
    metrics: str = "",
    deps: DepsFactory | None = None,
) -> Worker:
    """Build a worker for the durable runs of servers with the same settings.

    Example::

        worker = build_worker(Settings(runs="postgresql://db/agents"), agent)
        await worker.start()

    Args:
        settings: the settings, as for :func:`build_server`.
        answerer: the agent to run, or a roster.
        home: the folder for relative paths; the working directory if left out.
        metrics: an address for Prometheus, such as ``127.0.0.1:9464``; requests need no key. A metrics hook is added
            to the hooks of ``answerer`` then.
        deps: creates the ``deps`` of a run for its caller, as for :func:`asgi`.

    Raises:
        ConfigError: a setting has a wrong value, or an agent needs ``deps``, which nothing creates.
        StoreError: a path cannot be used.
    """
    from .links import build_links
    from .worker import Worker

    options = ServerOptions.of({**settings.server, "durable": True, "execute": True})
    agents = find_agents({getattr(answerer, "name", NAME): answerer}, options)
    deps = find_deps_factory(settings, [answerer], deps, home)
    stores = _open_stores(settings, options)
    service = _build_service(settings, agents, options, stores, build_links(options, stores.approvals), deps)
    served, closing = None, list[Callable[[], object]]([stores.close])
    if metrics:
        hook = MetricsHook(every_call=True)
        closing.append(add_fleet_metrics(hook, stores.runs))
        served = MetricsServer(hook, metrics)
        answerer.hooks.extend([hook])
    return Worker(service, options, metrics=served, closing=closing)


class _Stores(NamedTuple):
    runs: RunStore
    approvals: ApprovalStore
    sessions: SessionStore

    def close(self) -> None:
        self.runs.close()
        self.approvals.close()
        if isinstance(self.sessions, SqliteSessionStore):
            self.sessions.close()


def _open_stores(settings: Settings, options: ServerOptions) -> _Stores:
    if options.durable and not settings.runs:
        raise ConfigError("durable runs need a file or a database: set runs")
    if not options.durable and not options.execute:
        raise ConfigError("server.execute = false leaves durable runs to workers: set server.durable = true too")
    if settings.database:
        check_database(settings.database)
    place, kept = settings.runs or IN_MEMORY, float(KEEP_DAYS)
    approvals, lease = approval_store(settings), options.lease_seconds
    store = RunStore(place, keep_days=kept, pinned=True, lease_seconds=lease, approvals=approvals)
    return _Stores(store, approvals, session_store_at(settings.sessions))


def _build_service(
    settings: Settings,
    agents: Agents,
    options: ServerOptions,
    stores: _Stores,
    links: Any,
    deps: DepsFactory | None,
) -> RunService:
    from .links import notifier

    return RunService(
        agents,
        stores.runs,
        approvals=stores.approvals,
        sessions=stores.sessions,
        options=options,
        context=lambda session: make_context(settings, session, halts=stores.runs.halts),
        metadata=settings.metadata,
        notify=notifier(links),
        required=settings.runs_required,
        deps=deps,
    )


def _audit_log(settings: Settings, hooks: Iterable[Any]) -> AuditLog | None:
    """Return the audit log of the runs, which the server writes to as well; ``None`` if the runs have none."""
    logs = [hook.log for hook in hooks if isinstance(hook, AuditLogHook)]
    if logs or not settings.audit:
        path = Path(settings.audit or "").expanduser().absolute()
        return next((each for each in logs if each.path == path), logs[0] if logs else None)
    return AuditLog(settings.audit, index=settings.audit_index or None)
