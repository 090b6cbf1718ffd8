"""Delegation: a run inside a run, started by a model or by code (DESIGN 7.10)."""

import asyncio

import pytest

from hookline import (
    Agent,
    AgentContext,
    Budget,
    HookResult,
    Limits,
    RegistrationError,
    RunFailedError,
    ScriptedModel,
    call,
    guard,
    hook,
    observer,
    tool,
)
from hookline.plugins import Plugin
from hookline.teams import SubagentRefusedError, Team
from hookline.testing import FakeClock


def script(*turns, **options):
    return ScriptedModel(list(turns), **options)


def ask(to, task="do it"):
    return call("delegate", to=to, task=task)


class SubagentLog:
    """Records the fires of the subagent points."""

    points = ("subagent_spawning", "subagent_spawned", "subagent_ended")
    phase = "observe"

    def __init__(self):
        self.entries = []

    def __call__(self, point, ctx, payload):
        self.entries.append((str(point), payload))

    def of(self, point):
        return [payload for name, payload in self.entries if name == point]


def team_of(chief_turns, *members, hooks=(), chief_options=None, **options):
    team = Team(**options)
    chief = Agent("chief", "leads", llm=script(*chief_turns), tools=[team], hooks=hooks, **chief_options or {})
    for agent in (chief, *members):
        team.add(agent)
    return team, chief


def writer(*turns, **options):
    return Agent("writer", "writes poems", llm=script(*turns), **options)


def results(agent):
    """The tool results in the last request to the model."""
    return [m.content for m in agent.model.requests[-1].messages if m.role == "tool"]


def test_a_model_delegates_and_gets_the_answer():
    log = SubagentLog()
    helper = writer("roses are red")
    _, chief = team_of([ask("writer", "a poem"), "done"], helper, hooks=[log])
    result = chief.run("x")
    assert (result.reply, results(chief)) == ("done", ["roses are red"])
    assert helper.model.requests[0].messages[-1].content == "a poem"
    spawning, spawned, ended = (payload for _, payload in log.entries)
    assert [point for point, _ in log.entries] == list(SubagentLog.points)
    assert spawning.parent == spawned.parent == ended.parent == result.ids
    assert spawned.child == ended.child
    assert (spawned.child.agent, spawned.child.parent_run_id) == ("writer", result.ids.run_id)
    assert (ended.status, ended.reply, ended.personality_id) == ("completed", "roses are red", "writer")


def test_the_tool_description_lists_the_other_members():
    team, chief = team_of(["one", "two"], writer())
    chief.run("x")
    team.add(Agent("judge", "judges", llm=script()))
    chief.run("x")
    first, second = ({spec.name: spec for spec in request.tools} for request in chief.model.requests)
    assert first["delegate"].parameters["properties"]["to"]["enum"] == ["writer"]
    assert second["handoff"].parameters["properties"]["to"]["enum"] == ["writer", "judge"]
    assert "- writer: writes poems" in first["delegate"].description
    assert "judges" in second["delegate"].description


def test_a_mapping_of_members_is_not_copied():
    members = {}
    team = Team(members)
    members["chief"] = chief = Agent("chief", llm=script(ask("poet"), ask("poet"), "done"), tools=[team])
    members["poet"] = writer("a poem")

    @observer("subagent_ended")
    def leave(ctx, payload):
        del members["poet"]

    chief.run("x", hooks=[leave])
    assert results(chief)[0] == "a poem"
    assert "there is no agent 'poet'" in results(chief)[1]


def test_without_other_members_the_tools_are_not_offered():
    _, chief = team_of(["alone"])
    chief.run("x")
    assert chief.model.requests[0].tools == ()


@pytest.mark.parametrize(
    ("to", "said"),
    [("writter", "Did you mean 'writer'?"), ("nobody", "Choose from: writer."), ("chief", "may not use chief")],
)
def test_a_wrong_name_is_an_error_that_names_the_right_ones(to, said):
    log = SubagentLog()
    _, chief = team_of([ask(to), "sorry"], writer(), hooks=[log])
    assert chief.run("x").status == "completed"
    assert said in results(chief)[0]
    assert "writer" in results(chief)[0]
    assert log.entries == []


