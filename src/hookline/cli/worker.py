"""``hookline worker``: execute the durable runs that servers accept."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Annotated

import typer

from ..config.settings import KEYS
from ..config.sources import Configuration
from .errors import COMPLETED
from .help import Command
from .options import service_option, with_settings, with_table
from .services import ServiceLog, run_until_stopped

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
        service_option("Number of runs to execute at once. [default: 64]", metavar="N", min=1, panel=_PANEL),
    ] = None,
    grace: Annotated[
        float | None,
        service_option(
            "Seconds that calls in flight get to finish at shutdown. [default: 30]", metavar="S", panel=_PANEL
        ),
    ] = None,
    metrics: Annotated[
        str,
        service_option(
            "Serve metrics for Prometheus at this address, to everybody who can reach it. [default: no metrics]",
            metavar="HOST:PORT",
            panel=_PANEL,
        ),
    ] = "",
) -> int:
    """Execute the durable runs of servers that share a database."""
    return _build_and_work(with_table(config, "server", {"max_runs": concurrency, "grace": grace}), metrics)


def _build_and_work(config: Configuration, metrics: str) -> int:
    from ..server.build import build_worker
    from .runner import unattended_agent
    from .weights import prepare_model

    with unattended_agent(config) as (answerer, agent, _):
        worker = build_worker(config.settings, answerer, home=config.home, metrics=metrics)
        prepare_model(agent.model)
        return asyncio.run(_work(worker, config.settings))


async def _work(worker: Worker, settings: Settings) -> int:
    with WorkerLog(worker, debug=settings.debug) as view:
        await run_until_stopped(worker, view, view.on_started)
    return COMPLETED


class WorkerLog(ServiceLog):
    """Print log lines to stderr in the configured format."""

    def __init__(self, worker: Worker, *, debug: bool) -> None:
        super().__init__(worker.options.logs, debug=debug)
        self._worker = worker

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
        log.info(
            "%s",
            "stopping now" if again else "suspending the runs after their calls in flight; Ctrl-C again does so now",
        )
