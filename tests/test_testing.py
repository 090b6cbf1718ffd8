"""The testing kit for users' own hooks, and the fixtures pytest offers."""

import asyncio
from datetime import UTC, datetime

import pytest

import hookline.testing as kit
from hookline import (
    AFTER_TOOL,
    BEFORE_TOOL,
    ON_RUN_START,
    AgentContext,
    HookError,
    HookRegistry,
    HookResult,
    Message,
    RegistrationError,
    RunFailedError,
    ScriptedModel,
    ToolCallRequest,
    call,
    guard,
    hook,
    observer,
    reply,
    tool,
)
from hookline.events import HookExecuted, RunFinished, RunStarted
from hookline.payloads import RunStart
from hookline.points import POINTS
from tests.cases import each_case

pytest_plugins = ("pytester",)


@guard(BEFORE_TOOL)
def no_secrets(ctx, request):
    if "secret" in str(request.arguments):
        return HookResult.block("secrets stay here")
    return None


@tool
def read(path: str) -> str:
    """Read."""
    return f"contents of {path}"


# sample


@each_case("point", POINTS.values())
def test_a_sample_can_be_made_for_every_point(point):
    made = kit.sample(point)
    assert type(made) is point.payload
    assert made == kit.sample(str(point))


def test_a_sample_takes_fields_and_is_empty_otherwise():
    made = kit.sample("BeforeToolUse", name="read", arguments={"a": [1]})
    assert made == ToolCallRequest("", "read", {"a": [1]})
    assert kit.sample("before_llm", messages=[{"role": "user", "content": "hi"}]).messages == (Message("user", "hi"),)


@pytest.mark.parametrize("fields", [{"nmae": "x"}, {"name": 3}, {"arguments": [1]}])
def test_a_sample_with_fields_that_are_invalid_raises(fields):
    with pytest.raises(TypeError):
        kit.sample(BEFORE_TOOL, **fields)


# fire_hook


def test_one_hook_is_fired_at_one_point(fire_hook):
    assert fire_hook(no_secrets, BEFORE_TOOL, name="read", arguments={"path": "secret"}).action == "block"
    verdict = fire_hook(no_secrets, BEFORE_TOOL, ToolCallRequest("1", "read", {"path": "a"}))
    assert (verdict.action, verdict.payload.id) == ("cont", "1")


def test_a_plain_function_is_registered_at_the_point(fire_hook):
    verdict = fire_hook(lambda ctx, start: start.replace(task=start.task.upper()), ON_RUN_START, task="hi")
    assert verdict.payload.task == "HI"


async def test_in_an_async_test_it_says_which_function_to_use():
    with pytest.raises(RuntimeError, match="use await hookline.testing.afire_hook"):
        kit.fire_hook(no_secrets, BEFORE_TOOL)


def test_a_fake_clock_stands_still_until_it_is_advanced():
    clock = kit.FakeClock(datetime(2026, 11, 14, 3, tzinfo=UTC))
    assert (clock.time(), clock.monotonic()) == (1_794_625_200.0, 0.0) == (clock.time(), clock.monotonic())
    clock.advance(90)
    assert (clock.time(), clock.monotonic()) == (1_794_625_290.0, 90.0)
    with pytest.raises(ValueError, match="cannot go back"):
        clock.advance(-1)
    assert kit.FakeClock(5).time() == 5.0


def test_runs_and_hooks_read_the_fake_clock():
    clock, seen = kit.FakeClock(), []

    @tool
    def wait() -> str:
        """Wait."""
        clock.advance(2.5)
        return "waited"

    look = observer(AFTER_TOOL)(lambda ctx, result: seen.append((ctx.clock.monotonic(), result.duration)))
    agent = kit.scripted_agent([call("wait"), "x"], tools=[wait], hooks=[look])
    assert agent.run("x", ctx=AgentContext(clock=clock)).elapsed == 2.5
    assert seen == [(2.5, 2.5)]


async def test_one_hook_is_fired_from_async_tests_too():
    ctx = AgentContext()

    @hook(ON_RUN_START)
    async def note(ctx, start):
        return HookResult.cont(state=ctx.state.with_metadata(task=start.task))

    await kit.afire_hook(note, ON_RUN_START, RunStart("hi"), ctx=ctx)
    assert ctx.state.metadata == {"task": "hi"}


