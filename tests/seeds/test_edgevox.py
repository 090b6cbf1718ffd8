"""The EdgeVox hooks page, from top to bottom, kept by Hookline."""

import asyncio

import pytest

from hookline import (
    AFTER_LLM,
    AFTER_TOOL,
    BEFORE_LLM,
    BEFORE_TOOL,
    ON_RUN_END,
    ON_RUN_START,
    AgentContext,
    AgentEvent,
    AgentResult,
    AgentState,
    HookAction,
    HookExecuted,
    HookRegistry,
    HookResult,
    Interrupt,
    LLMAgent,
    RunFailed,
    ScriptedLLM,
    ToolCallRequest,
    ToolCallResult,
    call,
    hook,
    reply,
    resolve_point,
    tool,
)
from hookline.testing import EventLog

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
    assert tuple(resolve_point(name) for name in names) == SIX


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
    with pytest.raises(RunFailed, match="hook 'late' at on_run_end: .*'end'.* is not allowed here; allowed: replace$"):
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
    from hookline import ScriptedLLM, reply

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
    with pytest.raises(RunFailed, match="hook 'broken' failed at before_llm: ValueError: oops"):
        LLMAgent("t", "", "", llm=llm, hooks=[hook(BEFORE_LLM)(broken)]).run("x")
    assert llm.requests == []
    lenient = LLMAgent("t", "", "", llm=llm, hooks=[hook(BEFORE_LLM, on_failure="open")(broken)])
    assert lenient.run("x").reply == "a"


# Not here yet:
# - Built-in hooks: SafetyGuardrailHook, PlanModeHook, TokenBudgetHook, ToolOutputTruncatorHook, MemoryInjectionHook,
#   NotesInjectorHook, ContextCompactionHook, EpisodeLoggerHook, AuditLogHook, PersistSessionHook, TimingHook,
#   EchoingHook; where each fires, its priority tier, and that it is made of the public contract only.
# - Hooks that harden small models: LoopDetectorHook (hint on the 2nd, end on the 3rd), EchoedPayloadHook (aware of
#   markdown fences), SchemaRetryHook, and the bundle default_slm_hooks().
# - Stores behind ctx.memory and ctx.artifacts, NotesFile, SessionStore.
