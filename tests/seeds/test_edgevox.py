"""The EdgeVox hooks page, from top to bottom, kept by Hookline."""

import ast
import asyncio
import inspect
import json
from pathlib import Path

import pytest

from hookline import (
    AFTER_LLM,
    AFTER_TOOL,
    APPROVAL_REQUESTED,
    BEFORE_LLM,
    BEFORE_STEP,
    BEFORE_TOOL,
    ON_RUN_END,
    ON_RUN_START,
    AgentContext,
    AgentResult,
    HookRegistry,
    HookResult,
    Limits,
    Message,
    RegistrationError,
    RunFailedError,
    Session,
    ToolCallRequest,
    ToolCallResult,
    call,
    hook,
    reply,
    tool,
)
from hookline.agents import Interrupt
from hookline.compat import AgentEvent, LLMAgent, ScriptedLLM
from hookline.events import HookExecuted
from hookline.hooks import (
    AuditLogHook,
    Compactor,
    ContextCompactionHook,
    EchoedPayloadHook,
    EchoingHook,
    EpisodeLoggerHook,
    HookAction,
    LoopDetectorHook,
    MemoryInjectionHook,
    NotesInjectorHook,
    PersistSessionHook,
    PlanModeHook,
    SafetyGuardrailHook,
    SchemaRetryHook,
    TimingHook,
    TokenBudgetHook,
    ToolOutputTruncatorHook,
    default_slm_hooks,
)
from hookline.payloads import AgentState
from hookline.points import POINTS, resolve
from hookline.stores import ArtifactStore, Blackboard, JsonSessionStore, MemoryStore, NotesFile, SqliteSessionStore
from hookline.testing import EventLog

from ..release.surface import public_modules

SIX = (ON_RUN_START, BEFORE_LLM, AFTER_LLM, BEFORE_TOOL, AFTER_TOOL, ON_RUN_END)


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Recorder:
    """Notes every fire as (point, payload)."""

    points = frozenset(SIX)

    def __init__(self):
        self.seen = []

    def __call__(self, point, ctx, payload):
        self.seen.append((point, payload))

    def at(self, point):
        return [payload for where, payload in self.seen if where == point]


def one_tool_run(*hooks, **options):
    llm = ScriptedLLM([call("add", a=1, b=2), reply("three")])
    return LLMAgent("t", "", "Be good.", llm=llm, tools=[add], hooks=hooks).run("what is 1+2", **options), llm


# Hooks: a hook sees the payload and continues, replaces it or ends the turn


def test_a_hook_can_continue_replace_or_end_the_turn():
    outcomes = {
        "continue": HookResult.cont(),
        "replace": HookResult.replace({"task": "changed"}),
        "end": HookResult.end("stopped here"),
    }
    results = {}
    for name, given in outcomes.items():
        agent = LLMAgent("t", "", "", llm=ScriptedLLM([reply("model")]), hooks=[hook(ON_RUN_START)(lambda c, p: given)])
        results[name] = agent.run("original")
    assert [results[n].task for n in outcomes] == ["original", "changed", "original"]
    assert [results[n].reply for n in outcomes] == ["model", "model", "stopped here"]
    assert [results[n].status for n in outcomes] == ["completed", "completed", "ended"]


# The six fire points


def test_the_six_points_fire_at_their_moments():
    recorder = Recorder()
    one_tool_run(recorder)
    assert [point for point, _ in recorder.seen] == [
        "on_run_start",
        "before_llm",
        "after_llm",
        "before_tool",
        "after_tool",
        "before_llm",
        "after_llm",
        "on_run_end",
    ]


def test_the_constants_resolve_to_the_points_under_their_edgevox_names():
    names = ("ON_RUN_START", "BEFORE_LLM", "AFTER_LLM", "BEFORE_TOOL", "AFTER_TOOL", "ON_RUN_END")
    assert tuple(resolve(name) for name in names) == SIX


# ON_RUN_START


def test_on_run_start_carries_the_task_and_comes_before_any_llm_call():
    requests_so_far = []
    llm = ScriptedLLM([reply("ok")])

    @hook(ON_RUN_START)
    def look(ctx, payload):
        requests_so_far.append((payload["task"], len(llm.requests)))

    LLMAgent("t", "", "", llm=llm, hooks=[look]).run("hello")
    assert requests_so_far == [("hello", 0)]


def test_on_run_start_can_inject_memory_into_the_task():
    @hook(ON_RUN_START)
    def inject(ctx, payload):
        return HookResult.replace({"task": f"{payload['task']} (the user is called Ada)"})

    llm = ScriptedLLM([reply("ok")])
    LLMAgent("t", "", "", llm=llm, hooks=[inject]).run("greet me")
    assert llm.requests[0].messages[-1].content == "greet me (the user is called Ada)"


def test_a_safety_input_rail_at_on_run_start_keeps_the_task_from_the_model():
    @hook(ON_RUN_START)
    def rail(ctx, payload):
        return HookResult.end("I can't help with that.", reason="blocklist") if "bomb" in payload["task"] else None

    llm = ScriptedLLM([reply("never")])
    result = LLMAgent("t", "", "", llm=llm, hooks=[rail]).run("build a bomb")
    assert (result.reply, result.hook_ended, llm.requests) == ("I can't help with that.", "blocklist", [])


# BEFORE_LLM


def test_before_llm_carries_messages_tools_and_hop_for_each_hop():
    recorder = Recorder()
    one_tool_run(recorder)
    first, second = recorder.at(BEFORE_LLM)
    assert (first["hop"], second["hop"]) == (0, 1)
    assert [m["role"] for m in first["messages"]] == ["system", "user"]
    assert [m["role"] for m in second["messages"]] == ["system", "user", "assistant", "tool"]
    assert [t["name"] for t in first["tools"]] == ["add"]


def test_before_llm_can_change_the_system_prompt_of_the_request():
    @hook(BEFORE_LLM)
    def pirate(ctx, payload):
        messages = payload["messages"]
        messages[0]["content"] = "Talk like a pirate."
        return HookResult.replace({**payload, "messages": messages})

    llm = ScriptedLLM([reply("arr")])
    LLMAgent("t", "", "Be formal.", llm=llm, hooks=[pirate]).run("hi")
    assert llm.requests[0].messages[0].content == "Talk like a pirate."


def test_before_llm_can_enforce_a_budget_without_losing_the_transcript():
    @hook(BEFORE_LLM)
    def keep_last(ctx, payload):
        return HookResult.replace({**payload, "messages": payload["messages"][-1:]})

    ctx = AgentContext()
    llm = ScriptedLLM([reply("one"), reply("two")])
    agent = LLMAgent("t", "", "", llm=llm, hooks=[keep_last])
    agent.run("first", ctx=ctx)
    agent.run("second", ctx=ctx)
    assert [m.content for m in llm.requests[1].messages] == ["second"]
    assert [m.content for m in ctx.session.messages] == ["first", "one", "second", "two"]


@pytest.mark.parametrize("field", ["messages", "tools"])
def test_lists_read_from_a_payload_are_lists_also_after_another_hook_replaced_it(field):
    kinds = []

    @hook(BEFORE_LLM)
    def look(ctx, payload):
        kinds.append((type(payload[field]), type(dict(payload)[field])))
        return HookResult.replace(dict(payload))

    again = hook(BEFORE_LLM)(look.fn)
    one_tool_run(look, again)
    assert kinds == [(list, list)] * 4


# AFTER_LLM