def test_a_failing_hook_fails_the_fire(fire_hook):
    @hook(ON_RUN_START)
    def broken(ctx, start):
        raise ValueError("oh no")

    with pytest.raises(HookError, match="oh no"):
        fire_hook(broken, ON_RUN_START)


def test_firing_a_hook_where_it_is_not_registered_raises(fire_hook):
    with pytest.raises(RegistrationError, match="after_tool"):
        fire_hook(no_secrets, AFTER_TOOL)


@pytest.mark.parametrize("fields", [{"name": "sheel"}, {}], ids=["a misspelt tool", "no tool"])
def test_firing_a_hook_with_a_tool_that_it_does_not_select_raises(fire_hook, fields):
    @guard(BEFORE_TOOL, tools=("shell", "run_*"))
    def never(ctx, request):
        return HookResult.block("Never.")

    with pytest.raises(RegistrationError) as refused:
        fire_hook(never, BEFORE_TOOL, **fields)
    assert str(refused.value) == (
        f"hook 'never' has tools=shell, run_*, which does not select {fields.get('name', '')!r}, so nothing would be "
        "tested"
    )
    assert fire_hook(never, BEFORE_TOOL, name="run_it").action == "block"
    with pytest.raises(RegistrationError, match="nothing would be tested"):
        fire_hook(never, BEFORE_TOOL, ToolCallRequest("1", "read"))


# Agents and events


def test_a_scripted_agent_plays_its_turns(scripted_agent):
    agent = scripted_agent([call("read", path="a"), reply("done")], tools=[read], instructions="be kind")
    result = agent.run("go")
    assert result.reply == "done"
    assert isinstance(agent.model, ScriptedModel)
    assert agent.model.requests[0].messages[0] == Message("system", "be kind")
    assert agent.model.requests[1].messages[-1].content == "contents of a"


def test_testing_exports_its_all():
    for name in kit.__all__:
        assert getattr(kit, name) is not None
    assert kit.ScriptedModel is ScriptedModel


@pytest.mark.parametrize("every_call", [False, True])
async def test_an_event_log_keeps_the_events(scripted_agent, every_call):
    log = kit.EventLog(every_call=every_call)
    agent = scripted_agent([call("read", path="a"), "done"], tools=[read], hooks=[no_secrets], sinks=[log])
    await agent.arun("go")
    assert isinstance(log[0], RunStarted)
    assert len(log.of(RunFinished)) == 1
    assert [e.hook for e in log.of(HookExecuted)] == (["no_secrets"] if every_call else [])


# Faults


@pytest.mark.parametrize("fault", ["raise", "nonsense"])
@pytest.mark.parametrize("on_failure", ["closed", "open", "block"])
async def test_an_injected_fault_follows_the_hooks_failure_policy(fault, on_failure):
    registry = HookRegistry()
    registry.register(no_secrets, on_failure=on_failure)
    with kit.inject_fault(registry, "no_secrets", fault) as calls:
        fire = registry.fire(BEFORE_TOOL, kit.sample(BEFORE_TOOL))
        if on_failure == "closed":
            with pytest.raises(HookError, match="no_secrets"):
                await fire
        else:
            assert (await fire).action == {"open": "cont", "block": "block"}[on_failure]
    assert calls == ["before_tool"]
    assert registry.at(BEFORE_TOOL) == [no_secrets]
    assert (await registry.fire(BEFORE_TOOL, kit.sample(BEFORE_TOOL))).action == "cont"


async def test_a_hook_made_to_hang_runs_into_its_timeout():
    registry = HookRegistry()
    registry.register(no_secrets, timeout=0.02)
    with kit.inject_fault(registry, "no_secrets", "hang"), pytest.raises(HookError, match="still running after 0.02 s"):
        await registry.fire(BEFORE_TOOL, kit.sample(BEFORE_TOOL))


async def test_a_hook_made_to_hang_hangs_as_long_as_asked():
    registry = HookRegistry([no_secrets])
    with kit.inject_fault(registry, "no_secrets", "hang", seconds=0.01):
        assert (await registry.fire(BEFORE_TOOL, kit.sample(BEFORE_TOOL))).action == "cont"


