"""The tool calls of one model reply, up to their results in the transcript (DESIGN 4.5).

Each call takes the same steps:

    rewrite -> validate -> guard -> approve -> execute -> after_tool -> append

``Batch.run`` executes these steps; each of them is a section of this module. A step stores its outcome in the
:class:`PendingCall`. A call that has a ``result`` skips the remaining steps before ``after_tool``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from functools import partial, reduce
from typing import Any, Literal

import msgspec

from .._base.attachment import Attachment, check_size
from .._base.errors import PlainError
from .._base.frozen import fingerprint, parse_object, private_copy
from .._base.tasks import StillRunningError, abandon, capture_exit, raise_exit
from .._base.text import describe, error_text
from .._kernel.errors import CallRefusedError, HookError
from .._kernel.payloads import (
    WITHHELD,
    ApprovalAnswer,
    ApprovalDecision,
    ApprovalRequest,
    ToolCallRequest,
    ToolCallResult,
    ToolPath,
    unanswered,
)
from .._kernel.points import AFTER_TOOL, APPROVAL_DECIDED, APPROVAL_REQUESTED, BEFORE_TOOL, TOOL_END_WITH_PATH
from .._kernel.results import HookAction, HookAnswer, Verdict
from .._kernel.scope import is_being_closed
from .._kernel.values import ErrorInfo, Message, Outcome, StopSignal, ToolCall
from ..tools._tool import jsonable, take_attachments
from .context import CALL
from .engine import Engine
from .events import ApprovalAsked, ApprovalDecided, ToolSettled
from .lanes import LANE, NO_LANE, in_lane
from .model_call import MAX_RETRIES
from .termination import RunEndedError, RunStoppedError, stronger_cause
from .tool_call import CallReports, PendingCall

replace = msgspec.structs.replace

Decision = Literal["approved", "denied", "edited", "cancelled"]


class Batch:
    """The tool calls of one model reply.

    Args:
        engine: the run.
        calls: the calls in the model's reply.
        hop: the number of the step.
        withdrawn: names of tools that a hook removed from the request, which the model must not call.
        reports: reports the progress of the calls.
        name: the beginning of the names of the lanes of the calls, if it is not the number of the step.
    """

    failures_end_run = True
    """Whether a hook that fails closed at a call ends the run."""

    def __init__(
        self,
        engine: Engine,
        calls: Sequence[ToolCall],
        hop: int,
        withdrawn: frozenset[str],
        reports: CallReports,
        name: str = "",
    ) -> None:
        self.engine = engine
        self.hop = hop
        self._withdrawn = withdrawn
        self._tools = engine.tools
        self._reports = reports
        self._name = name or hop
        self.calls = [self._pending(call, index, attempt=1) for index, call in enumerate(calls)]
        self.of_reply = len(self.calls)
        """The number of calls in the reply. Tools of a framework may make more, which are not in the transcript."""
        self.cause: BaseException | None = None
        self.outcomes: tuple[Outcome, ...] = ()

    async def run(self) -> None:
        """Execute the calls. Afterwards the transcript contains exactly one result for each call.

        Raises:
            RunStoppedError, RunEndedError, HookError, CancelledError: the reason why the run does not continue.
        """
        await self._attempt(self.calls)
        engine = self.engine
        for index in range(len(self.calls)):
            if engine.has_listeners(AFTER_TOOL) or engine.has_listeners(TOOL_END_WITH_PATH):
                await self._after(index)
        self._append_results()
        if self.cause is not None:
            raise self.cause

    async def _attempt(self, calls: list[PendingCall]) -> None:
        """Check, approve and execute calls. Afterwards each call has a result, and its end is reported."""
        engine, executing = self.engine, False
        try:
            if engine.services.halts and not engine.boundary.is_direct:
                await engine.boundary.wait_while_halted(engine)
            engine.checkpoint()
            judged = False
            for call in calls:
                if engine.has_listeners(BEFORE_TOOL):
                    judged = True
                    await self._fire_before_tool(call)
                else:  # the arguments must be valid nevertheless
                    call.request, problem = self._validate(call, call.request)
                    if problem is not None:
                        await self._reject(call, problem)
                if engine.cancellation.triggered:
                    engine.cancellation.check()
            if judged:
                self._block_changed(calls, after_approvals=False)
                if asked := [call for call in calls if call.asks and call.result is None]:
                    engine.checkpoint()
                    await self._each(asked, "?", self._approve)
                    # An approver may hold on to the arguments of any of them.
                    self._block_changed(calls, after_approvals=True)
            engine.checkpoint()
            executing = True
            ready = self._within_limit(calls)
            if len(ready) < len(calls):
                for call in calls:
                    await self._reports.end(call)
            if len(ready) == 1:
                with self._in_lane_of(ready[0]):
                    await self._invoke(ready[0])
            elif ready:
                await self._execute(ready)
        except BaseException as cause:  # noqa: BLE001 - every cause becomes a status
            await self._note_cause(cause)
            for call in calls if not executing and not isinstance(cause, RunStoppedError) else ():
                call.result = None
        for call in calls:
            if call.asking:
                await self._collect_cause(self._decide(call, "cancelled"))
            if call.result is None:
                call.settle(engine, "cancelled", error=self._why_cancelled())
            if not call.end_reported:
                await self._collect_cause(self._reports.end(call))

    # Rewrite, validate, guard.

    async def _fire_before_tool(self, call: PendingCall, *, edited: bool = False) -> None:
        """Fire ``before_tool``: call the rewriters, validate the arguments, then call the guards.

        An edited call skips the rewriters, and its questions count as answered.
        """
        if not edited:
            call.arguments_copy = private_copy(call.request.arguments)
            call.request = replace(call.request, arguments=call.arguments_copy)
        firing = self.engine.start_firing(BEFORE_TOOL, call.request)
        if not edited and firing.chain.rewriters:
            await firing.rewrite()
        if firing.is_open:
            request, problem = self._validate(call, firing.payload)
            firing.payload = request
            call.checked_arguments = fingerprint(request.arguments)
            if problem is not None:
                firing.mark_invalid(problem)
        await firing.guard()
        verdict = await self.engine.conclude(firing, fatal=self.failures_end_run)
        call.request = verdict.payload
        call.answer = verdict.answer
        call.asks = () if edited else verdict.asks
        if verdict.action is HookAction.BLOCK:
            self._block(call, verdict.value, verdict.hook)
        elif verdict.action is HookAction.INVALID:
            await self._reject(call, verdict.value)
        elif call.answer is not None and not call.asks:
            self._use_answer(call, call.answer)

    def _validate(self, call: PendingCall, request: ToolCallRequest) -> tuple[ToolCallRequest, str | None]:
        """Validate a request. Return it with validated arguments and ``None``, or unchanged with the problem.

        The values for the tool are stored in the call.
        """
        tools = self.engine.tools
        tool = tools.get(request.name)
        if tool is None:
            return request, tools.unknown(request.name)
        if request.name in self._withdrawn:
            return request, f"The tool {request.name!r} is not available in this step."
        # Hooks got a copy of the arguments. If they did not replace it, use the original.
        arguments = call.call.arguments if request.arguments is call.arguments_copy else request.arguments
        if request.raw is not None and not arguments:
            return request, f"The arguments of {request.name} are not a JSON object. You sent: {request.raw:.200}"
        checked = self.engine.boundary.validate(tool, arguments)
        if isinstance(checked, str):
            return request, checked
        call.tool, call.values = tool, checked.values
        valid = ToolCallRequest(
            request.id, request.name, checked.arguments, request.hop, request.attempt, None, request.ids
        )
        return valid, None

    async def _reject(self, call: PendingCall, problem: str) -> None:
        call.settle(self.engine, "error", error=problem)
        await self._report(call, "InvalidCall", problem)

    def _use_answer(self, call: PendingCall, answer: HookAnswer) -> None:
        call.by = answer.hook
        call.settle(self.engine, "answered", jsonable(answer.value))

    def _block(self, call: PendingCall, message: str, source: str) -> None:
        call.by = source
        call.settle(self.engine, "blocked", error=message)
        self.engine.add_error(ErrorInfo("tool", "Blocked", message, source, call.request.id))

    def _block_changed(self, calls: list[PendingCall], *, after_approvals: bool) -> None:
        """Block the calls whose arguments a hook changed in place since they were validated."""
        for call in calls:
            if call.result is not None or not call.checked_arguments:
                continue
            changed = fingerprint(call.request.arguments) != call.checked_arguments
            if self.engine.boundary.was_changed(call.request, changed, after_approvals=after_approvals):
                # Everything that follows sees the arguments that the guards judged.
                arguments, _ = parse_object(call.checked_arguments.decode())
                call.request = replace(call.request, arguments=arguments)
                self._block(call, "Blocked: a hook changed the arguments of this call in place.", "")

    # Approve.

    async def _approve(self, call: PendingCall) -> None:
        """Ask the approvers about a call, and apply their decision."""
        engine, request = self.engine, call.request
        call.asking = True
        engine.emit(
            ApprovalAsked,
            call_id=request.id,
            tool=request.name,
            arguments=request.arguments,
            questions=tuple([question.text for question in call.asks]),
            digest=request.digest,
        )
        try:
            verdict = await self._ask(ApprovalRequest(request, call.asks, request.digest))
            answer: ApprovalAnswer = verdict.value or await self._unanswered(call)
            if answer.wait:  # a durable run would have been suspended
                answer = ApprovalAnswer(deny="Nobody has approved this call yet, and this run cannot wait.")
            by = answer.by or verdict.hook
        except HookError as error:
            answer, by = ApprovalAnswer(deny="The approval failed."), error.hook
        if not call.asking:
            return  # the call was cancelled before the answer arrived
        if answer.edit is not None:
            call.request = replace(request, arguments=answer.edit)
            await self._decide(call, "edited", by)
            await self._fire_before_tool(call, edited=True)
        elif answer.approve:
            await self._decide(call, "approved", by)
            if call.answer is not None:
                self._use_answer(call, call.answer)
        else:
            message = answer.deny or "Denied."
            call.denied = True
            await self._decide(call, "denied", by, message)
            self._block(call, message, by)

    async def _ask(self, asked: ApprovalRequest) -> Verdict:
        ask = partial(self.engine.fire, APPROVAL_REQUESTED, asked, fatal=False)
        return await self.engine.boundary.approve(asked, ask, self.engine.report)

    async def _unanswered(self, call: PendingCall) -> ApprovalAnswer:
        """Return the answer to a question that no approver has answered."""
        return ApprovalAnswer(deny=unanswered(call.asks))

    async def _decide(self, call: PendingCall, decision: Decision, by: str = "", message: str = "") -> None:
        call.asking = False
        request = call.request
        self.engine.emit(
            ApprovalDecided,
            call_id=request.id,
            decision=decision,
            by=by,
            digest=request.digest,
            message=message,
            tool=request.name,
        )
        payload = ApprovalDecision(request.id, decision, by, request.digest, message, self.engine.ids)
        await self.engine.fire(APPROVAL_DECIDED, payload)

    # Execute.

    def _within_limit(self, calls: list[PendingCall]) -> list[PendingCall]:
        """Return the calls that may run within the limit of tool calls, and count them."""
        engine, ready = self.engine, []
        for call in calls:
            if call.result is not None:
                continue
            if engine.budget.tool_calls_left():
                engine.budget.count_tool_call()
                ready.append(call)
                continue
            call.settle(engine, "cancelled", error="Cancelled: the tool call limit is reached.")
            if not engine.run_state.signals:
                engine.signal(engine.budget.exceeded(steps=False) or StopSignal("tool_calls_limit"))
        return ready

    async def _execute(self, ready: list[PendingCall]) -> None:
        """Run several calls concurrently, up to the limit of the agent."""
        slots = asyncio.Semaphore(self.engine.agent.max_parallel_tools)

        async def limited(call: PendingCall) -> None:
            waits = slots.locked()
            async with slots:
                await self.engine.boundary.wake_up("slot", waited=waits)
                await self._invoke(call)

        await self._each(ready, "", limited)

    async def _each(self, calls: list[PendingCall], part: str, work: Callable[[PendingCall], Awaitable[None]]) -> None:
        """Do this work for all calls concurrently, each in its lane. The first failure cancels the rest."""

        async def begin(call: PendingCall) -> None:
            with self._in_lane_of(call, part):
                await self.engine.boundary.wake_up("start")
                await work(call)

        if len(calls) == 1:
            with self._in_lane_of(calls[0], part):
                await work(calls[0])
        elif calls:
            tasks = [asyncio.ensure_future(capture_exit(begin(call))) for call in calls]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            except BaseException:
                await _abandon(tasks)
                raise
            await self.engine.boundary.wake_up("concurrent calls")
            await _abandon([task for task in tasks if not task.done()])
            causes = [cause for task in done if (cause := task.exception()) is not None]
            if causes:
                raise reduce(stronger_cause, causes)
            for task in done:
                raise_exit(task.result())
        self.engine.cancellation.check()

    async def _invoke(self, call: PendingCall) -> None:
        """Call the tool. An exception becomes an error result."""
        engine = self.engine
        if engine.services.halts and not engine.boundary.is_direct:
            await engine.boundary.wait_while_halted(engine)
        if engine.may_be_halted and self._is_halted(call):
            return
        call.started = True
        call.began = engine.environment.clock.monotonic()
        if engine.reports_calls:
            await self._reports.start(call)
        value: Any = None
        attachments: tuple[Attachment, ...] = ()
        failure: BaseException | None = None
        try:
            value, attachments = await self._call_tool(call)
            if engine.cancellation.is_cancelled(in_own_loop=True):
                raise asyncio.CancelledError  # the tool suppressed the cancellation; its result is too late
        except asyncio.CancelledError as cancelled:
            if engine.cancellation.is_cancelling():
                raise
            failure = cancelled
        except StillRunningError:
            assert call.tool is not None
            failure = TimeoutError(f"no result after {call.tool.timeout:g} s")
        except CallRefusedError as refused:
            if refused.hook:
                raise  # a hook's decision about a model call of the tool applies to the run
            failure = refused
        except GeneratorExit as closed:
            if is_being_closed(engine):
                raise
            failure = closed
        except (Exception, SystemExit) as error:  # noqa: BLE001 - an error result for the model
            failure = error
        if call.ended:
            return  # it was cancelled in the meantime
        if failure is None:
            call.settle(engine, "ok", value, attachments=attachments)
        else:
            message = error_text(failure) if isinstance(failure, PlainError) else describe(failure)
            call.settle(engine, "error", error=message)
        if engine.reports_calls or call.reporter is not None:
            await self._reports.end(call)
        call.ended = call.end_reported = True
        if failure is not None:
            await self._report(call, type(failure).__name__, error_text(failure))

    def _is_halted(self, call: PendingCall) -> bool:
        """Cancel a call that waited for its turn while the run was halted. Calls that are running are not interrupted.

        The run stops at its next checkpoint.
        """
        engine = self.engine
        if not any(signal.kind == "halted" for signal in engine.run_state.signals):
            halted = engine.boundary.find_halt(engine)
            if halted is None:
                return False
            engine.signal(halted)
        call.settle(engine, "cancelled", error=self._why_cancelled())
        return True

    def _why_cancelled(self) -> str:
        """Return the error result of a call that did not run, or did not finish."""
        halted = [signal.message for signal in self.engine.run_state.signals if signal.kind == "halted"]
        return f"Cancelled: {halted[0] if halted else 'the call did not finish'}."

    async def _call_tool(self, call: PendingCall) -> tuple[Any, tuple[Attachment, ...]]:
        """Return the result of the tool as JSON, and the attachments in it."""
        engine, tool, request, values = self.engine, call.tool, call.request, call.values
        assert tool is not None  # a call of an unknown tool already has a result
        engine.refresh()
        if engine.tools is not self._tools and engine.tools.get(request.name) is not tool:
            raise LookupError(f"the tool {request.name!r} was removed before this call started")
        ctx = self._reports.context_of(call, tool) if tool.takes_ctx else None
        token = CALL.set(request)
        try:
            value = await engine.wrap(request, engine.boundary.call_tool(request, tool, values, ctx))
        finally:
            CALL.reset(token)
        if type(value) is str:
            return jsonable(value), ()
        value, attachments = take_attachments(value)
        for each in attachments:
            check_size(each.size, str(each), engine.agent.max_attachment)
        return jsonable(value), attachments

    async def _report(self, call: PendingCall, kind: str, message: str) -> None:
        await self.engine.report(ErrorInfo("tool", kind, message, call.request.name, call.request.id))

    # After the tool.

    async def _after(self, index: int) -> None:
        """Fire ``after_tool`` for one call. If a hook retries the call, all steps are repeated immediately."""
        call, engine = self.calls[index], self.engine
        result = call.result
        assert result is not None  # _attempt sets one for each call
        retried, note = False, None
        try:
            if engine.has_listeners(AFTER_TOOL):
                shown = result
                if isinstance(result.result, (dict, list)):
                    shown = replace(result, result=private_copy(result.result))  # hooks get a copy
                fatal = self.failures_end_run
                verdict = await engine.fire(AFTER_TOOL, shown, no_retry=self._no_retry(result), fatal=fatal)
                if verdict.payload is not shown:
                    call.result = replace(verdict.payload, result=jsonable(verdict.payload.result))
                retried, note = verdict.action is HookAction.RETRY, verdict.value
        except RunEndedError as ended:
            call.result = ended.verdict.payload
            await self._note_cause(ended)
        except BaseException as cause:  # noqa: BLE001 - every cause becomes a status
            call.result = replace(result, result=None, error=WITHHELD, attachments=())
            await self._note_cause(cause)
        if retried:
            await self._retry(index, note)
        elif engine.has_listeners(TOOL_END_WITH_PATH):
            await self._report_paths(result)

    async def _retry(self, index: int, note: str | None) -> None:
        """Repeat all steps of a call, because a hook retries it."""
        call = self.calls[index]
        self.calls[index] = again = self._pending(call.call, call.index, call.request.attempt + 1)
        await self._attempt([again])
        await self._after(index)

    def _no_retry(self, result: ToolCallResult) -> str:
        """Return the reason why a ``retry`` of this call is not possible, or an empty string."""
        if self.cause is not None or self.engine.run_state.signals:
            return "the run is ending"
        if result.outcome not in ("ok", "error"):
            return f"the call was {result.outcome}"
        return "retry_limit" if result.attempt > MAX_RETRIES else ""

    async def _report_paths(self, result: ToolCallResult) -> None:
        tool = self.engine.tools.get(result.name)
        if tool is None or result.outcome not in ("ok", "error"):
            return
        for path in tool.paths(result.arguments):
            payload = ToolPath(result.name, path, tool.folder, result.id, result.ids)
            await self._collect_cause(self.engine.fire(TOOL_END_WITH_PATH, payload))

    # Append the results.

    def _append_results(self) -> None:
        """Add all results to the transcript, in the order of the calls."""
        messages: list[Message] = []
        for call in self.calls:
            assert call.result is not None
            self.outcomes += (call.result.outcome,)
            messages.append(self._report_settled(call))
        self.engine.run_state.close_calls(messages[: self.of_reply])

    def _report_settled(self, call: PendingCall) -> Message:
        """Count a call and report its settled result. Return the message with it."""
        engine, result = self.engine, call.result
        assert result is not None
        engine.run_state.count_call(result.name, ok=result.outcome == "ok")
        is_error = result.error is not None
        attachments = () if is_error else result.attachments  # a result that a hook withheld has none
        message = Message("tool", result.text, (), result.id, result.name, is_error, None, attachments)
        if engine.has_consumers:
            engine.emit(
                ToolSettled,
                call_id=result.id,
                tool=result.name,
                outcome=result.outcome,
                text=message.content,
                attempt=result.attempt,
                attachments=message.attachments,
            )
        return message

    # Shared.

    def _pending(self, call: ToolCall, index: int, attempt: int) -> PendingCall:
        request = ToolCallRequest(call.id, call.name, call.arguments, self.hop, attempt, call.raw, self.engine.ids)
        return PendingCall(call, index, request)

    def _in_lane_of(self, call: PendingCall, part: str = "") -> AbstractContextManager[None]:
        """Enter the lane of a call, or of its approval."""
        lane = LANE.get()
        if lane is None:
            return NO_LANE
        return in_lane(lane.part(f"/{self._name}.{call.index}.{call.request.attempt}{part}"))

    async def _collect_cause(self, work: Coroutine[Any, Any, Any]) -> None:
        """Await work that must be done even after a failure. Note its own failures too."""
        try:
            await work
        except BaseException as cause:  # noqa: BLE001 - every cause becomes a status
            await self._note_cause(cause)

    async def _note_cause(self, cause: BaseException) -> None:
        self.cause = stronger_cause(self.cause, await self.engine.resolve_cause(cause))


async def _abandon(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Cancel tasks and let the cooperative ones finish. Tasks that ignore the cancellation are abandoned."""
    for task in tasks:
        abandon(task)
    if tasks:
        await asyncio.wait(tasks, timeout=0)
