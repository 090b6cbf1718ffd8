"""Show a run on a terminal: finished events above, the current activity in the last lines."""

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

from .._base.text import duration_text
from .._kernel.events import Event
from .._kernel.values import Usage
from .._run import events as e
from .event_lines import EventFormatter, Line
from .text import cost_text, counted, printable, short

_TEXT_LINES = 6
"""Number of lines shown of the text that the model is writing."""
_MAX_TOOLS = 6
"""Number of running tools shown for each run, one line each."""
_MAX_ROWS = 12
"""Number of lines for all running tools and subagents together."""
_SUBAGENT_WIDTH = 60
"""Number of characters shown of the text that a subagent is writing."""
_COLOURS = ("cyan", "magenta", "blue", "green", "yellow")
"""Colours that tell subagents apart."""

_ICONS = {
    "step": ("─", "bold cyan"),
    "speaker": ("»", "bold cyan"),
    "task": (">", "bold"),
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
    "question": ("?", "cyan"),
    "answer": ("✎", "blue"),
}


Row = tuple[int, str, str, float | None, float | None]
"""A line about a running tool or subagent: depth, text, style, start time and progress as a fraction."""


class RunningTool(msgspec.Struct):
    """A tool call in progress."""

    tool: str
    message: str
    started: float
    fraction: float | None = None


class Activity(msgspec.Struct):
    """The current activity of a run; ``parent`` is the id of the run that started it."""

    name: str = ""
    parent: str = ""
    started: float = msgspec.field(default_factory=time.monotonic)
    step: int = 0
    status: str = "starting"
    text: str = ""
    streamed: int = 0
    tools: dict[tuple[str, int], RunningTool] = {}

    def update(self, event: Event) -> None:
        """Update the activity after an event."""
        match event:
            case e.StepStarted():
                self.step = event.index + 1
            case e.ModelCalled():
                self.status, self.text, self.streamed = f"{event.model} is reading", "", 0
            case e.TextDelta():
                self.status, self.streamed = "writing", self.streamed + 1
                self.text += event.text
            case e.ModelReplied():
                self.status, self.text, self.streamed = "deciding", "", 0
            case e.Discarded() if event.reason != "interrupted":  # the end of the run shows an unfinished reply
                self.text = ""
            case e.ToolStarted():
                self.tools[event.call_id, event.attempt] = RunningTool(event.tool, event.message, time.monotonic())
                self._set_tool_status()
            case e.ToolProgressed() if (tool := self.tools.get((event.call_id, event.attempt))) is not None:
                tool.message, tool.fraction = event.message, event.fraction
            case e.ToolEnded():
                self.tools.pop((event.call_id, event.attempt), None)
                self._set_tool_status()

    def _set_tool_status(self) -> None:
        tools = list(self.tools.values())
        one = f"{tools[0].tool} is running" if len(tools) == 1 else f"{len(tools)} tools are running"
        self.status = one if tools else "deciding"

    @property
    def line(self) -> str:
        """Describe a subagent's activity in one line."""
        text = " ".join(self.text.split())
        text = text if len(text) <= _SUBAGENT_WIDTH else f"…{text[1 - _SUBAGENT_WIDTH :]}"
        step = f"step {self.step}" if self.step else ""
        return " · ".join(filter(None, (self.name, step, f"{self.status}: {text}" if text else self.status)))


