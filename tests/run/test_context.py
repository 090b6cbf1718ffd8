"""The context of a run: shared services, its own state, and rejected values (DESIGN 6.1, 6.2, 6.4)."""

import time
from random import Random

import pytest

from hookline import (
    AFTER_LLM,
    AFTER_TOOL,
    BEFORE_LLM,
    BEFORE_STEP,
    BEFORE_TOOL,
    ON_RUN_START,
    Agent,
    AgentContext,
    Budget,
    Event,
    HookRegistry,
    HookResult,
    Limits,
    Message,
    RunFailedError,
    ScriptedModel,
    Session,
    call,
    hook,
    observer,
    reply,
    tool,
)
from hookline._run.cancellation import Interrupt
from hookline._run.context import context_for_call, services_of
from hookline.events import RunStarted
from hookline.models import ModelResponse
from hookline.payloads import AgentState, Ids, ToolCall
from hookline.testing import EventLog, scripted_agent


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


ADD = call("add", a=1, b=2)


# What it is made of


def test_a_context_has_what_it_is_given():
    session, hooks, budget, switch, chance = Session("s"), HookRegistry(), Budget(), Interrupt(), Random(1)
    ctx = AgentContext(
        session=session,
        hooks=hooks,
        budget=budget,
        memory="m",
        artifacts="a",
        blackboard="b",
        deps="d",
        interrupt=switch,
        allowed_plugins=["p"],
        random=chance,
        new_id=lambda prefix: f"{prefix}!",
    )
    assert (ctx.session, ctx.hooks, ctx.interrupt) == (session, hooks, switch)
    assert services_of(ctx).budget is budget
    assert (ctx.memory, ctx.artifacts, ctx.blackboard, ctx.deps) == ("m", "a", "b", "d")
    assert (ctx.allowed_plugins, ctx.random) == (("p",), chance)
    assert (ctx.agent_name, ctx.ids, ctx.depth, ctx.run_id) == ("", Ids(), 0, "")
    assert (ctx.tool_registry, ctx.llm) == (None, None)
    assert ctx.new_id("x") == "x!"


def test_a_context_that_is_given_nothing_makes_what_it_needs():
    seen = []

    @observer(ON_RUN_START)
    def watch(ctx, start):
        seen.append(ctx.session.id)

    ctx = AgentContext(hooks=[watch], new_id=lambda prefix: f"{prefix}!")
    assert ctx.session.id == "session!"
    assert (ctx.budget.limits, ctx.budget.tokens) == (Limits(), 0)
    assert not ctx.interrupt.cancelled
    assert ctx.allowed_plugins is None
    assert ctx.clock is time
    assert ctx.random is ctx.random
    assert isinstance(ctx.random, Random)
    assert ctx.state == AgentState(ids=Ids())
    scripted_agent([reply("x")]).run("x", ctx=ctx)
    assert seen == ["session!"]


def test_the_clock_of_a_context_is_its_budgets_too():
    class Clock:
        def time(self):
            return 5.0

        def monotonic(self):
            return 7.0

    ctx = AgentContext(clock=Clock())
    services_of(ctx).budget.begin()
    assert ctx.budget.elapsed == 0.0


def test_a_run_shares_the_services_of_its_context_and_has_its_own_state():
    seen = []

    @observer(BEFORE_STEP)
    def watch(ctx, step):
        seen.append(ctx)

    chance = Random(3)
    outer = AgentContext(
        memory="m",
        artifacts="a",
        blackboard="b",
        deps="d",
        random=chance,
        allowed_plugins=["p"],
        new_id=lambda prefix: f"{prefix}!",
        budget=Budget(Limits(tokens=99)),
        hooks=[watch],
    )
    outer.scratch["mine"] = 1
    scripted_agent([reply("x")], name="inner").run("go", ctx=outer)
    (ctx,) = seen
    assert ctx is not outer
    assert (ctx.memory, ctx.artifacts, ctx.blackboard, ctx.deps, ctx.random) == ("m", "a", "b", "d", chance)
    assert (ctx.allowed_plugins, ctx.session, ctx.hooks, ctx.clock) == (("p",), outer.session, outer.hooks, time)
    assert services_of(ctx).budget.parents == (services_of(outer).budget,)
    assert ctx.scratch is outer.scratch
    assert ctx.new_id("x") == "x!"
    assert (ctx.agent_name, ctx.depth, ctx.run_id) == ("inner", 0, "run!")
    assert [m.content for m in ctx.state.messages] == ["go", "x"]
    assert outer.state.messages == ()
    assert outer.agent_name == ""


