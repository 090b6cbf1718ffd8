"""Plugins that are added and removed during runs."""

import asyncio
import threading
from contextlib import contextmanager

import pytest

from hookline import (
    AFTER_TOOL,
    BEFORE_LLM,
    BEFORE_TOOL,
    Agent,
    HookResult,
    ScriptedModel,
    call,
    guard,
    hook,
    observer,
    tool,
)
from hookline.plugins import Plugin, PluginManager


@tool
def ping() -> str:
    """Ping."""
    return "pong"


def switch(agent, how):
    """Create a tool that changes the agent during a run."""

    @tool
    def flip() -> str:
        """Flip."""
        how(agent[0])
        return "flipped"

    return flip


def offered(agent):
    return [{tool.name for tool in request.tools} for request in agent.model.requests]


def tool_texts(result):
    return [m.content for m in result.messages if m.role == "tool"]


@pytest.fixture
def build(scripted_agent):
    def make(turns, how, **options):
        box = []
        agent = scripted_agent(turns, tools=[switch(box, how), *options.pop("tools", ())], **options)
        box.append(agent)
        return agent

    return make


class Watcher:
    """A hook with every method that a hook can have; it records its calls."""

    points = (BEFORE_LLM, AFTER_TOOL)
    phase = "observe"

    def __init__(self):
        self.fired, self.heard, self.around_ = [], [], []

    def __call__(self, point, ctx, payload):
        self.fired.append(str(point))

    def on_event(self, event):
        self.heard.append(type(event).__name__)

    def wrap(self, ctx, payload):
        self.around_.append(type(payload).__name__)

        @contextmanager
        def nothing():
            yield

        return nothing()


async def test_removing_a_plugin_removes_its_hooks_listeners_and_tools_from_the_run(build):
    watcher = Watcher()
    turns = [call("ping"), call("flip"), call("ping"), "done"]
    agent = build(turns, lambda agent: agent.unplug("p"), plugins=[Plugin("p", [watcher], [ping])])
    seen = []
    result = await agent.arun("go", sinks=[lambda event: seen.append(type(event).__name__)])
    assert tool_texts(result)[:2] == ["pong", "flipped"]
    assert tool_texts(result)[2].startswith("Unknown tool 'ping'")
    assert result.status == "completed"
    assert offered(agent) == [{"flip", "ping"}, {"flip", "ping"}, {"flip"}, {"flip"}]
    assert watcher.fired == ["before_llm", "after_tool", "before_llm"]
    assert watcher.around_ == ["RunStart", "ModelRequest", "ToolCallRequest", "ModelRequest", "ToolCallRequest"]
    assert watcher.heard.count("ModelCalled") == 2
    assert seen.count("ModelCalled") == 4
    assert "RunFinished" in seen
    assert "RunFinished" not in watcher.heard


async def test_other_listeners_still_get_events_after_one_was_removed(build):
    stays, goes = Watcher(), Watcher()
    agent = build([call("flip"), "done"], lambda agent: agent.unplug("p"), hooks=[stays], plugins=[Plugin("p", [goes])])
    await agent.arun("go")
    assert "RunFinished" in stays.heard
    assert "RunFinished" not in goes.heard


async def test_a_plugin_with_only_tools_can_be_added_and_removed_during_a_run(build):
    plugin, turns = Plugin("p", tools=[ping]), [call("flip"), call("ping"), call("flip"), call("ping"), "done"]
    agent = build(turns, lambda agent: agent.unplug("p") if agent.plugins else agent.plug(plugin))
    result = await agent.arun("go")
    assert tool_texts(result)[1] == "pong"
    assert tool_texts(result)[3].startswith("Unknown tool 'ping'")
    assert ["ping" in names for names in offered(agent)] == [False, True, True, False, False]


async def test_a_plugin_added_during_a_run_has_its_guards_with_its_tools(build):
    @guard(BEFORE_TOOL, tools="ping")
    def refuse(ctx, request):
        return HookResult.block("no pings")

    plugin = Plugin("p", [refuse], [ping])
    agent = build([call("flip"), call("ping"), "done"], lambda agent: agent.plug(plugin))
    assert tool_texts(await agent.arun("go")) == ["flipped", "no pings"]


@pytest.mark.parametrize("allowed", [[], ["other"]])
async def test_a_plugin_added_during_a_run_that_does_not_allow_it_has_no_effect(build, allowed):
    watcher = Watcher()
    plugin = Plugin("p", [watcher], [ping])
    agent = build([call("flip"), call("ping"), "done"], lambda agent: agent.plug(plugin))
    result = await agent.arun("go", allowed_plugins=allowed)
    assert tool_texts(result)[1].startswith("Unknown tool 'ping'")
    assert watcher.fired == []