def test_after_llm_carries_the_parsed_content_tool_calls_and_hop():
    recorder = Recorder()
    one_tool_run(recorder)
    first, second = recorder.at(AFTER_LLM)
    assert [(c["name"], c["arguments"]) for c in first["tool_calls"]] == [("add", {"a": 1, "b": 2})]
    assert (first["hop"], second["hop"]) == (0, 1)
    assert (second["content"], second["tool_calls"]) == ("three", [])


def test_after_llm_can_rewrite_the_reply_for_caller_and_transcript():
    @hook(AFTER_LLM)
    def rewrite(ctx, payload):
        return HookResult.replace({**payload, "content": payload["content"].upper()})

    result = LLMAgent("t", "", "", llm=ScriptedLLM([reply("quiet")]), hooks=[rewrite]).run("hi")
    assert result.reply == "QUIET"
    assert result.messages[-1].content == "QUIET"


def test_an_output_rail_at_after_llm_ends_the_turn_and_drops_the_reply():
    @hook(AFTER_LLM)
    def rail(ctx, payload):
        return HookResult.end("[withheld]", reason="leak") if "secret" in payload["content"] else None

    result = LLMAgent("t", "", "", llm=ScriptedLLM([reply("the secret is 42")]), hooks=[rail]).run("hi")
    assert (result.reply, result.hook_ended, result.status) == ("[withheld]", "leak", "ended")
    assert all("42" not in message.content for message in result.messages)


# BEFORE_TOOL


def test_before_tool_carries_a_tool_call_request():
    recorder = Recorder()
    one_tool_run(recorder)
    (request,) = recorder.at(BEFORE_TOOL)
    assert isinstance(request, ToolCallRequest)
    assert (request.name, request.arguments, request.hop) == ("add", {"a": 1, "b": 2}, 0)


def test_before_tool_can_require_confirmation():
    asked = []

    @hook(BEFORE_TOOL)
    def confirm(ctx, payload):
        return HookResult.ask(f"run {payload.name}?")

    @hook("approval_requested")
    def approver(ctx, payload):
        asked.append(payload.questions[0].text)
        return HookResult.deny("The user said no.")

    result, llm = one_tool_run(confirm, approver)
    assert asked == ["run add?"]
    assert llm.requests[1].messages[-1].content == "The user said no."
    assert result.successful_tool_calls == 0


def test_before_tool_can_skip_the_dispatch_and_serve_a_result():
    ran = []

    @tool
    def slow(x: int) -> int:
        ran.append(x)
        return x

    @hook(BEFORE_TOOL)
    def cached(ctx, payload):
        return HookResult.answer("from the cache")

    llm = ScriptedLLM([call("slow", x=1), reply("done")])
    LLMAgent("t", "", "", llm=llm, tools=[slow], hooks=[cached]).run("go")
    assert ran == []
    assert llm.requests[1].messages[-1].content == "from the cache"


def test_before_tool_can_replace_the_arguments():
    @hook(BEFORE_TOOL)
    def clamp(ctx, payload):
        return HookResult.replace(payload.replace(arguments={"a": 10, "b": 10}))

    _, llm = one_tool_run(clamp)
    assert llm.requests[1].messages[-1].content == "20"


def test_before_tool_can_end_the_turn_and_the_tool_never_runs():
    ran = []

    @tool
    def fire_missiles() -> str:
        ran.append(1)
        return "boom"

    @hook(BEFORE_TOOL)
    def never(ctx, payload):
        return HookResult.end("No.", reason="too dangerous")

    llm = ScriptedLLM([call("fire_missiles"), reply("unreached")])
    result = LLMAgent("t", "", "", llm=llm, tools=[fire_missiles], hooks=[never]).run("go")
    assert (ran, len(llm.requests), result.reply) == ([], 1, "No.")


# AFTER_TOOL


def test_after_tool_carries_a_tool_call_result():
    recorder = Recorder()
    one_tool_run(recorder)
    (result,) = recorder.at(AFTER_TOOL)
    assert isinstance(result, ToolCallResult)
    assert (result.name, result.arguments, result.result, result.error, result.outcome) == (
        "add",
        {"a": 1, "b": 2},
        3,
        None,
        "ok",
    )


def test_after_tool_can_truncate_what_the_model_reads():
    @tool
    def dump() -> str:
        return "x" * 1000

    @hook(AFTER_TOOL)
    def truncate(ctx, payload):
        return HookResult.replace(payload.replace(result=payload.result[:10] + "…"), reason="truncated")

    llm = ScriptedLLM([call("dump"), reply("ok")])
    LLMAgent("t", "", "", llm=llm, tools=[dump], hooks=[truncate]).run("go")
    assert llm.requests[1].messages[-1].content == "x" * 10 + "…"


def test_after_tool_can_enrich_an_argument_error_so_that_the_next_hop_can_retry():
    @hook(AFTER_TOOL)
    def hint(ctx, payload):
        if payload.error and "b" in payload.error:
            return HookResult.replace(payload.replace(error="add needs a and b, both integers. Try again."))
        return None

    llm = ScriptedLLM([call("add", a=1), call("add", a=1, b=2), reply("three")])
    result = LLMAgent("t", "", "", llm=llm, tools=[add], hooks=[hint]).run("go")
    assert llm.requests[1].messages[-1].content == "add needs a and b, both integers. Try again."
    assert llm.requests[1].messages[-1].is_error
    assert llm.requests[2].messages[-1].content == "3"
    assert result.status == "completed"


def test_after_tool_can_end_the_turn():
    @hook(AFTER_TOOL)
    def enough(ctx, payload):
        return HookResult.end(f"It is {payload.result}.")

    result, llm = one_tool_run(enough)
    assert (result.reply, len(llm.requests)) == ("It is 3.", 1)
    assert [m.role for m in result.messages] == ["user", "assistant", "tool", "assistant"]


# ON_RUN_END


def test_on_run_end_fires_once_with_the_resolved_result():
    recorder = Recorder()
    result, _ = one_tool_run(recorder)
    (seen,) = recorder.at(ON_RUN_END)
    assert isinstance(seen, AgentResult)
    assert seen == result
    assert (seen.reply, seen.status, seen.tool_calls) == ("three", "completed", 1)


def test_on_run_end_also_fires_once_when_a_hook_ended_the_turn():
    recorder = Recorder()
    ender = hook(BEFORE_LLM)(lambda ctx, payload: HookResult.end("bye", reason="tired"))
    LLMAgent("t", "", "", llm=ScriptedLLM([]), hooks=[ender, recorder]).run("x")
    (seen,) = recorder.at(ON_RUN_END)
    assert (seen.status, seen.hook_ended) == ("ended", "tired")


def test_on_run_end_can_persist_the_session_with_the_whole_turn_in_it():
    saved = []

    @hook(ON_RUN_END)
    def persist(ctx, payload):
        saved.extend(message.content for message in ctx.session.messages)

    LLMAgent("t", "", "", llm=ScriptedLLM([reply("pong")]), hooks=[persist]).run("ping")
    assert saved == ["ping", "pong"]


def test_ending_is_not_possible_at_on_run_end():
    # A deliberate difference: the status is final there, only replace is left.
    late = hook(ON_RUN_END, name="late")(lambda ctx, payload: HookResult.end("too late"))
    with pytest.raises(
        RunFailedError, match="hook 'late' at on_run_end: .*'end'.* is not allowed here; allowed: replace$"
    ):
        LLMAgent("t", "", "", llm=ScriptedLLM([reply("x")]), hooks=[late]).run("x")


# Hook Protocol


