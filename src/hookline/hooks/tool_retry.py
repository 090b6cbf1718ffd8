"""Retry tool calls that failed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from .._kernel.payloads import ToolCallResult
from .._kernel.points import AFTER_TOOL
from .._kernel.results import HookResult
from .._kernel.validation import check_error_names, check_name_or_names
from ._support.backoff import Backoff, check_max_retries


class ToolRetryHook:
    """Retries a tool call whose tool raised an error, with exponential backoff.

    Use it only for tools that may safely run twice: a tool that failed may have done half of its work. Calls that were
    blocked, answered, cancelled or invalid are not retried. Guards and approvers judge the call again.

    Args:
        max_retries: maximum number of retries of one call, at most 2.
        base_delay: average delay before the first retry, in seconds.
        max_delay: longest delay, in seconds.
        on: exception classes, or their names, to retry after; by default all.
        tools: glob or globs of the tools that may be retried; by default all.

    Raises:
        RegistrationError: an argument is invalid.
    """

    points = frozenset({AFTER_TOOL})
    on_failure = "open"
    priority = 60

    def __init__(
        self,
        max_retries: int = 2,
        *,
        base_delay: float = 0.2,
        max_delay: float = 10.0,
        on: Iterable[str | type[BaseException]] | None = None,
        tools: str | Iterable[str] | None = None,
    ) -> None:
        self.max_retries = check_max_retries(max_retries)
        self.backoff = Backoff(base_delay, max_delay)
        self.on = None if on is None else check_error_names(on, "on")
        self.tools = None if tools is None else check_name_or_names(tools, "tools")

    async def __call__(self, point: str, ctx: Any, result: ToolCallResult) -> HookResult | None:
        """Wait, then request a retry, if the tool raised one of the errors."""
        if result.outcome != "error" or result.error is None or result.attempt > self.max_retries:
            return None
        if ctx.interrupt.cancelled or ctx.state.signals or ctx.budget.exceeded(steps=False) is not None:
            return None  # the run is about to stop, which would cancel the retry
        errors = [error for error in ctx.state.errors if error.where == "tool" and error.call_id == result.id]
        kind = errors[-1].type if errors else ""
        if kind == "InvalidCall" or (self.on is not None and kind not in self.on):
            return None
        wait = self.backoff.delay(ctx, result.attempt)
        if wait is None:
            return None
        await asyncio.sleep(wait)
        return HookResult.retry(reason=f"{kind}, waited {wait:.2f} s")