def test_may_restricts_the_members_to_delegate_to():
    judge = Agent("judge", llm=script("guilty"))
    _, chief = team_of([ask("writer"), ask("judge"), "x"], writer(), judge, may=lambda who, whom: whom == "judge")
    chief.run("x")
    assert "may not use writer" in results(chief)[0]
    assert results(chief)[1] == "guilty"


def test_a_hook_at_spawning_can_change_the_prompt_and_the_personality():
    @hook("subagent_spawning")
    def change(ctx, payload):
        return {"prompt": f"{payload.prompt}, in verse", "personality": "judge"}

    log, judge = SubagentLog(), Agent("judge", llm=script("guilty"))
    _, chief = team_of([ask("writer", "a letter"), "x"], writer(), judge, hooks=[change, log])
    chief.run("x")
    assert judge.model.requests[0].messages[-1].content == "a letter, in verse"
    assert results(chief) == ["guilty"]
    assert log.of("subagent_spawned")[0].personality_id == "judge"


def test_a_hook_that_names_an_unknown_personality_refuses_the_subagent():
    @hook("subagent_spawning")
    def change(ctx, payload):
        return {"personality": "ghost"}

    _, chief = team_of([ask("writer"), "x"], writer(), hooks=[change])
    chief.run("x")
    assert "no member 'ghost'" in results(chief)[0]


def test_a_refusal_names_the_hook_and_the_reason():
    @hook("subagent_spawning", priority=-5)
    def taste(ctx, payload):
        return {"prompt": "x", "error": None}

    @hook("subagent_spawning")
    def budget_office(ctx, payload):
        return {"error": "too dear"}

    log, helper = SubagentLog(), writer()
    _, chief = team_of([ask("writer"), "x"], helper, hooks=[taste, budget_office, log])
    chief.run("x")
    assert "writer was refused by budget_office: too dear" in results(chief)[0]
    assert [point for point, _ in log.entries] == ["subagent_spawning"]
    assert helper.model.requests == []


def test_a_hook_that_fails_at_spawning_refuses_the_subagent_and_the_run_continues():
    @hook("subagent_spawning")
    def broken(ctx, payload):
        raise ValueError("oh")

    helper = writer()
    _, chief = team_of([ask("writer"), "x"], helper, hooks=[broken])
    result = chief.run("x")
    assert result.status == "completed"
    assert "hook 'broken' failed at subagent_spawning" in results(chief)[0]
    assert helper.model.requests == []
    assert [error.fatal for error in result.errors if error.where == "hook"] == [False]


@pytest.mark.parametrize("point", ["subagent_spawned", "subagent_ended"])
def test_an_observer_that_fails_closed_fails_the_run(point):
    @observer(point, on_failure="closed")
    def broken(ctx, payload):
        raise ValueError("oh")

    log = SubagentLog()
    _, chief = team_of([ask("writer"), "x"], writer("a poem"), hooks=[broken, log])
    with pytest.raises(RunFailedError, match="broken"):
        chief.run("x")
    assert len(log.of("subagent_ended")) == 1


def test_a_failed_subagent_gives_an_error_result():
    log = SubagentLog()
    _, chief = team_of([ask("writer"), "x"], writer(ValueError("no ink")), hooks=[log])
    assert chief.run("x").status == "completed"
    assert "writer failed: " in results(chief)[0]
    assert "no ink" in results(chief)[0]
    assert log.of("subagent_ended")[0].status == "failed"


def test_an_ended_or_stopped_subagent_gives_an_error_result():
    @hook("before_llm")
    def curfew(ctx, payload):
        return HookResult.end("It is late.") if ctx.agent_name == "writer" else None

    _, chief = team_of([ask("writer"), "x"], writer(), hooks=[curfew])
    chief.run("x")
    assert results(chief) == ["writer was ended: by curfew. Its reply: It is late."]
    _, chief = team_of([ask("writer"), "x"], writer(ask("nobody"), limits=Limits(steps=1)))
    chief.run("x")
    assert "writer was stopped: Step limit reached: 1/1." in results(chief)[0]


