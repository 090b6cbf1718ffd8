"""A time limit interrupts pending work (DESIGN 4.7)."""

import asyncio
import time

import pytest

from hookline import (
    AFTER_LLM,
    BEFORE_LLM,
    ON_RUN_START,
    ON_STOP,
    Agent,
    AgentContext,
    Budget,
    HookResult,
    Limits,
    ScriptedModel,
    call,
    hook,
    observer,
    reply,
    tool,
)
from hookline.testing import scripted_agent

LIMIT = 0.15


def limited(**more):
    return AgentContext(budget=Budget(Limits(seconds=LIMIT, **more)))


def slow_model(*turns):
    return ScriptedModel([reply("too late"), *turns], delay=60)


def stopped_by_time(result):
    return (result.status, result.stop.kind) == ("stopped", "time_limit")


async def test_a_model_that_takes_too_long_is_interrupted():
    heard = []

    @observer(ON_STOP)
    def stopping(ctx, payload):
        heard.append(payload.signals[0].kind)

    result = await Agent("a", llm=slow_model(), hooks=[stopping]).arun("go", ctx=limited())
    assert stopped_by_time(result)
    assert heard == ["time_limit"]
    assert asyncio.current_task().cancelling() == 0  # only the run was stopped, the caller was not cancelled


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_tool_that_takes_too_long_is_interrupted_and_has_a_result(kind):
    @tool(name="wait")
    async def wait_async() -> str:
        """Wait."""
        await asyncio.sleep(60)
        return "late"

    @tool(name="wait")
    def wait_sync() -> str:
        """Wait."""
        time.sleep(3)
        return "late"

    agent = scripted_agent([[call("wait"), call("wait")], "done"], tools=[wait_async if kind == "async" else wait_sync])
    result = await agent.arun("go", ctx=limited())
    assert stopped_by_time(result)
    assert [message.content for message in result.messages if message.role == "tool"] == [
        "Cancelled: the call did not finish."
    ] * 2


@pytest.mark.parametrize("point", [ON_RUN_START, BEFORE_LLM])
async def test_a_hook_that_waits_too_long_is_interrupted(point):
    @hook(point)
    async def waits(ctx, payload):
        await asyncio.sleep(60)

    result = await scripted_agent(["late"], hooks=[waits]).arun("go", ctx=limited())
    assert stopped_by_time(result)


async def test_a_stream_that_continues_for_ever_is_interrupted_and_counted():
    class Endless(ScriptedModel):
        async def stream(self, request):
            while True:
                yield "word "
                await asyncio.sleep(0.01)

    run = Agent("a", llm=Endless()).start("go", ctx=limited())
    result = await run.result()
    assert stopped_by_time(result)
    assert result.usage.output_tokens > 0


def test_the_limit_holds_for_a_run_in_the_background_and_for_one_inside_another():
    inner = Agent("inner", llm=slow_model())

    @tool
    async def ask(ctx) -> str:
        """Ask another agent."""
        return (await inner.arun("go", ctx=ctx)).status

    result = scripted_agent([call("ask"), "done"], tools=[ask]).run("go", ctx=limited())
    assert stopped_by_time(result)


async def test_keep_going_does_not_remove_the_limit_and_a_fast_run_does_not_reach_it():
    @hook(ON_STOP)
    def go_on(ctx, stopping):
        return HookResult.keep_going("more")

    assert stopped_by_time(await Agent("a", llm=slow_model("more"), hooks=[go_on]).arun("go", ctx=limited()))
    quick = await scripted_agent(["done"]).arun("go", ctx=AgentContext(budget=Budget(Limits(seconds=30))))
    assert quick.status == "completed"


async def test_another_limit_that_is_reached_already_does_not_keep_the_time_limit_from_holding():
    @hook(AFTER_LLM)
    async def waits(ctx, reply):
        await asyncio.sleep(60)

    result = await scripted_agent(["some words"], hooks=[waits]).arun("go", ctx=limited(tokens=1))
    assert stopped_by_time(result)
