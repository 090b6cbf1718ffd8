"""The agent loop. One run, from top to bottom, as DESIGN 3 to 6 describe it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from ..base.tasks import is_cancelled
from ..kernel.dispatch import PLAIN
from ..kernel.errors import CallRefused, HookError
from ..kernel.payloads import (
    Failure,
    ModelReply,
    ModelRequest,
    PromptBuild,
    PromptParts,
    RunStart,
    SessionStart,
    StepStart,
    Stopping,
)
from ..kernel.points import (
    AFTER_STEP,
    BEFORE_PROMPT_BUILD,
    BEFORE_STEP,
    ON_ERROR,
    ON_RUN_END,
    ON_RUN_START,
    ON_STOP,
    POINTS,
    SESSION_START,
    Point,
)
from ..kernel.registry import HookRegistry, HookStack, Interceptor
from ..kernel.results import HookAction, Verdict
from ..kernel.scope import ACTIVE, CURRENT, entered
from ..kernel.state import AgentResult
from ..kernel.tally import How
from ..kernel.values import ErrorInfo, Message, ModelResponse, Status, Step, StopSignal, Usage
from .batch import Batch
from .causes import Ended, Stopped, status_of, stronger
from .context import AgentContext
from .events import Failed, RunFinished, RunStarted, Signalled, Steered, StepFinished, StepStarted
from .model_call import call_model

if TYPE_CHECKING:
    from .agent import Agent

GRACE = 5.0
"""Seconds that hooks get, in all, after a cancellation."""

MAX_KEEP_GOING = 3
_EVERYWHERE: frozenset[str] = frozenset(POINTS)
_DONE = frozenset(("completed", "finish_reason"))
CLEARABLE = frozenset(("completed", "finish_reason", "stop_requested"))


class Loop:
    """One run of one agent."""

    def __init__(
        self, agent: Agent, ctx: AgentContext, run_hooks: HookStack, task: str, base: Sequence[Message]
    ) -> None:
        self.agent, self.ctx, self.task = agent, ctx, task
        self.budget, self.tools = ctx.budget, agent.tools
        self.cause: BaseException | None = None
        self.cancelling = self.outside = False
        self.hop = 0
        self.limited = self.alert = ctx.budget.limited
        self._endless = ctx.budget.max_steps is None
        self._run_hooks = run_hooks
        self._around = entered()
        self._compile()
        self._base = base
        self._recording = self._finishing = False
        self._lock = threading.Lock()
        self._steered: list[Message] = []
        self._kept_going = self._steps_begun = self._calls = self._good_calls = 0
        self._tool_names: dict[str, None] = {}
        self._task: asyncio.Task[Any] | None = None
        self.aio: Any = None
        self._abort: BaseException | None = None

    # The lifecycle.

    async def run(self) -> AgentResult:
        """Run to the end, whatever happens on the way."""
        self._task, self.aio = asyncio.current_task(), asyncio.get_running_loop()
        active = ACTIVE.set(self._around)
        around = CURRENT.set(self.ctx)
        try:
            self.raise_if_cancelled()
            await self._begin()
            while self.cause is None and (self._road_is_clear() or await self._may_go_on()):
                await self._step()
            self.raise_if_cancelled()
        except BaseException as cause:  # noqa: BLE001 - every cause becomes a status
            await self.blame(cause)
        result = await self._finish()
        CURRENT.reset(around)
        ACTIVE.reset(active)
        if self.cause is not None and not isinstance(self.cause, (Exception, asyncio.CancelledError)):
            raise self.cause
        return result

    async def _begin(self) -> None:
        """Open the session and the run, take in the task, join the system prompt."""
        ctx, session = self.ctx, self.ctx.session
        self.budget.begin()
        if ctx.listening:
            ctx.emit(RunStarted, task=self.task, ids=ctx.ids)
        if session.first_run() and SESSION_START in self.heard:
            opened = SessionStart(session.id, session.key, session.platform, session.personality_id, ctx.ids)
            await self.fire(SESSION_START, opened)
        if ON_RUN_START in self.heard:
            self.task = (await self.fire(ON_RUN_START, RunStart(self.task, ctx.ids))).payload.task
        self._recording = True
        ctx.append(Message("user", self.task))
        if BEFORE_PROMPT_BUILD in self.heard:
            await self._build_prompt()

    async def _build_prompt(self) -> None:
        ctx = self.ctx
        built = PromptBuild(ctx._messages.view(), ctx.session.personality_id, ctx.ids)
        parts = (await self.fire(BEFORE_PROMPT_BUILD, built)).value or PromptParts()
        prompt = ctx._system_prompt if parts.override_system is None else parts.override_system
        ctx.set_system_prompt("\n\n".join(p for p in (parts.prepend_system, prompt, parts.append_system) if p))

    def _road_is_clear(self) -> bool:
        return not self.ctx._signals and not self.alert and (self._endless or self.budget.exceeded() is None)

    async def _may_go_on(self) -> bool:
        """The checkpoint between steps: recorded signals are put to ``on_stop`` (DESIGN 4.7)."""
        ctx = self.ctx
        while True:
            self.raise_if_cancelled()
            if self._steered and all(signal.kind == "completed" for signal in ctx._signals):
                ctx.set_signals(())
            if not ctx._signals:
                limit = self.budget.exceeded()
                if limit is None:
                    return True
                self.signal(limit)
            if ON_STOP not in self.heard:
                return False
            signals = tuple(sorted(ctx._signals, key=lambda signal: signal.rank))
            verdict = await self.fire(ON_STOP, Stopping(signals, ctx.ids))
            if verdict.action is not HookAction.KEEP_GOING or self._kept_going >= MAX_KEEP_GOING:
                return False
            self._kept_going += 1
            ctx.set_signals(tuple(signal for signal in ctx._signals if signal.kind not in CLEARABLE))
            if ctx._signals:
                return False
            if verdict.value:
                ctx.append(Message("user", verdict.value))

    async def _step(self) -> None:
        """One step: a model reply, and the tool calls in it. It always gets its ``after_step``."""
        ctx, began = self.ctx, self.ctx.clock.monotonic()
        ctx.spent = None
        self.hop = index = self._steps_begun
        self._steps_begun += 1
        reply, batch = None, None
        if HookRegistry.changes != self._seen:
            self._compile()
        try:
            if ctx.listening:
                ctx.emit(StepStarted, index=index)
            if BEFORE_STEP in self.heard:
                await self.fire(BEFORE_STEP, StepStart(index, ctx.ids))
            if self.alert or ctx._signals:
                self.checkpoint()
            self.budget.count_step()
            if self._steered:
                self._take_in_steering()
            reply = await call_model(self, self._request(index), self.agent.model)
            self._record(reply)
            if reply.tool_calls:
                batch = Batch(self, reply.tool_calls, index)
                await batch.run()
        except Stopped:
            pass
        except BaseException as cause:  # noqa: BLE001 - every cause becomes a status
            await self.blame(cause)
        step = Step(
            index,
            reply.content if reply else "",
            tuple([call.name for call in reply.tool_calls]) if reply else (),
            batch.outcomes if batch else (),
            ctx.spent or Usage(),
            reply.finish_reason if reply else "",
            ctx.clock.monotonic() - began,
        )
        if reply is not None:
            ctx.finish_step(step)
        try:
            if AFTER_STEP in self.heard:
                await self.fire(AFTER_STEP, step)
        except BaseException as cause:  # noqa: BLE001
            await self.blame(cause)
        if ctx.listening:
            ctx.emit(StepFinished, index=index, tool_names=step.tool_names, usage=step.usage)

    def _request(self, hop: int) -> ModelRequest:
        """The transcript as the model will see it, before the hooks change it."""
        ctx, agent = self.ctx, self.agent
        messages = ctx._messages.view()
        if ctx._system_prompt:
            messages = messages.after(Message("system", ctx._system_prompt))
        return ModelRequest(
            messages, self.tools.specs, agent.model.name, hop, 1, "step", ctx._response_format, None,
            agent.params, ctx.ids,
        )  # fmt: skip

    def _record(self, reply: ModelReply | ModelResponse) -> None:
        """Put the reply into the transcript; without calls the run is complete."""
        message = Message("assistant", reply.content, reply.tool_calls)
        self.ctx.append(message)
        if reply.tool_calls:
            self.ctx._open = message
            for call in reply.tool_calls:
                self.ctx.call_ids.add(call.id)
        elif reply.content:
            self.signal(StopSignal("completed"))
        else:
            self.signal(StopSignal("unknown", "The model returned neither text nor tool calls."))

    async def _finish(self) -> AgentResult:
        """Close the transcript and fire ``on_run_end``, exactly once."""
        ctx, cause = self.ctx, self.cause
        with self._lock:
            self._finishing = True
        if self._steered and self._recording:
            self._take_in_steering()  # it came too late for this run, and is there for the next
        signals = ctx._signals
        strongest = (
            min(signals, key=lambda signal: signal.rank) if len(signals) > 1 else signals[0] if signals else None
        )
        status: Status = status_of(cause)
        if cause is None and strongest is not None and strongest.kind in _DONE:
            status = "completed"
        hook = None
        if status == "ended":
            hook = getattr(cause, "reason", "") or getattr(cause, "hook", "")
            if self._recording:
                ctx.append(Message("assistant", getattr(cause, "reply", ""), hook=getattr(cause, "hook", "")))
        added = self._added()
        saved = ctx.session.save(self._base, ctx._messages.view(), added, ctx._metadata)
        result = AgentResult(
            getattr(cause, "reply", "") if status == "ended" else self._last_words(added),
            status, strongest if status in ("completed", "stopped") else None, hook, self.task, ctx._steps.view(),
            self.budget.usage, self.budget.cost, self._calls, tuple(self._tool_names), self._good_calls, added,
            ctx._errors, self.budget.elapsed, ctx.ids,
        )  # fmt: skip
        final = ctx._messages.view(), ctx._metadata
        try:
            if ON_RUN_END in self.heard:
                result = (await self.fire(ON_RUN_END, result)).payload
        except BaseException as failure:  # noqa: BLE001
            await self.blame(failure)
            if status_of(self.cause) == "failed":
                result = msgspec.structs.replace(result, status="failed", errors=ctx._errors)
        if ctx._messages.view() is not final[0] or ctx._metadata is not final[1]:
            now = self._added()
            ctx.session.save(saved, ctx._messages.view(), now, ctx._metadata)
            result = msgspec.structs.replace(result, messages=now) if result.messages is added else result
        ctx.emit(RunFinished, result=result)
        return result

    def _last_words(self, added: Sequence[Message]) -> str:
        if added and added[-1].role == "assistant":
            return added[-1].content
        return next((message.content for message in reversed(added) if message.role == "assistant"), "")

    def _added(self) -> Sequence[Message]:
        """The messages of this run: those that the session did not hold."""
        messages = self.ctx._messages.view()
        if not self._base:
            return messages
        known = {id(message) for message in self._base}
        return tuple([message for message in messages if id(message) not in known])

    # What the parts of the loop share.

    async def fire(self, point: Point, payload: Any, how: How = PLAIN, *, fatal: bool = True) -> Verdict:
        """Fire a point; failures are reported, signals recorded.

        Raises:
            Ended: a hook said ``end``.
            HookError: a hook failed closed.
        """
        if HookRegistry.changes != self._seen:
            self._compile()
        interceptor = self._interceptor
        if ACTIVE.get() is not self._around and isinstance(interceptor, HookStack):
            interceptor = interceptor.without(ACTIVE.get())  # those that are running (DESIGN 4.8)
        try:
            verdict = await interceptor.intercept(point, payload, self.ctx, how)
        except CallRefused:
            raise
        except Exception as failure:  # noqa: BLE001 - an interceptor of the user's may raise anything
            error = failure if isinstance(failure, HookError) else HookError(type(interceptor).__name__, point, failure)
            info = ErrorInfo("hook", type(error.cause).__name__, str(error), error.hook, fatal=fatal)
            with suppress(HookError, CallRefused):  # of two failures the first one counts; both are recorded
                await self.report(info, quiet=point is ON_ERROR)
            raise error from error.cause
        if HookRegistry.changes != self._seen:
            self._compile()
        if verdict.signals:
            self.signal(*verdict.signals)
        if verdict.failures:
            for soft in verdict.failures:
                await self.report(soft, quiet=point is ON_ERROR)
        if verdict.action is HookAction.END_TURN:
            raise Ended(verdict)
        return verdict

    def listen(self) -> None:
        """Look for changed registrations: after code that is not ours has run."""
        if HookRegistry.changes != self._seen:
            self._compile()

    def _compile(self) -> None:
        self._seen = HookRegistry.changes
        own = self.agent.interceptor
        if own is None:
            agent, talk = self.agent.hooks.stack, self.ctx.hooks.stack
            extra = [layer for layer in (*talk.layers, *self._run_hooks.layers) if layer]
            own = HookStack(*agent.layers, *extra) if extra else agent
        self.heard = _EVERYWHERE
        """The points at which anybody could notice a fire; the others need not be fired."""
        if isinstance(own, HookStack):
            own = own.only(self.ctx.allowed_plugins).without(self._around)
            self.heard = _EVERYWHERE if self.ctx.listening else own.points
        self._interceptor: Interceptor = own

    def checkpoint(self, *, inside_step: bool = True) -> None:
        """Where a recorded stop, a limit or a cancellation takes effect.

        Hooks may still ask the model about a run that is complete (not ``inside_step``).

        Raises:
            Stopped: a signal is recorded, or a limit is reached.
        """
        self.raise_if_cancelled()
        if not self.ctx._signals or not (inside_step or any(s.kind not in _DONE for s in self.ctx._signals)):
            if not self.limited or (limit := self.budget.exceeded(steps=False)) is None:
                return
            self.signal(limit)
        raise Stopped

    def signal(self, *signals: StopSignal) -> None:
        """Record stop signals."""
        self.ctx.set_signals(self.ctx._signals + signals)
        for signal in signals:
            self.ctx.emit(Signalled, signal=signal)

    def close_calls(self, results: Sequence[Message]) -> None:
        """All results enter the transcript at once, then what was held back (DESIGN 4.5 e)."""
        held, self.ctx._held, self.ctx._open = self.ctx._held, (), None
        for message in (*results, *held):
            self.ctx.append(message)

    def count_call(self, tool: str, ok: bool) -> None:
        """Count a call for the result."""
        self._calls += 1
        self._good_calls += ok
        self._tool_names[tool] = None

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
        if isinstance(cause, asyncio.CancelledError):
            cause = await self.absorb(cause)
        self.cause = stronger(self.cause, cause)

    # Cancellation and steering.

    def cancel(self) -> None:
        """Stop as soon as possible. Called in the run's own loop."""
        self.cancelling = self.alert = True
        if self._task is not None and self.ctx.deadline is None and not self._finishing:
            self._task.cancel()

    def abort(self, cause: BaseException) -> None:
        """Break off what is running now, because of ``cause``."""
        if self._abort is None and self._task is not None:
            self._abort, self.alert = cause, True
            self._task.cancel()

    def raise_if_cancelled(self) -> None:
        """A checkpoint for cancellations that arrived while nothing was awaited."""
        if (self.cancelling or self._abort is not None) and self.ctx.deadline is None:
            raise asyncio.CancelledError

    async def absorb(self, cancelled: asyncio.CancelledError) -> BaseException:
        """Take in a cancellation: hooks have ``GRACE`` seconds from here. Gives what caused it."""
        task = self._task
        if task is not None and asyncio.current_task() is task and is_cancelled():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)  # a cancel() that was asked for but not yet delivered
            while task.cancelling():
                task.uncancel()
        cause, self._abort = self._abort, None
        if cause is not None:
            return cause
        self.outside = not self.cancelling
        if self.ctx.deadline is None:
            self.ctx.deadline = time.monotonic() + GRACE
        return cancelled

    def steer(self, message: Message) -> bool:
        """Put a message into the conversation before the next model call; false if none will come."""
        with self._lock:
            if not self._finishing:
                self._steered.append(message)
            return not self._finishing

    def _take_in_steering(self) -> None:
        while self._steered:
            message = self._steered.pop(0)
            self.ctx.append(message)
            self.ctx.emit(Steered, text=message.content)
