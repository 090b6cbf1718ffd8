"""Show a run on stderr while it goes on, as plain lines or as streamed text."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from shutil import get_terminal_size
from typing import ClassVar, Protocol, Self, TextIO

from .._kernel.events import Event
from .._run.events import ModelCalled, StepStarted, SubagentEvent, TextDelta, ToolProgressed, ToolStarted
from .event_lines import Story
from .terminal import is_capable
from .text import printable, short, wrapped


class View(Protocol):
    """A sink of events that owns stderr between ``__enter__`` and ``__exit__``."""

    def __enter__(self) -> Self:
        """Begin to show."""
        ...

    def __exit__(self, *exception: object) -> None:
        """Stop showing; what was shown stays."""
        ...

    def __call__(self, event: Event) -> None:
        """Show one event."""
        ...

    def paused(self) -> AbstractContextManager[None]:
        """Leave the terminal alone for a while, for a question; what happens meanwhile is shown after it."""
        ...


def choose_view(*, silent: bool = False) -> View:
    """The view for this process's stderr: a live one for terminals, else plain lines."""
    if not silent and is_capable(sys.stderr.isatty()):
        from rich.console import Console

        from .live_view import LiveView

        return LiveView(Console(stderr=True))

    return PlainView(None if silent else sys.stderr)


class PlainView:
    """A line for everything worth reading. No colours, no cursor movement.

    Args:
        out: where to write; nowhere if it is ``None``.
    """

    untold: ClassVar[frozenset[str]] = frozenset()
    """Kinds of lines that are left out."""

    def __init__(self, out: TextIO | None) -> None:
        self._out = out
        self._story = Story()
        self._held: list[Event] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def __call__(self, event: Event) -> None:
        """Write the event's lines, if it has any."""
        if self._held is not None:
            self._held.append(event)
            return
        for line in self._story.tell(event):
            if line.kind in self.untold:
                continue
            text = f"{line.who}: {line.text}" if line.who else line.text
            self.write(text if line.kind in ("step", "speaker") else f"{'  ' * (line.depth + 1)}{text}")

    def write(self, line: str) -> None:
        """Write one line."""
        if self._out is not None:
            self._out.write(f"{wrapped(line, self._out)}\n")
            self._out.flush()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the terminal alone for a while, for a question; what happens meanwhile is shown after it."""
        held: list[Event] = []
        self._held = held
        try:
            yield
        finally:
            self._held = None
            for event in held:
                self(event)


class StreamView(PlainView):
    """Writes text to ``out`` as it comes, and a line for every other event worth reading to ``notes``.

    Args:
        out: for the reply.
        notes: for everything else.
        patience: whether ``out`` can show that the model is reading or a tool runs, and take that away again.
    """

    untold = frozenset(("speaker",))  # the conversation says it

    def __init__(self, out: TextIO, notes: TextIO, *, patience: bool = False) -> None:
        super().__init__(notes)
        self._text_out, self._patience = out, patience
        self._shown, self._mid_line, self._waiting = "", False, False

    def __call__(self, event: Event) -> None:
        """Show one event."""
        if self._held is not None:
            self._held.append(event)
        elif isinstance(event, TextDelta) and event.purpose == "step":
            self._text(event.text)
        elif isinstance(event, SubagentEvent):
            self._inside(event, self._story.subagent(event.ids).name)
        elif self._patience and isinstance(event, ToolProgressed):
            self._wait(event.message)
        elif not isinstance(event, StepStarted):
            if isinstance(event, ModelCalled) and event.purpose == "step":
                self._shown = ""
                self._wait()
            super().__call__(event)
            if isinstance(event, ToolStarted):
                self._wait(event.message)

    def _inside(self, event: SubagentEvent, who: str) -> None:
        """Show what a subagent does; its text is not streamed: its caller gets it."""
        inner = event.event
        if not (self._patience and isinstance(inner, ToolProgressed)):
            super().__call__(event)
        if isinstance(inner, (ToolStarted, ToolProgressed)):
            self._wait(f"{who}: {inner.message}")
        elif isinstance(inner, ModelCalled):
            self._wait(f"{who}: {inner.model} is reading")
        else:
            self._wait()

    def finish(self, reply: str) -> None:
        """Show the reply, if it is not what was streamed: a hook may have changed it, or given it."""
        if reply.strip() != self._shown.strip():
            self._new_line()
            self._text(reply)
        self._new_line()
        self._shown = ""

    def write(self, line: str) -> None:
        """Write one line, not into the middle of another."""
        self._new_line()
        super().write(line)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The same; a question begins a line of its own."""
        self._new_line()
        with super().paused():
            yield

    def _wait(self, doing: str = "") -> None:
        """Show what is being waited for, until something else is shown."""
        if self._patience and not self._mid_line and (doing or not self._waiting):
            self._go_on()
            self._put(short(f"... {doing}", get_terminal_size().columns - 1) if doing else "...")
            self._waiting = True

    def _go_on(self) -> None:
        if self._waiting:
            self._put("\r\x1b[K")
            self._waiting = False

    def _text(self, text: str) -> None:
        if text:
            self._go_on()
            self._put(printable(text))
            self._shown += text
            self._mid_line = not text.endswith("\n")

    def _new_line(self) -> None:
        self._go_on()
        if self._mid_line:
            self._put("\n")
            self._mid_line = False

    def _put(self, text: str) -> None:
        self._text_out.write(text)
        self._text_out.flush()
