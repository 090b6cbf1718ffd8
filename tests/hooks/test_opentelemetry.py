"""OpenTelemetryHook: runs as traces and metrics."""

import asyncio
import gc
import json
import logging
import math
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import hookline
import hookline.events
import hookline.hooks
from hookline import (
    AFTER_LLM,
    AFTER_TOOL,
    APPROVAL_REQUESTED,
    BEFORE_LLM,
    BEFORE_STEP,
    BEFORE_TOOL,
    ON_ERROR,
    ON_TOKEN,
    Agent,
    AgentContext,
    Attachment,
    HookResult,
    Limits,
    RegistrationError,
    RunFailedError,
    ScriptedModel,
    call,
    guard,
    hook,
    observer,
    reply,
    tool,
)
from hookline.agents import Session
from hookline.errors import NotInstalledError
from hookline.events import ToolEnded
from hookline.hooks import FallbackModelHook
from hookline.hooks._otel.attributes import provider_name
from hookline.models import ModelResponse, RateLimitError
from hookline.payloads import Usage
from hookline.testing import EventLog, scripted_agent
from tests.properties import examples
from tests.waiting import until_others_wait, wait_until

RUN, CHAT = "invoke_agent test", "chat scripted"


class Telemetry:
    """A hook with in-memory exporters."""

    def __init__(self, **options):
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meters = MeterProvider([self.reader], shutdown_on_exit=False)
        self.hook = hookline.hooks.OpenTelemetryHook(self.provider, self.meters, **options)

    @property
    def spans(self):
        return self.exporter.get_finished_spans()

    def named(self, name):
        return [span for span in self.spans if span.name == name]

    def one(self, name):
        (span,) = self.named(name)
        return span

    def parent(self, span):
        by_id = {other.context.span_id: other for other in self.spans}
        return by_id[span.parent.span_id].name if span.parent is not None else None

    def tree(self):
        return sorted((span.name, self.parent(span)) for span in self.spans)

    def points(self, name):
        data = self.reader.get_metrics_data()
        found = [] if data is None else data.resource_metrics[0].scope_metrics[0].metrics
        return [p for metric in found if metric.name == name for p in metric.data.data_points]

    def values(self, name, *labels):
        return {tuple(p.attributes.get(label) for label in labels): p.value for p in self.points(name)}


@pytest.fixture
def telemetry():
    return Telemetry()


@pytest.fixture(autouse=True)
def no_trouble(caplog):
    """Check that no span stays attached and OpenTelemetry logs nothing."""
    before = otel_context.get_current()
    yield
    assert otel_context.get_current() is before
    assert [r for r in caplog.records if r.name.startswith("opentelemetry")] == []


def current():
    return getattr(trace.get_current_span(), "name", "")


@tool
async def look() -> str:
    """Which span is the current one?"""
    await asyncio.sleep(0)
    return current()


@tool
def look_from_a_thread() -> str:
    """Which span is the current one?"""
    return current()


@tool(timeout=5)
async def look_in_time() -> str:
    """Which span is the current one?"""
    return current()


@tool
async def ask(ctx) -> str:
    """Ask the model."""
    return (await ctx.llm.complete("hm?", purpose="inner")).content


@tool
def fail() -> str:
    """Fail."""
    raise ValueError("a secret")


@tool
async def wait() -> str:
    """Wait."""
    await asyncio.sleep(60)


LOOKS = [look, look_from_a_thread, look_in_time]


def results(result):
    return [message.content for message in result.messages if message.role == "tool"]


def verdicts(span):
    return [
        tuple(e.attributes.get(f"hookline.{x}") for x in ("hook", "point", "verb"))
        for e in span.events
        if e.name == "hookline.verdict"
    ]


# Spans.


async def test_the_span_of_a_run_has_its_model_calls_and_tools_as_children(telemetry):
    agent = scripted_agent([call("look"), "done"], tools=[look], hooks=[telemetry.hook], params={"temperature": 0.5})
    result = await agent.arun("hi", task_id="t1", correlation_id="c1")
    assert telemetry.tree() == [(CHAT, RUN), (CHAT, RUN), ("execute_tool look", RUN), (RUN, None)]
    run, chat, tool_span = telemetry.one(RUN), telemetry.named(CHAT)[0], telemetry.one("execute_tool look")
    assert (run.kind, chat.kind, tool_span.kind) == (SpanKind.INTERNAL, SpanKind.CLIENT, SpanKind.INTERNAL)
    assert dict(run.attributes) == {
        "openinference.span.kind": "AGENT",
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "test",
        "gen_ai.provider.name": "scripted",
        "gen_ai.request.model": "scripted",
        "gen_ai.conversation.id": result.ids.session_id,
        "hookline.run_id": result.ids.run_id,
        "hookline.task_id": "t1",
        "hookline.correlation_id": "c1",
        "hookline.status": "completed",
        "hookline.steps": 2,
        "hookline.cost": 0.0,
        "hookline.stop.kind": "completed",
        "gen_ai.usage.input_tokens": result.usage.input_tokens,
        "gen_ai.usage.output_tokens": result.usage.output_tokens,
        "gen_ai.response.finish_reasons": ("stop",),
    }
    assert dict(chat.attributes) == {
        "openinference.span.kind": "LLM",
        "gen_ai.operation.name": "chat",
        "gen_ai.conversation.id": result.ids.session_id,
        "gen_ai.provider.name": "scripted",
        "gen_ai.request.model": "scripted",
        "gen_ai.response.model": "scripted",
        "gen_ai.response.finish_reasons": ("tool_calls",),
        "gen_ai.usage.input_tokens": 1,
        "gen_ai.usage.output_tokens": 0,
        "gen_ai.request.temperature": 0.5,
        "hookline.purpose": "step",
        "hookline.attempt": 1,
    }
    assert dict(tool_span.attributes) == {
        "openinference.span.kind": "TOOL",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "look",
        "gen_ai.tool.description": "Which span is the current one?",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "call_0_0",
        "hookline.outcome": "ok",
        "hookline.attempt": 1,
    }


async def test_each_span_is_within_the_time_of_its_parent(telemetry):
    await scripted_agent([call("look"), "done"], tools=[look], hooks=[telemetry.hook]).arun("hi")
    run = telemetry.one(RUN)
    for span in telemetry.spans:
        assert run.start_time <= span.start_time <= span.end_time <= run.end_time


