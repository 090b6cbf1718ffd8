"""The handle on a run that is going on, and the loop it runs in (DESIGN 6.6)."""

import asyncio
import contextvars
import threading

import pytest

from hookline import BEFORE_STEP, ON_RUN_END, ON_RUN_START, AgentContext, RunFailed, call, hook, observer, reply, tool
from hookline._kernel.scope import CURRENT
from hookline._run.course import Course
from hookline._run.handle import background_loop, must_nest, own_loop
from hookline.events import RunFinished, RunStarted
from hookline.testing import EventLog, scripted_agent

WHO = contextvars.ContextVar("who", default="nobody")


@tool
async def wait() -> str:
    """Wait long."""
    await asyncio.sleep(30)
    return "never"


def test_a_handle_knows_the_ids_of_its_run_and_whether_it_is_over(caplog):
    gate = threading.Event()

    @hook(ON_RUN_START, timeout=20)
    def hold(ctx, start):
        gate.wait(10)

    run = scripted_agent([reply("x")], hooks=[hold]).start("go", task_id="t")
    assert not run.done
    gate.set()
    result = run.wait(20)
    assert run.done
    assert (run.id, run.ids) == (result.ids.run_id, result.ids)
    assert run.ids.task_id == "t"
    assert run.steer("late") is False
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize("way", ["start", "run", "nested"])
def test_a_run_sees_the_context_variables_of_its_caller(way):
    seen = []

    @observer(BEFORE_STEP)
    async def watch(ctx, step):
        seen.append((WHO.get(), CURRENT.get() is ctx))

    agent = scripted_agent([reply("x")], hooks=[watch])
    token = WHO.set("ann")
    try:
        if way == "start":
            agent.start("x").wait(20)
        elif way == "run":
            agent.run("x")
        else:

            async def inside():
                return agent.run("x")

            asyncio.run(inside())
    finally:
        WHO.reset(token)
    assert seen == [("ann", True)]


async def test_what_is_current_is_so_during_the_run_only():
    before = CURRENT.get(None)
    await scripted_agent([reply("x")]).arun("x")
    assert CURRENT.get(None) is before


async def test_a_wait_that_is_interrupted_cancels_the_run_and_waits_for_its_end(monkeypatch):
    run = scripted_agent([call("wait")], tools=[wait]).start("x")
    real = run._future

    class Interrupted:
        def result(self, timeout=None):
            raise KeyboardInterrupt

    def started(times=iter([Interrupted()])):
        return next(times, real)

    monkeypatch.setattr(run, "_started", started)
    with pytest.raises(KeyboardInterrupt):
        await asyncio.to_thread(run.wait)
    assert real.done()
    assert real.result().stop.message == "interrupted"


async def test_a_settled_run_may_have_failed_and_its_result_says_so():
    run = scripted_agent([OSError("offline")]).start("x")
    await run.settled()
    assert run.done
    with pytest.raises(RunFailed, match="offline") as failed:
        await run.result()
    assert isinstance(failed.value.__cause__.__cause__, OSError)
    with pytest.raises(RunFailed, match="offline"):
        await asyncio.to_thread(run.wait)


async def test_a_run_that_is_cancelled_without_a_reason_says_cancelled():
    run = scripted_agent([call("wait")], tools=[wait]).start("x")
    run.cancel()
    assert (await run.result()).stop.message == "cancelled"


async def test_events_may_be_read_from_a_number_on_and_stop_at_the_end():
    run = scripted_agent([reply("x")]).start("x")
    events = [event async for event in run.events()]
    assert isinstance(events[0], RunStarted)
    assert isinstance(events[-1], RunFinished)
    assert [event async for event in run.events(after=len(events) - 1)] == events[-1:]


def test_all_runs_outside_a_loop_share_one_and_a_blocking_run_inside_one_has_its_own():
    loops, threads = [], []

    @observer(BEFORE_STEP)
    async def watch(ctx, step):
        loops.append(asyncio.get_running_loop())
        threads.append(threading.current_thread().name)

    agent = scripted_agent([reply("x")] * 3, hooks=[watch])
    agent.run("x")
    agent.start("x").wait(20)

    async def inside():
        agent.run("x")

    asyncio.run(inside())
    assert loops[0] is loops[1] is background_loop()
    assert loops[2] is not loops[0]
    assert loops[2].is_closed()
    assert threads == ["hookline-loop", "hookline-loop", "hookline-run"]


def test_a_loop_of_ones_own_is_closed_and_its_thread_gone_whatever_happens():
    with pytest.raises(ValueError, match="no"), own_loop() as aio:
        assert aio.is_running()
        raise ValueError("no")
    assert aio.is_closed()
    assert not [thread for thread in threading.enumerate() if thread.name == "hookline-run" and thread.is_alive()]


async def test_only_code_inside_a_loop_must_nest():
    assert must_nest()
    assert not await asyncio.to_thread(must_nest)


def test_a_sync_tool_of_a_nested_run_nests_too():
    seen = []

    @tool
    def look() -> str:
        """Look."""
        seen.append(must_nest())
        return "x"

    agent = scripted_agent([call("look"), reply("x")] * 2, tools=[look])

    async def inside():
        return agent.run("x")

    asyncio.run(inside())
    agent.run("x")
    assert seen == [True, False]


async def test_when_a_run_is_over_what_it_left_behind_is_told_and_its_context_is_empty():
    kept, reasons = [], []

    @observer(ON_RUN_END)
    def keep(ctx, result):
        kept.append(ctx)
        ctx.interrupt.subscribe(reasons.append)

    outer = AgentContext()
    result = await scripted_agent([reply("x")], hooks=[keep]).arun("x", ctx=outer)
    assert result.status == "completed"
    (ctx,) = kept
    assert reasons == ["the run is over"]
    assert ctx.llm is None
    assert not outer.interrupt.cancelled
    assert outer.interrupt._watchers == ()


async def test_a_reader_of_a_run_that_failed_to_begin_is_not_left_waiting():
    log = EventLog()

    @hook(ON_RUN_START)
    def fail(ctx, start):
        raise ValueError("no")

    run = scripted_agent([reply("x")], hooks=[fail], sinks=[log]).start("x")
    events = [event async for event in run.events()]
    assert isinstance(events[-1], RunFinished)
    assert events[-1].result.status == "failed"
    assert list(log) == events
    await run.settled()


async def test_a_cancellation_from_another_thread_is_delivered_in_the_runs_own(monkeypatch):
    threads = []
    real = Course.cancel

    def cancel(self):
        threads.append(threading.get_ident())
        real(self)

    monkeypatch.setattr(Course, "cancel", cancel)
    ctx = AgentContext()

    @tool
    async def leave(ctx) -> str:
        """Cancel from elsewhere."""
        await asyncio.to_thread(outer.interrupt.cancel, "from a thread")
        await asyncio.sleep(30)
        return "never"

    outer = ctx
    result = await scripted_agent([call("leave")], tools=[leave]).arun("x", ctx=ctx)
    assert (result.status, result.stop.message) == ("cancelled", "from a thread")
    assert threads == [threading.get_ident()]