def test_any_callable_object_with_points_is_a_hook_without_inheritance():
    class Plain:
        points = frozenset({ON_RUN_START})

        def __call__(self, point, ctx, payload):
            return HookResult.end(f"{point}:{isinstance(ctx, AgentContext)}:{payload['task']}")

    result = LLMAgent("t", "", "", llm=ScriptedLLM([]), hooks=[Plain()]).run("go")
    assert result.reply == "on_run_start:True:go"


def test_a_hook_receives_only_the_points_it_names():
    class TwoOnly(Recorder):
        points = frozenset({BEFORE_TOOL, ON_RUN_END})

    recorder = TwoOnly()
    one_tool_run(recorder)
    assert [point for point, _ in recorder.seen] == [BEFORE_TOOL, ON_RUN_END]


def test_returning_none_is_the_same_as_cont():
    seen = []
    for value in (None, HookResult.cont()):
        llm = ScriptedLLM([reply("same")])
        LLMAgent("t", "", "sys", llm=llm, hooks=[hook(BEFORE_LLM)(lambda ctx, payload: value)]).run("hi")
        seen.append([(m.role, m.content) for m in llm.requests[0].messages])
    assert seen[0] == seen[1] == [("system", "sys"), ("user", "hi")]


def test_the_printed_decorator_example_runs_as_printed():
    from hookline import BEFORE_LLM, hook

    @hook(BEFORE_LLM)
    def add_system_note(ctx, payload):
        msgs = list(payload["messages"])
        msgs[0]["content"] += "\nRemember: be brief."
        payload = dict(payload)
        payload["messages"] = msgs
        return HookResult.replace(payload, reason="brief reminder")

    llm = ScriptedLLM([reply("ok")])
    log = EventLog()
    LLMAgent("t", "", "You are a robot.", llm=llm, hooks=[add_system_note], sinks=[log]).run("hi")
    assert llm.requests[0].messages[0].content == "You are a robot.\nRemember: be brief."
    assert llm.requests[0].messages[1].content == "hi"
    assert [e.payload["reason"] for e in log.of(HookExecuted)] == ["brief reminder"]


def test_the_printed_decorator_example_does_not_pile_up_over_hops():
    @hook(BEFORE_LLM)
    def add_system_note(ctx, payload):
        msgs = list(payload["messages"])
        msgs[0]["content"] += "\nRemember: be brief."
        payload = dict(payload)
        payload["messages"] = msgs
        return HookResult.replace(payload, reason="brief reminder")

    _, llm = one_tool_run(add_system_note)
    assert [r.messages[0].content for r in llm.requests] == ["Be good.\nRemember: be brief."] * 2


# HookResult


def test_the_three_constructors_carry_the_three_actions():
    assert HookResult.cont().action is HookAction.CONTINUE
    assert HookResult.replace({"task": "x"}, reason="r").action is HookAction.MODIFY
    assert HookResult.end("bye", reason="r").action is HookAction.END_TURN
    assert HookResult.end("bye", reason="r").reason == "r"


def test_cont_goes_on_with_the_original_payload_even_if_the_copy_was_changed():
    @hook(BEFORE_LLM)
    def meddle(ctx, payload):
        payload["messages"][0]["content"] = "meddled"
        dict(payload)["messages"].clear()
        return HookResult.cont()

    llm = ScriptedLLM([reply("ok")])
    LLMAgent("t", "", "sys", llm=llm, hooks=[meddle]).run("hi")
    assert [m.content for m in llm.requests[0].messages] == ["sys", "hi"]


def test_replace_swaps_the_payload_in_flight_for_the_next_hook():
    first = hook(ON_RUN_START)(lambda ctx, payload: HookResult.replace({"task": payload["task"] + "1"}))
    second = hook(ON_RUN_START)(lambda ctx, payload: HookResult.replace({"task": payload["task"] + "2"}))
    llm = ScriptedLLM([reply("ok")])
    assert LLMAgent("t", "", "", llm=llm, hooks=[first, second]).run("t").task == "t12"
    assert llm.requests[0].messages[0].content == "t12"


def test_end_bails_out_of_the_chain_and_its_reply_is_final():
    called = []
    ender = hook(BEFORE_LLM)(lambda ctx, payload: HookResult.end("final", reason="why"))
    after = hook(BEFORE_LLM)(lambda ctx, payload: called.append(1))
    llm = ScriptedLLM([reply("never")])
    result = LLMAgent("t", "", "", llm=llm, hooks=[ender, after]).run("x")
    assert (result.reply, result.hook_ended, called, llm.requests) == ("final", "why", [], [])


def test_the_reason_shows_in_the_events_and_in_hook_ended():
    log = EventLog()
    ender = hook(ON_RUN_START, name="rail")(lambda ctx, payload: HookResult.end("no", reason="blocked"))
    result = LLMAgent("t", "", "", llm=ScriptedLLM([]), hooks=[ender], sinks=[log]).run("x")
    reasons = [e.payload["reason"] for e in log if isinstance(e, AgentEvent) and e.payload.get("hook") == "rail"]
    assert "blocked" in reasons
    assert result.hook_ended == "blocked"


def test_without_a_reason_hook_ended_names_the_hook():
    ender = hook(ON_RUN_START, name="rail")(lambda ctx, payload: HookResult.end("no"))
    assert LLMAgent("t", "", "", llm=ScriptedLLM([]), hooks=[ender]).run("x").hook_ended == "rail"


def test_hook_ended_is_none_when_no_hook_ended_the_run():
    result, _ = one_tool_run()
    assert result.hook_ended is None


# Where hooks live


def test_agent_level_hooks_are_shared_by_every_run():
    recorder = Recorder()
    agent = LLMAgent("t", "", "", llm=ScriptedLLM([reply("a"), reply("b")]), hooks=[recorder])
    agent.run("one")
    agent.run("two")
    assert [p["task"] for p in recorder.at(ON_RUN_START)] == ["one", "two"]


def test_context_level_hooks_are_scoped_to_one_context():
    mine, other, recorder = AgentContext(), AgentContext(), Recorder()
    mine.hooks.register(recorder)
    agent = LLMAgent("t", "", "", llm=ScriptedLLM([reply("a"), reply("b"), reply("c")]))
    agent.run("other", ctx=other)
    agent.run("none")
    agent.run("mine", ctx=mine)
    assert [p["task"] for p in recorder.at(ON_RUN_START)] == ["mine"]