async def test_cached_tokens_and_the_model_of_the_reply_are_reported(telemetry):
    turn = reply("done", usage=Usage(100, 5, 80), model="scripted-2", provider="gemini", finish_reason="length")
    await scripted_agent([turn], hooks=[telemetry.hook]).arun("hi")
    told = telemetry.one(CHAT).attributes
    assert told["gen_ai.usage.cache_read.input_tokens"] == 80
    assert (told["gen_ai.response.model"], told["gen_ai.provider.name"]) == ("scripted-2", "gcp.gemini")
    assert told["gen_ai.response.finish_reasons"] == ("length",)


@pytest.mark.parametrize(
    ("ours", "known"),
    [
        ("openai", "openai"),
        ("mistral", "mistral_ai"),
        ("Azure-OpenAI", "azure.ai.openai"),
        ("local", "local"),
        ("", "_OTHER"),
    ],
)
def test_providers_have_their_conventional_names(ours, known):
    assert provider_name(ours) == known


class Served(ScriptedModel):
    """A model behind an address."""

    base_url = "https://user:secret@models.example.com:8443/v1"


async def test_model_calls_and_tools_have_what_the_conventions_name(telemetry):
    @tool
    def look(at: str) -> str:
        """Look at something."""
        return at

    model = Served([call("look", at="x"), reply("ok", id="resp_1")])
    await Agent("test", llm=model, tools=[look], hooks=[telemetry.hook]).arun(
        "hi", ctx=AgentContext(session=Session("s1"))
    )
    await Agent(
        "test", llm=ScriptedModel(["ok"]), hooks=[telemetry.hook, observer(ON_TOKEN)(lambda ctx, token: None)]
    ).arun("hi")
    first, second, streamed = telemetry.named(CHAT)
    assert {first.attributes["gen_ai.conversation.id"], second.attributes["gen_ai.conversation.id"]} == {"s1"}
    assert (first.attributes["server.address"], first.attributes["server.port"]) == ("models.example.com", 8443)
    assert "gen_ai.response.id" not in first.attributes
    assert second.attributes["gen_ai.response.id"] == "resp_1"
    assert "gen_ai.request.stream" not in first.attributes
    assert streamed.attributes["gen_ai.request.stream"] is True
    assert "server.address" not in streamed.attributes
    servers = {p.attributes.get("server.address") for p in telemetry.points("gen_ai.client.operation.duration")}
    assert servers == {"models.example.com", None}
    (span,) = telemetry.named("execute_tool look")
    assert span.attributes["gen_ai.tool.description"] == "Look at something."
    assert {span.instrumentation_scope.schema_url for span in telemetry.spans} == {
        "https://opentelemetry.io/schemas/1.41.1"
    }


@pytest.mark.parametrize(
    "url", ["http://models.example.com:port/v1", "https://models.example.com:99999", "http://[::1"]
)
async def test_a_server_whose_url_is_not_valid_is_left_out(telemetry, url, caplog):
    model = ScriptedModel(["ok"])
    model.base_url = url
    await Agent("test", llm=model, hooks=[telemetry.hook]).arun("hi")
    chat = telemetry.one(CHAT)
    assert "server.address" not in chat.attributes
    assert chat.attributes["hookline.purpose"] == "step"
    assert caplog.records == []


@pytest.mark.parametrize(
    ("turns", "options", "reason"),
    [
        (["ok"], {}, "stop"),
        ([TimeoutError("no")], {}, "error"),
        ([call("look", at="x"), call("look", at="y")], {"limits": Limits(steps=1)}, "length"),
        (["ok"], {"hooks": [guard("on_run_start")(lambda ctx, payload: HookResult.end("No."))]}, "content_filter"),
    ],
)
def test_a_run_says_why_it_ended(turns, options, reason):
    telemetry = Telemetry(content=True)

    @tool
    def look(at: str) -> str:
        """Look at something."""
        return at

    hooks = [telemetry.hook, *options.pop("hooks", ())]
    try:
        Agent("test", llm=ScriptedModel(turns), tools=[look], hooks=hooks, **options).run("hi")
    except RunFailedError:
        assert reason == "error"
    span = telemetry.one(RUN)
    assert span.attributes["gen_ai.response.finish_reasons"] == (reason,)
    assert json.loads(span.attributes["gen_ai.output.messages"])[0]["finish_reason"] == reason


def test_attachments_are_in_the_input_messages_without_their_content():
    telemetry = Telemetry(content=True)
    photo = Attachment.of(b"\x89PNG\r\n\x1a\n123")
    agent = Agent("test", llm=ScriptedModel(["ok"]), hooks=[telemetry.hook])
    agent.run("What is this?", attachments=[photo, "https://example.com/a.pdf"])
    for name in (RUN, CHAT):
        (message,) = json.loads(telemetry.one(name).attributes["gen_ai.input.messages"])
        assert message["parts"] == [
            {"type": "text", "content": "What is this?"},
            {"type": "file", "mime_type": "image/png", "modality": "image", "file_id": photo.digest},
            {
                "type": "uri",
                "mime_type": "application/pdf",
                "modality": "document",
                "uri": "https://example.com/a.pdf",
            },
        ]


async def test_parameters_of_a_request_with_a_conventional_name_are_reported(telemetry):
    params = {"max_tokens": 7, "seed": 2**70, "stop": "END", "top_p": 1, "temperature": "warm", "other": {"x": 1}}
    agent = scripted_agent(["{}"], hooks=[telemetry.hook], params=params, response_format={"type": "object"})
    await agent.arun("hi")
    told = telemetry.one(CHAT).attributes
    assert (told["gen_ai.request.max_tokens"], told["gen_ai.request.stop_sequences"]) == (7, ("END",))
    assert (told["gen_ai.request.top_p"], told["gen_ai.output.type"]) == (1, "json")
    assert {"gen_ai.request.seed", "gen_ai.request.temperature"}.isdisjoint(told)


@pytest.mark.filterwarnings("ignore:.*blocks the event loop:RuntimeWarning")
async def test_a_run_is_a_child_of_the_callers_span_in_every_way_to_start_it(telemetry):
    agent = scripted_agent(["a"] * 4, hooks=[telemetry.hook])
    tracer = telemetry.provider.get_tracer("mine")
    with tracer.start_as_current_span("request") as request:
        await agent.arun("hi")
        await agent.start("hi").result()
        agent.run("hi")
        async for _ in agent.stream("hi"):
            assert current() == "request"
        assert trace.get_current_span() is request
    assert [telemetry.parent(span) for span in telemetry.named(RUN)] == ["request"] * 4
    assert len({span.context.trace_id for span in telemetry.spans}) == 1


# The current span.


@pytest.mark.parametrize("tools", [[t] for t in LOOKS] + [LOOKS], ids=lambda tools: "+".join(t.name for t in tools))
async def test_inside_a_tool_its_span_is_the_current_one(telemetry, tools):
    agent = scripted_agent([[call(t.name) for t in tools], "done"], tools=LOOKS, hooks=[telemetry.hook])
    assert results(await agent.arun("hi")) == [f"execute_tool {t.name}" for t in tools]