async def test_a_call_that_waits_for_approval_does_not_run_after_its_plugin_was_removed(scripted_agent):
    ran = []

    @tool
    def pay() -> str:
        """Pay."""
        ran.append(1)
        return "paid"

    @guard(BEFORE_TOOL)
    def ask(ctx, request):
        return HookResult.ask("Really?")

    @hook("approval_requested")
    def approver(ctx, request):
        agent.unplug("money")
        return HookResult.approve()

    agent = scripted_agent([call("pay"), "done"], hooks=[ask, approver], plugins=[Plugin("money", tools=[pay])])
    result = await agent.arun("go")
    assert result.steps[0].outcomes == ("error",)
    assert tool_texts(result) == ["LookupError: the tool 'pay' was removed before this call started"]
    assert ran == []


async def test_calls_of_a_batch_run_only_if_their_tools_are_still_there(scripted_agent):
    @observer(BEFORE_TOOL, tools="pong")
    def leave(ctx, request):
        agent.unplug("p")

    @tool
    def pong() -> str:
        """Pong."""
        return "ping"

    agent = scripted_agent(
        [[call("ping"), call("pong")], "done"], tools=[pong], hooks=[leave], plugins=[Plugin("p", tools=[ping])]
    )
    result = await agent.arun("go")
    assert result.steps[0].outcomes == ("error", "ok")


async def test_a_new_tool_of_the_same_name_does_not_run_a_call_judged_for_the_old_one(
    scripted_agent,
):
    @tool(name="ping")
    def other() -> str:
        """Ping."""
        return "other"

    @guard(BEFORE_TOOL)
    def swap(ctx, request):
        if any(plugin.name == "old" for plugin in agent.plugins):
            agent.unplug("old")
            agent.plug(Plugin("new", tools=[other]))

    turns = [call("ping"), call("ping"), "done"]
    agent = scripted_agent(turns, hooks=[swap], plugins=[Plugin("old", tools=[ping])])
    result = await agent.arun("go")
    assert tool_texts(result)[0].startswith("LookupError")
    assert tool_texts(result)[1] == "other"


async def test_a_plugin_can_be_removed_from_another_thread_while_the_run_waits(scripted_agent):
    watcher, started, go_on = Watcher(), asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        started.set()
        await go_on.wait()
        return "waited"

    agent = scripted_agent([call("wait"), call("ping"), "done"], tools=[wait], plugins=[Plugin("p", [watcher], [ping])])
    run = agent.start("go")
    await started.wait()
    fired = list(watcher.fired)
    thread = threading.Thread(target=agent.unplug, args=["p"])
    thread.start()
    await asyncio.to_thread(thread.join)
    go_on.set()
    result = await run.result()
    assert tool_texts(result)[1].startswith("Unknown tool 'ping'")
    assert watcher.fired == fired


@pytest.mark.parametrize("heir", [False, True])
async def test_nested_and_detached_runs_lose_a_removed_plugin_too(scripted_agent, heir):
    watcher = Watcher()
    child = Agent("child", llm=ScriptedModel([call("ping"), "child done"], loop=True), tools=[ping])

    @tool
    async def delegate(ctx) -> str:
        """Delegate."""
        kept = ctx.detached() if heir else ctx
        await child.arun("before", ctx=kept)
        fired = len(watcher.fired)
        agent.unplug("p")
        await child.arun("after", ctx=kept)
        return "same" if len(watcher.fired) == fired else "more"

    agent = scripted_agent([call("delegate"), "done"], tools=[delegate], plugins=[Plugin("p", [watcher])])
    result = await agent.arun("go")
    assert tool_texts(result) == ["same"]
    assert watcher.fired


async def test_the_manager_can_disable_a_plugin_during_a_run(build, tmp_path):
    folder = tmp_path / "plugins" / "p"
    folder.mkdir(parents=True)
    (folder / "plugin.toml").write_text('id = "p"\nversion = "1"\napi = "1"\ntools = ["tools.py:ping"]\n')
    (folder / "tools.py").write_text(
        'from hookline import tool\n@tool(effects=[])\ndef ping():\n    """Ping."""\n    return "pong"\n'
    )
    manager = PluginManager(folder=folder.parent, installed=False)
    agent = build([call("ping"), call("flip"), call("ping"), "done"], lambda agent: manager.deactivate("p"))
    manager.attach(agent)
    manager.activate("p")
    texts = tool_texts(await agent.arun("go"))
    assert texts[0] == "pong"
    assert texts[2].startswith("Unknown tool 'ping'")