@pytest.mark.parametrize("point", SIX)
def test_agent_level_hooks_fire_before_context_level_ones_at_every_point(point):
    order = []
    ctx = AgentContext()
    ctx.hooks.register(hook(point, priority=1000)(lambda c, p: order.append("ctx")))
    one_tool_run(hook(point, priority=-1000)(lambda c, p: order.append("agent")), ctx=ctx)
    assert order[:2] == ["agent", "ctx"]
    assert order == ["agent", "ctx"] * (len(order) // 2)


def test_context_level_hooks_see_what_agent_level_hooks_changed():
    seen = []
    ctx = AgentContext()
    ctx.hooks.register(hook(ON_RUN_START)(lambda c, p: seen.append(p["task"])))
    default = hook(ON_RUN_START)(lambda c, p: HookResult.replace({"task": "agent default"}))
    LLMAgent("t", "", "", llm=ScriptedLLM([reply("ok")]), hooks=[default]).run("raw", ctx=ctx)
    assert seen == ["agent default"]


# Hook-owned state


def test_the_printed_state_example_counts_per_run():
    bags = []

    class MyHook:
        points = frozenset({ON_RUN_START, AFTER_TOOL})

        def __call__(self, point, ctx, payload):
            if point == ON_RUN_START:
                ctx.hook_state[id(self)] = {"seen": 0}
                return None  # noqa: RET501
            bag = ctx.hook_state[id(self)]
            bag["seen"] += 1
            bags.append(bag["seen"])
            ...

    llm = ScriptedLLM([[call("add", a=1, b=1), call("add", a=2, b=2)], reply("ok")], loop=True)
    agent = LLMAgent("t", "", "", llm=llm, tools=[add], hooks=[MyHook()])
    ctx = AgentContext()
    agent.run("one", ctx=ctx)
    agent.run("two", ctx=ctx)
    assert bags == [1, 2, 1, 2]


def test_two_instances_on_one_context_never_share_counts():
    counts = {}

    class Counter:
        points = frozenset({AFTER_TOOL, ON_RUN_END})

        def __init__(self, name, tool_name):
            self.name, self.tool_name = name, tool_name

        def __call__(self, point, ctx, payload):
            bag = ctx.hook_state.setdefault(id(self), {"seen": 0})
            if point == AFTER_TOOL and payload.name == self.tool_name:
                bag["seen"] += 1
            if point == ON_RUN_END:
                counts[self.name] = bag["seen"]

    @tool
    def noop() -> str:
        return ""

    ctx = AgentContext()
    ctx.hooks.register(Counter("adds", "add"))
    ctx.hooks.register(Counter("noops", "noop"))
    llm = ScriptedLLM([[call("add", a=1, b=1), call("noop"), call("noop")], reply("ok")])
    LLMAgent("t", "", "", llm=llm, tools=[add, noop]).run("go", ctx=ctx)
    assert counts == {"adds": 1, "noops": 2}


def test_hook_state_is_fresh_for_each_run_and_gone_after_it():
    at_start = []

    class Bag:
        points = frozenset({ON_RUN_START})

        def __call__(self, point, ctx, payload):
            at_start.append(dict(ctx.hook_state))
            ctx.hook_state[id(self)] = "mine"

    ctx = AgentContext()
    agent = LLMAgent("t", "", "", llm=ScriptedLLM([reply("a"), reply("b")]), hooks=[Bag()])
    agent.run("one", ctx=ctx)
    agent.run("two", ctx=ctx)
    assert at_start == [{}, {}]
    assert ctx.hook_state == {}


async def test_concurrent_runs_of_one_agent_do_not_share_hook_state():
    totals = []

    class Counter:
        points = frozenset({ON_RUN_START, BEFORE_LLM, ON_RUN_END})

        async def __call__(self, point, ctx, payload):
            bag = ctx.hook_state.setdefault(id(self), [])
            bag.append(ctx.run_id)
            await asyncio.sleep(0)
            if point == ON_RUN_END:
                totals.append(bag)

    agent = LLMAgent("t", "", "", llm=ScriptedLLM([reply("a")], loop=True), hooks=[Counter()])
    await asyncio.gather(*(agent.arun("x") for _ in range(5)))
    assert [len(bag) for bag in totals] == [3] * 5
    assert all(len(set(bag)) == 1 for bag in totals)


def test_hook_state_does_not_leak_into_the_users_scratchpad_or_metadata():
    class Bag:
        points = frozenset({ON_RUN_START})

        def __call__(self, point, ctx, payload):
            ctx.hook_state[id(self)] = {"internal": 1}

    ctx = AgentContext()
    LLMAgent("t", "", "", llm=ScriptedLLM([reply("a")]), hooks=[Bag()]).run("x", ctx=ctx)
    assert ctx.scratch == {}
    assert ctx.session.metadata == {}


# Typed ctx fields


def test_the_run_sets_the_tool_registry_for_schema_lookup():
    found = []

    @hook(BEFORE_TOOL)
    def lookup(ctx, payload):
        found.append(sorted(ctx.tool_registry.get(payload.name).spec.parameters["properties"]))

    one_tool_run(lookup)
    assert found == [["a", "b"]]


def test_the_run_sets_the_llm_for_exact_token_counts():
    counts = []

    @hook(BEFORE_LLM)
    def count(ctx, payload):
        counts.append((ctx.llm.estimate_tokens("three little words"), ctx.llm.count_tokens(payload.messages)))

    LLMAgent("t", "", "You are terse.", llm=ScriptedLLM([reply("ok")]), hooks=[count]).run("hi there")
    assert counts == [(3, 5)]


async def test_the_llm_of_the_context_can_summarise_for_compaction():
    @hook(ON_RUN_START)
    async def compact(ctx, payload):
        summary = await ctx.llm.complete("summarise: " + payload["task"], purpose="compaction")
        return HookResult.replace({"task": summary.content})

    llm = ScriptedLLM([reply("short"), reply("done")])
    result = await LLMAgent("t", "", "", llm=llm, hooks=[compact]).arun("a very long story")
    assert (result.task, result.reply) == ("short", "done")
    assert [r.purpose for r in llm.requests] == ["compaction", "step"]


def test_the_callers_interrupt_gives_hooks_a_cancel_token_and_events():
    interrupt, seen, told = Interrupt(), [], []

    @hook(BEFORE_LLM)
    def watch(ctx, payload):
        ctx.interrupt.subscribe(told.append)
        seen.append(ctx.interrupt.cancel_token.is_set())
        interrupt.cancel("user hung up")
        seen.append(ctx.interrupt.cancel_token.is_set())

    llm = ScriptedLLM([reply("never")])
    ctx = AgentContext(interrupt=interrupt)
    result = LLMAgent("t", "", "", llm=llm, hooks=[watch]).run("x", ctx=ctx)
    assert (seen, told) == ([False, True], ["user hung up"])
    assert (result.status, llm.requests) == ("cancelled", [])


def test_memory_artifacts_and_blackboard_come_from_the_caller():
    memory, artifacts, board = {"facts": []}, {"a": b""}, {"shared": 1}
    seen = []

    @hook(ON_RUN_START)
    def look(ctx, payload):
        seen.extend([ctx.memory is memory, ctx.artifacts is artifacts, ctx.blackboard is board])

    ctx = AgentContext(memory=memory, artifacts=artifacts, blackboard=board)
    LLMAgent("t", "", "", llm=ScriptedLLM([reply("a")]), hooks=[look]).run("x", ctx=ctx)
    assert seen == [True, True, True]


def test_the_stores_of_the_context_serve_hooks_as_memory_artifacts_and_shared_state(tmp_path):
    @hook(AFTER_TOOL)
    def keep(ctx, payload):
        ctx.memory.add_fact("sum", payload.result)
        ctx.artifacts.save("sum.txt", payload.text)
        ctx.blackboard.update("sums", lambda sums: [*(sums or []), payload.result])

    memory, artifacts, board = MemoryStore(tmp_path / "m.db"), ArtifactStore(tmp_path / "files"), Blackboard()
    one_tool_run(keep, ctx=AgentContext(memory=memory, artifacts=artifacts, blackboard=board))
    assert memory.fact("sum").value == 3
    assert artifacts.text("sum.txt") == "3"
    assert board.get("sums") == [3]


def test_the_users_scratchpad_is_ctx_scratch_and_ctx_state_is_immutable():
    # A deliberate difference: EdgeVox' ctx.state scratchpad is ctx.scratch here.
    ctx = AgentContext()
    ctx.scratch["mood"] = "calm"
    seen = []

    @hook(ON_RUN_START)
    def look(ctx, payload):
        seen.append((ctx.scratch["mood"], isinstance(ctx.state, AgentState)))
        ctx.scratch["mood"] = "busy"
        with pytest.raises((AttributeError, TypeError)):
            ctx.state.metadata = {}
        with pytest.raises(TypeError):
            ctx.state.metadata["x"] = 1

    LLMAgent("t", "", "", llm=ScriptedLLM([reply("a")]), hooks=[look]).run("x", ctx=ctx)
    assert seen == [("calm", True)]
    assert ctx.scratch == {"mood": "busy"}


# Built-in hooks


def the_built_ins(folder):
    """Each hook of the two tables, made as its row shows."""
    return {
        "SafetyGuardrailHook": SafetyGuardrailHook(blocklist=["bomb"]),
        "PlanModeHook": PlanModeHook(confirm=["add"], approver=lambda request: True),
        "TokenBudgetHook": TokenBudgetHook(max_context_tokens=1000),
        "ToolOutputTruncatorHook": ToolOutputTruncatorHook(max_chars=1000),
        "MemoryInjectionHook": MemoryInjectionHook(MemoryStore(folder / "m.db")),
        "NotesInjectorHook": NotesInjectorHook(NotesFile(folder / "notes.md")),
        "ContextCompactionHook": ContextCompactionHook(Compactor(1000)),
        "EpisodeLoggerHook": EpisodeLoggerHook(MemoryStore(folder / "m.db")),
        "AuditLogHook": AuditLogHook(folder / "audit.jsonl"),
        "PersistSessionHook": PersistSessionHook(JsonSessionStore(folder / "sessions"), "mine"),
        "TimingHook": TimingHook(),
        "EchoingHook": EchoingHook(),
        "LoopDetectorHook": LoopDetectorHook(hint_after=1, break_after=2),
        "EchoedPayloadHook": EchoedPayloadHook(fallback="Here you are: {result}"),
        "SchemaRetryHook": SchemaRetryHook(max_retries_per_tool=1),
    }


FIRES_AT = {
    "SafetyGuardrailHook": {ON_RUN_START},
    "PlanModeHook": {BEFORE_TOOL},
    "TokenBudgetHook": {BEFORE_LLM},
    "ToolOutputTruncatorHook": {AFTER_TOOL},
    "MemoryInjectionHook": {BEFORE_LLM},
    "NotesInjectorHook": {BEFORE_LLM},
    "ContextCompactionHook": {ON_RUN_START},
    "EpisodeLoggerHook": {AFTER_TOOL},
    "AuditLogHook": {AFTER_LLM, AFTER_TOOL, ON_RUN_END},
    "PersistSessionHook": {ON_RUN_END},
    "TimingHook": {BEFORE_LLM, AFTER_LLM, BEFORE_TOOL, AFTER_TOOL},
    "EchoingHook": set(SIX),
    "LoopDetectorHook": {ON_RUN_START, BEFORE_TOOL},
    "EchoedPayloadHook": {AFTER_LLM},
    "SchemaRetryHook": {ON_RUN_START, AFTER_TOOL},
}
# Deliberate differences: what is fresh for each run need not be reset, and some look at one more point.
NOT_AT = {"LoopDetectorHook": {ON_RUN_START}, "SchemaRetryHook": {ON_RUN_START}}
ALSO_AT = {
    "PlanModeHook": {APPROVAL_REQUESTED},
    "ContextCompactionHook": {BEFORE_STEP},
    "LoopDetectorHook": {AFTER_TOOL},
    "SchemaRetryHook": {BEFORE_LLM},
}


@pytest.mark.parametrize("name", FIRES_AT)
def test_each_built_in_fires_where_its_row_says(name, tmp_path):
    registry = HookRegistry([the_built_ins(tmp_path)[name]])
    assert {point for point in POINTS if registry.at(point)} == (
        FIRES_AT[name] - NOT_AT.get(name, set()) | ALSO_AT.get(name, set())
    )


DOCUMENTED = {
    "tool_registry", "llm", "interrupt", "memory", "artifacts", "blackboard", "session", "budget", "hooks",
    "hook_state", "own_state", "scratch", "progress", "deps", "run_id", "task_id", "correlation_id", "agent_name",
    "clock", "random", "new_id", "once", "state", "ids", "fire",
}  # fmt: skip


class DocumentedContext:
    """A context that has nothing but what the design names."""

    def __init__(self, ctx, used):
        self.ctx, self.used = ctx, used

    def __getattr__(self, name):
        self.used.append(name)
        if name not in DOCUMENTED:
            raise AttributeError(f"ctx.{name} is not for hooks")
        return getattr(self.ctx, name)


def on_documented_context(inner, used):
    """The same hook, registered by its declared options, on a context with documented fields only."""

    class Deciding:
        points, priority = inner.points, inner.priority
        on_failure = getattr(inner, "on_failure", None)
        phase = getattr(inner, "phase", None)

        def __call__(self, point, ctx, payload):
            return inner(point, DocumentedContext(ctx, used), payload)

    class Watching(Deciding):
        def __call__(self, point, ctx, payload, verdict):
            return inner(point, DocumentedContext(ctx, used), payload, verdict=verdict)

    return (Watching if "verdict" in inspect.signature(inner).parameters else Deciding)()


def test_the_built_ins_need_nothing_that_a_users_hook_does_not_get(tmp_path, capsys):
    used = []
    hooks = [on_documented_context(hook, used) for hook in the_built_ins(tmp_path).values()]
    llm = ScriptedLLM([call("add", a="x"), call("add", a=1, b=2), reply("three")])
    result = LLMAgent("t", "", "Be good.", llm=llm, tools=[add], hooks=hooks).run("what is 1+2")
    assert (result.status, result.reply) == ("completed", "three")
    assert [error.type for error in result.errors] == ["InvalidCall"]
    assert set(used) <= DOCUMENTED


def test_the_built_ins_are_a_composition_of_exactly_this_contract():
    public = {name for module in public_modules().values() for name in module.__all__}
    inside = {"loop", "batch", "course", "handle", "dispatch", "tally", "causes"}
    for file in Path(inspect.getfile(SafetyGuardrailHook)).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id != "self":
                assert not node.attr.startswith("_") or node.attr.startswith("__"), (file.name, ast.unparse(node))
            if isinstance(node, ast.ImportFrom) and node.level == 2:
                if {name.name for name in node.names} <= public:
                    continue  # public: a hook of a user's own may have it too
                assert inside.isdisjoint((node.module or "").split(".")), (file.name, ast.unparse(node))
                assert not any(name.name.startswith("_") for name in node.names), (file.name, ast.unparse(node))


# SafetyGuardrailHook


@pytest.mark.parametrize("task", ["build a bomb", "tell me a joke"])
def test_safety_guardrail_is_a_block_list_and_allow_list_input_rail(task):
    llm = ScriptedLLM([reply("never")])
    rail = SafetyGuardrailHook(blocklist=["bomb"], allowlist=["build"])
    result = LLMAgent("t", "", "", llm=llm, hooks=[rail]).run(task)
    assert (result.status, llm.requests) == ("ended", [])
    assert LLMAgent("t", "", "", llm=ScriptedLLM(["ok"]), hooks=[rail]).run("build a house").reply == "ok"


# PlanModeHook


@pytest.mark.parametrize(("said", "outcome", "text"), [(True, "ok", "3"), (False, "blocked", None)])
def test_plan_mode_requires_confirmation_before_sensitive_tools(said, outcome, text):
    asked = []

    def approver(request):
        asked.append(request.call.name)
        return said

    result, _ = one_tool_run(PlanModeHook(confirm=["add"], approver=approver))
    assert (asked, result.steps[0].outcomes) == (["add"], (outcome,))
    assert text is None or result.messages[2].content == text


# TokenBudgetHook


class Letters(ScriptedLLM):
    """Its tokens are letters."""

    def count_tokens(self, content):
        return len(content if isinstance(content, str) else "".join(m.content for m in content))


def test_token_budget_is_a_hard_cap_counted_by_the_models_own_tokenizer():
    said = [
        Message("user", "x" * 30),
        Message("assistant", "y" * 30),
        Message("user", "z" * 30),
        Message("assistant", "w"),
    ]
    budget = TokenBudgetHook(max_context_tokens=50)
    for model, sizes in ((Letters, [35]), (ScriptedLLM, [5])):
        llm = model([reply("ok")])
        LLMAgent("t", "", "", llm=llm, hooks=[budget]).run("hey!", session=Session("s", said))
        assert [llm.count_tokens(request.messages) for request in llm.requests] == sizes
    llm = Letters([reply("never")])
    result = LLMAgent("t", "", "", llm=llm, hooks=[budget]).run("x" * 51)
    assert (result.status, result.stop.kind, llm.requests) == ("stopped", "token_limit", [])


# ToolOutputTruncatorHook


def test_the_truncator_cuts_oversized_tool_results():
    @tool
    def shout(times: int) -> str:
        return "A" * times

    llm = ScriptedLLM([[call("shout", times=300), call("shout", times=9000)], reply("ok")])
    result = LLMAgent("t", "", "", llm=llm, tools=[shout], hooks=[ToolOutputTruncatorHook(max_chars=300)]).run("x")
    short, cut = result.messages[2:4]
    assert short.content == "A" * 300
    assert len(cut.content) == 300
    assert "characters left out" in cut.content


# MemoryInjectionHook, NotesInjectorHook


def test_memory_injection_appends_facts_and_episodes_to_the_system_prompt_once_for_each_turn():
    memory = MemoryStore()
    memory.add_fact("name", "Ada")
    memory.add_episode("tool", "looked at the map")
    _, llm = one_tool_run(MemoryInjectionHook(memory), MemoryInjectionHook(memory))
    prompts = [request.messages[0].content for request in llm.requests]
    assert len(prompts) == 2
    for prompt in prompts:
        assert prompt.startswith("Be good.")
        assert (prompt.count("name: Ada"), prompt.count("looked at the map")) == (1, 1)


def test_the_notes_injector_injects_the_tail_of_a_notes_file(tmp_path):
    notes = NotesFile(tmp_path / "notes.md")
    for text in ("the oldest note", "buy milk", "call Bob"):
        notes.append(text)
    _, llm = one_tool_run(NotesInjectorHook(notes, max_chars=45))
    for request in llm.requests:
        assert "the oldest note" not in request.messages[0].content
        assert request.messages[0].content.endswith("call Bob")


# ContextCompactionHook


def test_compaction_summarises_the_middle_turns_by_the_model_when_over_budget():
    def talk():
        pairs = [(Message("user", f"q{i} " + "x " * 20), Message("assistant", f"a{i} " + "y " * 20)) for i in range(6)]
        return Session("s", [message for pair in pairs for message in pair])

    compaction = ContextCompactionHook(Compactor(100, keep_last=2, max_summary_tokens=10))
    said = {"compaction": reply("they talked"), "step": reply("ok")}
    session, llm = talk(), ScriptedLLM([lambda request: said[request.purpose]], loop=True)
    LLMAgent("t", "", "", llm=llm, hooks=[compaction]).run("now", session=session)
    assert {request.purpose for request in llm.requests[:-1]} == {"compaction"}
    assert [m.content for m in llm.requests[-1].messages] == [m.content for m in session.messages[:-1]]
    summary, kept, task, answer = session.messages
    assert summary.content.endswith("they talked")
    assert (kept.content[:2], task.content, answer.content) == ("a5", "now", "ok")

    session, llm = talk(), ScriptedLLM([reply("ok")])
    LLMAgent("t", "", "", llm=llm, hooks=[ContextCompactionHook(Compactor(1000))]).run("now", session=session)
    assert [request.purpose for request in llm.requests] == ["step"]
    assert len(session.messages) == 14


# EpisodeLoggerHook


def test_the_episode_logger_records_tool_outcomes_as_episodes():
    memory = MemoryStore()
    llm = ScriptedLLM([[call("add", a=1, b=2), call("add", a="one")], reply("ok")])
    result = LLMAgent("t", "", "", llm=llm, tools=[add], hooks=[EpisodeLoggerHook(memory)]).run("x")
    failed, done = memory.episodes()
    assert (done.outcome, failed.outcome) == ("ok", "error")
    assert done.summary == 'add({"a":1,"b":2}) → 3'
    assert {done.run_id, failed.run_id} == {result.ids.run_id}


# AuditLogHook


def test_the_audit_log_is_jsonl_from_which_the_run_can_be_played_again_offline(tmp_path):
    path = tmp_path / "audit.jsonl"
    audit = AuditLogHook(path, content=True)
    result, _ = one_tool_run(audit)
    audit.flush()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["type"] for line in lines if line["type"] in ("model", "tool", "run_end")] == [
        "model", "tool", "model", "run_end",
    ]  # fmt: skip

    replies = [line for line in lines if line["type"] == "model"]
    given = {line["tool"]: line["result"] for line in lines if line["type"] == "tool"}
    turns = [
        [
            *([line["content"]] if line["content"] else []),
            *(call(n, **json.loads(a)) for n, a in zip(line["tool_calls"], line["arguments"], strict=True)),
        ]
        for line in replies
    ]

    @hook(BEFORE_TOOL)
    def from_the_log(ctx, payload):
        return HookResult.answer(given[payload.name])

    agent = LLMAgent("t", "", "Be good.", llm=ScriptedLLM(turns), tools=[add], hooks=[from_the_log])
    again = agent.run(lines[-1]["task"])
    assert [m.content for m in again.messages] == [m.content for m in result.messages]
    assert (again.reply, again.steps[0].outcomes) == (lines[-1]["reply"], ("answered",))


