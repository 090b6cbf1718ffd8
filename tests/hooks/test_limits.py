"""The limit hooks: steps, tokens, time, cost and tool calls."""

import asyncio
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import (
    AFTER_TOOL,
    BEFORE_LLM,
    BEFORE_STEP,
    BEFORE_TOOL,
    ON_RUN_START,
    ON_STOP,
    Agent,
    AgentContext,
    Budget,
    HookRegistry,
    HookResult,
    Limits,
    Message,
    RegistrationError,
    RunFailedError,
    ScriptedModel,
    call,
    guard,
    hook,
    reply,
    tool,
)
from hookline.events import JudgedBeforeRewrite, Signalled
from hookline.hooks import (
    CostLimitHook,
    ExecutionTimeLimitHook,
    StepsLimitHook,
    TokenUsageLimitHook,
    ToolCallsLimitHook,
    shadow,
)
from hookline.payloads import Usage
from hookline.testing import EventLog, FakeClock, scripted_agent
from tests.properties import examples

WRAP_UP = " Wrap up now: finish with what you have and give your final answer."


def counting(ran):
    @tool
    def work(n: int = 0) -> str:
        """Work."""
        ran.append(n)
        return f"worked {n}"

    return work


def steps(count, **fields):
    """Turns that each call a tool once and say what they used."""
    return [reply("", **fields).replace(tool_calls=[call("work", n=i)]) for i in range(count)]


def agent_of(turns, *hooks, ran=None, **options):
    tools = [counting([] if ran is None else ran)]
    return scripted_agent(turns, tools=tools, hooks=hooks, **{"limits": Limits(steps=math.inf), **options})


def notes(agent):
    return [r.messages[-1].content if r.messages[-1].role == "user" else None for r in agent.model.requests]


# The hard limit.


@pytest.mark.parametrize(
    ("limit", "turn", "requests", "kind", "message"),
    [
        (StepsLimitHook(3), {}, 3, "steps_limit", "Step limit reached: 3/3"),
        (TokenUsageLimitHook(25), {"usage": Usage(6, 4)}, 3, "token_limit", "Token limit reached: 30/25"),
        (CostLimitHook(0.5), {"cost": 0.25}, 2, "cost_limit", "Cost limit reached: 0.5/0.5"),
        (ToolCallsLimitHook(2), {}, 2, "tool_calls_limit", "Tool call limit reached: 2/2"),
    ],
)
async def test_a_run_stops_at_its_limit_with_kind_and_message(limit, turn, requests, kind, message):
    agent = agent_of(steps(9, **turn), limit)
    result = await agent.arun("x")
    assert (result.status, result.stop.kind, result.stop.message) == ("stopped", kind, message)
    assert result.stop.hook == type(limit).__name__
    assert len(agent.model.requests) == requests


async def test_the_time_limit_uses_the_clock_of_the_budget():
    clock = FakeClock()

    @tool
    def work(n: int = 0) -> str:
        """Takes 11.5 s."""
        clock.advance(11.5)
        return "worked"

    agent = Agent("t", llm=ScriptedModel(steps(9)), tools=[work], hooks=[ExecutionTimeLimitHook(30.0)])
    result = await agent.arun("x", ctx=AgentContext(clock=clock))
    assert (result.stop.kind, result.stop.message) == ("time_limit", "Time limit reached: 34.5/30.0")
    assert len(agent.model.requests) == 3


async def test_time_that_passes_before_a_batch_cancels_it():
    clock, ran = FakeClock(), []

    @hook(BEFORE_TOOL)
    def slow(ctx, payload):
        clock.advance(20)

    log = EventLog()
    turns = [[call("work", n=i) for i in range(3)], reply("never")]
    agent = agent_of(turns, ExecutionTimeLimitHook(30), slow, ran=ran, sinks=[log])
    result = await agent.arun("x", ctx=AgentContext(clock=clock))
    assert ran == []
    assert result.steps[0].outcomes == ("cancelled",) * 3
    assert [e.signal.message for e in log.of(Signalled)] == ["Time limit reached: 60.0/30.0"]


async def test_a_run_that_completes_at_its_last_allowed_step_is_completed():
    result = await agent_of([*steps(2), reply("done")], StepsLimitHook(3)).arun("x")
    assert (result.status, result.reply) == ("completed", "done")


