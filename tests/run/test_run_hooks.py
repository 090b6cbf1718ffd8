"""Nested runs: their hooks, plugin filter and events (DESIGN 7.10)."""

import asyncio
import threading

import pytest

from hookline import (
    Agent,
    AgentContext,
    HooklineError,
    HookRegistry,
    HookResult,
    ScriptedModel,
    Session,
    call,
    guard,
    hook,
    observer,
    reply,
    tool,
)
from hookline._kernel.registry import REGISTRATIONS
from hookline._run.run_hooks import RunHooks
from hookline.events import HookExecuted, ModelReplied, RunFinished, RunStarted, SubagentEvent, ToolSettled
from hookline.hooks import ApplyContextConfigHook, PassThrough, PersistSessionHook, RoleBasedAccessHook
from hookline.payloads import Frozen, Usage
from hookline.plugins import Plugin
from hookline.points import Point
from hookline.stores import JsonSessionStore, RunStore


def nested(child, **options):
    @tool
    async def ask_other(ctx: AgentContext, task: str) -> str:
        """Ask another agent."""
        return (await child.arun(task, ctx=ctx, **options)).reply

    return ask_other


@tool
def wipe() -> str:
    """Wipe."""
    return "wiped"


def family(hooks=(), child_hooks=(), **options):
    child = Agent("child", llm=ScriptedModel([call("wipe"), "child done"]), tools=[wipe], hooks=child_hooks)
    return Agent(
        "parent",
        llm=ScriptedModel([call("ask_other", task="go"), "done"]),
        tools=[nested(child, **options)],
        hooks=hooks,
    )


@guard("before_tool", tools="wipe")
def no_wiping(ctx, payload):
    return HookResult.block("never")


def test_the_parents_guards_hold_in_the_child():
    seen = []

    @observer("after_tool")
    def see(ctx, payload):
        seen.append((ctx.agent_name, payload.name, payload.outcome))

    family([no_wiping, see]).run("x")
    assert seen == [("child", "wipe", "blocked"), ("parent", "ask_other", "ok")]


def test_inherit_false_runs_without_the_hooks_of_the_parent():
    seen = []

    @observer("after_tool")
    def see(ctx, payload):
        seen.append(payload.outcome)

    family([no_wiping], [see], inherit=False).run("x")
    assert seen == ["ok"]


def test_a_hook_that_both_have_is_called_once():
    calls = []

    @observer("before_tool", tools="wipe")
    def count(ctx, payload):
        calls.append(ctx.agent_name)

    family([count], [count]).run("x")
    assert calls == ["child"]


def test_the_events_of_the_whole_tree_are_in_one_stream_without_gaps():
    log = []
    family().run("x", sinks=[log.append])
    assert [event.seq for event in log] == list(range(1, len(log) + 1))
    inner = [event for event in log if isinstance(event, SubagentEvent)]
    assert isinstance(inner[0].event, RunStarted)
    assert isinstance(inner[-1].event, RunFinished)
    top = log[0].ids
    assert {event.ids.parent_run_id for event in inner} == {top.run_id}
    assert {event.ids.agent for event in inner} == {"child"}


@pytest.mark.filterwarnings("ignore:.*blocks the event loop:RuntimeWarning")
@pytest.mark.parametrize("is_durable", [False, True], ids=["plain", "durable"])
def test_the_events_of_a_run_that_a_sync_hook_waits_for_come_before_the_next_event_of_the_outer_run(
    tmp_path, is_durable
):
    inner = Agent("inner", llm=ScriptedModel(["done"]))

    @hook("before_tool")
    def ask_inner(ctx, request):
        inner.run("go")

    log = []
    agent = Agent("outer", llm=ScriptedModel([call("wipe"), "done"]), tools=[wipe], hooks=[ask_inner])
    store = RunStore(tmp_path / "runs.db")
    agent.run("x", sinks=[log.append], durable=store if is_durable else None)
    names = [type(event.event if isinstance(event, SubagentEvent) else event).__name__ for event in log]
    of_inner = [number for number, event in enumerate(log) if isinstance(event, SubagentEvent)]
    assert [names[number] for number in of_inner][:: len(of_inner) - 1] == ["RunStarted", "RunFinished"]
    assert of_inner[-1] < names.index("ToolStarted")
    assert isinstance(log[-1], RunFinished)
    if is_durable:
        assert store.events(log[0].run_id, limit=1000)[-1].type == "run_finished"
    store.close()