# PersistSessionHook


@pytest.mark.parametrize("kind", [JsonSessionStore, SqliteSessionStore])
def test_persist_session_saves_the_session_to_disk(kind, tmp_path):
    result, _ = one_tool_run(PersistSessionHook(kind(tmp_path / "sessions"), "mine"))
    saved = kind(tmp_path / "sessions").load("mine")
    assert list(saved.messages) == list(result.messages)
    assert [summary.id for summary in kind(tmp_path / "sessions").list()] == ["mine"]


# TimingHook


def test_timing_collects_timings_before_and_after_llm_and_tool():
    timing = TimingHook()
    one_tool_run(timing)
    rows = {(row.kind, row.name): row.count for row in timing.summary()}
    assert rows == {
        ("model", "scripted"): 2,
        ("model, whole", "scripted"): 2,
        ("tool", "add"): 1,
        ("tool, whole", "add"): 1,
    }
    assert all(row.total >= 0 for row in timing.summary())


# EchoingHook


def test_echoing_prints_every_one_of_the_six_fire_points(capsys):
    one_tool_run(EchoingHook())
    printed = [line.split()[0] for line in capsys.readouterr().err.splitlines()]
    assert set(printed) == set(SIX)
    assert len(printed) == 8


# Hooks that harden small models


def test_the_loop_detector_hints_on_the_2nd_identical_call_and_ends_the_turn_on_the_3rd():
    ran = []

    @tool
    def look(city: str, day: str = "today") -> str:
        ran.append((city, day))
        return f"{city}: rain"

    detector = LoopDetectorHook(hint_after=1, break_after=2)
    turns = [
        call("look", city="Paris", day="now"),
        call("look", city="Rome"),
        *[call("look", day="now", city="Paris")] * 2,
    ]
    agent = LLMAgent("t", "", "", llm=ScriptedLLM([*turns, reply("never")]), tools=[look], hooks=[detector])
    result = agent.run("weather?")
    assert ran == [("Paris", "now"), ("Rome", "today")]
    assert [step.outcomes for step in result.steps][:3] == [("ok",), ("ok",), ("blocked",)]
    hint = result.messages[6]
    assert (hint.role, hint.is_error) == ("tool", True)
    assert "already called look" in hint.content
    assert (result.status, result.hook_ended) == ("ended", "loop: look was called 3 times with the same arguments")