async def test_model_calls_of_hooks_count_and_are_refused_at_the_limit():
    @hook(ON_RUN_START)
    async def ask(ctx, payload):
        for _ in range(9):
            await ctx.llm.complete("judge this", purpose="judge")

    agent = agent_of([reply("ok", usage=Usage(5, 5))] * 9, TokenUsageLimitHook(20), ask)
    result = await agent.arun("x")
    assert (result.status, result.stop.kind, len(agent.model.requests)) == ("stopped", "token_limit", 2)


async def test_the_usage_of_a_subagent_counts_in_the_parent_run():
    child = scripted_agent([reply("found", usage=Usage(50, 50))])

    @tool
    async def delegate(ctx) -> str:
        """Ask another agent."""
        return (await child.arun("look", ctx=ctx)).reply

    agent = scripted_agent([call("delegate"), reply("never")], tools=[delegate], hooks=[TokenUsageLimitHook(100)])
    result = await agent.arun("x")
    assert (result.stop.kind, len(agent.model.requests)) == ("token_limit", 1)


async def test_each_run_has_its_own_count():
    agent = agent_of([*steps(1), reply("a")] * 2, StepsLimitHook(2), ToolCallsLimitHook(2))
    ctx = AgentContext()
    assert [(await agent.arun("x", ctx=ctx)).status for _ in range(2)] == ["completed"] * 2


async def test_concurrent_runs_do_not_share_a_count():
    limit = ToolCallsLimitHook(2)
    agents = [agent_of([*steps(1), *steps(1), reply("never")], limit) for _ in range(5)]
    results = await asyncio.gather(*(agent.arun("x") for agent in agents))
    assert [(r.stop.kind, r.successful_tool_calls) for r in results] == [("tool_calls_limit", 2)] * 5


async def test_a_cost_limit_counts_calls_of_known_price():
    class Unpriced(ScriptedModel):
        async def complete(self, request):
            response = await super().complete(request)
            return response.replace(cost=None) if len(self.requests) == 1 else response

    agent = Agent("t", llm=Unpriced(steps(9, cost=0.5)), tools=[counting([])], hooks=[CostLimitHook(1)])
    result = await agent.arun("x")
    assert (result.cost, result.stop.message, len(agent.model.requests)) == (None, "Cost limit reached: 1.0/1.0", 3)


async def test_a_limit_stops_once_and_cannot_be_overridden():
    log = EventLog()
    persist = hook(ON_STOP)(lambda ctx, p: HookResult.keep_going("go on"))
    result = await agent_of(steps(9), StepsLimitHook(2), persist, sinks=[log]).arun("x")
    assert (result.stop.kind, len(log.of(Signalled))) == ("steps_limit", 1)


# Layers, subagents and changes during a run.


async def test_a_limit_applies_to_a_subagent_and_its_model_gets_the_note():
    child = agent_of(steps(9, usage=Usage(10, 10)))

    @tool
    async def delegate(ctx) -> str:
        """Ask another agent."""
        return (await child.arun("look", ctx=ctx)).stop.message

    turns = [reply("", tool_calls=[call("delegate")], usage=Usage(1, 0)), reply("never")]
    agent = scripted_agent(turns, tools=[delegate], hooks=[TokenUsageLimitHook(60)])
    result = await agent.arun("x")
    assert result.messages[-1].content == result.stop.message == "Token limit reached: 61/60"
    assert notes(child) == ["look", None, None]
    agent = scripted_agent(turns, tools=[delegate], hooks=[TokenUsageLimitHook(50)])
    child.model = ScriptedModel(steps(9, usage=Usage(10, 10)))
    await agent.arun("x")
    assert notes(child) == ["look", None, f"You have used 41 of 50 tokens.{WRAP_UP}"]


@pytest.mark.parametrize("where", ["agent", "conversation", "run"])
async def test_a_hook_of_agent_conversation_or_run_limits_the_run(where):
    hooks = [ToolCallsLimitHook(2)]
    agent = agent_of(steps(9), *(hooks if where == "agent" else ()))
    ctx = AgentContext(hooks=hooks if where == "conversation" else ())
    result = await agent.arun("x", ctx=ctx, hooks=hooks if where == "run" else ())
    assert (result.stop.kind, result.stop.hook) == ("tool_calls_limit", "ToolCallsLimitHook")


