"""The Forge hooks page, from top to bottom, kept by Hookline."""

import asyncio
import json
import logging

import pytest

from hookline import (
    AFTER_LLM,
    AFTER_TOOL,
    BEFORE_LLM,
    BEFORE_TOOL,
    ON_ERROR,
    ON_PROGRESS,
    ON_RUN_END,
    Agent,
    HookError,
    HookRegistry,
    HookResult,
    RunFailedError,
    ScriptedModel,
    call,
    guard,
    reply,
    tool,
)
from hookline.errors import ModelError
from hookline.events import ModelReplied, ToolEnded, ToolProgressed, ToolStarted
from hookline.hooks import AuditLogHook
from hookline.models import ModelResponse
from hookline.payloads import Usage
from hookline.points import resolve
from hookline.testing import EventLog

from ..server.a2a.rig import serving_a2a

HOOK_POINTS = {
    "BeforeLLMCall": BEFORE_LLM,
    "AfterLLMCall": AFTER_LLM,
    "BeforeToolExec": BEFORE_TOOL,
    "AfterToolExec": AFTER_TOOL,
    "OnError": ON_ERROR,
    "OnProgress": ON_PROGRESS,
}


@tool
def search(query: str) -> str:
    """Search."""
    return f"results for {query}"


@tool
def crash() -> str:
    """Always fails."""
    raise RuntimeError("tool crashed")


def make(turns, **options):
    return Agent("t", "", "", llm=ScriptedModel(turns), tools=[search, crash], **options)


def one_tool():
    return [call("search", query="q"), reply("done")]


class Collector:
    def __init__(self):
        self.seen = []

    def __call__(self, point, ctx, payload):
        self.seen.append((str(point), payload))

    def at(self, point):
        return [payload for where, payload in self.seen if where == point]


# Overview


async def test_hooks_fire_synchronously_within_the_loop():
    agent, order = make([lambda request: order.append("llm") or reply("x")]), []
    agent.register_hook(lambda ctx, p: order.append("before"), points="BeforeLLMCall")
    agent.register_hook(lambda ctx, p: order.append("after"), points="AfterLLMCall")
    await agent.arun("x")
    assert order == ["before", "llm", "after"]


async def test_hooks_can_inspect_messages_responses_and_tool_activity():
    agent, collector = make(one_tool()), Collector()
    agent.register_hook(collector, points=("BeforeLLMCall", "AfterLLMCall", "AfterToolExec"))
    await agent.arun("find q")
    assert [point for point, _ in collector.seen] == [
        "before_llm",
        "after_llm",
        "after_tool",
        "before_llm",
        "after_llm",
    ]
    assert collector.at(BEFORE_LLM)[0].messages[0].content == "find q"
    assert collector.at(AFTER_LLM)[1].content == "done"
    assert collector.at(AFTER_TOOL)[0].text == "results for q"


async def test_hooks_can_modify_what_the_model_is_given():
    agent = make([reply("x")])
    agent.register_hook(
        lambda ctx, p: p.replace(messages=[{"role": "user", "content": "other"}]), points="BeforeLLMCall"
    )
    await agent.arun("original")
    assert [m.content for m in agent.model.requests[0].messages] == ["other"]


# Hook Points


@pytest.mark.parametrize(("name", "point"), HOOK_POINTS.items())
def test_every_hook_point_goes_by_its_forge_name(name, point):
    assert resolve(name) is point


async def test_before_llm_call_fires_before_each_llm_call_with_messages_and_ids():
    agent, collector = make(one_tool()), Collector()
    agent.register_hook(collector, points="BeforeLLMCall")
    await agent.arun("x", task_id="task-7", correlation_id="corr-9")
    assert [len(p.messages) for p in collector.at(BEFORE_LLM)] == [1, 3]
    assert {(p.ids.task_id, p.ids.correlation_id) for p in collector.at(BEFORE_LLM)} == {("task-7", "corr-9")}


async def test_after_llm_call_has_messages_response_and_ids():
    agent, collector = make([reply("done")]), Collector()
    agent.register_hook(collector, points="AfterLLMCall")
    await agent.arun("hello", task_id="task-7", correlation_id="corr-9")
    (payload,) = collector.at(AFTER_LLM)
    assert [m.content for m in payload.request.messages] == ["hello"]
    assert (payload.content, payload.ids.task_id, payload.ids.correlation_id) == ("done", "task-7", "corr-9")


