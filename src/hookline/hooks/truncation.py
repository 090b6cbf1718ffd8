"""Shorten long tool results."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable
from typing import Any

from .._base.frozen import json_text
from .._kernel.errors import HooklineError
from .._kernel.payloads import ToolCallResult
from .._kernel.points import AFTER_TOOL
from .._kernel.results import HookResult
from .._kernel.validation import check_integer, check_method, check_path
from ..stores.artifacts import artifact_store_at
from ._injection.fence import excerpt_with_fence
from ._support.tools import find_tool

READER = "read_artifact"
MIN_CHARS = 200
_MAX_NAME = 40
_EXPECTED = "artifacts must be a store with save(name, text), its folder, or True"


class ToolOutputTruncatorHook:
    """Shortens long tool results and errors to their beginning and end, and can save the full text as an artifact.

    A mark in the middle gives the number of omitted characters. A JSON result is shortened as text. The transcript,
    later hooks and the model get only the shortened text.

    Example::

        ToolOutputTruncatorHook(2000, artifacts="artifacts")

    Args:
        max_chars: maximum length of a result, including the mark. The marker lines of an ``InjectionGuard`` stay whole.
        artifacts: where to save the full text: an ``ArtifactStore`` or its folder, another object with
            ``save(name, text)``, or ``True`` for ``ctx.artifacts``. The mark then names the artifact, and mentions
            ``read_artifact`` if the model has that tool. Results of ``read_artifact`` are not saved again. If saving
            fails, the hook fails.

    Raises:
        RegistrationError: ``max_chars`` is not a whole number of at least 200, or ``artifacts`` is not a store.
    """

    points = frozenset({AFTER_TOOL})
    phase = "rewrite"
    priority = 40

    def __init__(self, max_chars: int = 4000, *, artifacts: Any = None) -> None:
        self.max_chars = check_integer(max_chars, "max_chars", MIN_CHARS)
        if isinstance(artifacts, (str, os.PathLike)):
            artifacts = artifact_store_at(check_path(artifacts, _EXPECTED))
        elif artifacts is not None and not isinstance(artifacts, bool):
            check_method(artifacts, "save", _EXPECTED)
        self.artifacts: Any = None if artifacts is False else artifacts

    def __call__(self, point: str, ctx: Any, result: ToolCallResult) -> Any:
        """Shorten a result that is too long."""
        long = {}
        if result.error is not None and len(result.error) > self.max_chars:
            long["error"] = result.error
        value = result.result if isinstance(result.result, str) else json_text(result.result)
        if len(value) > self.max_chars:
            long["result"] = value
        if not long:
            return None
        if self.artifacts is not None and result.name != READER:
            return self._save(ctx, result, long)
        return self._cut(result, long, {})

    async def _save(self, ctx: Any, result: ToolCallResult, long: dict[str, str]) -> HookResult:
        store = ctx.artifacts if self.artifacts is True else self.artifacts
        if store is None:
            raise HooklineError("artifacts=True needs a store in the context: give AgentContext(artifacts=...)")
        how, where = f": use {READER}" if find_tool(ctx, READER) is not None else "", {}
        for field, text in long.items():
            name = ctx.new_id(re.sub(r"[^A-Za-z0-9_-]", "_", result.name)[:_MAX_NAME] or "result") + ".txt"
            saved = await asyncio.to_thread(store.save, name, text)
            if isinstance(saved, Awaitable):
                await saved
            where[field] = f"; the full text is artifact {name}{how}"
        return self._cut(result, long, where)

    def _cut(self, result: ToolCallResult, long: dict[str, str], where: dict[str, str]) -> HookResult:
        cut = {field: excerpt_with_fence(text, self.max_chars, where.get(field, "")) for field, text in long.items()}
        return HookResult.replace(result.replace(cut), reason=f"cut to {self.max_chars} characters")