def test_the_loop_detector_counts_each_run_anew_and_two_of_them_apart():
    turns = [call("add", a=1, b=2), call("add", a=1, b=2), reply("ok")]
    hooks = [LoopDetectorHook(), LoopDetectorHook()]
    agent = LLMAgent("t", "", "", llm=ScriptedLLM(turns, loop=True), tools=[add], hooks=hooks)
    for _ in range(2):
        result = agent.run("x")
        assert (result.status, [step.outcomes for step in result.steps]) == ("completed", [("ok",), ("blocked",), ()])


@pytest.mark.parametrize(
    "echo", ['{"degrees": 14}', '```json\n{"degrees": 14}\n```', '```\n{"degrees": 14}\n```', '```json\n{"degrees": 1']
)
def test_an_echoed_payload_becomes_a_readable_fallback_in_fences_or_not(echo):
    assert weather_reply(echo, EchoedPayloadHook(fallback="I looked it up for you.")) == "I looked it up for you."
    assert weather_reply(echo, EchoedPayloadHook()) == "Degrees: 14."


@pytest.mark.parametrize("said", ["It is 14 degrees.", 'The data: {"degrees": 14}', '```json\n{"mood": "fine"}\n```'])
def test_a_reply_that_echoes_nothing_stays(said):
    assert weather_reply(said, EchoedPayloadHook(fallback="no")) == said


