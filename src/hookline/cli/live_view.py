"""Show a run on a terminal: what happened above, the current activity in the last lines."""

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
from .event_lines import Line, Story
from .text import cost_text, counted, printable, short

_TAIL = 6
"""How many lines of a text that is being written are shown."""
_TOOLS = 6
"""How many running tools of a run are shown, one line each."""
_ROWS = 12
"""How many lines there are for all that is running."""
_WORDS = 60
"""How much of what a subagent writes is shown."""
_COLOURS = ("cyan", "magenta", "blue", "green", "yellow")
"""For the names of subagents, to keep them apart."""

_LOOKS = {
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
    "answer": ("✎", "blue"),
}


Row = tuple[int, str, str, float | None, float | None]
"""Depth, text, style, since when and how far: a line of what is running."""


class Running(msgspec.Struct):
    """A tool call that goes on."""

    tool: str
    message: str
    began: float
    fraction: float | None = None


class Doing(msgspec.Struct):
    """What a run is doing now; ``parent`` is the one that it is inside of."""

    name: str = ""
    parent: str = ""
    began: float = msgspec.field(default_factory=time.monotonic)
    step: int = 0
    now: str = "starting"
    text: str = ""
    pieces: int = 0
    tools: dict[tuple[str, int], Running] = {}

    def note(self, event: Event) -> None:
        """Keep what the last lines tell."""
        match event:
            case e.StepStarted():
                self.step = event.index + 1
            case e.ModelCalled():
                self.now, self.text, self.pieces = f"{event.model} is reading", "", 0
            case e.TextDelta():
                self.now, self.pieces = "writing", self.pieces + 1
                self.text += event.text
            case e.ModelReplied():
                self.now, self.text, self.pieces = "deciding", "", 0
            case e.Discarded():
                self.text = ""
            case e.ToolStarted():
                self.tools[event.call_id, event.attempt] = Running(event.tool, event.message, time.monotonic())
                self._count_running()
            case e.ToolProgressed() if (tool := self.tools.get((event.call_id, event.attempt))) is not None:
                tool.message, tool.fraction = event.message, event.fraction
            case e.ToolEnded():
                self.tools.pop((event.call_id, event.attempt), None)
                self._count_running()

    def _count_running(self) -> None:
        tools = list(self.tools.values())
        one = f"{tools[0].tool} is running" if len(tools) == 1 else f"{len(tools)} tools are running"
        self.now = one if tools else "deciding"

    @property
    def line(self) -> str:
        """A subagent in one line."""
        words = " ".join(self.text.split())
        words = words if len(words) <= _WORDS else f"…{words[1 - _WORDS :]}"
        step = f"step {self.step}" if self.step else ""
        return " · ".join(filter(None, (self.name, step, f"{self.now}: {words}" if words else self.now)))


