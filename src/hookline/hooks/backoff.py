"""Whether, and how long, to wait before another try."""

from __future__ import annotations

from typing import Any

from .._kernel.errors import RegistrationError
from .._run.model_call import MAX_RETRIES
from .checks import seconds, whole


class Backoff:
    """Waits that double with each attempt, with chance in them so that not everybody comes back at once.

    Args:
        base_delay: seconds before the second attempt, on average.
        max_delay: the longest wait.

    Raises:
        RegistrationError: a delay that is no number of seconds, or a base over the maximum.
    """

    def __init__(self, base_delay: float, max_delay: float) -> None:
        self.base_delay, self.max_delay = seconds(base_delay, "base_delay"), seconds(max_delay, "max_delay")
        if self.base_delay > self.max_delay:
            raise RegistrationError(f"base_delay ({base_delay!r}) is longer than max_delay ({max_delay!r})")

    def wait(self, ctx: Any, attempt: int, asked: float | None = None) -> float | None:
        """Seconds to wait after this attempt, ``asked`` for at least; ``None`` if that would take too long."""
        least = max(0.0, asked or 0.0)
        if least > self.max_delay:
            return None
        delay = self.base_delay * 2.0 ** (attempt - 1) * ctx.random.uniform(0.5, 1.5)
        delay = min(least + delay, self.max_delay)
        left = ctx.budget.left.seconds
        return delay if left is None or delay < left else None


def allowed(max_retries: int) -> int:
    """A number of retries that the loop allows for one call.

    Raises:
        RegistrationError: it is none.
    """
    if whole(max_retries, "max_retries") > MAX_RETRIES:
        raise RegistrationError(
            f"max_retries is at most {MAX_RETRIES}, not {max_retries}: the loop allows no more for one call"
        )
    return max_retries
