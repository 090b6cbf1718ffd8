"""The handle of a started run, and the event loops that runs are executed in."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Generic

from .._base.tasks import running_loop
from .._kernel.events import Event
from .._kernel.payloads import RunStart
from .._kernel.state import AgentResult
from .._kernel.values import Ids, Message
from .cancellation import Interrupt
from .engine import Engine
from .loop import Loop
from .output import OutputT
from .termination import RunFailedError, status_of


class Run(Generic[OutputT]):
    """A run that was started. Everything here may be used from any thread."""

    def __init__(self, engine: Engine, loop: Loop) -> None:
        self._engine = engine
        self._loop = loop
        self._aio: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None  # held, so that it is not collected while it runs
        self._future: concurrent.futures.Future[AgentResult[OutputT]] | None = None
        self._unsubscribe: Callable[[], None] | None = None
        self._in_outer: concurrent.futures.Future[None] | None = None

    @property
    def id(self) -> str:
        """The run's id."""
        return self._engine.ids.run_id

    @property
    def ids(self) -> Ids:
        """The run's id, and all others that its payloads carry."""
        return self._engine.ids

    async def run_in_caller(self) -> AgentResult[OutputT]:
        """Run in the caller's own task; cancelling the caller cancels the run first.

        Raises:
            RunFailedError: the run ended ``failed``.
        """
        result = await self._run()
        if self._engine.cancellation.caller_was_cancelled:
            await self._engine.cancellation.restore()
        return self._judge(result)

    def begin(self, aio: asyncio.AbstractEventLoop, *, nested: bool = False) -> Run[OutputT]:
        """Start in a task of its own, from that loop's thread or another."""
        self._aio, self._future = aio, concurrent.futures.Future()
        self._engine.cancellation.expect(aio)
        work = self._run_for(self._future)
        if running_loop() is aio:
            self._task = aio.create_task(work)
        else:
            context = contextvars.copy_context()
            if nested:
                context.run(NESTED.set, True)
            aio.call_soon_threadsafe(lambda: setattr(self, "_task", aio.create_task(work, context=context)))
        return self

    async def _run(self) -> AgentResult[OutputT]:
        engine, loop = self._engine, self._loop
        try:
            return await engine.instrumented(RunStart(loop.task, engine.ids), loop.run)
        finally:
            if self._unsubscribe is not None:
                self._unsubscribe()
            engine.close()
            if self._in_outer is not None:
                self._in_outer.set_result(None)

    async def _run_for(self, future: concurrent.futures.Future[AgentResult[OutputT]]) -> None:
        try:
            future.set_result(await self._run())
        except BaseException as error:  # noqa: BLE001 - a KeyboardInterrupt would take the loop's thread with it
            future.set_exception(error)

    def follow(self, outer: Engine) -> None:
        """Be cancelled when the run around this one is, which is not over before this one."""
        self.follow_interrupt(outer.services.interrupt)
        self._in_outer = outer.add_child(self.cancel)

    def follow_interrupt(self, interrupt: Interrupt) -> None:
        """Be cancelled when this switch is used."""
        self._unsubscribe = interrupt.subscribe(self._engine.services.interrupt.cancel)

    @property
    def done(self) -> bool:
        """Whether the run is over."""
        return self._future is not None and self._future.done()

    async def events(self, after: int = 0) -> AsyncIterator[Event]:
        """The run's events, live, from the one after ``after`` to the last."""
        async for event in self._engine.events.read(after):
            yield event

    def cancel(self, reason: str = "cancelled") -> None:
        """Cancel the run. Its hooks get up to 5 s to clean up; cancelling again changes nothing."""
        self._engine.services.interrupt.cancel(reason)

    def steer(self, message: str) -> bool:
        """Put a user message into the run before its next model call; false if the run is over."""
        if not isinstance(message, str):
            raise TypeError(f"steer() takes the text of a user message, not {type(message).__name__}")
        if self.done:
            return False
        return self._engine.steer(Message("user", message))

    async def result(self) -> AgentResult[OutputT]:
        """Wait for the end of the run; giving up waiting does not cancel it.

        Raises:
            RunFailedError: the run ended ``failed``.
        """
        return self._judge(await asyncio.shield(asyncio.wrap_future(self._started())))

    async def settled(self) -> None:
        """Wait until the run is over, however it ended."""
        with suppress(Exception):
            await asyncio.shield(asyncio.wrap_future(self._started()))

    def wait(self, timeout: float | None = None) -> AgentResult[OutputT]:
        """Block until the run is over; Ctrl-C cancels it.

        Raises:
            RunFailedError: the run ended ``failed``.
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

    def _started(self) -> concurrent.futures.Future[AgentResult[OutputT]]:
        assert self._future is not None, "begin() made it"
        return self._future

    def _judge(self, result: AgentResult[OutputT]) -> AgentResult[OutputT]:
        if result.status == "failed":
            cause = self._engine.cause
            raise RunFailedError(result, cause if status_of(cause) == "failed" else None)
        return result


# Event loops in threads, for runs that are started or awaited where no loop is running.

NESTED: contextvars.ContextVar[bool] = contextvars.ContextVar("hookline_nested", default=False)
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


def needs_own_loop() -> bool:
    """Whether a blocking run needs a loop of its own: see :func:`own_loop`."""
    return running_loop() is not None or NESTED.get()