class LiveView:
    """Show a run and its subagents while they work. Finished lines scroll up; the last lines show current activity.

    Args:
        console: the terminal.
    """

    def __init__(self, console: Console) -> None:
        self._console, self._formatter = console, EventFormatter()
        self._live: Live | None = None
        self._started = time.monotonic()
        self._activity = Activity()
        self._subagents: dict[str, Activity] = {}
        self._colours: dict[str, str] = {}
        self._usage = Usage()
        self._cost: float | None = 0.0
        self._spinner = Spinner("dots", style="cyan")
        self._buffered: list[Event] | None = None
        self.prompts = False

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        self._start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop()

    def __call__(self, event: Event) -> None:
        """Show one event."""
        if self._buffered is not None:
            self._buffered.append(event)
            return
        inner = self._update(event)
        if isinstance(inner, e.ToolProgressed):
            return  # the lines below show progress
        for line in self._formatter.format(event):
            if self.prompts and line.kind == "question":
                continue
            self._print(*_ICONS.get(line.kind, ("·", "dim")), line)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the terminal free for a question. Events that arrive meanwhile are shown afterwards."""
        self._stop()
        buffered: list[Event] = []
        self._buffered = buffered
        try:
            yield
        finally:
            self._buffered = None
            self._start()
            for event in buffered:
                self(event)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = Text(printable(self._activity.text).strip(), style="italic")
        for line in text.wrap(console, max(20, options.max_width - 4))[-_TEXT_LINES:] if text else ():
            yield Padding(line, (0, 0, 0, 2))
        if self._activity.tools or self._subagents:
            yield self._running()
        yield self._status()

    def _running(self) -> Table:
        """Return a line for each running tool and subagent: its activity, progress and elapsed time."""
        grid, now, frame = Table.grid(padding=(0, 1, 0, 0)), time.monotonic(), self._spinner.render(time.monotonic())
        grid.add_column(no_wrap=True, overflow="ellipsis")
        grid.add_column(no_wrap=True)
        grid.add_column(no_wrap=True, justify="right")
        assert isinstance(frame, Text)  # a spinner without a label
        rows = list(self._rows("", self._activity, 0))
        for depth, text, style, started, fraction in rows[:_MAX_ROWS]:
            bar = "" if fraction is None else ProgressBar(total=1.0, completed=fraction, width=20)
            mark = frame if started is not None else ""
            label = Text.assemble("  " * depth, mark, " " * bool(mark), (printable(text, keep=""), style))
            grid.add_row(label, bar, Text("" if started is None else duration_text(now - started), style="dim"))
        if len(rows) > _MAX_ROWS:
            grid.add_row(Text(f"and {len(rows) - _MAX_ROWS} more", style="dim"))
        return grid

    def _rows(self, id: str, activity: Activity, depth: int) -> Iterator[Row]:
        tools = list(activity.tools.values())
        for tool in tools[:_MAX_TOOLS]:
            yield depth, tool.message, "", tool.started, tool.fraction
        if len(tools) > _MAX_TOOLS:
            yield depth, f"and {len(tools) - _MAX_TOOLS} more", "dim", None, None
        for run_id, child in list(self._subagents.items()):
            if child.parent == id:
                yield depth + 1, child.line, self._colour(child.name), child.started, None
                yield from self._rows(run_id, child, depth + 2)

    def _status(self) -> Table:
        status, activity = Table.grid(padding=(0, 1, 0, 0)), self._activity
        tokens = (
            self._usage.total_tokens
            + activity.streamed
            + sum(child.streamed for child in list(self._subagents.values()))
        )
        at_work = f"{counted(len(self._subagents), 'subagent')} at work" if self._subagents else ""
        facts = (f"step {activity.step}" if activity.step else "", activity.status, at_work)
        used = (counted(tokens, "token"), cost_text(self._cost)) if tokens else ()
        text = " · ".join(filter(None, (*facts, f"{time.monotonic() - self._started:.1f} s", *used)))
        status.add_row(self._spinner, Text(printable(text, keep=""), style="dim", no_wrap=True, overflow="ellipsis"))
        return status

    def _update(self, event: Event) -> Event:
        """Update the activity of the event's run, and return the event without its subagent wrapper."""
        activity, inner, line = self._activity, event, Line("", "")
        if isinstance(event, e.SubagentEvent):
            inner, subagent = event.event, self._formatter.subagent(event.ids)
            line = Line("", "", subagent.name, subagent.depth)
            activity = self._subagents.setdefault(event.ids.run_id, Activity(subagent.name, subagent.parent))
        if isinstance(inner, e.RunFinished):
            if activity.text:  # the run ended in the middle of a reply
                text = f"unfinished reply: {short(activity.text, 500)}"
                self._print("“", "default", msgspec.structs.replace(line, text=text))
            activity.text, activity.streamed = "", 0
            if isinstance(event, e.SubagentEvent):
                self._subagents.pop(event.ids.run_id, None)
            else:
                self._subagents.clear()
        elif isinstance(inner, e.ModelReplied):
            self._usage = self._usage + inner.usage
            self._cost = None if self._cost is None or inner.cost is None else self._cost + inner.cost
        elif isinstance(event, e.TaskTaken):
            self._print(">", "bold", Line("task", short(event.task, 200)))
        activity.update(inner)
        return inner

    def _colour(self, name: str) -> str:
        return self._colours.setdefault(name, _COLOURS[len(self._colours) % len(_COLOURS)])

    def _print(self, icon: str, style: str, line: Line) -> None:
        row = Table.grid(padding=(0, 1, 0, 0))
        if line.agent:
            row.add_column(no_wrap=True, overflow="ellipsis", max_width=2 * line.depth + 24)
        row.add_column(width=1)
        row.add_column(overflow="fold")
        who = [Text.assemble("  " * line.depth, (line.agent, self._colour(line.agent)))] if line.agent else []
        row.add_row(*who, Text(icon, style=style), Text(line.text, style=style))
        self._console.print(row)

    def _start(self) -> None:
        self._live = Live(self, console=self._console, transient=True, refresh_per_second=12, redirect_stdout=False)
        self._live.start()

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
