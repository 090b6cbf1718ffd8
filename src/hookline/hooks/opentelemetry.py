"""OpenTelemetryHook: reports runs as OpenTelemetry traces and metrics."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from .._base.errors import NotInstalledError
from .._kernel.events import Event, HookExecuted
from .._kernel.payloads import ErrorReport, ModelReply, ModelRequest, RunStart, ToolCallRequest
from .._kernel.points import AFTER_LLM, ON_ERROR
from .._kernel.validation import check_bool, check_method
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

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from ._otel.spans import RunSpans

log = logging.getLogger("hookline")


class OpenTelemetryHook:
    """Reports runs, model calls and tool calls to OpenTelemetry, as spans with the verdicts of hooks, and as metrics.

    A run is a span ``invoke_agent NAME``, a child of the caller's current span, with the children ``chat MODEL`` and
    ``execute_tool NAME``. Inside a tool or a model call, its span is the current one, so that spans of HTTP clients and
    of inner runs are its children. Verdicts of hooks are span events. Names follow the conventions for generative AI.
    Nothing is sent unless the program sets up an SDK. Failures in OpenTelemetry are logged, and the run continues.

    Example:
        >>> agent = Agent("helper", llm="openai:gpt-5-mini", hooks=[OpenTelemetryHook()])

    Args:
        tracer_provider: the provider for spans; by default the global one, even if it is set later.
        meter_provider: the provider for metrics; by default the global one, even if it is set later.
        content: whether to report messages, arguments, results and error messages too.

    Raises:
        RegistrationError: a provider has the wrong type.
        NotInstalledError: the package ``opentelemetry-api`` is missing.
    """

    points = frozenset({AFTER_LLM, ON_ERROR})
    phase = "observe"
    priority = -200
    events = frozenset(
        {
            ApprovalAsked,
            ApprovalDecided,
            Failed,
            HookExecuted,
            ModelCalled,
            RunFinished,
            Signalled,
            ToolEnded,
            ToolSettled,
            ToolStarted,
        }
    )

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        *,
        content: bool = False,
    ) -> None:
        if tracer_provider is not None:
            check_method(tracer_provider, "get_tracer", "tracer_provider must be a TracerProvider of OpenTelemetry")
        if meter_provider is not None:
            check_method(meter_provider, "get_meter", "meter_provider must be a MeterProvider of OpenTelemetry")
        self.content = check_bool(content, "content")
        try:
            from ._otel.spans import Backend
        except ModuleNotFoundError as missing:
            raise NotInstalledError("opentelemetry-api", "otel") from missing
        self._backend = Backend(tracer_provider, meter_provider, self.content)
        self._runs: dict[str, RunSpans] = {}

    def __call__(self, point: str, ctx: Any, payload: ModelReply | ErrorReport) -> None:
        """End the span of a model call."""
        run = self._runs.get(ctx.run_id)
        if run is None:
            return
        try:
            if isinstance(payload, ModelReply):
                run.replied(payload)
            elif payload.request is not None:
                run.model_failed(payload.request)
        except Exception:
            log.exception("OpenTelemetry failed at %s", point)

    def wrap(self, ctx: Any, payload: Any) -> AbstractContextManager[None] | None:
        """Make the span of a run, model call or tool call the current one."""
        if isinstance(payload, RunStart):
            from ._otel.spans import RunSpans

            return RunSpans(self._backend, ctx, self._runs)
        run = self._runs.get(ctx.run_id)
        if run is None:
            return None
        if isinstance(payload, ModelRequest):
            return run.chat(payload)
        return run.tool(payload) if isinstance(payload, ToolCallRequest) else None

    def on_event(self, event: Event) -> None:
        """Record an event."""
        run = self._runs.get(event.run_id)
        if run is not None:
            run.on_event(event)
