"""A run as plain lines: for pipes, logs and simple terminals."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Self, TextIO

from .._kernel.events import Event
from .story import Story
from .text import wrapped


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
