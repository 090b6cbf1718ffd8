"""``hookline serve``: let programs call an agent over HTTP."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .._base.text import error_text
from ..config.settings import KEYS
from ..config.sources import Configuration
from ..config.trust import reference_files
from ..plugins.trust import trust_named
from ..stores.errors import StoreError
from .errors import COMPLETED
from .help import Command
from .options import DURABLE, service_option, with_settings, with_table
from .services import ServiceLog, run_until_stopped, timestamped
from .terminal import can_move_cursor
from .text import arguments_text, counted, printable, rough_duration, short, short_id

if TYPE_CHECKING:
    from rich.text import Text

    from ..config.settings import Settings
    from ..server.app import Server, Status
    from ..stores.approvals import ApprovalRow
    from ..stores.runs import RunRecord


EPILOG = """
Examples:
  hookline serve
  hookline serve --port 9000 --config agents.toml
  hookline keys add ci --scope read,run
  hookline approvals --watch

Then, from another terminal:
  curl -s http://127.0.0.1:8420/runs -H 'Content-Type: application/json' -d '{"task": "Say hello."}'

The server accepts requests from this machine only, unless --host or [server] in the configuration file sets another
address; callers then need API keys. Ctrl-C stops it after the current runs. Ctrl-C again stops it at once.
"""

_EXCLUDED = ("hosts",)  # its option --host has another meaning here
_PANEL = "Server"


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    keys = [name for name in KEYS if name not in _EXCLUDED]
    app.command("serve", cls=Command, epilog=EPILOG)(with_settings(*keys)(serve))


def serve(
    config: Configuration,
    host: Annotated[
        str | None, service_option("Address to listen on. [default: 127.0.0.1]", metavar="ADDRESS", panel=_PANEL)
    ] = None,
    port: Annotated[
        int | None, service_option("Port to listen on; 0 for any free port. [default: 8420]", metavar="N", panel=_PANEL)
    ] = None,
    durable: Annotated[bool | None, service_option(DURABLE, "--durable/--no-durable", panel=_PANEL)] = None,
    execute: Annotated[
        bool | None,
        service_option(
            "Execute durable runs here, or leave them to hookline worker. [default: execute]",
            "--execute/--no-execute",
            panel=_PANEL,
        ),
    ] = None,
    rules: Annotated[
        list[str] | None,
        service_option(
            "File of hooks that can be tried on recorded runs in the console. Repeatable.",
            metavar="FILE",
            panel=_PANEL,
        ),
    ] = None,
    grace: Annotated[
        float | None,
        service_option("Seconds that runs get to finish at shutdown. [default: 30]", metavar="S", panel=_PANEL),
    ] = None,
) -> int:
    """Serve the agent over HTTP: a JSON API, A2A, and OpenAI's chat API."""
    options: dict[str, Any] = {"host": host, "port": port, "durable": durable, "execute": execute, "grace": grace}
    if rules:
        trust_named(*reference_files(rules, Path.cwd()))
        options["rules"] = [*config.settings.server.get("rules", ()), *map(os.path.abspath, rules)]
    return _build_and_serve(with_table(config, "server", options))


def _build_and_serve(config: Configuration) -> int:
    from ..server.build import build_server
    from ..server.options import ServerOptions
    from .runner import unattended_agent
    from .weights import prepare_model

    ServerOptions.of(config.settings.server)  # report invalid options before loading the model
    with unattended_agent(config) as (answerer, agent, _):
        server = build_server(config.settings, answerer, home=config.home)
        prepare_model(agent.model)
        return asyncio.run(_serve(server, config.settings))


async def _serve(server: Server, settings: Settings) -> int:

    with make_view(server, debug=settings.debug) as view:
        await run_until_stopped(server, view, view.on_started)
    return COMPLETED


log = logging.getLogger("hookline")

REFRESH = 0.5
"""Refresh interval in seconds."""
LINES, RUNS, CALLS, AGENTS = 5, 12, 5, 6
"""Maximum number of rows of each kind; fewer on a terminal with less than ``FULL_HEIGHT`` lines."""
FULL_HEIGHT = 40
"""Lines of a terminal that has room for the maximum number of rows."""
NO_AUDIT_LOG = 'no audit log: logins are in the server log only (remove audit = "none" to keep an audit log)'
STATES = {"queued": "dim", "running": "cyan", "waiting": "yellow"}