async def test_spans_made_by_a_tool_are_children_of_its_span(telemetry):
    tracer = telemetry.provider.get_tracer("http")

    @tool
    def fetch() -> str:
        """Fetch."""
        with tracer.start_as_current_span("GET"):
            return "page"

    await scripted_agent([[call("fetch"), call("look")], "x"], tools=[fetch, look], hooks=[telemetry.hook]).arun("hi")
    assert telemetry.parent(telemetry.one("GET")) == "execute_tool fetch"


async def test_a_span_that_a_tool_leaves_attached_does_not_affect_the_run(telemetry):
    @tool
    async def messy() -> str:
        """Leave a span behind."""
        span = telemetry.provider.get_tracer("x").start_span("left behind")
        otel_context.attach(trace.set_span_in_context(span))
        span.end()

    await scripted_agent([call("messy"), "done"], tools=[messy], hooks=[telemetry.hook]).arun("hi")
    assert {telemetry.parent(span) for span in telemetry.named(CHAT)} == {RUN}


async def test_a_span_that_a_hook_leaves_attached_is_not_the_parent_of_tools(telemetry):
    @hook(BEFORE_TOOL)
    def messy(ctx, request):
        span = telemetry.provider.get_tracer("x").start_span("left behind")
        otel_context.attach(trace.set_span_in_context(span))
        span.end()

    await scripted_agent([call("look"), "done"], tools=[look], hooks=[telemetry.hook, messy]).arun("hi")
    assert telemetry.parent(telemetry.one("execute_tool look")) == RUN


@pytest.mark.parametrize("streamed", [False, True])
async def test_inside_a_model_call_its_span_is_the_current_one(telemetry, streamed):
    seen = []

    class Looking(ScriptedModel):
        async def complete(self, request):
            seen.append(current())
            return await super().complete(request)

        async def stream(self, request):
            seen.append(current())
            async for piece in super().stream(request):
                yield piece
            seen.append(current())

    shown = [observer(ON_TOKEN)(lambda ctx, delta: None)] if streamed else []
    await Agent("test", llm=Looking(["two words"]), hooks=[telemetry.hook, *shown]).arun("hi")
    assert set(seen) == {CHAT}


async def test_hooks_run_in_the_span_of_the_run(telemetry):
    seen = set()

    @observer(BEFORE_LLM, AFTER_LLM, BEFORE_TOOL, AFTER_TOOL)
    def note(ctx, payload):
        seen.add(current())

    agent = scripted_agent([[call("look"), call("look")], "done"], tools=[look], hooks=[telemetry.hook, note])
    await agent.arun("hi")
    assert seen == {RUN}


async def test_model_calls_of_tools_and_hooks_have_the_right_parent(telemetry):
    @guard(BEFORE_TOOL)
    async def judge(ctx, request):
        await ctx.llm.complete("may it?", purpose="judge")

    turns = [[call("ask"), call("look")], "yes", "yes", "inner", "done"]
    await scripted_agent(turns, tools=[ask, look], hooks=[telemetry.hook, judge]).arun("hi")
    below = Counter((span.attributes["hookline.purpose"], telemetry.parent(span)) for span in telemetry.named(CHAT))
    assert below == {("step", RUN): 2, ("judge", RUN): 2, ("inner", "execute_tool ask"): 1}


@pytest.mark.parametrize("how", ["arun", "run", "start"])
async def test_a_run_started_in_a_tool_is_a_child_of_its_span(telemetry, how):
    child = Agent("child", llm=ScriptedModel(["found"]), hooks=[telemetry.hook])

    @tool
    async def delegate(ctx) -> str:
        """Delegate."""
        if how == "arun":
            return (await child.arun("go", ctx=ctx)).reply
        if how == "start":
            return (await child.start("go", ctx=ctx).result()).reply
        return (await asyncio.to_thread(child.run, "go", ctx=ctx)).reply

    agent = scripted_agent([[call("delegate"), call("look")], "x"], tools=[delegate, look], hooks=[telemetry.hook])
    result = await agent.arun("hi")
    run = telemetry.one("invoke_agent child")
    assert telemetry.parent(run) == "execute_tool delegate"
    assert run.attributes["hookline.parent_run_id"] == result.ids.run_id
    assert ("chat scripted", "invoke_agent child") in telemetry.tree()


# Verdicts.


async def test_verdicts_on_a_tool_call_are_events_of_its_span(telemetry):
    @guard(BEFORE_TOOL, tools="look")
    def no(ctx, request):
        return HookResult.block("no", reason="policy") if request.id == "call_0_0" else None

    @hook(AFTER_TOOL, tools="look_*")
    def mend(ctx, result):
        return result.replace(result="mended")

    turn = [call("look"), call("look"), call("look_from_a_thread")]
    await scripted_agent([turn, "x"], tools=LOOKS, hooks=[telemetry.hook, no, mend]).arun("hi")
    by_call = {s.attributes.get("gen_ai.tool.call.id"): s for s in telemetry.spans}
    assert verdicts(by_call["call_0_0"]) == [("no", "before_tool", "block")]
    assert by_call["call_0_0"].events[0].attributes["hookline.reason"] == "policy"
    assert by_call["call_0_0"].attributes["hookline.outcome"] == "blocked"
    blocked = by_call["call_0_0"].status
    assert (blocked.status_code, blocked.description) == (StatusCode.ERROR, "blocked by no: policy")
    assert by_call["call_0_0"].attributes["error.type"] == "blocked"
    assert by_call["call_0_1"].status.status_code is StatusCode.UNSET
    assert verdicts(by_call["call_0_1"]) == []
    assert verdicts(by_call["call_0_2"]) == [("mend", "after_tool", "replace")]
    assert verdicts(telemetry.one(RUN)) == []


async def test_verdicts_on_a_model_call_are_events_of_its_span(telemetry):
    @hook(BEFORE_LLM)
    def shorten(ctx, request):
        return request.replace(messages=request.messages[-1:])

    @hook(AFTER_LLM)
    async def check(ctx, response):
        if response.purpose != "step":
            return None
        judged = await ctx.llm.complete("good?", purpose="judge")
        return HookResult.retry("again") if judged.content == "no" else response.replace(content="checked")

    await scripted_agent(["bad", "no", "good", "yes"], hooks=[telemetry.hook, shorten, check]).arun("hi")
    chats = sorted(telemetry.named(CHAT), key=lambda span: span.start_time)
    short = ("shorten", "before_llm", "replace")
    assert [(c.attributes["hookline.purpose"], c.attributes["hookline.attempt"], verdicts(c)) for c in chats] == [
        ("step", 1, [short, ("check", "after_llm", "retry")]),
        ("judge", 1, [short]),
        ("step", 2, [short, ("check", "after_llm", "replace")]),
        ("judge", 1, [short]),
    ]
    assert verdicts(telemetry.one(RUN)) == []


