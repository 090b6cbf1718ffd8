"""The spans of one run. Needs OpenTelemetry."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from opentelemetry import context as current
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, StatusCode

from ..._base.tasks import running_loop
from ..._kernel.events import Event, HookExecuted
from ..._kernel.payloads import ModelReply, ModelRequest, ToolCallRequest
from ..._kernel.points import AFTER_LLM, APPROVAL_DECIDED, BEFORE_LLM, BEFORE_TOOL, ON_ERROR, ON_TOKEN
from ..._kernel.results import HookAction
from ..._kernel.state import AgentResult
from ..._kernel.values import Message
from ..._run.events import (
    ApprovalAsked,
    ApprovalDecided,
    Failed,
    ModelCalled,
    RunFinished,
    Signalled,
    ToolEnded,
    ToolSettled,
    ToolStarted,
)
from . import attributes as a
from .messages import arguments_text, input_messages, output_messages, result_text
from .spans import Backend, Piece, Within
from .values import Attributes, clean, params_of, short, usage_of

log = logging.getLogger("hookline")

_TO_COME = frozenset({BEFORE_TOOL, APPROVAL_DECIDED})
_OF_A_CHAT = frozenset({ON_TOKEN, AFTER_LLM, ON_ERROR})


class RunSpans(AbstractContextManager[None]):
    """The spans of one run; entered and left around it.

    Args:
        backend: where they go.
        ctx: the run's context.
        runs: where they are found by the run's id while it goes on.
    """

    def __init__(self, backend: Backend, ctx: Any, runs: dict[str, RunSpans]) -> None:
        self._backend, self._runs, self._id = backend, runs, ctx.run_id
        self._shift = time.time_ns() - time.perf_counter_ns()  # a wall clock may jump while the run goes on
        self._tools, ids, llm = ctx.tool_registry, ctx.ids, ctx.llm
        self._provider, self._agent = "", short(ids.agent)
        self._calls: dict[str, Piece] = {}
        self._chats: list[Piece] = []
        self._waiting: dict[Any, list[tuple[str, Attributes, int]]] = {}
        self._invalid: dict[str, tuple[str, str]] = {}
        self._result: AgentResult[Any] | None = None
        about = {
            a.OPERATION_NAME: a.INVOKE_AGENT, a.AGENT_NAME: ids.agent, a.CONVERSATION_ID: ids.session_id,
            a.RUN_ID: ids.run_id, a.TASK_ID: ids.task_id, a.CORRELATION_ID: ids.correlation_id,
            a.PARENT_RUN_ID: ids.parent_run_id,
        }  # fmt: skip
        if llm is not None:
            about |= {a.PROVIDER_NAME: a.provider_name(llm.provider), a.REQUEST_MODEL: llm.name}
        named = {name: short(value) for name, value in about.items() if value}
        self._run = self._start(f"{a.INVOKE_AGENT} {self._agent}".strip(), SpanKind.INTERNAL, named)
        self._context = trace.set_span_in_context(self._run.span)
        self._within = Within(backend.key, self._run)

    def __enter__(self) -> None:
        self._within.__enter__()
        self._runs[self._id] = self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._within.__exit__(kind, error, traceback)
        finally:
            if self._runs.get(self._id) is self:
                del self._runs[self._id]
            self._close()

    # What is around model calls and tools.

    def chat(self, request: ModelRequest) -> Within:
        """Begin the span of a model call, and be around it."""
        labels = {
            a.OPERATION_NAME: a.CHAT,
            a.PROVIDER_NAME: short(a.provider_name(self._provider)),
            a.REQUEST_MODEL: short(request.model),
        }
        piece = self._start(f"{a.CHAT} {labels[a.REQUEST_MODEL]}".strip(), SpanKind.CLIENT, labels)
        piece.request, piece.task = request, _task()
        self._chats.append(piece)
        if piece.span.is_recording():
            more = {a.PURPOSE: short(request.purpose), a.ATTEMPT: request.attempt, **params_of(request.params)}
            if request.response_format is not None:
                more[a.OUTPUT_TYPE] = "json"
            if self._backend.content:
                more[a.INPUT_MESSAGES] = input_messages(request.messages)
            piece.span.set_attributes(more)
        self._tell_what_waits(piece.task, piece)
        return Within(self._backend.key, piece, lambda error: self._left(piece, error))

    def _left(self, piece: Piece, error: BaseException | None) -> None:
        if not piece.open:
            return  # a hook ended the run while the text was streamed
        piece.over = self._now()
        if error is not None:
            piece.error = type(error).__name__
            if piece.span.is_recording():
                piece.span.set_status(StatusCode.ERROR, self._words(error))
            if not isinstance(error, Exception):
                self._end_chat(piece)  # it was cancelled: nobody will say more about it

    def tool(self, request: ToolCallRequest) -> Within | None:
        """Be around a tool, whose span has begun."""
        piece = self._calls.get(request.id)
        return None if piece is None else Within(self._backend.key, piece)

    # What the hook is told at its points.

    def replied(self, reply: ModelReply) -> None:
        """A model call has its reply, which the hooks have seen."""
        piece = self._chat_of(reply.request)
        if piece is not None:
            self._end_chat(piece, reply)

    def gave_up(self, request: ModelRequest) -> None:
        """A model call failed, which the hooks have seen."""
        piece = self._chat_of(request)
        if piece is not None:
            self._end_chat(piece)

    def _chat_of(self, request: ModelRequest) -> Piece | None:
        return next((piece for piece in reversed(self._chats) if piece.request is request), None)

    def _end_chat(self, piece: Piece, reply: ModelReply | None = None) -> None:
        if not piece.open:
            return
        self._chats = [chat for chat in self._chats if chat is not piece]
        piece.over = piece.over or self._now()
        labels = piece.labels | ({a.ERROR_TYPE: piece.error} if piece.error else {})
        try:
            if reply is not None:
                labels[a.RESPONSE_MODEL] = short(reply.model)
                labels[a.PROVIDER_NAME] = short(a.provider_name(reply.provider))
                for kind, count in (("input", reply.usage.input_tokens), ("output", reply.usage.output_tokens)):
                    self._backend.tokens.record(count, labels | {a.TOKEN_TYPE: kind})
            self._backend.seconds.record(piece.seconds, labels)
            if piece.span.is_recording():
                piece.span.set_attributes(labels if reply is None else labels | self._about_reply(reply))
        finally:
            self._end(piece)

    def _about_reply(self, reply: ModelReply) -> Attributes:
        about = {a.FINISH_REASONS: [short(reply.finish_reason)], **usage_of(reply.usage)}
        if self._backend.content:
            about[a.OUTPUT_MESSAGES] = output_messages(reply.content, reply.tool_calls, reply.finish_reason)
        return about

    # What happened.

    def take(self, event: Event) -> None:
        """Take in an event of the run."""
        took = _TAKEN.get(type(event))
        if took is not None:
            took(self, event)

    def _called(self, event: ModelCalled) -> None:
        self._provider = event.provider

    def _verdict(self, event: HookExecuted) -> None:
        if event.verb == HookAction.CONTINUE:
            return
        about = {a.HOOK: short(event.hook), a.POINT: str(event.point), a.VERB: str(event.verb)}
        self._backend.verdicts.add(1, about)
        told = about | ({a.REASON: short(event.reason)} if event.reason else {})
        if event.error and self._backend.content:
            told[a.EXCEPTION_MESSAGE] = short(event.error)
        task = _task()
        if event.point in _TO_COME and event.call_id:
            self._wait(event.call_id, a.VERDICT, told)
        elif event.call_id in self._calls:
            self._tell(self._calls[event.call_id], a.VERDICT, told)
        elif event.point == BEFORE_LLM:
            self._wait(task, a.VERDICT, told)
            if event.verb != HookAction.MODIFY:  # there may be no call to wait for
                self._tell_what_waits(task, self._here())
        elif event.point in _OF_A_CHAT and (chats := [chat for chat in self._chats if chat.task is task]):
            self._tell(chats[-1], a.VERDICT, told)
        else:
            self._tell(self._here(), a.VERDICT, told)

    def _tool_started(self, event: ToolStarted) -> None:
        piece = self._open_call(event)
        if self._backend.content and piece.span.is_recording():
            piece.span.set_attribute(a.TOOL_ARGUMENTS, arguments_text(event.arguments))

    def _open_call(self, event: ToolStarted | ToolEnded) -> Piece:
        before = self._calls.get(event.call_id)
        if before is not None:
            self._end(before)
        known = self._tools is not None and self._tools.get(event.tool) is not None
        name = short(event.tool)
        span_name = f"{a.EXECUTE_TOOL} {name}" if known else a.EXECUTE_TOOL  # a model may invent names without end
        about: Attributes = {
            a.OPERATION_NAME: a.EXECUTE_TOOL, a.TOOL_NAME: name, a.TOOL_CALL_ID: short(event.call_id),
            a.TOOL_TYPE: "function", a.ATTEMPT: event.attempt,
        }  # fmt: skip
        self._calls[event.call_id] = piece = self._start(span_name, SpanKind.INTERNAL, about, self._context)
        piece.labels = {a.TOOL_NAME: name if known else a.OTHER}
        self._tell_what_waits(event.call_id, piece)
        if (problem := self._invalid.pop(event.call_id, None)) is not None:
            self._spoil(piece, *problem)
        return piece

    def _tool_ended(self, event: ToolEnded) -> None:
        piece = self._calls.get(event.call_id)
        if piece is None or piece.over is not None:  # this attempt never started: it was blocked, answered or invalid
            piece = self._open_call(event)
        piece.over, piece.outcome = self._now(), event.outcome
        piece.span.set_attribute(a.OUTCOME, event.outcome)
        self._backend.tool_seconds.record(piece.seconds, piece.labels | {a.OUTCOME: event.outcome})

    def _tool_settled(self, event: ToolSettled) -> None:
        self._invalid.pop(event.call_id, None)
        piece = self._calls.pop(event.call_id, None)
        if piece is None:
            return
        try:
            if self._backend.content and piece.span.is_recording():
                piece.span.set_attribute(a.TOOL_RESULT, clean(result_text(event.text)))
        finally:
            self._end(piece)

    def _failed(self, event: Failed) -> None:
        error = event.error
        if error.where == "hook":
            about = {a.EXCEPTION_TYPE: short(error.type), a.HOOK: short(error.source)}
            if self._backend.content:
                about[a.EXCEPTION_MESSAGE] = short(error.message)
            self._tell(self._here(), a.EXCEPTION, about)
        elif error.where == "tool" and error.type != "Blocked":
            piece = self._calls.get(error.call_id)
            if piece is not None and piece.outcome == "error" and not piece.error:
                self._spoil(piece, error.type, error.message)
            else:  # arguments that do not fit: the call has not begun
                self._invalid[error.call_id] = error.type, error.message

    def _signalled(self, event: Signalled) -> None:
        signal = event.signal
        if signal.kind != "completed":
            about = {a.STOP_KIND: str(signal.kind), a.HOOK: signal.hook, a.REASON: signal.message}
            self._tell(self._run, a.STOP, {name: short(value) for name, value in about.items() if value})

    def _asked(self, event: ApprovalAsked) -> None:
        told: Attributes = {a.TOOL_NAME: short(event.tool)}
        if self._backend.content:
            told[a.QUESTIONS] = [short(question) for question in event.questions]
        self._wait(event.call_id, a.ASKED, told)

    def _decided(self, event: ApprovalDecided) -> None:
        self._wait(event.call_id, a.DECIDED, {a.DECISION: short(event.decision), a.DECIDED_BY: short(event.by)})

    def _finished(self, event: RunFinished) -> None:
        self._result, self._run.over = event.result, self._now()

    # Spans.

    def _now(self) -> int:
        return time.perf_counter_ns() + self._shift

    def _start(self, name: str, kind: SpanKind, attributes: Attributes, parent: Context | None = None) -> Piece:
        began = self._now()
        span = self._backend.tracer.start_span(name, parent, kind, attributes, start_time=began)
        return Piece(span, began, attributes)

    def _here(self) -> Piece:
        """The innermost span of this run around the caller."""
        piece = current.get_value(self._backend.key)
        return piece if isinstance(piece, Piece) and piece.open else self._run

    def _tell(self, piece: Piece, name: str, attributes: Attributes, at: int | None = None) -> None:
        if piece.open and piece.span.is_recording():
            piece.span.add_event(name, attributes, self._now() if at is None else at)

    def _wait(self, whom: Any, name: str, attributes: Attributes) -> None:
        """Keep an event for a span that has not begun."""
        self._waiting.setdefault(whom, []).append((name, attributes, self._now()))

    def _tell_what_waits(self, whom: Any, piece: Piece) -> None:
        for name, attributes, at in self._waiting.pop(whom, ()):
            self._tell(piece, name, attributes, at)

    def _spoil(self, piece: Piece, kind: str, message: str) -> None:
        piece.error = short(kind)
        if piece.span.is_recording():
            piece.span.set_attribute(a.ERROR_TYPE, piece.error)
            piece.span.set_status(StatusCode.ERROR, self._words(message))

    def _words(self, error: object) -> str | None:
        return short(error) if self._backend.content else None

    def _end(self, piece: Piece) -> None:
        if piece.open:
            piece.open = False
            piece.span.end(self._now() if piece.over is None else piece.over)

    def _close(self) -> None:
        """End every span that is open, whatever came of the run."""
        for chat in self._chats:
            _try(self._end_chat, chat)
        for call in self._calls.values():
            _try(self._end, call)
        for whom in list(self._waiting):
            _try(self._tell_what_waits, whom, self._run)
        _try(self._conclude)
        _try(self._end, self._run)
        self._calls, self._chats = {}, []

    def _conclude(self) -> None:
        result, span = self._result, self._run.span
        status = "cancelled" if result is None else result.status  # a coroutine that was closed tells no end
        labels = {a.STATUS: str(status)} | ({a.AGENT_NAME: self._agent} if self._agent else {})
        self._backend.runs.add(1, labels)
        if not span.is_recording():
            return
        span.set_attribute(a.STATUS, str(status))
        if result is None:
            return
        span.set_attributes({a.STEPS: len(result.steps), **usage_of(result.usage)})
        if result.cost is not None:
            span.set_attribute(a.COST, result.cost)
        if result.stop is not None:
            span.set_attribute(a.STOP_KIND, str(result.stop.kind))
        if self._backend.content:
            span.set_attribute(a.INPUT_MESSAGES, input_messages([Message("user", result.task)]))
            span.set_attribute(a.OUTPUT_MESSAGES, output_messages(result.reply))
        if status == "failed":
            fatal = [error for error in result.errors if error.fatal] or list(result.errors)
            span.set_attribute(a.ERROR_TYPE, short(fatal[-1].type) if fatal else a.OTHER)
            span.set_status(StatusCode.ERROR, self._words(fatal[-1].message) if fatal else None)


_TAKEN: Mapping[type[Event], Callable[[RunSpans, Any], None]] = {
    ApprovalAsked: RunSpans._asked,
    ApprovalDecided: RunSpans._decided,
    Failed: RunSpans._failed,
    HookExecuted: RunSpans._verdict,
    ModelCalled: RunSpans._called,
    RunFinished: RunSpans._finished,
    Signalled: RunSpans._signalled,
    ToolEnded: RunSpans._tool_ended,
    ToolSettled: RunSpans._tool_settled,
    ToolStarted: RunSpans._tool_started,
}


def _try(work: Callable[..., None], *args: Any) -> None:
    try:
        work(*args)
    except Exception:
        log.exception("OpenTelemetry failed at the end of a run")


def _task() -> asyncio.Task[Any] | None:
    return asyncio.current_task() if running_loop() is not None else None
