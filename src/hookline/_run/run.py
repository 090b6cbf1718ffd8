"""The handle of a started run, and the event loops that runs are executed in."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import os
import sys
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Generic

from .._base.attachment import Attachment, attachments_of
from .._base.tasks import StillRunningError, running_loop, with_timeout
from .._kernel.events import Event
from .._kernel.payloads import RunStart
from .._kernel.state import AgentResult
from .._kernel.values import Ids, Message
from .cancellation import GRACE, Interrupt
from .engine import Engine
from .halt import watched
from .lanes import in_lane
from .loop import Loop
from .output import OutputT
from .termination import RunFailedError, status_of


class Run(Generic[OutputT]):
    """The handle of a started run. All methods may be called from any thread.

    Example::

        run = agent.start("Summarise the report.")
        async for event in run.events():
            print(event)
        result = await run.result()
    """

    def __init__(self, engine: Engine, loop: Loop) -> None:
        self._engine = engine
        self._loop = loop
        self._aio: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None  # keeps the task alive while it runs
        self._future: concurrent.futures.Future[AgentResult[OutputT]] | None = None
        self._when_done: Callable[[object], None] | None = None
        self._unsubscribe: Callable[[], None] | None = None
        self._in_outer: concurrent.futures.Future[None] | None = None

    @property
    def id(self) -> str:
        """The id of the run."""
        return self._engine.ids.run_id

    @property
    def ids(self) -> Ids:
        """All ids of the run."""
        return self._engine.ids

    async def run_in_caller(self) -> AgentResult[OutputT]:
        """Run in the caller's task. Cancelling the caller cancels the run first, or suspends it if it is durable.

        A durable run has a task of its own: its caller's task is not cancelled before everything so far is written.

        Raises:
            RunFailedError: the run ended with the status ``failed``.
        """
        if self._durable is not None:
            self.begin(asyncio.get_running_loop())
            try:
                return await self.result()
            except asyncio.CancelledError:
                self.suspend()
                with suppress(StillRunningError):
                    await with_timeout(GRACE, self.settled(), shielded=True)
                raise
        result = await self._run()
        if self._engine.cancellation.caller_was_cancelled:
            await self._engine.cancellation.restore()
        return self._checked(result)

    def begin(self, aio: asyncio.AbstractEventLoop, *, nested: bool = False) -> Run[OutputT]:
        """Start the run in a new task of this event loop, from any thread."""
        self._aio, self._future = aio, concurrent.futures.Future()
        if self._when_done is not None:
            self._future.add_done_callback(self._when_done)
        self._engine.cancellation.set_loop(aio)
        context = contextvars.copy_context()
        if running_loop() is aio:
            self._create_task(aio, context)
        else:
            if nested:
                context.run(NESTED.set, True)
            aio.call_soon_threadsafe(self._create_task, aio, context)
        return self

    def _create_task(self, aio: asyncio.AbstractEventLoop, context: contextvars.Context) -> None:
        assert self._future is not None
        work, durable = self._run_for(self._future), self._durable
        task = aio.create_task(work, context=context) if durable is None else durable.create_task(work, aio, context)
        self._task = task
        if (runs := _own_loops.get(aio)) is not None:
            runs.add(task)
            task.add_done_callback(runs.discard)

    @property
    def _durable(self) -> Any:
        """The journal of a durable run; ``None`` for other runs, and for a run that is a part of a durable one."""
        return self._engine.boundary.journal_of(self._engine)

    async def _run(self) -> AgentResult[OutputT]:
        engine, loop = self._engine, self._loop
        start = RunStart(loop.task, engine.ids, loop.attachments)
        work = partial(engine.instrumented, start, loop.run)
        try:
            with in_lane(engine.services.lane), watched(engine.services.halts):
                return await engine.boundary.execute(engine, start, work)
        finally:
            if self._unsubscribe is not None:
                self._unsubscribe()
            engine.close()
            if self._in_outer is not None:
                self._in_outer.set_result(None)

    async def _run_for(self, future: concurrent.futures.Future[AgentResult[OutputT]]) -> None:
        try:
            if self._in_outer is not None:
                with in_lane(self._engine.services.lane):
                    await self._engine.boundary.wake_up("start")
            future.set_result(await self._run())
        except BaseException as error:  # noqa: BLE001 - a KeyboardInterrupt would end the thread of the loop
            future.set_exception(error)

    def when_done(self, callback: Callable[[object], None]) -> None:
        """Call this in the event loop of the run when it has ended. Only one, and before :meth:`begin`."""
        self._when_done = callback

    def follow(self, outer: Engine) -> None:
        """Make this a nested run: it is cancelled with the outer run, which waits for it."""
        self.follow_interrupt(outer.services.interrupt)
        self._in_outer = outer.children.add(self.cancel)

    def follow_interrupt(self, interrupt: Interrupt) -> None:
        """Cancel this run when the interrupt is cancelled."""
        self._unsubscribe = interrupt.subscribe(self._engine.services.interrupt.cancel)

    @property
    def done(self) -> bool:
        """Whether the run has ended."""
        return self._future is not None and self._future.done()

    async def events(self, after: int = 0) -> AsyncIterator[Event]:
        """Yield the events of the run with a ``seq`` above ``after``, live, until the run ends."""
        async for event in self._engine.events.read(after):
            yield event

    def cancel(self, reason: str = "cancelled") -> None:
        """Cancel the run. Its hooks get up to 5 s to clean up. Later calls have no effect."""
        self._engine.services.interrupt.cancel(reason)

    def suspend(self, reason: str = "interrupted") -> None:
        """Stop executing a durable run here: it is not over, and the same call made again continues it.

        Its calls in flight are cancelled, and made again then; its hooks do not notice. :meth:`result` and :meth:`wait`
        raise ``RunSuspendedError``. A run that is not durable is cancelled.
        """
        durable = self._durable
        if durable is None or self._aio is None:
            self.cancel(reason)
        elif running_loop() is self._aio:
            durable.suspend()
        else:
            with suppress(RuntimeError):  # the loop is closed
                self._aio.call_soon_threadsafe(durable.suspend)

    def steer(self, message: str, attachments: Iterable[Attachment | str | os.PathLike[str] | bytes] = ()) -> bool:
        """Add a user message before the next model call. Return false if the run has ended.

        Args:
            message: the text of the message.
            attachments: images, PDF, audio and other files for the model: attachments, paths, URLs or bytes.

        Raises:
            AttachmentError: a file cannot be attached, or is larger than the agent's ``max_attachment``.
        """
        if not isinstance(message, str):
            raise TypeError(f"steer() takes the text of a user message, not {type(message).__name__}")
        if self.done:
            return False
        files = attachments_of(attachments, self._engine.agent.max_attachment)
        return self._engine.steer(Message("user", message, attachments=files))

    async def result(self) -> AgentResult[OutputT]:
        """Wait for the result. Cancelling this wait does not cancel the run.

        Raises:
            RunFailedError: the run ended with the status ``failed``.
        """
        return self._checked(await self._outcome())

    async def settled(self) -> None:
        """Wait until the run has ended, without raising its error."""
        with suppress(Exception):
            await self._outcome()

    async def _outcome(self) -> AgentResult[OutputT]:
        if self._task is not None and not self.done and running_loop() is self._aio:
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._task.add_done_callback(partial(_resolve, ended))  # a call from another thread would cost more
            await ended
            if self.done:
                return self._started().result()
        waiting = asyncio.wrap_future(self._started())
        waiting.add_done_callback(lambda done: done.cancelled() or done.exception())  # also if nobody waits any more
        return await asyncio.shield(waiting)

    def wait(self, timeout: float | None = None) -> AgentResult[OutputT]:
        """Block until the run has ended, and return its result. Ctrl-C cancels the run; a durable one is suspended.

        Raises:
            RunFailedError: the run ended with the status ``failed``.
            TimeoutError: the run did not end within ``timeout`` seconds.
        """
        if self._aio is not None and running_loop() is self._aio:
            raise RuntimeError("run.wait() would block the event loop of the run: use 'await run.result()'")
        warn_if_blocking("run.wait()", "await run.result()")
        return self._wait(timeout)

    def _wait(self, timeout: float | None = None) -> AgentResult[OutputT]:
        """Wait as :meth:`wait` does, for a caller that has already warned about a blocked event loop."""
        try:
            return self._checked(self._started().result(timeout))
        except KeyboardInterrupt:
            self.suspend()
            concurrent.futures.wait([self._started()], timeout=10)
            raise

    def _started(self) -> concurrent.futures.Future[AgentResult[OutputT]]:
        assert self._future is not None, "begin() creates it"
        return self._future

    def _checked(self, result: AgentResult[OutputT]) -> AgentResult[OutputT]:
        if result.status == "failed":
            cause = self._engine.cause
            raise RunFailedError(result, cause if status_of(cause) == "failed" else None)
        return result


def _resolve(future: asyncio.Future[None], _: object) -> None:
    if not future.done():
        future.set_result(None)


# Event loops in threads, for runs that are started or awaited where no loop is running.

NESTED: contextvars.ContextVar[bool] = contextvars.ContextVar("hookline_nested", default=False)
_lock = threading.Lock()
_loops: list[tuple[asyncio.AbstractEventLoop, threading.Thread]] = []

_own_loops: dict[asyncio.AbstractEventLoop, set[asyncio.Task[None]]] = {}
"""The loops of :func:`own_loop` that run, with the tasks of the runs in each."""

PROBE_SECONDS = 0.05
"""A background loop that does not answer within this time counts as blocked."""


def background_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop, in a daemon thread, for runs that are started outside an event loop.

    All such runs share one, unless a sync hook blocks it: the hook may wait for the caller.
    """
    with _lock:
        _loops[:] = [each for each in _loops if each[1].is_alive()]  # a forked process does not have the threads
        known = _loops[:]
    for aio, _ in known:
        if not _is_blocked(aio):
            return aio
    with _lock:
        if _loops == known:  # otherwise, another thread has made one meanwhile
            aio = asyncio.new_event_loop()
            _loops.append((aio, threading.Thread(target=aio.run_forever, name="hookline-loop", daemon=True)))
            _loops[-1][1].start()
        return _loops[-1][0]


