"""Long tool results, cut to a length that a model can use."""

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
from ..stores.artifacts import ArtifactStore
from ._support.messages import excerpt
from ._support.tools import find_tool
from ._support.validation import check_integer, check_method, check_path

READER = "read_artifact"
SHORTEST = 200
_MAX_NAME = 40
_EXPECTED = "artifacts takes a store with save(name, text), its folder, or True"


class ToolOutputTruncatorHook:
    """Cuts long tool results and errors to their head and tail, and can keep the whole as an artifact.

    A mark in the middle says how many characters were left out. A result that is a JSON structure is cut as
    its text. What is cut is what the transcript records; later hooks and the model see nothing else.

    Args:
        max_chars: how long a result may be, the mark included.
        artifacts: where the whole is kept: an ``ArtifactStore`` or its folder, anything else with
            ``save(name, text)``, or ``True`` for ``ctx.artifacts``. The mark then names the artifact, and says
            ``read_artifact`` where the model has that tool; what it gives is cut, but not kept again. If it cannot be
            saved, the hook fails.

    Raises:
        RegistrationError: ``max_chars`` is no whole number of 200 or more, or nothing can be saved in ``artifacts``.
    """

    points = frozenset({AFTER_TOOL})
    phase = "rewrite"
    priority = 40

    def __init__(self, max_chars: int = 4000, *, artifacts: Any = None) -> None:
        self.max_chars = check_integer(max_chars, "max_chars", SHORTEST)
        if isinstance(artifacts, (str, os.PathLike)):
            artifacts = ArtifactStore(check_path(artifacts, _EXPECTED))
        elif artifacts is not None and not isinstance(artifacts, bool):
            check_method(artifacts, "save", _EXPECTED)
        self.artifacts: Any = None if artifacts is False else artifacts

    def __call__(self, point: str, ctx: Any, result: ToolCallResult) -> Any:
        """Look at one result."""
        long = {}
        if result.error is not None and len(result.error) > self.max_chars:
            long["error"] = result.error
        value = result.result if isinstance(result.result, str) else json_text(result.result)
        if len(value) > self.max_chars:
            long["result"] = value
        if not long:
            return None
        if self.artifacts is not None and result.name != READER:
            return self._keep(ctx, result, long)
        return self._cut(result, long, {})

    async def _keep(self, ctx: Any, result: ToolCallResult, long: dict[str, str]) -> HookResult:
        store = ctx.artifacts if self.artifacts is True else self.artifacts
        if store is None:
            raise HooklineError("artifacts=True needs a store in the context: AgentContext(artifacts=...)")
        how, where = f": use {READER}" if find_tool(ctx, READER) is not None else "", {}
        for field, text in long.items():
            name = ctx.new_id(re.sub(r"[^A-Za-z0-9_-]", "_", result.name)[:_MAX_NAME] or "result") + ".txt"
            saved = await asyncio.to_thread(store.save, name, text)
            if isinstance(saved, Awaitable):
                await saved
            where[field] = f"; the whole is artifact {name}{how}"
        return self._cut(result, long, where)

    def _cut(self, result: ToolCallResult, long: dict[str, str], where: dict[str, str]) -> HookResult:
        cut = {field: excerpt(text, self.max_chars, where.get(field, "")) for field, text in long.items()}
        return HookResult.replace(result.replace(cut), reason=f"cut to {self.max_chars} characters")
