"""Runs as OpenTelemetry traces and metrics."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from .._base.errors import NotInstalledError
from .._kernel.events import Event, HookExecuted
from .._kernel.payloads import Failure, ModelReply, ModelRequest, RunStart, ToolCallRequest
from .._kernel.points import AFTER_LLM, ON_ERROR
from .._run.events import (
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
from ._support.validation import check_bool, check_method

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from ._otel.run_spans import RunSpans

log = logging.getLogger("hookline")


class OpenTelemetryHook:
    """Reports runs, model calls and tools to OpenTelemetry, as spans with the hooks' verdicts and as metrics.

    A run is a span ``invoke_agent NAME`` below the caller's current span; below it are ``chat MODEL`` and
    ``execute_tool NAME``. Inside a tool or a model call that span is the current one, so that spans of HTTP clients and
    runs started there are below it. What hooks said is in the events of the span it was about. Names are those of the
    conventions for generative AI. Without providers the global ones are used, also if they are set later; nothing is
    sent unless the program sets up an SDK. Whatever fails in OpenTelemetry is logged, and the run goes on.

    Args:
        tracer_provider: where spans go; the global one if left out.
        meter_provider: where metrics go; the global one if left out.
        content: whether messages, arguments, results and the words of errors are reported too.

    Raises:
        RegistrationError: a provider is none.
        NotInstalledError: the package ``opentelemetry-api`` is missing.
    """

    points = frozenset({AFTER_LLM, ON_ERROR})
    phase = "observe"
    priority = -200
    events = frozenset(
        {
            ApprovalAsked, ApprovalDecided, Failed, HookExecuted, ModelCalled, RunFinished, Signalled, ToolEnded,
            ToolSettled, ToolStarted,
        }
    )  # fmt: skip

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        *,
        content: bool = False,
    ) -> None:
        if tracer_provider is not None:
            check_method(tracer_provider, "get_tracer", "tracer_provider= is a TracerProvider of OpenTelemetry")
        if meter_provider is not None:
            check_method(meter_provider, "get_meter", "meter_provider= is a MeterProvider of OpenTelemetry")
        self.content = check_bool(content, "content")
        try:
            from ._otel.spans import Backend
        except ModuleNotFoundError as missing:
            raise NotInstalledError("opentelemetry-api", "otel") from missing
        self._backend = Backend(tracer_provider, meter_provider, self.content)
        self._runs: dict[str, RunSpans] = {}

    def __call__(self, point: str, ctx: Any, payload: ModelReply | Failure) -> None:
        """A model call is over: end its span."""
        run = self._runs.get(ctx.run_id)
        if run is None:
            return
        try:
            if isinstance(payload, ModelReply):
                run.replied(payload)
            elif payload.request is not None:
                run.gave_up(payload.request)
        except Exception:
            log.exception("OpenTelemetry failed at %s", point)

    def wrap(self, ctx: Any, payload: Any) -> AbstractContextManager[None] | None:
        """Have a span of its own be the current one, in a run and in each model call and tool of it."""
        if isinstance(payload, RunStart):
            from ._otel.run_spans import RunSpans

            return RunSpans(self._backend, ctx, self._runs)
        run = self._runs.get(ctx.run_id)
        if run is None:
            return None
        if isinstance(payload, ModelRequest):
            return run.chat(payload)
        return run.tool(payload) if isinstance(payload, ToolCallRequest) else None

    def on_event(self, event: Event) -> None:
        """Take in what happened."""
        run = self._runs.get(event.run_id)
        if run is not None:
            run.take(event)
