"""``hookline serve``: let programs call an agent over HTTP."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Annotated, Any, Self

import msgspec
import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..config.settings import KEYS
from ..config.sources import Configuration
from .errors import COMPLETED
from .help import Command
from .options import takes_settings
from .services import logged, run_until_stopped
from .terminal import is_capable
from .text import arguments_text, counted, printable, roughly, short, short_id

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

It listens to this machine alone, unless [server] in the configuration file, or --host, says otherwise; then callers
need keys. Ctrl-C stops it: runs may finish. Ctrl-C again stops it at once.
"""

_NOT_HERE = ("hosts",)  # its option is --host, which is another thing here
_OURS = "Server"


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    keys = [name for name in KEYS if name not in _NOT_HERE]
    app.command("serve", cls=Command, epilog=EPILOG)(takes_settings(*keys)(serve))


def serve(
    config: Configuration,
    host: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Listen at this address. [default: 127.0.0.1]", show_default=False,
            rich_help_panel=_OURS,
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Listen at this port; 0 for any that is free. [default: 8420]", show_default=False,
            rich_help_panel=_OURS,
        ),
    ] = None,
    grace: Annotated[
        float | None,
        typer.Option(
            metavar="S", help="Runs get S seconds to finish when it is stopped. [default: 30]", show_default=False,
            rich_help_panel=_OURS,
        ),
    ] = None,
) -> int:  # fmt: skip
    """Serve the agent over HTTP: a JSON API, A2A, and OpenAI's chat API."""
    given = {name: value for name, value in (("host", host), ("port", port), ("grace", grace)) if value is not None}
    settings = msgspec.structs.replace(config.settings, server={**config.settings.server, **given})
    return _build_and_serve(msgspec.structs.replace(config, settings=settings))


def _build_and_serve(config: Configuration) -> int:
    from ..config.build import build_plugins
    from ..server.build import build_server
    from ..server.options import ServerOptions
    from .plugins import close_plugins
    from .runner import answering_unattended, recorded, recorder
    from .weights import make_ready

    ServerOptions.of(config.settings.server)  # before anything is loaded for it
    recorders, plugins = recorder(config.settings), build_plugins(config.settings, config.home)
    try:
        answerer, agent = answering_unattended(config, recorders, plugins)
        server = build_server(config.settings, answerer, home=config.home)
        make_ready(agent.model)
        return asyncio.run(_serve(server, config.settings))
    finally:
        close_plugins(plugins)
        recorded(recorders)


async def _serve(server: Server, settings: Settings) -> int:

    with view_of(server, debug=settings.debug) as view:
        await run_until_stopped(server, view, view.begun)
    return COMPLETED


log = logging.getLogger("hookline")

REFRESH = 0.5
"""Seconds between two looks."""
LINES, RUNS, CALLS, AGENTS = 5, 12, 5, 6
"""How much of each is shown at most; less if the terminal is not high."""
HIGH = 40
"""Lines of a terminal in which all of it fits."""
UNAUDITED = 'who is let in is in the log only: audit = "audit.jsonl" in the settings writes it into an audit log'
STATES = {"queued": "dim", "running": "cyan", "waiting": "yellow"}


def view_of(server: Server, *, debug: bool = False) -> ServerLog:
    """The view for this terminal; log lines where there is none, or where they are wanted as JSON."""
    live = is_capable(sys.stderr.isatty()) and server.options.logs != "json"
    return (ServerScreen if live else ServerLog)(server, debug=debug)


class ServerLog:
    """Log lines on stderr, as the settings want them."""

    def __init__(self, server: Server, *, debug: bool) -> None:
        self._server, self._debug = server, debug
        self.has_begun = False

    def __enter__(self) -> Self:
        from ..server.logs import setup_logs

        self._undo = setup_logs(self._server.options.logs, debug=self._debug)
        return self

    def __exit__(self, *_: object) -> None:
        if self.has_begun:
            self.say(stopped(self._server))
        self._undo()

    def say(self, line: str) -> None:
        """A line."""
        log.info("%s", line)

    def begun(self) -> None:
        """Say where it listens."""
        self.has_begun = True
        server = self._server
        names = ", ".join(agent.name for agent in server.service.agents.list())
        where = f"{server.url}{_everywhere(server.options.host)}"
        self.say(f"listening at {where}, {_keys(server.gate.needs_keys)}, agents: {names}")
        self.advise()

    def advise(self) -> None:
        """Say what should be thought of."""
        if self._server.gate.needs_keys and not self._server.gate.is_audited:
            self.say(UNAUDITED)

    def stopping(self, *, again: bool) -> None:
        """Say that it is about to stop."""
        self.say("stopping now" if again else "stopping: what is running may finish; Ctrl-C again stops at once")

    async def watch(self) -> None:
        """There is nothing to look at: what happens is logged."""