class LiveView:
    """Shows a run while it goes on, and the runs inside it; when it is over, what is worth reading stays.

    Args:
        console: the terminal.
    """

    def __init__(self, console: Console) -> None:
        self._console, self._story = console, Story()
        self._live: Live | None = None
        self._began = time.monotonic()
        self._doing = Doing()
        self._inside: dict[str, Doing] = {}
        self._colours: dict[str, str] = {}
        self._usage = Usage()
        self._cost: float | None = 0.0
        self._spinner = Spinner("dots", style="cyan")
        self._held: list[Event] | None = None

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop()

    def __call__(self, event: Event) -> None:
        """Show one event."""
        if self._held is not None:
            self._held.append(event)
            return
        inner = self._note(event)
        if isinstance(inner, e.ToolProgressed):
            return  # it moves below
        for line in self._story.tell(event):
            self._print(*_LOOKS.get(line.kind, ("·", "dim")), line)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the terminal alone for a while, for a question; what happens meanwhile is shown after it."""
        self._stop()
        held: list[Event] = []
        self._held = held
        try:
            yield
        finally:
            self._held = None
            self._start()
            for event in held:
                self(event)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = Text(printable(self._doing.text).strip(), style="italic")
        for line in text.wrap(console, max(20, options.max_width - 4))[-_TAIL:] if text else ():
            yield Padding(line, (0, 0, 0, 2))
        if self._doing.tools or self._inside:
            yield self._running()
        yield self._status()

    def _running(self) -> Table:
        """A line for each running tool and each subagent: what it does, how far it is, and since when it runs."""
        made, now, frame = Table.grid(padding=(0, 1, 0, 0)), time.monotonic(), self._spinner.render(time.monotonic())
        made.add_column(no_wrap=True, overflow="ellipsis")
        made.add_column(no_wrap=True)
        made.add_column(no_wrap=True, justify="right")
        assert isinstance(frame, Text)  # a spinner without words
        rows = list(self._rows("", self._doing, 0))
        for depth, what, style, began, fraction in rows[:_ROWS]:
            bar = "" if fraction is None else ProgressBar(total=1.0, completed=fraction, width=20)
            mark = frame if began is not None else ""
            told = Text.assemble("  " * depth, mark, " " * bool(mark), (printable(what, keep=""), style))
            made.add_row(told, bar, Text("" if began is None else duration_text(now - began), style="dim"))
        if len(rows) > _ROWS:
            made.add_row(Text(f"and {len(rows) - _ROWS} more", style="dim"))
        return made

    def _rows(self, id: str, doing: Doing, depth: int) -> Iterator[Row]:
        tools = list(doing.tools.values())
        for tool in tools[:_TOOLS]:
            yield depth, tool.message, "", tool.began, tool.fraction
        if len(tools) > _TOOLS:
            yield depth, f"and {len(tools) - _TOOLS} more", "dim", None, None
        for child, inside in list(self._inside.items()):
            if inside.parent == id:
                yield depth + 1, inside.line, self._colour(inside.name), inside.began, None
                yield from self._rows(child, inside, depth + 2)

    def _status(self) -> Table:
        status, doing = Table.grid(padding=(0, 1, 0, 0)), self._doing
        tokens = self._usage.total_tokens + doing.pieces + sum(inside.pieces for inside in list(self._inside.values()))
        at_work = f"{counted(len(self._inside), 'subagent')} at work" if self._inside else ""
        facts = (f"step {doing.step}" if doing.step else "", doing.now, at_work)
        used = (counted(tokens, "token"), cost_text(self._cost)) if tokens else ()
        told = " · ".join(filter(None, (*facts, f"{time.monotonic() - self._began:.1f} s", *used)))
        status.add_row(self._spinner, Text(printable(told, keep=""), style="dim", no_wrap=True, overflow="ellipsis"))
        return status

    def _note(self, event: Event) -> Event:
        """Keep what the last lines tell; the event itself, of whichever run it is."""
        doing, inner, who = self._doing, event, Line("", "")
        if isinstance(event, e.SubagentEvent):
            inner, subagent = event.event, self._story.subagent(event.ids)
            who = Line("", "", subagent.name, subagent.depth)
            doing = self._inside.setdefault(event.ids.run_id, Doing(subagent.name, subagent.parent))
        if isinstance(inner, e.RunFinished):
            if doing.text:  # it was broken off in the middle
                said = f"said so far: {short(doing.text, 500)}"
                self._print("“", "default", msgspec.structs.replace(who, text=said))
            doing.text, doing.pieces = "", 0
            if isinstance(event, e.SubagentEvent):
                self._inside.pop(event.ids.run_id, None)
            else:
                self._inside.clear()
        elif isinstance(inner, e.ModelReplied):
            self._usage = self._usage + inner.usage
            self._cost = None if self._cost is None or inner.cost is None else self._cost + inner.cost
        elif isinstance(event, e.TaskTaken):
            self._print(">", "bold", Line("task", short(event.task, 200)))
        doing.note(inner)
        return inner

    def _colour(self, name: str) -> str:
        return self._colours.setdefault(name, _COLOURS[len(self._colours) % len(_COLOURS)])

    def _print(self, icon: str, style: str, line: Line) -> None:
        row = Table.grid(padding=(0, 1, 0, 0))
        if line.who:
            row.add_column(no_wrap=True, overflow="ellipsis", max_width=2 * line.depth + 24)
        row.add_column(width=1)
        row.add_column(overflow="fold")
        who = [Text.assemble("  " * line.depth, (line.who, self._colour(line.who)))] if line.who else []
        row.add_row(*who, Text(icon, style=style), Text(line.text, style=style))
        self._console.print(row)

    def _start(self) -> None:
        self._live = Live(self, console=self._console, transient=True, refresh_per_second=12, redirect_stdout=False)
        self._live.start()

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
