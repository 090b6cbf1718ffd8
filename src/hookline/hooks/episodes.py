"""A record of what tools did, for later runs."""

from __future__ import annotations

import asyncio
from typing import Any

from .._base.frozen import json_text
from .._kernel.payloads import ToolCallResult
from .._kernel.points import AFTER_TOOL
from .._kernel.results import HookAction, Verdict
from ._support.validation import check_integer
from .memory import memory_of, scope_of


class EpisodeLoggerHook:
    """Records every tool call, with its outcome and the beginning of its result, as an episode of a memory.

    It records what the model is given, so what other hooks took out of a result is not in it. A call that is done
    again at the wish of a hook is one episode, its last attempt.

    Args:
        memory: a store, or the path of its file; ``ctx.memory`` if left out.
        scope: the scope of the episodes; a memory has some for each.
        max_chars: how much of the arguments and of the result is kept.

    Raises:
        RegistrationError: a memory that keeps no episodes, a scope that is not text, or a number that makes no sense.
    """

    points = frozenset({AFTER_TOOL})
    phase = "observe"
    priority = 0

    def __init__(self, memory: Any = None, *, scope: str = "", max_chars: int = 500) -> None:
        self.memory, self.scope = memory_of(memory, "add_episode"), scope_of(scope)
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
