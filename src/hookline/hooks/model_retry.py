"""Model calls that failed for now are made again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from .._kernel.payloads import Failure
from .._kernel.points import ON_ERROR
from .._kernel.results import HookResult
from ._support.backoff import Backoff, check_max_retries
from ._support.validation import check_error_names

TRANSIENT = ("RateLimitError", "OverloadedError", "ModelTimeoutError", "UnreachableError")
"""The failures of a provider that may be over in a moment."""


class ModelRetryHook:
    """Makes a model call again that failed for now, after a wait that doubles each time.

    A provider that says when to come back (``retry_after``) is not asked before. Where the wait would be longer
    than ``max_delay``, or than the run has time left, the failure stands, and hooks after this one may deal with it.
    All retries of a call count together, also those that hooks ask for at ``after_llm``.

    Args:
        max_retries: how often one call is made again; the loop allows 2.
        base_delay: seconds before the first retry, on average.
        max_delay: the longest wait.
        on: the errors to retry after, as classes or their names.

    Raises:
        RegistrationError: more retries than the loop allows, or a value that makes no sense.
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

    async def __call__(self, point: str, ctx: Any, failure: Failure) -> HookResult | None:
        """Wait and ask for a retry, if that may help."""
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