async def test_before_tool_exec_has_name_input_and_ids():
    agent, collector = make(one_tool()), Collector()
    agent.register_hook(collector, points="BeforeToolExec")
    await agent.arun("x", task_id="task-7", correlation_id="corr-9")
    (payload,) = collector.at(BEFORE_TOOL)
    assert (payload.name, payload.arguments) == ("search", {"query": "q"})
    assert (payload.ids.task_id, payload.ids.correlation_id) == ("task-7", "corr-9")


async def test_after_tool_exec_has_name_input_output_error_and_ids():
    agent, collector = make([[call("search", query="q"), call("crash")], reply("x")]), Collector()
    agent.register_hook(collector, points="AfterToolExec")
    await agent.arun("x", task_id="task-7", correlation_id="corr-9")
    good, bad = collector.at(AFTER_TOOL)
    assert (good.name, good.arguments, good.text, good.error) == ("search", {"query": "q"}, "results for q", None)
    assert (bad.name, bad.result, bad.outcome) == ("crash", None, "error")
    assert "tool crashed" in bad.error
    assert {(p.ids.task_id, p.ids.correlation_id) for p in (good, bad)} == {("task-7", "corr-9")}


async def test_on_error_fires_when_an_llm_call_fails_with_the_error_and_ids():
    agent, collector = make([ConnectionError("503")]), Collector()
    agent.register_hook(collector, points="OnError")
    with pytest.raises(RunFailedError):
        await agent.arun("x", task_id="task-7", correlation_id="corr-9")
    (payload,) = collector.at(ON_ERROR)
    assert (payload.where, payload.errors[0].type) == ("model", "ConnectionError")
    assert "503" in payload.errors[0].message
    assert (payload.ids.task_id, payload.ids.correlation_id) == ("task-7", "corr-9")


async def test_on_error_fires_for_every_kind_of_failure_and_says_which():
    # A deliberate difference: for LLM calls only there.
    agent, collector = make([call("crash"), reply("x")]), Collector()
    agent.register_hook(collector, points="OnError")
    await agent.arun("x")
    assert [p.where for p in collector.at(ON_ERROR)] == ["tool"]


async def test_on_progress_fires_during_tool_execution_with_phase_tool_and_message():
    agent, collector = make(one_tool()), Collector()
    agent.register_hook(collector, points="OnProgress")
    await agent.arun("x", task_id="task-7")
    start, end = collector.at(ON_PROGRESS)
    assert (start.phase, start.tool, end.phase, end.tool) == ("tool_start", "search", "tool_end", "search")
    assert start.message == "search: q"
    assert end.message.startswith("search finished in ")
    assert {start.ids.task_id, end.ids.task_id} == {"task-7"}


async def test_task_and_correlation_ids_have_defaults_that_tie_a_run_together():
    agent, collector = make(one_tool()), Collector()
    agent.register_hook(collector, points=[p for p in HOOK_POINTS if p != "OnError"])
    result = await agent.arun("x")
    ids = {(p.ids.task_id, p.ids.correlation_id) for _, p in collector.seen}
    assert ids == {(result.ids.run_id, result.ids.run_id)}


async def test_the_ids_are_on_the_context_too():
    agent, seen = make([reply("x")]), []
    agent.register_hook(lambda ctx, p: seen.append((ctx.task_id, ctx.correlation_id)), points="BeforeLLMCall")
    await agent.arun("x", task_id="t", correlation_id="c")
    assert seen == [("t", "c")]


async def test_concurrent_tasks_keep_their_own_ids():
    agent, seen = make([reply("x")]), []
    agent.model.loop = True

    async def note(ctx, payload):
        await asyncio.sleep(0)
        seen.append((ctx.task_id, payload.ids.task_id))

    agent.register_hook(note, points="AfterLLMCall")
    await asyncio.gather(*(agent.arun("x", task_id=f"t{n}") for n in range(4)))
    assert sorted(seen) == [(f"t{n}", f"t{n}") for n in range(4)]


# HookContext


async def test_the_tool_input_can_be_had_as_json_and_the_output_as_text():
    agent, seen = make(one_tool()), []

    def look(ctx, payload):
        seen.append((json.loads(payload.to_json())["arguments"], payload.text))

    agent.register_hook(look, points="AfterToolExec")
    await agent.arun("x")
    assert seen == [({"query": "q"}, "results for q")]


