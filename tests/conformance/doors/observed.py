"""Observers of runs: statistics, the audit log, metrics and traces."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from prometheus_client.parser import text_string_to_metric_families

from hookline.hooks import AuditLogHook, MetricsHook, ObservabilityHook, OpenTelemetryHook
from hookline.stores import RunStore, run_stats, verify_audit

from ..build import Scene
from ..vectors import ApprovalTold, Attempt, CallTold, HookVerdict, Refusal, Story, Vector
from .base import Door, events_of


class Statistics(Door):
    """``ObservabilityHook`` and ``run_stats``."""

    id = "stats"

    async def tell(self, vector: Vector, folder: Path) -> Story:
        with closing(RunStore(folder / "runs.db")) as store:
            hook = ObservabilityHook(store)
            await events_of(Scene(vector, folder).agent(hook))
            assert hook.flush(10)
            stats = run_stats(store, agent="main")
            everything = run_stats(store)
        (status,) = stats.totals.statuses
        return Story(
            status,
            verdicts=tuple(
                HookVerdict("", verb, each.hook)
                for each in everything.hooks
                for verb, count in each.verbs.items()
                for _ in range(count)
            ),
            refusals=tuple(
                Refusal(each.hook, each.point, each.verb, each.tool, each.reason)
                for each in everything.refusals
                for _ in range(each.count)
            ),
            approvals=tuple(
                ApprovalTold(decision, each.tool)
                for each in everything.approvals
                for decision, count in each.decisions.items()
                for _ in range(count)
            ),
            attempts=tuple(
                Attempt(each.tool, outcome)
                for each in everything.tools
                for outcome, count in each.outcomes.items()
                for _ in range(count)
            ),
        )


class Audit(Door):
    """The audit log, with texts."""

    id = "audit"

    async def tell(self, vector: Vector, folder: Path) -> Story:
        path = folder / "audit.jsonl"
        hook = AuditLogHook(path, content=True)
        await events_of(Scene(vector, folder).agent(hook))
        hook.log.close()  # as at the end of a program
        assert verify_audit(path).ok
        records = [json.loads(line) for line in path.read_text().splitlines()]
        calls: dict[tuple[str, str], CallTold] = {}
        approvals, verdicts = [], []
        tools: dict[str, str] = {}
        for record in records:
            agent = record.get("agent", "main")
            match record["type"]:
                case "verdict":
                    told = [record[name] for name in ("point", "verb", "hook", "reason")]
                    verdicts.append(HookVerdict(*told, error=record.get("error", ""), agent=agent))
                case "tool":
                    read = record.get("error", record.get("result", ""))
                    calls[agent, record["call_id"]] = CallTold(record["tool"], record["outcome"], read, agent=agent)
                case "approval_asked":
                    tools[record["call_id"]] = record["tool"]
                case "approval":
                    told = (record["decision"], tools[record["call_id"]], record["by"], record.get("message", ""))
                    approvals.append(ApprovalTold(*told, agent=agent))
        (end,) = [each for each in records if each["type"] == "run_end" and each.get("agent", "main") == "main"]
        return Story(
            end["status"],
            end["stop"],
            end["reply"],
            verdicts=tuple(verdicts),
            calls=tuple(calls.values()),
            approvals=tuple(approvals),
        )


class Metrics(Door):
    """``MetricsHook``, as Prometheus reads it."""

    id = "metrics"

    async def tell(self, vector: Vector, folder: Path) -> Story:
        hook = MetricsHook()
        await events_of(Scene(vector, folder).agent(hook))
        text = hook.text()
        verdicts = [HookVerdict(*told) for told in _counted(text, "hookline_verdicts_total", "point", "verb", "hook")]
        failed = _counted(text, "hookline_hook_failures_total", "point", "hook")
        verdicts += [HookVerdict(point, "failed", name) for point, name in failed]
        statuses = dict(_counted(text, "hookline_runs_total", "agent", "status"))
        return Story(
            statuses["main"],
            verdicts=tuple(verdicts),
            attempts=tuple(Attempt(*told) for told in _counted(text, "hookline_tool_calls_total", "tool", "outcome")),
            approvals=tuple(
                ApprovalTold(decision) for (decision,) in _counted(text, "hookline_approvals_decided_total", "decision")
            ),
        )


def _counted(text: str, name: str, *labels: str) -> Iterator[tuple[str, ...]]:
    """Yield the labels of a counter, as often as it counted them."""
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name:
                for _ in range(int(sample.value)):
                    yield tuple(sample.labels[label] for label in labels)


class OpenTelemetry(Door):
    """The spans of ``OpenTelemetryHook``, with texts."""

    id = "otel"

    async def tell(self, vector: Vector, folder: Path) -> Story:
        exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        await events_of(Scene(vector, folder).agent(OpenTelemetryHook(provider, content=True)))
        verdicts, approvals = [], []
        calls: dict[Any, CallTold] = {}
        status = ""
        spans = exporter.get_finished_spans()
        for span in spans:
            about: Any = span.attributes
            for event in span.events:
                told: Any = event.attributes
                if event.name == "hookline.verdict":
                    names = ("hookline.point", "hookline.verb", "hookline.hook")
                    reason, error = told.get("hookline.reason", ""), told.get("exception.message", "")
                    verdicts.append(HookVerdict(*(told[name] for name in names), reason, error=error))
                elif event.name == "hookline.approval_decided":
                    tool = about["gen_ai.tool.name"]
                    approvals.append(ApprovalTold(told["hookline.decision"], tool, told.get("hookline.by", "")))
            if "hookline.outcome" in about:
                read = about.get("gen_ai.tool.call.result", "")  # only the last attempt has it
                outcome = about["hookline.outcome"]
                is_error = span.status.status_code is StatusCode.ERROR
                if {"ok": is_error, "blocked": not is_error, "error": not is_error}.get(outcome):
                    outcome = f"{outcome}, and the status of the span says the opposite"
                call = CallTold(about["gen_ai.tool.name"], outcome, read)
                calls[span.parent.span_id, about["gen_ai.tool.call.id"]] = call
            if "hookline.status" in about and about["gen_ai.agent.name"] == "main":
                status = about["hookline.status"]
        return Story(status, verdicts=tuple(verdicts), calls=tuple(calls.values()), approvals=tuple(approvals))