async def test_a_limit_that_is_registered_under_a_name_stops_under_that_name():
    agent = agent_of(steps(9))
    agent.register_hook(StepsLimitHook(2), name="frugal")
    assert (await agent.arun("x")).stop.hook == "frugal"


async def test_a_tool_that_hangs_is_cancelled_when_the_time_is_up():
    @tool
    async def hang() -> str:
        """Wait for ever."""
        await asyncio.sleep(3600)
        return "never"

    agent = scripted_agent([call("hang"), reply("never")], tools=[hang], hooks=[ExecutionTimeLimitHook(0.05)])
    result = await agent.arun("x")
    assert (result.stop.kind, result.stop.hook) == ("time_limit", "ExecutionTimeLimitHook")
    assert result.steps[0].outcomes == ("cancelled",)


async def test_a_limit_registered_during_a_run_applies_from_then_on():
    @tool
    async def work(n: int = 0) -> str:
        """Register a limit, then wait for ever."""
        if n == 1:
            agent.register_hook(ExecutionTimeLimitHook(0.2))
        await asyncio.sleep(3600 if n == 2 else 0)
        return "worked"

    agent = scripted_agent(steps(9), tools=[work])
    result = await agent.arun("x")
    assert (result.stop.kind, len(result.steps)) == ("time_limit", 3)


async def test_a_limit_removed_during_a_run_no_longer_applies():
    agent = agent_of([*steps(3), reply("done")])
    undo = agent.register_hook(ToolCallsLimitHook(2))
    agent.register_hook(lambda ctx, payload: undo(), points="after_step")
    assert (await agent.arun("x")).status == "completed"


async def test_the_limits_of_a_filtered_plugin_do_not_apply():
    agent = agent_of([*steps(3), reply("done")])
    agent.register_hook(ToolCallsLimitHook(2), plugin="frugal")
    assert (await agent.arun("x", allowed_plugins=[])).status == "completed"
    agent.model = ScriptedModel(steps(9))
    assert (await agent.arun("x", allowed_plugins=["frugal"])).stop.kind == "tool_calls_limit"


async def test_a_limit_under_shadow_reports_and_limits_nothing():
    trial = shadow(ToolCallsLimitHook(2))
    agent = agent_of([*steps(3), reply("done")], trial)
    assert (await agent.arun("x")).status == "completed"
    assert [(d.verb, d.text) for d in trial.decisions] == [
        ("stop", "Tool call limit reached: 2/2"),
        ("stop", "Tool call limit reached: 3/2"),
    ]


async def test_an_observer_limits_nothing():
    agent = agent_of([*steps(3), reply("done")])
    limit = ToolCallsLimitHook(2)
    limit.used = lambda ctx: 0
    agent.register_hook(limit, phase="observe")
    assert (await agent.arun("x")).status == "completed"


async def test_a_hook_may_have_an_unrelated_attribute_limits():
    class Polite:
        points = frozenset({BEFORE_STEP})
        limits = (1, 2)

        def __call__(self, point, ctx, payload):
            return None

    assert (await agent_of([*steps(3), reply("done")], Polite()).arun("x")).status == "completed"


async def test_a_custom_hook_can_declare_limits():
    class Frugal:
        points = frozenset({BEFORE_STEP})
        limits = Limits(tool_calls=1, steps=9)

        def __call__(self, point, ctx, payload):
            return None

    result = await agent_of(steps(9), Frugal()).arun("x")
    assert (result.stop.kind, result.stop.hook, result.tool_calls) == ("tool_calls_limit", "Frugal", 1)


# Counters.


async def test_a_step_counter_replaces_the_count():
    count = StepsLimitHook(2, lambda state: sum("work" in step.tool_names for step in state.steps))
    agent = agent_of([call("nothing"), *steps(9)], count)
    result = await agent.arun("x")
    assert (result.stop.message, len(agent.model.requests)) == ("Step limit reached: 2/2", 3)


