"""Plugins of an agent are added and removed completely or not at all (DESIGN 6.7)."""

import asyncio
import math

import pytest

from hookline import (
    BEFORE_STEP,
    ON_RUN_END,
    Agent,
    AgentContext,
    Budget,
    HookRegistry,
    Limits,
    RegistrationError,
    ScriptedModel,
    Session,
    call,
    observer,
    reply,
    tool,
)
from hookline.payloads import StopSignal
from hookline.plugins import Plugin
from hookline.testing import scripted_agent
from hookline.tools import Tool


def named(name):
    def do() -> str:
        return name

    return Tool(do, name=name, description="Do it.")


def watcher(seen, word):
    @observer(BEFORE_STEP, name=word)
    def watch(ctx, step):
        seen.append(word)

    return watch


def plugin(seen, word="p", *, version="1", tools=("do",), **options):
    return Plugin(
        word,
        hooks=[watcher(seen, f"{word}{version}")],
        tools=[named(name) for name in tools],
        version=version,
        activate=lambda api: seen.append(f"+{word}{version}"),
        deactivate=lambda: seen.append(f"-{word}{version}"),
        **options,
    )


def state(agent):
    return sorted(tool.name for tool in agent.tools), [p.name for p in agent.plugins], len(list(agent.hooks))


def test_a_plugin_is_added_once_and_removed_completely():
    seen = []
    agent = scripted_agent([reply("x")] * 2, tools=[named("mine")])
    before = state(agent)
    agent.plug(plugin(seen))
    assert state(agent) == (["do", "mine"], ["p"], 1)
    with pytest.raises(RegistrationError, match="'p' is already plugged in"):
        agent.plug(plugin(seen))
    assert state(agent) == (["do", "mine"], ["p"], 1)
    agent.run("x")
    agent.unplug("p")
    assert state(agent) == before
    agent.run("x")
    agent.unplug("p")
    assert seen == ["+p1", "p1", "-p1"]


def broken(agent):
    raise ValueError("cannot be configured")


@pytest.mark.parametrize(
    ("options", "error"),
    [({"configure": broken}, "cannot be configured"), ({"tools": ("mine",)}, "'mine' has the same name as a tool")],
)
def test_a_plugin_that_cannot_be_added_leaves_the_agent_unchanged(options, error):
    seen = []
    agent = scripted_agent([reply("x")] * 2, tools=[named("mine")])
    before = state(agent)
    with pytest.raises((ValueError, RegistrationError), match=error):
        agent.plug(plugin(seen, version="2", **options))
    assert state(agent) == before
    assert seen == ["+p2", "-p2"]
    agent.run("x")
    assert seen[2:] == []


def test_a_tool_whose_name_another_plugin_has_names_that_plugin():
    agent = scripted_agent([reply("x")])
    agent.plug(plugin([], "one"))
    with pytest.raises(RegistrationError, match="plugin 'two'.*'do' has the same name as a tool of plugin 'one'"):
        agent.plug(plugin([], "two"))
    assert state(agent) == (["do"], ["one"], 1)


def test_of_two_failures_the_first_one_counts():
    def cannot_go():
        raise KeyError("second")

    agent = scripted_agent([reply("x")])
    with pytest.raises(ValueError, match="cannot be configured"):
        agent.plug(Plugin("p", configure=broken, activate=lambda api: None, deactivate=cannot_go))
    assert state(agent) == ([], [], 0)


def test_a_plugin_that_two_agents_share_is_registered_once_in_a_shared_registry():
    seen = []
    shared, registry = plugin(seen), HookRegistry()
    agents = [Agent(name, llm=ScriptedModel([reply("x")] * 2), hooks=registry, plugins=[shared]) for name in ("a", "b")]
    agents[0].run("x")
    assert seen == ["+p1", "p1"]
    assert [state(agent) for agent in agents] == [(["do"], ["p"], 1)] * 2
    agents[0].unplug("p")
    assert seen == ["+p1", "p1"]  # the other agent still has it
    agents[1].unplug("p")
    assert seen[-1] == "-p1"


def test_a_plugin_removed_from_an_agent_is_removed_from_agents_made_from_it():
    seen = []
    base = scripted_agent([reply("x")], plugins=[plugin(seen), plugin(seen, "q", tools=("other",))])
    derived = Agent("f", llm=ScriptedModel([reply("x")]), tools=list(base.tools), hooks=base.hooks)
    base.share_plugins_with(derived)
    assert [p.name for p in derived.plugins] == ["p", "q"]
    assert [tool.name for tool in derived.tools_for(("q",))] == ["other"]
    base.unplug("p")
    assert ([p.name for p in derived.plugins], [tool.name for tool in derived.tools]) == (["q"], ["other"])


