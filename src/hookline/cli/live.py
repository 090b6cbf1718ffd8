"""A run on a terminal: what happened above, what is happening on the last lines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

import msgspec
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from ..base.event import Event
from ..base.names import span
from ..kernel.values import Usage
from ..run import events as e
from .story import Story
from .text import cost_text, counted, printable, short

_TAIL = 6
"""How many lines of a text that is being written are shown."""
_TOOLS = 6
"""How many running tools are shown, one line each."""

_LOOKS = {
    "step": ("─", "bold cyan"),
    "call": ("→", "default"),
    "says": ("“", "default"),
    "ok": ("✓", "green"),
    "answered": ("✓", "blue"),
    "blocked": ("✗", "red"),
    "error": ("✗", "red"),
    "cancelled": ("■", "magenta"),
    "block": ("⛊", "red"),
    "end": ("■", "red"),
    "stop": ("■", "magenta"),
    "replace": ("✎", "yellow"),
    "retry": ("↻", "yellow"),
    "keep_going": ("↻", "yellow"),
    "ask": ("?", "cyan"),
    "answer": ("✎", "blue"),
}


class Running(msgspec.Struct):
    """A tool call that goes on."""

    tool: str
    message: str
    began: float
    fraction: float | None = None


class LiveView:
    """Shows a run while it goes on; when it is over, what is worth reading stays.

    Args:
        console: the terminal.
    """

    def __init__(self, console: Console) -> None:
        self._console, self._story = console, Story()
        self._live: Live | None = None
        self._began = time.monotonic()
        self._step, self._doing, self._text = 0, "starting", ""
        self._usage, self._pieces = Usage(), 0
        self._cost: float | None = 0.0
        self._tools: dict[tuple[str, int], Running] = {}
        self._spinner = Spinner("dots", style="cyan")

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop()

    def __call__(self, event: Event) -> None:
        """Show one event."""
        self._note(event)
        if isinstance(event, e.ToolProgressed):
            return  # it moves below
        for line in self._story.tell(event):
            self._print(*_LOOKS.get(line.kind, ("·", "dim")), line.text)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the terminal alone for a while, for a question."""
        self._stop()
        try:
            yield
        finally:
            self._start()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = Text(printable(self._text).strip(), style="italic")
        for line in text.wrap(console, max(20, options.max_width - 4))[-_TAIL:] if text else ():
            yield Padding(line, (0, 0, 0, 2))
        if self._tools:
            yield self._running()
        yield self._status()

    def _running(self) -> Table:
        """A line for each running tool: what it says, how far it is, and since when it runs."""
        rows, now = Table.grid(padding=(0, 1, 0, 0)), time.monotonic()
        rows.add_column(width=1)
        rows.add_column(no_wrap=True, overflow="ellipsis")
        rows.add_column(no_wrap=True)
        rows.add_column(no_wrap=True, justify="right")
        running = list(self._tools.values())
        for tool in running[:_TOOLS]:
            bar = "" if tool.fraction is None else ProgressBar(total=1.0, completed=tool.fraction, width=20)
            rows.add_row(
                self._spinner, Text(printable(tool.message, keep="")), bar, Text(span(now - tool.began), style="dim")
            )
        if len(running) > _TOOLS:
            rows.add_row("", Text(f"and {len(running) - _TOOLS} more", style="dim"))
        return rows

    def _status(self) -> Table:
        status = Table.grid(padding=(0, 1, 0, 0))
        tokens = self._usage.total_tokens + self._pieces
        facts = (f"step {self._step}" if self._step else "", self._doing, f"{time.monotonic() - self._began:.1f} s")
        used = (counted(tokens, "token"), cost_text(self._cost)) if tokens else ()
        told = printable(" · ".join(filter(None, (*facts, *used))), keep="")
        status.add_row(self._spinner, Text(told, style="dim", no_wrap=True, overflow="ellipsis"))
        return status

    def _note(self, event: Event) -> None:
        """Keep what the last line tells."""
        match event:
            case e.TaskTaken():
                self._print(">", "bold", short(event.task, 200))
            case e.StepStarted():
                self._step = event.index + 1
            case e.ModelCalled():
                self._doing, self._text, self._pieces = f"{event.model} is reading", "", 0
            case e.TextDelta():
                self._doing, self._pieces = "writing", self._pieces + 1
                self._text += event.text
            case e.ModelReplied():
                self._doing, self._text, self._pieces = "deciding", "", 0
                self._usage = self._usage + event.usage
                self._cost = None if self._cost is None or event.cost is None else self._cost + event.cost
            case e.Discarded():
                self._text = ""
            case e.RunFinished() if self._text:  # it was broken off in the middle
                self._print("“", "default", f"said so far: {short(self._text, 500)}")
                self._text = ""
            case e.ToolStarted():
                self._tools[event.call_id, event.attempt] = Running(event.tool, event.message, time.monotonic())
                self._count_running()
            case e.ToolProgressed() if (tool := self._tools.get((event.call_id, event.attempt))) is not None:
                tool.message, tool.fraction = event.message, event.fraction
            case e.ToolEnded():
                self._tools.pop((event.call_id, event.attempt), None)
                self._count_running()

    def _count_running(self) -> None:
        tools = list(self._tools.values())
        one = f"{tools[0].tool} is running" if len(tools) == 1 else f"{len(tools)} tools are running"
        self._doing = one if tools else "deciding"

    def _print(self, icon: str, style: str, line: str) -> None:
        row = Table.grid(padding=(0, 1, 0, 0))
        row.add_column(width=1)
        row.add_column(overflow="fold")
        row.add_row(Text(icon, style=style), Text(line, style=style))
        self._console.print(row)

    def _start(self) -> None:
        self._live = Live(self, console=self._console, transient=True, refresh_per_second=12, redirect_stdout=False)
        self._live.start()

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