@pytest.mark.parametrize("count", [None, "3", float("nan"), True])
async def test_a_step_counter_that_returns_no_number_fails_closed(count):
    agent = agent_of(steps(1), StepsLimitHook(2, lambda state: count))
    with pytest.raises(RunFailedError, match="it must return a number"):
        await agent.arun("x")
    assert agent.model.requests == []


# Batches of tool calls.


async def test_in_a_batch_over_the_limit_the_first_calls_run_and_the_others_are_cancelled():
    ran = []
    agent = agent_of([call("work"), [call("work", n=i) for i in (1, 2, 3)], reply("never")], ToolCallsLimitHook(3))
    agent.tools = scripted_agent([], tools=[counting(ran)]).tools
    result = await agent.arun("x")
    assert ran == [0, 1, 2]
    assert result.steps[1].outcomes == ("ok", "ok", "cancelled")
    assert result.messages[-1].content == "Cancelled: the tool call limit is reached."
    assert (result.status, result.stop.kind, len(agent.model.requests)) == ("stopped", "tool_calls_limit", 2)


async def test_the_same_calls_run_under_the_hook_and_under_a_budget():
    turns = [[call("work", n=i) for i in range(5)], reply("never")]
    under_hook, under_budget = [], []
    one = await agent_of(turns, ToolCallsLimitHook(3), ran=under_hook).arun("x")
    budget = Budget(Limits(tool_calls=3))
    two = await agent_of(turns, ran=under_budget).arun("x", ctx=AgentContext(budget=budget))
    assert under_hook == under_budget == [0, 1, 2]
    assert (one.stop.kind, one.stop.message) == (two.stop.kind, two.stop.message)


async def test_calls_that_other_guards_block_do_not_count_in_the_batch():
    ran = []
    blocker = guard(BEFORE_TOOL)(lambda ctx, p: HookResult.block("no") if p.arguments["n"] < 3 else None)
    turns = [[call("work", n=i) for i in range(6)], reply("never")]
    result = await agent_of(turns, ToolCallsLimitHook(2), blocker, ran=ran).arun("x")
    assert ran == [3, 4]
    assert result.stop.message == "Tool call limit reached: 2/2"


async def test_an_edited_call_is_counted_once():
    ran = []
    asker = guard(BEFORE_TOOL)(lambda ctx, p: HookResult.ask("sure?"))
    editor = hook("approval_requested")(lambda ctx, p: HookResult.edit({"n": p.call.arguments["n"] + 10}))
    turns = [[call("work", n=0), call("work", n=1)], reply("never")]
    await agent_of(turns, ToolCallsLimitHook(2), asker, editor, ran=ran).arun("x")
    assert sorted(ran) == [10, 11]


async def test_retries_of_a_call_count():
    ran = []
    again = hook(AFTER_TOOL)(lambda ctx, p: HookResult.retry() if p.attempt == 1 else None)
    turns = [[call("work", n=0), call("work", n=1)], reply("never")]
    result = await agent_of(turns, ToolCallsLimitHook(3), again, ran=ran).arun("x")
    assert (ran, result.steps[0].outcomes) == ([0, 1, 0], ("ok", "cancelled"))
    assert result.stop.kind == "tool_calls_limit"


TURN = st.lists(st.sampled_from(["ok", "blocked", "asked", "unknown", "answered"]), max_size=4)


@settings(max_examples=examples(60), deadline=None)
@given(
    script=st.lists(TURN, min_size=1, max_size=8),
    max_steps=st.integers(1, 6),
    max_calls=st.integers(1, 6),
    retry=st.booleans(),
)
def test_no_script_runs_more_steps_or_calls_than_allowed(script, max_steps, max_calls, retry):
    ran = []

    @tool
    def work(kind: str) -> str:
        """Work."""
        ran.append(kind)
        return kind

    verbs = {"blocked": HookResult.block("no"), "asked": HookResult.ask("?"), "answered": HookResult.answer("cached")}
    judge = guard(BEFORE_TOOL)(lambda ctx, p: verbs.get(p.arguments["kind"]))
    editor = hook("approval_requested")(lambda ctx, p: HookResult.edit({"kind": "ok"}))
    again = hook(AFTER_TOOL)(lambda ctx, p: HookResult.retry() if retry and p.attempt == 1 else None)
    turns = [
        [call("work" if kind != "unknown" else "nothing", kind=kind) for kind in kinds] or reply("done")
        for kinds in script
    ]
    limits = (StepsLimitHook(max_steps), ToolCallsLimitHook(max_calls))
    agent = Agent(
        "t",
        llm=ScriptedModel(turns, loop=True),
        tools=[work],
        hooks=[*limits, judge, editor, again],
        limits=Limits(steps=40),
    )
    result = agent.run("x")
    assert len(agent.model.requests) <= max_steps
    assert len(ran) <= max_calls
    calls = [c.id for m in result.messages for c in m.tool_calls]
    assert calls == [m.call_id for m in result.messages if m.role == "tool"]
    if result.status == "stopped":
        assert result.stop.kind in ("steps_limit", "tool_calls_limit", "retry_limit")


