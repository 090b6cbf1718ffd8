"""OTLP JSON becomes records: what Hookline exports itself, and what other instrumentations write."""

import base64
import json

import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from hookline import (
    APPROVAL_REQUESTED,
    BEFORE_LLM,
    BEFORE_TOOL,
    Agent,
    HookResult,
    ScriptedModel,
    call,
    guard,
    hook,
    reply,
    tool,
)
from hookline.backtest import backtest
from hookline.hooks import OpenTelemetryHook
from hookline.records.hook import RecordHook
from hookline.records.reading import read_runs
from hookline.teams import Team


class JsonFileExporter(SpanExporter):
    """Writes each export as a line of OTLP JSON, as the file exporter of the OpenTelemetry collector does."""

    def __init__(self, path):
        self.path = path

    def export(self, spans):
        request = MessageToDict(encode_spans(spans))
        for resource in request["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    for name in {"traceId", "spanId", "parentSpanId"} & set(span):
                        span[name] = base64.b64decode(span[name]).hex()
        with self.path.open("a") as file:
            file.write(json.dumps(request) + "\n")
        return SpanExportResult.SUCCESS


@tool
def shell(command: str) -> str:
    """Run a command."""
    if command == "false":
        raise RuntimeError("exit code 1")
    return f"ran {command}"


@guard(BEFORE_TOOL, tools="shell")
def no_sudo(ctx, request):
    if request.arguments["command"].startswith("sudo"):
        return HookResult.block("Without sudo.", reason="rule 1")
    if request.arguments["command"].startswith("rm"):
        return HookResult.ask("Really delete?")
    return None


@hook(APPROVAL_REQUESTED)
def decide(ctx, request):
    if "keep" in request.call.arguments["command"]:
        return HookResult.deny("Keep it.", by="ann")
    return HookResult.approve(by="ann")


@hook(BEFORE_LLM)
def be_calm(ctx, request):
    return request.replace(params={"temperature": 0.0})


@pytest.fixture
def traced(tmp_path):
    """Run a task with telemetry and a record; the files of both."""

    def run(agent_of, content=True):
        path = tmp_path / "spans.jsonl"
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(JsonFileExporter(path)))
        watch = OpenTelemetryHook(provider, MeterProvider(), content=content)
        agent_of([watch, RecordHook(tmp_path / "records")]).run("Clean up")
        provider.shutdown()
        [recorded] = read_runs([tmp_path / "records"])
        return path, recorded

    return run


def helper(hooks):
    inner = Agent("inner", llm=ScriptedModel([call("shell", command="id"), reply("root")]), tools=[shell], hooks=hooks)
    llm = ScriptedModel(
        [
            [call("shell", command="ls"), call("shell", command="sudo ls")],
            [call("shell", command="rm old"), call("shell", command="rm keep")],
            call("shell", command="false"),
            call("delegate", to="inner", task="Who am I?"),
            reply("Clean."),
        ]
    )
    team = Team()
    outer = Agent("outer", llm=llm, tools=[shell, team], hooks=[no_sudo, decide, be_calm, *hooks])
    team.add(outer)
    team.add(inner)
    return outer


def outline(run):
    """What a hook at the main points would see, without times."""
    found = []
    for moment in run.moments:
        if moment.point not in ("before_tool", "after_tool", "before_llm", "after_llm"):
            continue
        payload = moment.payload
        verdict = None if moment.verdict is None else (moment.verdict.verb, moment.verdict.hook, moment.verdict.reason)
        if moment.point == "before_tool":
            seen = (payload.name, dict(payload.arguments), payload.hop, verdict)
        elif moment.point == "after_tool":
            seen = (payload.name, dict(payload.arguments), payload.outcome, payload.text, payload.hop)
        elif moment.point == "before_llm":
            seen = ([(m.role, m.content) for m in payload.messages], payload.hop, payload.purpose)
        else:
            seen = (payload.content, [c.name for c in payload.tool_calls], payload.usage, payload.finish_reason)
        found.append((moment.point, seen))
    return sorted(found, key=repr)


