"""Add the newest notes to the system message."""

from __future__ import annotations

import os
from typing import Any

from .._kernel.payloads import ModelRequest
from .._kernel.points import BEFORE_LLM
from .._kernel.results import HookResult
from .._kernel.validation import check_integer, check_method, check_path
from ..stores.notes import notes_at
from ._support.messages import add_system_text

_EXPECTED = "notes must be a NotesFile or its path"


class NotesInjectorHook:
    """Adds the end of a notes file to the system message of every step.

    The file is read once in each run, before its first model call, so all model calls of the run get the same text.
    If the file cannot be read, the error is reported and the run continues without it.

    Args:
        notes: a ``NotesFile`` or its path.
        max_chars: maximum number of characters; the end of the file is used.

    Raises:
        RegistrationError: an argument is invalid.
    """

    points = frozenset({BEFORE_LLM})
    phase = "rewrite"
    priority = 80
    on_failure = "open"

    def __init__(self, notes: Any, *, max_chars: int = 2000) -> None:
        if isinstance(notes, (str, os.PathLike)):
            notes = notes_at(check_path(notes, _EXPECTED))
        check_method(notes, "tail", _EXPECTED)
        self.notes = notes
        self.max_chars = check_integer(max_chars, "max_chars", 1)

    async def __call__(self, point: str, ctx: Any, request: ModelRequest) -> HookResult | None:
        """Add the text to one request."""
        return await add_system_text(self, ctx, request, self._text)

    def _text(self) -> str:
        notes = self.notes.tail(self.max_chars)
        return f"Notes, the newest last:\n{notes}" if notes.strip() else ""
