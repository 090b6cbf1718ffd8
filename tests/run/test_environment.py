"""The boundary of a run sees every call to the outside, and may answer it itself (DESIGN 6.11)."""

import asyncio
from contextlib import contextmanager

from hookline import (
    APPROVAL_REQUESTED,
    BEFORE_TOOL,
    ON_ERROR,
    HookResult,
    Message,
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
from hookline._run.boundary import Boundary
from hookline._run.environment import Environment
from hookline.testing import scripted_agent


class Noting(Boundary):
    """A boundary that records all calls and passes them on. As a hook, it installs itself in the run."""

    points = ("on_run_start",)

    def __init__(self):
        self.seen = []

    def model(self, model):
        self.seen.append(("model", model.name))
        return model

    def validate(self, tool, arguments):
        self.seen.append(("validate", tool.name, dict(arguments)))
        return tool.validate(arguments)

    async def call_tool(self, request, tool, values, ctx):
        self.seen.append(("call", request.name, tool.name, dict(values), ctx is not None))
        return await tool.call(values, ctx)

    async def approve(self, asked, ask, report):
        self.seen.append(("approve", asked.call.name))
        await report(ErrorInfo("hook", "Late", "the line is bad", "environment"))
        return await ask()

    def steered(self, run_id, text):
        self.seen.append(("steered", run_id, text))

    def __call__(self, point, ctx, payload):
        return None

    @contextmanager
    def instrument(self, engine, start):
        engine.set_boundary(self)
        yield


@tool
async def double(n: int, ctx) -> int:
    """Twice the number."""
    return 2 * n


@tool
async def plain() -> str:
    """Do nothing."""
    return "ok"


async def test_validation_and_tool_calls_pass_the_boundary():
    environment = Noting()
    agent = scripted_agent([call("double", n="4"), call("plain"), reply("done")], tools=[double, plain])
    result = await agent.arun("x", hooks=[environment])
    assert result.messages[2].content == "8"
    assert [seen for seen in environment.seen if seen[0] != "model"] == [
        ("validate", "double", {"n": "4"}),
        ("call", "double", "double", {"n": 4}, True),
        ("validate", "plain", {}),
        ("call", "plain", "plain", {}, False),
    ]


async def test_approvals_pass_the_boundary_which_may_report_a_failure():
    environment, reported = Noting(), []

    @guard(BEFORE_TOOL)
    def careful(ctx, request):
        return HookResult.ask("sure?")

    @hook(APPROVAL_REQUESTED, name="boss")
    def decide(ctx, asked):
        return HookResult.approve(by="ann") if asked.call.name == "double" else None

    @observer(ON_ERROR)
    def watch(ctx, failure):
        reported.append(failure.errors[0].message)

    agent = scripted_agent([call("double", n=4), reply("done")], tools=[double], hooks=[careful, decide, watch])
    result = await agent.arun("x", hooks=[environment])
    assert result.messages[2].content == "8"
    assert ("approve", "double") in environment.seen
    assert reported == ["the line is bad"]


async def test_the_boundary_gets_steering_messages():
    environment, gate = Noting(), asyncio.Event()

    @tool
    async def pause() -> str:
        """Wait."""
        await gate.wait()
        return "ok"

    agent = scripted_agent([call("pause"), reply("done")], tools=[pause])
    run = agent.start("x", hooks=[environment])
    while not agent.model.requests:
        await asyncio.sleep(0)
    assert run.steer("more")
    gate.set()
    result = await run.result()
    assert [seen for seen in environment.seen if seen[0] == "steered"] == [
        ("steered", result.ids.run_id, Message("user", "more"))
    ]


async def test_token_counts_of_another_model_pass_the_boundary_too():
    environment = Noting()

    @tool
    async def count(ctx) -> int:
        """Count."""
        other = ctx.llm.using(ScriptedModel(name="other"))
        return await other.count_request(ModelRequest((), (), "other"))

    await scripted_agent([call("count"), reply("done")], tools=[count]).arun("x", hooks=[environment])
    assert ("model", "other") in environment.seen


async def test_a_nested_run_has_the_same_boundary():
    environment = Noting()
    inner = scripted_agent([call("plain"), reply("done")], tools=[plain])

    @tool
    async def ask() -> str:
        """Ask another agent."""
        return (await inner.arun("y")).reply

    await scripted_agent([call("ask"), reply("done")], tools=[ask]).arun("x", hooks=[environment])
    assert ("call", "plain", "plain", {}, False) in environment.seen


async def test_a_hook_that_fails_to_instrument_a_run_is_logged_and_does_not_affect_it(caplog):
    class Broken(Noting):
        def instrument(self, engine, start):
            raise ValueError("oh no")

    result = await scripted_agent([reply("fine")], hooks=[Broken()]).arun("x")
    assert result.reply == "fine"
    assert "oh no" in caplog.text


def test_a_copy_has_the_same_sources_and_a_separate_boundary():
    environment = Environment("clock", str, boundary="b")
    copy = environment.copy()
    assert (copy.clock, copy.new_id, copy.boundary) == ("clock", str, "b")
    copy.boundary = None
    assert environment.boundary == "b"
    assert environment.random is environment.random
    assert environment.copy().random is environment.random