def make_view(server: Server, *, debug: bool = False) -> ServerLog:
    """Return a live view on a terminal; log lines elsewhere, or if logs are to be JSON."""
    live = can_move_cursor(sys.stderr.isatty()) and server.options.logs != "json"
    return (ServerScreen if live else ServerLog)(server, debug=debug)


class ServerLog(ServiceLog):
    """Print log lines to stderr in the configured format."""

    def __init__(self, server: Server, *, debug: bool) -> None:
        super().__init__(server.options.logs, debug=debug)
        self._server = server
        self.is_started = False

    def __exit__(self, *exception: object) -> None:
        if self.is_started:
            self.print(stopped_text(self._server))
        super().__exit__(*exception)

    def print(self, line: str) -> None:
        """Print a line."""
        log.info("%s", line)

    def print_link(self, line: str) -> None:
        """Print a line with a link that logs in, which the log would hide as a secret."""
        sys.stderr.write(f"{line}\n")

    def on_started(self) -> None:
        """Print the address and the agents."""
        self.is_started = True
        server = self._server
        names = ", ".join(agent.name for agent in server.service.agents.list())
        where = f"{server.url}{_all_addresses(server.options.host)}"
        self.print(f"listening at {where}, {_keys_text(server.gate.needs_keys)}, agents: {names}")
        self.advise()

    def advise(self) -> None:
        """Print where the console is, and advice about the configuration."""
        # Other programs keep JSON logs, and a link that logs in is not for them.
        if self._logs == "text" or (self._logs == "auto" and sys.stderr.isatty()):
            try:
                self.print_link(f"console: {self._server.console_link()}")
            except StoreError as error:
                log.warning("no link to log in to the console: %s", error_text(error))
        if self._server.gate.needs_keys and not self._server.gate.is_audited:
            self.print(NO_AUDIT_LOG)

    def stopping(self, *, again: bool) -> None:
        """Announce the shutdown."""
        if again or not self._server.options.execute:  # workers execute the runs
            self.print("stopping now")
        else:
            self.print("stopping after the current runs; Ctrl-C again stops at once")


class ServerScreen(ServerLog, logging.Handler):
    """Show the address, the current runs and the calls waiting for approval below the important log lines."""

    def __init__(self, server: Server, *, debug: bool) -> None:
        logging.Handler.__init__(self, logging.INFO)
        ServerLog.__init__(self, server, debug=debug)
        self._lines: deque[str] = deque(maxlen=LINES)

    def __enter__(self) -> Self:

        from ..server.logs import setup_logs

        self._live = Live(console=Console(stderr=True, highlight=False), auto_refresh=False, transient=True)
        self._live.start()
        self._undo = setup_logs("text", debug=self._debug, handler=self)
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()
        self._undo()
        if self.is_started:
            sys.stderr.write(f"{time.strftime('%H:%M:%S')} {printable(stopped_text(self._server))}\n")

    def on_started(self) -> None:
        """Print advice only: the tables show the address."""
        self.is_started = True
        self.advise()

    def print(self, line: str) -> None:
        """Print a line above the tables."""
        self._live.console.print(timestamped(line))

    def print_link(self, line: str) -> None:
        """Print a line with a link above the tables."""
        self.print(line)

    def emit(self, record: logging.LogRecord) -> None:
        """Show a log record below the tables; print warnings and errors above them."""
        try:
            if record.name == "hookline.waiting":
                return  # the table of waiting calls shows it
            if record.name == "hookline.access":
                self._lines.append(_request(record))
            elif record.levelno >= logging.WARNING or self._debug:
                self._live.console.print(printable(self.format(record)), markup=False)
            else:
                self._lines.append(short(self.format(record), 400))
        except Exception:  # noqa: BLE001 - logging handlers must not raise
            self.handleError(record)

    async def watch(self) -> None:
        """Redraw the tables at a fixed interval."""
        while True:
            try:
                status = await self._server.status(CALLS + 1)
                height = self._live.console.height
                self._live.update(status_table(status, list(self._lines), time.time(), height), refresh=True)
            except Exception:
                log.exception("the server view could not be drawn")
            await asyncio.sleep(REFRESH)


def _request(record: Any) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(record.created))
    return f"{at} {record.method:<4} {record.route} {record.status} {record.ms:g} ms {record.caller}"


