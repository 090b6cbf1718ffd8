"""The spans and metrics of runs. Importing this module requires OpenTelemetry."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from opentelemetry import context as current
from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode

from ..._base.package import __version__
from ..._base.tasks import running_loop
from ..._kernel.events import Event, HookExecuted
from ..._kernel.payloads import ModelReply, ModelRequest, ToolCallRequest
from ..._kernel.points import AFTER_LLM, APPROVAL_DECIDED, BEFORE_LLM, BEFORE_TOOL, ON_ERROR, ON_TOKEN
from ..._kernel.results import HookAction
from ..._kernel.scope import scope_of
from ..._kernel.state import AgentResult
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
    is_silent,
)
from . import attributes as a
from .values import (
    Attributes,
    arguments_text,
    clean,
    finish_reason_of,
    input_messages,
    output_messages,
    params_of,
    result_text,
    server_of,
    short,
    task_message,
    usage_of,
)

log = logging.getLogger("hookline")

_BEFORE_CALL = frozenset({BEFORE_TOOL, APPROVAL_DECIDED})
_DURING_CHAT = frozenset({ON_TOKEN, AFTER_LLM, ON_ERROR})


class Backend:
    """The tracer and the instruments of one hook."""

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None,
        meter_provider: metrics.MeterProvider | None,
        content: bool,
    ) -> None:
        self.content = content
        self.key = current.create_key("hookline")
        self.tracer = trace.get_tracer("hookline", __version__, tracer_provider, a.SCHEMA_URL)
        meter = metrics.get_meter("hookline", __version__, meter_provider, a.SCHEMA_URL)
        self.tokens = meter.create_histogram(
            a.TOKEN_USAGE,
            "{token}",
            "Tokens used by model calls.",
            explicit_bucket_boundaries_advisory=a.TOKEN_BUCKETS,
        )
        self.seconds = meter.create_histogram(
            a.OPERATION_DURATION,
            "s",
            "Duration of model calls.",
            explicit_bucket_boundaries_advisory=a.SECOND_BUCKETS,
        )
        self.tool_seconds = meter.create_histogram(
            a.TOOL_DURATION, "s", "Duration of tool calls.", explicit_bucket_boundaries_advisory=a.SECOND_BUCKETS
        )
        self.verdicts = meter.create_counter(a.VERDICTS, "{verdict}", "Verdicts of hooks.")
        self.runs = meter.create_counter(a.RUNS, "{run}", "Finished runs.")


class OpenSpan:
    """An open span. It is ended when all its attributes are known, with the earlier end time of its operation."""

    __slots__ = ("end", "error", "labels", "open", "outcome", "request", "span", "start", "task")

    def __init__(self, span: Span, start: int, labels: Attributes) -> None:
        self.span, self.start, self.labels = span, start, labels
        self.end: int | None = None
        self.open = True
        self.error = self.outcome = ""
        self.request: ModelRequest | None = None
        self.task: Any = None

    @property
    def seconds(self) -> float:
        """The duration."""
        return 0.0 if self.end is None else (self.end - self.start) / 1e9


class CurrentSpan(AbstractContextManager[None]):
    """Makes a span the current one inside a block.

    It restores the span before only in the context that it was entered in, because a coroutine may be closed elsewhere.
    """

    __slots__ = ("_before", "_key", "_left", "_open_span")

    def __init__(
        self, key: str, open_span: OpenSpan, left: Callable[[BaseException | None], None] | None = None
    ) -> None:
        self._key, self._open_span, self._left = key, open_span, left

    def __enter__(self) -> None:
        self._before = before = current.get_current()
        current.attach(
            current.set_value(self._key, self._open_span, trace.set_span_in_context(self._open_span.span, before))
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if current.get_value(self._key) is self._open_span:
            current.attach(self._before)
        if self._left is not None:
            self._left(error)


class RunSpans(AbstractContextManager[None]):
    """The spans of one run, a context manager around it.

    Args:
        backend: the tracer and the instruments.
        ctx: the context of the run.
        runs: the spans of all runs in progress, by run id.
    """

    def __init__(self, backend: Backend, ctx: Any, runs: dict[str, RunSpans]) -> None:
        self._backend, self._runs, self._id = backend, runs, ctx.run_id
        self._shift = time.time_ns() - time.perf_counter_ns()  # the wall clock may jump during the run
        self._tools, ids, llm = ctx.tool_registry, ctx.ids, ctx.llm
        self._agent = short(ids.agent)
        self._conversation = short(ids.session_id or "")
        listens = getattr(scope_of(ctx), "has_listeners", None)  # not in the loops of other frameworks
        self._listens = listens if llm is not None and hasattr(llm.model, "stream") else None
        self._called = ModelCalled()
        self._calls: dict[str, OpenSpan] = {}
        self._chats: list[OpenSpan] = []
        self._waiting: dict[Any, list[tuple[str, Attributes, int]]] = {}
        self._invalid: dict[str, tuple[str, str]] = {}
        self._requested: dict[str, Any] = {}
        """The arguments that the model gave, by the id of the call."""
        self._refused: dict[str, str] = {}
        """Who refused a call and why, by the id of the call."""
        self._result: AgentResult[Any] | None = None
        about = {
            a.OPERATION_NAME: a.INVOKE_AGENT,
            a.SPAN_KIND: "AGENT",
            a.AGENT_NAME: ids.agent,
            a.CONVERSATION_ID: ids.session_id,
            a.RUN_ID: ids.run_id,
            a.TASK_ID: ids.task_id,
            a.CORRELATION_ID: ids.correlation_id,
            a.PARENT_RUN_ID: ids.parent_run_id,
        }
        if llm is not None:
            about |= {a.PROVIDER_NAME: a.provider_name(llm.provider), a.REQUEST_MODEL: llm.name}
        named = {name: short(value) for name, value in about.items() if value}
        self._run = self._start(f"{a.INVOKE_AGENT} {self._agent}".strip(), SpanKind.INTERNAL, named)
        self._context = trace.set_span_in_context(self._run.span)
        self._within = CurrentSpan(backend.key, self._run)

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

    # Spans around model calls and tools.

    def chat(self, request: ModelRequest) -> CurrentSpan:
        """Start the span of a model call, and return a context manager around the call."""
        labels: Attributes = {
            a.OPERATION_NAME: a.CHAT,
            a.PROVIDER_NAME: short(a.provider_name(self._called.provider)),
            a.REQUEST_MODEL: short(request.model),
            **server_of(self._called.server),
        }
        open_span = self._start(f"{a.CHAT} {labels[a.REQUEST_MODEL]}".strip(), SpanKind.CLIENT, labels)
        open_span.request, open_span.task = request, _task()
        self._chats.append(open_span)
        if open_span.span.is_recording():
            more: Attributes = {a.SPAN_KIND: "LLM", a.PURPOSE: short(request.purpose), a.ATTEMPT: request.attempt}
            more |= params_of(request.params)
            if self._conversation:
                more[a.CONVERSATION_ID] = self._conversation
            if self._listens is not None and self._listens(ON_TOKEN):
                more[a.STREAM] = True
            if request.response_format is not None:
                more[a.OUTPUT_TYPE] = "json"
            if self._backend.content:
                more[a.INPUT_MESSAGES] = input_messages(request.messages)
            open_span.span.set_attributes(more)
        self._add_waiting_events(open_span.task, open_span)
        return CurrentSpan(self._backend.key, open_span, lambda error: self._chat_left(open_span, error))

    def _chat_left(self, open_span: OpenSpan, error: BaseException | None) -> None:
        if not open_span.open:
            return  # a hook ended the run while the reply was streamed
        open_span.end = self._now()
        if error is not None:
            open_span.error = type(error).__name__
            if open_span.span.is_recording():
                open_span.span.set_status(StatusCode.ERROR, self._message(error))
            if not isinstance(error, Exception):
                self._end_chat(open_span)  # cancelled: no more events about it will follow

    def tool(self, request: ToolCallRequest) -> CurrentSpan | None:
        """Return a context manager around a tool call, whose span is already open."""
        open_span = self._calls.get(request.id)
        return None if open_span is None else CurrentSpan(self._backend.key, open_span)

    # The points of the hook.

    def replied(self, reply: ModelReply) -> None:
        """End the span of a model call, after the hooks have seen its reply."""
        open_span = self._chat_of(reply.request)
        if open_span is not None:
            self._end_chat(open_span, reply)
        if self._backend.content and reply.request.purpose == "step":
            self._requested = {call.id: call.arguments for call in reply.tool_calls}

    def model_failed(self, request: ModelRequest) -> None:
        """End the span of a failed model call, after the hooks have seen the failure."""
        open_span = self._chat_of(request)
        if open_span is not None:
            self._end_chat(open_span)

    def _chat_of(self, request: ModelRequest) -> OpenSpan | None:
        return next((open_span for open_span in reversed(self._chats) if open_span.request is request), None)

    def _end_chat(self, open_span: OpenSpan, reply: ModelReply | None = None) -> None:
        if not open_span.open:
            return
        self._chats = [chat for chat in self._chats if chat is not open_span]
        open_span.end = open_span.end or self._now()
        labels = open_span.labels | ({a.ERROR_TYPE: open_span.error} if open_span.error else {})
        try:
            if reply is not None:
                labels[a.RESPONSE_MODEL] = short(reply.model)
                labels[a.PROVIDER_NAME] = short(a.provider_name(reply.provider))
                for kind, count in (("input", reply.usage.input_tokens), ("output", reply.usage.output_tokens)):
                    self._backend.tokens.record(count, labels | {a.TOKEN_TYPE: kind})
            self._backend.seconds.record(open_span.seconds, labels)
            if open_span.span.is_recording():
                open_span.span.set_attributes(labels if reply is None else labels | self._about_reply(reply))
        finally:
            self._end(open_span)

    def _about_reply(self, reply: ModelReply) -> Attributes:
        about: Attributes = {a.FINISH_REASONS: [short(reply.finish_reason)], **usage_of(reply.usage)}
        if reply.response_id:
            about[a.RESPONSE_ID] = short(reply.response_id)
        if self._backend.content:
            about[a.OUTPUT_MESSAGES] = output_messages(reply.content, reply.tool_calls, reply.finish_reason)
        return about

    # Events.

    def on_event(self, event: Event) -> None:
        """Record an event of the run."""
        handler = _HANDLERS.get(type(event))
        if handler is not None:
            handler(self, event)

    def _model_called(self, event: ModelCalled) -> None:
        self._called = event

    def _verdict(self, event: HookExecuted) -> None:
        if is_silent(event):
            return
        about = {a.HOOK: short(event.hook), a.POINT: str(event.point), a.VERB: str(event.verb)}
        self._backend.verdicts.add(1, about)
        details = about | ({a.REASON: short(event.reason)} if event.reason else {})
        if event.error and self._backend.content:
            details[a.EXCEPTION_MESSAGE] = short(event.error)
        if event.refused and event.call_id:
            self._refused[event.call_id] = f"{event.hook}: {event.reason}" if event.reason else event.hook
        task = _task()
        if event.point in _BEFORE_CALL and event.call_id:
            self._add_event_later(event.call_id, a.VERDICT, details)
        elif event.call_id in self._calls:
            self._add_event(self._calls[event.call_id], a.VERDICT, details)
        elif event.point == BEFORE_LLM:
            self._add_event_later(task, a.VERDICT, details)
            if event.verb not in (HookAction.REPLACE, HookAction.CONT):  # there may be no model call to add it to
                self._add_waiting_events(task, self._current())
        elif event.point in _DURING_CHAT and (chats := [chat for chat in self._chats if chat.task is task]):
            self._add_event(chats[-1], a.VERDICT, details)
        else:
            self._add_event(self._current(), a.VERDICT, details)

    def _tool_started(self, event: ToolStarted) -> None:
        open_span = self._open_call(event)
        if self._backend.content and open_span.span.is_recording():
            arguments = arguments_text(event.arguments)
            open_span.span.set_attributes({a.TOOL_ARGUMENTS: arguments, a.INPUT: arguments})

    def _open_call(self, event: ToolStarted | ToolEnded) -> OpenSpan:
        before = self._calls.get(event.call_id)
        if before is not None:
            self._end(before)
        found = None if self._tools is None else self._tools.get(event.tool)
        known = found is not None
        name = short(event.tool)
        span_name = f"{a.EXECUTE_TOOL} {name}" if known else a.EXECUTE_TOOL  # models may invent any number of names
        about: Attributes = {
            a.OPERATION_NAME: a.EXECUTE_TOOL,
            a.SPAN_KIND: "TOOL",
            a.TOOL_NAME: name,
            a.TOOL_CALL_ID: short(event.call_id),
            a.TOOL_TYPE: "function",
            a.ATTEMPT: event.attempt,
        }
        if found is not None and found.spec.description:
            about[a.TOOL_DESCRIPTION] = short(found.spec.description)
        self._calls[event.call_id] = open_span = self._start(span_name, SpanKind.INTERNAL, about, self._context)
        open_span.labels = {a.TOOL_NAME: name if known else a.OTHER}
        self._add_waiting_events(event.call_id, open_span)
        if (problem := self._invalid.pop(event.call_id, None)) is not None:
            self._set_error(open_span, *problem)
        return open_span

    def _tool_ended(self, event: ToolEnded) -> None:
        open_span = self._calls.get(event.call_id)
        if open_span is None or open_span.end is not None:  # the attempt did not start: blocked, answered or invalid
            open_span = self._open_call(event)
        open_span.end, open_span.outcome = self._now(), event.outcome
        open_span.span.set_attribute(a.OUTCOME, event.outcome)
        if event.outcome == "blocked":
            self._set_blocked(open_span, event.call_id)
        self._backend.tool_seconds.record(open_span.seconds, open_span.labels | {a.OUTCOME: event.outcome})

    def _tool_settled(self, event: ToolSettled) -> None:
        self._invalid.pop(event.call_id, None)
        open_span = self._calls.pop(event.call_id, None)
        if open_span is None:
            return
        try:
            if self._backend.content and open_span.span.is_recording():
                result = clean(result_text(event.text))
                open_span.span.set_attributes({a.TOOL_RESULT: result, a.OUTPUT: result})
        finally:
            self._end(open_span)

    def _failed(self, event: Failed) -> None:
        error = event.error
        if error.where == "hook":
            about = {a.EXCEPTION_TYPE: short(error.type), a.HOOK: short(error.source)}
            if self._backend.content:
                about[a.EXCEPTION_MESSAGE] = short(error.message)
            self._add_event(self._current(), a.EXCEPTION, about)
        elif error.where == "tool" and error.type != "Blocked":
            open_span = self._calls.get(error.call_id)
            if open_span is not None and open_span.outcome == "error" and not open_span.error:
                self._set_error(open_span, error.type, error.message)
            else:  # invalid arguments: the call has not begun
                self._invalid[error.call_id] = error.type, error.message

    def _signalled(self, event: Signalled) -> None:
        signal = event.signal
        if signal.kind != "completed":
            about = {a.STOP_KIND: str(signal.kind), a.HOOK: signal.hook, a.REASON: signal.message}
            self._add_event(self._run, a.STOP, {name: short(value) for name, value in about.items() if value})

    def _approval_asked(self, event: ApprovalAsked) -> None:
        details: Attributes = {a.TOOL_NAME: short(event.tool)}
        if self._backend.content:
            details[a.QUESTIONS] = [short(question) for question in event.questions]
        self._add_event_later(event.call_id, a.ASKED, details)

    def _approval_decided(self, event: ApprovalDecided) -> None:
        if event.decision == "denied":
            self._refused[event.call_id] = event.by
        self._add_event_later(
            event.call_id, a.DECIDED, {a.DECISION: short(event.decision), a.DECIDED_BY: short(event.by)}
        )

    def _run_finished(self, event: RunFinished) -> None:
        self._result, self._run.end = event.result, self._now()

    # Spans.

    def _now(self) -> int:
        return time.perf_counter_ns() + self._shift

    def _start(self, name: str, kind: SpanKind, attributes: Attributes, parent: Context | None = None) -> OpenSpan:
        began = self._now()
        span = self._backend.tracer.start_span(name, parent, kind, attributes, start_time=began)
        return OpenSpan(span, began, attributes)

    def _current(self) -> OpenSpan:
        """Return the innermost open span of this run in the current context."""
        open_span = current.get_value(self._backend.key)
        return open_span if isinstance(open_span, OpenSpan) and open_span.open else self._run

    def _add_event(self, open_span: OpenSpan, name: str, attributes: Attributes, at: int | None = None) -> None:
        if open_span.open and open_span.span.is_recording():
            open_span.span.add_event(name, attributes, self._now() if at is None else at)

    def _add_event_later(self, key: Any, name: str, attributes: Attributes) -> None:
        """Keep an event for a span that has not started."""
        self._waiting.setdefault(key, []).append((name, attributes, self._now()))

    def _add_waiting_events(self, key: Any, open_span: OpenSpan) -> None:
        for name, attributes, at in self._waiting.pop(key, ()):
            self._add_event(open_span, name, attributes, at)

    def _set_error(self, open_span: OpenSpan, kind: str, message: str) -> None:
        open_span.error = short(kind)
        if open_span.span.is_recording():
            open_span.span.set_attribute(a.ERROR_TYPE, open_span.error)
            open_span.span.set_status(StatusCode.ERROR, self._message(message))

    def _set_blocked(self, open_span: OpenSpan, call_id: str) -> None:
        """Mark a call that did not run. Without a status, viewers of traces show it like one that did."""
        by = self._refused.pop(call_id, "")
        open_span.error = a.BLOCKED
        if open_span.span.is_recording():
            open_span.span.set_attribute(a.ERROR_TYPE, a.BLOCKED)
            open_span.span.set_status(StatusCode.ERROR, short(f"blocked by {by}" if by else "blocked"))
            if call_id in self._requested:
                open_span.span.set_attribute(a.INPUT, arguments_text(self._requested[call_id]))

    def _message(self, error: object) -> str | None:
        return short(error) if self._backend.content else None

    def _end(self, open_span: OpenSpan) -> None:
        if open_span.open:
            open_span.open = False
            open_span.span.end(self._now() if open_span.end is None else open_span.end)

    def _close(self) -> None:
        """End all open spans, even if one of them fails."""
        for chat in self._chats:
            _attempt(self._end_chat, chat)
        for call in self._calls.values():
            _attempt(self._end, call)
        for key in list(self._waiting):
            _attempt(self._add_waiting_events, key, self._run)
        _attempt(self._set_result)
        _attempt(self._end, self._run)
        self._calls, self._chats = {}, []

    def _set_result(self) -> None:
        result, span = self._result, self._run.span
        status = "cancelled" if result is None else result.status  # a closed coroutine has no RunFinished event
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
        reason = finish_reason_of(result)
        span.set_attribute(a.FINISH_REASONS, [reason])
        if self._backend.content:
            span.set_attribute(a.INPUT_MESSAGES, input_messages([task_message(result)]))
            span.set_attribute(a.OUTPUT_MESSAGES, output_messages(result.reply, finish_reason=reason))
            span.set_attributes({a.INPUT: clean(result_text(result.task)), a.OUTPUT: clean(result_text(result.reply))})
        if status == "failed":
            fatal = [error for error in result.errors if error.fatal] or list(result.errors)
            span.set_attribute(a.ERROR_TYPE, short(fatal[-1].type) if fatal else a.OTHER)
            span.set_status(StatusCode.ERROR, self._message(fatal[-1].message) if fatal else None)
        elif status == "completed":
            span.set_status(StatusCode.OK)


_HANDLERS: Mapping[type[Event], Callable[[RunSpans, Any], None]] = {
    ApprovalAsked: RunSpans._approval_asked,
    ApprovalDecided: RunSpans._approval_decided,
    Failed: RunSpans._failed,
    HookExecuted: RunSpans._verdict,
    ModelCalled: RunSpans._model_called,
    RunFinished: RunSpans._run_finished,
    Signalled: RunSpans._signalled,
    ToolEnded: RunSpans._tool_ended,
    ToolSettled: RunSpans._tool_settled,
    ToolStarted: RunSpans._tool_started,
}


def _attempt(work: Callable[..., None], *args: Any) -> None:
    try:
        work(*args)
    except Exception:
        log.exception("OpenTelemetry failed at the end of a run")


def _task() -> asyncio.Task[Any] | None:
    return asyncio.current_task() if running_loop() is not None else None
