"""A thread that writes what it is handed, so that nobody who hands it something has to wait."""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from .workers import in_forked_child

log = logging.getLogger("hookline")

T = TypeVar("T")

IDLE = 2.0
"""Seconds after which a thread that has nothing to do ends; the next item starts another."""
AT_EXIT = 5.0
"""Seconds that the end of the program waits for what is not written yet."""

_all: weakref.WeakSet[Background[Any]] = weakref.WeakSet()


class Background(Generic[T]):
    """Hands items over, in order and in batches, in a thread of its own.

    Args:
        write: gets each batch. What it raises is told to ``failed``.
        failed: gets what ``write`` raised, and the batch; it may not raise.
        limit: how much may wait, in the sizes given to :meth:`put`.
        linger: seconds in which a batch gathers: waking a thread for each item costs more than the item.
        idle: called in the thread when there was nothing to do for a while; it may not raise.
        left: whether what waits when the program ends is left undone: it is kept elsewhere.
    """

    def __init__(
        self,
        write: Callable[[list[T]], object],
        failed: Callable[[Exception, list[T]], object],
        *,
        limit: int = 10_000,
        linger: float = 0.01,
        idle: Callable[[], object] | None = None,
        left: bool = False,
    ) -> None:
        self._write, self._failed, self._limit, self._linger = write, failed, limit, linger
        self._idle, self._left = idle, left
        self._forget()
        _all.add(self)

    def _forget(self) -> None:
        """Start anew: a forked process has no thread, and what waits is its parent's to write."""
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._wake, self._rush = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._items: list[T] = []
        self._size = self._put = self._done = self._flushing = 0

    def put(self, item: T, size: int = 1) -> bool:
        """Hand over an item, at once; false if too much is waiting already.

        Raises:
            RuntimeError: there is no thread, and none can be started; the item is not taken.
        """
        with self._lock:
            if self._size and self._size + size > self._limit:
                return False
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="hookline-background", daemon=True)
                thread.start()
                self._thread = thread
            self._items.append(item)
            self._size += size
            self._put += 1
            if len(self._items) == 1:
                self._wake.set()
        return True

    def hurry(self) -> None:
        """Have what waits handed over now, without gathering more."""
        self._rush.set()

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all that was put before has been handed over, or has failed; false if time ran out."""
        with self._changed:
            wanted = self._put
            self._flushing += 1
            self._rush.set()
            try:
                return self._changed.wait_for(lambda: self._done >= wanted, timeout)
            finally:
                self._flushing -= 1
                if not self._flushing:
                    self._rush.clear()

    @property
    def waiting(self) -> int:
        """How many items have not been handed over."""
        return self._put - self._done

    def _work(self) -> None:
        while True:
            if not self._wake.wait(IDLE):
                if self._idle is not None:
                    self._idle()
                with self._changed:
                    if not self._items:
                        self._thread = None
                        return
            self._rush.wait(self._linger)
            with self._changed:
                items, self._items, size = self._items, [], self._size
                self._wake.clear()
                if not self._flushing:
                    self._rush.clear()
            try:
                self._write(items)
            except Exception as error:  # noqa: BLE001 - the owner decides what a failure means
                self._failed(error, items)
            with self._changed:
                self._size -= size
                self._done += len(items)
                self._changed.notify_all()
            del items  # it may be long until the next


@atexit.register
def _finish() -> None:
    for each in list(_all):
        if each.waiting and not each._left and not each.flush(AT_EXIT):
            log.error("%d records were not written: the program ended before their turn came", each.waiting)


def _forget_all() -> None:
    for each in list(_all):
        each._forget()


in_forked_child(_forget_all)