def stopped_text(server: Server) -> str:
    """Return the last line: the number of requests."""
    return f"stopped: {counted(server.traffic.total, 'request')}, {server.traffic.refused} refused"


def status_table(status: Status, lines: list[str], now: float, height: int = FULL_HEIGHT) -> Any:
    """Return the whole view, cut to the height of the terminal."""

    def limit(number: int) -> int:
        return max(2, number * min(height, FULL_HEIGHT) // FULL_HEIGHT)

    parts: list[Any] = [Text(), _head(status), _agents(status, limit(AGENTS))]
    if status.problem:
        parts.append(Text(f"✗ runs cannot be stored: {printable(status.problem, keep='')}", style="red"))
    parts += [Text(), _runs(status, now, limit(RUNS))]
    if status.approvals:
        parts += [Text(), *_calls(status, now, limit(CALLS))]
    if lines:
        parts += [Text(), *(Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in lines)]
    return Group(*parts, Text(), _foot(status))


def _head(status: Status) -> Text:

    up = status.state == "running"
    where = status.url if up else f"{status.url} is {status.state}"
    keys = f"{_all_addresses(status.host)} · {_keys_text(status.needs_keys)}"
    return Text.assemble(("● ", "green" if up else "yellow"), (where, "bold"), (keys, "dim"))


def _foot(status: Status) -> Text:

    items = [f"{status.per_second:.1f} requests/s", counted(status.streams, "stream")]
    items += [f"{status.refused:,} refused"] if status.refused else []
    stops = "Ctrl-C stops it" if status.state == "running" else "Ctrl-C stops it at once"
    return Text(" · ".join([*items, stops]), style="dim")


def _all_addresses(host: str) -> str:
    return " and all other addresses of this machine" if host in ("0.0.0.0", "::") else ""


def _keys_text(needed: bool) -> str:
    return "keys required" if needed else "no keys needed on this machine"


def _agents(status: Status, limit: int) -> Any:

    found = Table.grid(padding=(0, 2, 0, 0))
    for agent in status.agents[:limit]:
        url = f"{status.url}/a2a/{agent.name}"
        found.add_row(Text(f"  {printable(agent.name, keep='')}"), Text(printable(url, keep=""), style="dim"))
    if len(status.agents) > limit:
        found.add_row(Text(f"  and {len(status.agents) - limit} more", style="dim"))
    return found


def _runs(status: Status, now: float, limit: int) -> Any:

    if not status.runs:
        return Text("no active runs", style="dim")
    found = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", expand=True)
    for name in ("run", "agent", "caller", "state"):
        found.add_column(name, no_wrap=True, overflow="ellipsis", max_width=16)
    found.add_column("doing", no_wrap=True, overflow="ellipsis", ratio=1)
    found.add_column("age", no_wrap=True, justify="right")
    for run, doing, caller in status.runs[:limit]:
        found.add_row(*_run_row(run, doing, caller, now))
    if len(status.runs) > limit:
        found.add_row(Text(f"and {len(status.runs) - limit:,} more", style="dim"))
    return found


def _run_row(run: RunRecord, activity: str, caller: str, now: float) -> list[Text]:

    text = activity or short(run.task, 200)
    return [
        Text(run.id[:16]),
        Text(printable(run.agent, keep="")),
        Text(printable(caller, keep="")),
        Text(run.status, style=STATES.get(run.status, "")),
        Text(printable(text, keep="")),
        Text(rough_duration(now - run.created), style="dim"),
    ]


def _calls(status: Status, now: float, limit: int) -> list[Any]:

    count = len(status.approvals)
    number = f"more than {CALLS} calls" if count > CALLS else counted(count, "call")
    found: list[Any] = [Text(f"{number} waiting for approval", style="yellow")]
    for row in status.approvals[:limit]:
        found += _call(row, now)
    return found


def _call(row: ApprovalRow, now: float) -> list[Text]:

    what = f"  {printable(row.tool, keep='')} {arguments_text(row.arguments, 400)}"
    call = Text(what, no_wrap=True, overflow="ellipsis")
    left = f"  for {rough_duration(now - row.asked)}, {rough_duration(row.expires - now)} left"
    return [call, Text.assemble(("    hookline approvals approve ", ""), (short_id(row.id), "bold"), (left, "dim"))]