def weather_reply(said, *hooks):
    @tool
    def weather() -> dict:
        return {"degrees": 14}

    llm = ScriptedLLM([call("weather"), reply(said)])
    return LLMAgent("t", "", "", llm=llm, tools=[weather], hooks=hooks).run("How warm is it?").reply


def test_schema_retry_rewrites_an_argument_error_into_a_readable_hint_so_the_next_hop_can_retry():
    llm = ScriptedLLM([call("add", a="one"), call("add", a=1, b=2), reply("three")])
    result = LLMAgent("t", "", "", llm=llm, tools=[add], hooks=[SchemaRetryHook(max_retries_per_tool=1)]).run("x")
    hint = llm.requests[1].messages[-1].content
    assert "Call add again" in hint
    assert "- a (integer, required)" in hint
    assert "- b (integer, required)" in hint
    assert [step.outcomes for step in result.steps] == [("error",), ("ok",), ()]


def test_schema_retry_helps_as_often_as_it_was_told_for_each_tool():
    llm = ScriptedLLM([call("add", a="one"), call("add", a="two"), reply("sorry")])
    result = LLMAgent("t", "", "", llm=llm, tools=[add], hooks=[SchemaRetryHook(max_retries_per_tool=1)]).run("x")
    assert ["Call add again" in m.content for m in result.messages if m.role == "tool"] == [True, False]


def test_default_slm_hooks_compose_the_bundle():
    bundle = default_slm_hooks()
    assert {LoopDetectorHook, EchoedPayloadHook, SchemaRetryHook} <= {type(hook) for hook in bundle}
    assert weather_reply('```json\n{"degrees": 14}\n```', *bundle) == "Degrees: 14."
    llm = ScriptedLLM([call("add", a="one"), *[call("add", a=1, b=2)] * 5])
    result = LLMAgent("t", "", "", llm=llm, tools=[add], hooks=default_slm_hooks()).run("x")
    assert "Call add again" in result.messages[2].content
    assert (result.status, result.reply, len(llm.requests)) == ("ended", "3.", 3)


# Hook order


def ordered_hooks(*priorities, point=ON_RUN_START):
    order = []
    hooks = [hook(point, priority=p)(lambda ctx, payload, *, p=p: order.append(p)) for p in priorities]
    return hooks, order


@pytest.mark.parametrize("point", SIX)
def test_higher_priority_fires_first(point):
    hooks, order = ordered_hooks(0, 100, 40, 80, 60, point=point)
    one_tool_run(*hooks)
    assert order[:5] == [100, 80, 60, 40, 0]


def test_ties_are_broken_by_registration_order():
    order = []
    hooks = [hook(ON_RUN_START)(lambda ctx, payload, *, n=n: order.append(n)) for n in "abcde"]
    LLMAgent("t", "", "", llm=ScriptedLLM([reply("x")]), hooks=hooks).run("x")
    assert order == list("abcde")


def test_the_printed_priority_example_declares_it_as_a_class_attribute_or_at_registration():
    order = []

    class MySafetyHook:
        points = frozenset({ON_RUN_START})
        priority = 100  # safety tier

        def __call__(self, point, ctx, payload):
            order.append("safety")

    class MyObserver:
        points = frozenset({ON_RUN_START})

        def __call__(self, point, ctx, payload):
            order.append("observer")

    class Ordinary(MyObserver):
        def __call__(self, point, ctx, payload):
            order.append("ordinary")

    ctx = AgentContext()
    agent = LLMAgent("t", "", "", llm=ScriptedLLM([reply("x")]), hooks=[Ordinary()])
    agent.register_hook(MySafetyHook())
    # or
    ctx.hooks.register(MyObserver(), priority=0)

    agent.run("x", ctx=ctx)
    assert order == ["safety", "ordinary", "observer"]


def test_priority_works_as_an_instance_attribute_and_register_overrides_it():
    order = []

    class Tiered:
        points = frozenset({ON_RUN_START})

        def __init__(self, name, priority):
            self.name, self.priority = name, priority

        def __call__(self, point, ctx, payload):
            order.append(self.name)

    agent = LLMAgent("t", "", "", llm=ScriptedLLM([reply("x")]))
    agent.register_hook(Tiered("low", 1))
    agent.register_hook(Tiered("high", 2))
    agent.register_hook(Tiered("overridden", 1), priority=3)
    agent.run("x")
    assert order == ["overridden", "high", "low"]


def test_the_decorator_takes_the_same_priority():
    @hook(ON_RUN_START, priority=60)
    def detection(ctx, payload):
        return None

    @hook(ON_RUN_START)
    def observability(ctx, payload):
        return None

    assert HookRegistry([observability, detection]).at(ON_RUN_START) == [detection, observability]


def test_the_recommended_scale_orders_the_tiers():
    tiers = {"observability": 0, "mutation": 40, "detection": 60, "input_shape": 80, "safety": 100}
    hooks = {name: hook(BEFORE_LLM, priority=p, name=name)(lambda ctx, payload: None) for name, p in tiers.items()}
    registry = HookRegistry(hooks.values())
    assert [h.name for h in registry.at(BEFORE_LLM)] == [
        "safety",
        "input_shape",
        "detection",
        "mutation",
        "observability",
    ]


