"""TimingHook: durations of models and tools."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from hookline import (
    AFTER_LLM,
    AFTER_TOOL,
    APPROVAL_REQUESTED,
    BEFORE_LLM,
    BEFORE_TOOL,
    Agent,
    AgentContext,
    HookResult,
    ModelRequest,
    RunFailedError,
    ScriptedModel,
    call,
    guard,
    hook,
    reply,
    tool,
)
from hookline.hooks import TimingHook
from hookline.hooks import timing as module
from hookline.testing import FakeClock, fire_hook, scripted_agent


@pytest.fixture
def clock():
    return FakeClock()


def rows(timing):
    return {(row.kind, row.name): (row.count, row.total) for row in timing.summary()}


def test_models_and_tools_are_timed_alone_and_including_hooks(clock):
    @tool
    def work() -> str:
        """Work."""
        clock.advance(3)
        return "done"

    @hook(AFTER_TOOL)
    def think(ctx, result):
        clock.advance(2)

    def slow(text):
        def turn(request):
            clock.advance(10)
            return text

        return turn

    timing = TimingHook()
    agent = scripted_agent([slow(call("work")), slow("ok")], tools=[work], hooks=[think, timing])
    agent.run("x", ctx=AgentContext(clock=clock))
    assert rows(timing) == {
        ("model", "scripted"): (2, 20),
        ("model, whole", "scripted"): (2, 20),
        ("tool", "work"): (1, 3),
        ("tool, whole", "work"): (1, 5),
    }


def test_the_whole_time_includes_approvals_and_an_edited_call_counts_once(clock):
    @tool
    def pay(amount: int) -> str:
        """Pay."""
        clock.advance(1)
        return "paid"

    @guard(BEFORE_TOOL)
    def ask(ctx, request):
        return HookResult.ask("really?")

    @hook(APPROVAL_REQUESTED)
    def boss(ctx, asked):
        clock.advance(60)
        return HookResult.edit({"amount": 1})

    timing = TimingHook()
    agent = scripted_agent([call("pay", amount=9), reply("ok")], tools=[pay], hooks=[ask, boss, timing])
    agent.run("x", ctx=AgentContext(clock=clock))
    found = rows(timing)
    assert found["tool", "pay"] == (1, 1)
    assert found["tool, whole", "pay"] == (1, 61)


def test_each_attempt_counts(clock):
    @tool
    def flaky() -> str:
        """Work."""
        clock.advance(1)
        return "done"

    @hook(AFTER_TOOL)
    def once_more(ctx, result):
        return HookResult.retry() if result.attempt == 1 else None

    @hook(AFTER_LLM)
    def twice(ctx, got):
        return HookResult.retry("again") if got.attempt == 1 else None

    timing = TimingHook()
    turns = [call("flaky"), call("flaky"), reply("ok"), reply("ok")]
    agent = scripted_agent(turns, tools=[flaky], hooks=[once_more, twice, timing])
    agent.run("x", ctx=AgentContext(clock=clock))
    found = rows(timing)
    assert found["tool", "flaky"] == (2, 2)
    assert found["tool, whole", "flaky"] == (2, 2)
    assert found["model", "scripted"][0] == found["model, whole", "scripted"][0] == 4


@pytest.mark.parametrize("verb", [HookResult.block("no"), HookResult.answer("known")])
def test_calls_that_did_not_run_count_only_as_whole(verb):
    @tool
    def work() -> str:
        """Work."""
        return "done"

    @guard(BEFORE_TOOL)
    def judge(ctx, request):
        return verb

    timing = TimingHook()
    scripted_agent([call("work"), reply("ok")], tools=[work], hooks=[judge, timing]).run("x")
    found = rows(timing)
    assert ("tool", "work") not in found
    assert found["tool, whole", "work"][0] == 1


def test_a_call_of_an_unknown_tool_counts_only_as_whole():
    timing = TimingHook()
    scripted_agent([call("nothing"), reply("ok")], hooks=[timing]).run("x")
    assert ("tool", "nothing") not in rows(timing)


def test_an_answered_model_call_counts_only_as_whole_and_a_failed_one_not_at_all():
    @hook(BEFORE_LLM)
    def known(ctx, request):
        return HookResult.answer("known") if request.messages[-1].content == "known?" else None

    timing = TimingHook()
    agent = scripted_agent([OSError("down")], hooks=[known, timing])
    agent.run("known?")
    assert set(rows(timing)) == {("model, whole", "scripted")}
    with pytest.raises(RunFailedError):
        agent.run("x")
    assert set(rows(timing)) == {("model, whole", "scripted")}


async def test_concurrent_model_calls_of_one_run_are_measured_separately():
    @tool
    async def think(what: str, ctx) -> str:
        """Think."""
        return (await ctx.llm.complete(what)).content

    timing = TimingHook()
    calls = [call("think", what="a"), call("think", what="b")]
    model = ScriptedModel([calls, reply("a"), reply("b"), reply("ok")], delay=0.01)
    await Agent("a", llm=model, tools=[think], hooks=[timing]).arun("x")
    found = rows(timing)
    assert found["model", "scripted"][0] == found["model, whole", "scripted"][0] == 4


def test_the_summary_has_mean_and_percentiles():
    timing, ctx = TimingHook(), AgentContext()
    for seconds in range(1, 101):
        fire_hook(timing, AFTER_LLM, ctx=ctx, model="m", duration=float(seconds))
    (row,) = timing.summary()
    assert (row.count, row.total, row.mean, row.p50, row.p95, row.max) == (100, 5050, 50.5, 50, 95, 100)


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "MAX_NAMES", 3)
    timing, ctx = TimingHook(), AgentContext()
    for i in range(3000):
        timing(AFTER_TOOL, ctx, SimpleNamespace(id=str(i), name=f"t{i % 10}", attempt=1, outcome="ok", duration=1.0))
        timing(BEFORE_LLM, ctx, ModelRequest(()))
    assert sum(row.count for row in timing.summary()) == 3000
    assert [row.name for row in timing.summary()] == ["(others)", "t0", "t1", "t2"]
    assert all(len(tally.recent) <= module.RECENT for tally in timing._statistics.values())
    assert len(ctx.hook_state[id(timing)]) <= 1000


def test_the_table_is_plain_text():
    timing = TimingHook()
    assert " ".join(timing.table().split()) == "kind name count total ms mean ms p50 ms p95 ms max ms"
    fire_hook(timing, AFTER_LLM, model="a-model", duration=1.25)
    head, line = timing.table().splitlines()
    assert line.split() == ["model", "a-model", "1", "1,250.0", "1,250.0", "1,250.0", "1,250.0", "1,250.0"]
    assert len(head) == len(line)


def test_reset_deletes_all_measurements():
    timing = TimingHook()
    fire_hook(timing, AFTER_LLM, model="m", duration=1.0)
    timing.reset()
    assert timing.summary() == []


def test_runs_in_threads_share_one_object():
    timing = TimingHook()
    agent = Agent("a", llm=ScriptedModel([reply("ok")], loop=True), hooks=[timing])
    threads = [threading.Thread(target=lambda: [asyncio.run(agent.arun("x")) for _ in range(20)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {count for count, _ in rows(timing).values()} == {80}
