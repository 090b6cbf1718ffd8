"""The state of one tool call, and the reports about its progress (DESIGN 4.5)."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Literal

import msgspec

from .._base.attachment import Attachment
from .._base.frozen import EMPTY
from .._base.tasks import running_loop
from .._base.text import duration_text
from .._kernel.errors import HookError
from .._kernel.payloads import (
    ApprovalAnswer,
    ApprovalDecision,
    ApprovalRequest,
    Progress,
    Question,
    ToolCallRequest,
    ToolCallResult,
    unanswered,
)
from .._kernel.points import APPROVAL_DECIDED, APPROVAL_REQUESTED, ON_PROGRESS
from .._kernel.results import HookAnswer
from .._kernel.values import Outcome, ToolCall
from ..tools._tool import Tool
from .context import AgentContext, context_for_call
from .engine import Engine
from .events import ApprovalAsked, ApprovalDecided, ToolEnded, ToolProgressed, ToolStarted
from .lanes import LANE, in_lane

replace = msgspec.structs.replace


class PendingCall(msgspec.Struct):
    """One attempt of one call. ``request`` is the call after the hooks; ``result`` is set when it is finished.

    ``index`` is the position of the call in its step.
    """

    call: ToolCall
    index: int
    request: ToolCallRequest
    arguments_copy: Mapping[str, Any] | None = None
    """The copy of the arguments that hooks get. In-place changes of it have no effect."""
    checked_arguments: bytes = b""
    """The fingerprint of the validated arguments, if guards checked them."""
    tool: Tool | None = None
    values: Mapping[str, Any] = EMPTY
    """The Python values of the validated arguments, for the tool."""
    result: ToolCallResult | None = None
    answer: HookAnswer | None = None
    asks: tuple[Question, ...] = ()
    asking: bool = False
    started: bool = False
    ended: bool = False
    """Whether the outcome is final. Later results of the tool are ignored."""
    end_reported: bool = False
    """Whether the end was reported."""
    by: str = ""
    """The hook or person that blocked, denied or answered the call."""
    denied: bool = False
    began: float = 0.0
    questions: int = 0
    """How many questions the tool has asked people so far."""
    reports: tuple[tuple[float | None, str], ...] = ()
    reporter: asyncio.Task[None] | None = None

    def settle(
        self,
        engine: Engine,
        outcome: Outcome,
        value: Any = None,
        error: str | None = None,
        attachments: tuple[Attachment, ...] = (),
    ) -> None:
        """Set the result of the call."""
        request = self.request
        spent = engine.environment.clock.monotonic() - self.began if self.started else 0.0
        self.result = ToolCallResult(
            request.id,
            request.name,
            request.arguments,
            value,
            error,
            outcome,
            spent,
            request.hop,
            request.attempt,
            request.ids,
            attachments,
        )


class CallReports:
    """Reports the start, progress and end of tool calls as events and at ``on_progress``.

    The end of every call is reported exactly once, even if the tool was never started.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def start(self, call: PendingCall) -> None:
        """Report that the tool is about to be called."""
        engine, request = self._engine, call.request
        message = started_text(request)
        engine.emit(
            ToolStarted,
            call_id=request.id,
            tool=request.name,
            arguments=request.arguments,
            attempt=request.attempt,
            message=message,
        )
        if engine.fires(ON_PROGRESS):
            await self._progress(call, "tool_start", message)

    async def end(self, call: PendingCall) -> None:
        """Report the outcome of the attempt, once."""
        result, engine = call.result, self._engine
        if call.end_reported or result is None:
            return
        call.ended = True
        try:
            if call.reporter is not None:
                await call.reporter
        finally:
            reported, call.end_reported = (
                call.end_reported,
                True,
            )  # an abandoned tool may have ended at the same time
            if engine.reports_calls and not reported:
                message = ended_text(result, ran=call.started, by=call.by, denied=call.denied)
                engine.emit(
                    ToolEnded,
                    call_id=result.id,
                    tool=result.name,
                    outcome=result.outcome,
                    duration=result.duration,
                    attempt=result.attempt,
                    message=message,
                )
                if engine.fires(ON_PROGRESS):
                    await self._progress(call, "tool_end", message, outcome=result.outcome)

    def context_of(self, call: PendingCall, tool: Tool) -> AgentContext[Any]:
        """Create the context for the tool. It may report progress from any thread."""
        aio, lane = asyncio.get_running_loop(), LANE.get()
        of_reports = None if lane is None else lane.of_progress()

        def report(fraction: float | None, message: str) -> None:
            with in_lane(of_reports), suppress(RuntimeError):  # of a closed loop: it comes from an abandoned thread
                if running_loop() is aio:
                    self._queue(call, fraction, message)
                else:
                    aio.call_soon_threadsafe(self._queue, call, fraction, message)

        of_tool = lane if lane is None or tool.runs_agents else lane.of_tool()

        async def ask(question: str, arguments: Mapping[str, Any], asked_by: str) -> ApprovalAnswer:
            # Each question has its own hook: a remembered permission covers the hooks that asked, so no later question.
            by = f"{asked_by or call.request.name} ({secrets.token_hex(4)})"
            call.questions += 1
            id = f"{call.request.id}.{call.questions}"
            with in_lane(of_tool):
                return await self._ask(replace(call.request, id=id, arguments=arguments), Question(question, by))

        return context_for_call(self._engine.ctx, report, call.request, of_tool, ask)

    async def _ask(self, request: ToolCallRequest, question: Question) -> ApprovalAnswer:
        """Ask the approvers in the middle of a tool call. They decide about the arguments that the request has."""
        engine = self._engine
        if engine.boundary.is_durable:
            return ApprovalAnswer(deny="A durable run cannot wait for an answer in the middle of a tool call.")
        same = {"call_id": request.id, "tool": request.name, "digest": request.digest}
        engine.emit(ApprovalAsked, arguments=request.arguments, questions=(question.text,), **same)
        answer, by = ApprovalAnswer(deny="The approval failed."), ""
        decision: Literal["approved", "denied", "edited", "cancelled"] = "cancelled"
        try:
            verdict = await engine.fire(
                APPROVAL_REQUESTED, ApprovalRequest(request, (question,), request.digest), fatal=False
            )
            answer = verdict.value or ApprovalAnswer(deny=unanswered((question,)))
            if answer.wait:
                answer = ApprovalAnswer(deny="Nobody has answered yet, and this call cannot wait.")
            by = answer.by or verdict.hook
            decision = "edited" if answer.edit is not None else "approved" if answer.approve else "denied"
        except HookError as error:
            by, decision = error.hook, "denied"
        finally:
            message = answer.deny or ""
            engine.emit(ApprovalDecided, decision=decision, by=by, message=message, **same)
        await engine.fire(
            APPROVAL_DECIDED, ApprovalDecision(request.id, decision, by, request.digest, message, engine.ids)
        )
        return answer

    def _queue(self, call: PendingCall, fraction: float | None, message: str) -> None:
        if call.ended:
            return
        call.reports += ((fraction, message),)
        if call.reporter is None or call.reporter.done():
            call.reporter = asyncio.get_running_loop().create_task(self._send(call))

    async def _send(self, call: PendingCall) -> None:
        request, engine = call.request, self._engine
        while call.reports:
            (fraction, note), call.reports = call.reports[0], call.reports[1:]
            message = progressed_text(request, note, fraction)
            engine.emit(
                ToolProgressed,
                call_id=request.id,
                tool=request.name,
                fraction=fraction,
                message=message,
                attempt=request.attempt,
            )
            try:
                await self._progress(call, "progress", message, fraction=fraction)
            except BaseException as error:  # noqa: BLE001 - every cause becomes a status
                engine.cancellation.abort(error)
                return

    async def _progress(
        self, call: PendingCall, phase: Literal["tool_start", "progress", "tool_end"], message: str, **fields: Any
    ) -> None:
        request = call.request
        await self._engine.fire(
            ON_PROGRESS,
            Progress(phase, request.id, request.name, message, attempt=request.attempt, ids=request.ids, **fields),
        )


