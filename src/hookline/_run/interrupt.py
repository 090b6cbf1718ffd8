"""What every run has of its own: an id, and a switch that cancels it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from .._base.workers import after_fork_in_child
from .events import log

_POOL: list[str] = []
after_fork_in_child(_POOL.clear)


def make_id(prefix: str = "id") -> str:
    """A fresh id that cannot be guessed."""
    try:
        return f"{prefix}_{_POOL.pop()}"
    except IndexError:  # one look at the system's randomness serves many ids
        fresh = os.urandom(12 * 64).hex()
        _POOL.extend(fresh[i : i + 24] for i in range(24, len(fresh), 24))
        return f"{prefix}_{fresh[:24]}"


class Interrupt:
    """A switch that cancels: the run it belongs to, and all runs started from its context."""

    __slots__ = ("_lock", "_token", "_watchers", "cancelled", "reason")

    def __init__(self, *watchers: Callable[[str], None]) -> None:
        self.cancelled = False
        self.reason = ""
        self._watchers = watchers
        self._token: threading.Event | None = None
        self._lock = threading.Lock()

    def cancel(self, reason: str = "cancelled") -> None:
        """Cancel. Only the first call counts. Safe from any thread. A watcher that fails is logged."""
        with self._lock:
            if self.cancelled:
                return
            self.cancelled, self.reason = True, reason
            watchers = self._watchers
            if self._token is not None:
                self._token.set()
        for watcher in watchers:
            try:
                watcher(reason)
            except Exception:  # noqa: BLE001 - the others are told all the same
                log.exception("a watcher of a cancellation failed")

    def subscribe(self, watcher: Callable[[str], None]) -> Callable[[], None]:
        """Call ``watcher(reason)`` when cancelled, at once if it has been; the closure unsubscribes."""
        with self._lock:
            self._watchers += (watcher,)
            late = self.cancelled
        if late:
            watcher(self.reason)
        return lambda: self.drop(watcher)

    def drop(self, watcher: Callable[[str], None]) -> None:
        """Do not call ``watcher`` any more."""
        with self._lock:
            self._watchers = tuple(w for w in self._watchers if w != watcher)

    @property
    def followed(self) -> bool:
        """Whether anybody but its own run would notice."""
        return len(self._watchers) > 1 or self._token is not None

    @property
    def cancel_token(self) -> threading.Event:
        """An event that is set when cancelled, for sync code that waits."""
        with self._lock:
            if self._token is None:
                self._token = threading.Event()
                if self.cancelled:
                    self._token.set()
            return self._token