# The soft limit.


async def test_near_the_limit_each_request_ends_with_a_note_that_is_never_in_the_transcript():
    agent = agent_of(steps(19), StepsLimitHook(10))
    result = await agent.arun("x")
    assert notes(agent) == [
        "x",
        *[None] * 7,
        f"You have used 8 of 10 steps.{WRAP_UP}",
        f"You have used 9 of 10 steps.{WRAP_UP}",
    ]
    assert [m.content for m in result.messages if m.role == "user"] == ["x"]


@pytest.mark.parametrize(
    ("limit", "line"),
    [
        (TokenUsageLimitHook(100, soft_limit=0.5), "You have used 60 of 100 tokens."),
        (CostLimitHook(1.5, soft_limit=0.5), "You have used 1.0 of 1.5 USD."),
        (ToolCallsLimitHook(3, soft_limit=0.6), "You have used 2 of 3 tool calls."),
        (StepsLimitHook(3, lambda state: state.step_count, soft_limit=0.6), "You have used 2 of 3 steps."),
    ],
)
async def test_every_note_says_how_much_is_used(limit, line):
    agent = agent_of([*steps(2, usage=Usage(20, 10), cost=0.5), reply("done")], limit)
    assert (await agent.arun("x")).status == "completed"
    assert notes(agent) == ["x", None, line + WRAP_UP]


async def test_the_note_on_time_is_rounded():
    clock = FakeClock()
    agent = agent_of([reply("done")], ExecutionTimeLimitHook(10.0))

    @hook(BEFORE_STEP)
    def wait(ctx, payload):
        clock.advance(8.123)

    agent.register_hook(wait)
    await agent.arun("x", ctx=AgentContext(clock=clock))
    assert notes(agent) == [f"You have used 8.1 of 10.0 seconds.{WRAP_UP}"]


async def test_several_limits_share_one_note():
    limits = StepsLimitHook(5, soft_limit=0.2), ToolCallsLimitHook(5, soft_limit=0.2), CostLimitHook(9)
    agent = agent_of([*steps(1), reply("done")], *limits)
    await agent.arun("x")
    assert notes(agent)[1] == f"You have used 1 of 5 steps.\nYou have used 1 of 5 tool calls.{WRAP_UP}"
    assert [m.role for m in agent.model.requests[1].messages] == ["user", "assistant", "tool", "user"]


async def test_each_limit_has_its_own_soft_limit():
    limits = StepsLimitHook(10, soft_limit=0.1), CostLimitHook(2.0), TokenUsageLimitHook(100, soft_limit=None)
    agent = agent_of([*steps(2, cost=0.7, usage=Usage(49, 0)), reply("done")], *limits)
    await agent.arun("x")
    assert notes(agent)[1:] == [f"You have used {n} of 10 steps.{WRAP_UP}" for n in (1, 2)]


async def test_of_two_limits_on_the_same_quantity_the_note_names_the_lower():
    agent = agent_of([*steps(2), reply("done")], StepsLimitHook(5, soft_limit=None))
    agent.limits = Limits(steps=20, soft=0.1)
    await agent.arun("x")
    assert notes(agent)[1:] == [None, f"You have used 2 of 5 steps.{WRAP_UP}"]


