"""The agent loop: one run from start to end (DESIGN 3 to 6)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from .._base.attachment import Attachment
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
from .._kernel.scope import CURRENT, HOOK_CALL
from .._kernel.state import AgentResult
from .._kernel.values import ErrorInfo, Message, Status, Step, StopSignal, Usage
from .batch import Batch
from .engine import DONE, Engine
from .events import Discarded, RunFinished, RunStarted, StepFinished, StepStarted, TaskTaken
from .model_call import call_model
from .session import Session
from .state import RunState
from .termination import RunEndedError, RunStoppedError, signal_rank, status_of
from .tool_call import CallReports

MAX_KEEP_GOING = 8
"""As many times as in Claude Code, whose hooks can run here."""
COMPLETED = StopSignal("completed")
_WITH_OUTPUT = frozenset(("completed", "stopped"))
CLEARABLE = frozenset(("completed", "finish_reason", "stop_requested"))


class Loop:
    """One run of one agent, from ``session_start`` to ``on_run_end``."""

    max_keep_going = MAX_KEEP_GOING

    def __init__(
        self, engine: Engine, task: str, base: Sequence[Message], attachments: tuple[Attachment, ...] = ()
    ) -> None:
        self.engine = engine
        self.state = engine.run_state
        self.task, self.attachments = task, attachments
        self._base = base
        self._reports = CallReports(engine)
        self._task_added = False
        self._kept_going = 0
        self._steps_begun = 0

    async def run(self) -> AgentResult[Any]:
        """Run to the end. Every failure becomes a status of the result."""
        engine = self.engine
        engine.cancellation.begin()
        hook_call, current = HOOK_CALL.set(engine.hooks.hook_call), CURRENT.set(engine)
        engine.events.begin()
        try:
            if engine.has_consumers:
                engine.emit(RunStarted, ids=engine.ids)
            engine.cancellation.check()
            await self._begin()
            while engine.cause is None and (self._may_skip_checkpoint() or await self._may_continue()):
                await self._step()
            engine.cancellation.check()
        except BaseException as cause:  # noqa: BLE001 - every cause becomes a status
            await engine.note_cause(cause)
        # A hook may have cancelled the run and then returned something else: the cancellation is still pending.
        if engine.cancellation.task_cancelled or engine.cancellation.pending:
            pending = await engine.resolve_cancellation()
            if pending is not None:
                await engine.note_cause(pending)
        result = await self._finish()
        engine.cancellation.end()
        CURRENT.reset(current)
        HOOK_CALL.reset(hook_call)
        if engine.cause is not None and not isinstance(engine.cause, (Exception, asyncio.CancelledError)):
            raise engine.cause
        return result

    async def _begin(self) -> None:
        """Start the session and the run, add the task, and build the system prompt."""
        await self._open_run()
        await self._build_prompt()

    async def _open_run(self) -> None:
        """Start the session and the run, and add the task."""
        engine, session = self.engine, self.engine.services.session
        engine.budget.begin()
        engine.start_time_limit()
        if session.first_run() and engine.has_listeners(SESSION_START):
            opened = SessionStart(session.id, session.key, session.platform, session.personality_id, engine.ids)
            await self._fire_early(SESSION_START, opened)
        attachments = self.attachments
        if engine.has_listeners(ON_RUN_START):
            start = (await self._fire_early(ON_RUN_START, RunStart(self.task, engine.ids, attachments))).payload
            self.task, attachments = start.task, start.attachments
        self._task_added = True
        self.state.append(Message("user", self.task, attachments=attachments))
        if engine.has_consumers:
            engine.emit(TaskTaken, task=self.task, attachments=attachments)

    async def _build_prompt(self) -> None:
        """Let hooks change the system prompt."""
        engine = self.engine
        if not engine.has_listeners(BEFORE_PROMPT_BUILD):
            return
        built = PromptBuild(self.state.messages, engine.services.session.personality_id, engine.ids)
        parts: PromptParts | None = (await self._fire_early(BEFORE_PROMPT_BUILD, built)).value
        if parts is not None:
            prompt = self.state.system_prompt if parts.override_system is None else parts.override_system
            joined = [part for part in (parts.prepend_system, prompt, parts.append_system) if part]
            self.state.set_system_prompt("\n\n".join(joined))

    async def _fire_early(self, point: Point[Any], payload: Any) -> Verdict:
        """Fire a point before the first step, where a stop takes effect."""
        try:
            return await self.engine.fire(point, payload)
        except RunStoppedError:
            return Verdict(payload)

    def _may_skip_checkpoint(self) -> bool:
        """Whether the next step may start without further checks, the usual case."""
        engine = self.engine
        return not self.state.signals and not engine.cancellation.triggered and engine.limit_reached() is None

    async def _may_continue(self) -> bool:
        """Return the checkpoint between steps: fire ``on_stop`` if a signal is set (DESIGN 4.7)."""
        engine, state = self.engine, self.state
        while True:
            engine.cancellation.check()
            if engine.steered:
                self._drop_completed()
            if not state.signals:
                limit = engine.limit_reached()
                if limit is None:
                    return True
                engine.signal(limit)
            if not engine.has_listeners(ON_STOP) and not engine.steered:
                return False
            try:
                verdict = await engine.fire(
                    ON_STOP, Stopping(tuple(sorted(state.signals, key=signal_rank)), engine.ids)
                )
            except RunStoppedError:
                return False
            if engine.steered and self._drop_completed():
                continue
            if verdict.action is not HookAction.KEEP_GOING or self._kept_going >= self.max_keep_going:
                return False
            self._kept_going += 1
            state.set_signals(tuple(signal for signal in state.signals if signal.kind not in CLEARABLE))
            if state.signals:
                return False
            if verdict.value:
                state.append(Message("user", verdict.value))

    def _drop_completed(self) -> bool:
        """Continue a complete run if a message was added with ``run.steer``."""
        state = self.state
        if not all(signal.kind == "completed" for signal in state.signals):
            return False
        if state.signals:
            state.set_signals(())
        return True

    async def _step(self) -> None:
        """Run one step: a model reply and its tool calls. ``after_step`` is always fired."""
        engine, state, clock = self.engine, self.state, self.engine.environment.clock
        began = clock.monotonic()
        state.spent = None
        engine.hop = index = self._steps_begun
        self._steps_begun += 1
        reply, batch = None, None
        try:
            if engine.has_consumers:
                engine.emit(StepStarted, index=index)
            if engine.has_listeners(BEFORE_STEP):
                await engine.fire(BEFORE_STEP, StepStart(index, engine.ids))
                engine.checkpoint()
            engine.budget.count_step()
            if engine.steered:
                engine.append_steered()
            request = self._request(index)
            reply = await call_model(engine, request, engine.agent.model)
            self._append_reply(reply)
            if reply.tool_calls:
                batch = self._batch(reply, withdrawn(request, reply.request))
                await batch.run()
        except BaseException as cause:  # noqa: BLE001 - every cause becomes a status
            await engine.note_cause(cause)
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
            if engine.has_listeners(AFTER_STEP):
                await engine.fire(AFTER_STEP, step)
        except BaseException as cause:  # noqa: BLE001
            await engine.note_cause(cause)
        if engine.has_consumers:
            engine.emit(StepFinished, index=index, tool_names=step.tool_names, usage=step.usage)

    def _batch(self, reply: ModelReply, withdrawn: frozenset[str]) -> Batch:
        """Return the tool calls of a reply, ready to run."""
        return Batch(self.engine, reply.tool_calls, reply.hop, withdrawn, self._reports)

    def _request(self, hop: int) -> ModelRequest:
        """Build the request to the model, before the hooks change it."""
        engine, state = self.engine, self.state
        try:
            tools = engine.tools.offered(engine.ctx)
        except HooklineError as error:
            engine.add_error(ErrorInfo("tool", type(error).__name__, str(error), fatal=True))
            raise
        params, response_format = engine.agent.params, state.response_format
        if engine.has_listeners(BEFORE_LLM):  # hooks get copies of the agent's values
            params, response_format = private_copy(params), private_copy(response_format)
        messages = state.messages
        if state.system_prompt:
            messages = messages.after(Message("system", state.system_prompt))
        return ModelRequest(
            messages,
            tools,
            engine.agent.model.name,
            hop,
            1,
            "step",
            response_format,
            None,
            params,
            engine.ids,
        )

    def _append_reply(self, reply: ModelReply) -> None:
        """Add the reply to the transcript. Without tool calls the run is complete."""
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
        """Save the transcript and fire ``on_run_end``, exactly once."""
        engine, state = self.engine, self.state
        engine.finish()
        if engine.children:
            await engine.children.cancel()
        if engine.suspended:
            return self._result()
        if self._task_added:
            engine.append_steered()  # too late for this run, but the next one will see it
        result = self._result()
        saved = _SessionSaver(engine.services.session, self._base, engine.clean, continues=engine.boundary.continues)
        saved.save(state, result.messages)
        if engine.has_listeners(ON_RUN_END):
            settled = result
            result = await self._fire_run_end(settled, saved)
            if engine.children:  # a hook has started a run and not waited for it
                await engine.children.cancel()
            if engine.shown is not None and result.reply != settled.reply and settled.status != "ended":
                hop, attempt = engine.shown  # a hook replaced the reply at on_run_end; RunFinished has the new one
                engine.emit(Discarded, hop=hop, attempt=attempt, reason="replaced")
        engine.result = result
        if engine.has_consumers:
            engine.emit(RunFinished, result=result)
        output = engine.output
        if output is not None and output.accepted is not None and result.status in _WITH_OUTPUT:
            return msgspec.structs.replace(result, output=output.accepted.value)  # hooks and events got its JSON
        return result

    async def _fire_run_end(self, result: AgentResult[Any], saved: _SessionSaver) -> AgentResult[Any]:
        """Return the result after the hooks of ``on_run_end``, even if one of them fails."""
        engine, state = self.engine, self.state
        known_errors = len(state.errors)
        firing = engine.start_firing(ON_RUN_END, result)
        try:
            await firing.rewrite()
            await firing.guard()
            firing.payload, problem = self._update_output(firing.payload, result.reply)
            saved.save(state)  # save the changes of hooks before the observers are called
            result = (await engine.conclude(firing)).payload
            if problem is not None:
                engine.add_error(ErrorInfo("output", "OutputError", str(problem), fatal=True))
                raise problem
        except BaseException as failure:  # noqa: BLE001
            result = firing.payload  # keep the changes of the other hooks
            await engine.note_cause(failure)
            if status_of(engine.cause) == "failed":
                result = msgspec.structs.replace(result, status="failed", output=None)
        if late := state.errors[known_errors:]:
            result = msgspec.structs.replace(result, errors=(*result.errors, *late))
        if saved.changed and result.messages is saved.added:
            result = msgspec.structs.replace(result, messages=self._added())
        if engine.output is None and result.output_or_none is not result.reply:
            result = msgspec.structs.replace(result, output=result.reply)
        return result

    def _output_json(self, reply: str, status: Status) -> Any:
        """Return the output for hooks and events: the text, or the value as JSON."""
        output = self.engine.output
        if output is None:
            return reply
        return output.accepted.json if output.accepted is not None and status in _WITH_OUTPUT else None

    def _update_output(self, result: AgentResult[Any], reply: str) -> tuple[AgentResult[Any], OutputError | None]:
        """Update the output if a hook changed the reply. Also return the error if the new reply does not match."""
        if result.reply == reply:
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
        """Build the result before ``on_run_end``."""
        engine, state, cause = self.engine, self.state, self.engine.cause
        strongest = min(state.signals, key=signal_rank, default=None)
        status = status_of(cause)
        if cause is None and strongest is not None and strongest.kind in DONE:
            status = "completed"
        ended = cause if status == "ended" and isinstance(cause, (RunEndedError, CallRefusedError)) else None
        if ended is not None and self._task_added:
            state.append(Message("assistant", ended.reply, hook=ended.hook))
        added = self._added()
        reply = _last_reply(added) if ended is None else ended.reply
        return AgentResult(
            reply,
            status,
            self._stop_of(status, strongest),
            None if ended is None else ended.reason or ended.hook,
            self.task,
            state.steps,
            engine.budget.usage,
            engine.budget.cost,
            state.calls,
            tuple(state.tool_names),
            state.successful_calls,
            added,
            state.errors,
            engine.budget.elapsed,
            engine.ids,
            self._output_json(reply, status),
        )

    def _stop_of(self, status: Status, strongest: StopSignal | None) -> StopSignal | None:
        if status == "cancelled":
            return StopSignal("user_requested", self.engine.services.interrupt.reason)
        return strongest if status in ("completed", "stopped") else None

    def _added(self) -> Sequence[Message]:
        """Return the messages that this run added to the session."""
        messages, base = self.state.messages, self._base
        if not base:
            return messages
        same = next((i for i, (old, new) in enumerate(zip(base, messages, strict=False)) if old != new), len(base))
        known = {id(message) for message in base}
        return tuple([message for message in messages[same:] if id(message) not in known])


def withdrawn(offered: ModelRequest, asked: ModelRequest) -> frozenset[str]:
    """Return the names of tools that hooks removed from the request, which the model must not call."""
    if asked.tools is offered.tools:
        return frozenset()
    return frozenset(tool.name for tool in offered.tools) - frozenset(tool.name for tool in asked.tools)


class _SessionSaver:
    """Saves the transcript and the metadata of a run in its session.

    If the run ``continues`` after a crash, the session may have the transcript already: it was saved before the crash.
    """

    def __init__(
        self, session: Session, base: Sequence[Message], clean: Callable[[Any], Any], *, continues: bool
    ) -> None:
        self._session = session
        self._clean = clean
        self._continues = continues
        self._messages = self._stored = base
        self._metadata: Mapping[str, Any] | None = None
        self.added: Sequence[Message] = ()
        self.changed = False
        """Whether hooks of ``on_run_end`` changed the transcript or the metadata."""

    def save(self, state: RunState, added: Sequence[Message] | None = None) -> None:
        """Save the transcript and the metadata if they have changed."""
        messages, metadata = state.messages, state.metadata
        if added is None:
            if messages is self._messages and metadata is self._metadata:
                return
            known = {id(message) for message in self._messages}
            added = [message for message in messages if id(message) not in known]
            self.changed = True
        else:
            self.added = added
        stored = self._clean(messages)
        if not (self._continues and _begins_with(self._session.messages, stored)):
            self._session.save(self._stored, stored, self._clean(added), metadata)
        self._messages, self._stored, self._metadata = messages, stored, metadata


def _begins_with(longer: Sequence[Message], messages: Sequence[Message]) -> bool:
    return tuple(longer[: len(messages)]) == tuple(messages)


def _last_reply(messages: Sequence[Message]) -> str:
    return next((message.content for message in reversed(messages) if message.role == "assistant"), "")
