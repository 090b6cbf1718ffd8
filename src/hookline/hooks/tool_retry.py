"""Tool calls that failed are made again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from .._kernel.payloads import ToolCallResult
from .._kernel.points import AFTER_TOOL
from .._kernel.results import HookResult
from ._support.backoff import Backoff, check_max_retries
from ._support.validation import check_error_names, check_name_or_names


class ToolRetryHook:
    """Makes a tool call again whose tool raised an error, after a wait that doubles each time.

    Only for calls that may safely run twice: a tool that failed may have done half of its work. Calls that were
    blocked, answered or cancelled, and calls that are invalid, are left alone: the same call would have the same fate.
    Guards judge the call again, and an approver is asked again.

    Args:
        max_retries: how often one call is made again; the loop allows 2.
        base_delay: seconds before the first retry, on average.
        max_delay: the longest wait.
        on: the errors to retry after, as classes or their names; all if left out.
        tools: glob or globs of the names of the tools that may be retried; all if left out.

    Raises:
        RegistrationError: more retries than the loop allows, or a value that makes no sense.
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
        """Wait and ask for a retry, if that may help."""
        if result.outcome != "error" or result.error is None or result.attempt > self.max_retries:
            return None
        if ctx.interrupt.cancelled or ctx.state.signals or ctx.budget.exceeded(steps=False) is not None:
            return None  # the run is about to stop, and the call would only be cancelled
        errors = [error for error in ctx.state.errors if error.where == "tool" and error.call_id == result.id]
        kind = errors[-1].type if errors else ""
        if kind == "InvalidCall" or (self.on is not None and kind not in self.on):
            return None
        wait = self.backoff.delay(ctx, result.attempt)
        if wait is None:
            return None
        await asyncio.sleep(wait)
        return HookResult.retry(reason=f"{kind}, waited {wait:.2f} s")