def test_a_hook_registered_during_the_child_counts_from_its_next_fire_on():
    seen = []

    @tool
    def open_door(ctx: AgentContext) -> str:
        """Open."""
        parent.register_hook(no_wiping)
        return "open"

    @observer("after_tool")
    def see(ctx, payload):
        seen.append((payload.name, payload.outcome))

    child = Agent("child", llm=ScriptedModel([call("open_door"), call("wipe"), "x"]), tools=[open_door, wipe])
    parent = Agent("parent", llm=ScriptedModel([call("ask_other", task="go"), "x"]), tools=[nested(child)], hooks=[see])
    parent.run("x")
    assert seen == [("open_door", "ok"), ("wipe", "blocked"), ("ask_other", "ok")]


def deep(*agents):
    """Each agent calls the next one; the last one calls ``wipe``."""
    *above, last = agents
    last.update(llm=ScriptedModel([call("wipe"), "x"]), tools=[wipe])
    made = Agent("a0", **last) if not above else Agent(f"a{len(above)}", **last)
    for number, options in reversed(list(enumerate(above))):
        model = ScriptedModel([call("ask_other", task="go"), "x"])
        made = Agent(f"a{number}", llm=model, tools=[nested(made)], **options)
    return made


class Seen:
    points = ("before_tool", "after_tool")
    phase = "observe"

    def __init__(self):
        self.heard, self.around_, self.calls = [], [], []

    def __call__(self, point, ctx, payload):
        self.calls.append((str(point), ctx.agent_name, payload.name))

    def on_event(self, event):
        self.heard.append(event)

    def wrap(self, ctx, payload):
        self.around_.append((ctx.agent_name, type(payload).__name__))


def test_listeners_and_wrappers_are_inherited_once_at_every_depth():
    seen = Seen()
    deep({"hooks": [seen]}, {"hooks": [seen]}, {}).run("x")
    started = [event.ids.agent for event in seen.heard if isinstance(event, RunStarted)]
    assert started == ["a0", "a1", "a2"]
    assert not [event for event in seen.heard if isinstance(event, SubagentEvent)]
    assert [who for who, what in seen.around_ if what == "RunStart"] == ["a0", "a1", "a2"]
    assert len([who for who, what in seen.around_ if what == "ModelRequest"]) == 6
    assert seen.calls.count(("before_tool", "a2", "wipe")) == 1


def test_events_of_a_grandchild_carry_its_own_ids():
    log = []
    deep({}, {}, {}).run("x", sinks=[log.append])
    runs = {event.ids.agent: event.ids for event in log if isinstance(event, SubagentEvent)}
    assert runs["a2"].parent_run_id == runs["a1"].run_id
    assert runs["a1"].parent_run_id == log[0].ids.run_id
    assert not [e for e in log if isinstance(e, SubagentEvent) and isinstance(e.event, SubagentEvent)]
    assert [event.seq for event in log] == list(range(1, len(log) + 1))
    assert isinstance(log[-1], RunFinished)


def test_the_ids_of_a_whole_tree_correlate():
    log = []
    deep({}, {}, {}).run("x", sinks=[log.append], correlation_id="case 7")
    assert {event.ids.correlation_id for event in log if isinstance(event, SubagentEvent)} == {"case 7"}


def test_every_call_is_recorded_in_the_child_too():
    log = []

    @observer("before_tool")
    def quiet(ctx, payload):
        pass

    family([quiet]).run("x", sinks=[log.append], every_call=True)
    inner = [e.event for e in log if isinstance(e, SubagentEvent) and isinstance(e.event, HookExecuted)]
    assert [event.hook for event in inner] == ["quiet"]