class ServerScreen(ServerLog, logging.Handler):
    """Where it listens, what goes on and what waits for approval, below the lines that matter."""

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
        if self.has_begun:
            sys.stderr.write(f"{time.strftime('%H:%M:%S')} {printable(stopped(self._server))}\n")

    def begun(self) -> None:
        """The tables say where it listens."""
        self.has_begun = True
        self.advise()

    def say(self, line: str) -> None:
        """A line above the tables."""
        self._live.console.print(logged(line))

    def emit(self, record: logging.LogRecord) -> None:
        """Keep what was logged for below; what is wrong stays above."""
        try:
            if record.name == "hookline.waiting":
                return  # it is among the calls that wait
            if record.name == "hookline.access":
                self._lines.append(_request(record))
            elif record.levelno >= logging.WARNING or self._debug:
                self._live.console.print(printable(self.format(record)), markup=False)
            else:
                self._lines.append(short(self.format(record), 400))
        except Exception:  # noqa: BLE001 - as every handler does
            self.handleError(record)

    async def watch(self) -> None:
        """Draw it again and again."""
        while True:
            try:
                status = await self._server.status(CALLS + 1)
                height = self._live.console.height
                self._live.update(status_table(status, list(self._lines), time.time(), height), refresh=True)
            except Exception:
                log.exception("what the server does cannot be shown")
            await asyncio.sleep(REFRESH)


def _request(record: Any) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(record.created))
    return f"{at} {record.method:<4} {record.route} {record.status} {record.ms:g} ms {record.caller}"


def stopped(server: Server) -> str:
    """What is left to say at the end."""
    return f"stopped: {counted(server.traffic.total, 'request')}, {server.traffic.refused} refused"


def status_table(status: Status, lines: list[str], now: float, height: int = HIGH) -> Any:
    """All of it, as far as there is room."""

    def most(number: int) -> int:
        return max(2, number * min(height, HIGH) // HIGH)

    parts: list[Any] = [Text(), _head(status), _agents(status, most(AGENTS))]
    if status.problem:
        parts.append(Text(f"✗ runs cannot be stored: {printable(status.problem, keep='')}", style="red"))
    parts += [Text(), _runs(status, now, most(RUNS))]
    if status.approvals:
        parts += [Text(), *_calls(status, now, most(CALLS))]
    if lines:
        parts += [Text(), *(Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in lines)]
    return Group(*parts, Text(), _foot(status))


def _head(status: Status) -> Text:

    up = status.state == "running"
    where = status.url if up else f"{status.url} is {status.state}"
    keys = f"{_everywhere(status.host)} · {_keys(status.needs_keys)}"
    return Text.assemble(("● ", "green" if up else "yellow"), (where, "bold"), (keys, "dim"))


def _foot(status: Status) -> Text:

    told = [f"{status.per_second:.1f} requests/s", counted(status.streams, "stream")]
    told += [f"{status.refused:,} refused"] if status.refused else []
    stops = "Ctrl-C stops it" if status.state == "running" else "Ctrl-C stops it at once"
    return Text(" · ".join([*told, stops]), style="dim")


def _everywhere(host: str) -> str:
    return " and all other addresses of this machine" if host in ("0.0.0.0", "::") else ""


def _keys(needed: bool) -> str:
    return "keys needed" if needed else "no keys needed on this machine"


def _agents(status: Status, most: int) -> Any:

    found = Table.grid(padding=(0, 2, 0, 0))
    for agent in status.agents[:most]:
        url = f"{status.url}/a2a/{agent.name}"
        found.add_row(Text(f"  {printable(agent.name, keep='')}"), Text(printable(url, keep=""), style="dim"))
    if len(status.agents) > most:
        found.add_row(Text(f"  and {len(status.agents) - most} more", style="dim"))
    return found


def _runs(status: Status, now: float, most: int) -> Any:

    if not status.runs:
        return Text("no runs under way", style="dim")
    found = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", expand=True)
    for name in ("run", "agent", "caller", "state"):
        found.add_column(name, no_wrap=True, overflow="ellipsis", max_width=16)
    found.add_column("doing", no_wrap=True, overflow="ellipsis", ratio=1)
    found.add_column("age", no_wrap=True, justify="right")
    for run, doing, caller in status.runs[:most]:
        found.add_row(*_run_row(run, doing, caller, now))
    if len(status.runs) > most:
        found.add_row(Text(f"and {len(status.runs) - most:,} more", style="dim"))
    return found


def _run_row(run: RunRecord, doing: str, caller: str, now: float) -> list[Text]:

    told = doing or short(run.task, 200)
    return [
        Text(run.id[:16]), Text(printable(run.agent, keep="")), Text(printable(caller, keep="")),
        Text(run.status, style=STATES.get(run.status, "")), Text(printable(told, keep="")),
        Text(roughly(now - run.created), style="dim"),
    ]  # fmt: skip


def _calls(status: Status, now: float, most: int) -> list[Any]:

    count = len(status.approvals)
    many = f"more than {CALLS} calls wait" if count > CALLS else "1 call waits" if count == 1 else f"{count} calls wait"
    found: list[Any] = [Text(f"{many} for approval", style="yellow")]
    for row in status.approvals[:most]:
        found += _call(row, now)
    return found


def _call(row: ApprovalRow, now: float) -> list[Text]:

    what = f"  {printable(row.tool, keep='')} {arguments_text(row.arguments, 400)}"
    call = Text(what, no_wrap=True, overflow="ellipsis")
    left = f"  for {roughly(now - row.asked)}, {roughly(row.expires - now)} left"
    return [call, Text.assemble(("    hookline approvals approve ", ""), (short_id(row.id), "bold"), (left, "dim"))]