async def test_an_answered_model_call_has_no_span_and_its_verdict_is_on_the_run(telemetry):
    change = hook(BEFORE_LLM, name="change", priority=1)(lambda ctx, request: request.replace(tools=()))
    answer = hook(BEFORE_LLM, name="answer")(lambda ctx, request: HookResult.answer(ModelResponse("cached")))
    await scripted_agent([], hooks=[telemetry.hook, change, answer]).arun("hi")
    assert telemetry.named(CHAT) == []
    assert verdicts(telemetry.one(RUN)) == [("change", "before_llm", "replace"), ("answer", "before_llm", "answer")]


async def test_the_verdict_on_an_answered_model_call_is_not_on_the_next_call(telemetry):
    @hook(BEFORE_LLM)
    def answer(ctx, request):
        return HookResult.answer(ModelResponse("", (call("look"),))) if request.hop == 0 else None

    await scripted_agent(["done"], tools=[look], hooks=[telemetry.hook, answer]).arun("hi")
    assert verdicts(telemetry.one(CHAT)) == []
    assert verdicts(telemetry.one(RUN)) == [("answer", "before_llm", "answer")]


async def test_verdicts_on_concurrent_model_calls_are_on_their_own_spans(telemetry):
    first, second = asyncio.Event(), asyncio.Event()

    @tool
    async def ask_about(ctx, topic: str) -> str:
        """Ask."""
        return (await ctx.llm.complete(topic, purpose=topic)).content

    @hook(AFTER_LLM)
    async def cross(ctx, response):
        if response.purpose == "one":  # at this time the other call is between its model and its hooks
            first.set()
            await second.wait()
        elif response.purpose == "two":
            await first.wait()
            second.set()
            await asyncio.sleep(0.01)
        return response.replace(content=f"about {response.purpose}") if response.purpose == "one" else None

    turns = [[call("ask_about", topic="one"), call("ask_about", topic="two")], "a", "b", "done"]
    await scripted_agent(turns, tools=[ask_about], hooks=[telemetry.hook, cross]).arun("hi")
    said = {chat.attributes["hookline.purpose"]: verdicts(chat) for chat in telemetry.named(CHAT)}
    assert said == {"step": [], "one": [("cross", "after_llm", "replace")], "two": []}


async def test_the_verdict_on_an_answered_model_call_of_a_tool_is_on_the_tool(telemetry):
    @hook(BEFORE_LLM)
    def answer(ctx, request):
        return HookResult.answer(ModelResponse("known")) if request.purpose == "inner" else None

    await scripted_agent([call("ask"), "done"], tools=[ask], hooks=[telemetry.hook, answer]).arun("hi")
    assert verdicts(telemetry.one("execute_tool ask")) == [("answer", "before_llm", "answer")]


async def test_other_verdicts_and_stops_are_on_the_run(telemetry):
    @hook(BEFORE_STEP)
    def stop(ctx, step):
        return HookResult.stop("enough") if step.index == 1 else None

    await scripted_agent([call("look"), "x"], tools=[look], hooks=[telemetry.hook, stop]).arun("hi")
    run = telemetry.one(RUN)
    assert verdicts(run) == [("stop", "before_step", "stop")]
    (event,) = [e for e in run.events if e.name == "hookline.stop"]
    assert dict(event.attributes) == {
        "hookline.stop.kind": "stop_requested",
        "hookline.hook": "stop",
        "hookline.reason": "enough",
    }
    assert run.attributes["hookline.status"] == "stopped"


async def test_approvals_are_on_the_span_of_the_call(telemetry):
    asker = guard(BEFORE_TOOL, name="asker")(lambda ctx, request: HookResult.ask("may it?"))
    yes = hook(APPROVAL_REQUESTED)(lambda ctx, request: HookResult.approve(by="ada"))
    await scripted_agent([call("look"), "x"], tools=[look], hooks=[telemetry.hook, asker, yes]).arun("hi")
    events = telemetry.one("execute_tool look").events
    assert [e.name for e in events] == ["hookline.verdict", "hookline.approval_asked", "hookline.approval_decided"]
    assert events[-1].attributes["hookline.decision"] == "approved"


async def test_a_blocked_call_shows_the_arguments_that_the_model_gave():
    telemetry = Telemetry(content=True)
    no = guard(BEFORE_TOOL, name="no")(lambda ctx, request: HookResult.block("no"))
    echo = tool(lambda text: text, name="echo")
    await scripted_agent([call("echo", text="x"), "y"], tools=[echo], hooks=[telemetry.hook, no]).arun("hi")
    told = telemetry.one("execute_tool echo").attributes
    assert (json.loads(told["input.value"]), told["output.value"]) == ({"text": "x"}, "no")


async def test_a_denied_call_has_an_error_status_with_the_name_of_the_person(telemetry):
    asker = guard(BEFORE_TOOL, name="asker")(lambda ctx, request: HookResult.ask("may it?"))
    no = hook(APPROVAL_REQUESTED)(lambda ctx, request: HookResult.deny("Not today.", by="ada"))
    await scripted_agent([call("look"), "x"], tools=[look], hooks=[telemetry.hook, asker, no]).arun("hi")
    status = telemetry.one("execute_tool look").status
    assert (status.status_code, status.description) == (StatusCode.ERROR, "blocked by ada")


async def test_each_attempt_of_a_tool_has_a_span_with_its_own_verdicts(telemetry):
    @hook(AFTER_TOOL)
    def again(ctx, result):
        return HookResult.retry() if result.attempt == 1 else None

    await scripted_agent([call("look"), "x"], tools=[look], hooks=[telemetry.hook, again]).arun("hi")
    first, second = telemetry.named("execute_tool look")
    assert (first.attributes["hookline.attempt"], second.attributes["hookline.attempt"]) == (1, 2)
    assert (verdicts(first), verdicts(second)) == ([("again", "after_tool", "retry")], [])
    assert first.end_time <= second.start_time


# Failures.


async def test_a_failed_tool_has_the_type_of_the_error_but_not_its_message(telemetry):
    await scripted_agent([call("fail"), "x"], tools=[fail], hooks=[telemetry.hook]).arun("hi")
    span = telemetry.one("execute_tool fail")
    assert (span.attributes["error.type"], span.attributes["hookline.outcome"]) == ("ValueError", "error")
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, None)
    assert telemetry.one(RUN).status.status_code is StatusCode.OK


