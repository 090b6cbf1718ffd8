"""The event loops of runs that are started where no loop is running (DESIGN 6.6)."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from hookline import BEFORE_STEP, call, observer, reply, tool
from hookline._run.run import background_loop, needs_own_loop, own_loop
from hookline.stores import RunStore
from hookline.tape import TapeHook, replay, replay_all
from hookline.teams import Team
from hookline.testing import scripted_agent


def test_runs_outside_a_loop_share_one_and_a_blocking_run_inside_a_loop_has_its_own():
    loops, threads = [], []

    @observer(BEFORE_STEP)
    async def watch(ctx, step):
        loops.append(asyncio.get_running_loop())
        threads.append(threading.current_thread().name)

    agent = scripted_agent([reply("x")] * 3, hooks=[watch])
    agent.run("x")
    agent.start("x").wait(20)

    async def inside():
        with pytest.warns(RuntimeWarning, match="blocks the event loop"):
            agent.run("x")

    asyncio.run(inside())
    assert loops[0] is loops[1] is background_loop()
    assert loops[2] is not loops[0]
    assert loops[2].is_closed()
    assert threads == ["hookline-loop", "hookline-loop", "hookline-run"]


def test_own_loop_closes_the_loop_and_its_thread_in_any_case():
    with pytest.raises(ValueError, match="no"), own_loop() as aio:
        assert aio.is_running()
        raise ValueError("no")
    assert aio.is_closed()
    assert not [thread for thread in threading.enumerate() if thread.name == "hookline-run" and thread.is_alive()]


def test_a_detached_run_outlives_a_blocking_run_inside_a_loop():
    """It is in the event loop of that run, which goes on until it ends."""
    left, go_on = [], threading.Event()

    @tool
    async def work():
        """Work for a while."""
        await asyncio.to_thread(go_on.wait, 20)
        return "did it"

    helper = scripted_agent([call("work"), reply("done")], tools=[work])

    @observer(BEFORE_STEP)
    async def leave(ctx, step):
        left.append(helper.start("x", ctx=ctx.detached()))

    leave.inherit = False

    async def inside():
        with pytest.warns(RuntimeWarning, match="blocks the event loop"):
            scripted_agent([reply("x")], hooks=[leave]).run("x")

    asyncio.run(inside())
    go_on.set()
    assert left[0].wait(20).reply == "done"


async def test_only_code_inside_a_loop_needs_its_own_loop():
    assert needs_own_loop()
    assert not await asyncio.to_thread(needs_own_loop)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "door", [lambda agent: agent.run("x"), lambda agent: agent.start("x").wait()], ids=["run", "start"]
)
def test_a_sync_hook_may_wait_for_a_thread_that_runs_an_agent(door):
    """The hook blocks the shared loop meanwhile, so the run in the thread has another one."""

    @observer(BEFORE_STEP)
    def review(ctx, step):
        with ThreadPoolExecutor(1) as pool:
            reviews.append(pool.submit(lambda: door(scripted_agent([reply("fine")])).reply).result())

    reviews = []
    assert scripted_agent([reply("done")], hooks=[review]).run("x").reply == "done"
    assert reviews == ["fine"]


def test_a_sync_tool_of_a_nested_run_needs_its_own_loop():
    seen = []

    @tool
    def look() -> str:
        """Look."""
        seen.append(needs_own_loop())
        return "x"

    agent = scripted_agent([call("look"), reply("x")] * 2, tools=[look])

    async def inside():
        with pytest.warns(RuntimeWarning, match="blocks the event loop"):
            return agent.run("x")

    asyncio.run(inside())
    agent.run("x")
    assert seen == [True, False]


def blocking_doors(folder):
    """Return the calls that block until a run has ended, each with the call that does not."""
    agent = scripted_agent([reply("x")] * 9, hooks=[TapeHook(folder)])
    agent.run("x")
    (tape,) = folder.glob("**/*.tape")
    store = RunStore(":memory:")
    waiting = agent.start("x")
    return {
        "run": (lambda: agent.run("x"), "await agent.arun"),
        "durable": (lambda: agent.run("x", durable=store, run_id="r"), "await agent.arun"),
        "team": (lambda: Team([agent]).run("x"), "await Team.arun"),
        "wait": (lambda: waiting.wait(20), "await run.result"),
        "replay": (lambda: replay(tape), "await areplay"),
        "replay_all": (lambda: list(replay_all(tape)), "await areplay"),
    }


def test_a_call_that_blocks_a_running_event_loop_warns_where_it_is_written(tmp_path):
    doors = blocking_doors(tmp_path)

    async def inside():
        for door, instead in doors.values():
            with pytest.warns(RuntimeWarning, match=f"blocks the event loop .*'{instead}") as found:
                door()
            assert [warning.filename for warning in found] == [__file__]

    asyncio.run(inside())


def test_a_blocking_call_in_a_thread_without_a_loop_does_not_warn(tmp_path):
    doors = blocking_doors(tmp_path)  # warnings are errors in tests

    async def inside():
        for door, _ in doors.values():
            await asyncio.to_thread(door)

    asyncio.run(inside())


def test_a_nested_blocking_run_warns_in_a_sync_hook_and_not_in_a_sync_tool():
    inner, warned = scripted_agent([reply("x")] * 4), []

    @tool
    def ask() -> str:
        """Ask."""
        return inner.run("x").reply

    @observer(BEFORE_STEP)
    def in_the_loop(ctx, step):
        if ctx.depth:
            return  # the nested run of the tool inherits this hook
        with pytest.warns(RuntimeWarning, match="await agent.arun") as found:
            inner.run("x")
        warned.append(len(found))

    result = scripted_agent([call("ask"), reply("x")], tools=[ask], hooks=[in_the_loop]).run("x")
    assert result.status == "completed"
    assert result.steps[0].outcomes == ("ok",)
    assert warned == [1, 1]