def test_each_nested_run_is_one_deeper():
    depths = []

    @observer(ON_RUN_START)
    def watch(ctx, start):
        depths.append((ctx.agent_name, ctx.depth))

    def over(inner):
        @tool
        async def ask(ctx) -> str:
            """Ask."""
            return (await inner.arun("x", ctx=ctx)).reply

        return ask

    agent = scripted_agent([reply("c")], name="c")
    for name in "ba":
        agent = Agent(name, llm=ScriptedModel([call("ask"), reply(name)]), tools=[over(agent)])
    agent.run("x", hooks=[watch], ctx=AgentContext())
    assert depths == [("a", 0), ("b", 1), ("c", 2)]


async def test_a_detached_context_has_the_same_hooks_and_is_independent():
    detached, seen = [], []

    @observer(BEFORE_STEP)
    def watch(ctx, step):
        seen.append((ctx.agent_name, dict(ctx.state.metadata)))
        if not detached:
            ctx.scratch["x"] = 1
            detached.extend((ctx.detached(), ctx.detached(budget=Budget(Limits(tokens=5)))))

    run = scripted_agent([reply("x")], name="one").start("x", hooks=[watch], metadata={"user": "u"})
    await run.result()
    counting, own = detached
    assert (counting.scratch, own.scratch) == ({}, {})
    assert own.budget.limits.tokens == 5
    assert counting.run_id == own.run_id == run.id
    before = counting.budget.tokens
    await scripted_agent([reply("y")], name="two").arun("y", ctx=counting)
    assert counting.budget.tokens > before
    before_own = counting.budget.tokens
    result = await scripted_agent([reply("y")], name="three").arun("y", ctx=own)
    assert result.status == "completed"
    assert own.budget.tokens > 0
    assert counting.budget.tokens == before_own
    assert seen == [("one", {"user": "u"}), ("two", {"user": "u"}), ("three", {"user": "u"})]
    assert not counting.interrupt.cancelled


# State


def state_of(change, point=BEFORE_LLM, turns=(ADD, reply("x")), **options):
    @hook(point)
    def edit(ctx, payload):
        return HookResult.cont(state=change(ctx.state))

    return scripted_agent(turns, tools=[add], hooks=[edit], **options)


def test_a_hook_changes_only_editable_parts():
    seen = []

    @observer(AFTER_LLM)
    def watch(ctx, answer):
        state = ctx.state
        seen.append((dict(state.metadata), state.system_prompt, state.response_format))

    agent = state_of(
        lambda state: state.replace(metadata={"a": 1}, system_prompt="other", response_format={"type": "object"}),
        turns=[reply("x")],
        instructions="base",
    )
    agent.run("x", hooks=[watch], metadata={"a": 0})
    assert seen == [({"a": 1}, "other", {"type": "object"})]
    for field, value in (("metadata", {"a": 2}), ("system_prompt", "s"), ("response_format", {"b": 1})):
        state_of(lambda s, f=field, v=value: s.replace(**{f: v}), turns=[reply("x")], instructions="base").run(
            "x", hooks=[watch], metadata={"a": 0}
        )
    assert seen[1:] == [({"a": 2}, "base", None), ({"a": 0}, "s", None), ({"a": 0}, "base", {"b": 1})]


def test_a_state_read_before_the_transcript_changed_is_rejected():
    old = []

    @hook(BEFORE_LLM)
    def keep(ctx, request):
        old.append(ctx.state)

    @hook(AFTER_TOOL)
    def stale(ctx, done):
        return HookResult.cont(state=old[0].with_messages(Message("user", "late")))

    with pytest.raises(RunFailedError, match="read ctx.state again"):
        scripted_agent([ADD, reply("x")], tools=[add], hooks=[keep, stale]).run("x")


def test_a_state_that_was_read_before_an_error_or_a_charge_still_counts():
    @hook(BEFORE_LLM)
    async def ask_first(ctx, request):
        if request.purpose != "step":
            return None
        state = ctx.state
        await ctx.llm.complete("hm?")
        await ctx.llm.complete("hm?")
        return HookResult.cont(state=state.replace(metadata={"asked": True}))

    seen = []

    @observer(AFTER_LLM)
    def watch(ctx, answer):
        seen.append((dict(ctx.state.metadata), ctx.state.usage.total_tokens > 0))

    result = scripted_agent([reply("a"), reply("b"), reply("c")], hooks=[ask_first, watch]).run("x")
    assert result.status == "completed"
    assert seen == [({}, True), ({}, True), ({"asked": True}, True)]


