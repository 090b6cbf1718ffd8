"""How often somebody may ask: buckets that fill again with time, for a bounded number of them."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable

MOST = 10_000
"""Callers or addresses that are kept in mind; who was not heard of for longest is forgotten first."""
WRONG_KEYS, WRONG_SECONDS = 10, 60.0
"""After how many wrong keys in how many seconds an address has to wait."""


class Rates:
    """For each caller a bucket of ``burst`` requests that fills again with ``rate`` of them a minute."""

    def __init__(
        self, rate: float, burst: int, *, most: int = MOST, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_second, self._burst, self._most, self._clock = rate / 60, float(burst), most, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, who: str) -> float:
        """Take one; 0, or the seconds after which there is one again."""
        now = self._clock()
        left, at = self._buckets.pop(who, (self._burst, now))
        left = min(self._burst, left + max(0.0, now - at) * self._per_second)
        wait = 0.0 if left >= 1 else (1 - left) / self._per_second
        self._buckets[who] = (left if wait else left - 1, now)
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        return wait

    def __len__(self) -> int:
        return len(self._buckets)


class WrongKeys:
    """Addresses that tried keys which are nobody's: after some of them, they have to wait."""

    def __init__(self, *, most: int = MOST, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self._tries: OrderedDict[str, deque[float]] = OrderedDict()

    def wait(self, address: str) -> float:
        """How many seconds an address has to wait before its keys are looked at; 0 if it need not."""
        tries = self._tries.get(address)
        if tries is None or len(tries) < WRONG_KEYS:
            return 0.0
        return max(0.0, tries[0] + WRONG_SECONDS - self._clock())

    def add(self, address: str) -> None:
        """Note one more."""
        tries = self._tries.pop(address, None) or deque(maxlen=WRONG_KEYS)
        tries.append(self._clock())
        self._tries[address] = tries
        if len(self._tries) > self._most:
            self._tries.popitem(last=False)

    def __len__(self) -> int:
        return len(self._tries)
