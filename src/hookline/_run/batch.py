"""A batch of tool calls: judged, approved, run, settled, recorded (DESIGN 4.5)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from functools import partial, reduce
from typing import Any, Literal

import msgspec

from .._base.errors import PlainError
from .._base.names import describe, words
from .._base.tasks import OutOfTime, abandon, carry, unpack, within
from .._kernel.dispatch import PLAIN
from .._kernel.errors import CallRefused, HookError
from .._kernel.payloads import (
    ApprovalAnswer,
    ApprovalDecision,
    ApprovalRequest,
    ToolCallRequest,
    ToolCallResult,
    ToolPath,
)
from .._kernel.points import (
    AFTER_TOOL,
    APPROVAL_DECIDED,
    BEFORE_TOOL,
    ON_PROGRESS,
    TOOL_END_WITH_PATH,
)
from .._kernel.results import Answer, HookAction, Verdict
from .._kernel.tally import How
from .._kernel.values import ErrorInfo, Message, Outcome, StopSignal, ToolCall
from ..tools._tool import jsonable
from .causes import Ended, Stopped, stronger
from .course import Course
from .events import ApprovalAsked, ApprovalDecided, ToolSettled, ToolStarted
from .model_call import MAX_RETRIES
from .reports import Reports
from .slot import Slot

replace = msgspec.structs.replace

Decision = Literal["approved", "denied", "edited", "cancelled"]


class Batch:
    """The tool calls of one model reply."""

    def __init__(self, loop: Course, calls: Sequence[ToolCall], hop: int) -> None:
        self.loop, self.hop, self._tools = loop, hop, loop.tools
        self._reports = Reports(loop)
        self.slots = [self._slot(call, 1) for call in calls]
        self.cause: BaseException | None = None
        self.outcomes: tuple[Outcome, ...] = ()

    async def run(self) -> None:
        """Take every call to exactly one result in the transcript, whatever happens.

        Raises:
            Stopped, Ended, HookError, CancelledError: why the run does not go on as usual.
        """
        loop = self.loop
        await self._attempt(self.slots)
        for index in range(len(self.slots)):
            if AFTER_TOOL in loop.heard or TOOL_END_WITH_PATH in loop.heard:
                await self._in_any_case(self._settle(index))
        messages = []
        for slot in self.slots:
            result = slot.result
            assert result is not None  # _attempt gave each slot one
            self.outcomes += (result.outcome,)
            loop.count_call(result.name, result.outcome == "ok")
            message = Message("tool", result.text, (), result.id, result.name, result.error is not None)
            messages.append(message)
            if loop.ctx.listening and loop.ctx.wants(ToolSettled):
                loop.ctx.emit(
                    ToolSettled, call_id=result.id, tool=result.name, outcome=result.outcome, text=message.content,
                    attempt=result.attempt,
                )  # fmt: skip
        loop.close_calls(messages)
        if self.cause is not None:
            raise self.cause

    async def _attempt(self, slots: list[Slot]) -> None:
        """(a) to (c): afterwards each slot has a result and its pair of progress reports."""
        loop, running = self.loop, False
        try:
            if loop.alert or loop.ctx._signals:
                loop.checkpoint()
            asked: list[Slot] = []
            for slot in slots:
                if BEFORE_TOOL in loop.heard:
                    self._conclude(slot, await loop.fire(BEFORE_TOOL, slot.request, How(partial(self._validate, slot))))
                    if slot.asks and slot.result is None:
                        asked.append(slot)
                else:  # nobody judges, but the arguments must be right all the same
                    slot.request, problem = self._validate(slot, slot.request)
                    if problem is not None:
                        slot.result = self._result(slot, "error", error=problem)
                if slot.result is not None and slot.result.outcome == "error":
                    await self._report(slot, "InvalidCall", slot.result.error or "")
                if loop.alert:
                    loop.raise_if_cancelled()
            if asked:
                loop.checkpoint()
                await self._each([self._approve(slot) for slot in asked])
            if loop.alert or loop.ctx._signals:
                loop.checkpoint()
            running = True
            ready = self._count(slots)
            for slot in slots if len(ready) < len(slots) else ():
                await self._reports.close(slot)
            if len(ready) == 1:
                await self._invoke(ready[0])
            elif ready:
                await self._execute(ready)
        except BaseException as cause:  # noqa: BLE001 - every cause becomes a status
            await self._blame(cause)
            for slot in slots if not running and not isinstance(cause, Stopped) else ():
                slot.result = None
        for slot in slots:
            if slot.asking:
                await self._in_any_case(self._decided(slot, "cancelled", "", ""))
            if slot.result is None:
                slot.result = self._result(slot, "cancelled", error="Cancelled: the call did not finish.")
            if not slot.ended:
                await self._in_any_case(self._reports.close(slot))

    # (a) Judge.

    def _validate(self, slot: Slot, request: ToolCallRequest) -> tuple[ToolCallRequest, str | None]:
        """The request with validated arguments; the slot keeps the values the tool will be called with."""
        tool = self.loop.tools.get(request.name)
        if tool is None:
            return request, self.loop.tools.unknown(request.name)
        if request.raw is not None and not request.arguments:
            return request, f"The arguments of {request.name} are not a JSON object. You sent: {request.raw:.200}"
        check = tool.validate if (out := self.loop.ctx.outside) is None else partial(out.validate, tool)
        checked = check(request.arguments)
        if isinstance(checked, str):
            return request, checked
        slot.tool, slot.values = tool, checked.values
        slot.valid = ToolCallRequest(
            request.id, request.name, checked.arguments, request.hop, request.attempt, None, request.ids
        )
        return slot.valid, None

    def _conclude(self, slot: Slot, verdict: Verdict, *, approved: bool = False) -> None:
        """What ``before_tool`` means for the call: a result, a question, or nothing against it."""
        slot.request = verdict.payload
        slot.answer, slot.asks = verdict.answer, () if approved else verdict.asks
        if verdict.action is HookAction.BLOCK:
            message = verdict.value or f"Tool {slot.request.name!r} was blocked by hook {verdict.hook!r}."
            self._block(slot, message, verdict.hook)
            return
        problem = verdict.value if verdict.action is HookAction.INVALID else None
        if problem is None and slot.request is not slot.valid:  # a user's interceptor changed it, or did not validate
            slot.request, problem = self._validate(slot, slot.request)
        if problem is not None:
            slot.result = self._result(slot, "error", error=problem)
        elif slot.answer is not None and not slot.asks:
            self._serve(slot, slot.answer)

    def _serve(self, slot: Slot, answer: Answer) -> None:
        slot.result, slot.by = self._result(slot, "answered", answer.value), answer.hook

    def _block(self, slot: Slot, message: str, source: str) -> None:
        slot.by = source
        slot.result = self._result(slot, "blocked", error=message)
        self.loop.note_error(ErrorInfo("tool", "Blocked", message, source, slot.request.id))

    # (b) Approve.

    async def _approve(self, slot: Slot) -> None:
        loop, request = self.loop, slot.request
        slot.asking = True
        if loop.ctx.listening:
            loop.ctx.emit(
                ApprovalAsked, call_id=request.id, tool=request.name, arguments=request.arguments,
                questions=tuple(question.text for question in slot.asks), digest=request.digest,
            )  # fmt: skip
        try:
            verdict = await loop.ask(ApprovalRequest(request, slot.asks, request.digest))
            answer: ApprovalAnswer = verdict.value or ApprovalAnswer(deny="Nobody approved this call.")
            by = answer.by or verdict.hook
        except HookError as error:
            answer, by = ApprovalAnswer(deny="The approval failed."), error.hook
        if not slot.asking:
            return  # it went on after it was cancelled: too late
        if answer.edit is not None:
            slot.request = replace(request, arguments=answer.edit)
            await self._decided(slot, "edited", by, "")
            again = await loop.fire(BEFORE_TOOL, slot.request, How(partial(self._validate, slot), "guard"))
            self._conclude(slot, again, approved=True)
            if again.action is HookAction.INVALID:
                await self._report(slot, "InvalidCall", again.value)
        elif answer.approve:
            await self._decided(slot, "approved", by, "")
            if slot.answer is not None:
                self._serve(slot, slot.answer)
        else:
            message, slot.denied = answer.deny or "Denied.", True
            await self._decided(slot, "denied", by, message)
            self._block(slot, message, by)

    async def _decided(self, slot: Slot, decision: Decision, by: str, message: str) -> None:
        slot.asking = False
        loop, request = self.loop, slot.request
        loop.ctx.emit(
            ApprovalDecided, call_id=request.id, decision=decision, by=by, digest=request.digest, message=message
        )  # fmt: skip
        payload = ApprovalDecision(request.id, decision, by, request.digest, message, loop.ctx.ids)
        await loop.fire(APPROVAL_DECIDED, payload)

    # (c) Execute.

    def _count(self, slots: list[Slot]) -> list[Slot]:
        """The calls left to run, within the limit of tool calls."""
        loop, ready = self.loop, []
        if len(slots) == 1 and not loop.limited and slots[0].result is None:
            loop.budget.count_tool_call()
            return slots
        for slot in slots:
            if slot.result is not None:
                continue
            if not loop.limited or loop.budget.tool_calls_left():
                loop.budget.count_tool_call()
                ready.append(slot)
                continue
            slot.result = self._result(slot, "cancelled", error="Cancelled: the tool call limit is reached.")
            if not loop.ctx._signals:
                loop.signal(loop.budget.exceeded(steps=False) or StopSignal("tool_calls_limit"))
        return ready

    async def _execute(self, ready: list[Slot]) -> None:
        gate = asyncio.Semaphore(self.loop.agent.max_parallel_tools)

        async def through(slot: Slot) -> None:
            async with gate:
                await self._invoke(slot)

        await self._each([through(slot) for slot in ready])

    async def _each(self, work: list[Any]) -> None:
        """Do all of it concurrently; the first failure breaks off the rest."""
        if len(work) == 1:
            await work[0]
        elif work:
            tasks = [asyncio.ensure_future(carry(item)) for item in work]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            except BaseException:
                await _let_go(tasks)
                raise
            await _let_go([task for task in tasks if not task.done()])
            causes = [cause for task in done if (cause := task.exception()) is not None]
            if causes:
                raise reduce(stronger, causes)
            for task in done:
                unpack(task.result())
        self.loop.raise_if_cancelled()

    async def _invoke(self, slot: Slot) -> None:
        loop, tool = self.loop, slot.tool
        assert tool is not None  # an unknown one has a result already
        if ON_PROGRESS in loop.heard or (loop.ctx.listening and loop.ctx.wants(ToolStarted)):
            await self._reports.start(slot)
        else:
            slot.started, slot.began = True, loop.ctx.clock.monotonic()
        ctx = self._reports.ctx_of(slot) if tool.takes_ctx else None
        failure: BaseException | None = None
        try:
            if loop.tools is not self._tools and loop.tools.get(slot.request.name) is not tool:
                raise LookupError(f"the tool {slot.request.name!r} was switched off before this call of it began")
            reach: Any = tool.call if loop.ctx.outside is None else partial(loop.ctx.outside.call, slot.request, tool)
            work = reach(slot.values, ctx)
            if loop.wrappers:
                work = loop.around(slot.request, work)
            value = jsonable(await work if tool.timeout is None else await within(tool.timeout, work))
            if loop.alert and loop.ctx.is_cancelled():
                raise asyncio.CancelledError  # it went on all the same: too late
        except asyncio.CancelledError as cancelled:
            if loop.cancelling or loop.ctx.is_cancelled():
                raise
            failure = cancelled
        except OutOfTime:
            failure = TimeoutError(f"no result after {tool.timeout:g} s")
        except CallRefused as refused:
            if isinstance(refused.__cause__, (Ended, HookError)):
                raise  # a hook's word about the model call of a tool counts for the run
            failure = refused
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a tool raises is an error result
            failure = error
        loop.listen()
        if slot.ended:
            return  # it went on after it was cancelled: too late
        if failure is None:
            slot.result = self._result(slot, "ok", value)
        else:
            slot.result = self._result(
                slot, "error", error=(words if isinstance(failure, PlainError) else describe)(failure)
            )
        if slot.pump is None and ON_PROGRESS not in loop.heard:
            slot.ended = True
            if loop.ctx.listening:
                self._reports.tell_end(slot, slot.result)
        else:
            await self._reports.close(slot)
        if failure is not None:
            await self._report(slot, type(failure).__name__, words(failure))

    async def _report(self, slot: Slot, kind: str, message: str) -> None:
        await self.loop.report(ErrorInfo("tool", kind, message, slot.request.name, slot.request.id))

    # (d) Settle.

    async def _settle(self, index: int) -> None:
        """Fire ``after_tool`` for one call, and take it through (a) to (d) again if it is retried."""
        slot, loop = self.slots[index], self.loop
        result = slot.result
        assert result is not None
        retried = False
        try:
            no_retry = self._no_retry(result)
            verdict = await loop.fire(AFTER_TOOL, result, How(no_retry=no_retry) if no_retry else PLAIN)
            slot.result, retried = verdict.payload, verdict.action is HookAction.RETRY
        except Ended as ended:
            slot.result = ended.verdict.payload
            await self._blame(ended)
        except BaseException as cause:  # noqa: BLE001 - every cause becomes a status
            slot.result = replace(result, result=None, error="The result was withheld: its hooks did not finish.")
            await self._blame(cause)
        if retried:
            self.slots[index] = again = self._slot(slot.call, result.attempt + 1)
            await self._attempt([again])
            await self._settle(index)
        elif TOOL_END_WITH_PATH in loop.heard:
            await self._tell_paths(result)

    def _no_retry(self, result: ToolCallResult) -> str:
        if self.cause is not None or self.loop.ctx._signals:
            return "the run is over"
        if result.outcome not in ("ok", "error"):
            return f"the call was {result.outcome}"
        return "retry_limit" if result.attempt > MAX_RETRIES else ""

    async def _tell_paths(self, result: ToolCallResult) -> None:
        tool = self.loop.tools.get(result.name)
        if tool is None or result.outcome not in ("ok", "error"):
            return
        for path in tool.paths(result.arguments):
            told = ToolPath(result.name, path, tool.folder, result.id, result.ids)
            await self._in_any_case(self.loop.fire(TOOL_END_WITH_PATH, told))

    # Shared.

    def _slot(self, call: ToolCall, attempt: int) -> Slot:
        ids = self.loop.ctx.ids
        return Slot(call, ToolCallRequest(call.id, call.name, call.arguments, self.hop, attempt, call.raw, ids))

    def _result(self, slot: Slot, outcome: Outcome, value: Any = None, error: str | None = None) -> ToolCallResult:
        request = slot.request
        spent = self.loop.ctx.clock.monotonic() - slot.began if slot.started else 0.0
        return ToolCallResult(
            request.id, request.name, request.arguments, value, error, outcome, spent, self.hop, request.attempt,
            request.ids,
        )  # fmt: skip

    async def _in_any_case(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do what must be done although something went wrong; what goes wrong here counts too."""
        try:
            await work
        except BaseException as cause:  # noqa: BLE001 - every cause becomes a status
            await self._blame(cause)

    async def _blame(self, cause: BaseException) -> None:
        if isinstance(cause, GeneratorExit):
            raise cause  # the coroutine is being closed: nothing can be awaited any more
        if isinstance(cause, asyncio.CancelledError):
            cause = await self.loop.absorb(cause)
        self.cause = stronger(self.cause, cause)


async def _let_go(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Cancel tasks and give well-behaved ones one chance to finish; the others are abandoned."""
    for task in tasks:
        abandon(task)
    if tasks:
        await asyncio.wait(tasks, timeout=0)
