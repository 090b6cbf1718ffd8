"""``hookline worker``: execute the durable runs that servers accept."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Annotated, Self

import msgspec
import typer

from ..config.settings import KEYS
from ..config.sources import Configuration
from .errors import COMPLETED
from .help import Command
from .options import with_settings
from .services import run_until_stopped

if TYPE_CHECKING:
    from ..config.settings import Settings
    from ..server.worker import Worker

EPILOG = """
Examples:
  hookline serve --durable --no-execute --database postgresql://db/agents
  hookline worker --database postgresql://db/agents --concurrency 8

A worker needs the configuration of the servers: the same agents, hooks and tools, and the same database. Ctrl-C or
SIGTERM hands its runs over to other workers, after the calls in flight. A second one does so at once.
"""

_PANEL = "Worker"

log = logging.getLogger("hookline")


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("worker", cls=Command, epilog=EPILOG)(with_settings(*KEYS)(worker))


def worker(
    config: Configuration,
    concurrency: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Number of runs to execute at once. [default: 64]",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ] = None,
    grace: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            help="Seconds that calls in flight get to finish at shutdown. [default: 30]",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ] = None,
    metrics: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve metrics for Prometheus at this address, to everybody who can reach it. [default: no metrics]",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ] = "",
) -> int:
    """Execute the durable runs of servers that share a database."""
    given = {name: value for name, value in (("max_runs", concurrency), ("grace", grace)) if value is not None}
    settings = msgspec.structs.replace(config.settings, server={**config.settings.server, **given})
    return _build_and_work(msgspec.structs.replace(config, settings=settings), metrics)


def _build_and_work(config: Configuration, metrics: str) -> int:
    from ..config.factory import build_plugins
    from ..server.build import build_worker
    from .plugins import close_plugins
    from .runner import finish_recording, prepare_unattended_agent, start_recording
    from .weights import prepare_model

    recorders, plugins = start_recording(config.settings), build_plugins(config.settings, config.home)
    try:
        answerer, agent = prepare_unattended_agent(config, recorders, plugins)
        worker = build_worker(config.settings, answerer, home=config.home, metrics=metrics)
        prepare_model(agent.model)
        return asyncio.run(_work(worker, config.settings))
    finally:
        close_plugins(plugins)
        finish_recording(recorders)


async def _work(worker: Worker, settings: Settings) -> int:
    with WorkerLog(worker, debug=settings.debug) as view:
        await run_until_stopped(worker, view, view.on_started)
    return COMPLETED


class WorkerLog:
    """Print log lines to stderr in the configured format."""

    def __init__(self, worker: Worker, *, debug: bool) -> None:
        self._worker, self._debug = worker, debug

    def __enter__(self) -> Self:
        from ..server.logs import setup_logs

        self._undo = setup_logs(self._worker.options.logs, debug=self._debug)
        return self

    def __exit__(self, *_: object) -> None:
        self._undo()

    def on_started(self) -> None:
        """Print what the worker does."""
        service = self._worker.service
        names = ", ".join(agent.name for agent in service.agents.list())
        log.info("executing the runs in %s, at most %d at once, agents: %s", service.where, service.max_runs, names)
        if not service.is_shared:
            log.warning("no database is set: this worker shares the runs with servers of this machine only")
        if self._worker.metrics_url:
            log.info("metrics at %s, without a key", self._worker.metrics_url)

    def stopping(self, *, again: bool) -> None:
        """Announce the shutdown."""
        log.info("%s", "stopping now" if again else "handing over after the calls in flight; Ctrl-C again does so now")

    async def watch(self) -> None:
        """Do nothing: the log shows what happens."""