async def test_calls_that_cannot_run_have_a_span_without_an_invented_name(telemetry):
    turns = [[call("nowhere"), call("look", no=1)], "x"]
    await scripted_agent(turns, tools=[look], hooks=[telemetry.hook]).arun("hi")
    unknown, wrong = telemetry.one("execute_tool"), telemetry.one("execute_tool look")
    assert unknown.attributes["gen_ai.tool.name"] == "nowhere"
    assert {s.attributes["error.type"] for s in (unknown, wrong)} == {"InvalidCall"}
    assert telemetry.points("hookline.tool.duration")
    assert {p.attributes["gen_ai.tool.name"] for p in telemetry.points("hookline.tool.duration")} == {"_OTHER", "look"}


async def test_a_model_failure_is_on_its_span_and_on_the_run(telemetry):
    with pytest.raises(RunFailedError):
        await scripted_agent([RateLimitError("a secret")], hooks=[telemetry.hook]).arun("hi")
    chat, run = telemetry.one(CHAT), telemetry.one(RUN)
    for span in (chat, run):
        assert (span.attributes["error.type"], span.status.status_code) == ("RateLimitError", StatusCode.ERROR)
    assert chat.attributes["gen_ai.provider.name"] == "scripted"
    assert run.attributes["hookline.status"] == "failed"
    assert "a secret" not in str([span.to_json() for span in telemetry.spans])


async def test_a_fallback_call_is_a_child_of_the_run_and_its_verdict_is_on_the_failed_call(telemetry):
    other = ScriptedModel(["mended"], name="other")
    hooks = [telemetry.hook, FallbackModelHook(other)]
    assert (await scripted_agent([RateLimitError("no")], hooks=hooks).arun("hi")).reply == "mended"
    failed, mended = telemetry.one(CHAT), telemetry.one("chat other")
    assert verdicts(failed) == [("FallbackModelHook", "on_error", "answer")]
    assert (telemetry.parent(mended), telemetry.parent(failed)) == (RUN, RUN)
    assert "gen_ai.usage.input_tokens" not in failed.attributes


async def test_a_failed_attempt_and_the_next_are_two_spans(telemetry):
    again = hook(ON_ERROR, name="again")(lambda ctx, failure: HookResult.retry())
    await scripted_agent([RateLimitError("no"), "done"], hooks=[telemetry.hook, again]).arun("hi")
    first, second = telemetry.named(CHAT)
    assert verdicts(first) == [("again", "on_error", "retry")]
    assert "error.type" not in second.attributes


async def test_a_failed_hook_is_reported_on_the_span_it_failed_in(telemetry):
    @guard(BEFORE_TOOL)
    def broken(ctx, request):
        raise ValueError("a secret")

    with pytest.raises(RunFailedError):
        await scripted_agent([call("look")], tools=[look], hooks=[telemetry.hook, broken]).arun("hi")
    span, run = telemetry.one("execute_tool look"), telemetry.one(RUN)
    assert verdicts(span) == [("broken", "before_tool", "failed")]
    assert span.attributes["hookline.outcome"] == "cancelled"
    (event,) = [e for e in run.events if e.name == "exception"]
    assert dict(event.attributes) == {"exception.type": "ValueError", "hookline.hook": "broken"}
    assert run.attributes["error.type"] == "ValueError"


async def test_a_reply_that_a_hook_ends_is_not_an_error(telemetry):
    @hook(ON_TOKEN)
    def stop(ctx, delta):
        return HookResult.end("stop there")

    await scripted_agent(["one two three"], hooks=[telemetry.hook, stop]).arun("hi")
    chat = telemetry.one(CHAT)
    assert verdicts(chat) == [("stop", "on_token", "end")]
    assert "error.type" not in chat.attributes
    assert telemetry.one(RUN).attributes["hookline.status"] == "ended"


# Nothing is left open.


def still_open(telemetry):
    return telemetry.hook._runs


async def test_a_cancelled_model_call_ends_all_spans(telemetry):
    run = Agent("test", llm=ScriptedModel(["x"], delay=60), hooks=[telemetry.hook]).start("hi")
    await until_others_wait()
    run.cancel()
    await run.result()
    assert telemetry.tree() == [(CHAT, RUN), (RUN, None)]
    assert telemetry.one(CHAT).attributes["error.type"] == "CancelledError"
    assert telemetry.one(RUN).attributes["hookline.status"] == "cancelled"
    assert still_open(telemetry) == {}


async def test_a_run_cancelled_while_hooks_judge_a_reply_ends_all_spans(telemetry):
    @hook(AFTER_LLM)
    async def hang(ctx, response):
        await asyncio.sleep(60)

    run = scripted_agent(["x"], hooks=[telemetry.hook, hang]).start("hi")
    await until_others_wait()
    run.cancel()
    await run.result()
    assert telemetry.tree() == [(CHAT, RUN), (RUN, None)]
    assert "error.type" not in telemetry.one(CHAT).attributes


@pytest.mark.parametrize("calls", [1, 3])
async def test_cancelled_tools_end_all_spans_in_the_callers_own_task(telemetry, calls):
    @tool
    async def stubborn() -> str:
        """Swallow a cancellation."""
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
        return current()

    turn = [call("wait")] if calls == 1 else [call("wait"), call("stubborn"), call("look")]
    work = scripted_agent([turn], tools=[wait, stubborn, look], hooks=[telemetry.hook]).arun("hi")
    task = asyncio.create_task(work)
    await until_others_wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await wait_until(lambda: len(telemetry.spans) == 2 + calls)
    outcomes = Counter(span.attributes.get("hookline.outcome") for span in telemetry.spans)
    assert outcomes["cancelled"] == (1 if calls == 1 else 2)
    assert still_open(telemetry) == {}


async def test_an_abandoned_thread_does_not_affect_the_current_span(telemetry):
    go, seen = threading.Event(), []

    @tool(timeout=0.02)
    def hang() -> str:
        """Hang."""
        go.wait(60)
        seen.append(current())

    await scripted_agent([call("hang"), call("look"), "x"], tools=[hang, look], hooks=[telemetry.hook]).arun("hi")
    assert telemetry.one("execute_tool hang").attributes["error.type"] == "TimeoutError"
    go.set()
    await wait_until(lambda: seen)
    assert seen == ["execute_tool hang"]
    assert {telemetry.parent(span) for span in telemetry.named(CHAT)} == {RUN}