TIERS = {
    "SafetyGuardrailHook": 100,
    "PlanModeHook": 100,
    "MemoryInjectionHook": 80,
    "NotesInjectorHook": 80,
    "TokenBudgetHook": -200,  # 80 there: a deliberate difference, it must see what the injectors added
    "LoopDetectorHook": 60,
    "EchoedPayloadHook": 60,
    "SchemaRetryHook": 40,
    "ToolOutputTruncatorHook": 40,
    "AuditLogHook": 0,
    "TimingHook": 0,
    "EpisodeLoggerHook": 0,
}
PHASES = {
    "SafetyGuardrailHook": "guard", "PlanModeHook": "guard", "LoopDetectorHook": "guard",
    "AuditLogHook": "observe", "TimingHook": "observe", "EpisodeLoggerHook": "observe",
}  # fmt: skip


@pytest.mark.parametrize("name", TIERS)
def test_each_named_example_has_the_priority_of_its_tier(name, tmp_path):
    built_in, phase = the_built_ins(tmp_path)[name], PHASES.get(name, "rewrite")
    for point in FIRES_AT[name] - NOT_AT.get(name, set()):
        above, below = (hook(point, phase=phase, priority=TIERS[name] + d)(lambda ctx, payload: None) for d in (1, -1))
        assert HookRegistry([below, built_in, above]).at(point) == [above, built_in, below]


def test_the_built_ins_fire_in_the_order_of_their_tiers_whatever_the_order_of_registration(tmp_path):
    registry = HookRegistry(reversed(the_built_ins(tmp_path).values()))
    orders = {point: [type(hook).__name__ for hook in registry.at(point)] for point in SIX}
    assert orders == {
        ON_RUN_START: ["SafetyGuardrailHook", "ContextCompactionHook", "EchoingHook"],
        BEFORE_LLM: [
            "NotesInjectorHook", "MemoryInjectionHook", "SchemaRetryHook", "TokenBudgetHook", "EchoingHook",
            "TimingHook",
        ],
        AFTER_LLM: ["EchoedPayloadHook", "EchoingHook", "TimingHook", "AuditLogHook"],
        BEFORE_TOOL: ["PlanModeHook", "LoopDetectorHook", "EchoingHook", "TimingHook"],
        AFTER_TOOL: [
            "SchemaRetryHook", "ToolOutputTruncatorHook", "LoopDetectorHook", "EchoingHook", "TimingHook",
            "AuditLogHook", "EpisodeLoggerHook",
        ],
        ON_RUN_END: ["EchoingHook", "PersistSessionHook", "AuditLogHook"],
    }  # fmt: skip


def test_the_default_priority_is_zero():
    before, after = ordered_hooks(1, -1)[0]
    default = hook(ON_RUN_START)(lambda ctx, payload: None)
    assert HookRegistry([after, default, before]).at(ON_RUN_START) == [before, default, after]


def test_registry_at_gives_the_hooks_in_firing_order_for_that_point_only():
    low, high = Recorder(), Recorder()
    elsewhere = hook(AFTER_LLM)(lambda ctx, payload: None)
    registry = HookRegistry([low, elsewhere])
    registry.register(high, priority=5)
    assert registry.at(BEFORE_TOOL) == [high, low]
    assert registry.at("AFTER_LLM") == [high, low, elsewhere]
    assert registry.at("on_stop") == []


# Testing hooks


def test_the_printed_test_example_runs_as_printed():
    from hookline import reply
    from hookline.compat import ScriptedLLM

    class MyHook:
        points = frozenset({ON_RUN_START})

        def __call__(self, point, ctx, payload):
            return HookResult.end("no", reason="blocked")

    llm = ScriptedLLM([reply("should not reach")])
    agent = LLMAgent("t", "", "", llm=llm, hooks=[MyHook()])
    result = agent.run("trigger")
    assert result.hook_ended == "blocked"
    assert llm.requests == []


def test_the_scripted_llm_returns_its_declared_responses_in_order():
    result, llm = one_tool_run()
    assert result.reply == "three"
    assert result.tool_names == ("add",)
    assert len(llm.requests) == 2


def test_hooks_fail_closed():
    # A deliberate difference: EdgeVox hooks fail open. Deciders here fail closed, unless they say otherwise.
    def broken(ctx, payload):
        raise ValueError("oops")

    llm = ScriptedLLM([reply("a")])
    with pytest.raises(RunFailedError, match="hook 'broken' failed at before_llm: ValueError: oops"):
        LLMAgent("t", "", "", llm=llm, hooks=[hook(BEFORE_LLM)(broken)]).run("x")
    assert llm.requests == []
    lenient = LLMAgent("t", "", "", llm=llm, hooks=[hook(BEFORE_LLM, on_failure="open")(broken)])
    assert lenient.run("x").reply == "a"


# Differences that the page lists.


def test_reading_or_writing_the_state_as_a_scratchpad_names_the_scratchpad():
    with pytest.raises(KeyError, match=r"ctx\.scratch"):
        AgentState()["mood"]
    with pytest.raises(KeyError, match=r"Did you mean 'messages'\? .*ctx\.scratch"):
        AgentState()["mesages"]
    with pytest.raises(TypeError, match=r"cannot be changed in place.*ctx\.scratch"):
        AgentState()["mood"] = "calm"
    assert AgentState(system_prompt="x")["system_prompt"] == "x"


def test_json_that_no_tool_gave_for_this_task_is_no_echo():
    @tool
    def total() -> dict[str, int]:
        """Tell the total."""
        return {"sum": 3}

    data = '{"sum": 3}'
    llm = ScriptedLLM([reply(data), call("total"), reply(data), reply(data)])
    agent = LLMAgent("t", "", "", llm=llm, tools=[total], hooks=[EchoedPayloadHook()])
    session = Session()
    replies = [agent.run("go", session=session).reply for _ in range(3)]
    assert [said == data for said in replies] == [True, False, True]


def test_truncation_below_the_length_of_its_mark_is_refused():
    with pytest.raises(RegistrationError, match="max_chars must be a whole number, 200 or more, not 199"):
        ToolOutputTruncatorHook(max_chars=199)


def test_saving_another_session_of_the_same_id_merges_unless_the_old_one_is_deleted(tmp_path):
    store = JsonSessionStore(tmp_path)
    store.save(Session("s", [Message("user", "old")]))
    store.save(Session("s", [Message("user", "new")]))
    assert [message.content for message in store.load("s").messages] == ["old", "new"]
    store.delete("s")
    store.save(Session("s", [Message("user", "new")]))
    assert [message.content for message in store.load("s").messages] == ["new"]


def test_a_session_holds_no_system_prompt():
    llm, session = ScriptedLLM([reply("hello")]), Session()
    LLMAgent("t", "", "Be brief.", llm=llm).run("go", session=session)
    assert llm.requests[0].messages[0] == Message("system", "Be brief.")
    assert [message.role for message in session.messages] == ["user", "assistant"]


def test_a_run_at_its_last_step_replies_with_the_last_words_of_the_model():
    for text, words in (("", ""), ("Let me see.", "Let me see.")):
        agent = LLMAgent(
            "t", "", "", llm=ScriptedLLM([[text, call("add", a=1, b=2)]]), tools=[add], limits=Limits(steps=1)
        )
        result = agent.run("go")
        assert (result.reply, result.status, result.stop.kind) == (words, "stopped", "steps_limit")


def test_stores_are_given_by_position_or_by_our_names(tmp_path):
    memory, sessions = MemoryStore(tmp_path / "memory.db"), JsonSessionStore(tmp_path)
    assert MemoryInjectionHook(memory).memory is MemoryInjectionHook(memory=memory).memory is memory
    assert EpisodeLoggerHook(memory).memory is EpisodeLoggerHook(memory=memory).memory is memory
    assert PersistSessionHook(sessions, "s").store is PersistSessionHook(store=sessions, session_id="s").store
