"""A server from settings: who is served, who may call, and where things are kept."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .._base.errors import NotInstalledError
from ..config.errors import ConfigError
from ..config.factory import NAME, make_context
from ..config.settings import Settings
from ..hooks.audit_log import AuditLogHook
from ..hooks.metrics import MetricsHook
from ..stores.approvals import ApprovalStore
from ..stores.audit.log import AuditLog
from ..stores.keys import KeyStore
from ..stores.runs import RunStore
from ..stores.sessions import session_store_at
from .agents import Agents
from .app import Part, Server
from .errors import UnknownAgentError
from .gate import Gate
from .options import ServerOptions
from .service import RunService
from .traffic import Traffic


def build_server(settings: Settings, answerer: Any, *, home: Path | None = None) -> Server:
    """The server that these settings describe.

    A hook that counts is put among those of ``answerer``.

    Args:
        settings: the settings; ``server`` above all.
        answerer: who answers: an agent, or a roster, of which each personality is served under its name.
        home: the folder that relative paths are looked for in; the working folder if left out.

    Raises:
        ConfigError: a setting that cannot be.
        StoreError: a path that cannot be used.
        NotInstalledError: a package is missing.
    """
    for package in ("starlette", "uvicorn"):
        if find_spec(package) is None:
            raise NotInstalledError(package, "server")
    from .a2a.part import A2aPart
    from .api import RunsApi
    from .approvals_api import ApprovalsApi
    from .chat import ChatApi

    home = Path.cwd() if home is None else home
    options = ServerOptions.of(settings.server)
    try:
        agents = Agents({getattr(answerer, "name", NAME): answerer}, options.agents)
    except UnknownAgentError as error:
        raise ConfigError(f"server.agents: {error}") from None
    metrics = MetricsHook(every_call=True)  # how long hooks take is among the numbers
    traffic = Traffic(metrics)
    store = RunStore(settings.runs or ":memory:", pinned=True)
    keys = KeyStore(options.keys_path(settings.runs, home))
    approvals = ApprovalStore(settings.approval_file)
    service = RunService(
        agents, store, approvals=approvals, sessions=session_store_at(settings.sessions), options=options,
        context=lambda session: make_context(settings, session), metadata=settings.metadata,
    )  # fmt: skip
    audit = audit_of(settings, answerer)
    gate = Gate(keys, options, audit=audit, count=traffic)
    parts: list[Part] = [
        RunsApi(service),
        ApprovalsApi(service, audit),
        A2aPart(service, store, audit),
        ChatApi(service),
    ]
    server = Server(
        service, parts, gate, options, keys=keys, metrics=metrics, traffic=traffic,
        closing=[store.close, keys.close, approvals.close],
    )  # fmt: skip
    answerer.hooks.extend([metrics])
    return server


def audit_of(settings: Settings, answerer: Any) -> AuditLog | None:
    """The audit log of runs, for what the server has to write down too; ``None`` if there is none."""
    logs = [hook.log for hook in answerer.hooks if isinstance(hook, AuditLogHook)]
    if not settings.audit:
        return logs[0] if logs else None
    wanted = Path(settings.audit).expanduser().absolute()
    return next((each for each in logs if each.path == wanted), None) or AuditLog(settings.audit)
