"""The agent loop. One run, from top to bottom, as DESIGN 3 to 6 describe it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from .._base.frozen import EMPTY, private_copy
from .._kernel.errors import CallRefused, HooklineError
from .._kernel.payloads import (
    ModelReply,
    ModelRequest,
    PromptBuild,
    PromptParts,
    RunStart,
    SessionStart,
    StepStart,
    Stopping,
)
from .._kernel.points import (
    AFTER_STEP,
    BEFORE_PROMPT_BUILD,
    BEFORE_STEP,
    ON_RUN_END,
    ON_RUN_START,
    ON_STOP,
    SESSION_START,
)
from .._kernel.registry import HookRegistry, HookStack
from .._kernel.results import HookAction
from .._kernel.scope import ACTIVE, CURRENT
from .._kernel.state import AgentResult
from .._kernel.values import ErrorInfo, Message, ModelResponse, Status, Step, StopSignal, Usage
from .batch import Batch
from .causes import Ended, Stopped, status_of, strength
from .context import AgentContext
from .course import DONE, Course, Setup, Whole
from .events import RunFinished, RunStarted, StepFinished, StepStarted, TaskTaken
from .model_call import call_model

MAX_KEEP_GOING = 3
COMPLETED = StopSignal("completed")
CLEARABLE = frozenset(("completed", "finish_reason", "stop_requested"))


class Loop(Course):
    """One run of one agent."""

    def __init__(
        self,
        agent: Setup,
        ctx: AgentContext,
        run_hooks: HookStack,
        task: str,
        base: Sequence[Message],
        above: Whole | None = None,
    ) -> None:
        super().__init__(agent, ctx, run_hooks, above)
        self.task = task
        self._base = base
        self._recording = False
        self._kept: tuple[Sequence[Message], Mapping[str, Any]] = base, EMPTY
        self._kept_going = self._steps_begun = 0

    async def run(self) -> AgentResult:
        """Run to the end, whatever happens on the way."""
        self.aio = aio = asyncio.get_running_loop()
        self._task = asyncio.current_task(aio)
        self.ctx.began_in(self._task)
        active, around = ACTIVE.set(self._around), CURRENT.set(self.ctx)
        try:
            if self.ctx.listening and self.ctx._events is not None:
                self.ctx._events.aio = aio
                self.ctx.emit(RunStarted, ids=self.ctx.ids)
            self.raise_if_cancelled()
            await self._begin()
            while self.cause is None:
                if not self._road_is_clear() and not await self._may_go_on():
                    break
                await self._step()
            self.raise_if_cancelled()
        except BaseException as cause:  # noqa: BLE001 - every cause becomes a status
            await self.blame(cause)
        result = await self._finish()
        self.over = True
        for _ in range(self._cuts):
            self._task.uncancel()  # type: ignore[union-attr]
        CURRENT.reset(around)
        ACTIVE.reset(active)
        if self.cause is not None and not isinstance(self.cause, (Exception, asyncio.CancelledError)):
            raise self.cause
        return result

    async def _begin(self) -> None:
        """Open the session and the run, take in the task, join the system prompt."""
        ctx, session = self.ctx, self.ctx.session
        self.budget.begin()
        if self.limited:
            self.watch_the_clock()
        if session.first_run() and SESSION_START in self.heard:
            opened = SessionStart(session.id, session.key, session.platform, session.personality_id, ctx.ids)
            with suppress(Stopped):  # it takes effect before the first step
                await self.fire(SESSION_START, opened)
        if ON_RUN_START in self.heard:
            with suppress(Stopped):
                self.task = (await self.fire(ON_RUN_START, RunStart(self.task, ctx.ids))).payload.task
        self._recording = True
        ctx.append(Message("user", self.task))
        if ctx.listening:
            ctx.emit(TaskTaken, task=self.task)
        if BEFORE_PROMPT_BUILD in self.heard:
            with suppress(Stopped):
                await self._build_prompt()

    async def _build_prompt(self) -> None:
        ctx = self.ctx
        built = PromptBuild(ctx._messages.view(), ctx.session.personality_id, ctx.ids)
        parts = (await self.fire(BEFORE_PROMPT_BUILD, built)).value or PromptParts()
        prompt = ctx._system_prompt if parts.override_system is None else parts.override_system
        ctx.set_system_prompt("\n\n".join(p for p in (parts.prepend_system, prompt, parts.append_system) if p))

    def _road_is_clear(self) -> bool:
        """Whether there is nothing to look at between two steps, as nearly always."""
        return not self.ctx._signals and not self.alert and self.budget.exceeded() is None

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
            signals = tuple(sorted(ctx._signals, key=strength))
            try:
                verdict = await self.fire(ON_STOP, Stopping(signals, ctx.ids))
            except Stopped:
                return False
            if self._steered and all(signal.kind == "completed" for signal in ctx._signals):
                continue  # somebody spoke meanwhile
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
            self.renew()
        try:
            if ctx.listening and ctx.wants(StepStarted):
                ctx.emit(StepStarted, index=index)
            if BEFORE_STEP in self.heard:
                await self.fire(BEFORE_STEP, StepStart(index, ctx.ids))
            if self.alert or ctx._signals:
                self.checkpoint()
            self.budget.count_step()
            if self._steered:
                self.take_in_steering()
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
        except Stopped:
            pass
        except BaseException as cause:  # noqa: BLE001
            await self.blame(cause)
        if ctx.listening and ctx.wants(StepFinished):
            ctx.emit(StepFinished, index=index, tool_names=step.tool_names, usage=step.usage)

    def _request(self, hop: int) -> ModelRequest:
        """The transcript as the model will see it, before the hooks change it."""
        ctx, agent = self.ctx, self.agent
        try:
            tools = self.tools.offered(ctx)
        except HooklineError as error:
            self.note_error(ErrorInfo("tool", type(error).__name__, str(error), fatal=True))
            raise
        messages = ctx._messages.view()
        if ctx._system_prompt:
            messages = messages.after(Message("system", ctx._system_prompt))
        return ModelRequest(
            messages, tools, agent.model.name, hop, 1, "step", private_copy(ctx._response_format), None,
            private_copy(agent.params), ctx.ids,
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
            self.signal(COMPLETED)
        else:
            self.signal(StopSignal("unknown", "The model returned neither text nor tool calls."))

    async def _finish(self) -> AgentResult:
        """Close the transcript and fire ``on_run_end``, exactly once."""
        ctx, cause = self.ctx, self.cause
        with self._lock:
            self._finishing = True
        if self._alarm is not None:
            self._alarm.cancel()
        if ctx._debts:
            await ctx.settle_debts()
        if self._steered and self._recording:
            self.take_in_steering()  # it came too late for this run, and is there for the next
        signals = ctx._signals
        strongest = min(signals, key=strength, default=None)
        status: Status = status_of(cause)
        if cause is None and strongest is not None and strongest.kind in DONE:
            status = "completed"
        ended = cause if status == "ended" and isinstance(cause, (Ended, CallRefused)) else None
        if ended is not None and self._recording:
            ctx.append(Message("assistant", ended.reply, hook=ended.hook))
        added = self._added()
        ctx.session.save(self._base, ctx._messages.view(), added, ctx._metadata)
        result = AgentResult(
            _last_words(added) if ended is None else ended.reply, status, self._stop_of(status, strongest),
            None if ended is None else ended.reason or ended.hook, self.task, ctx._steps.view(),
            self.budget.usage, self.budget.cost, self.calls, tuple(self.tool_names), self.good_calls, added,
            ctx._errors, self.budget.elapsed, ctx.ids,
        )  # fmt: skip
        self._kept = final = ctx._messages.view(), ctx._metadata
        known_errors = len(ctx._errors)
        ctx._keep = self._keep
        try:
            if ON_RUN_END in self.heard:
                result = (await self.fire(ON_RUN_END, result)).payload
        except BaseException as failure:  # noqa: BLE001
            told = getattr(failure, "verdict", None) or getattr(failure.__cause__, "verdict", None)
            if told is not None and isinstance(told.payload, AgentResult):
                result = told.payload  # what the other hooks made of it holds
            await self.blame(failure)
            if status_of(self.cause) == "failed":
                result = msgspec.structs.replace(result, status="failed")
        ctx._keep = None
        if late := ctx._errors[known_errors:]:
            result = msgspec.structs.replace(result, errors=(*result.errors, *late))
        if self._kept is not final and result.messages is added:
            result = msgspec.structs.replace(result, messages=self._added())
        if ctx.listening:
            ctx.emit(RunFinished, result=result)
        return result

    def _keep(self) -> None:
        """What a hook of ``on_run_end`` makes of the state goes to the session at once: observers find it there."""
        ctx, (before, data) = self.ctx, self._kept
        messages = ctx._messages.view()
        if messages is not before or ctx._metadata is not data:
            known = {id(message) for message in before}
            late = [message for message in messages if id(message) not in known]
            ctx.session.save(before, messages, late, ctx._metadata)
            self._kept = messages, ctx._metadata

    def _stop_of(self, status: Status, strongest: StopSignal | None) -> StopSignal | None:
        if status == "cancelled":
            return StopSignal("user_requested", self.ctx.interrupt.reason)
        return strongest if status in ("completed", "stopped") else None

    def _added(self) -> Sequence[Message]:
        """The messages of this run: those that the session did not hold."""
        messages, base = self.ctx._messages.view(), self._base
        if not base:
            return messages
        same = next((i for i, (old, new) in enumerate(zip(base, messages, strict=False)) if old != new), len(base))
        known = {id(message) for message in base}
        return tuple([message for message in messages[same:] if id(message) not in known])


def _last_words(messages: Sequence[Message]) -> str:
    return next((message.content for message in reversed(messages) if message.role == "assistant"), "")