async def test_a_model_call_of_a_timed_out_tool_ends_before_the_tool(telemetry):
    @tool
    async def impatient(ctx) -> str:
        """Ask, but not for long."""
        try:
            async with asyncio.timeout(0.02):
                await ctx.llm.using(slow).complete("hm?")
        except TimeoutError:
            assert telemetry.one("chat slow").attributes["error.type"] == "CancelledError"
            return current()

    slow = ScriptedModel(["x"], delay=60, name="slow")
    agent = scripted_agent([call("impatient"), "x"], tools=[impatient], hooks=[telemetry.hook])
    assert results(await agent.arun("hi")) == ["execute_tool impatient"]
    assert telemetry.one("chat slow").end_time <= telemetry.one("execute_tool impatient").end_time


@pytest.mark.parametrize(
    ("turn", "spans"),
    [(call("wait"), 3), ([call("wait"), call("wait")], 4), ("slow", 2)],
    ids=["tool", "tools", "model"],
)
def test_closing_the_coroutine_ends_all_spans(telemetry, turn, spans):
    model = ScriptedModel([turn], delay=60 if turn == "slow" else 0)
    loop = asyncio.new_event_loop()
    task = loop.create_task(Agent("test", llm=model, tools=[wait], hooks=[telemetry.hook]).arun("hi"))
    for _ in range(5):
        loop.run_until_complete(asyncio.sleep(0))
    for pending in asyncio.all_tasks(loop):
        pending._log_destroy_pending = False
    task.get_coro().close()
    loop.close()
    assert telemetry.one(RUN).attributes["hookline.status"] == "cancelled"
    assert len(telemetry.spans) == spans
    assert still_open(telemetry) == {}
    del task, pending
    gc.collect()


@pytest.mark.slow
async def test_a_thousand_concurrent_runs_have_separate_trees():
    telemetry = Telemetry()
    llm = ScriptedModel([lambda request: call("look") if len(request.messages) == 1 else "done"], delay=0.01, loop=True)
    agent = Agent("test", llm=llm, tools=[look], hooks=[telemetry.hook])
    done = await asyncio.gather(*[agent.arun("hi") for _ in range(1000)])
    assert {results(result)[0] for result in done} == {"execute_tool look"}
    assert len(telemetry.spans) == 4000
    roots = {s.context.span_id: s.context.trace_id for s in telemetry.spans if s.parent is None}
    assert len(set(roots.values())) == 1000
    assert all(roots[s.parent.span_id] == s.context.trace_id for s in telemetry.spans if s.parent is not None)
    assert still_open(telemetry) == {}


