"""The screen of ``hookline serve`` on a terminal: address, current runs, and the calls that wait for approval."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .output import state_text
from .server_log import ServerLog, all_addresses, keys_text, stopped_text
from .services import timestamped
from .text import arguments_text, counted, printable, rough_duration, short, short_id

if TYPE_CHECKING:
    from ..server.app import Server, Status
    from ..stores.approvals import ApprovalRow
    from ..stores.runs import RunRecord

log = logging.getLogger("hookline")

REFRESH = 0.5
"""Refresh interval in seconds."""
LINES, RUNS, CALLS, AGENTS = 5, 12, 5, 6
"""Maximum number of rows of each kind; fewer on a terminal with less than ``FULL_HEIGHT`` lines."""
FULL_HEIGHT = 40
"""Lines of a terminal that has room for the maximum number of rows."""


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
    keys = f"{all_addresses(status.host)} · {keys_text(status.needs_keys)}"
    return Text.assemble(("● ", "green" if up else "yellow"), (where, "bold"), (keys, "dim"))


def _foot(status: Status) -> Text:
    items = [f"{status.per_second:.1f} requests/s", counted(status.streams, "stream")]
    items += [f"{status.refused:,} refused"] if status.refused else []
    stops = "Ctrl-C stops it" if status.state == "running" else "Ctrl-C stops it at once"
    return Text(" · ".join([*items, stops]), style="dim")


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
        state_text(run.status),
        Text(printable(text, keep="")),
        Text(rough_duration(now - run.created), style="dim"),
    ]


def _calls(status: Status, now: float, limit: int) -> list[Any]:
    count = len(status.approvals)
    number = f"more than {CALLS} calls" if count > CALLS else counted(count, "call")
    found: list[Any] = [Text(f"{number} waiting for approval", style="magenta")]
    for row in status.approvals[:limit]:
        found += _call(row, now)
    return found


def _call(row: ApprovalRow, now: float) -> list[Text]:
    what = f"  {printable(row.tool, keep='')} {arguments_text(row.arguments, 400)}"
    call = Text(what, no_wrap=True, overflow="ellipsis")
    left = f"  for {rough_duration(now - row.asked)}, {rough_duration(row.expires - now)} left"
    return [call, Text.assemble(("    hookline approvals approve ", ""), (short_id(row.id), "bold"), (left, "dim"))]