def test_a_child_at_the_limit_is_stopped_and_so_is_its_parent():
    log = SubagentLog()

    @tool
    def look() -> str:
        """Look."""
        return "seen"

    helper = writer([call("look"), "one two three four five six"], "never said", tools=[look])
    _, chief = team_of([ask("writer"), "never said"], helper, hooks=[log])
    result = chief.run("x", ctx=AgentContext(budget=Budget(Limits(tokens=6))))
    assert (result.status, result.stop.kind) == ("stopped", "token_limit")
    assert log.of("subagent_ended")[-1].status == "stopped"
    assert "writer was stopped: Token limit" in next(m.content for m in result.messages if m.role == "tool")


def test_the_maximum_depth_applies_across_teams():
    """Each agent delegates to the next through another team; the depth counts runs."""
    teams = [Team(max_depth=2, max_handoffs=0) for _ in range(3)]
    d = Agent("d", llm=script("never asked"))
    c = Agent("c", llm=script(ask("d"), "c said"), tools=[teams[2]])
    b = Agent("b", llm=script(ask("c"), "b said"), tools=[teams[1]])
    a = Agent("a", llm=script(ask("b"), "a said"), tools=[teams[0]])
    for team, agent in zip(teams, (b, c, d), strict=True):
        team.add(agent)
    assert a.run("x").reply == "a said"
    assert (results(a), results(b)) == (["b said"], ["c said"])
    assert "the maximum depth of 2 runs" in results(c)[0]
    assert [len(agent.model.requests[0].tools) for agent in (a, b, c)] == [1, 1, 0]
    assert d.model.requests == []


def test_endless_delegation_is_stopped_by_the_maximum_depth():
    def on(whom):
        return lambda request: ask(whom) if request.messages[-1].role == "user" and request.tools else "enough"

    team = Team(max_depth=3, max_handoffs=0)
    ping = Agent("ping", llm=script(on("pong"), loop=True), tools=[team])
    pong = Agent("pong", llm=script(on("ping"), loop=True), tools=[team])
    team.add(ping)
    team.add(pong)
    log = SubagentLog()
    assert ping.run("x", hooks=[log]).status == "completed"
    assert len(log.of("subagent_spawned")) == len(log.of("subagent_ended")) == 3


def test_the_number_of_subagents_is_limited_and_refused_ones_do_not_count():
    refusals = ["not this one", None, None, None]

    @hook("subagent_spawning")
    def first_not(ctx, payload):
        return {"error": refusals.pop(0)}

    _, chief = team_of(
        [ask("writer"), [ask("writer"), ask("writer")], ask("writer"), "x"],
        writer("1", "2"),
        hooks=[first_not],
        max_children=2,
    )
    chief.run("x")
    assert "not this one" in results(chief)[0]
    assert sorted(results(chief)[1:3]) == ["1", "2"]
    assert "this run has already started the maximum of 2 subagents" in results(chief)[3]


class Crowd:
    """Counts concurrent runs; each run yields to the others."""

    points = ("before_llm",)

    def __init__(self):
        self.now = self.most = 0

    async def __call__(self, point, ctx, payload):
        self.now += 1
        self.most = max(self.most, self.now)
        for _ in range(50):
            await asyncio.sleep(0)
        self.now -= 1


@pytest.mark.parametrize(("limit", "most"), [(4, 3), (2, 2), (1, 1)])
def test_delegations_of_one_batch_run_in_parallel_up_to_max_parallel(limit, most):
    crowd = Crowd()
    helper = writer("1", "2", "3", hooks=[crowd])
    _, chief = team_of([[ask("writer")] * 3, "x"], helper, max_parallel=limit)
    chief.run("x")
    assert crowd.most == most
    assert sorted(results(chief)) == ["1", "2", "3"]


def api_agent(use):
    """An agent with a tool that does ``await use(ctx)``."""
    given = []

    @tool
    async def work(ctx: AgentContext) -> str:
        """Work."""
        given.append(await use(ctx))
        return "worked"

    return Agent("chief", llm=script(call("work"), "done"), tools=[work]), given