async def test_a_fault_keeps_order_phase_tools_and_identity():
    registry = HookRegistry()
    registry.register(no_secrets, tools="read*", priority=4, plugin="p")
    registry.on(BEFORE_TOOL, lambda ctx, request: None, phase="guard", priority=2)
    before = [(e.hook, e.phase, e.priority, e.plugin, e.tools) for e in registry.stack.entries(BEFORE_TOOL)]
    with kit.inject_fault(registry, "no_secrets", "raise") as calls:
        assert [(e.hook, e.phase, e.priority, e.plugin, e.tools) for e in registry.stack.entries(BEFORE_TOOL)] == before
        await registry.fire(BEFORE_TOOL, kit.sample(BEFORE_TOOL, name="write"))
        await registry.fire(BEFORE_TOOL, kit.sample(BEFORE_TOOL, name="reader"), allowed_plugins=[])
    assert calls == []


async def test_a_fault_works_at_every_point_of_a_hook_and_in_observers():
    @observer(ON_RUN_START, BEFORE_TOOL)
    def watch(point, ctx, payload, verdict): ...

    registry = HookRegistry([watch])
    with kit.inject_fault(registry, "watch", "raise") as calls:
        await registry.fire(ON_RUN_START, kit.sample(ON_RUN_START))
        verdict = await registry.fire(BEFORE_TOOL, kit.sample(BEFORE_TOOL))
    assert calls == ["on_run_start", "before_tool"]
    assert len(verdict.failures) == 1


def test_what_is_registered_while_a_fault_is_on_stays():
    registry = HookRegistry([no_secrets])
    with kit.inject_fault(registry, "no_secrets", "raise"):
        registry.on(AFTER_TOOL, lambda ctx, result: None, name="later")
    assert [e.name for e in registry.stack.entries(AFTER_TOOL)] == ["later"]


def test_a_fault_in_a_hook_that_does_not_exist_is_rejected():
    with (
        pytest.raises(RegistrationError, match=r"there is no hook named 'no_secret'\. Did you mean 'no_secrets'\?"),
        kit.inject_fault(HookRegistry([no_secrets]), "no_secret", "raise"),
    ):
        pass


def test_a_fault_that_does_not_exist_is_rejected():
    with (
        pytest.raises((RegistrationError, ValueError), match="explode"),
        kit.inject_fault(HookRegistry([no_secrets]), "no_secrets", "explode"),
    ):
        pass


async def test_a_fault_in_an_agents_guard_keeps_the_tool_from_running(scripted_agent, inject_fault):
    ran = []

    def act() -> str:
        ran.append("act")
        return "ok"

    agent = scripted_agent([call("act"), "done"] * 2, tools=[act], hooks=[no_secrets])
    calls = inject_fault(agent, "no_secrets", "raise")
    with pytest.raises(RunFailedError, match="no_secrets"):
        await agent.arun("go")
    assert calls == ["before_tool"]
    assert ran == []


async def test_concurrent_fires_count_every_call_of_a_faulty_hook():
    registry = HookRegistry([no_secrets])
    with kit.inject_fault(registry, "no_secrets", "raise") as calls:
        fires = (registry.fire(BEFORE_TOOL, kit.sample(BEFORE_TOOL)) for _ in range(5))
        results = await asyncio.gather(*fires, return_exceptions=True)
    assert [type(r) for r in results] == [HookError] * 5
    assert len(calls) == 5


# The pytest plugin


@pytest.mark.slow
def test_the_fixtures_are_there_in_any_project(pytester):
    pytester.makepyfile(
        """
        from hookline import BEFORE_TOOL, HookRegistry, HookResult, guard

        @guard(BEFORE_TOOL)
        def block(ctx, request):
            return HookResult.block("no")

        REGISTRY = HookRegistry([block])

        def test_agent(scripted_agent):
            assert scripted_agent(["hi"]).run("hello").reply == "hi"

        def test_fire(fire_hook):
            assert fire_hook(block, BEFORE_TOOL).action == "block"

        def test_fault(inject_fault, fire_hook):
            inject_fault(REGISTRY, "block", "raise")
            assert REGISTRY.stack.entries(BEFORE_TOOL)[0].call is not block.fn

        def test_fault_is_gone():
            assert REGISTRY.stack.entries(BEFORE_TOOL)[0].call is block.fn
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider", "-W", "ignore").assert_outcomes(passed=4)


@pytest.mark.slow
def test_the_pytest_plugin_imports_no_heavy_library(pytester):
    pytester.makepyfile(
        """
        import sys

        def test_nothing():
            assert "hookline.pytest_plugin" in sys.modules
            assert not {"pydantic", "docstring_parser", "openai", "anthropic"} & set(sys.modules)
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider", "-W", "ignore").assert_outcomes(passed=1)
