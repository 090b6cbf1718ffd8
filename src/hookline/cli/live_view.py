"""Show a run on a terminal: finished events above, the current activity in the last lines."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
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
from .._kernel.events import Event, HookExecuted
from .._kernel.values import Usage
from .._run import events as e
from .event_lines import EventFormatter, Line
from .hook_line import is_ascii
from .rendering import LineRenderer, MarkdownReply, ReplyStream
from .text import cost_text, counted, printable, short

REFRESH_SECONDS = 1 / 12
"""Time between two drawings of the last lines."""
_TEXT_LINES = 6
"""Number of lines shown of the text that the model is writing."""
_MAX_TOOLS = 6
"""Number of running tools shown for each run, one line each."""
_MAX_ROWS = 12
"""Number of lines for all running tools and subagents together."""
_SUBAGENT_WIDTH = 60
"""Number of characters shown of the text that a subagent is writing."""
_WITHDRAWN = {
    "retry": "the text above was rejected",
    "replaced": "the text above was rejected, and replaced by this:",
    "rejected": "the text above was rejected",
    "interrupted": "the text above is incomplete",
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
    model: str = "the model"
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
                self.model = event.model
                self.status, self.text, self.streamed = f"{event.model} is reading", "", 0
            case e.TextDelta():
                self.status, self.streamed = f"{self.model} is writing", self.streamed + 1
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
        conversation: whether this is a conversation: the reply is shown as Markdown while it is written, and steps are
            not. Otherwise only the end of an unfinished reply is shown, because the program prints the reply itself.
        live: whether the cursor can move, so that the last lines can show the current activity.
        hint: how to interrupt the run, at the end of the status line.
    """

    def __init__(self, console: Console, *, conversation: bool = False, live: bool = True, hint: str = "") -> None:
        self._console, self._formatter, self._lines = (
            console,
            EventFormatter(),
            LineRenderer(ascii=is_ascii(console.file)),
        )
        self._reply = ReplyStream() if conversation else None
        self._hidden = frozenset(("step", "speaker", "task", "says")) if conversation else frozenset[str]()
        self._unstreamed = self._ended = ""  # text of the last reply that is not shown yet, or shown before other lines
        self._can_move, self._hint = live, hint
        self._live: Live | None = None
        self._lock = threading.RLock()
        self._started = time.monotonic()
        self._activity = Activity()
        self._subagents: dict[str, Activity] = {}
        self._usage = Usage()
        self._cost: float | None = 0.0
        self._spinner = Spinner("dots", style="cyan")
        self._buffered: list[Event] | None = None
        self.prompts = False
        self.every_call = True
        """The hook line of a call shows hooks that let it pass too."""

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
        with self._lock:
            if self._reply is not None:
                self._stream(self._reply, event)
            inner = self._update(event)
            if isinstance(inner, e.ToolProgressed):
                return  # the lines below show progress
            for line in self._formatter.format(event):
                if not (self.prompts and line.kind == "waits"):
                    self._print(line)

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

    def finish(self, reply: str) -> None:
        """Print the reply of a conversation if it differs from the streamed text: a hook may have changed it."""
        assert self._reply is not None
        with self._lock:
            shown = self._reply.text or self._ended
            self._print_blocks(self._reply.end())
            if reply.strip() != shown.strip():
                self._print_blocks([*self._reply.add(reply), *self._reply.end()])
            self._ended = self._unstreamed = ""

    def _stream(self, reply: ReplyStream, event: Event) -> None:
        """Show the text of an event as a part of the reply. The text of a subagent goes to the calling agent."""
        if isinstance(event, HookExecuted) and event.verb == "keep_going":
            self._end_text(reply)
        if getattr(event, "purpose", "") != "step":
            return
        if isinstance(event, e.TextDelta):
            self._print_blocks(reply.add(event.text))
        elif isinstance(event, e.ModelReplied):
            self._unstreamed = "" if reply.text.strip() else event.content
            if event.tool_calls:
                self._end_text(reply)
        elif isinstance(event, e.ModelCalled):
            self._end_text(reply)
            self._ended = ""
        elif isinstance(event, e.Discarded) and reply.text:
            self._print_blocks(reply.end())
            self._print(Line("changed", _WITHDRAWN[event.reason]))

    def _end_text(self, reply: ReplyStream) -> None:
        """Print the text that comes before a call or another reply."""
        self._ended = reply.text or self._unstreamed or self._ended
        self._print_blocks(reply.end())
        self._print_blocks([*reply.add(self._unstreamed), *reply.end()])
        self._unstreamed = ""

    def _print(self, line: Line) -> None:
        if line.kind not in self._hidden or line.agent:
            self._console.print(self._lines.render(line))

    def _print_blocks(self, blocks: Iterable[MarkdownReply]) -> None:
        for block in blocks:
            self._console.print(block)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._reply is not None:
            block = self._reply.open_block(max(_TEXT_LINES, options.size.height - _MAX_ROWS - 2))
            yield from () if block is None else (block,)
        else:
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
                yield depth + 1, child.line, self._lines.colour(child.name), child.started, None
                yield from self._rows(run_id, child, depth + 2)

    def _status(self) -> Table:
        status, activity = Table.grid(padding=(0, 1, 0, 0)), self._activity
        tokens = (
            self._usage.total_tokens
            + activity.streamed
            + sum(child.streamed for child in list(self._subagents.values()))
        )
        at_work = f"{counted(len(self._subagents), 'subagent')} at work" if self._subagents else ""
        step = f"step {activity.step}" if activity.step and self._reply is None else ""
        facts = (step, activity.status, at_work)
        used = (counted(tokens, "token"), cost_text(self._cost)) if tokens else ()
        text = " · ".join(filter(None, (*facts, f"{time.monotonic() - self._started:.1f} s", *used, self._hint)))
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
            if activity.text and (line.agent or self._reply is None):  # the run ended in the middle of a reply
                text = f"unfinished reply: {short(activity.text, 500)}"
                self._print(msgspec.structs.replace(line, kind="says", text=text))
            activity.text, activity.streamed = "", 0
            if isinstance(event, e.SubagentEvent):
                self._subagents.pop(event.ids.run_id, None)
            else:
                self._subagents.clear()
        elif isinstance(inner, e.ModelReplied):
            self._usage = self._usage + inner.usage
            self._cost = None if self._cost is None or inner.cost is None else self._cost + inner.cost
        elif isinstance(event, e.TaskTaken):
            self._print(Line("task", short(event.task, 200)))
        activity.update(inner)
        return inner

    def _start(self) -> None:
        if self._can_move:
            # Where the reply goes to the screen itself, what a tool prints appears above the last lines.
            own_stdout = self._reply is not None
            self._live = Live(
                self, console=self._console, auto_refresh=False, transient=True, redirect_stdout=own_stdout
            )
            self._live.start(refresh=True)
            self._stopping = threading.Event()
            self._refreshing = threading.Thread(target=self._refresh, args=(self._live, self._stopping), daemon=True)
            self._refreshing.start()

    def _refresh(self, live: Live, stopping: threading.Event) -> None:
        """Draw the last lines often. Rich's own thread would draw in the middle of a print, and erase a part of it."""
        while not stopping.wait(REFRESH_SECONDS):
            with self._lock:
                live.refresh()

    def _stop(self) -> None:
        if self._live is not None:
            self._stopping.set()
            self._refreshing.join()
            self._live.stop()
            self._live = None
