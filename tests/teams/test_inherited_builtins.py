"""Built-in hooks of a parent apply to its subagents, once each."""

import json

import pytest

from hookline import Agent, ScriptedModel, Session, call, tool
from hookline.hooks import (
    AuditLogHook,
    EpisodeLoggerHook,
    MemoryInjectionHook,
    ObservabilityHook,
    OpenTelemetryHook,
    PersistSessionHook,
    PlanModeHook,
)
from hookline.stores import JsonSessionStore, MemoryStore, RunStore, run_stats
from hookline.teams import Team


@tool
def look() -> str:
    """Look."""
    return "seen"


def run(*hooks):
    team = Team()
    ask = call("delegate", to="writer", task="go")
    chief = Agent("chief", llm=ScriptedModel([[ask, ask], "done"]), tools=[team], hooks=hooks)
    model = ScriptedModel([lambda r: call("look") if r.messages[-1].role == "user" else "a poem"], loop=True)
    writer = Agent("writer", llm=model, tools=[look])
    team.add(chief)
    team.add(writer)
    result = team.run("x", session=Session("mine"))
    assert (result.status, result.errors) == ("completed", ())
    return result, writer


def test_spans_are_nested_like_the_runs():
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    run(OpenTelemetryHook(provider))
    spans = {span.context.span_id: span for span in exporter.get_finished_spans()}
    below = [(span.name, spans[span.parent.span_id].name) for span in spans.values() if span.parent]
    assert sorted(set(below)) == [
        ("chat scripted", "invoke_agent chief"),
        ("chat scripted", "invoke_agent writer"),
        ("execute_tool delegate", "invoke_agent chief"),
        ("execute_tool look", "invoke_agent writer"),
        ("invoke_agent writer", "execute_tool delegate"),
    ]
    assert [span.name for span in spans.values()].count("invoke_agent writer") == 2


def test_the_audit_log_and_the_metrics_count_every_call_once(tmp_path):
    numbers = ObservabilityHook(tmp_path / "runs.db")
    log = AuditLogHook(tmp_path / "audit.jsonl")
    result, _ = run(numbers, log)
    assert numbers.flush(30)
    assert log.flush(30)
    totals = run_stats(RunStore(tmp_path / "runs.db")).totals
    assert (totals.runs, totals.model_calls, totals.tool_calls) == (3, 6, 4)
    assert totals.input_tokens + totals.output_tokens == result.usage.total_tokens
    records = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    starts = [record for record in records if record["type"] == "run_start"]
    assert [(record["agent"], record["parent_run_id"]) for record in starts] == [
        ("chief", ""),
        ("writer", result.ids.run_id),
        ("writer", result.ids.run_id),
    ]
    assert len([record for record in records if record["type"] == "tool"]) == 4


def test_an_approver_is_asked_about_calls_of_subagents():
    asked = []
    run(PlanModeHook(["look"], lambda request: asked.append(request.call.ids.agent) or True))
    assert asked == ["writer", "writer"]


def test_subagents_get_memory_and_their_calls_are_recorded(tmp_path):
    memory = MemoryStore(tmp_path / "memory.db")
    memory.add_fact("home", "Oslo")
    _, writer = run(MemoryInjectionHook(memory), EpisodeLoggerHook(memory))
    assert writer.model.requests[0].messages[0].content.count("Oslo") == 1
    assert sorted(episode.data["tool"] for episode in memory.episodes()) == ["delegate", "delegate", "look", "look"]
    memory.close()


def test_only_the_conversation_with_the_user_is_saved(tmp_path):
    run(PersistSessionHook(tmp_path))
    assert [saved.id for saved in JsonSessionStore(tmp_path).list()] == ["mine"]
