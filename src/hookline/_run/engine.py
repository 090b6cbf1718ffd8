"""The engine of a run: what its parts share. The loop, the model calls and the tool calls are built on it.

Hooks and tools never get it: they see the :class:`~hookline.AgentContext`, its window.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Container, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from typing import Any, Protocol, TypeVar

from .._base.tasks import StillRunningError, with_timeout
from .._kernel.dispatch import Firing, fire
from .._kernel.errors import CallRefusedError, HookError, HooklineError
from .._kernel.payloads import Failure, RunStart
from .._kernel.points import ON_ERROR, ON_PROGRESS, ON_TOKEN, Point, is_fired_by_loop
from .._kernel.registry import HookRegistry
from .._kernel.results import HookAction, Verdict
from .._kernel.scope import Scope, is_being_closed
from .._kernel.state import AgentState
from .._kernel.values import ErrorInfo, Message, StopSignal
from ..models.protocol import Model
from ..tools.registry import ToolRegistry
from .cancellation import Cancellation
from .context import Services, build_context
from .events import EventStream, Failed, Signalled, Steered, TextDelta, ToolEnded, ToolStarted, log
from .output import RunOutput
from .run_hooks import RunHooks
from .state import RunState
from .termination import RunEndedError, RunStoppedError, stronger_cause
from .wrapping import run_wrapped

T = TypeVar("T")

DONE = frozenset(("completed", "finish_reason"))


class _Everywhere:
    """The points that are heard where every fire is recorded: all of them, those of the program too."""

    def __contains__(self, point: object) -> bool:
        return True


class AgentSetup(Protocol):
    """What a run needs to know of its agent."""

    model: Model
    tools: ToolRegistry
    hooks: HookRegistry
    params: Mapping[str, Any]
    max_parallel_tools: int

    def tools_for(self, allowed_plugins: tuple[str, ...] | None) -> ToolRegistry:
        """The tools of a run with this filter."""
        ...


class Engine(Scope):
    """One run: its state, hooks, events, ledger and cancellation, and the few steps that all its parts take."""

    def __init__(
        self,
        agent: AgentSetup,
        services: Services,
        state: RunState,
        hooks: RunHooks,
        events: EventStream,
        cancellation: Cancellation,
        scratch: dict[str, Any],
        *,
        every_call: bool = False,
    ) -> None:
        super().__init__(build_context(services, self, hook_state={}, scratch=scratch), emit=events.emit)
        self.agent = agent
        self.services = services
        self.run_state = state
        self.hooks = hooks
        self.events = events
        self.wants = events.wants
        self.recording = events.recording
        self.tracing = every_call
        self.budget = services.budget
        self.cancellation: Cancellation = cancellation  # pyright: ignore[reportIncompatibleVariableOverride] # set only here
        self.environment = services.environment
        self.ids = services.ids
        self.cause: BaseException | None = None
        """Why the run leaves its normal course, if it does; the strongest cause gives it its status."""
        self.output: RunOutput | None = None
        """What the final reply must be; ``None`` for text."""
        self.hop = 0
        self.generations = 0
        self.tools: ToolRegistry
        self._load_registrations()
        self._lock = threading.Lock()
        self.steered: list[Message] = []
        """Messages that were put in from outside and wait for the next model call."""
        self.children: dict[Future[None], Callable[[str], None]] = {}
        """What began in this run and keeps it open, with how to cancel it."""
        services.run = self

    # What dispatch asks of a scope.

    @property
    def state(self) -> AgentState:
        """The state as hooks see it."""
        return self.run_state.view()

    def accept_state(self, state: object) -> None:
        """Take over a hook's ``state=``."""
        self.run_state.accept(state)

    # Firing points.

    def refresh(self) -> None:
        """Take over what has changed since the last fire: hooks, tools, and which hooks hear of events."""
        if HookRegistry.changes != self.hooks.seen:
            self.hooks.compile()
            self._load_registrations()
            if self.events.hooked:
                self.events.keep_hooks(self.hooks.allowed.listeners)

    def _load_registrations(self) -> None:
        self._set_limits()
        self.tools = self.services.tools = self.agent.tools_for(self.services.allowed_plugins)
        self._listened_points: Container[str] = self.hooks.stack.points
        if self.recording:
            self._listened_points = _Everywhere()
        elif self.wants(TextDelta):
            self._listened_points = self.hooks.stack.points | {ON_TOKEN}
        self.reports_calls = ON_PROGRESS in self._listened_points or self.wants(ToolStarted) or self.wants(ToolEnded)
        """Whether anybody wants to know when tool calls start and end."""

    def has_listeners(self, point: Point[Any]) -> bool:
        """Whether anybody could notice a fire of this point now; text is streamed only if somebody wants it.

        Hooks that were registered a moment ago count: a guard must not miss a call.
        """
        if HookRegistry.changes != self.hooks.seen:
            self.refresh()
        return point in self._listened_points

    def open(self, point: Point[Any], payload: Any) -> Firing:
        """Begin to fire a point; its steps are taken one by one, and :meth:`conclude` ends it."""
        self.refresh()
        return Firing(self.hooks.chain(point), point, payload, self, "")

    async def fire(self, point: Point[Any], payload: Any, *, no_retry: str = "", fatal: bool = True) -> Verdict:
        """Fire a point; failures are reported, signals recorded. Nothing happens where nobody listens.

        Args:
            point: where.
            payload: what travels through it.
            no_retry: why a ``retry`` would not be honoured, if it would not.
            fatal: whether a closed failure ends the run.

        Raises:
            RunEndedError: a hook said ``end``.
            HookError: a hook failed closed.
            CallRefusedError, RunStoppedError: a model call that a hook made was refused.
        """
        if not self.has_listeners(point):
            return Verdict(payload)
        verdict, firing = await fire(self.hooks.chain(point), point, payload, self, no_retry)
        return verdict if firing is None or not firing.has_results else await self._act(firing, verdict, fatal=fatal)

    async def observe(self, point: Point[Any], payload: Any) -> None:
        """Show the observers of a point something that nobody decides any more."""
        await self.conclude(self.open(point, payload))

    async def conclude(self, firing: Firing) -> Verdict:
        """End a fire whose steps were taken one by one: see :meth:`fire`."""
        verdict = await firing.conclude()
        return await self._act(firing, verdict) if firing.has_results else verdict

    async def _act(self, firing: Firing, verdict: Verdict, *, fatal: bool = True) -> Verdict:
        """Do what follows from what was said: report failures, record signals, end the run."""
        error, point = firing.error, firing.point
        if error is None:
            if verdict.signals:
                self.signal(*verdict.signals)
            for soft in verdict.failures:
                try:
                    await self.report(soft, quiet=point is ON_ERROR)
                except (HookError, CallRefusedError) as failed:
                    failed.verdict = verdict  # the point itself had concluded
                    raise
            if verdict.action is HookAction.END_TURN:
                raise RunEndedError(verdict)
            return verdict
        # A closed failure: of several failures the first one counts, but all of them are recorded.
        if isinstance(error, HookError):
            info = ErrorInfo("hook", type(error.cause).__name__, str(error), error.hook, fatal=fatal)
            with suppress(HookError, CallRefusedError, RunStoppedError):
                await self.report(info, quiet=point is ON_ERROR)
        self.signal(*verdict.signals)
        for soft in verdict.failures:
            with suppress(HookError, CallRefusedError, RunStoppedError):
                await self.report(soft, quiet=point is ON_ERROR)
        if isinstance(error, HookError):
            raise error from error.cause
        if error.status == "stopped":
            raise RunStoppedError from error
        raise error

    async def fire_from_hook(self, point: Point[Any], payload: Any) -> Verdict:
        """``ctx.fire``: what a hook or a tool fires. An ``end`` there is the asker's to act upon.

        Raises:
            HooklineError: the loop fires this point itself, so its hooks would take it for real.
        """
        if is_fired_by_loop(point):
            raise HooklineError(f"{point} is fired by the loop itself: declare a point of your own for this")
        try:
            return await self.fire(point, payload, fatal=point.closed.startswith("the run fails"))
        except RunEndedError as ended:
            return ended.verdict
        except RunStoppedError as stopped:
            raise CallRefusedError("the run is stopping", status="stopped") from stopped

    async def report(
        self, error: ErrorInfo, *, quiet: bool = False, failure: Failure | None = None, no_retry: str = ""
    ) -> Verdict | None:
        """Record a failure and put it to ``on_error``, unless it came from there (``quiet``).

        Raises:
            HookError: a hook at ``on_error`` failed closed itself.
        """
        self.record_error(error)
        if quiet:
            return None
        payload = failure or Failure((error,), error.where, error.fatal, ids=self.ids)
        return await self.fire(ON_ERROR, payload, no_retry=no_retry)

    def record_error(self, info: ErrorInfo) -> None:
        """Put an error into the state and the events."""
        self.run_state.add_error(info)
        self.emit(Failed, error=info)

    # What goes around a run, a model call or a tool (DESIGN 4.9).

    def wrap(self, payload: Any, work: Awaitable[T]) -> Awaitable[T]:
        """Await ``work`` within what the hooks put around it."""
        wrappers = self.hooks.stack.wrappers
        return run_wrapped(wrappers, self.ctx, payload, work) if wrappers else work

    async def instrumented(self, start: RunStart, work: Callable[[], Awaitable[T]]) -> T:
        """Do ``work`` behind the hooks that stand between the run and the world (DESIGN 6.11)."""
        if not self.hooks.stack.instruments:
            return await self.wrap(start, work())
        with ExitStack() as stack:
            for hook in self.hooks.stack.instruments:
                try:
                    stack.enter_context(hook.instrument(self, start))
                except Exception:  # noqa: BLE001 - it only records
                    log.exception("hook %r failed to instrument the run", hook)
            return await self.wrap(start, work())

    # Stopping.

    def checkpoint(self, *, inside_step: bool = True) -> None:
        """Where a recorded stop, a limit or a cancellation takes effect (DESIGN 4.7).

        Hooks may still ask the model about a run that is complete (not ``inside_step``).

        Raises:
            CancelledError: the run is to be broken off.
            RunStoppedError: a signal is recorded, or a limit is reached.
        """
        signals = self.run_state.signals
        if not signals and not self._limited and not self.cancellation.triggered:
            return  # nothing to look at, as nearly always
        self.cancellation.check()
        if not signals or not (inside_step or any(signal.kind not in DONE for signal in signals)):
            limit = self.budget.exceeded(steps=False)
            if limit is None:
                return
            self.signal(limit)
        raise RunStoppedError

    def signal(self, *signals: StopSignal) -> None:
        """Record stop signals."""
        if signals:
            self.run_state.set_signals(self.run_state.signals + signals)
            for signal in signals:
                self.emit(Signalled, signal=signal)

    def _set_limits(self) -> None:
        """Have the limits that hooks declare join the ledger; a new time limit counts at once."""
        before = self.budget.limits.seconds
        self.budget.join(self.hooks.limits())
        self._limited = self.budget.limited
        if self.budget.limits.seconds != before:
            self.start_time_limit()

    def start_time_limit(self) -> None:
        """Have a time limit break off whatever is waited for when it is reached."""
        self.cancellation.watch(self.budget.seconds_left, self.environment.clock, self._time_limit_reached)

    def _time_limit_reached(self) -> bool:
        limit = self.budget.out_of_time()
        if limit is not None:
            self.signal(limit)
        return limit is not None

    async def resolve_cause(self, cause: BaseException) -> BaseException:
        """A cause as it counts: a cancellation is taken in first, and replaced by what caused it.

        Raises:
            GeneratorExit: the coroutine of the run is being closed, so nothing can be awaited any more.
        """
        if isinstance(cause, GeneratorExit) and is_being_closed(self):
            raise cause
        if isinstance(cause, asyncio.CancelledError):
            return await self.resolve_cancellation(cause) or cause
        return cause

    async def resolve_cancellation(self, cancelled: asyncio.CancelledError | None = None) -> BaseException | None:
        """Take in a cancellation that arrived, or may be on its way; what caused it, if there was one."""
        cause = await self.cancellation.resolve(cancelled)
        if self.cancellation.by_caller:
            self.services.interrupt.cancel("the caller was cancelled")
        return cause

    async def record_cause(self, cause: BaseException) -> None:
        """Take a cause into account; the strongest one gives the run its status."""
        cause = await self.resolve_cause(cause)
        if not isinstance(cause, RunStoppedError):  # the signal that it stands for is recorded
            self.cause = stronger_cause(self.cause, cause)

    # Messages that are put into the run from outside.

    def steer(self, message: Message) -> bool:
        """Put a message into the conversation before the next model call; false if none will come."""
        with self._lock:
            if self.cancellation.finishing:
                return False
            self.steered.append(message)
            if self.environment.boundary is not None:
                self.environment.boundary.steered(self.ids.run_id, message.content)
            return True

    def append_steered(self) -> None:
        """Append the messages that were put in since the last time."""
        while self.steered:
            message = self.steered.pop(0)
            self.run_state.append(message)
            self.emit(Steered, text=message.content)

    def finish(self) -> None:
        """No message is taken in any more, and no time limit breaks off what follows."""
        with self._lock:
            self.cancellation.finish()

    # Runs inside this one.

    def add_child(self, cancel: Callable[[str], None]) -> Future[None]:
        """Keep the run open for something that began in it, until the returned future has a result.

        At its end the run calls ``cancel(reason)`` for what is still going on, and waits a little.
        """
        child: Future[None] = Future()
        self.children[child] = cancel
        child.add_done_callback(lambda done: self.children.pop(done, None))
        return child

    async def cancel_children(self) -> None:
        """Break off what began in this run and is not over, and wait for it."""
        children = dict(self.children)
        for cancel in children.values():
            cancel("the run is over")
        if waiting := [asyncio.wrap_future(child) for child in children if not child.done()]:
            with suppress(StillRunningError):  # the other half of the time is for the hooks at the end of this run
                await with_timeout(self.cancellation.grace_left / 2, asyncio.wait(waiting), shielded=True)

    def close(self) -> None:
        """The run is over: its context can fire nothing any more, and no reference cycle is left behind."""
        services = self.services
        services.run = services.llm = None
        self.ctx = None
        interrupt = services.interrupt
        interrupt.drop(self.cancellation.request)
        if self.cancellation.interrupted_work:  # threads of it may still be running
            interrupt.cancel("the run is over")
        self.events.close()
