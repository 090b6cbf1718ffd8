"""Record tool calls in a memory, for later runs."""

from __future__ import annotations

import asyncio
from typing import Any

from .._base.frozen import json_text
from .._kernel.payloads import ToolCallResult
from .._kernel.points import AFTER_TOOL
from .._kernel.results import HookAction, Verdict
from .._kernel.validation import check_integer
from .memory import check_memory, check_scope


class EpisodeLoggerHook:
    """Records every tool call, with its outcome and the beginning of its result, as an episode of a memory.

    It records the result that the model gets, after other hooks have changed it. If a call is retried, it records
    the last attempt.

    Args:
        memory: a ``MemoryStore`` or the path of its file; by default ``ctx.memory``.
        scope: scope to record the episodes in.
        max_chars: maximum number of characters of the arguments and of the result.

    Raises:
        RegistrationError: an argument is invalid.
    """

    points = frozenset({AFTER_TOOL})
    phase = "observe"
    priority = 0

    def __init__(self, memory: Any = None, *, scope: str = "", max_chars: int = 500) -> None:
        self.memory, self.scope = check_memory(memory, "add_episode"), check_scope(scope)
        self.max_chars = check_integer(max_chars, "max_chars", 1)

    async def __call__(self, point: str, ctx: Any, result: ToolCallResult, *, verdict: Verdict) -> None:
        """Record one call."""
        memory = ctx.memory if self.memory is None else self.memory
        if memory is not None and verdict.action is not HookAction.RETRY:
            await asyncio.to_thread(self._record, memory, result)

    def _record(self, memory: Any, result: ToolCallResult) -> None:
        arguments, text = json_text(result.arguments), self._cut(result.text)
        kept = result.arguments if len(arguments) <= self.max_chars else self._cut(arguments)
        memory.add_episode(
            "tool",
            f"{result.name}({self._cut(arguments)}) → {text}",
            outcome=result.outcome,
            data={"tool": result.name, "arguments": kept, "text": text, "call_id": result.id},
            scope=self.scope,
            run_id=result.ids.run_id,
            session_id=result.ids.session_id,
            agent=result.ids.agent,
        )

    def _cut(self, text: str) -> str:
        return text if len(text) <= self.max_chars else f"{text[: self.max_chars]}…"