def test_a_run_exported_by_hookline_comes_back_as_it_was_recorded(traced, imported):
    path, recorded = traced(helper)
    found = imported("otel", path, redact=False)
    [run] = found.runs
    assert outline(run) == outline(recorded)
    delegated = next(m.payload.id for m in run.moments if m.point == "before_tool" and m.tool == "delegate")
    assert [(nested.info.ids.agent, nested.info.call_id) for nested in run.nested] == [("inner", delegated)]
    assert [outline(nested) for nested in run.nested] == [outline(nested) for nested in recorded.nested]
    assert run.info.ids == recorded.info.ids
    assert run.info.task == recorded.info.task
    for name in ("status", "reply", "steps", "tool_calls", "usage", "cost"):
        assert getattr(run.end, name) == getattr(recorded.end, name), name
    judged = backtest([no_sudo], [found.report.path])
    assert not judged.failures
    assert not judged.differences.total
    assert sorted((line.label.label, line.label.by) for line in run.labels) == [("approved", "ann"), ("denied", "ann")]
    assert not found.report.skipped


def test_without_content_the_calls_are_there_and_their_arguments_are_missing(traced, imported):
    path, recorded = traced(helper, content=False)
    found = imported("otel", path)
    [run] = found.runs
    called = [m for m in run.moments if m.point == "before_tool"]
    assert [m.tool for m in called] == [m.tool for m in recorded.moments if m.point == "before_tool"]
    assert {m.notes.missing for m in called} == {("arguments",)}
    assert (
        found.report.left_out["tool calls without their arguments (an instrumentation must be told to write them)"] == 7
    )
    assert (
        found.report.left_out["model calls without their messages (an instrumentation must be told to write them)"] == 7
    )


def value(item):
    if isinstance(item, bool):
        return {"boolValue": item}
    if isinstance(item, int):
        return {"intValue": str(item)}
    if isinstance(item, float):
        return {"doubleValue": item}
    if isinstance(item, list):
        return {"arrayValue": {"values": [value(each) for each in item]}}
    if isinstance(item, dict):
        return {"kvlistValue": {"values": pairs(item)}}
    return {"stringValue": item}


def pairs(attributes):
    return [{"key": key, "value": value(item)} for key, item in attributes.items()]


def span(ident, start, end, operation="", parent="", events=(), trace="t1", status=None, **about):
    attributes = {name.replace("__", "."): item for name, item in about.items()}
    attributes |= {"gen_ai.operation.name": operation} if operation else {}
    made = {
        "traceId": trace,
        "spanId": ident,
        "parentSpanId": parent,
        "name": ident,
        "startTimeUnixNano": str(1_790_000_000_000_000_000 + int(start * 1e9)),
        "endTimeUnixNano": str(1_790_000_000_000_000_000 + int(end * 1e9)),
        "attributes": pairs(attributes),
        "events": [{"name": name, "timeUnixNano": "1", "attributes": pairs(more)} for name, more in events],
    }
    return made | ({"status": status} if status else {})


def export(*spans):
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": list(spans)}]}]}


@pytest.fixture
def log(tmp_path):
    def write(*lines, name="spans.jsonl", indent=None):
        path = tmp_path / name
        path.write_text(
            "".join(f"{line if isinstance(line, str) else json.dumps(line, indent=indent)}\n" for line in lines)
        )
        return path

    return write


ASKED = [{"role": "user", "parts": [{"type": "text", "content": "List"}]}]
CALLED = {"role": "assistant", "parts": [{"type": "tool_call", "id": "c1", "name": "ls", "arguments": {"path": "."}}]}
ANSWERED = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "a.txt"}]}
DONE = {"role": "assistant", "parts": [{"type": "text", "content": "One."}], "finish_reason": "stop"}


def content_as_text(messages):
    return json.dumps(messages)


FORMS = {"text": content_as_text, "structured": lambda messages: messages}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_trace_with_model_calls_only_has_its_tool_calls_from_the_messages(form, imported, log):
    first = {"gen_ai__input__messages": form(ASKED), "gen_ai__output__messages": form([CALLED])}
    second = {"gen_ai__input__messages": form([*ASKED, CALLED, ANSWERED]), "gen_ai__output__messages": form([DONE])}
    path = log(export(span("s2", 3, 4, "chat", **second)), export(span("s1", 1, 2, "chat", **first)))
    found = imported("otel", path)
    [run] = found.runs
    assert found.calls() == [("ls", {"path": "."}, "ok")]
    assert (run.id, run.info.task, run.end.reply) == ("t1", "List", "One.")
    assert [m.point for m in run.moments] == [
        "on_run_start",
        "before_llm",
        "after_llm",
        "before_tool",
        "after_tool",
        "before_llm",
        "after_llm",
        "on_run_end",
    ]


