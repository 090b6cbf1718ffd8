"""Limit how often a caller or an address may send requests, in a bounded amount of memory or in a shared database."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable

from .._base.workers import in_thread
from ..stores.errors import StoreError
from ..stores.limits import BucketStore

log = logging.getLogger("hookline")

MAX_TRACKED = 10_000
"""Maximum number of callers or addresses that are tracked. Beyond that, the least recently seen are dropped."""
MAX_WRONG_KEYS, WRONG_KEY_SECONDS = 10, 60.0
"""The number of wrong keys, and the seconds within which they are counted, after which an address has to wait."""


class RateLimiter:
    """One token bucket per caller: ``burst`` requests, refilled with ``rate`` requests per minute."""

    def __init__(
        self,
        rate: float,
        burst: int,
        *,
        max_tracked: int = MAX_TRACKED,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._per_second = rate / 60
        self._burst = float(burst)
        self._max_tracked = max_tracked
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> float:
        """Take one token. Return 0, or the seconds until the next token if the bucket is empty."""
        now = self._clock()
        left, at = self._buckets.pop(caller, (self._burst, now))
        left = min(self._burst, left + max(0.0, now - at) * self._per_second)
        wait = 0.0 if left >= 1 else (1 - left) / self._per_second
        self._buckets[caller] = (left if wait else left - 1, now)
        if len(self._buckets) > self._max_tracked:
            self._buckets.popitem(last=False)
        return wait

    def __len__(self) -> int:
        return len(self._buckets)


class SharedRateLimiter:
    """A rate limit that all replicas of a server share. Without the database, each replica limits for itself.

    Args:
        store: the buckets in the database.
        own: the limit of this process.
    """

    def __init__(self, store: BucketStore, own: RateLimiter) -> None:
        self._store = store
        self._own = own

    async def take(self, caller: str) -> float:
        """Take one token. Return 0, or the seconds until the next token if the bucket is empty."""
        try:
            wait: float = await in_thread(self._store.take, caller)
        except StoreError as error:
            log.error("the rate limit is not shared now: %s", error)
            return self._own.take(caller)
        return wait


class WrongKeyLimiter:
    """Slow down addresses that try keys at random."""

    def __init__(self, *, max_tracked: int = MAX_TRACKED, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_tracked = max_tracked
        self._clock = clock
        self._attempts: OrderedDict[str, deque[float]] = OrderedDict()

    def wait(self, address: str) -> float:
        """Return how many seconds an address has to wait before its next key is checked; 0 if it may try now."""
        attempts = self._attempts.get(address)
        if attempts is None or len(attempts) < MAX_WRONG_KEYS:
            return 0.0
        return max(0.0, attempts[0] + WRONG_KEY_SECONDS - self._clock())

    def add(self, address: str) -> None:
        """Record a wrong key."""
        attempts = self._attempts.pop(address, None) or deque(maxlen=MAX_WRONG_KEYS)
        attempts.append(self._clock())
        self._attempts[address] = attempts
        if len(self._attempts) > self._max_tracked:
            self._attempts.popitem(last=False)

    def __len__(self) -> int:
        return len(self._attempts)
