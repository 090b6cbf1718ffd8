"""What a span of ours is, where it goes, and how it becomes the current one. Needs OpenTelemetry."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from opentelemetry import context as current
from opentelemetry import metrics, trace
from opentelemetry.trace import Span

from ..._kernel.payloads import ModelRequest
from . import attributes as a
from .values import Attributes


class Backend:
    """Where spans and measurements go."""

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None,
        meter_provider: metrics.MeterProvider | None,
        content: bool,
    ) -> None:
        self.content = content
        self.key = current.create_key("hookline")
        self.tracer = trace.get_tracer("hookline", tracer_provider=tracer_provider)
        meter = metrics.get_meter("hookline", meter_provider=meter_provider)
        self.tokens = meter.create_histogram(
            a.TOKEN_USAGE, "{token}", "Tokens used by model calls.",
            explicit_bucket_boundaries_advisory=a.TOKEN_BUCKETS,
        )  # fmt: skip
        self.seconds = meter.create_histogram(
            a.OPERATION_DURATION, "s", "How long model calls took.",
            explicit_bucket_boundaries_advisory=a.SECOND_BUCKETS,
        )  # fmt: skip
        self.tool_seconds = meter.create_histogram(
            a.TOOL_DURATION, "s", "How long tools took.", explicit_bucket_boundaries_advisory=a.SECOND_BUCKETS
        )
        self.verdicts = meter.create_counter(a.VERDICTS, "{verdict}", "What hooks said.")
        self.runs = meter.create_counter(a.RUNS, "{run}", "Runs that are over.")


class Piece:
    """One span of ours. It is ended when all is known of it, at the time when what it stands for was over."""

    __slots__ = ("began", "error", "labels", "open", "outcome", "over", "request", "span", "task")

    def __init__(self, span: Span, began: int, labels: Attributes) -> None:
        self.span, self.began, self.labels = span, began, labels
        self.over: int | None = None
        self.open = True
        self.error = self.outcome = ""
        self.request: ModelRequest | None = None
        self.task: Any = None

    @property
    def seconds(self) -> float:
        """How long it took."""
        return 0.0 if self.over is None else (self.over - self.began) / 1e9


class Within(AbstractContextManager[None]):
    """Makes a span the current one where it is entered, and the one before the current one again.

    What is left where it was not entered is left alone: a coroutine may be closed from anywhere.
    """

    __slots__ = ("_before", "_key", "_left", "_piece")

    def __init__(self, key: str, piece: Piece, left: Callable[[BaseException | None], None] | None = None) -> None:
        self._key, self._piece, self._left = key, piece, left

    def __enter__(self) -> None:
        self._before = before = current.get_current()
        current.attach(current.set_value(self._key, self._piece, trace.set_span_in_context(self._piece.span, before)))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if current.get_value(self._key) is self._piece:
            current.attach(self._before)
        if self._left is not None:
            self._left(error)
