"""Retry model calls after transient errors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from .._kernel.payloads import ErrorReport
from .._kernel.points import ON_ERROR
from .._kernel.results import HookResult
from .._kernel.validation import check_error_names
from ._support.backoff import Backoff, check_max_retries

TRANSIENT = ("RateLimitError", "OverloadedError", "ModelTimeoutError", "UnreachableError")
"""Errors of a provider that are usually short-lived."""


class ModelRetryHook:
    """Retries a model call after a transient error, with exponential backoff.

    The delay is at least the ``retry_after`` of the provider. If the delay would exceed ``max_delay`` or the time that
    the run has left, there is no retry, and later hooks may handle the error. All retries of a call count together,
    including those that hooks request at ``after_llm``.

    Args:
        max_retries: maximum number of retries of one call, at most 2.
        base_delay: average delay before the first retry, in seconds.
        max_delay: longest delay, in seconds.
        on: exception classes, or their names, to retry after.

    Raises:
        RegistrationError: an argument is invalid.
    """

    points = frozenset({ON_ERROR})
    on_failure = "open"
    priority = 60

    def __init__(
        self,
        max_retries: int = 2,
        *,
        base_delay: float = 0.5,
        max_delay: float = 30.0,
        on: Iterable[str | type[BaseException]] = TRANSIENT,
    ) -> None:
        self.max_retries = check_max_retries(max_retries)
        self.backoff = Backoff(base_delay, max_delay)
        self.on = check_error_names(on, "on")

    async def __call__(self, point: str, ctx: Any, failure: ErrorReport) -> HookResult | None:
        """Wait, then request a retry, if the error is transient."""
        if failure.where != "model" or failure.attempt > self.max_retries:
            return None
        error = failure.errors[0]
        if error.type not in self.on:
            return None
        wait = self.backoff.delay(ctx, failure.attempt, error.retry_after)
        if wait is None:
            return None
        await asyncio.sleep(wait)
        return HookResult.retry(reason=f"{error.type}, waited {wait:.2f} s")