async def test_the_message_of_the_user_is_not_changed():
    agent = agent_of([*steps(1), reply("done")], StepsLimitHook(5, soft_limit=0.2))
    agent.register_hook(
        lambda ctx, p: HookResult.replace({"messages": [*p.messages, Message("user", "You have used me.")]}),
        points=BEFORE_LLM,
        priority=300,
    )
    await agent.arun("x")
    last = [m.content for m in agent.model.requests[1].messages[-2:]]
    assert last == [f"You have used 1 of 5 steps.{WRAP_UP}", "You have used me."]


async def test_a_retried_request_has_one_note_and_calls_of_hooks_have_none():
    retry = hook("after_llm")(lambda ctx, p: HookResult.retry("again") if p.attempt == 1 and p.hop == 1 else None)

    @hook("after_step")
    async def judge(ctx, payload):
        if payload.index == 0:
            await ctx.llm.complete("judge", purpose="judge")

    turns = [*steps(1), reply("fine"), reply("a"), reply("b")]
    agent = agent_of(turns, StepsLimitHook(5, soft_limit=0.2), judge, retry)
    await agent.arun("x")
    note = f"You have used 1 of 5 steps.{WRAP_UP}"
    assert notes(agent) == ["x", "judge", note, note]
    assert [m.content for m in agent.model.requests[3].messages[-3:]] == ["a", "again", note]


async def test_the_soft_limit_can_be_disabled():
    agent = agent_of(steps(9), StepsLimitHook(3, soft_limit=None))
    await agent.arun("x")
    assert notes(agent) == ["x", None, None]


async def test_soft_limits_are_exact():
    agent = agent_of([reply("x", usage=Usage(55, 0)).replace(tool_calls=[call("work")]), reply("done")])
    agent.register_hook(TokenUsageLimitHook(100, soft_limit=0.55))
    await agent.arun("x")
    assert notes(agent)[1] == f"You have used 55 of 100 tokens.{WRAP_UP}"


# Registration.


def test_limits_come_first():
    registry = HookRegistry([ExecutionTimeLimitHook(1)])
    found = [(str(e.point), e.phase, e.priority) for layer in registry.stack.layers for e in layer]
    assert found == [("before_step", "rewrite", 200)]


def test_a_hook_declares_its_limit():
    hooks = [StepsLimitHook(1), TokenUsageLimitHook(2), ExecutionTimeLimitHook(3.5), CostLimitHook(4.5)]
    assert [hook.limits for hook in (*hooks, ToolCallsLimitHook(5, soft_limit=None))] == [
        Limits(steps=1),
        Limits(tokens=2),
        Limits(seconds=3.5),
        Limits(cost=4.5),
        Limits(tool_calls=5, soft=None),
    ]


@pytest.mark.parametrize("kind", [StepsLimitHook, TokenUsageLimitHook, ToolCallsLimitHook])
@pytest.mark.parametrize("limit", [0, -1, 1.5, float("nan"), float("inf"), True, "3", None])
def test_a_limit_on_a_count_is_a_whole_number_above_0(kind, limit):
    with pytest.raises(RegistrationError, match="must be a whole number, 1 or more"):
        kind(limit)


@pytest.mark.parametrize("kind", [ExecutionTimeLimitHook, CostLimitHook])
@pytest.mark.parametrize("limit", [0, -0.1, float("nan"), float("inf"), True, "3", None])
def test_a_limit_on_an_amount_is_a_number_above_0(kind, limit):
    with pytest.raises(RegistrationError, match="must be a number above 0"):
        kind(limit)


@pytest.mark.parametrize("share", [0, 1, 1.5, -0.2, float("nan"), True, "0.8"])
def test_a_soft_limit_is_a_fraction(share):
    with pytest.raises(RegistrationError, match="between 0 and 1, or None"):
        StepsLimitHook(3, soft_limit=share)


def test_a_step_counter_must_be_callable():
    with pytest.raises(RegistrationError, match="step_counter must be a function"):
        StepsLimitHook(3, 5)


async def test_a_limit_that_is_far_away_changes_nothing():
    log = EventLog()
    agent = agent_of([*steps(1), reply("x")], StepsLimitHook(50), TokenUsageLimitHook(5000), sinks=[log])
    await agent.arun("x")
    assert log.of(JudgedBeforeRewrite) == []
    assert len(agent.model.requests[1].messages) == 3