def test_the_plugin_filter_of_a_child_only_narrows():
    seen = []

    def plugin(name):
        @observer("before_tool", name=name)
        def see(ctx, payload):
            seen.append((name, ctx.agent_name))

        return Plugin(name, [see])

    child = Agent("child", llm=ScriptedModel([call("wipe"), "x"]), tools=[wipe], plugins=[plugin("b"), plugin("c")])
    parent = Agent(
        "parent",
        llm=ScriptedModel([call("ask_other", task="go"), "x"]),
        tools=[nested(child, allowed_plugins=["b", "c"])],
        plugins=[plugin("a")],
    )
    parent.run("x", allowed_plugins=["a", "b"])
    assert seen == [("a", "parent"), ("b", "child")]


def test_the_childs_own_interceptor_does_not_bypass_the_parents_guards():
    class Answers(PassThrough):
        def intercept(self, point, payload, ctx):
            return HookResult.answer("all gone") if point == "before_tool" else None

    for interceptor in (PassThrough(), Answers()):
        seen, child = Seen(), {"hooks": [interceptor]}
        deep({"hooks": [no_wiping, seen]}, child).run("x")
        assert ("after_tool", "a1", "wipe") in seen.calls
        outcomes = [e.outcome for e in seen.heard if isinstance(e, ToolSettled) and e.tool == "wipe"]
        assert outcomes == ["blocked"]


def test_the_parents_interceptor_does_not_switch_off_the_childs_guards():
    outcomes = []

    @observer("after_tool")
    def see(ctx, payload):
        outcomes.append(payload.outcome)

    deep({"hooks": [PassThrough()]}, {"hooks": [no_wiping, see]}).run("x")
    assert outcomes == ["blocked"]


def test_an_interceptor_that_both_have_is_asked_once():
    class Counts(PassThrough):
        calls = 0

        def intercept(self, point, payload, ctx):
            Counts.calls += point == "before_tool"

    shared = Counts()
    deep({"hooks": [shared]}, {"hooks": [shared]}, {"hooks": [shared]}).run("x")
    assert Counts.calls == 3


def test_two_interceptors_merge_their_fields():
    @hook("before_prompt_build")
    def prepend(ctx, payload):
        return {"prepend_system": "first", "append_system": "parent's"}

    class Appends(PassThrough):
        async def intercept(self, point, payload, ctx):
            if point == "before_prompt_build":
                return {"append_system": "mine", "override_system": "middle"}
            return None

    child = {"hooks": [Appends()]}
    parent = deep({"hooks": [prepend]}, child)
    prompts = []
    parent.run("x", hooks=[observer("before_llm")(lambda ctx, r: prompts.append(r.messages[0].content))])
    assert "first\n\nmiddle\n\nparent's" in prompts


def test_a_hook_with_inherit_false_is_not_inherited():
    @observer("before_tool")
    def mine(ctx, payload):
        seen.append(ctx.agent_name)

    mine.inherit = False
    seen = []
    deep({"hooks": [mine]}, {}, {"hooks": [mine]}).run("x")
    assert seen == ["a0", "a2"]


def test_guards_of_the_parent_find_the_users_data_in_the_child():
    roles = RoleBasedAccessHook({"wipe": "admin"})
    seen = Seen()
    for role, outcome in (("admin", "ok"), ("guest", "blocked")):
        deep({"hooks": [roles, seen]}, {}).run("x", metadata={"user_role": role})
        settled = [e for e in seen.heard if isinstance(e, ToolSettled) and e.tool == "wipe"]
        assert settled[-1].outcome == outcome


def test_a_child_does_not_inherit_the_configuration_of_the_parent():
    prompts = {}

    @observer("before_llm")
    def see(ctx, request):
        prompts[ctx.agent_name] = request.messages[0].content

    config = ApplyContextConfigHook("You are the parent.")
    deep({"hooks": [config, see]}, {"instructions": "You are the child."}).run("x")
    assert prompts == {"a0": "You are the parent.", "a1": "You are the child."}


def test_conversations_inside_a_run_are_not_saved_with_it(tmp_path):
    deep({"hooks": [PersistSessionHook(JsonSessionStore(tmp_path))]}, {}).run("x", session=Session("mine"))
    assert [saved.id for saved in JsonSessionStore(tmp_path).list()] == ["mine"]


