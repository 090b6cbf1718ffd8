"""A queue whose items a background thread writes, so that callers never wait for a disk or a network."""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from .workers import after_fork_in_child

log = logging.getLogger("hookline")

T = TypeVar("T")

IDLE_SECONDS = 2.0
"""An idle thread ends after this time; the next item starts another one."""
EXIT_SECONDS = 5.0
"""At the end of the program, wait at most this long for items that are not written yet."""

_writers: weakref.WeakSet[BackgroundWriter[Any]] = weakref.WeakSet()


class BackgroundWriter(Generic[T]):
    """Writes queued items in order and in batches, in its own thread.

    Example::

        writer = BackgroundWriter(file.writelines, failed=lambda error, lines: log.error("lost: %s", error))
        writer.put("first line")
        writer.flush()

    Args:
        write: writes one batch. Its exceptions are passed to ``failed``.
        failed: called with the exception and the batch. It must not raise.
        limit: capacity of the queue, in the sizes given to :meth:`put`.
        linger: seconds to collect a batch: waking the thread for each item costs more than writing the item.
        idle: called in the thread after it had nothing to do for a while. It must not raise.
        drop_at_exit: whether queued items may be dropped when the program ends, because they are stored elsewhere.
    """

    def __init__(
        self,
        write: Callable[[list[T]], object],
        failed: Callable[[Exception, list[T]], object],
        *,
        limit: int = 10_000,
        linger: float = 0.01,
        idle: Callable[[], object] | None = None,
        drop_at_exit: bool = False,
    ) -> None:
        self._write = write
        self._failed = failed
        self._limit = limit
        self._linger = linger
        self._idle = idle
        self._drop_at_exit = drop_at_exit
        self._reset()
        _writers.add(self)

    def _reset(self) -> None:
        """Start with an empty queue. A forked process has no thread, and its parent writes the queued items."""
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._wake = threading.Event()
        self._no_linger = threading.Event()
        self._thread: threading.Thread | None = None
        self._items: list[T] = []
        self._size = self._put = self._done = self._flushing = 0

    def put(self, item: T, size: int = 1) -> bool:
        """Queue an item without waiting. Return false if the queue is full.

        Raises:
            RuntimeError: no thread can be started; the item is not queued.
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

    def write_now(self) -> None:
        """Write the queued items without waiting for more of them. Return at once."""
        self._no_linger.set()

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until every item queued so far was written or failed. Return false if ``timeout`` seconds passed."""
        with self._changed:
            wanted = self._put
            self._flushing += 1
            self._no_linger.set()
            try:
                return self._changed.wait_for(lambda: self._done >= wanted, timeout)
            finally:
                self._flushing -= 1
                if not self._flushing:
                    self._no_linger.clear()

    @property
    def pending(self) -> int:
        """The number of items that are not written yet."""
        return self._put - self._done

    def _work(self) -> None:
        while True:
            if not self._wake.wait(IDLE_SECONDS):
                if self._idle is not None:
                    self._idle()
                with self._changed:
                    if not self._items:
                        self._thread = None
                        return
            self._no_linger.wait(self._linger)
            with self._changed:
                items, self._items, size = self._items, [], self._size
                self._wake.clear()
                if not self._flushing:
                    self._no_linger.clear()
            try:
                self._write(items)
            except Exception as error:  # noqa: BLE001 - the owner decides what a failure means
                self._failed(error, items)
            with self._changed:
                self._size -= size
                self._done += len(items)
                self._changed.notify_all()
            del items  # free the memory: the next batch may be a long time away


@atexit.register
def _flush_all() -> None:
    for writer in list(_writers):
        if writer.pending and not writer._drop_at_exit and not writer.flush(EXIT_SECONDS):
            log.error("%d records were not written before the program ended", writer.pending)


def _reset_all() -> None:
    for writer in list(_writers):
        writer._reset()


after_fork_in_child(_reset_all)
