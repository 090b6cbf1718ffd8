"""Cancellation, time limits, and the grace period of hooks, all in one object per run (DESIGN 5.5)."""

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
"""The time in seconds that all hooks together get after a cancellation."""


class Cancellation:
    """Cancels a run and finds out why it was cancelled.

    There are four causes: the owner calls :meth:`request`; the caller's task is cancelled; a time limit is reached; or
    concurrent work of the run fails (the last two call :meth:`abort`). All of them cancel the task of the run, so
    asyncio interrupts whatever the run awaits. :meth:`resolve` then determines the cause and restores the cancellation
    count of the task, so that a cancellation of the run itself never reaches its caller.
    """

    def __init__(self) -> None:
        self.requested = False
        """Whether the owner or the caller cancelled the run."""
        self.by_caller = 0
        """Number of cancellations by the caller, who sees them when the run has ended."""
        self.deadline: float | None = None
        """Monotonic time at which hooks must have finished; ``None`` before a cancellation."""
        self.triggered = False
        """Whether the run was ever cancelled or aborted. While it is false, no further checks are needed."""
        self.interrupted_work = False
        """Whether work was interrupted, so that its threads may still be running."""
        self.finishing = False
        """Whether the run is about to fire ``on_run_end``, which is not interrupted at once."""
        self.postpone: Callable[[Callable[[], None]], bool] | None = None
        """Runs a function later and returns true while a durable run is being suspended: its hooks must not see the end
        of a run that has not ended."""
        self._ended = False
        self._aio: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._before = 0
        self._own = 0
        self._late_cancels = 0
        self._abort: BaseException | None = None
        self._timer: Any = None

    def set_loop(self, aio: asyncio.AbstractEventLoop) -> None:
        """Set the event loop of the run, for requests from other threads."""
        self._aio = aio

    def begin(self) -> None:
        """Start the run in the current task. Earlier cancellations of the task are ignored."""
        self._aio = asyncio.get_running_loop()
        self._task = asyncio.current_task(self._aio)
        self._before = self._task.cancelling() if self._task is not None else 0

    # Causes.

    def request(self, _reason: str = "") -> None:
        """Cancel the run, from any thread. The run notices at its next checkpoint, even if it never awaits."""
        self.requested = self.triggered = True
        aio = self._aio
        if aio is None or running_loop() is aio:
            self._cancel()
            return
        with suppress(RuntimeError):  # the loop is closed, so the run has ended
            aio.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is None or self._aio is None or self.deadline is not None:
            return
        if self.finishing:  # do not interrupt the hooks of on_run_end, but limit their time
            self.start_grace_period()
            self._aio.call_later(GRACE, self._cancel_late)
        else:
            self._cancel_task()

    def abort(self, cause: BaseException) -> None:
        """Interrupt the run because of ``cause``, from any thread."""
        if self._abort is not None or self._task is None or self._aio is None:
            return
        self._abort = cause
        self.triggered = True
        if running_loop() is self._aio:
            self._cancel_task()
            return
        with suppress(RuntimeError):  # the loop is closed, so the run has ended
            self._aio.call_soon_threadsafe(self._cancel_task)

    def _cancel_task(self) -> None:
        assert self._task is not None
        if self._ended:
            return
        if self.postpone is not None and self.postpone(self._cancel_task):
            return
        self.interrupted_work = True
        self._own += 1
        _cancel(self._task)

    def _cancel_late(self) -> None:
        if not self._ended and self._task is not None:
            self._late_cancels += 1
            _cancel(self._task)

    def set_time_limit(
        self, seconds_left: Callable[[], float | None], clock: Any, on_limit: Callable[[], bool]
    ) -> None:
        """Interrupt the run when a time limit is reached.

        Args:
            seconds_left: returns the remaining time; ``None`` for no limit.
            clock: may have its own ``call_later``, which a replay needs.
            on_limit: sets the stop signal of the limit. It returns false if the limit is not reached yet by the clock
                of the budget.
        """
        if self._task is None or self.finishing:
            return
        if self._timer is not None:
            self._timer.cancel()
        left = seconds_left()
        if left is None:
            return

        def expire() -> None:
            if self.finishing:
                return
            if on_limit():
                self.abort(RunStoppedError())
            else:
                self.set_time_limit(seconds_left, clock, on_limit)

        later = getattr(clock, "call_later", asyncio.get_running_loop().call_later)
        self._timer = later(left + 0.001, expire)

    # Checks.

    @property
    def pending(self) -> bool:
        """Whether a cancellation was requested that is not resolved yet."""
        return (self.requested or self._abort is not None) and self.deadline is None

    def check(self) -> None:
        """Raise ``CancelledError`` if a cancellation is pending, even if nothing was awaited since."""
        if self.triggered and self.pending:
            raise asyncio.CancelledError

    def interrupt(self) -> None:
        """Cancel the task of the run as its caller would: a replay does that."""
        if self._task is not None:
            self._task.cancel()

    @property
    def cancelled_from_outside(self) -> bool:
        """Whether somebody else has cancelled the task: the caller, or a time limit that a hook has set itself."""
        return self._task is not None and self._task.cancelling() > self._before + self._own

    @property
    def task_cancelled(self) -> bool:
        """Whether the task was cancelled and this is not resolved yet, even if some code caught the exception."""
        return self._task is not None and self._task.cancelling() > self._before

    def is_cancelled(self, *, in_own_loop: bool = False) -> bool:
        """Whether the current task has been cancelled since the run started in it.

        With ``in_own_loop``, the caller knows that the current event loop is that of the run. Looking it up costs as
        much as a system call.
        """
        task = asyncio.current_task(self._aio if in_own_loop else None)
        return task is not None and task.cancelling() > (self._before if task is self._task else 0)

    def is_cancelling(self) -> bool:
        """Whether a CancelledError is a cancellation of the run, not one that a hook or tool raised itself."""
        return self.requested or self.is_cancelled()

    def start_grace_period(self) -> None:
        """Limit all hooks from now on to ``GRACE`` seconds together."""
        if self.deadline is None:
            self.deadline = time.monotonic() + GRACE

    @property
    def grace_left(self) -> float:
        """The remaining grace period in seconds."""
        return GRACE if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    async def resolve(self, cancelled: asyncio.CancelledError | None = None) -> BaseException | None:
        """Handle a pending cancellation. Return its cause, or ``None`` if there was none.

        Without ``cancelled``, the main part of the run ended for another reason and a cancellation may be pending.
        """
        task, count = self._task, 0
        if task is not None and asyncio.current_task() is task and task.cancelling() > self._before:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)  # deliver a cancel() that is still pending
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
        """Prepare for ``on_run_end``: no time limit interrupts it, and a cancellation waits for its hooks."""
        self.finishing = True
        if self._timer is not None:
            self._timer.cancel()

    def end(self) -> None:
        """End the run, and undo the cancellations that only limited the hooks at its end."""
        self._ended = True
        for _ in range(self._late_cancels):
            self._task.uncancel()  # type: ignore[union-attr]

    @property
    def caller_was_cancelled(self) -> bool:
        """Whether the caller was cancelled, which it must see when the run has ended."""
        return self.by_caller > 0 or self.task_cancelled

    async def restore(self) -> None:
        """Cancel the caller's task again, as often as the caller was cancelled.

        Raises:
            CancelledError: always.
        """
        task = self._task
        assert task is not None  # it was cancelled
        for _ in range(self.by_caller):
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)  # deliver the pending cancellations as a single exception
        raise asyncio.CancelledError