def test_a_filter_removes_the_tools_of_a_plugin_and_keeps_those_of_the_agent():
    agent = scripted_agent([], tools=[named("mine")], plugins=[plugin([]), plugin([], "q", tools=("other",))])

    def names(allowed):
        return sorted(each.name for each in agent.tools_for(allowed))

    assert names(None) == ["do", "mine", "other"]
    assert names(()) == ["mine"]
    assert names(("q",)) == ["mine", "other"]
    assert agent.tools_for(("p", "q")) is agent.tools


def test_the_hooks_of_a_toolset_are_added_once_to_the_agent_or_its_plugin():
    seen = []
    watch = watcher(seen, "set")

    class Set:
        tool_hooks = (watch,)

        def tools(self):
            return [named("do")]

    agent = scripted_agent([reply("x")] * 3, tools=[Set()], hooks=[watch])
    agent.run("x")
    assert seen == ["set"]
    agent = scripted_agent([reply("x")] * 3, plugins=[Plugin("p", tools=[Set()])])
    agent.run("x")
    agent.run("x", allowed_plugins=[])
    assert seen == ["set", "set"]
    agent.unplug("p")
    agent.run("x")
    assert seen == ["set", "set"]


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def test_an_agent_has_the_given_options():
    def sink(event):
        return None

    agent = Agent(
        "a",
        "what for",
        "Be brief.",
        llm=ScriptedModel([reply("x")]),
        tools=[add],
        allowed_plugins=["p"],
        limits=Limits(steps=7),
        max_parallel_tools=2,
        params={"t": [1]},
        response_format={"type": "object"},
        sinks=[sink],
    )
    assert (agent.name, agent.description, agent.instructions) == ("a", "what for", "Be brief.")
    assert (agent.allowed_plugins, agent.limits, agent.max_parallel_tools) == (("p",), Limits(steps=7), 2)
    assert (agent.params, agent.response_format, agent.sinks) == ({"t": [1]}, {"type": "object"}, (sink,))
    assert agent.plugins == ()
    bare = scripted_agent([])
    assert (bare.limits, bare.max_parallel_tools, bare.allowed_plugins, bare.sinks) == (Limits(), 8, None, ())


def test_an_agents_own_filter_holds_and_a_run_can_only_narrow_it():
    seen = []
    plugins = [plugin(seen, name, tools=()) for name in "pqr"]
    agent = scripted_agent([reply("x")] * 4, plugins=plugins, allowed_plugins=["p", "q"])
    for allowed in (None, ["q", "r"], ["r"], []):
        seen.clear()
        agent.run("x", allowed_plugins=allowed)
        assert seen == {None: ["p1", "q1"], "q": ["q1"]}.get(allowed if allowed is None else "".join(allowed)[:1], [])


@pytest.mark.parametrize(
    ("own", "given", "limit"), [(2, None, 2), (None, 3, 3), (2, 3, 2), (3, 2, 2), (None, None, 20), (math.inf, 30, 30)]
)
def test_the_smaller_step_limit_of_agent_and_context_holds(own, given, limit):
    seen = []

    @observer(BEFORE_STEP)
    def watch(ctx, step):
        seen.append(ctx.budget.limits.steps)

    agent = scripted_agent([reply("x")] * 2, limits=Limits(steps=own), hooks=[watch])
    agent.run("x", ctx=AgentContext(budget=Budget(Limits(steps=given))))
    agent.run("x")
    assert seen == [limit, {None: 20, math.inf: None}.get(own, own)]


def test_a_run_without_options_gets_defaults():
    seen = []

    @observer(BEFORE_STEP)
    def watch(ctx, step):
        seen.append(ctx.session.id)

    def over(inner):
        @tool
        async def ask(ctx) -> str:
            """Ask."""
            return (await inner.arun("x", ctx=ctx)).reply

        return ask

    child = scripted_agent([reply("x")], name="child", max_parallel_tools=1)
    parent = scripted_agent([call("ask"), reply("x")], tools=[over(child)], hooks=[watch])
    parent.run("x", session=Session())
    assert len(set(seen)) == 2
    assert all(each.startswith("session_") for each in seen)
    assert (child.description, child.instructions, child.max_parallel_tools) == ("", "", 1)


async def test_leaving_a_stream_cancels_the_run_with_a_reason():
    results = []

    @observer(ON_RUN_END)
    def watch(ctx, result):
        results.append(result.stop)

    @tool
    async def wait() -> str:
        """Wait long."""
        await asyncio.sleep(30)
        return "never"

    stream = scripted_agent([call("wait")], tools=[wait], hooks=[watch]).stream("x")
    async for _ in stream:
        break
    await stream.aclose()
    assert results == [StopSignal("user_requested", "the reader stopped")]