def test_delegate_returns_the_result_whatever_its_status():
    team = Team([writer(ValueError("no ink"), "a poem")])

    async def use(ctx):
        return [await team.delegate(ctx, "writer", "go"), await team.delegate(ctx, "writer", "go")]

    chief, given = api_agent(use)
    assert chief.run("x").status == "completed"
    assert [(r.status, r.reply) for r in given[0]] == [("failed", ""), ("completed", "a poem")]


def test_delegate_all_returns_all_results_in_order():
    team = Team(
        [Agent(name, llm=script(lambda r: f"did {r.messages[-1].content}", loop=True)) for name in "ab"],
        max_children=3,
    )

    async def use(ctx):
        return await team.delegate_all(ctx, [("b", "1"), ("ghost", "2"), ("a", "3"), ("a", "4"), ("a", "5")])

    chief, given = api_agent(use)
    chief.run("x")
    first, ghost, third, fourth, fifth = given[0]
    assert [r.reply for r in (first, third, fourth)] == ["did 1", "did 3", "did 4"]
    assert (ghost.status, ghost.errors[0].type) == ("failed", "SubagentRefusedError")
    assert "there is no agent 'ghost'" in ghost.errors[0].message
    assert "maximum of 3" in fifth.errors[0].message


@pytest.mark.parametrize("task", ["", "  ", 5])
async def test_an_empty_task_is_rejected(task):
    team = Team([writer()])

    async def use(ctx):
        with pytest.raises(SubagentRefusedError, match="say in words"):
            await team.delegate(ctx, "writer", task)

    await api_agent(use)[0].arun("x")


async def test_delegation_needs_a_run():
    with pytest.raises(Exception, match="use team.arun"):
        await Team([writer()]).delegate(AgentContext(), "writer", "x")


async def test_the_hooks_of_the_parent_judge_the_child():
    @guard("before_tool", tools="wipe")
    def no_wiping(ctx, payload):
        return HookResult.block("never")

    @tool
    def wipe() -> str:
        """Wipe."""
        return "wiped"

    helper = writer(call("wipe"), "done", tools=[wipe])
    _, chief = team_of([ask("writer"), "x"], helper, hooks=[no_wiping])
    await chief.arun("x")
    assert results(helper) == ["never"]


@pytest.mark.parametrize("parallel", [1, 3])
@pytest.mark.parametrize("by", ["run", "task"])
async def test_cancelling_the_parent_ends_every_child_once_before_the_parent_ends(parallel, by):
    log, order, waiting = SubagentLog(), [], asyncio.Semaphore(0)

    @tool
    async def wait() -> str:
        """Wait for ever."""
        waiting.release()
        await asyncio.Event().wait()
        return "never"

    @observer("on_run_end")
    async def ends(ctx, result):
        await asyncio.sleep(0)
        order.append((ctx.agent_name, result.status))

    @observer("subagent_ended")
    async def slow(ctx, payload):
        for _ in range(5):
            await asyncio.sleep(0)
        order.append("ended")

    helper = writer(*[call("wait")] * parallel, tools=[wait])
    _, chief = team_of([[ask("writer")] * parallel], helper, hooks=[log, ends, slow])
    run = chief.start("x")
    for _ in range(parallel):
        await asyncio.wait_for(waiting.acquire(), 30)
    if by == "run":
        run.cancel("enough")
    else:
        run._task.cancel()
    await run.settled()
    assert (await run.result()).status == "cancelled"
    assert order[-1] == ("chief", "cancelled")
    assert order.count("ended") == order.count(("writer", "cancelled")) == parallel
    assert [p.status for p in log.of("subagent_ended")] == ["cancelled"] * parallel


async def test_a_hook_that_ends_the_parent_ends_the_children():
    """One call of a batch ends the run while another child is at work."""
    log = SubagentLog()

    @tool
    async def wait() -> str:
        """Wait for ever."""
        await asyncio.Event().wait()
        return "never"

    @hook("subagent_spawning")
    async def judge(ctx, payload):
        if payload.prompt == "bad":
            while not log.of("subagent_spawned"):
                await asyncio.sleep(0)
            await ctx.llm.complete("may it?")

    @hook("before_llm")
    def stop_here(ctx, payload):
        return HookResult.end("no more") if payload.purpose == "hook" else None

    helper = writer(call("wait"), tools=[wait])
    _, chief = team_of([[ask("writer", "good"), ask("writer", "bad")]], helper, hooks=[log, judge, stop_here])
    result = await chief.arun("x")
    assert (result.status, result.reply) == ("ended", "no more")
    assert [p.status for p in log.of("subagent_ended")] == ["cancelled"]