def _cancel(task: asyncio.Task[Any]) -> None:
    """Cancel the task of a run. A durable run is suspended if others cancel its task."""
    getattr(task, "cancel_run", task.cancel)()


class Interrupt:
    """Cancels a run and all runs started with its context.

    Example::

        interrupt = Interrupt()
        run = agent.start("Summarise the report.", ctx=AgentContext(interrupt=interrupt))
        interrupt.cancel("no longer needed")
    """

    __slots__ = ("_lock", "_recorders", "_token", "_watchers", "cancelled", "reason")

    def __init__(self, *watchers: Callable[[str], None]) -> None:
        self.cancelled = False
        self.reason = ""
        self._watchers = watchers
        self._recorders: tuple[Callable[[str], None], ...] = ()
        self._token: threading.Event | None = None
        self._lock = threading.Lock()

    def cancel(self, reason: str = "cancelled") -> None:
        """Cancel, from any thread. Later calls have no effect. A failing watcher is logged."""
        with self._lock:
            if self.cancelled:
                return
            self.cancelled, self.reason = True, reason
            watchers, recorders = self._watchers, self._recorders
        _call(recorders, reason)
        with self._lock:
            if self._token is not None:
                self._token.set()
        _call(watchers, reason)

    def subscribe(self, watcher: Callable[[str], None]) -> Callable[[], None]:
        """Call ``watcher(reason)`` on cancellation, at once if it has happened. Return a function to unsubscribe."""
        with self._lock:
            self._watchers += (watcher,)
            late = self.cancelled
        if late:
            watcher(self.reason)
        return lambda: self.drop(watcher)

    def record(self, recorder: Callable[[str], None]) -> Callable[[], None]:
        """Like :meth:`subscribe`, but call ``recorder`` before the cancellation takes effect.

        If another thread cancels, the run may react before that thread continues. So a recorder that was called later
        would write the cancellation behind its consequences.
        """
        with self._lock:
            self._recorders += (recorder,)
            late = self.cancelled
        if late:
            recorder(self.reason)
        return lambda: self.drop(recorder)

    def drop(self, watcher: Callable[[str], None]) -> None:
        """Remove a watcher."""
        with self._lock:
            self._watchers = tuple([w for w in self._watchers if w != watcher])
            if self._recorders:
                self._recorders = tuple([r for r in self._recorders if r != watcher])

    @property
    def cancel_token(self) -> threading.Event:
        """A ``threading.Event`` that is set on cancellation, for sync code that waits."""
        with self._lock:
            if self._token is None:
                self._token = threading.Event()
                if self.cancelled:
                    self._token.set()
            return self._token


def _call(watchers: tuple[Callable[[str], None], ...], reason: str) -> None:
    for watcher in watchers:
        try:
            watcher(reason)
        except Exception:  # noqa: BLE001 - call the other watchers nevertheless
            log.exception("a watcher of an interrupt failed")