def test_a_new_call_may_not_have_the_id_of_an_old_one():
    def copy(state):
        pair = [
            Message("assistant", "", (ToolCall("call_0_0", "add", {"a": 1, "b": 1}),)),
            Message("tool", "2", (), "call_0_0", "add"),
        ]
        return state.with_messages(*pair) if len(state.messages) > 2 else state

    with pytest.raises(RunFailedError, match="the id of an old one"):
        state_of(copy).run("x")


def test_calls_that_a_hook_writes_into_the_transcript_are_known_from_then_on():
    mine = [
        Message("assistant", "", (ToolCall("call_0_0", "add", {"a": 1, "b": 1}),)),
        Message("tool", "2", (), "call_0_0", "add"),
    ]

    def write(state):
        return state.with_messages(*mine) if len(state.messages) == 1 else state

    result = state_of(write).run("x")
    ids = [made.id for message in result.messages for made in message.tool_calls]
    assert ids[0] == "call_0_0"
    assert len(set(ids)) == 2


def test_messages_that_come_while_calls_are_open_wait_for_the_results_in_order():
    @hook(BEFORE_TOOL)
    def note(ctx, request):
        return HookResult.cont(state=ctx.state.with_messages(Message("user", f"before {request.arguments['a']}")))

    batch = [call("add", a=1, b=1), call("add", a=2, b=2)]
    result = scripted_agent([batch, reply("x")], tools=[add], hooks=[note]).run("x")
    assert [m.content for m in result.messages] == ["x", "", "2", "4", "before 1", "before 2", "x"]


def test_ids_of_calls_are_remembered_though_a_hook_changed_the_state_since():
    same = ModelResponse("", (ToolCall("same", "add", {"a": 1, "b": 1}),))

    @hook(BEFORE_LLM)
    def note(ctx, request):
        return HookResult.cont(state=ctx.state.with_messages(Message("user", "note")))

    result = scripted_agent([same, same, reply("x")], tools=[add], hooks=[note]).run("x")
    ids = [made.id for message in result.messages for made in message.tool_calls]
    assert ids[0] == "same"
    assert len(set(ids)) == 2


# What a tool gets


def test_a_tool_sees_the_context_of_its_run_and_may_report_how_far_it_is():
    reports, ctx = [], AgentContext(deps="d")
    seen = context_for_call(ctx, lambda fraction, message: reports.append((fraction, message)))
    assert seen.deps == "d"
    seen.progress(0, "begun")
    seen.progress(1)
    seen.progress(message="still at it")
    assert reports == [(0, "begun"), (1, ""), (None, "still at it")]
    for fraction in (-0.1, 1.1):
        with pytest.raises(ValueError, match="between 0 and 1"):
            seen.progress(fraction)
    for fraction in ("half", True, float("nan")):
        with pytest.raises((TypeError, ValueError)):
            seen.progress(fraction)
    with pytest.raises(TypeError, match="message must be text"):
        seen.progress(0.5, 3)
    assert len(reports) == 3


# Events


class Mine(Event, frozen=True):
    """An event of a program."""

    text: str = ""


def test_a_hook_emits_events_of_its_own_types_and_not_those_of_the_loop():
    log = EventLog()

    @observer(BEFORE_STEP)
    def say(ctx, step):
        ctx.emit(Mine, text="hi")
        with pytest.raises(TypeError, match="RunStarted is emitted by the loop: define your own Event class"):
            ctx.emit(RunStarted)

    scripted_agent([reply("x")], hooks=[say], sinks=[log]).run("x")
    assert [event.text for event in log.of(Mine)] == ["hi"]
    assert len(log.of(RunStarted)) == 1


def test_outside_a_run_no_events_are_wanted_or_created():
    ctx = AgentContext()
    assert not ctx.wants(Mine)
    ctx.emit(Mine)
    log = EventLog()
    seen = []

    @observer(BEFORE_STEP)
    def watch(ctx, step):
        seen.append(ctx.wants(RunStarted))

    scripted_agent([reply("x")], hooks=[watch], sinks=[log]).run("x")
    scripted_agent([reply("x")], hooks=[watch]).run("x")
    assert seen == [True, False]
