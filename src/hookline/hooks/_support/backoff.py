"""Delays between retries."""

from __future__ import annotations

from typing import Any

from ..._kernel.errors import RegistrationError
from ..._kernel.validation import check_integer, check_seconds
from ..._run.model_call import MAX_RETRIES


class Backoff:
    """Exponential backoff with jitter, within the time that the run has left.

    Args:
        base_delay: average delay before the second attempt, in seconds.
        max_delay: longest delay, in seconds.

    Raises:
        RegistrationError: a delay is not a number of seconds, or ``base_delay`` is longer than ``max_delay``.
    """

    def __init__(self, base_delay: float, max_delay: float) -> None:
        self.base_delay = check_seconds(base_delay, "base_delay")
        self.max_delay = check_seconds(max_delay, "max_delay")
        if self.base_delay > self.max_delay:
            raise RegistrationError(f"base_delay ({base_delay!r}) is longer than max_delay ({max_delay!r})")

    def delay(self, ctx: Any, attempt: int, minimum: float | None = None) -> float | None:
        """Return the delay after this attempt in seconds, or ``None`` if a retry would take too long.

        Args:
            ctx: the context of the run; its budget bounds the delay, its random numbers spread it.
            attempt: the attempt that failed, from 1.
            minimum: the delay that the provider asked for.
        """
        minimum = max(0.0, minimum or 0.0)
        if minimum > self.max_delay:
            return None
        delay = self.base_delay * 2.0 ** (attempt - 1) * ctx.random.uniform(0.5, 1.5)
        delay = min(minimum + delay, self.max_delay)
        left = ctx.budget.left.seconds
        return delay if left is None or delay < left else None


def check_max_retries(max_retries: int) -> int:
    """Accept a number of retries that the agent loop allows for one call.

    Raises:
        RegistrationError: the number is too large, or not a whole number above 0.
    """
    if check_integer(max_retries, "max_retries") > MAX_RETRIES:
        raise RegistrationError(
            f"max_retries is at most {MAX_RETRIES}, not {max_retries}: the loop allows no more for one call"
        )
    return max_retries
