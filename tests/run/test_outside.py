"""What lies outside of a run: it sees all that the run asks of the world, and may answer itself (DESIGN 6.11)."""

import asyncio

from hookline import (
    APPROVAL_REQUESTED,
    BEFORE_TOOL,
    ON_ERROR,
    AgentContext,
    HookResult,
    ModelRequest,
    ScriptedModel,
    call,
    guard,
    hook,
    observer,
    reply,
    tool,
)
from hookline._kernel.values import ErrorInfo
from hookline.testing import scripted_agent


class World:
    """Lets all pass, and notes it."""

    def __init__(self):
        self.seen = []

    def model(self, model):
        self.seen.append(("model", model.name))
        return model

    def validate(self, tool, arguments):
        self.seen.append(("validate", tool.name, dict(arguments)))
        return tool.validate(arguments)

    async def call(self, request, tool, values, ctx):
        self.seen.append(("call", request.name, tool.name, dict(values), ctx is not None))
        return await tool.call(values, ctx)

    async def approve(self, asked, ask, report):
        self.seen.append(("approve", asked.call.name))
        await report(ErrorInfo("hook", "Late", "the line is bad", "world"))
        return await ask()

    def steered(self, run_id, text):
        self.seen.append(("steered", run_id, text))


@tool
async def double(n: int, ctx) -> int:
    """Twice the number."""
    return 2 * n


@tool
async def plain() -> str:
    """A tool that asks for nothing."""
    return "ok"


def context(world):
    ctx = AgentContext()
    ctx.outside = world
    return ctx


async def test_arguments_and_calls_of_tools_go_through_it():
    world = World()
    agent = scripted_agent([call("double", n="4"), call("plain"), reply("done")], tools=[double, plain])
    result = await agent.arun("x", ctx=context(world))
    assert result.messages[2].content == "8"
    assert [seen for seen in world.seen if seen[0] != "model"] == [
        ("validate", "double", {"n": "4"}),
        ("call", "double", "double", {"n": 4}, True),
        ("validate", "plain", {}),
        ("call", "plain", "plain", {}, False),
    ]


async def test_approvals_go_through_it_and_it_may_report_a_failure():
    world, told = World(), []

    @guard(BEFORE_TOOL)
    def careful(ctx, request):
        return HookResult.ask("sure?")

    @hook(APPROVAL_REQUESTED, name="boss")
    def decide(ctx, asked):
        return HookResult.approve(by="ann") if asked.call.name == "double" else None

    @observer(ON_ERROR)
    def watch(ctx, failure):
        told.append(failure.errors[0].message)

    agent = scripted_agent([call("double", n=4), reply("done")], tools=[double], hooks=[careful, decide, watch])
    result = await agent.arun("x", ctx=context(world))
    assert result.messages[2].content == "8"
    assert ("approve", "double") in world.seen
    assert told == ["the line is bad"]


async def test_it_is_told_what_is_said_to_a_run():
    world, gate = World(), asyncio.Event()

    @tool
    async def pause() -> str:
        """Wait."""
        await gate.wait()
        return "ok"

    agent = scripted_agent([call("pause"), reply("done")], tools=[pause])
    run = agent.start("x", ctx=context(world))
    while not agent.model.requests:
        await asyncio.sleep(0)
    assert run.steer("more")
    gate.set()
    result = await run.result()
    assert [seen for seen in world.seen if seen[0] == "steered"] == [("steered", result.ids.run_id, "more")]


async def test_the_counting_of_another_model_goes_through_it_too():
    world = World()

    @tool
    async def count(ctx) -> int:
        """Count."""
        other = ctx.llm.using(ScriptedModel(name="other"))
        return await other.count_request(ModelRequest((), (), "other"))

    await scripted_agent([call("count"), reply("done")], tools=[count]).arun("x", ctx=context(world))
    assert ("model", "other") in world.seen