async def test_a_hook_is_not_called_again_in_a_run_that_it_started():
    entered = []

    class Judge:
        points = ("before_tool",)

        async def __call__(self, point, ctx, payload):
            entered.append(ctx.agent_name)
            await judge_agent.arun("may it?", ctx=ctx)

    judge_agent = deep({}, {})
    seen = Seen()
    await Agent("top", llm=ScriptedModel([call("wipe"), "x"]), tools=[wipe], hooks=[Judge(), seen]).arun("x")
    assert entered == ["top"]
    assert ("before_tool", "a1", "wipe") in seen.calls  # the other hooks apply there


def blocking(child):
    @tool
    def ask_other(ctx: AgentContext, task: str) -> str:
        """Ask another agent."""
        return child.run(task, ctx=ctx).reply

    return ask_other


def test_a_blocking_run_in_a_sync_tool_is_a_child_like_any_other():
    seen, log = Seen(), []
    child = Agent("child", llm=ScriptedModel([call("wipe"), "child said"]), tools=[wipe])
    model = ScriptedModel([[call("ask_other", task="go")], "x"])
    parent = Agent("parent", llm=model, tools=[blocking(child)], hooks=[no_wiping, seen])
    result = parent.run("x", sinks=[log.append])
    assert ("after_tool", "child", "wipe") in seen.calls
    assert [event.seq for event in log] == list(range(1, len(log) + 1))
    inner = [event.event for event in log if isinstance(event, SubagentEvent)]
    assert [type(inner[0]), type(inner[-1])] == [RunStarted, RunFinished]
    assert result.usage == sum((r.usage for r in replies(log)), Usage())


def replies(log):
    events = [event.event if isinstance(event, SubagentEvent) else event for event in log]
    return [event for event in events if isinstance(event, ModelReplied)]


async def test_cancelling_reaches_a_blocking_run_in_a_thread_and_waits_for_it():
    ended, waiting = [], threading.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        waiting.set()
        await asyncio.Event().wait()
        return "never"

    @observer("on_run_end")
    def end(ctx, result):
        ended.append((ctx.agent_name, result.status))

    child = Agent("child", llm=ScriptedModel([call("wait")]), tools=[wait])
    model = ScriptedModel([call("ask_other", task="go")])
    run = Agent("parent", llm=model, tools=[blocking(child)], hooks=[end]).start("x")
    assert await asyncio.to_thread(waiting.wait, 30)
    run.cancel("enough")
    await run.settled()
    assert ended == [("child", "cancelled"), ("parent", "cancelled")]


async def test_an_active_child_is_cancelled_and_ends_before_its_parent():
    ended, log = [], []

    @observer("on_run_end")
    async def end(ctx, result):
        await asyncio.sleep(0)
        ended.append((ctx.agent_name, result.status))

    @tool
    async def forever() -> str:
        """Wait."""
        await asyncio.Event().wait()
        return "never"

    child = Agent("child", llm=ScriptedModel([call("forever")]), tools=[forever])

    @tool
    async def leave(ctx: AgentContext) -> str:
        """Start a run and do not wait."""
        child.start("x", ctx=ctx)
        return "started"

    parent = Agent("parent", llm=ScriptedModel([call("leave"), "done"]), tools=[leave], hooks=[end])
    result = await parent.arun("x", sinks=[log.append])
    assert result.status == "completed"
    assert ended == [("child", "cancelled"), ("parent", "completed")]
    assert isinstance(log[-1], RunFinished)
    assert any(isinstance(e, SubagentEvent) and isinstance(e.event, RunFinished) for e in log)


async def test_the_context_of_a_run_that_has_ended_starts_nothing_unguarded():
    kept = []

    @tool
    def keep(ctx: AgentContext) -> str:
        """Keep the context."""
        kept.extend([ctx, ctx.detached()])
        return "kept"

    seen = Seen()
    await Agent("top", llm=ScriptedModel([call("keep"), "x"]), tools=[keep], hooks=[no_wiping, seen]).arun("x")
    late = Agent("late", llm=ScriptedModel([call("wipe"), "x"] * 2), tools=[wipe])
    with pytest.raises(HooklineError, match="detached"):
        await late.arun("x", ctx=kept[0])
    assert late.model.requests == []
    await late.arun("x", ctx=kept[1])
    settled = [e for e in seen.heard if isinstance(e, ToolSettled) and e.tool == "wipe"]
    assert [event.outcome for event in settled] == ["blocked"]