async def test_a_caller_that_stops_waiting_cancels_the_child_and_continues():
    team, log, waiting = Team(), SubagentLog(), asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait for ever."""
        waiting.set()
        await asyncio.Event().wait()
        return "never"

    team.add(writer(call("wait"), tools=[wait]))

    async def use(ctx):
        work = asyncio.ensure_future(team.delegate(ctx, "writer", "go"))
        await waiting.wait()
        work.cancel()
        await asyncio.wait([work])
        return list(over)

    @observer("on_run_end")
    def ends(ctx, result):
        over.append((ctx.agent_name, result.status))

    over = []
    chief, given = api_agent(use)
    result = await chief.arun("x", hooks=[log, ends])
    assert (result.status, result.reply) == ("completed", "done")
    assert given == [[("writer", "cancelled")]]
    assert [p.status for p in log.of("subagent_ended")] == ["cancelled"]


async def test_a_time_limit_stops_the_whole_tree():
    log, clock = SubagentLog(), FakeClock()

    @tool
    async def wait() -> str:
        """Wait for ever."""
        clock.advance(1)
        await asyncio.Event().wait()
        return "never"

    helper = writer(call("wait"), tools=[wait])
    _, chief = team_of([ask("writer")], helper, hooks=[log])
    ctx = AgentContext(budget=Budget(Limits(seconds=0.05), clock=clock), clock=clock)
    result = await chief.arun("x", ctx=ctx)
    assert (result.status, result.stop.kind) == ("stopped", "time_limit")
    assert [p.status for p in log.of("subagent_ended")] in (["stopped"], ["cancelled"])


def test_the_child_counts_towards_the_budget_of_the_parent():
    _, chief = team_of([ask("writer"), "x"], writer("a poem of six words, yes"))
    result = chief.run("x")
    own = sum(step.usage.total_tokens for step in result.steps)
    assert result.usage.total_tokens > own


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"members": "writer"}, "members must be a list of agents"),
        ({"members": ["writer"]}, "is not an agent"),
        ({"members": [writer(), writer()]}, "two members are named 'writer'"),
        ({"members": [writer()], "first": "nobody"}, "no member 'nobody'"),
        ({"max_parallel": 0}, "max_parallel must be a whole number, 1 or more"),
        ({"max_depth": -1}, "max_depth must be a whole number, 0 or more"),
        ({"max_children": True}, "max_children must be a whole number"),
    ],
)
def test_invalid_arguments_are_rejected(options, said):
    with pytest.raises(RegistrationError, match=said):
        Team(**options)


def test_with_max_children_zero_there_is_no_delegate():
    assert [tool.name for tool in Team(max_children=0).tools()] == ["handoff"]
    assert [tool.name for tool in Team(max_handoffs=0).tools()] == ["delegate"]


def test_a_subagent_whose_plugin_filter_leaves_a_plugin_out_keeps_the_guard_of_that_plugin_in_the_outer_run():
    wiped = []

    @tool
    def wipe() -> str:
        """Wipe the disk."""
        wiped.append(1)
        return "wiped"

    @guard("before_tool", tools="wipe")
    def never(ctx, request):
        return HookResult.block("Never.")

    for allowed in (None, ["rails"], []):
        helper = writer(call("wipe"), "ok", tools=[wipe], allowed_plugins=[] if allowed is None else allowed)
        _, chief = team_of([ask("writer"), "done"], helper, chief_options={"plugins": [Plugin("rails", [never])]})
        chief.run("x", allowed_plugins=allowed)
        assert bool(wiped) is (allowed == []), "the outer run without the plugin has no guard to inherit"
        wiped.clear()
