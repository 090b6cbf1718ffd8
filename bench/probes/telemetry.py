"""Measure what OpenTelemetry adds to a step of the standard run."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import NoOpTracerProvider
from peers.hookline_ import FakeModel, add
from workload import PROMPT, Spec

from hookline import Agent
from hookline.hooks import OpenTelemetryHook


class Nowhere(SpanExporter):
    """An exporter that drops everything: in production another thread exports."""

    def export(self, spans: Any) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def _sdk(content: bool) -> OpenTelemetryHook:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Nowhere()))
    return OpenTelemetryHook(provider, MeterProvider([InMemoryMetricReader()]), content=content)


HOOKS: dict[str, Callable[[], list[Any]]] = {
    "without it": list,
    "providers that do nothing": lambda: [OpenTelemetryHook(NoOpTracerProvider(), NoOpMeterProvider())],
    "the SDK": lambda: [_sdk(False)],
    "the SDK, with content": lambda: [_sdk(True)],
}


def steps(reps: int, runs: int) -> dict[str, list[float]]:
    """Return CPU microseconds per step, per repetition; variants are interleaved."""
    spec, aio = Spec(), asyncio.new_event_loop()
    agents = {name: Agent("bench", llm=FakeModel(spec), tools=[add], hooks=make()) for name, make in HOOKS.items()}
    taken: dict[str, list[float]] = {name: [] for name in agents}
    for _ in range(reps):
        for name, agent in agents.items():
            taken[name].append(_cpu(aio, partial(agent.arun, PROMPT), runs) / spec.steps)
    aio.close()
    return taken


def _cpu(aio: asyncio.AbstractEventLoop, run: Callable[[], Awaitable[Any]], times: int) -> float:
    async def body() -> None:
        for _ in range(times):
            await run()

    began = time.process_time()
    aio.run_until_complete(body())
    return (time.process_time() - began) * 1e6 / times
