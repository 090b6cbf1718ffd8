"""The course of a run: what its parts share. They fire points, meet checkpoints, report, cancel and steer here."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from .._kernel.dispatch import PLAIN
from .._kernel.errors import CallRefused, HookError
from .._kernel.payloads import ApprovalRequest, Failure
from .._kernel.points import APPROVAL_REQUESTED, ON_ERROR, POINTS, Point
from .._kernel.registry import EMPTY_STACK, HookRegistry, HookStack, Interceptor
from .._kernel.results import HookAction, Verdict
from .._kernel.scope import ACTIVE, entered
from .._kernel.tally import How
from .._kernel.values import ErrorInfo, Message, StopSignal
from ..models.protocol import Model
from ..tools.registry import ToolRegistry
from .around import around
from .budget import declared_limits
from .causes import Ended, Stopped, stronger
from .context import GRACE, AgentContext
from .events import Failed, Signalled, Steered
from .inheritance import Both, inheritable, joined, shared

T = TypeVar("T")

DONE = frozenset(("completed", "finish_reason"))
_EVERYWHERE: frozenset[str] = frozenset(POINTS)
Whole = Callable[[], Interceptor]
"""Gives the hooks of a run that hold in those inside it, as they are now."""


class Setup(Protocol):
    """What a run needs to know of its agent."""

    model: Model
    tools: ToolRegistry
    hooks: HookRegistry
    params: Mapping[str, Any]
    interceptor: Interceptor | None
    max_parallel_tools: int

    def tools_for(self, allowed_plugins: tuple[str, ...] | None) -> ToolRegistry:
        """The tools of a run with this filter."""


class Course:
    """A run on its way; ``cause`` is why it leaves its normal course, if it does."""

    def __init__(self, agent: Setup, ctx: AgentContext, run_hooks: HookStack, above: Whole | None = None) -> None:
        self.agent, self.ctx = agent, ctx
        self.budget = ctx.budget
        self.cause: BaseException | None = None
        self.cancelling = self.over = False
        self.outside = self._cuts = self._own = 0
        self.hop = self.generations = 0
        self.alert = False
        self.calls = self.good_calls = 0
        self.tool_names: dict[str, None] = {}
        self.aio: Any = None
        self._alarm: Any = None
        self._run_hooks, self._above = run_hooks, above
        self._around = entered()
        self._nested: tuple[Any, Any, Interceptor] = (None, None, run_hooks)
        self._compile()
        self._offered = agent.tools
        self.tools = ctx.tool_registry = agent.tools_for(ctx.allowed_plugins)
        self._finishing = False
        self._lock = threading.Lock()
        self._steered: list[Message] = []
        self._task: asyncio.Task[Any] | None = None
        self._abort: BaseException | None = None

    async def fire(self, point: Point, payload: Any, how: How = PLAIN, *, fatal: bool = True) -> Verdict:
        """Fire a point; failures are reported, signals recorded.

        Raises:
            Ended: a hook said ``end``.
            HookError: a hook failed closed.
        """
        if HookRegistry.changes != self._seen:
            self.renew()
        interceptor = self._interceptor
        if (active := ACTIVE.get()) is not self._around and isinstance(interceptor, (HookStack, Both)):
            if self._nested[0] is not interceptor or self._nested[1] != active:
                self._nested = interceptor, active, interceptor.without(active)
            interceptor = self._nested[2]  # without those that are running (DESIGN 4.8)
        try:
            verdict = await interceptor.intercept(point, payload, self.ctx, how)
        except CallRefused as refused:
            await self._aftermath(refused.verdict, point)
            if refused.status == "stopped":
                raise Stopped from refused
            raise
        except Exception as failure:  # noqa: BLE001 - an interceptor of the user's may raise anything
            error = failure if isinstance(failure, HookError) else HookError(type(interceptor).__name__, point, failure)
            info = ErrorInfo("hook", type(error.cause).__name__, str(error), error.hook, fatal=fatal)
            with suppress(HookError, CallRefused, Stopped):  # of two failures the first one counts; both are recorded
                await self.report(info, quiet=point is ON_ERROR)
            await self._aftermath(error.verdict, point)
            raise error from error.cause
        if HookRegistry.changes != self._seen:
            self.renew()
        if verdict.signals:
            self.signal(*verdict.signals)
        for soft in verdict.failures:
            try:
                await self.report(soft, quiet=point is ON_ERROR)
            except (HookError, CallRefused) as error:
                error.verdict = verdict  # the point itself had concluded
                raise
        if verdict.action is HookAction.END_TURN:
            raise Ended(verdict)
        return verdict

    async def fire_for(self, point: Point, payload: Any) -> Verdict:
        """``ctx.fire``: what a hook or a tool fires. An ``end`` there is the asker's to act upon."""
        try:
            return await self.fire(point, payload, fatal=point.closed.startswith("the run fails"))
        except Ended as ended:
            return ended.verdict
        except Stopped as stopped:
            raise CallRefused("the run is stopping", status="stopped") from stopped

    async def ask(self, asked: ApprovalRequest) -> Verdict:
        """Put a call to the approvers.

        Raises:
            HookError: one of them failed.
        """
        ask = partial(self.fire, APPROVAL_REQUESTED, asked, fatal=False)
        outside = self.ctx.outside
        return await (ask() if outside is None else outside.approve(asked, ask, self.report))

    async def _aftermath(self, verdict: Verdict | None, point: Point) -> None:
        """What else was said and went wrong at a point that failed."""
        if verdict is None:
            return
        self.signal(*verdict.signals)
        for soft in verdict.failures:
            with suppress(HookError, CallRefused, Stopped):
                await self.report(soft, quiet=point is ON_ERROR)

    def listen(self) -> None:
        """Look for changed registrations: after code that is not ours has run."""
        if HookRegistry.changes != self._seen:
            self.renew()

    def renew(self) -> None:
        """Take over what has changed since the run began: hooks, tools, and who hears of events."""
        self._compile()
        if self.agent.tools is not self._offered:
            self._offered = self.agent.tools
            self.tools = self.ctx.tool_registry = self.agent.tools_for(self.ctx.allowed_plugins)
        events = self.ctx._events
        if events is not None and events.hooked and isinstance(self._allowed, HookStack):
            events.keep_hooks(self._allowed.listeners)

    def _compile(self) -> None:
        self._seen = HookRegistry.changes
        self._set_limits()
        own = self._allowed = self.whole()
        self.heard = _EVERYWHERE
        """The points at which anybody could notice a fire; the others need not be fired."""
        if isinstance(own, (HookStack, Both)):
            if own is not EMPTY_STACK:
                own = self._allowed = own.only(self.ctx.allowed_plugins)
                own = own.without(self._around)
            if not self.ctx.recording:
                events = self.ctx._events
                self.heard = own.points | events.points if events is not None and events.points else own.points
            self.wrappers = own.wrappers
        else:
            self.wrappers = ()
        self._interceptor: Interceptor = own

    def _set_limits(self) -> None:
        """Have the limits that the run's own hooks declare join its ledger. Those of inherited hooks are above it."""
        interceptor = self.agent.interceptor
        stacks = [self.agent.hooks.stack, self._run_hooks]
        if self._above is None:
            stacks.append(self.ctx.hooks.stack)
        if interceptor is not None:
            stacks = [interceptor] if isinstance(interceptor, HookStack) else []
        before = self.budget.limits.seconds
        stacks = [stack for stack in stacks if stack.limiting]
        self.budget.join(declared_limits(stacks, self.ctx.allowed_plugins) if stacks else ())
        self.limited = self.budget.limited
        self.alert = self.alert or self.limited
        if self.budget.limits.seconds != before and self.aio is not None and not self._finishing:
            self.watch_the_clock()

    def whole(self) -> Interceptor:
        """All hooks of this run, whatever filter holds; those of the run that it was started in come first."""
        own: Interceptor | None = self.agent.interceptor
        if own is None:
            agent = self.agent.hooks.stack
            talk = self.ctx.hooks.stack if self._above is None else shared(self.ctx.hooks.stack)
            extra = [layer for layer in (*talk.layers, *self._run_hooks.layers) if layer]
            own = HookStack(*agent.layers, *extra) if extra else agent
        above = EMPTY_STACK if self._above is None else self._above()
        return own if above is EMPTY_STACK else joined(above, own)

    def bequest(self) -> Interceptor:
        """The hooks that hold in the runs inside this one too."""
        return inheritable(self.whole())

    def around(self, payload: Any, work: Awaitable[T]) -> Awaitable[T]:
        """The run, or a model call or tool in it, within what the hooks put around it, if there are ``wrappers``."""
        return around(self.wrappers, self.ctx, payload, work)

    def checkpoint(self, *, inside_step: bool = True) -> None:
        """Where a recorded stop, a limit or a cancellation takes effect.

        Hooks may still ask the model about a run that is complete (not ``inside_step``).

        Raises:
            Stopped: a signal is recorded, or a limit is reached.
        """
        self.raise_if_cancelled()
        if not self.ctx._signals or not (inside_step or any(s.kind not in DONE for s in self.ctx._signals)):
            if not self.limited or (limit := self.budget.exceeded(steps=False)) is None:
                return
            self.signal(limit)
        raise Stopped

    def signal(self, *signals: StopSignal) -> None:
        """Record stop signals."""
        self.ctx.set_signals(self.ctx._signals + signals)
        for signal in signals if self.ctx.listening else ():
            self.ctx.emit(Signalled, signal=signal)

    def close_calls(self, results: Sequence[Message]) -> None:
        """All results enter the transcript at once, then what was held back (DESIGN 4.5 e)."""
        held, self.ctx._held, self.ctx._open = self.ctx._held, (), None
        for message in (*results, *held):
            self.ctx.append(message)

    def count_call(self, tool: str, ok: bool) -> None:
        """Count a call for the result."""
        self.calls += 1
        self.good_calls += ok
        self.tool_names[tool] = None

    async def report(
        self, error: ErrorInfo, *, quiet: bool = False, failure: Failure | None = None, how: How = PLAIN
    ) -> Verdict | None:
        """Record a failure and put it to ``on_error``, unless it came from there (``quiet``).

        Raises:
            HookError: a hook at ``on_error`` failed closed itself.
        """
        self.note_error(error)
        if quiet:
            return None
        payload = failure or Failure((error,), error.where, error.fatal, ids=self.ctx.ids)
        return await self.fire(ON_ERROR, payload, how)

    def note_error(self, info: ErrorInfo) -> None:
        """Put an error into the state and the events."""
        self.ctx.add_error(info)
        self.ctx.emit(Failed, error=info)

    async def blame(self, cause: BaseException) -> None:
        """Take a cause into account; the strongest one gives the run its status."""
        if isinstance(cause, GeneratorExit):
            raise cause  # the coroutine is being closed: nothing can be awaited any more
        if isinstance(cause, asyncio.CancelledError):
            cause = await self.absorb(cause)
        if not isinstance(cause, Stopped):  # the signal that it stands for is recorded
            self.cause = stronger(self.cause, cause)

    # Cancellation and steering.

    def cancel(self) -> None:
        """Stop as soon as possible. Called in the run's own loop."""
        self.cancelling = self.alert = True
        if self._task is None or self.ctx.deadline is not None:
            return
        if not self._finishing:
            self._own += 1
            self._task.cancel()
        else:  # the hooks of on_run_end are not interrupted, but may not take for ever
            self.ctx.hurry()
            self.aio.call_later(GRACE, self._cut)

    def _cut(self) -> None:
        if not self.over and self._task is not None:
            self._cuts += 1
            self._task.cancel()

    def was_cancelled(self) -> bool:
        """Whether somebody cancelled the run's task, and nobody has taken that in."""
        return self._task is not None and self._task.cancelling() > self.ctx._cancels

    def abort(self, cause: BaseException) -> None:
        """Break off what is running now, because of ``cause``."""
        if self._abort is None and self._task is not None:
            self._abort, self.alert = cause, True
            self._own += 1
            self._task.cancel()

    def watch_the_clock(self) -> None:
        """Have a time limit break off whatever is being waited for when it is reached."""
        if self._alarm is not None:
            self._alarm.cancel()
        left = self.budget.left.seconds
        if left is not None:
            later = getattr(self.ctx.clock, "call_later", self.aio.call_later)
            self._alarm = later(left + 0.001, self._out_of_time)

    def _out_of_time(self) -> None:
        limit = self.budget.out_of_time()
        if limit is None:  # the budget's clock is not the loop's own
            self.watch_the_clock()
        elif not self._finishing:
            self.signal(limit)
            self.abort(Stopped())

    def raise_if_cancelled(self) -> None:
        """A checkpoint for cancellations that arrived while nothing was awaited."""
        if (self.cancelling or self._abort is not None) and self.ctx.deadline is None:
            raise asyncio.CancelledError

    async def absorb(self, cancelled: asyncio.CancelledError) -> BaseException:
        """Take in a cancellation: hooks have ``GRACE`` seconds from here. Gives what caused it."""
        task, count = self._task, 0
        if task is not None and asyncio.current_task() is task and self.ctx.is_cancelled():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)  # a cancel() that was asked for but not yet delivered
            while self.ctx.is_cancelled():
                task.uncancel()
                count += 1
        outside, self._own = max(0, count - self._own), 0
        self.outside += outside
        cause, self._abort = self._abort, None
        if cause is not None and not outside:
            return cause
        self.ctx.hurry()
        if outside:
            self.ctx.interrupt.cancel("the caller was cancelled")
        return cancelled if cause is None else stronger(cause, cancelled)

    def steer(self, message: Message) -> bool:
        """Put a message into the conversation before the next model call; false if none will come."""
        with self._lock:
            if not self._finishing:
                self._steered.append(message)
                if self.ctx.outside is not None:
                    self.ctx.outside.steered(self.ctx.run_id, message.content)
            return not self._finishing

    def take_in_steering(self) -> None:
        """Append what was put in since the last time."""
        while self._steered:
            message = self._steered.pop(0)
            self.ctx.append(message)
            self.ctx.emit(Steered, text=message.content)