def test_runs_in_many_threads_share_one_hook(telemetry):
    agent = Agent("test", llm=ScriptedModel(["done"], loop=True), hooks=[telemetry.hook])
    threads = [threading.Thread(target=lambda: asyncio.run(agent.arun("hi"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert telemetry.tree() == [(CHAT, RUN)] * 8 + [(RUN, None)] * 8


class Broken:
    """A tracer or span that fails at given methods."""

    def __init__(self, where):
        self.where = where

    def get_tracer(self, *args, **kwargs):
        return self

    def start_span(self, name, *args, **kwargs):
        if self.where in ("start_span", name.split()[0]):
            raise RuntimeError("oh no")
        span = TracerProvider(shutdown_on_exit=False).get_tracer("x").start_span(name, *args, **kwargs)
        real = getattr(span, self.where, None)
        if real is not None:
            setattr(span, self.where, self.fail)
        return span

    def fail(self, *args, **kwargs):
        raise RuntimeError("oh no")


@pytest.mark.parametrize(
    "where",
    [
        "start_span",
        "chat",
        "execute_tool",
        "set_attributes",
        "set_attribute",
        "add_event",
        "set_status",
        "end",
        "is_recording",
        "set_labels",
    ],
)
async def test_a_broken_provider_does_not_affect_runs(where, caplog):
    class Meters:
        def get_meter(self, *args, **kwargs):
            return self

        def create_histogram(self, *args, **kwargs):
            return self

        create_counter = create_histogram

        def record(self, *args):
            if where == "set_labels":
                raise RuntimeError("oh no")

        add = record

    block = guard(BEFORE_TOOL, tools="look")(lambda ctx, request: HookResult.block("no"))
    telemetry = hookline.hooks.OpenTelemetryHook(Broken(where), Meters())
    agent = scripted_agent([[call("look"), call("fail")], "done"], tools=[look, fail], hooks=[telemetry, block])
    result = await agent.arun("hi")
    assert (result.reply, result.status) == ("done", "completed")
    assert results(result) == ["no", "ValueError: a secret"]
    assert {error.where for error in result.errors} == {"tool"}
    assert telemetry._runs == {}
    assert "oh no" in caplog.text


async def test_a_failing_exporter_does_not_affect_runs(caplog):
    class Failing(InMemorySpanExporter):
        def export(self, spans):
            raise ConnectionError("oh no")

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(Failing()))
    result = await scripted_agent(["done"], hooks=[hookline.hooks.OpenTelemetryHook(provider)]).arun("hi")
    assert (result.reply, result.errors) == ("done", ())
    assert "oh no" in caplog.text
    caplog.clear()


async def test_no_span_ends_before_its_start_if_the_wall_clock_jumps_back(telemetry, monkeypatch):
    now = time.time_ns()
    agent = scripted_agent(
        [lambda r: monkeypatch.setattr(time, "time_ns", lambda: now - 10**12) or "x"], hooks=[telemetry.hook]
    )
    await agent.arun("hi")
    assert all(0 <= span.end_time - span.start_time < 10**11 for span in telemetry.spans)


async def test_without_providers_the_global_ones_are_used():
    hook = hookline.hooks.OpenTelemetryHook()
    result = await scripted_agent([call("look"), "done"], tools=[look], hooks=[hook]).arun("hi")
    assert (result.reply, result.errors, hook._runs) == ("done", (), {})


async def test_an_unsampled_trace_has_no_events_but_is_propagated(telemetry):
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

    provider = TracerProvider(ALWAYS_OFF, shutdown_on_exit=False)
    telemetry.hook = hookline.hooks.OpenTelemetryHook(provider, telemetry.meters, content=True)
    seen = []

    @tool
    def where() -> str:
        """Which trace is this?"""
        seen.append(trace.get_current_span().get_span_context())

    await scripted_agent([call("where"), "x"], tools=[where], hooks=[telemetry.hook]).arun("hi")
    assert seen[0].is_valid
    assert not seen[0].trace_flags.sampled
    assert telemetry.points("hookline.runs")


async def test_a_hook_registered_during_a_run_takes_part_from_the_next_run(telemetry):
    @tool
    def register() -> str:
        """Register the hook."""
        agent.register_hook(telemetry.hook)

    agent = scripted_agent([call("register"), "x", "y"], tools=[register])
    await agent.arun("hi")
    assert telemetry.spans == ()
    await agent.arun("hi")
    assert telemetry.tree() == [(CHAT, RUN), (RUN, None)]


# Metrics.


async def test_tokens_durations_verdicts_and_runs_are_counted(telemetry):
    @guard(BEFORE_TOOL, name="no", tools="fail")
    def no(ctx, request):
        return HookResult.block("no")

    turns = [reply("", tool_calls=(call("look"), call("fail")), usage=Usage(10, 2)), reply("x", usage=Usage(20, 3))]
    await scripted_agent(turns, tools=[look, fail], hooks=[telemetry.hook, no]).arun("hi")
    tokens = {p.attributes["gen_ai.token.type"]: p for p in telemetry.points("gen_ai.client.token.usage")}
    assert {kind: (p.sum, p.count) for kind, p in tokens.items()} == {"input": (30, 2), "output": (5, 2)}
    assert list(tokens["input"].explicit_bounds)[:4] == [1, 4, 16, 64]
    (took,) = telemetry.points("gen_ai.client.operation.duration")
    assert (took.count, list(took.explicit_bounds)[:3]) == (2, [0.01, 0.02, 0.04])
    assert dict(took.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "scripted",
        "gen_ai.request.model": "scripted",
        "gen_ai.response.model": "scripted",
    }
    tools = {
        (p.attributes["gen_ai.tool.name"], p.attributes["hookline.outcome"]): p.count
        for p in telemetry.points("hookline.tool.duration")
    }
    assert tools == {("look", "ok"): 1, ("fail", "blocked"): 1}
    labels = [f"hookline.{x}" for x in ("hook", "point", "verb")]
    assert telemetry.values("hookline.verdicts", *labels) == {("no", "before_tool", "block"): 1}
    assert telemetry.values("hookline.runs", "hookline.status", "gen_ai.agent.name") == {("completed", "test"): 1}


async def test_rejected_and_failed_attempts_count_too(telemetry):
    @hook(AFTER_LLM)
    def again(ctx, response):
        return HookResult.retry() if response.content == "bad" else None

    with pytest.raises(RunFailedError):
        agent = scripted_agent([reply("bad", usage=Usage(10, 2)), RateLimitError("no")], hooks=[telemetry.hook, again])
        await agent.arun("hi")
    assert sum(p.sum for p in telemetry.points("gen_ai.client.token.usage")) == 12
    took = {p.attributes.get("error.type"): p.count for p in telemetry.points("gen_ai.client.operation.duration")}
    assert took == {None: 1, "RateLimitError": 1}
    assert telemetry.values("hookline.runs", "hookline.status") == {("failed",): 1}


async def test_continue_is_not_a_verdict_even_if_every_call_is_recorded(telemetry):
    silent = hook(BEFORE_LLM, name="silent")(lambda ctx, request: None)
    agent = scripted_agent(["x"], hooks=[telemetry.hook, silent])
    await agent.arun("hi", every_call=True, sinks=[EventLog(every_call=True)])
    assert telemetry.points("hookline.verdicts") == []
    assert all(span.events == () for span in telemetry.spans)


# Content.


async def test_content_is_not_reported_by_default(telemetry):
    turns = [reply("a secret", tool_calls=(call("echo", text="a secret"),)), "a secret"]
    await scripted_agent(
        turns, tools=[tool(lambda text: text, name="echo")], hooks=[telemetry.hook], instructions="a secret"
    ).arun("a secret")
    assert "a secret" not in str([span.to_json() for span in telemetry.spans])


async def test_content_is_reported_in_the_conventional_form_after_all_hooks():
    telemetry = Telemetry(content=True)

    @hook(AFTER_TOOL)
    def redact(ctx, result):
        return result.replace(result="(redacted)")

    echo = tool(lambda text: f"got {text}", name="echo")
    agent = scripted_agent(
        [call("echo", text="x"), "done"], tools=[echo], hooks=[telemetry.hook, redact], instructions="Be brief."
    )
    await agent.arun("hi")
    told = telemetry.one("execute_tool echo").attributes
    assert json.loads(told["gen_ai.tool.call.arguments"]) == {"text": "x"}
    assert told["gen_ai.tool.call.result"] == "(redacted)"
    first, second = telemetry.named(CHAT)
    calling = {"type": "tool_call", "id": "call_0_0", "name": "echo", "arguments": {"text": "x"}}
    assert json.loads(first.attributes["gen_ai.output.messages"]) == [
        {"role": "assistant", "parts": [calling], "finish_reason": "tool_call"}
    ]
    assert json.loads(second.attributes["gen_ai.input.messages"]) == [
        {"role": "system", "parts": [{"type": "text", "content": "Be brief."}]},
        {"role": "user", "parts": [{"type": "text", "content": "hi"}]},
        {"role": "assistant", "parts": [calling]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "call_0_0", "response": "(redacted)"}]},
    ]
    run = telemetry.one(RUN).attributes
    assert json.loads(run["gen_ai.output.messages"])[0]["parts"] == [{"type": "text", "content": "done"}]
    assert (run["openinference.span.kind"], run["input.value"], run["output.value"]) == ("AGENT", "hi", "done")
    assert told["openinference.span.kind"] == "TOOL"
    assert (json.loads(told["input.value"]), told["output.value"]) == ({"text": "x"}, "(redacted)")
    assert first.attributes["openinference.span.kind"] == "LLM"


@pytest.mark.slow
async def test_huge_results_and_long_conversations_are_truncated():
    telemetry = Telemetry(content=True)
    huge = tool(lambda: "x" * 50_000_000, name="huge")
    turns = [call("huge"), *[reply("y" * 7_000, tool_calls=(call("look"),))] * 18, "done"]
    await scripted_agent(turns, tools=[huge, look], hooks=[telemetry.hook], limits=Limits(steps=math.inf)).arun("hi")
    assert max(len(v) for s in telemetry.spans for v in s.attributes.values() if isinstance(v, str)) < 120_000
    assert all(json.loads(chat.attributes["gen_ai.input.messages"]) for chat in telemetry.named(CHAT))
    assert "characters left out" in telemetry.one("execute_tool huge").attributes["gen_ai.tool.call.result"]


# A collector.


class Collector(BaseHTTPRequestHandler):
    """A receiver of OTLP over HTTP."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            import gzip

            body = gzip.decompress(body)
        self.server.received.append((self.path, body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args):
        pass


@pytest.fixture
def collector():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    server.daemon_threads, server.received = True, []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_spans_and_metrics_with_any_content_reach_a_collector(collector, monkeypatch):
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    meters = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())], shutdown_on_exit=False)
    hook_ = hookline.hooks.OpenTelemetryHook(provider, meters, content=True)
    block = guard(BEFORE_TOOL, name="b\udc80d")(lambda ctx, request: HookResult.block("no", reason="\ud800" * 9))
    agent = scripted_agent(
        [call("look\udcff", text="\udcff"), call("look"), "d\x00ne \ud83d"],
        tools=[look],
        hooks=[hook_, block],
        name="\udc00name",
        params={"seed": 2**80, "stop": ["\udcff"]},
    )
    agent.run("h\udcffi")
    provider.shutdown()
    meters.shutdown()
    received = dict(collector.received)
    assert set(received) == {"/v1/traces", "/v1/metrics"}
    traces = ExportTraceServiceRequest.FromString(received["/v1/traces"])
    spans = [span for r in traces.resource_spans for s in r.scope_spans for span in s.spans]
    assert Counter(span.name.split()[0] for span in spans) == {"chat": 3, "execute_tool": 2, "invoke_agent": 1}
    (root,) = [span for span in spans if not span.parent_span_id]
    assert {span.parent_span_id for span in spans} == {b"", root.span_id}
    assert [e.name for span in spans for e in span.events] == ["hookline.verdict"]
    sent = ExportMetricsServiceRequest.FromString(received["/v1/metrics"])
    names = {metric.name for r in sent.resource_metrics for s in r.scope_metrics for metric in s.metrics}
    assert names == {
        "gen_ai.client.token.usage",
        "gen_ai.client.operation.duration",
        "hookline.tool.duration",
        "hookline.verdicts",
        "hookline.runs",
    }


@pytest.mark.slow
def test_a_real_model_gives_the_same_spans(telemetry):
    pytest.importorskip("xllamacpp")
    Agent("test", llm="local", hooks=[telemetry.hook], params={"max_tokens": 4}, limits=Limits(steps=1)).run(
        "Say hello."
    )
    (chat,) = [span for span in telemetry.spans if span.name.startswith("chat ")]
    assert chat.attributes["gen_ai.provider.name"] == "local"
    assert chat.attributes["gen_ai.request.max_tokens"] == 4
    assert chat.attributes["gen_ai.usage.output_tokens"] > 0
    assert telemetry.parent(chat) == RUN


# Random runs.

TURNS = st.one_of(
    st.text(st.characters(codec=None), max_size=5),
    st.sampled_from([RateLimitError("no"), ValueError("no")]),
    st.lists(
        st.sampled_from(["look", "look_from_a_thread", "look_in_time", "ask", "fail", "no\udcffwhere", ""]).map(call),
        min_size=1,
        max_size=3,
    ),
)
VERDICTS = st.dictionaries(
    st.integers(0, 12), st.sampled_from(["block", "end", "retry", "stop", "answer", "raise", "ask"]), max_size=5
)


@pytest.mark.slow
@settings(max_examples=examples(150), deadline=None)
@given(st.lists(TURNS, max_size=5), VERDICTS, st.booleans(), st.none() | st.integers(0, 8))
def test_the_tree_of_spans_is_well_formed_for_any_run(turns, said, content, cancel_after):
    telemetry, events, count = Telemetry(content=content), EventLog(), iter(range(1000))

    def verdict(point):
        what = said.get(next(count))
        if what == "raise":
            raise ValueError("on purpose")
        if what == "answer":
            return HookResult.answer("x" if point == BEFORE_TOOL else ModelResponse("x"))
        return {
            "block": HookResult.block("no"),
            "end": HookResult.end("x"),
            "retry": HookResult.retry(),
            "stop": HookResult.stop("x"),
            "ask": HookResult.ask("?"),
        }.get(what)

    deciders = [
        hook(point, name=f"at {point}")(lambda ctx, payload, point=point: verdict(point))
        for point in (BEFORE_LLM, AFTER_LLM, BEFORE_TOOL, AFTER_TOOL, ON_ERROR)
    ]
    yes = hook(APPROVAL_REQUESTED)(lambda ctx, request: HookResult.approve())

    async def main():
        agent = scripted_agent(
            turns, tools=[*LOOKS, ask, fail], hooks=[telemetry.hook, *deciders, yes], limits=Limits(steps=6)
        )
        run = agent.start("hi", sinks=[events])
        if cancel_after is not None:
            for _ in range(cancel_after):
                await asyncio.sleep(0)
            run.cancel()
        await run.settled()
        assert otel_context.get_current() == {}

    logging.disable(logging.CRITICAL)
    try:
        asyncio.run(main())
    finally:
        logging.disable(logging.NOTSET)
    spans = {span.context.span_id: span for span in telemetry.spans}
    (root,) = [span for span in spans.values() if span.parent is None]
    assert root.name == RUN
    assert len({span.context.trace_id for span in spans.values()}) == 1
    operations = Counter(span.attributes["gen_ai.operation.name"] for span in spans.values())
    assert operations["invoke_agent"] == 1
    assert operations["execute_tool"] == len(events.of(ToolEnded))
    assert operations["chat"] == len(events.of(hookline.events.ModelCalled))
    for span in spans.values():
        if span is root:
            continue
        parent = spans[span.parent.span_id]
        assert span.start_time >= parent.start_time
        is_inner = span.attributes.get("hookline.purpose") == "inner"
        assert parent.name == ("execute_tool ask" if is_inner else RUN)
        assert span.end_time is not None
    assert still_open(telemetry) == {}


# Arguments.


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        (("http://localhost",), {}, "tracer_provider must be a TracerProvider"),
        ((TracerProvider,), {}, "tracer_provider must be a TracerProvider"),
        ((None, 3), {}, "meter_provider must be a MeterProvider"),
        ((), {"content": "no"}, "content must be True or False"),
    ],
)
def test_a_provider_of_the_wrong_type_is_rejected(arguments, options, words):
    with pytest.raises(RegistrationError, match=words):
        hookline.hooks.OpenTelemetryHook(*arguments, **options)


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "hookline.hooks._otel.spans", raising=False)
    with pytest.raises(NotInstalledError, match=r"pip install .*\[otel\]"):
        hookline.hooks.OpenTelemetryHook()


async def test_outside_a_run_the_hook_does_nothing(telemetry, fire_hook):
    await hookline.HookRegistry([telemetry.hook]).fire(AFTER_LLM, hookline.ModelReply("x"), ctx=hookline.AgentContext())
    assert telemetry.hook.wrap(SimpleNamespace(run_id="nobody"), hookline.ModelRequest()) is None
    assert telemetry.spans == ()
