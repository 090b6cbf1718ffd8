"""The handle on a run that is going on, and the loop it runs in (DESIGN 6.6)."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress

from .._base.event import Event
from .._base.tasks import running_loop
from .._kernel.payloads import RunStart
from .._kernel.state import AgentResult
from .._kernel.values import Ids, Message
from .causes import RunFailed, status_of
from .context import AgentContext
from .events import EventStream
from .interrupt import Interrupt
from .loop import Loop


class Run:
    """A run that was started. Everything here may be used from any thread."""

    def __init__(self, loop: Loop, stream: EventStream) -> None:
        self._loop, self._stream = loop, stream
        self._aio: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None  # held, so that it is not collected while it runs
        self._future: concurrent.futures.Future[AgentResult] | None = None
        self._outer: Callable[[], None] | None = None
        self._debt: concurrent.futures.Future[None] | None = None
        loop.ctx.interrupt = Interrupt(self._deliver)

    @property
    def id(self) -> str:
        """The run's id."""
        return self._loop.ctx.run_id

    @property
    def ids(self) -> Ids:
        """The run's id, and all others that its payloads carry."""
        return self._loop.ctx.ids

    async def here(self) -> AgentResult:
        """Run in the caller's own task; cancelling the caller cancels the run first.

        Raises:
            RunFailed: the run ended ``failed``.
        """
        loop = self._loop
        result = await self._run()
        if loop.outside or loop.was_cancelled():
            await self._give_back_cancellations()
        return self._judge(result)

    async def _give_back_cancellations(self) -> None:
        """What others did to the caller's task during the run is theirs to see, now that it is over."""
        loop, task = self._loop, asyncio.current_task()
        assert task is not None
        for _ in range(loop.outside):
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)  # deliver what is pending, so that it comes once
        raise asyncio.CancelledError

    def begin(self, aio: asyncio.AbstractEventLoop, *, nested: bool = False) -> Run:
        """Start in a task of its own, from that loop's thread or another."""
        self._aio, self._future = aio, concurrent.futures.Future()
        work = self._run_for(self._future)
        if running_loop() is aio:
            self._task = aio.create_task(work)
        else:
            context = contextvars.copy_context()
            if nested:
                context.run(_NESTED.set, True)
            aio.call_soon_threadsafe(lambda: setattr(self, "_task", aio.create_task(work, context=context)))
        return self

    async def _run(self) -> AgentResult:
        loop, ctx = self._loop, self._loop.ctx
        try:
            if loop.wrappers:
                return await loop.around(RunStart(loop.task, ctx.ids), loop.run())
            return await loop.run()
        finally:
            if self._outer is not None:
                self._outer()
            if ctx.interrupt.followed:  # runs and threads that it started and left behind
                ctx.interrupt.drop(self._deliver)
                ctx.interrupt.cancel("the run is over")
            ctx.llm, ctx._fire, ctx._whole, ctx.interrupt._watchers = (
                None,
                None,
                None,
                (),
            )  # no cycle is left for the garbage collector
            if ctx.listening:
                self._stream.close()
            if self._debt is not None:
                self._debt.set_result(None)

    async def _run_for(self, future: concurrent.futures.Future[AgentResult]) -> None:
        try:
            future.set_result(await self._run())
        except BaseException as error:  # noqa: BLE001 - a KeyboardInterrupt would take the loop's thread with it
            future.set_exception(error)

    def follow(self, outer: AgentContext) -> None:
        """Be cancelled when ``outer`` is; a run that it belongs to is not over before this one."""
        self._outer = outer.interrupt.subscribe(self._loop.ctx.interrupt.cancel)
        if outer.run_id:
            self._debt = outer.owe(self.cancel)

    @property
    def done(self) -> bool:
        """Whether the run is over."""
        return self._future is not None and self._future.done()

    async def events(self, after: int = 0) -> AsyncIterator[Event]:
        """The run's events, live, from the one after ``after`` to the last."""
        async for event in self._stream.read(after):
            yield event

    def cancel(self, reason: str = "cancelled") -> None:
        """Cancel the run. Its hooks get up to 5 s to clean up; cancelling again changes nothing."""
        self._loop.ctx.interrupt.cancel(reason)

    def steer(self, message: str) -> bool:
        """Put a user message into the run before its next model call; false if the run is over."""
        if self.done:
            return False
        return self._loop.steer(Message("user", message))

    async def result(self) -> AgentResult:
        """Wait for the end of the run; giving up waiting does not cancel it.

        Raises:
            RunFailed: the run ended ``failed``.
        """
        return self._judge(await asyncio.shield(asyncio.wrap_future(self._started())))

    async def settled(self) -> None:
        """Wait until the run is over, however it ended."""
        with suppress(Exception):
            await asyncio.shield(asyncio.wrap_future(self._started()))

    def wait(self, timeout: float | None = None) -> AgentResult:
        """Block until the run is over; Ctrl-C cancels it.

        Raises:
            RunFailed: the run ended ``failed``.
            TimeoutError: it is still running after ``timeout`` seconds.
        """
        if self._aio is not None and running_loop() is self._aio:
            raise RuntimeError("run.wait() would block the loop the run needs: use 'await run.result()'")
        try:
            return self._judge(self._started().result(timeout))
        except KeyboardInterrupt:
            self.cancel("interrupted")
            concurrent.futures.wait([self._started()], timeout=10)
            raise

    def _started(self) -> concurrent.futures.Future[AgentResult]:
        assert self._future is not None, "begin() made it"
        return self._future

    def _judge(self, result: AgentResult) -> AgentResult:
        if result.status == "failed":
            cause = self._loop.cause
            raise RunFailed(result, cause if status_of(cause) == "failed" else None)
        return result

    def _deliver(self, reason: str) -> None:
        aio = self._aio or self._loop.aio
        if aio is None or running_loop() is aio:
            self._loop.cancel()
            return
        try:
            aio.call_soon_threadsafe(self._loop.cancel)
        except RuntimeError:
            pass  # the loop is closed: so is the run


_NESTED: contextvars.ContextVar[bool] = contextvars.ContextVar("hookline_nested", default=False)
_lock = threading.Lock()
_shared: tuple[asyncio.AbstractEventLoop, threading.Thread] | None = None


def background_loop() -> asyncio.AbstractEventLoop:
    """The loop, in a daemon thread, of all runs started outside one."""
    global _shared
    with _lock:
        if _shared is None or not _shared[1].is_alive():  # a forked process has no thread of its own yet
            aio = asyncio.new_event_loop()
            _shared = aio, threading.Thread(target=aio.run_forever, name="hookline-loop", daemon=True)
            _shared[1].start()
        return _shared[0]


@contextmanager
def own_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop in a thread of its own, for one blocking run inside a running loop.

    Not the shared loop: the caller may be a sync hook that keeps that very loop waiting.
    """
    aio = asyncio.new_event_loop()
    thread = threading.Thread(target=aio.run_forever, name="hookline-run", daemon=True)
    thread.start()
    try:
        yield aio
    finally:
        asyncio.run_coroutine_threadsafe(aio.shutdown_asyncgens(), aio).result(timeout=5)
        aio.call_soon_threadsafe(aio.stop)
        thread.join(timeout=5)
        if not aio.is_running():
            aio.close()


def must_nest() -> bool:
    """Whether a blocking run needs a loop of its own: see :func:`own_loop`."""
    return running_loop() is not None or _NESTED.get()