def test_a_detached_context_is_under_the_same_hooks():
    outcomes = []

    @observer("after_tool", tools="wipe")
    def see(ctx, payload):
        outcomes.append(payload.outcome)

    child = Agent("child", llm=ScriptedModel([call("wipe"), "x"]), tools=[wipe])

    @tool
    async def ask_other(ctx: AgentContext) -> str:
        """Ask."""
        return (await child.arun("x", ctx=ctx.detached())).reply

    Agent("top", llm=ScriptedModel([call("ask_other"), "x"]), tools=[ask_other], hooks=[no_wiping, see]).run("x")
    assert outcomes == ["blocked"]


def test_a_conversation_hook_with_inherit_false_is_not_inherited():
    heard = []

    class Own:
        points, phase, inherit = ("before_llm",), "observe", False

        def __call__(self, point, ctx, payload):
            heard.append(ctx.agent_name)

        def on_event(self, event):
            heard.append(event.run_id)

    parent = family()
    ids = {parent.run("go", ctx=AgentContext(hooks=[Own()])).ids.run_id, "parent"}
    assert set(heard) == ids


@pytest.mark.parametrize(
    "above",
    [{"plugin": "p"}, {"phase": "observe", "on_failure": "open"}, {"tools": "other*"}, {"on_failure": "open"}],
    ids=str,
)
def test_a_guard_of_the_child_is_kept_beside_a_weaker_registration_of_the_parent(above):
    judged = []

    def no(ctx, request):
        judged.append(request.name)
        raise ValueError("no")

    keep = guard("before_tool", tools="wipe", on_failure="block")(no)
    child = Agent(
        "child", llm=ScriptedModel([call("wipe"), "child done"]), tools=[wipe], hooks=[keep], allowed_plugins=[]
    )
    parent = Agent("parent", llm=ScriptedModel([call("ask_other", task="go"), "done"]), tools=[nested(child)])
    parent.register_hook(keep, **above)
    parent.run("go")
    assert "no" in child.model.requests[-1].messages[-1].content
    assert judged.count("wipe") == (1 if "plugin" in above or "tools" in above else 2)


def test_a_hook_of_a_parents_plugin_that_the_child_also_has_is_called_once():
    judged = []

    @guard("before_tool")
    def count(ctx, request):
        judged.append(request.name)

    child = Agent("child", llm=ScriptedModel([call("wipe"), "child done"]), tools=[wipe], hooks=[count])
    parent = Agent(
        "parent",
        llm=ScriptedModel([call("ask_other", task="go"), "done"]),
        tools=[nested(child)],
        plugins=[Plugin("p", hooks=[count])],
    )
    parent.run("go")
    assert judged == ["ask_other", "wipe"]


def test_observers_of_the_parent_see_what_an_interceptor_of_the_child_failed_at():
    class Broken(PassThrough):
        async def intercept(self, point, payload, ctx):
            if point == "before_tool":
                raise ValueError("broken")

    seen = []

    @observer("before_tool")
    def watch(ctx, request):
        seen.append(request.name)

    child = Agent("child", llm=ScriptedModel([call("wipe"), "x"]), tools=[wipe], hooks=[Broken()])
    parent = Agent(
        "parent", llm=ScriptedModel([call("ask_other", task="go"), "done"]), tools=[nested(child)], hooks=[watch]
    )
    parent.run("go")
    assert seen == ["ask_other", "wipe"]


# What the hooks of a run are made of


class Wide:
    """A hook with ``on_event`` and ``wrap``."""

    points = ("before_tool",)

    def __call__(self, point, ctx, payload):
        return None

    def on_event(self, event):
        return None

    def wrap(self, ctx, payload):
        return None


class Owner:
    """The part of an agent that contains its hooks."""

    def __init__(self, *hooks, plugin=None):
        self.hooks = HookRegistry()
        for each in hooks:
            self.hooks.register(each, plugin=plugin)


