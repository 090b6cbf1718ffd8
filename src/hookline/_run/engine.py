"""The engine of a run, which the loop, the model calls and the tool calls share.

Hooks and tools never get it. They get the :class:`~hookline.AgentContext`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Any, TypeVar

from .._kernel.dispatch import Firing, fire
from .._kernel.errors import CallRefusedError, HookError, HooklineError
from .._kernel.events import PointFired
from .._kernel.fire_observers import NO_FIRE_OBSERVERS, FireEvents, FireObserver, FireObservers
from .._kernel.payloads import ErrorReport, RunStart
from .._kernel.points import ON_ERROR, ON_PROGRESS, ON_TOKEN, Point, is_fired_by_loop
from .._kernel.registry import REGISTRATIONS
from .._kernel.results import HookAction, Verdict
from .._kernel.scope import CURRENT, HookState, Scope, is_being_closed
from .._kernel.state import AgentResult, AgentState
from .._kernel.values import ErrorInfo, Message, StopSignal
from ..tools.registry import ToolRegistry
from .boundary import CANCELLATION, Boundary
from .cancellation import Cancellation
from .children import Children
from .context import Services, build_context
from .events import EventStream, Failed, Signalled, Steered, TextDelta, ToolEnded, ToolStarted, log
from .output import RunOutput
from .run_agent import RunAgent
from .run_hooks import RunHooks, clean_with
from .state import RunState
from .termination import RunEndedError, RunStoppedError, stronger_cause
from .wrapping import run_wrapped

T = TypeVar("T")

DONE = frozenset(("completed", "finish_reason"))


class Engine(Scope):
    """The state, hooks, events, budget and cancellation of one run, and the operations that all its parts use."""

    __slots__ = (
        "_fired_points",
        "_hooked_points",
        "_limited",
        "_listened_points",
        "_lock",
        "_watchers",
        "agent",
        "budget",
        "cause",
        "children",
        "environment",
        "events",
        "generations",
        "goes_on",
        "hooks",
        "hop",
        "ids",
        "live",
        "may_be_halted",
        "output",
        "reports_calls",
        "result",
        "run_state",
        "services",
        "shown",
        "steered",
        "suspended",
        "tools",
        "wants",
        "without_attachments",
    )
    is_run = True

    def __init__(
        self,
        agent: RunAgent,
        services: Services,
        state: RunState,
        hooks: RunHooks,
        events: EventStream,
        cancellation: Cancellation,
        scratch: dict[str, Any],
    ) -> None:
        super().__init__(build_context(services, self, hook_state=HookState(), scratch=scratch), emit=events.emit)
        self.agent = agent
        self.services = services
        self.run_state = state
        self.hooks = hooks
        self.events = events
        self.wants = events.wants
        self.has_consumers = events.has_consumers
        self.budget = services.budget
        self.cancellation: Cancellation = cancellation  # pyright: ignore[reportIncompatibleVariableOverride] # set only here
        self.environment = services.environment
        self.suspended = False
        """Whether another process, or a later one, continues the run, so that nothing counts that happens here."""
        self.ids = services.ids
        self.cause: BaseException | None = None
        """The strongest cause for an early end of the run, which determines its status."""
        self.result: AgentResult[Any] | None = None
        """The result of the run, after the hooks of ``on_run_end``; ``None`` before that."""
        self.output: RunOutput | None = None
        """The required type of the final reply; ``None`` for text."""
        self.live = False
        """Whether text is shown at once even if a hook may still reject it: the option ``stream="live"``."""
        self.shown: tuple[int, int] | None = None
        """The hop and attempt of the last reply whose text was shown."""
        self.hop = 0
        self.goes_on = False
        """Whether the run of a host began before this process was asked about it."""
        self.generations = 0
        self.without_attachments: Sequence[Message] = ()
        """The messages of the last request, if none of them has attachments."""
        self.tools: ToolRegistry
        self._limited = False
        self.set_boundary(services.environment.boundary)
        self._watchers: dict[int, FireObserver] = {}
        if hooks.allowed.watchers:
            self._watchers = {id(hook): observer for hook, observer in self._observers_of_hooks()}
        observers = [*self._watchers.values()]
        if events.has_consumers:
            every_fire = events.wants(PointFired)
            observers.append(FireEvents(events.emit, every_fire=every_fire, every_call=events.every_call))
        if observers:
            self.fire_observers = FireObservers(*observers)
        self._load_registrations()
        self._lock = threading.Lock()
        self.steered: list[Message] = []
        """Messages from ``run.steer`` that wait for the next model call."""
        self.children = Children(cancellation)
        services.run = self

    # The interface of a scope.

    @property
    def state(self) -> AgentState:
        """The state for hooks."""
        return self.run_state.view()

    def accept_state(self, state: object) -> None:
        """Apply a hook's ``state=``."""
        self.run_state.accept(state)

    # Firing points.

    def refresh(self) -> None:
        """Apply changes since the last fire: hooks, tools, and the hooks that get events."""
        if REGISTRATIONS.changes != self.hooks.seen:
            self.hooks.compile()
            self._load_registrations()
            if self.events.hooked:
                self.events.keep_hooks(self.hooks.allowed.listeners)

    def _observers_of_hooks(self) -> Iterator[tuple[Any, FireObserver]]:
        """Yield the hooks that observe the fires of this run, and their fire observers."""
        for hook in self.hooks.allowed.watchers:
            try:
                observer = hook.observe_fires(self)
            except Exception:  # noqa: BLE001 - watching must not affect the run
                log.exception("observe_fires() of hook %r failed", hook)
            else:
                if observer is not None:
                    yield hook, observer

    def clean(self, value: Any) -> Any:
        """Return a value as it may be stored: the hooks of the run declare what is replaced."""
        return clean_with(self.hooks.allowed.redactions, value)

    def _load_registrations(self) -> None:
        self.events.redactions = self.hooks.allowed.redactions
        self._set_limits()
        self.tools = self.services.tools = self.agent.tools_for(self.services.allowed_plugins)
        if self._watchers and (removed := self._watchers.keys() - set(map(id, self.hooks.allowed.watchers))):
            self.fire_observers = self.fire_observers.without([self._watchers.pop(each) for each in removed])
        self._find_listeners()

    def _find_listeners(self) -> None:
        self._hooked_points = self.hooks.stack.points
        self._fired_points = self._listened_points = self._hooked_points | self.fire_observers.points
        if self.wants(TextDelta):
            self._listened_points = self._fired_points | {ON_TOKEN}
        self.reports_calls = ON_PROGRESS in self._listened_points or self.wants(ToolStarted) or self.wants(ToolEnded)
        """Whether a consumer wants to know when tool calls start and end."""

    def has_listeners(self, point: Point[Any]) -> bool:
        """Whether a hook, a fire observer or a consumer of events would notice a fire of this point.

        The loop fires the points of a step only if this is true: it need not prepare what nobody sees. New
        registrations are considered at once, so that a guard does not miss a call.
        """
        if REGISTRATIONS.changes != self.hooks.seen:
            self.refresh()
        return point in self._listened_points

    def fires(self, point: Point[Any]) -> bool:
        """Whether a hook or a fire observer would notice a fire of this point. Consumers of events do not count."""
        if REGISTRATIONS.changes != self.hooks.seen:
            self.refresh()
        return point in self._fired_points

    def holds_text(self) -> bool:
        """Whether the text of a reply must not be shown before ``after_llm`` has settled it (DESIGN 7.14)."""
        self.refresh()
        return not self.live and self.hooks.callable().holds_text

    def start_firing(self, point: Point[Any], payload: Any) -> Firing:
        """Start firing a point. The caller runs the phases one by one and then calls :meth:`conclude`."""
        self.refresh()
        return Firing(self.hooks.callable().chain(point), point, payload, self, "")

    async def fire(self, point: Point[Any], payload: Any, *, no_retry: str = "", fatal: bool = True) -> Verdict:
        """Fire a point, report failures and set stop signals. Without listeners, nothing happens.

        Args:
            point: the point.
            payload: its payload.
            no_retry: the reason why a ``retry`` is not possible, or an empty string.
            fatal: whether a closed failure ends the run.

        Raises:
            RunEndedError: a hook returned ``end``.
            HookError: a hook failed closed.
            CallRefusedError, RunStoppedError: a model call in a hook was refused.
        """
        if REGISTRATIONS.changes != self.hooks.seen:
            self.refresh()
        if point not in self._hooked_points:
            return self.fire_observers.report_without_hooks(point, payload)
        verdict, firing = await fire(self.hooks.callable().chain(point), point, payload, self, no_retry)
        return verdict if firing is None or not firing.has_results else await self._act(firing, verdict, fatal=fatal)

    async def judge(self, point: Point[Any], payload: Any) -> Any:
        """Call only the rewriters and guards of a point, and return the payload after them.

        The caller calls :meth:`observe` later. After an end or a closed failure, the observers are called at once.

        Raises:
            RunEndedError, HookError, CallRefusedError, RunStoppedError: as for :meth:`fire`.
        """
        firing = self.start_firing(point, payload)
        await firing.rewrite()
        await firing.guard()
        if firing.error is not None or not firing.is_open:
            await self.conclude(firing)
        else:
            verdict = firing.verdict()
            firing.publish(verdict)
            if firing.has_results:
                await self._act(firing, verdict)
        return firing.payload

    async def observe(self, point: Point[Any], payload: Any, *, published: bool = False) -> None:
        """Call only the observers of a point. With ``published``, no event is emitted, because there is one already."""
        firing = self.start_firing(point, payload)
        firing.published = published
        await self.conclude(firing)

    async def conclude(self, firing: Firing, *, fatal: bool = True) -> Verdict:
        """Finish a fire whose phases were run one by one: see :meth:`fire`."""
        verdict = await firing.conclude()
        return await self._act(firing, verdict, fatal=fatal) if firing.has_results else verdict

    async def _act(self, firing: Firing, verdict: Verdict, *, fatal: bool = True) -> Verdict:
        """Act on the results: report failures, set signals, end the run."""
        error, point = firing.error, firing.point
        if error is None:
            if verdict.signals:
                self.signal(*verdict.signals)
            for soft in verdict.failures:
                try:
                    await self.report(soft, quiet=point is ON_ERROR)
                except (HookError, CallRefusedError) as failed:
                    failed.verdict = verdict  # the point itself has a verdict
                    raise
            if verdict.action is HookAction.END:
                raise RunEndedError(verdict)
            return verdict
        # A closed failure: the first of several failures is raised, but all of them are reported.
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
        """Fire a point for ``ctx.fire``. The caller decides what to do about an ``end``.

        Raises:
            HooklineError: only the loop may fire this point, because its hooks rely on that.
        """
        if is_fired_by_loop(point):
            raise HooklineError(f"{point} is fired only by the loop: declare your own point")
        # A thread that a tool created itself has no run. A run that a hook starts there must not lose its guards.
        token = CURRENT.set(self) if CURRENT.get() is None else None
        try:
            return await self.fire(point, payload, fatal=point.closed.startswith("the run fails"))
        except RunEndedError as ended:
            return ended.verdict
        except RunStoppedError as stopped:
            raise CallRefusedError("the run is stopping", status="stopped") from stopped
        finally:
            if token is not None:
                CURRENT.reset(token)

    async def report(
        self, error: ErrorInfo, *, quiet: bool = False, failure: ErrorReport | None = None, no_retry: str = ""
    ) -> Verdict | None:
        """Add an error and fire ``on_error``, unless the failure happened there (``quiet``).

        Raises:
            HookError: a hook at ``on_error`` failed closed.
        """
        self.add_error(error)
        if quiet:
            return None
        payload = failure or ErrorReport((error,), error.where, error.fatal, ids=self.ids)
        return await self.fire(ON_ERROR, payload, no_retry=no_retry)

    def add_error(self, info: ErrorInfo) -> None:
        """Add an error to the state and the events."""
        self.run_state.add_error(info)
        self.emit(Failed, error=info)

    # Context managers of hooks (DESIGN 4.9).

    def wrap(self, payload: Any, work: Awaitable[T]) -> Awaitable[T]:
        """Await ``work`` inside the context managers of the hooks."""
        wrappers = self.hooks.stack.wrappers
        return run_wrapped(wrappers, self.ctx, payload, work) if wrappers else work

    async def instrumented(self, start: RunStart, work: Callable[[], Awaitable[T]]) -> T:
        """Run ``work`` with the hooks that instrument the environment (DESIGN 6.11)."""
        if not self.hooks.stack.instruments:
            return await self.wrap(start, work())
        with ExitStack() as stack:
            for hook in self.hooks.stack.instruments:
                try:
                    stack.enter_context(hook.instrument(self, start))
                except Exception:  # noqa: BLE001 - an instrument must not affect the run
                    log.exception("instrument() of hook %r failed", hook)
            return await self.boundary.watch(self, self.wrap(start, work()))

    def set_boundary(self, boundary: Boundary) -> None:
        """Set the boundary of the run and of the runs that start inside it from now on."""
        self.boundary: Boundary = boundary  # pyright: ignore[reportIncompatibleVariableOverride]
        self.environment.boundary = boundary
        self.may_be_halted = bool(self.services.halts) or boundary.is_replay
        """Whether a stop switch, or the tape of a replay, may halt the run."""
        self._limited = self._limited or self.may_be_halted

    def add_fire_observer(self, observer: FireObserver) -> None:
        """Report the fires of this run to an observer. An instrument may do this."""
        self.fire_observers = self.fire_observers.joined_by(observer)
        self._find_listeners()

    # Stopping.

    def checkpoint(self, *, inside_step: bool = True) -> None:
        """Apply a stop signal, a limit or a cancellation (DESIGN 4.7).

        With ``inside_step=False`` the model may still be called although the run is complete; hooks do that.

        Raises:
            CancelledError: the run was cancelled.
            RunStoppedError: a signal is set, or a limit is reached.
        """
        signals = self.run_state.signals
        if not signals and not self._limited and not self.cancellation.triggered:
            return  # the usual case
        self.cancellation.check()
        if not signals or not (inside_step or any(signal.kind not in DONE for signal in signals)):
            limit = self.limit_reached(steps=False)
            if limit is None:
                return
            self.signal(limit)
        raise RunStoppedError

    def limit_reached(self, *, steps: bool = True) -> StopSignal | None:
        """Return a signal if the run is halted, or if a limit is reached."""
        halted = self.boundary.find_halt(self) if self.may_be_halted else None
        return halted or self.budget.exceeded(steps=steps)

    def signal(self, *signals: StopSignal) -> None:
        """Set stop signals."""
        if signals:
            self.run_state.set_signals(self.run_state.signals + signals)
            for signal in signals:
                self.boundary.signalled(self, signal)
                if self.has_consumers:
                    self.emit(Signalled, signal=signal)

    def _set_limits(self) -> None:
        """Apply the limits that hooks declare. A new time limit takes effect at once."""
        before = self.budget.limits.seconds
        self.budget.join(self.hooks.limits())
        self._limited = self.budget.limited or self.may_be_halted
        if self.budget.limits.seconds != before:
            self.start_time_limit()

    def start_time_limit(self) -> None:
        """Cancel the pending work when the time limit is reached."""
        self.cancellation.set_time_limit(self.budget.seconds_left, self.environment.clock, self._time_limit_reached)

    def _time_limit_reached(self) -> bool:
        limit = self.budget.out_of_time()
        if limit is not None:
            self.signal(limit)
        return limit is not None

    async def resolve_cause(self, cause: BaseException) -> BaseException:
        """Return the actual cause: a cancellation is handled and replaced by its own cause.

        Raises:
            GeneratorExit: the coroutine of the run is being closed, so it must not await anything.
        """
        if isinstance(cause, GeneratorExit) and is_being_closed(self):
            raise cause
        if isinstance(cause, asyncio.CancelledError):
            return await self.resolve_cancellation(cause) or cause
        return cause

    async def resolve_cancellation(self, cancelled: asyncio.CancelledError | None = None) -> BaseException | None:
        """Handle a cancellation that has arrived or is pending. Return its cause, or ``None`` if there was none."""
        cause = await self.cancellation.resolve(cancelled)
        if self.cancellation.by_caller:
            self.services.interrupt.cancel("the caller was cancelled")
        if cancelled is not None and not self.suspended:
            await self.boundary.wake_up(CANCELLATION)
        return cause

    async def note_cause(self, cause: BaseException) -> None:
        """Note a cause for the end of the run. The strongest one determines the status."""
        cause = await self.resolve_cause(cause)
        if not isinstance(cause, RunStoppedError):  # its signal is already set
            self.cause = stronger_cause(self.cause, cause)

    # Messages from run.steer.

    def steer(self, message: Message) -> bool:
        """Add a message before the next model call. Return false if there will be none here."""
        with self._lock:
            return not self.cancellation.finishing and self.boundary.steer(self, message)

    def repeat_steering(self, message: Message) -> None:
        """Add a message that the run received before another process resumed it."""
        with self._lock:
            if not self.cancellation.finishing:
                self.steered.append(message)

    def append_steered(self) -> None:
        """Append the waiting messages to the transcript."""
        while self.steered:
            message = self.steered.pop(0)
            self.run_state.append(message)
            self.emit(Steered, text=message.content, attachments=message.attachments)

    def finish(self) -> None:
        """Accept no more messages, and disable the time limit for the end of the run."""
        with self._lock:
            self.cancellation.finish()

    # The end.

    def suspend(self) -> None:
        """Call no hook, emit no event and record nothing any more: the run is continued elsewhere, or later."""
        self.suspended = True
        self.fire_observers, self._watchers = NO_FIRE_OBSERVERS, {}
        self.hooks.silence()
        self._find_listeners()
        self.events.close()

    def close(self) -> None:
        """Release the context when the run has ended: it can fire nothing, and no reference cycle remains."""
        services = self.services
        services.run = services.llm = None
        self.ctx = None
        self.fire_observers = NO_FIRE_OBSERVERS
        self._watchers = {}
        interrupt = services.interrupt
        interrupt.drop(self.cancellation.request)
        if self.cancellation.interrupted_work:  # its threads may still be running
            interrupt.cancel("the run has ended")
        self.events.close()
