"""Choose how to show a run; plain lines where there is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, Self, TextIO

from .._kernel.events import Event
from .._run.events import TaskTaken
from ..explain.words import SIGNS
from .event_lines import EventFormatter, Line
from .hook_line import hook_line, is_ascii, sign
from .terminal import can_move_cursor
from .text import printable, wrap_line


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


def choose_view(out: TextIO | None = None, *, silent: bool = False, recorded: bool = False) -> View:
    """Return a view with colours if the stream is a terminal, else one that prints plain lines.

    Args:
        out: the stream; stderr if left out.
        silent: show nothing.
        recorded: the run is over, so that there is no current activity to show.
    """
    out = out or sys.stderr  # None in a program without a terminal, such as pythonw
    if not silent and out is not None and can_move_cursor(out.isatty()):
        from rich.console import Console

        from .live_view import LiveView

        return LiveView(Console(file=out, highlight=False), live=not recorded)
    return PlainView(None if silent else out, task=recorded)


class PlainView:
    """Print a line for each event worth reading, with its sign, without colours or cursor movement.

    Args:
        out: the stream to write to; ``None`` writes nothing.
        task: whether to print the task.
    """

    def __init__(self, out: TextIO | None, *, task: bool = False) -> None:
        self._out, self._task = out, task
        self._formatter, self._ascii = EventFormatter(), is_ascii(out)
        self.every_call = out is not None
        """The hook line of a call shows hooks that let it pass too."""
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
        if self._task and isinstance(event, TaskTaken):
            self.write(f"task: {printable(event.task, keep='')}")
        for line in self._formatter.format(event):
            if self.prompts and line.kind == "waits":
                continue
            text = self._with_sign(line)
            text = f"{line.agent}: {text}" if line.agent else text
            self.write(text if line.kind in ("step", "speaker") else f"{'  ' * (line.depth + 1)}{text}")

    def _with_sign(self, line: Line) -> str:
        if line.call:
            gates = "".join(text for text, _ in hook_line(line.gates, line.call, ascii=self._ascii))
            return f"{gates}  {line.text}"
        return f"{sign(line.kind, ascii=self._ascii)[0]} {line.text}" if line.kind in SIGNS else line.text

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