def hooks_of(agent, *, conversation=(), own=(), outer=None, allowed=None, running=frozenset()):
    return RunHooks(agent, HookRegistry(conversation), HookRegistry(own).stack, outer, allowed, running)


def test_the_hooks_of_agent_conversation_and_run_come_in_this_order():
    agent, conversation, own = Wide(), Wide(), Wide()
    hooks = hooks_of(Owner(agent), conversation=[conversation], own=[own])
    assert hooks.stack.at("before_tool") == [agent, conversation, own]


def test_the_hooks_of_the_outer_run_come_first_and_one_that_both_have_once():
    theirs, shared, mine = Wide(), Wide(), Wide()
    outer = hooks_of(Owner(theirs, shared))
    assert hooks_of(Owner(shared, mine), outer=outer).stack.at("before_tool") == [theirs, shared, mine]


def test_running_hooks_get_events_but_are_not_called():
    mine, plugged = Wide(), Wide()
    plugged.phase = "observe"  # a guard would be kept without its plugin
    outer = hooks_of(Owner(plugged, plugin="p"))
    assert hooks_of(Owner(mine), outer=outer, allowed=()).stack.at("before_tool") == [mine]
    around = hooks_of(Owner(mine), outer=outer, allowed=("p",), running=frozenset({id(mine)}))
    assert around.stack.at("before_tool") == [plugged]
    assert around.allowed.listeners == (plugged, mine)


def test_hooks_that_are_not_inherited_are_left_out_at_every_depth():
    private, public = Wide(), Wide()
    private.inherit = False
    middle = hooks_of(Owner(), outer=hooks_of(Owner(private, public)), conversation=[private])
    assert middle.stack.at("before_tool") == [public]
    assert hooks_of(Owner(), outer=middle).allowed.listeners == (public,)


def test_changed_registrations_are_compiled():
    owner = Owner()
    hooks = hooks_of(owner)
    assert hooks.seen == REGISTRATIONS.changes
    late = Wide()
    owner.hooks.register(late)
    assert hooks.seen < REGISTRATIONS.changes
    assert hooks.stack.at("before_tool") == []
    hooks.compile()
    assert hooks.stack.at("before_tool") == [late]
    assert hooks.seen == REGISTRATIONS.changes


def test_a_run_of_the_same_agent_inside_its_own_run_has_the_same_hooks():
    owner, twice = Owner(Wide()), Wide()
    owner.hooks.register(twice)
    owner.hooks.register(twice, plugin="p")
    outer = hooks_of(owner)
    assert hooks_of(owner, outer=outer).stack.at("before_tool") == outer.stack.at("before_tool")


# Guards, whatever task or thread starts the nested run


class GuardThatReports:
    """A guard that is also slow at ``on_progress``, in the thread of the event loop."""

    points = ("before_tool", "on_progress")
    phase = {"before_tool": "guard", "on_progress": "observe"}  # noqa: RUF012 - an option of a hook

    def __init__(self):
        self.is_busy, self.go_on = threading.Event(), threading.Event()

    def __call__(self, point, ctx, payload):
        if point == "before_tool":
            return HookResult.block("never") if payload.name == "wipe" else None
        if payload.phase == "progress" and not self.is_busy.is_set():
            self.is_busy.set()
            self.go_on.wait(10)
        return None


def recording_wipe():
    """Return a tool, and the list of its calls."""
    calls = []

    @tool(name="wipe")
    def wipe_recorded() -> str:
        """Wipe."""
        calls.append("wiped")
        return "wiped"

    return wipe_recorded, calls


async def test_a_guard_that_is_busy_in_another_thread_still_judges_the_nested_run():
    rule = GuardThatReports()
    dangerous, calls = recording_wipe()
    inner = Agent("inner", llm=ScriptedModel([call("wipe"), "done"]), tools=[dangerous])

    @tool
    def work(ctx: AgentContext) -> str:
        """Work in a thread."""
        ctx.progress(0.5, "half")
        assert rule.is_busy.wait(10)
        try:
            return inner.run("go").reply
        finally:
            rule.go_on.set()

    result = await Agent("outer", llm=ScriptedModel([call("work"), "done"]), tools=[work], hooks=[rule]).arun("x")
    assert (result.status, result.steps[0].outcomes) == ("completed", ("ok",))
    assert calls == []


