"""Who waits in this program for a decision, and the one thread that looks for all of them."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from .._base.workers import after_fork_in_child
from .approval_rows import ApprovalRow
from .errors import LockedFileError, StoreError

log = logging.getLogger("hookline")

EVERY = 0.5
"""Seconds between two looks at the file, for what other programs decided."""

Tell = Callable[["ApprovalRow | Exception"], object]
_watches: weakref.WeakSet[Watch] = weakref.WeakSet()


class Watch:
    """Tells those who wait for a row when it is no longer pending.

    The thread is there only while somebody waits. A file that is locked is looked at again; any other failure is told
    to all who wait.

    Args:
        path: the file; a decision that this program makes about it wakes all watches of it at once.
        look: the rows with these ids.
    """

    def __init__(self, path: str, look: Callable[[Sequence[str]], Mapping[str, ApprovalRow]]) -> None:
        self._path, self._look = path, look
        self.forget()
        _watches.add(self)

    def forget(self) -> None:
        """Begin anew: a forked program has neither the thread nor those who wait."""
        self._lock, self._news = threading.Lock(), threading.Event()
        self._waiting: dict[object, tuple[str, Tell]] = {}
        self._thread: threading.Thread | None = None

    @contextmanager
    def waiting(self, id: str, tell: Tell) -> Iterator[None]:
        """Have ``tell`` called, in the thread that looks, with the row once it is decided, or with what went wrong."""
        key = object()
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="hookline-approvals", daemon=True)
                thread.start()  # there may be no room for one: then it is tried again with the next who waits
                self._thread = thread
            self._waiting[key] = id, tell
        self._news.set()  # it may have been decided already
        try:
            yield
        finally:
            with self._lock:
                self._waiting.pop(key, None)
                if not self._waiting:
                    self._news.set()

    def _work(self) -> None:
        locked = False
        while True:
            self._news.wait(EVERY)
            self._news.clear()
            with self._lock:
                waiting = dict(self._waiting)
                if not waiting:
                    self._thread = None
                    return
            found: Mapping[str, Any] = {}
            problem: Exception = StoreError(f"it is no longer in {self._path}, which somebody deleted or replaced")
            try:
                found = self._look([id for id, _ in waiting.values()])
            except LockedFileError as error:
                if not locked:
                    log.warning("decisions about calls that wait cannot be seen: %s", error)
                locked = True
                continue
            except Exception as error:  # noqa: BLE001 - whoever waits is told
                problem = error
            locked = False
            for key, (id, tell) in waiting.items():
                outcome = found.get(id, problem)
                if not isinstance(outcome, ApprovalRow) or outcome.status != "pending":
                    with self._lock:
                        self._waiting.pop(key, None)
                    try:
                        tell(outcome)
                    except Exception:
                        log.exception("what was decided about %s could not be told", id)


def wake(path: str) -> None:
    """Something was decided in this file: all who wait for it in this program look at once."""
    for watch in list(_watches):
        if watch._path == path:
            watch._news.set()


def _after_fork() -> None:
    for watch in list(_watches):
        watch.forget()


after_fork_in_child(_after_fork)
