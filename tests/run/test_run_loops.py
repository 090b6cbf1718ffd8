"""The event loops of runs that are started where no loop is running (DESIGN 6.6)."""

import asyncio
import threading

import pytest

from hookline import BEFORE_STEP, call, observer, reply, tool
from hookline._run.run import background_loop, needs_own_loop, own_loop
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


async def test_only_code_inside_a_loop_needs_its_own_loop():
    assert needs_own_loop()
    assert not await asyncio.to_thread(needs_own_loop)


def test_a_sync_tool_of_a_nested_run_needs_its_own_loop():
    seen = []

    @tool
    def look() -> str:
        """Look."""
        seen.append(needs_own_loop())
        return "x"

    agent = scripted_agent([call("look"), reply("x")] * 2, tools=[look])

    async def inside():
        return agent.run("x")

    asyncio.run(inside())
    agent.run("x")
    assert seen == [True, False]