async def test_the_payload_cannot_be_changed_in_place():
    # A deliberate difference: a pointer to a mutable struct there.
    agent, refused = make(one_tool()), []

    def meddle(ctx, payload):
        for change in (lambda: setattr(payload, "name", "crash"), payload.arguments.clear):
            with pytest.raises((AttributeError, TypeError)):
                change()
            refused.append(1)

    agent.register_hook(meddle, points="BeforeToolExec")
    result = await agent.arun("x")
    assert len(refused) == 2
    assert result.messages[2].content == "results for q"


# Writing Hooks: Logging Hook Example


async def test_the_logging_example_logs_llm_calls_and_tool_results(caplog):
    log = logging.getLogger("forge-example")
    hooks = HookRegistry()
    hooks.on("BeforeLLMCall", lambda ctx, p: log.info("LLM call with %d messages", len(p.messages)))
    hooks.on("AfterToolExec", lambda ctx, p: log.info("Tool %s returned: %s", p.name, p.text))
    with caplog.at_level(logging.INFO, "forge-example"):
        await make(one_tool(), hooks=hooks).arun("x")
    assert [r.getMessage() for r in caplog.records] == [
        "LLM call with 1 messages",
        "Tool search returned: results for q",
        "LLM call with 3 messages",
    ]


# Writing Hooks: Enforcement Hook Example


def dangerous_agent(ran, **options):
    @tool
    def dangerous_tool() -> str:
        """Dangerous."""
        ran.append(1)
        return "boom"

    return Agent("t", llm=ScriptedModel([call("dangerous_tool"), reply("told off")]), tools=[dangerous_tool], **options)


def forbid(ctx, payload):
    if payload.name == "dangerous_tool":
        raise PermissionError(f'tool "{payload.name}" is blocked by policy')


async def test_the_enforcement_example_keeps_the_tool_from_running_and_stops_the_task():
    ran = []
    agent = dangerous_agent(ran)
    agent.register_hook(forbid, points="BeforeToolExec")
    with pytest.raises(RunFailedError, match='tool "dangerous_tool" is blocked by policy'):
        await agent.arun("x")
    assert ran == []
    assert len(agent.model.requests) == 1


async def test_the_enforcement_example_lets_other_tools_pass():
    agent = make(one_tool())
    agent.register_hook(forbid, points="BeforeToolExec")
    assert (await agent.arun("x")).reply == "done"


async def test_a_block_tells_the_model_and_the_task_goes_on():
    # A deliberate difference: a denial there aborts the whole task; here there is a choice.
    ran = []
    agent = dangerous_agent(ran, hooks=[guard(BEFORE_TOOL)(lambda ctx, p: HookResult.block("blocked by policy"))])
    result = await agent.arun("x")
    assert (ran, result.status, result.reply) == ([], "completed", "told off")
    assert agent.model.requests[1].messages[-1].content == "blocked by policy"


async def test_an_end_stops_the_task_without_an_exception():
    ran = []
    agent = dangerous_agent(ran, hooks=[guard(BEFORE_TOOL)(lambda ctx, p: HookResult.end("No.", reason="policy"))])
    result = await agent.arun("x")
    assert (ran, result.status, result.reply, result.hook_ended) == ([], "ended", "No.", "policy")


async def test_a_raising_hook_can_be_told_to_block_the_call_only():
    ran = []
    agent = dangerous_agent(ran)
    agent.register_hook(forbid, points="BeforeToolExec", on_failure="block")
    result = await agent.arun("x")
    assert (ran, result.status, result.reply) == ([], "completed", "told off")
    assert agent.model.requests[1].messages[-1].content == "Blocked: the hook 'forbid' failed."
    assert "is blocked by policy" in result.errors[0].message


# Audit Logging


async def test_after_llm_call_has_every_audit_field():
    rows = []

    def audit(ctx, payload):
        rows.append(
            {
                "provider": payload.provider,
                "model": payload.model,
                "input_tokens": payload.usage.input_tokens,
                "output_tokens": payload.usage.output_tokens,
                "organization_id": payload.organization_id,
            }
        )

    turn = ModelResponse(
        "hi", usage=Usage(12, 5), provider="openai", model="gpt-x", organization_id="org-1", cost=0.001
    )
    agent = make([turn])
    agent.register_hook(audit, points="AfterLLMCall", phase="observe")
    await agent.arun("x")
    assert rows == [
        {"provider": "openai", "model": "gpt-x", "input_tokens": 12, "output_tokens": 5, "organization_id": "org-1"}
    ]


