"""How much is asked of a server, in numbers."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from ..hooks.metrics import MetricsHook

WINDOW = 10.0
"""Seconds over which requests are counted to tell how many there are in one."""
BUCKET = 0.5


class Traffic:
    """Counts requests: for whoever looks now, and for Prometheus. A gate calls it with every request.

    Args:
        metrics: gets the numbers too.
        clock: tells the time.
    """

    def __init__(self, metrics: MetricsHook | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.total = self.refused = 0
        self._clock, self._began = clock, clock()
        self._recent: deque[tuple[int, int]] = deque()
        self._requests = self._seconds = None
        if metrics is not None:
            what = ["method", "route", "status"]
            self._requests = metrics.counter("hookline_http_requests_total", "Requests that were answered.", what)
            self._seconds = metrics.histogram(
                "hookline_http_request_seconds", "How long answers took; streams until their end.", ["route"]
            )

    def __call__(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request."""
        self.total += 1
        self.refused += status in (401, 403, 429)
        now = int(self._clock() / BUCKET)
        if self._recent and self._recent[-1][0] == now:
            self._recent[-1] = now, self._recent[-1][1] + 1
        else:
            self._recent.append((now, 1))
            self._forget(now)
        if self._requests is not None and self._seconds is not None:
            self._requests.add(method, route, str(status))
            self._seconds.observe(seconds, route)

    def per_second(self) -> float:
        """How many requests there were in a second, lately."""
        now = self._clock()
        self._forget(int(now / BUCKET))
        return sum(count for _, count in self._recent) / max(1.0, min(WINDOW, now - self._began))

    def _forget(self, now: int) -> None:
        while self._recent and self._recent[0][0] <= now - WINDOW / BUCKET:
            self._recent.popleft()
