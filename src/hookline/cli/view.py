"""What shows a run while it goes on."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager
from typing import Protocol, Self

from .._kernel.events import Event


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

        from .live import LiveView

        return LiveView(Console(stderr=True))
    from .plain import PlainView

    return PlainView(None if silent else sys.stderr)


def is_capable(terminal: bool) -> bool:
    """Whether a terminal lets the cursor be moved; whether it wants colours is up to ``NO_COLOR``."""
    return terminal and os.environ.get("TERM", "dumb") != "dumb"