def _is_blocked(aio: asyncio.AbstractEventLoop) -> bool:
    """Whether a sync hook may block an event loop. A loop that is only busy may count as blocked."""
    if asyncio.current_task(aio) is None:
        return False
    answered = threading.Event()
    aio.call_soon_threadsafe(answered.set)
    return not answered.wait(PROBE_SECONDS)


@contextmanager
def own_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Provide an event loop in a new thread, for one blocking run inside a running event loop.

    The shared background loop cannot be used, because the caller may be a sync hook that blocks that loop. The thread
    goes on until the detached runs in it have ended.
    """
    aio = asyncio.new_event_loop()
    runs = _own_loops[aio] = set[asyncio.Task[None]]()

    async def has_runs() -> bool:
        return bool(runs)

    async def end() -> None:
        while runs:
            await asyncio.wait(runs)
        await aio.shutdown_asyncgens()
        aio.stop()

    def serve() -> None:
        try:
            aio.run_forever()
        finally:
            del _own_loops[aio]
            aio.close()

    thread = threading.Thread(target=serve, name="hookline-run", daemon=True)
    thread.start()
    try:
        yield aio
    finally:
        is_left = asyncio.run_coroutine_threadsafe(has_runs(), aio).result(timeout=5)
        asyncio.run_coroutine_threadsafe(end(), aio)
        if not is_left:
            thread.join(timeout=5)


def warn_if_blocking(call: str, instead: str) -> None:
    """Warn if this thread runs an event loop, which ``call`` would block. The warning names the user's line."""
    if running_loop() is None:
        return
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("hookline."):
        level, frame = level + 1, frame.f_back
    warnings.warn(
        f"{call} blocks the event loop that runs in this thread, and everything else in it: use '{instead}'",
        RuntimeWarning,
        stacklevel=level,
    )


def needs_own_loop() -> bool:
    """Whether a blocking run needs its own event loop: see :func:`own_loop`."""
    return running_loop() is not None or NESTED.get()
