"""The agent loop. One run, from top to bottom, as DESIGN 3 to 6 describe it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from .._base.frozen import private_copy
from .._kernel.errors import CallRefusedError, HooklineError, OutputError
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
    BEFORE_LLM,
    BEFORE_PROMPT_BUILD,
    BEFORE_STEP,
    ON_RUN_END,
    ON_RUN_START,
    ON_STOP,
    SESSION_START,
    Point,
)
from .._kernel.results import HookAction, Verdict
from .._kernel.scope import ACTIVE, CURRENT
from .._kernel.state import AgentResult
from .._kernel.values import ErrorInfo, Message, Status, Step, StopSignal, Usage
from .batch import Batch
from .engine import DONE, Engine
from .events import RunFinished, RunStarted, StepFinished, StepStarted, TaskTaken
from .model_call import call_model
from .session import Session
from .state import RunState
from .termination import RunEndedError, RunStoppedError, signal_rank, status_of
from .tool_call import CallReports

MAX_KEEP_GOING = 3
COMPLETED = StopSignal("completed")
_WITH_OUTPUT = frozenset(("completed", "stopped"))
CLEARABLE = frozenset(("completed", "finish_reason", "stop_requested"))


class Loop:
    """One run of one agent, from ``session_start`` to ``on_run_end``."""

    def __init__(self, engine: Engine, task: str, base: Sequence[Message]) -> None:
        self.engine = engine
        self.state = engine.run_state
        self.task = task
        self._base = base
        self._reports = CallReports(engine)
        self._recording = False
        self._kept_going = 0
        self._steps_begun = 0

    async def run(self) -> AgentResult[Any]:
        """Run to the end, whatever happens on the way."""
        engine = self.engine
        engine.cancellation.begin()
        active, current = ACTIVE.set(engine.hooks.running), CURRENT.set(engine)
        engine.events.aio = asyncio.get_running_loop()
        try:
            engine.emit(RunStarted, ids=engine.ids)
            engine.cancellation.check()
            await self._begin()
            while engine.cause is None and (self._nothing_to_look_at() or await self._may_go_on()):
                await self._step()
            engine.cancellation.check()
        except BaseException as cause:  # noqa: BLE001 - every cause becomes a status
            await engine.record_cause(cause)
        # A hook may have cancelled the run and then said something else: the cancellation is still on its way.
        if engine.cancellation.task_cancelled or engine.cancellation.pending:
            pending = await engine.resolve_cancellation()
            if pending is not None:
                await engine.record_cause(pending)
        result = await self._finish()
        engine.cancellation.end()
        CURRENT.reset(current)
        ACTIVE.reset(active)
        if engine.cause is not None and not isinstance(engine.cause, (Exception, asyncio.CancelledError)):
            raise engine.cause
        return result

    async def _begin(self) -> None:
        """Open the session and the run, take in the task, join the system prompt."""
        engine, session = self.engine, self.engine.services.session
        engine.budget.begin()
        engine.start_time_limit()
        if session.first_run():
            opened = SessionStart(session.id, session.key, session.platform, session.personality_id, engine.ids)
            await self._fire_early(SESSION_START, opened)
        self.task = (await self._fire_early(ON_RUN_START, RunStart(self.task, engine.ids))).payload.task
        self._recording = True
        self.state.append(Message("user", self.task))
        engine.emit(TaskTaken, task=self.task)
        built = PromptBuild(self.state.messages, session.personality_id, engine.ids)
        parts: PromptParts | None = (await self._fire_early(BEFORE_PROMPT_BUILD, built)).value
        if parts is not None:
            prompt = self.state.system_prompt if parts.override_system is None else parts.override_system
            joined = [part for part in (parts.prepend_system, prompt, parts.append_system) if part]
            self.state.set_system_prompt("\n\n".join(joined))

    async def _fire_early(self, point: Point[Any], payload: Any) -> Verdict:
        """Fire a point before the first step: a stop takes effect there."""
        try:
            return await self.engine.fire(point, payload)
        except RunStoppedError:
            return Verdict(payload)

    def _nothing_to_look_at(self) -> bool:
        """Whether the run simply goes on to the next step, as nearly always."""
        engine = self.engine
        return not self.state.signals and not engine.cancellation.triggered and engine.budget.exceeded() is None

    async def _may_go_on(self) -> bool:
        """The checkpoint between steps: recorded signals are put to ``on_stop`` (DESIGN 4.7)."""
        engine, state = self.engine, self.state
        while True:
            engine.cancellation.check()
            if engine.steered:
                self._drop_completed()
            if not state.signals:
                limit = engine.budget.exceeded()
                if limit is None:
                    return True
                engine.signal(limit)
            try:
                verdict = await engine.fire(
                    ON_STOP, Stopping(tuple(sorted(state.signals, key=signal_rank)), engine.ids)
                )
            except RunStoppedError:
                return False
            if engine.steered and self._drop_completed():
                continue
            if verdict.action is not HookAction.KEEP_GOING or self._kept_going >= MAX_KEEP_GOING:
                return False
            self._kept_going += 1
            state.set_signals(tuple(signal for signal in state.signals if signal.kind not in CLEARABLE))
            if state.signals:
                return False
            if verdict.value:
                state.append(Message("user", verdict.value))

    def _drop_completed(self) -> bool:
        """A run that is complete goes on if somebody put a message in meanwhile."""
        state = self.state
        if not all(signal.kind == "completed" for signal in state.signals):
            return False
        if state.signals:
            state.set_signals(())
        return True

    async def _step(self) -> None:
        """One step: a model reply, and the tool calls in it. It always gets its ``after_step``."""
        engine, state, clock = self.engine, self.state, self.engine.environment.clock
        began = clock.monotonic()
        state.spent = None
        engine.hop = index = self._steps_begun
        self._steps_begun += 1
        reply, batch = None, None
        try:
            engine.emit(StepStarted, index=index)
            await engine.fire(BEFORE_STEP, StepStart(index, engine.ids))
            engine.checkpoint()
            engine.budget.count_step()
            if engine.steered:
                engine.append_steered()
            request = self._request(index)
            reply = await call_model(engine, request, engine.agent.model)
            self._record(reply)
            if reply.tool_calls:
                batch = Batch(engine, reply.tool_calls, index, _withdrawn(request, reply.request), self._reports)
                await batch.run()
        except BaseException as cause:  # noqa: BLE001 - every cause becomes a status
            await engine.record_cause(cause)
        step = Step(
            index,
            reply.content if reply else "",
            tuple([call.name for call in reply.tool_calls]) if reply else (),
            batch.outcomes if batch else (),
            state.spent or Usage(),
            reply.finish_reason if reply else "",
            clock.monotonic() - began,
        )
        if reply is not None:
            state.finish_step(step)
        try:
            await engine.fire(AFTER_STEP, step)
        except BaseException as cause:  # noqa: BLE001
            await engine.record_cause(cause)
        engine.emit(StepFinished, index=index, tool_names=step.tool_names, usage=step.usage)

    def _request(self, hop: int) -> ModelRequest:
        """The transcript as the model will see it, before the hooks change it."""
        engine, state = self.engine, self.state
        try:
            tools = engine.tools.offered(engine.ctx)
        except HooklineError as error:
            engine.record_error(ErrorInfo("tool", type(error).__name__, str(error), fatal=True))
            raise
        params, response_format = engine.agent.params, state.response_format
        if engine.has_listeners(BEFORE_LLM):  # they are the agent's own: hooks get copies
            params, response_format = private_copy(params), private_copy(response_format)
        messages = state.messages
        if state.system_prompt:
            messages = messages.after(Message("system", state.system_prompt))
        return ModelRequest(
            messages, tools, engine.agent.model.name, hop, 1, "step", response_format, None, params, engine.ids,
        )  # fmt: skip

    def _record(self, reply: ModelReply) -> None:
        """Put the reply into the transcript; without calls the run is complete."""
        message = Message("assistant", reply.content, reply.tool_calls)
        if reply.tool_calls:
            self.state.open_calls(message)
            return
        self.state.append(message)
        if reply.content:
            self.engine.signal(COMPLETED)
        else:
            self.engine.signal(StopSignal("unknown", "The model returned neither text nor tool calls."))

    async def _finish(self) -> AgentResult[Any]:
        """Close the transcript and fire ``on_run_end``, exactly once."""
        engine, state = self.engine, self.state
        engine.finish()
        if engine.children:
            await engine.cancel_children()
        if self._recording:
            engine.append_steered()  # it came too late for this run, and is there for the next
        result = self._result()
        saved = _Saved(engine.services.session, self._base)
        saved.save(state, result.messages)
        if engine.has_listeners(ON_RUN_END):
            result = await self._fire_run_end(result, saved)
        engine.emit(RunFinished, result=result)
        output = engine.output
        if output is not None and output.accepted is not None and result.status in _WITH_OUTPUT:
            return msgspec.structs.replace(result, output=output.accepted.value)  # hooks and events had its JSON
        return result

    async def _fire_run_end(self, result: AgentResult[Any], saved: _Saved) -> AgentResult[Any]:
        """What the hooks of ``on_run_end`` make of the result, also if one of them fails."""
        engine, state = self.engine, self.state
        known_errors = len(state.errors)
        firing = engine.open(ON_RUN_END, result)
        try:
            await firing.rewrite()
            await firing.guard()
            firing.payload, problem = self._read_output_again(firing.payload, result.reply)
            saved.save(state)  # what hooks changed is in the session before its observers are called
            result = (await engine.conclude(firing)).payload
            if problem is not None:
                engine.record_error(ErrorInfo("output", "OutputError", str(problem), fatal=True))
                raise problem
        except BaseException as failure:  # noqa: BLE001
            result = firing.payload  # what the other hooks made of it holds
            await engine.record_cause(failure)
            if status_of(engine.cause) == "failed":
                result = msgspec.structs.replace(result, status="failed", output=None)
        if late := state.errors[known_errors:]:
            result = msgspec.structs.replace(result, errors=(*result.errors, *late))
        if saved.changed and result.messages is saved.added:
            result = msgspec.structs.replace(result, messages=self._added())
        if engine.output is None and result.output is not result.reply:
            result = msgspec.structs.replace(result, output=result.reply)
        return result

    def _output_json(self, reply: str, status: Status) -> Any:
        """The output as hooks and events have it: the text, or the JSON of the value."""
        output = self.engine.output
        if output is None:
            return reply
        return output.accepted.json if output.accepted is not None and status in _WITH_OUTPUT else None

    def _read_output_again(self, result: AgentResult[Any], said: str) -> tuple[AgentResult[Any], OutputError | None]:
        """The result with the output of the reply that a hook gave it, and the error if that reply does not fit."""
        if result.reply == said:
            return result, None
        output, failure = self.engine.output, None
        if output is not None and output.accepted is not None:
            try:
                if problem := output.check(result.reply):
                    changed = f"a hook at on_run_end changed it: {problem}"
                    failure = OutputError(output.spec.name, result.reply, changed)
            except OutputError as broken:  # a validator of the type failed
                failure = broken
        return msgspec.structs.replace(result, output=self._output_json(result.reply, result.status)), failure

    def _result(self) -> AgentResult[Any]:
        """The result as it stands before ``on_run_end``."""
        engine, state, cause = self.engine, self.state, self.engine.cause
        strongest = min(state.signals, key=signal_rank, default=None)
        status = status_of(cause)
        if cause is None and strongest is not None and strongest.kind in DONE:
            status = "completed"
        ended = cause if status == "ended" and isinstance(cause, (RunEndedError, CallRefusedError)) else None
        if ended is not None and self._recording:
            state.append(Message("assistant", ended.reply, hook=ended.hook))
        added = self._added()
        said = _last_words(added) if ended is None else ended.reply
        return AgentResult(
            said, status, self._stop_of(status, strongest),
            None if ended is None else ended.reason or ended.hook, self.task, state.steps, engine.budget.usage,
            engine.budget.cost, state.calls, tuple(state.tool_names), state.good_calls, added, state.errors,
            engine.budget.elapsed, engine.ids, self._output_json(said, status),
        )  # fmt: skip

    def _stop_of(self, status: Status, strongest: StopSignal | None) -> StopSignal | None:
        if status == "cancelled":
            return StopSignal("user_requested", self.engine.services.interrupt.reason)
        return strongest if status in ("completed", "stopped") else None

    def _added(self) -> Sequence[Message]:
        """The messages of this run: those that the session did not hold."""
        messages, base = self.state.messages, self._base
        if not base:
            return messages
        same = next((i for i, (old, new) in enumerate(zip(base, messages, strict=False)) if old != new), len(base))
        known = {id(message) for message in base}
        return tuple([message for message in messages[same:] if id(message) not in known])


def _withdrawn(offered: ModelRequest, asked: ModelRequest) -> frozenset[str]:
    """Names of the tools that hooks took out of the request: the model may not call them all the same."""
    if asked.tools is offered.tools:
        return frozenset()
    return frozenset(tool.name for tool in offered.tools) - frozenset(tool.name for tool in asked.tools)


class _Saved:
    """What this run has handed back to its session."""

    def __init__(self, session: Session, base: Sequence[Message]) -> None:
        self._session = session
        self._messages = base
        self._metadata: Mapping[str, Any] | None = None
        self.added: Sequence[Message] = ()
        self.changed = False
        """Whether hooks of ``on_run_end`` changed it."""

    def save(self, state: RunState, added: Sequence[Message] | None = None) -> None:
        """Hand over the transcript and the metadata, if they are not what was handed over last."""
        messages, metadata = state.messages, state.metadata
        if added is None:
            if messages is self._messages and metadata is self._metadata:
                return
            known = {id(message) for message in self._messages}
            added = [message for message in messages if id(message) not in known]
            self.changed = True
        else:
            self.added = added
        self._session.save(self._messages, messages, added, metadata)
        self._messages, self._metadata = messages, metadata


def _last_words(messages: Sequence[Message]) -> str:
    return next((message.content for message in reversed(messages) if message.role == "assistant"), "")
