"""Detached runs: the hooks of the outer run, on its tape and in its journal, but not its end (DESIGN 6.6)."""

import asyncio

import pytest

from hookline import Agent, AgentContext, HookResult, ScriptedModel, call, guard, observer, tool
from hookline.stores import RunStore
from hookline.tape import Tape, TapeHook, areplay

STARTED_BY = ["tool", "hook"]


@guard("before_tool", tools="wipe")
def no_wiping(ctx, payload):
    return HookResult.block("never")


class Scene:
    """An outer run, and a detached one that a tool or a hook of it starts and that pauses until ``go_on`` is set.

    Args:
        started_by: ``tool`` or ``hook``.
        hooks: more hooks of the outer agent.
    """

    def __init__(self, started_by, *hooks):
        self.pausing, self.go_on = asyncio.Event(), asyncio.Event()
        self.runs, self.contexts, self.wiped = [], [], []

        @tool
        async def pause() -> str:
            """Pause."""
            self.pausing.set()
            await self.go_on.wait()
            return "paused"

        @tool
        def wipe() -> str:
            """Wipe."""
            self.wiped.append("wiped")
            return "wiped"

        @tool
        async def begin(ctx: AgentContext) -> str:
            """Begin the work that outlives this run."""
            if started_by == "tool":
                await self.start(ctx)
            return "begun"

        @observer("before_tool", tools="begin")
        async def starter(ctx, payload):
            if started_by == "hook":
                await self.start(ctx)

        script = [call("pause"), call("wipe"), "done late"]
        self.late = Agent("late", llm=ScriptedModel(script * 3), tools=[pause, wipe])
        outer = ScriptedModel([call("begin"), "done"])
        self.agent = Agent("outer", llm=outer, tools=[begin], hooks=[no_wiping, starter, *hooks])

    async def start(self, ctx):
        self.contexts.append(ctx.detached())
        self.runs.append(self.late.start("go", ctx=self.contexts[-1]))
        if len(self.runs) == 1:
            await self.pausing.wait()

    async def finish(self):
        """Let the detached run go on, and check that it completes under the guards of the outer run."""
        assert not self.runs[0].done
        self.go_on.set()
        result = await self.runs[0].result()
        assert (result.status, result.reply) == ("completed", "done late")
        assert (result.steps[1].outcomes, self.wiped) == (("blocked",), [])


@pytest.mark.parametrize("started_by", STARTED_BY)
async def test_a_detached_run_outlives_its_outer_run(started_by):
    scene = Scene(started_by)
    assert (await scene.agent.arun("x")).status == "completed"
    await scene.finish()


@pytest.mark.parametrize("started_by", STARTED_BY)
async def test_a_detached_run_is_not_cancelled_with_its_outer_run(started_by):
    scene = Scene(started_by)

    @observer("after_tool", tools="begin")
    async def hang(ctx, payload):
        run.cancel("enough")
        await asyncio.Event().wait()

    run = scene.agent.start("x", hooks=[hang])
    assert (await run.result()).status == "cancelled"
    await scene.finish()


async def test_a_detached_run_is_cancelled_by_the_interrupt_of_its_context():
    scene = Scene("tool")
    await scene.agent.arun("x")
    scene.contexts[0].interrupt.cancel("enough")
    assert (await scene.runs[0].result()).status == "cancelled"


@pytest.mark.parametrize("started_by", STARTED_BY)
async def test_a_detached_run_outlives_a_durable_run(tmp_path, started_by):
    scene, store = Scene(started_by), RunStore(tmp_path / "runs.db")
    result = await scene.agent.arun("x", durable=store, run_id="outer")
    assert result.status == "completed"
    await scene.finish()
    again = await scene.agent.arun("x", durable=store, run_id="outer")
    assert (again.status, len(scene.runs)) == ("completed", 1)
    late = await scene.late.arun("later", ctx=scene.contexts[0], durable=store, run_id="late")
    assert late.status == "completed"


@pytest.mark.parametrize("started_by", STARTED_BY)
@pytest.mark.parametrize("target", ["run.tape", "tapes"])
async def test_the_tape_of_a_run_with_a_detached_run_replays_the_same_and_calls_no_model(tmp_path, started_by, target):
    scene = Scene(started_by, TapeHook(tmp_path / target))
    result = await scene.agent.arun("x")
    await scene.finish()
    await scene.late.arun("after the end", ctx=scene.contexts[0])  # must not replace the tape of the outer run
    path = tmp_path / target / f"{result.ids.run_id}.tape" if target == "tapes" else tmp_path / target
    assert Tape.load(path).run.ids == result.ids
    requests = len(scene.late.model.requests)
    again = await areplay(path, scene.agent)
    assert (again.same, again.first_difference, again.stop_reason) == (True, "", "")
    for run in scene.runs[1:]:  # the hook started one in the replay too
        assert (await run.result()).status == "cancelled"
    assert len(scene.late.model.requests) == requests


@pytest.mark.parametrize("started_by", STARTED_BY)
async def test_a_durable_run_is_continued_although_a_detached_run_spent_tokens_beside_it(
    tmp_path, monkeypatch, started_by
):
    monkeypatch.setattr("hookline._run.waiters.STALL_SECONDS", 20.0)
    store, late_runs, crashing = RunStore(tmp_path / "runs.db"), [], True
    in_second_tool = asyncio.Event()

    @tool
    async def begin(ctx: AgentContext) -> str:
        """Begin the work that outlives this run."""
        if started_by == "tool":
            late_runs.append(late.start("go", ctx=ctx.detached()))
        return "begun"

    @observer("before_tool", tools="begin")
    async def starter(ctx, payload):
        if started_by == "hook":
            late_runs.append(late.start("go", ctx=ctx.detached()))

    @tool
    async def second() -> str:
        """Hang in the first process."""
        in_second_tool.set()
        if crashing:
            await asyncio.Event().wait()
        return "second"

    @tool
    async def wait() -> str:
        """Wait until the outer run is in its second tool."""
        await in_second_tool.wait()
        return "waited"

    def late_turn(request):
        return "late" if request.messages[-1].role == "tool" else call("wait")

    def turn(request):
        return (call("begin"), call("second"), "done")[sum(m.role == "tool" for m in request.messages)]

    late = Agent("late", llm=ScriptedModel([late_turn], loop=True), tools=[wait])
    agent = Agent("outer", llm=ScriptedModel([turn], loop=True), tools=[begin, second], hooks=[starter])
    task = asyncio.create_task(agent.arun("x", durable=store, run_id="outer"))
    await in_second_tool.wait()
    await late_runs[0].result()
    task.cancel()  # the run is suspended in the middle of a tool
    with pytest.raises(asyncio.CancelledError):
        await task
    crashing = False
    assert (await agent.arun("x", durable=store, run_id="outer")).status == "completed"
