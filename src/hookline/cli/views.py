"""Show a run on stderr while it runs, as plain lines or as streamed text."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from shutil import get_terminal_size
from typing import ClassVar, Protocol, Self, TextIO

from .._kernel.events import Event
from .._run.events import Discarded, ModelCalled, StepStarted, SubagentEvent, TextDelta, ToolProgressed, ToolStarted
from .event_lines import EventFormatter
from .terminal import can_move_cursor
from .text import printable, short, wrap_line


class View(Protocol):
    """An event sink that is the only writer to stderr between ``__enter__`` and ``__exit__``."""

    prompts: bool
    """Whether a prompt shows the questions about calls, so that the view does not."""

    def __enter__(self) -> Self:
        """Start showing events."""
        ...

    def __exit__(self, *exception: object) -> None:
        """Stop showing events. Finished output stays on the screen."""
        ...

    def __call__(self, event: Event) -> None:
        """Show one event."""
        ...

    def paused(self) -> AbstractContextManager[None]:
        """Leave the terminal free for a question. Events that arrive meanwhile are shown afterwards."""
        ...


def choose_view(*, silent: bool = False) -> View:
    """Return a live view if stderr is a terminal, else one that prints plain lines."""
    if not silent and can_move_cursor(sys.stderr.isatty()):
        from rich.console import Console

        from .live_view import LiveView

        return LiveView(Console(stderr=True))

    return PlainView(None if silent else sys.stderr)


class PlainView:
    """Print a line for each event worth reading, without colours or cursor movement.

    Args:
        out: the stream to write to; ``None`` writes nothing.
    """

    hidden_kinds: ClassVar[frozenset[str]] = frozenset()
    """Kinds of lines that are not printed."""

    def __init__(self, out: TextIO | None) -> None:
        self._out = out
        self._formatter = EventFormatter()
        self.prompts = False
        self._buffered: list[Event] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def __call__(self, event: Event) -> None:
        """Print the lines of one event, if it has any."""
        if self._buffered is not None:
            self._buffered.append(event)
            return
        for line in self._formatter.format(event):
            if line.kind in self.hidden_kinds or (self.prompts and line.kind == "question"):
                continue
            text = f"{line.agent}: {line.text}" if line.agent else line.text
            self.write(text if line.kind in ("step", "speaker") else f"{'  ' * (line.depth + 1)}{text}")

    def write(self, line: str) -> None:
        """Print one line."""
        if self._out is not None:
            self._out.write(f"{wrap_line(line, self._out)}\n")
            self._out.flush()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the terminal free for a question. Events that arrive meanwhile are shown afterwards."""
        buffered: list[Event] = []
        self._buffered = buffered
        try:
            yield
        finally:
            self._buffered = None
            for event in buffered:
                self(event)


_WITHDRAWN = {
    "retry": "the text above was rejected",
    "replaced": "the text above was rejected, and replaced by this:",
    "rejected": "the text above was rejected",
    "interrupted": "the text above is incomplete",
}


class StreamView(PlainView):
    """Stream the reply to ``out``, and print a line for each other event worth reading to ``notes``.

    Args:
        out: the stream for the reply.
        notes: the stream for all other lines.
        show_progress: show that the model is reading or a tool is running, and erase that line afterwards.
    """

    hidden_kinds = frozenset(("speaker",))  # the chat shows the speaker in its prompt

    def __init__(self, out: TextIO, notes: TextIO, *, show_progress: bool = False) -> None:
        super().__init__(notes)
        self._reply_out, self._can_show_progress = out, show_progress
        self._streamed, self._mid_line, self._progress_shown = "", False, False

    def __call__(self, event: Event) -> None:
        """Show one event."""
        if self._buffered is not None:
            self._buffered.append(event)
        elif isinstance(event, TextDelta) and event.purpose == "step":
            self._text(event.text)
        elif isinstance(event, SubagentEvent):
            self._show_subagent(event, self._formatter.subagent(event.ids).name)
        elif self._can_show_progress and isinstance(event, ToolProgressed):
            self._show_progress(event.message)
        elif not isinstance(event, StepStarted):
            if isinstance(event, ModelCalled) and event.purpose == "step":
                self._streamed = ""
                self._show_progress()
            elif isinstance(event, Discarded) and event.purpose == "step" and self._streamed:
                self.write(f"  {_WITHDRAWN[event.reason]}")
                self._streamed = ""
            super().__call__(event)
            if isinstance(event, ToolStarted):
                self._show_progress(event.message)

    def _show_subagent(self, event: SubagentEvent, name: str) -> None:
        """Show the event of a subagent. Its text is not streamed, because it goes to the calling agent."""
        inner = event.event
        if not (self._can_show_progress and isinstance(inner, ToolProgressed)):
            super().__call__(event)
        if isinstance(inner, (ToolStarted, ToolProgressed)):
            self._show_progress(f"{name}: {inner.message}")
        elif isinstance(inner, ModelCalled):
            self._show_progress(f"{name}: {inner.model} is reading")
        else:
            self._show_progress()

    def finish(self, reply: str) -> None:
        """Print the reply if it differs from the streamed text: a hook may have changed or replaced it."""
        if reply.strip() != self._streamed.strip():
            self._new_line()
            self._text(reply)
        self._new_line()
        self._streamed = ""

    def write(self, line: str) -> None:
        """Print one line, after ending a line of streamed text."""
        self._new_line()
        super().write(line)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause like :meth:`View.paused`, after ending a line of streamed text."""
        self._new_line()
        with super().paused():
            yield

    def _show_progress(self, activity: str = "") -> None:
        """Show the current activity until other output replaces it."""
        if self._can_show_progress and not self._mid_line and (activity or not self._progress_shown):
            self._clear_progress()
            self._put(short(f"... {activity}", get_terminal_size().columns - 1) if activity else "...")
            self._progress_shown = True

    def _clear_progress(self) -> None:
        if self._progress_shown:
            self._put("\r\x1b[K")
            self._progress_shown = False

    def _text(self, text: str) -> None:
        if text:
            self._clear_progress()
            self._put(printable(text))
            self._streamed += text
            self._mid_line = not text.endswith("\n")

    def _new_line(self) -> None:
        self._clear_progress()
        if self._mid_line:
            self._put("\n")
            self._mid_line = False

    def _put(self, text: str) -> None:
        self._reply_out.write(text)
        self._reply_out.flush()