async def test_provider_and_model_default_to_the_models_own_and_the_organization_to_none():
    agent, collector = make([reply("x")]), Collector()
    agent.register_hook(collector, points="AfterLLMCall", phase="observe")
    await agent.arun("x")
    (payload,) = collector.at(AFTER_LLM)
    assert (payload.provider, payload.model, payload.organization_id) == ("scripted", "scripted", "")


async def test_each_llm_interaction_is_a_structured_event():
    log = EventLog()
    turns = [call("search", query="q"), ModelResponse("x", usage=Usage(3, 4), organization_id="org-1", cost=0.0)]
    await make(turns, sinks=[log]).arun("x")
    events = log.of(ModelReplied)
    assert len(events) == 2
    assert (events[1].provider, events[1].model) == ("scripted", "scripted")
    assert (events[1].usage, events[1].organization_id) == (Usage(3, 4), "org-1")
    assert json.loads(events[1].to_json())["usage"]["output_tokens"] == 4


async def test_each_llm_interaction_is_logged_at_info_level_for_log_aggregators(caplog):
    turn = ModelResponse("hi", usage=Usage(12, 5), provider="openai", model="gpt-x", organization_id="org-1", cost=0.0)
    audit = AuditLogHook(None, logger="hookline.audit")
    with caplog.at_level(logging.INFO, "hookline.audit"):
        await make([call("search", query="q"), turn], hooks=[audit]).arun("x", task_id="t", correlation_id="c")
        audit.flush()
    rows = [json.loads(r.getMessage()) for r in caplog.records if r.name == "hookline.audit" and r.levelname == "INFO"]
    calls = [row for row in rows if row["type"] == "model"]
    assert len(calls) == 2
    fields = ("provider", "model", "input_tokens", "output_tokens", "organization_id")
    assert [calls[1][field] for field in fields] == ["openai", "gpt-x", 12, 5, "org-1"]
    assert {(row["task_id"], row["correlation_id"]) for row in rows} == {("t", "c")}


# Progress Tracking


async def test_progress_comes_live_with_tool_phase_and_message():
    phases = []

    @tool
    async def build(ctx) -> str:
        """Build."""
        phases.append("running")
        ctx.progress(0.5, "half way")
        await asyncio.sleep(0)
        return "built"

    agent = Agent("t", llm=ScriptedModel([call("build"), reply("x")]), tools=[build])
    agent.register_hook(lambda ctx, p: phases.append((p.phase, p.tool, p.message, p.fraction)), points="OnProgress")
    await agent.arun("x")
    assert phases == [
        ("tool_start", "build", "build started", None),
        "running",
        ("progress", "build", "build: half way (50%)", 0.5),
        ("tool_end", "build", phases[-1][2], None),
    ]
    assert phases[-1][2].startswith("build finished in ")


async def test_progress_is_in_the_event_stream_without_any_hook():
    # The runner there registers hooks for it; here the stream of a run always has it.
    told = []
    async for event in make(one_tool()).stream("x"):
        if isinstance(event, (ToolStarted, ToolProgressed, ToolEnded)):
            told.append((type(event).__name__, event.tool, event.message.partition(" in ")[0]))
    assert told == [("ToolStarted", "search", "search: q"), ("ToolEnded", "search", "search finished")]


async def test_the_a2a_server_streams_progress_over_sse_with_tool_phase_and_message(tmp_path):
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "find q"}]}
    async with serving_a2a(tmp_path, make(one_tool())) as server:
        results = [each["result"] for each in await server.stream("SendStreamingMessage", {"message": message}, "t")]
    updates = [each["statusUpdate"] for each in results if "phase" in each.get("statusUpdate", {}).get("metadata", {})]
    told = [
        (each["metadata"]["phase"], each["metadata"]["tool"], each["status"]["message"]["parts"][0]["text"])
        for each in updates
    ]
    assert [(phase, tool, text.partition(" in ")[0]) for phase, tool, text in told] == [
        ("tool_start", "search", "search: q"),
        ("tool_end", "search", "search finished"),
    ]
    assert {each["status"]["state"] for each in updates} == {"TASK_STATE_WORKING"}


