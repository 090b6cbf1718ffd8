"""Cancellation, time limits and the time hooks get afterwards: one object per run owns all of it (DESIGN 5.5)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .._base.tasks import running_loop
from .events import log
from .termination import RunStoppedError, stronger_cause

GRACE = 5.0
"""Seconds that hooks get, in all, after a cancellation."""


class Cancellation:
    """Everything that can break off a run.

    Four things can: its owner calls :meth:`request`; somebody cancels the task that the run was started in; a time
    limit is reached; something beside the main line of the run fails (both :meth:`abort`). All of them cancel the
    run's task, so asyncio delivers them wherever the run is waiting. :meth:`take_in` then tells them apart and leaves
    the task as it was when the run began: a run's own cancellation never reaches its caller.
    """

    def __init__(self) -> None:
        self.requested = False
        """Whether the run was cancelled, by its owner or through its task."""
        self.by_caller = 0
        """How often somebody else cancelled the run's task; it is told again when the run is over."""
        self.deadline: float | None = None
        """When hooks must have finished, by the monotonic clock; ``None`` until something was cancelled."""
        self.triggered = False
        """Whether the run was ever to be broken off: while it is false, there is nothing to look at."""
        self.interrupted_work = False
        """Whether work was broken off, so that threads of it may still be running."""
        self.finishing = False
        """Whether ``on_run_end`` is near: from here on nothing is broken off at once."""
        self._over = False
        self._aio: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._before = 0
        self._own = 0
        self._cuts = 0
        self._abort: BaseException | None = None
        self._alarm: Any = None

    def expect(self, aio: asyncio.AbstractEventLoop) -> None:
        """The run will be in this loop: requests from other threads go there."""
        self._aio = aio

    def begin(self) -> None:
        """The run begins in the current task; cancellations from before are not the run's."""
        self._aio = asyncio.get_running_loop()
        self._task = asyncio.current_task(self._aio)
        self._before = self._task.cancelling() if self._task is not None else 0

    # What breaks off a run.

    def request(self, _reason: str = "") -> None:
        """Cancel the run. Safe from any thread: its next checkpoint knows, also if nothing yields to the loop."""
        self.requested = self.triggered = True
        aio = self._aio
        if aio is None or running_loop() is aio:
            self._cancel()
            return
        with suppress(RuntimeError):  # the loop is closed, and the run with it
            aio.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is None or self._aio is None or self.deadline is not None:
            return
        if self.finishing:  # hooks of on_run_end are not interrupted, but may not take for ever
            self.start_grace_period()
            self._aio.call_later(GRACE, self._cut)
        else:
            self._cancel_task()

    def abort(self, cause: BaseException) -> None:
        """Break off what is running now, because of ``cause``."""
        if self._abort is None and self._task is not None:
            self._abort = cause
            self.triggered = True
            self._cancel_task()

    def _cancel_task(self) -> None:
        assert self._task is not None
        self.interrupted_work = True
        self._own += 1
        self._task.cancel()

    def _cut(self) -> None:
        if not self._over and self._task is not None:
            self._cuts += 1
            self._task.cancel()

    def watch(self, seconds_left: Callable[[], float | None], clock: Any, on_time: Callable[[], bool]) -> None:
        """Have a time limit break off whatever is waited for when it is reached.

        Args:
            seconds_left: how much time there is; ``None`` for no limit.
            clock: may have a ``call_later`` of its own, which a replay needs.
            on_time: records the limit; false if it is not reached yet, because the ledger has another clock.
        """
        if self._task is None or self.finishing:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        left = seconds_left()
        if left is None:
            return

        def ring() -> None:
            if self.finishing:
                return
            if on_time():
                self.abort(RunStoppedError())
            else:
                self.watch(seconds_left, clock, on_time)

        later = getattr(clock, "call_later", asyncio.get_running_loop().call_later)
        self._alarm = later(left + 0.001, ring)

    # How a run meets it.

    @property
    def pending(self) -> bool:
        """Whether the run is to be broken off, and nobody has taken that in yet."""
        return (self.requested or self._abort is not None) and self.deadline is None

    def check(self) -> None:
        """A checkpoint for cancellations that arrived while nothing was awaited."""
        if self.triggered and self.pending:
            raise asyncio.CancelledError

    @property
    def task_cancelled(self) -> bool:
        """Whether the run's task was cancelled, and nobody has taken that in: some code may have swallowed it."""
        return self._task is not None and self._task.cancelling() > self._before

    def is_cancelled(self) -> bool:
        """Whether the current task is being cancelled since the run began in it."""
        task = asyncio.current_task()
        return task is not None and task.cancelling() > (self._before if task is self._task else 0)

    def is_cancelling(self) -> bool:
        """Whether a CancelledError that arrives now is a cancellation of the run, and not one that somebody raised."""
        return self.requested or self.is_cancelled()

    def start_grace_period(self) -> None:
        """From here on hooks get ``GRACE`` seconds in all."""
        if self.deadline is None:
            self.deadline = time.monotonic() + GRACE

    @property
    def grace_left(self) -> float:
        """Seconds that hooks still have."""
        return GRACE if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    async def resolve(self, cancelled: asyncio.CancelledError | None = None) -> BaseException | None:
        """Take in what is pending and give what caused it; ``None`` if nothing was.

        Without ``cancelled``: something else ended the main part of the run while a cancellation may be on its way.
        """
        task, count = self._task, 0
        if task is not None and asyncio.current_task() is task and task.cancelling() > self._before:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)  # a cancel() that was asked for but not yet delivered
            while task.cancelling() > self._before:
                task.uncancel()
                count += 1
        by_caller = max(0, count - self._own)
        self._own = 0
        self.by_caller += by_caller
        cause, self._abort = self._abort, None
        if cancelled is None and not by_caller and not (self.requested and self.deadline is None):
            return cause
        if cause is not None and not by_caller and not self.requested:
            return cause
        self.requested = self.requested or by_caller > 0
        self.interrupted_work = True
        self.start_grace_period()
        cancelled = cancelled or asyncio.CancelledError()
        return cancelled if cause is None else stronger_cause(cause, cancelled)

    def finish(self) -> None:
        """``on_run_end`` is next: no time limit breaks it off, and a cancellation waits for its hooks."""
        self.finishing = True
        if self._alarm is not None:
            self._alarm.cancel()

    def end(self) -> None:
        """The run is over. What was only done to hurry the hooks at its end is undone."""
        self._over = True
        for _ in range(self._cuts):
            self._task.uncancel()  # type: ignore[union-attr]

    @property
    def caller_was_cancelled(self) -> bool:
        """Whether somebody else cancelled the run's task, which its caller must see now that the run is over."""
        return self.by_caller > 0 or self.task_cancelled

    async def restore(self) -> None:
        """Hand the caller's own cancellations back to its task.

        Raises:
            CancelledError: always, for those.
        """
        task = self._task
        assert task is not None  # somebody cancelled it
        for _ in range(self.by_caller):
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)  # deliver what is pending, so that it comes once
        raise asyncio.CancelledError


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
    def has_other_watchers(self) -> bool:
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