# Messages about a call for people: one short line each.

_NAME, _VALUE, _NOTE = 80, 60, 200
_ARGUMENTS = 4


def started_text(request: ToolCallRequest) -> str:
    """Return a message about the start of a call: ``read_file: notes.txt``."""
    about = _about(request.arguments)
    again = f" (attempt {request.attempt})" if request.attempt > 1 else ""
    return f"{_line(request.name, _NAME)}{f': {about}' if about else ' started'}{again}"


def progressed_text(request: ToolCallRequest, note: str, fraction: float | None) -> str:
    """Return a message about the progress of a call: ``shell: half way (50%)``."""
    name, note = _line(request.name, _NAME), _line(note, _NOTE)
    if fraction is None:
        return f"{name}: {note}" if note else f"{name} is running"
    return f"{name}: {note} ({fraction:.0%})" if note else f"{name}: {fraction:.0%}"


def ended_text(result: ToolCallResult, *, ran: bool, by: str = "", denied: bool = False) -> str:
    """Return a message about the end of a call: ``read_file finished in 0.2 s``.

    It does not contain the result, because hooks may still change it.

    Args:
        result: the result of the call.
        ran: whether the tool was called.
        by: the hook or person that blocked, denied or answered the call.
        denied: whether an approver denied the call.
    """
    name, by_whom = _line(result.name, _NAME), f" by {_line(by, _NAME)}" if by else ""
    match result.outcome:
        case "ok":
            return f"{name} finished in {duration_text(result.duration)}"
        case "error":
            return f"{name} failed after {duration_text(result.duration)}" if ran else f"{name} could not be called"
        case "blocked":
            return f"{name} was {'denied' if denied else 'blocked'}{by_whom}"
        case "answered":
            return f"{name} was answered{by_whom}"
    return f"{name} was cancelled" + (f" after {duration_text(result.duration)}" if ran else "")


def _about(arguments: Mapping[str, Any]) -> str:
    """Return a short description of the arguments, without empty ones."""
    arguments = {name: value for name, value in arguments.items() if value is not None and value != ""}
    if len(arguments) == 1:
        return _line(_value(next(iter(arguments.values()))), _VALUE)
    some = [f"{name}={_value(value)[:_VALUE]}" for name, value in islice(arguments.items(), _ARGUMENTS)]
    return _line(", ".join(some), 2 * _VALUE) + (", …" if len(arguments) > _ARGUMENTS else "")


def _value(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (dict, list, tuple)):
        return f"{len(value)} {'fields' if isinstance(value, dict) else 'items'}"
    return str(value).lower()[:_VALUE]


def _line(text: str, width: int) -> str:
    """Return the text as one line of at most ``width`` printable characters."""
    text = " ".join(text.split()) if len(text) <= width else f"{' '.join(text[: width - 1].split())}…"
    return text if text.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in text)
