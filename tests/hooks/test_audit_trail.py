"""AuditTrailHook: a list of tool calls in memory."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from hookline import (
    AFTER_TOOL,
    BEFORE_TOOL,
    AgentContext,
    HookRegistry,
    HookResult,
    RegistrationError,
    call,
    guard,
    hook,
    reply,
    tool,
)
from hookline.hooks import AuditTrailHook
from hookline.testing import FakeClock, fire_hook, scripted_agent


def agent_of(turns, *hooks, clock=None):
    @tool
    def work(n: int = 0) -> str:
        """Work."""
        if clock is not None:
            clock.advance(2.5)
        if n < 0:
            raise OSError("no")
        return f"worked {n}"

    return scripted_agent(turns, tools=[work], hooks=hooks)


async def test_every_call_is_recorded_with_its_outcome():
    trail, clock = AuditTrailHook(), FakeClock(1_700_000_000.25)
    blocker = guard(BEFORE_TOOL)(lambda ctx, p: HookResult.block("no") if p.arguments["n"] == 1 else None)
    turns = [[call("work"), call("work", n=1)], call("work", n=-1), call("nothing"), reply("x")]
    result = await agent_of(turns, trail, blocker, clock=clock).arun("x", ctx=AgentContext(clock=clock))
    assert [(e["tool"], e["outcome"], e["blocked"], e["duration"]) for e in trail.log] == [
        ("work", "ok", False, 2.5),
        ("work", "blocked", True, 0.0),
        ("work", "error", False, 2.5),
        ("nothing", "error", False, 0.0),
    ]
    first, second = "2023-11-14T22:13:22.750000+00:00", "2023-11-14T22:13:25.250000+00:00"
    assert [e["timestamp"] for e in trail.log] == [first, first, second, second]
    assert {e["run_id"] for e in trail.log} == {result.ids.run_id}
    assert [e["call_id"] for e in trail.log] == [m.call_id for m in result.messages if m.role == "tool"]


async def test_each_attempt_is_an_entry():
    trail = AuditTrailHook()
    again = hook(AFTER_TOOL)(lambda ctx, p: HookResult.retry() if p.attempt == 1 else None)
    await agent_of([call("work"), reply("x")], trail, again).arun("x")
    assert [e["attempt"] for e in trail.log] == [1, 2]


async def test_the_log_is_a_copy():
    trail = AuditTrailHook()
    await agent_of([call("work"), reply("x")], trail).arun("x")
    trail.log.clear()
    trail.get_log()[0]["tool"] = "forged"
    assert [e["tool"] for e in trail.get_log()] == ["work"]
    assert trail.log == trail.get_log()


async def test_the_oldest_entries_are_dropped_beyond_the_maximum():
    trail = AuditTrailHook(max_entries=2)
    result = await agent_of([[call("work", n=i) for i in range(4)], reply("x")], trail).arun("x")
    ids = [m.call_id for m in result.messages if m.role == "tool"]
    assert [e["call_id"] for e in trail.log] == ids[2:]


async def test_concurrent_runs_write_to_one_list():
    trail = AuditTrailHook()
    results = await asyncio.gather(*(agent_of([call("work"), reply("x")], trail).arun("x") for _ in range(5)))
    assert sorted(e["run_id"] for e in trail.log) == sorted(r.ids.run_id for r in results)


def test_threads_lose_no_entries():
    trail = AuditTrailHook()

    def write(number):
        for i in range(20):
            fire_hook(trail, AFTER_TOOL, id=f"{number}.{i}", name="work")
            assert trail.log

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert len({e["call_id"] for e in trail.log}) == 80


def test_it_only_observes():
    ((entry,),) = HookRegistry([AuditTrailHook()]).stack.layers
    assert (str(entry.point), entry.phase, entry.on_failure) == ("after_tool", "observe", "open")


@pytest.mark.parametrize("maximum", [0, -1, 1.5, True, None, "9"])
def test_invalid_arguments_are_rejected(maximum):
    with pytest.raises(RegistrationError, match="max_entries must be a whole number, 1 or more"):
        AuditTrailHook(maximum)
