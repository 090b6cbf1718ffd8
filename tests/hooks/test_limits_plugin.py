"""limits_plugin: all limits in one plugin."""

import math

import pytest

from hookline import Agent, HookRegistry, Limits, RegistrationError, ScriptedModel, call, reply, tool
from hookline.hooks import limits_plugin
from hookline.payloads import Usage


@tool
def work() -> str:
    """Work."""
    return "worked"


def agent_of(plugin, turns=(), **options):
    turns = turns or [call("work")] * 99
    return Agent("t", llm=ScriptedModel(turns), tools=[work], plugins=[plugin], **options)


def names(plugin):
    return [type(hook).__name__ for hook in plugin.hooks]


def test_the_defaults_are_20_steps_32768_tokens_and_300_seconds():
    plugin = limits_plugin()
    assert plugin.name == "limits"
    assert [(type(hook).__name__, hook.limit, hook.soft_limit) for hook in plugin.hooks] == [
        ("StepsLimitHook", 20, 0.8),
        ("TokenUsageLimitHook", 32768, 0.8),
        ("ExecutionTimeLimitHook", 300.0, 0.8),
    ]


def test_none_disables_a_limit():
    assert limits_plugin(None, None, None, finish_reasons=None).hooks == ()
    assert names(limits_plugin(max_tokens=None)) == ["StepsLimitHook", "ExecutionTimeLimitHook"]


def test_cost_calls_and_finish_reasons_are_added_if_given():
    plugin = limits_plugin(max_cost=1.5, max_tool_calls=7, finish_reasons=["stop"], soft_limit=None)
    assert names(plugin)[3:] == ["CostLimitHook", "ToolCallsLimitHook", "FinishReasonHook"]
    assert [hook.soft_limit for hook in plugin.hooks[:5]] == [None] * 5


@pytest.mark.parametrize(
    ("given", "own", "holds"),
    [
        (50, {}, 50),
        (3, {}, 3),
        (50, {"limits": Limits(steps=30)}, 30),
        (50, {"limits": Limits(steps=20)}, 20),
        (3, {"limits": Limits(steps=30)}, 3),
        (50, {"limits": Limits(steps=math.inf)}, 50),
        (None, {"limits": Limits(steps=30)}, 30),
        (None, {"limits": Limits(steps=20)}, 20),
        (None, {}, None),
        (None, {"limits": Limits(steps=math.inf)}, None),
    ],
)
@pytest.mark.parametrize("allowed", [None, []])
async def test_the_stricter_step_limit_applies_and_replaces_the_default(given, own, holds, allowed):
    plugin = limits_plugin(given, None, None)
    agent = agent_of(plugin, [call("work")] * 60 + [reply("done")], **own)
    result = await agent.arun("x", allowed_plugins=allowed)
    assert agent.limits.steps == (math.inf if holds is None else holds)
    if holds is None:
        assert (result.status, len(result.steps)) == ("completed", 61)
    else:
        assert (result.stop.kind, result.stop.message) == ("steps_limit", f"Step limit reached: {holds}/{holds}")


async def test_without_the_plugin_its_other_limits_do_not_apply():
    turns = [reply("a", usage=Usage(900, 0))]
    assert (await agent_of(limits_plugin(max_tokens=1), turns).arun("x", allowed_plugins=[])).status == "completed"


async def test_one_plugin_serves_several_agents():
    plugin = limits_plugin(4)
    first, second = agent_of(plugin), agent_of(plugin, limits=Limits(steps=2))
    assert [len((await agent.arun("x")).steps) for agent in (first, second)] == [4, 2]


async def test_unplugged_limits_are_removed_except_the_agents_step_limit():
    agent = agent_of(limits_plugin(30, max_tokens=1))
    agent.unplug("limits")
    assert (await agent.arun("x")).stop.message == "Step limit reached: 30/30"


async def test_a_shared_registry_gets_the_hooks_once():
    registry, plugin = HookRegistry(), limits_plugin(2)
    for _ in range(2):
        agent = agent_of(plugin, hooks=registry)
    assert len(registry.at("before_step")) == 3
    assert len((await agent.arun("x")).steps) == 2


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"max_steps": 0}, "max_steps must be a whole number, 1 or more"),
        ({"max_tokens": -1}, "max_total_tokens must be a"),
        ({"max_execution_time": "1"}, "max_seconds must be a"),
        ({"max_cost": float("nan")}, "max_cost must be a"),
        ({"max_tool_calls": 1.5}, "max_tool_calls must be a"),
        ({"finish_reasons": ["done"]}, "unknown finish reason 'done'"),
        ({"finish_reasons": "stop"}, "must be a list"),
        ({"soft_limit": 2}, "soft must be between 0 and 1"),
    ],
)
def test_invalid_arguments_are_rejected(options, problem):
    with pytest.raises(RegistrationError, match=problem):
        limits_plugin(**options)