class Note(Frozen, frozen=True):
    text: str = ""


@pytest.fixture
def noted(own_points):
    return Point("test_noted", Note, verbs=("replace",), when="a tool noted something")


def noting(registry, noted, given):
    """Return a tool that fires a point of the program, with a context of its own or without one."""

    @tool
    async def note(ctx: AgentContext) -> str:
        """Note."""
        contexts = {"none": None, "bare": AgentContext(), "of the run": ctx, "any object": object()}
        await registry.fire(noted, {"text": "x"}, ctx=contexts[given])
        return "noted"

    return note


@pytest.mark.filterwarnings("ignore:.*blocks the event loop:RuntimeWarning")
@pytest.mark.parametrize("given", ["none", "bare", "of the run", "any object"])
@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
def test_a_run_that_a_hook_starts_in_registry_fire_is_nested_in_the_run_around_it(noted, given, blocking):
    dangerous, calls = recording_wipe()
    inner = Agent("inner", llm=ScriptedModel([call("wipe"), reply("done", usage=Usage(5, 5))]), tools=[dangerous])
    ended = []

    async def start_run(ctx, payload):
        result = await inner.arun("go")
        ended.append(result.ids)

    def block_on_run(ctx, payload):
        ended.append(inner.run("go").ids)

    registry = HookRegistry()
    registry.on(noted, block_on_run if blocking else start_run)
    agent = Agent("outer", llm=ScriptedModel([call("note"), "done"]), tools=[noting(registry, noted, given)])
    result = agent.run("x", hooks=[no_wiping], metadata={"user": "u"})
    assert calls == []
    assert [(ids.agent, ids.parent_run_id) for ids in ended] == [("inner", result.ids.run_id)]
    assert result.usage.input_tokens >= 5


def test_a_run_that_a_hook_starts_in_ctx_fire_is_nested_in_that_run_also_in_a_thread_without_its_context(noted):
    dangerous, calls = recording_wipe()
    inner = Agent("inner", llm=ScriptedModel([call("wipe"), "done"]), tools=[dangerous])
    ended = []

    @hook(noted)
    async def start_run(ctx, payload):
        ended.append((await inner.arun("go")).ids)

    @tool
    def note(ctx: AgentContext) -> str:
        """Note something in a thread of its own."""
        thread = threading.Thread(target=lambda: asyncio.run(ctx.fire(noted, {"text": "x"})))
        thread.start()
        thread.join()
        return "noted"

    model = ScriptedModel([call("note"), "done"])
    result = Agent("outer", llm=model, tools=[note], hooks=[no_wiping, start_run]).run("x")
    assert calls == []
    assert [ids.parent_run_id for ids in ended] == [result.ids.run_id]


async def test_registry_fire_with_the_context_of_another_run_keeps_the_guards_of_the_run_around_it(noted):
    dangerous, calls = recording_wipe()
    inner = Agent("inner", llm=ScriptedModel([call("wipe"), "done"]), tools=[dangerous])
    contexts, release = asyncio.Queue(), asyncio.Event()

    @tool
    async def wait(ctx: AgentContext) -> str:
        """Wait."""
        await contexts.put(ctx)
        await release.wait()
        return "waited"

    async def start_run(ctx, payload):
        await inner.arun("go")

    @tool
    async def note() -> str:
        """Note."""
        await registry.fire(noted, {"text": "x"}, ctx=await contexts.get())
        release.set()
        return "noted"

    registry = HookRegistry()
    registry.on(noted, start_run)
    other = Agent("other", llm=ScriptedModel([call("wait"), "done"]), tools=[wait]).start("x")
    agent = Agent("outer", llm=ScriptedModel([call("note"), "done"]), tools=[note], hooks=[no_wiping])
    assert (await agent.arun("x")).steps[0].outcomes == ("ok",)
    assert ((await other.result()).status, calls) == ("completed", [])