def test_events_of_the_older_conventions_are_read(imported, log):
    function = {"name": "ls", "arguments": '{"path": "."}'}
    choice = {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": function}]}
    events = [
        ("gen_ai.system.message", {"content": "Be brief."}),
        ("gen_ai.user.message", {"content": "List"}),
        ("gen_ai.choice", {"index": 0, "finish_reason": "tool_calls", "message": json.dumps(choice)}),
    ]
    more = [
        *events[:2],
        ("gen_ai.tool.message", {"id": "c1", "content": "a.txt"}),
        ("gen_ai.choice", {"content": "One."}),
    ]
    found = imported(
        "otel", log(export(span("s1", 1, 2, "chat", events=events), span("s2", 3, 4, "chat", events=more)))
    )
    assert found.calls() == [("ls", {"path": "."}, "ok")]
    assert found.runs[0].info.task == "List"
    assert found.runs[0].end.reply == "One."


def test_messages_in_log_records_join_their_span(imported, log):
    details = {"gen_ai.input.messages": ASKED, "gen_ai.output.messages": [DONE]}
    record = {
        "traceId": "t1",
        "spanId": "s1",
        "timeUnixNano": "1",
        "eventName": "gen_ai.client.inference.operation.details",
        "attributes": pairs(details),
    }
    logs = {"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}
    found = imported("otel", log(logs, export(span("s1", 1, 2, "chat"))))
    assert (found.runs[0].info.task, found.runs[0].end.reply) == ("List", "One.")


def test_spans_of_libraries_between_an_agent_and_its_calls_only_connect_them(imported, log):
    about = {
        "gen_ai__tool__name": "ls",
        "gen_ai__tool__call__arguments": '{"path": "."}',
        "gen_ai__tool__call__id": "c1",
    }
    path = log(
        export(
            span("agent", 0, 9, "invoke_agent", gen_ai__agent__name="bob", gen_ai__conversation__id="talk"),
            span("http", 1, 5, parent="agent"),
            span("tool", 2, 3, "execute_tool", parent="http", status={"code": 2, "message": "not found"}, **about),
        )
    )
    found = imported("otel", path)
    [run] = found.runs
    assert (run.info.ids.agent, run.info.ids.session_id) == ("bob", "talk")
    assert found.calls() == [("ls", {"path": "."}, "error")]
    assert next(m for m in run.moments if m.point == "after_tool").payload.error == "not found"
    assert found.report.left_out["spans that are not about a model, a tool or an agent"] == 1


def test_a_file_with_one_export_over_many_lines_is_read(imported, log):
    found = imported("otel", log(export(span("a", 0, 1, "invoke_agent")), name="one.json", indent=2))
    assert len(found.runs) == 1


def test_lines_that_are_not_otlp_are_skipped(imported, log):
    bad = {"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "no id"}, "text"]}]}, 7]}
    found = imported(
        "otel", log("garbage", {"x": 1}, bad, export(span("a", 0, 1, "invoke_agent")), {"resourceMetrics": [{}]})
    )
    assert {each.reason: each.count for each in found.report.skipped} == {
        "the line is not JSON": 1,
        "the line is not OTLP JSON": 1,
    }
    assert found.report.left_out == {"spans without an id": 2, "exports of metrics": 1}
    assert len(found.runs) == 1


def test_only_so_many_traces_are_held_in_memory(imported, log, monkeypatch):
    monkeypatch.setattr("hookline.importers.otel.MAX_OPEN_BYTES", 2000)
    lines = [export(span("a", 0, 1, "invoke_agent", trace=f"t{n}")) for n in range(20)]
    late = export(span("b", 2, 3, "chat", parent="a", trace="t0"))
    found = imported("otel", log(*lines, late))
    assert len(found.runs) == 20
    assert found.report.left_out["spans that came after their trace was closed"] == 1


def test_spans_that_contain_each_other_do_not_hang_the_import(imported, log):
    found = imported("otel", log(export(span("a", 0, 1, "chat", parent="b"), span("b", 0, 1, "chat", parent="a"))))
    assert len(found.runs) == 1


def test_a_span_without_an_end_is_read(imported, log):
    unfinished = span("a", 1, 1, "execute_tool", gen_ai__tool__name="shell")
    del unfinished["endTimeUnixNano"]
    found = imported("otel", log(export(unfinished)))
    assert [moment.point for moment in found.runs[0].moments if moment.tool == "shell"] == ["before_tool", "after_tool"]