async def test_task_and_correlation_ids_come_from_the_requests_of_the_a2a_server(tmp_path):
    agent, collector = make(one_tool()), Collector()
    for name in HOOK_POINTS:
        agent.register_hook(collector, points=name)
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}]}
    headers = {"A2A-Version": "1.0", "X-Correlation-ID": "corr-9"}
    async with serving_a2a(tmp_path, agent) as server:
        answer = await server.call("SendMessage", {"message": message}, "t", headers=headers)
    task = answer["result"]["task"]
    assert task["metadata"]["correlation_id"] == "corr-9"
    assert {(p.ids.task_id, p.ids.correlation_id) for _, p in collector.seen} == {(task["id"], "corr-9")}


@pytest.mark.parametrize(
    ("turn", "message"),
    [
        (call("search", query="q"), "search was blocked by policy"),
        (call("crash"), "crash failed after"),
        (call("no_such_tool"), "no_such_tool could not be called"),
    ],
)
async def test_what_a_hook_and_the_stream_tell_of_a_call_is_the_same_and_for_people(turn, message):
    agent, collector, log = make([turn, reply("x")]), Collector(), EventLog()
    agent.register_hook(lambda ctx, p: HookResult.block("no"), points="BeforeToolExec", tools="search", name="policy")
    agent.register_hook(collector, points="OnProgress")
    await agent.arun("x", sinks=[log])
    told = [p.message for p in collector.at(ON_PROGRESS)]
    assert told == [event.message for event in (*log.of(ToolStarted), *log.of(ToolEnded))]
    assert told[-1].startswith(message)


@pytest.mark.parametrize(
    ("turn", "block", "outcome", "starts"),
    [
        (call("search", query="q"), False, "ok", True),
        (call("crash"), False, "error", True),
        (call("search", query="q"), True, "blocked", False),
        (call("no_such_tool"), False, "error", False),
        (call("search", wrong=1), False, "error", False),
    ],
)
async def test_every_tool_start_has_one_tool_end_with_its_outcome(turn, block, outcome, starts):
    agent, collector = make([turn, reply("x")]), Collector()
    if block:
        agent.register_hook(lambda ctx, p: HookResult.block("no"), points="BeforeToolExec")
    agent.register_hook(collector, points="OnProgress")
    await agent.arun("x")
    *start, end = collector.at(ON_PROGRESS)
    assert [each.phase for each in start] == (["tool_start"] if starts else [])
    assert (end.phase, end.outcome) == ("tool_end", outcome)
    assert all(each.call_id == end.call_id for each in start)


# Error Handling