async def test_cancelling_a_run_reaches_the_run_that_a_hook_started_in_registry_fire(noted):
    started, statuses = asyncio.Event(), []

    @tool
    async def hang() -> str:
        """Hang."""
        started.set()
        await asyncio.Event().wait()
        return ""

    inner = Agent("inner", llm=ScriptedModel([call("hang"), "done"]), tools=[hang])

    async def start_run(ctx, payload):
        run = inner.start("go")
        try:
            await run.result()
        finally:
            await run.settled()
            statuses.append((await run.result()).status)

    registry = HookRegistry()
    registry.on(noted, start_run)
    agent = Agent("outer", llm=ScriptedModel([call("note"), "done"]), tools=[noting(registry, noted, "none")])
    run = agent.start("x")
    await started.wait()
    run.cancel("enough")
    assert (await run.result()).status == "cancelled"
    assert statuses == ["cancelled"]


def test_a_thread_that_outlives_its_run_fires_no_hook_that_starts_a_run_unguarded(noted):
    dangerous, calls = recording_wipe()
    inner = Agent("inner", llm=ScriptedModel([call("wipe"), "done"]), tools=[dangerous])
    registry, errors, threads = HookRegistry(), [], []

    async def start_run(ctx, payload):
        await inner.arun("go")

    registry.on(noted, start_run)

    @tool
    def slow(ctx: AgentContext) -> str:
        """Fire a point in a thread of its own, after the end of the run."""

        def fire():
            go_on.wait(10)
            try:
                asyncio.run(registry.fire(noted, {"text": "x"}, ctx=ctx))
            except HooklineError as error:
                errors.append(str(error))

        threads.append(threading.Thread(target=fire))
        threads[0].start()
        return ""

    go_on = threading.Event()
    Agent("outer", llm=ScriptedModel([call("slow"), "done"]), tools=[slow], hooks=[no_wiping]).run("x")
    go_on.set()
    threads[0].join(10)
    assert calls == []
    assert "has ended" in errors[0]


def test_a_thread_that_outlives_its_run_starts_nothing_unguarded():
    dangerous, calls = recording_wipe()
    inner = Agent("inner", llm=ScriptedModel([call("wipe"), "done"] * 2), tools=[dangerous])
    go_on, done, errors = threading.Event(), threading.Event(), []

    @tool(timeout=0.01)
    def slow() -> str:
        """Go on after the timeout, and after the end of the run."""
        go_on.wait(10)
        try:
            inner.run("go")
        except HooklineError as error:
            errors.append(str(error))
        inner.run("go", inherit=False)  # a decision of the program
        done.set()
        return ""

    Agent("outer", llm=ScriptedModel([call("slow"), "done"]), tools=[slow], hooks=[no_wiping]).run("x")
    go_on.set()
    assert done.wait(10)
    assert len(errors) == 1
    assert all(words in errors[0] for words in ("has ended", "ctx.detached()", "inherit=False"))
    assert calls == ["wiped"]


@pytest.mark.parametrize("ends", ["returns", "raises CancelledError"])
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
async def test_a_guard_judges_a_run_that_it_started_and_that_outlives_its_call(ends, is_async):
    dangerous, calls = recording_wipe()
    inner = Agent("inner", llm=ScriptedModel([call("wipe"), "done"]), tools=[dangerous])
    tasks, returned = [], asyncio.Event()

    async def later():
        await returned.wait()
        await inner.arun("go")

    @tool
    async def wait_for_it() -> str:
        """Wait for the other run."""
        returned.set()
        await asyncio.gather(*tasks)
        return ""

    def rule(ctx, request):
        if request.name == "wait_for_it":
            tasks.append(asyncio.ensure_future(later()))
            if ends != "returns":
                raise asyncio.CancelledError
        return HookResult.block("never") if request.name == "wipe" else None

    async def async_rule(ctx, request):
        return rule(ctx, request)

    judge = guard("before_tool", on_failure="open")(async_rule if is_async else rule)
    llm = ScriptedModel([call("wait_for_it"), "done"])
    result = await Agent("outer", llm=llm, tools=[wait_for_it], hooks=[judge]).arun("x")
    assert (result.steps[0].outcomes, calls) == (("ok",), [])
