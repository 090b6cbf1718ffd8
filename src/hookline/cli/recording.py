"""What the command line records of its runs, for ``hookline stats``."""

from __future__ import annotations

from typing import Any

from .._kernel.errors import HooklineError
from ..config.settings import Settings
from .failures import say_note

PATIENCE = 5.0
"""Seconds that the end of a run waits for the file."""


def recorder(settings: Settings) -> list[Any]:
    """The hook that records runs, if it is wanted and can; if it cannot, that is said, and the run goes on."""
    from ..config.build import build_recorder

    try:
        hook = build_recorder(settings)
        if hook is None:
            return []
        hook.store.open()
    except HooklineError as error:
        say_note(f"this is not recorded: {error}")
        return []
    return [hook]


def recorded(hooks: list[Any]) -> None:
    """Wait a moment until all is recorded; what was not is said."""
    for hook in hooks:
        hook.flush(PATIENCE)
        if (problem := hook.problem()) is not None:
            say_note(problem)