@pytest.mark.parametrize("name", HOOK_POINTS)
async def test_hooks_fire_in_registration_order_at_each_point(name):
    agent, order = make([call("crash"), reply("x")]), []
    for letter in "abc":
        agent.register_hook(lambda ctx, p, *, letter=letter: order.append(letter), points=name)
    await agent.arun("x")
    assert order == list("abc") * (len(order) // 3)
    assert order


def failing_with(message):
    def fail(ctx, payload):
        raise ValueError(message)

    return fail


@pytest.mark.parametrize(
    ("name", "llm_calls", "tool_runs"),
    [("BeforeLLMCall", 0, 0), ("AfterLLMCall", 1, 0), ("BeforeToolExec", 1, 0), ("AfterToolExec", 1, 1)],
)
async def test_an_error_stops_execution_immediately(name, llm_calls, tool_runs):
    ran, later = [], []

    @tool
    def work() -> str:
        """Work."""
        ran.append(1)
        return "worked"

    agent = Agent("t", llm=ScriptedModel([call("work"), reply("x")]), tools=[work])
    agent.register_hook(failing_with("stop here"), points=name)
    agent.register_hook(lambda ctx, p: later.append(1), points=name)
    with pytest.raises(RunFailedError, match="stop here"):
        await agent.arun("x")
    assert (len(agent.model.requests), len(ran), later) == (llm_calls, tool_runs, [])


@pytest.mark.parametrize("name", ["BeforeLLMCall", "AfterLLMCall", "BeforeToolExec", "AfterToolExec"])
async def test_the_error_propagates_to_the_caller_with_its_cause_and_the_result(name):
    agent = make(one_tool())
    agent.register_hook(failing_with("my error"), points=name, name="enforcer")
    with pytest.raises(RunFailedError) as caught:
        await agent.arun("x")
    cause = caught.value.__cause__
    assert isinstance(cause, HookError)
    assert (cause.hook, cause.point, str(cause.cause)) == ("enforcer", HOOK_POINTS[name], "my error")
    assert isinstance(cause.__cause__, ValueError)
    assert (caught.value.result.status, caught.value.result.errors[-1].source) == ("failed", "enforcer")


def test_the_error_propagates_to_a_blocking_caller_too():
    agent = make(one_tool())
    agent.register_hook(failing_with("my error"), points="BeforeToolExec")
    with pytest.raises(RunFailedError, match="my error"):
        agent.run("x")


async def test_an_error_before_one_tool_keeps_the_whole_batch_from_running():
    ran = []

    @tool
    def work(n: int) -> int:
        """Work."""
        ran.append(n)
        return n

    agent = Agent("t", llm=ScriptedModel([[call("work", n=1), call("work", n=2)], reply("x")]), tools=[work])

    def second_only(ctx, payload):
        if payload.arguments["n"] == 2:
            raise PermissionError("not two")

    agent.register_hook(second_only, points="BeforeToolExec")
    with pytest.raises(RunFailedError) as caught:
        await agent.arun("x")
    assert ran == []
    results = [m for m in caught.value.result.messages if m.role == "tool"]
    assert len(results) == 2
    assert all(m.is_error for m in results)


async def test_the_error_of_the_llm_call_is_available_in_on_error():
    agent, messages = make([TimeoutError("model timed out")]), []
    agent.register_hook(lambda ctx, p: messages.append(p.errors[0].message), points="OnError")
    with pytest.raises(RunFailedError, match="model timed out") as caught:
        await agent.arun("x")
    assert len(messages) == 1
    assert "model timed out" in messages[0]
    assert isinstance(caught.value.__cause__, ModelError)
    assert isinstance(caught.value.__cause__.__cause__, TimeoutError)


async def test_an_error_returned_from_on_error_does_not_fire_it_again():
    agent, fired = make([ConnectionError("503")]), []

    def fails_too(ctx, payload):
        fired.append(payload.errors[0].type)
        raise ValueError("handler broken")

    agent.register_hook(fails_too, points="OnError")
    with pytest.raises(RunFailedError):
        await agent.arun("x")
    assert fired == ["ConnectionError"]


async def test_an_error_from_a_progress_hook_stops_nothing_unless_it_fails_closed():
    # A deliberate difference: every error stops execution there.
    agent = make(one_tool())
    agent.register_hook(failing_with("display broken"), points="OnProgress")
    assert (await agent.arun("x")).reply == "done"
    strict = make(one_tool())
    strict.register_hook(failing_with("display broken"), points="OnProgress", on_failure="closed")
    with pytest.raises(RunFailedError, match="display broken"):
        await strict.arun("x")


async def test_a_failed_run_still_fires_on_run_end_once():
    agent, ends = make(one_tool()), []
    agent.register_hook(failing_with("no"), points="BeforeLLMCall")
    agent.register_hook(lambda ctx, p: ends.append(p.status), points=ON_RUN_END)
    with pytest.raises(RunFailedError):
        await agent.arun("x")
    assert ends == ["failed"]


# Registration


async def test_a_registry_is_made_first_and_handed_to_the_agent():
    my, other = Collector(), Collector()
    hooks = HookRegistry()
    hooks.on("BeforeLLMCall", my)
    hooks.on("AfterToolExec", other)
    await make(one_tool(), hooks=hooks).arun("x")
    assert [point for point, _ in my.seen] == ["before_llm", "before_llm"]
    assert [point for point, _ in other.seen] == ["after_tool"]


async def test_without_a_registry_an_empty_one_is_made():
    agent = make([reply("x"), reply("y")])
    assert isinstance(agent.hooks, HookRegistry)
    assert len(agent.hooks) == 0
    assert (await agent.arun("x")).reply == "x"
    collector = Collector()
    agent.hooks.on("BeforeLLMCall", collector)
    await agent.arun("x")
    assert len(collector.seen) == 1
