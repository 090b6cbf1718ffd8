"""RateLimitHook: limits on tool calls."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import (
    AFTER_TOOL,
    BEFORE_TOOL,
    Agent,
    AgentContext,
    HookRegistry,
    HookResult,
    RegistrationError,
    ScriptedModel,
    call,
    guard,
    hook,
    reply,
    tool,
)
from hookline.hooks import HookAction, RateLimitHook
from hookline.teams import Team
from hookline.testing import FakeClock, afire_hook, fire_hook, scripted_agent
from tests.properties import examples


def agent_of(turns, *hooks, ran=None, **options):
    @tool
    def search(n: int = 0) -> str:
        """Search."""
        if ran is not None:
            ran.append(n)
        return f"found {n}"

    @tool
    def read(n: int = 0) -> str:
        """Read."""
        return f"read {n}"

    return scripted_agent(turns, tools=[search, read], hooks=hooks, **options)


def texts(result):
    return [m.content for m in result.messages if m.role == "tool"]


def searches(count, start=0):
    return [call("search", n=i) for i in range(start, start + count)]


async def test_calls_over_the_limit_are_blocked_and_the_run_goes_on():
    result = await agent_of([searches(3), reply("done")], RateLimitHook(2)).arun("x")
    assert texts(result) == ["found 0", "found 1", "Rate limit exceeded: 3/2 tool calls."]
    assert (result.status, result.reply) == ("completed", "done")


async def test_the_default_is_50_calls_in_a_run():
    result = await agent_of([searches(52), reply("done")], RateLimitHook()).arun("x")
    assert result.successful_tool_calls == 50
    assert texts(result)[50:] == ["Rate limit exceeded: 51/50 tool calls."] * 2


async def test_each_run_is_counted_separately():
    agent = agent_of([searches(2), reply("a")] * 3, RateLimitHook(2))
    results = [await agent.arun("x") for _ in range(2)]
    assert [r.successful_tool_calls for r in results] == [2, 2]


async def test_a_run_and_its_subagents_are_counted_together():
    ran = []

    @tool
    def search(n: int) -> str:
        """Search."""
        ran.append(n)
        return f"found {n}"

    team, limit = Team(max_parallel=2), RateLimitHook(6, per_tool={"search": 3})
    both = [call("delegate", to=f"inner_{n}", task="go") for n in (1, 2)]
    turns = [call("search", n=0), both, [call("search", n=9)], reply("done")]
    team.add(Agent("chief", llm=ScriptedModel(turns), tools=[team, search], hooks=[limit]))
    for n in (1, 2):
        inner = ScriptedModel([call("search", n=n), call("search", n=10 * n), reply("x")])
        team.add(Agent(f"inner_{n}", llm=inner, tools=[search]))
    result = await team.arun("x")
    assert result.status == "completed"
    assert len(ran) == 3  # of five
    assert ran[0] == 0
    assert texts(result)[-1] == 'Rate limit exceeded: 4/3 calls of "search".'


async def test_a_run_that_inherits_nothing_is_counted_by_itself():
    limit = RateLimitHook(2)

    @tool
    async def ask() -> str:
        """Ask another agent."""
        inner = agent_of([searches(2), reply("x")], limit)
        return str((await inner.arun("x", inherit=False)).successful_tool_calls)

    @tool
    async def ask_with_ctx(ctx) -> str:
        """Ask another agent."""
        inner = agent_of([searches(2), reply("x")], limit)
        return str((await inner.arun("x", ctx=ctx, inherit=False)).successful_tool_calls)

    turns = [[call("ask"), call("ask_with_ctx")], reply("x")]
    outer = Agent("outer", llm=ScriptedModel(turns), tools=[ask, ask_with_ctx], hooks=[limit])
    assert texts(await outer.arun("x")) == ["2", "2"]


async def test_the_runs_of_a_conversation_are_counted_by_themselves():
    agent, ctx = agent_of([searches(2), reply("x"), searches(2), reply("x")], RateLimitHook(2)), AgentContext()
    assert [(await agent.arun("x", ctx=ctx)).successful_tool_calls for _ in range(2)] == [2, 2]


async def test_each_tool_can_have_a_limit():
    turns = [[*searches(2), call("read"), call("read", n=1)], reply("done")]
    result = await agent_of(turns, RateLimitHook(per_tool=1)).arun("x")
    assert texts(result) == [
        "found 0",
        'Rate limit exceeded: 2/1 calls of "search".',
        "read 0",
        'Rate limit exceeded: 2/1 calls of "read".',
    ]


async def test_globs_select_tools_and_the_lowest_number_applies():
    limit = RateLimitHook(None, per_tool={"s*": 3, "*ch": 1})
    result = await agent_of([[*searches(2), call("read"), call("read", n=1)], reply("done")], limit).arun("x")
    assert texts(result) == ["found 0", 'Rate limit exceeded: 2/1 calls of "search".', "read 0", "read 1"]


async def test_calls_that_another_guard_blocks_do_not_count():
    blocker = guard(BEFORE_TOOL)(lambda ctx, p: HookResult.block("no") if p.arguments["n"] < 3 else None)
    result = await agent_of([searches(6), reply("done")], RateLimitHook(2), blocker).arun("x")
    assert texts(result) == ["no"] * 3 + ["found 3", "found 4", "Rate limit exceeded: 3/2 tool calls."]


async def test_denied_and_answered_calls_do_not_count_in_the_next_step():
    verbs = {0: HookResult.ask("?"), 1: HookResult.answer("cached")}
    judge = guard(BEFORE_TOOL)(lambda ctx, p: verbs.get(p.arguments["n"]))
    result = await agent_of([searches(2), searches(3, 2), reply("done")], RateLimitHook(2), judge).arun("x")
    assert texts(result)[1:] == ["cached", "found 2", "found 3", "Rate limit exceeded: 3/2 tool calls."]


async def test_invalid_calls_do_not_count():
    turns = [[call("search", n="many"), call("nothing"), *searches(1)], reply("done")]
    assert (await agent_of(turns, RateLimitHook(1)).arun("x")).successful_tool_calls == 1


async def test_an_edited_call_counts_once():
    ran = []
    asker = guard(BEFORE_TOOL)(lambda ctx, p: HookResult.ask("sure?"))
    editor = hook("approval_requested")(lambda ctx, p: HookResult.edit({"n": p.call.arguments["n"] + 10}))
    limit = RateLimitHook(2, per_tool=2, per_minute=2)
    await agent_of([searches(2), reply("done")], limit, asker, editor, ran=ran).arun("x")
    assert sorted(ran) == [10, 11]


async def test_a_retried_call_counts_again():
    ran = []
    again = hook(AFTER_TOOL)(lambda ctx, p: HookResult.retry() if p.attempt == 1 else None)
    result = await agent_of([searches(2), reply("done")], RateLimitHook(3), again, ran=ran).arun("x")
    assert ran == [0, 1, 0]
    assert texts(result) == [
        "found 0",
        "Rate limit exceeded: 4/3 tool calls. This call has run and is not retried.",
    ]


async def test_a_blocked_retry_does_not_uncount_the_first_attempt():
    ran = []
    again = hook(AFTER_TOOL)(lambda ctx, p: HookResult.retry() if p.attempt == 1 else None)
    no_retry = hook(BEFORE_TOOL)(lambda ctx, p: HookResult.block("no retries") if p.attempt > 1 else None)
    turns = [searches(1), searches(2, 1), reply("done")]
    await agent_of(turns, RateLimitHook(2), again, no_retry, ran=ran).arun("x")
    assert ran == [0, 1]


# Per minute.


async def test_the_minute_is_shared_by_all_runs_and_slides():
    clock, limit = FakeClock(), RateLimitHook(per_minute=2)
    agent = agent_of([call("search"), reply("x")] * 9, limit)

    async def run(at):
        clock.advance(at - clock.monotonic())
        return texts(await agent.arun("x", ctx=AgentContext(clock=clock)))[0]

    assert [await run(0.0), await run(50.0)] == ["found 0", "found 0"]
    assert await run(55.5) == "Rate limit exceeded: 3/2 tool calls in a minute. Try again in 5 s."
    assert await run(59.9) == "Rate limit exceeded: 3/2 tool calls in a minute. Try again in 1 s."
    assert await run(60.0) == "found 0"
    assert "Try again in 40 s." in await run(70.0)


async def test_calls_that_do_not_run_do_not_count_in_the_minute():
    blocker = guard(BEFORE_TOOL)(lambda ctx, p: HookResult.block("no") if p.arguments["n"] == 0 else None)
    agent = agent_of([searches(2), reply("x"), searches(2), reply("x")], RateLimitHook(per_minute=2), blocker)
    results = [await agent.arun("x", ctx=AgentContext(clock=FakeClock())) for _ in range(2)]
    assert [texts(r) for r in results] == [["no", "found 1"]] * 2


async def test_concurrent_runs_share_the_minute_but_not_the_run():
    limit = RateLimitHook(1, per_minute=3)
    agents = [agent_of([searches(2), reply("x")], limit) for _ in range(5)]
    results = await asyncio.gather(*(agent.arun("x") for agent in agents))
    assert sorted(r.successful_tool_calls for r in results) == [0, 0, 1, 1, 1]


def test_threads_never_get_past_the_minute():
    limit, gate = RateLimitHook(None, per_minute=7), threading.Barrier(4)

    def caller(number):
        ctx = AgentContext()
        gate.wait()
        verdicts = [fire_hook(limit, BEFORE_TOOL, ctx=ctx, id=f"{number}.{i}", name="search") for i in range(10)]
        return sum(verdict.action is HookAction.CONT for verdict in verdicts)

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(caller, range(4))) == 7


async def test_the_window_of_the_minute_does_not_grow():
    clock, limit = FakeClock(), RateLimitHook(None, per_minute=3)
    for i in range(50):
        clock.advance(30)
        await afire_hook(limit, BEFORE_TOOL, ctx=AgentContext(clock=clock), id=str(i), name="search")
    assert len(limit._window) <= 3


@settings(max_examples=examples(50), deadline=None)
@given(
    script=st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=5), min_size=1, max_size=4),
    limit=st.integers(1, 6),
    retry=st.booleans(),
)
def test_no_script_runs_more_calls_than_allowed_and_none_is_lost(script, limit, retry):
    ran = []
    verbs = {0: HookResult.block("no"), 1: HookResult.ask("?")}
    judge = guard(BEFORE_TOOL)(lambda ctx, p: verbs.get(p.arguments["n"]))
    again = hook(AFTER_TOOL)(lambda ctx, p: HookResult.retry() if retry and p.attempt == 1 else None)
    turns = [*([call("search", n=n) for n in calls] for calls in script), reply("done")]
    agent_of(turns, RateLimitHook(limit), judge, again, ran=ran).run("x")
    assert len(ran) <= limit
    if not retry and not any(
        1 in calls for calls in script
    ):  # a call that waits for approval counts until it is decided
        assert len(ran) == min(limit, sum(n > 1 for calls in script for n in calls))


# Registration.


def test_it_judges_first_among_the_guards():
    found = {str(e.point): (e.phase, e.priority) for e in HookRegistry([RateLimitHook()]).stack.layers[0]}
    assert found == {"before_tool": ("guard", 200), "after_tool": ("observe", 200)}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"max_calls_per_run": 0}, "max_calls_per_run must be a whole number, 1 or more"),
        ({"max_calls_per_run": True}, "max_calls_per_run must be a"),
        ({"per_minute": 1.5}, "per_minute must be a"),
        ({"per_tool": -1}, "per_tool of '\\*' must be a"),
        ({"per_tool": {"a": "many"}}, "per_tool of 'a' must be a"),
        ({"per_tool": {1: 1}}, "a mapping from globs"),
        ({"max_calls_per_run": None}, "give a limit"),
        ({"max_calls_per_run": None, "per_tool": {}}, "give a limit"),
    ],
)
def test_invalid_arguments_are_rejected(options, problem):
    with pytest.raises(RegistrationError, match=problem):
        RateLimitHook(**options)
