"""Statistics over HTTP: hooks in firing order with their figures, costs, recorded runs and verdicts."""

import asyncio

import pytest

from hookline import AFTER_TOOL, BEFORE_LLM, Agent, HookResult, ScriptedModel, call, guard, hook, reply
from hookline.config.hook_order import hook_order
from hookline.hooks import ObservabilityHook
from hookline.payloads import Usage
from hookline.stores import RunStore
from hookline.stores.errors import StoreError
from hookline.stores.run_figures import costs, hook_figures
from hookline.stores.run_statistics import run_stats
from hookline.teams import Roster, Team

from .console.counted import HOSTILE, counted_agent, delete, no_deleting
from .console.rig import console


async def done(client, task, **fields):
    """Start a run, and return it when it has ended, however long that takes."""
    answer = await client.post("/runs", json={"task": task, "wait": 30, **fields})
    assert answer.status_code == 201, answer.text
    run = answer.json()
    while run["ended"] is None:
        run = await got(client, f"/runs/{run['id']}", wait=30)
    return run


async def got(client, path, **query):
    answer = await client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def hooks_of(client, agent="clerk", **query):
    """The hooks of an agent by point and name."""
    found = await got(client, "/hooks", **query)
    (hooks,) = [each["hooks"] for each in found["agents"] if each["agent"] == agent]
    return {(each["point"], each["hook"]): each for each in hooks}


# Hooks.


async def test_hooks_have_the_numbers_of_the_runs(tmp_path):
    async with console(tmp_path, counted_agent()) as made, made.browser() as client:
        await done(client, "a secret b")
        await done(client, "secret")
        found = await hooks_of(client)
        blocker = found["before_tool", "no_deleting"]
        assert (blocker["calls"], blocker["verbs"], blocker["shadow"]) == (4, {"cont": 2, "block": 2}, {})
        assert 0 < blocker["p50"] <= blocker["p95"] < 30
        trial = found["before_tool", "shadow(strict)"]  # a block ends the judgement of a call, so it sees the others
        assert (trial["calls"], trial["verbs"], trial["shadow"]) == (2, {"cont": 2}, {"block": 2})
        broken = found["after_tool", f"broken{HOSTILE}"]
        assert broken["verbs"]["failed"] == broken["calls"]
        assert found["before_tool", "never_angry"]["verbs"] == {"cont": 2}


async def test_hooks_are_in_firing_order_and_those_of_the_server_are_marked(tmp_path):
    agent = counted_agent()
    async with console(tmp_path, agent) as made, made.browser() as client:
        (found,) = (await got(client, "/hooks"))["agents"]
        own = [(each["point"], each["hook"], each["priority"]) for each in found["hooks"] if each["layer"] == "agent"]
        assert own == [(place.point, place.hook, place.priority) for place in hook_order(agent.hooks.stack)]
        assert ("approval_requested", "approvals") in [
            (each["point"], each["hook"]) for each in found["hooks"] if each["layer"] == "run"
        ]
        assert all(each["calls"] == 0 for each in found["hooks"])


async def test_each_personality_has_its_own_hooks(tmp_path):
    (tmp_path / "people").mkdir()
    (tmp_path / "people" / "rules.py").write_text(
        "from hookline import BEFORE_TOOL, guard\n"
        "@guard(BEFORE_TOOL)\ndef only_of_ada(ctx, request):\n    return None\n"
    )
    (tmp_path / "people" / "ada.toml").write_text('instructions = "I am Ada."\nguards = ["rules.py"]\n')
    (tmp_path / "people" / "ben.toml").write_text('instructions = "I am Ben."\n')
    roster = Roster(counted_agent("bot"), tmp_path / "people", first="ada")
    async with console(tmp_path, roster) as made, made.browser() as client:
        await done(client, "secret", agent="ben")
        key = "before_tool", "no_deleting"
        ada, ben = await hooks_of(client, "ada"), await hooks_of(client, "ben")
        assert (ada[key]["calls"], ben[key]["calls"]) == (0, 1)
        assert ada["before_tool", "only_of_ada"]["layer"] == "agent"
        assert ("before_tool", "only_of_ada") not in ben


async def test_hooks_of_subagents_belong_to_the_agent_that_was_asked(tmp_path):
    @guard(AFTER_TOOL)
    def only_of_the_helper(ctx, result):
        return None

    helper = Agent(
        "helper",
        llm=ScriptedModel([call("delete", path="secret"), reply("done", usage=Usage(7, 1), cost=0.25)], loop=True),
        tools=[delete],
        hooks=[no_deleting, only_of_the_helper],
    )
    team = Team()
    boss = Agent(
        "boss",
        llm=ScriptedModel([call("delegate", to="helper", task="x"), reply("fine", cost=0.5)], loop=True),
        tools=[team],
    )
    team.add(boss)
    team.add(helper)
    async with console(tmp_path, boss) as made, made.browser() as client:
        run = await done(client, "x")
        found = await hooks_of(client, "boss")
        assert found["before_tool", "no_deleting"]["verbs"] == {"block": 1}
        assert found["before_tool", "no_deleting"]["layer"] == ""
        assert [each["agent"] for each in (await got(client, "/hooks"))["agents"]] == ["boss"]
        costs = await got(client, "/costs")
        assert costs["total"]["cost"] == run["cost"] == 0.75
        assert [row["name"] for row in costs["agents"]] == ["boss"]


async def test_callers_see_figures_of_their_own_runs_and_admins_those_of_all(tmp_path):
    recorder = ObservabilityHook(tmp_path / "runs.db")
    async with (
        console(tmp_path, counted_agent(hooks=[recorder])) as made,
        made.logged_in("run", "read") as ann,
        made.logged_in("run", "read") as bob,
        made.logged_in("run", "read", "admin") as boss,
    ):
        mine, _ = await done(ann, "secret"), await done(bob, "secret a")
        await asyncio.to_thread(recorder.flush)
        key = "before_tool", "no_deleting"
        whose = [await hooks_of(each) for each in (ann, bob, boss)]
        assert [each[key]["calls"] for each in whose] == [1, 2, 3]
        assert [each[key]["source"] != "" for each in whose] == [False, False, True]
        assert (await hooks_of(boss, owner=mine["owner"]))[key]["calls"] == 1
        assert (await hooks_of(bob, owner=mine["owner"]))[key]["calls"] == 2, "it is for admins only"
        for path, calls in (("/costs", "calls"), ("/stats", "model_calls")):
            found = [(await got(each, path)) for each in (ann, bob, boss)]
            totals = [each.get("total") or each["totals"] for each in found]
            assert [each[calls] for each in totals] == [2, 3, 5], path
            asked = await got(boss, path, owner=mine["owner"])
            assert (asked.get("total") or asked["totals"])[calls] == 2
        assert (await ann.get(f"/runs/{mine['id']}/verdicts")).status_code == 200
        assert (await bob.get(f"/runs/{mine['id']}/verdicts")).status_code == 404


@pytest.mark.parametrize("query", ["range=year", "range=", "since=1", "agent=" + "x" * 300])
async def test_a_wrong_parameter_is_refused(tmp_path, query):
    async with console(tmp_path) as made, made.browser() as client:
        for path in ("/hooks", "/costs"):
            assert (await client.get(f"{path}?{query}")).status_code == 422


# Costs.


async def test_costs_are_those_of_the_runs(tmp_path):
    async with console(tmp_path, counted_agent()) as made, made.browser() as client:
        runs = [await done(client, "a b"), await done(client, "a")]
        found = await got(client, "/costs", range="hour")
        assert found["total"] == {
            "calls": 5,
            "input_tokens": sum(run["input_tokens"] for run in runs),
            "output_tokens": 50,
            "cached_tokens": 200,
            "cost": sum(run["cost"] for run in runs),
            "unpriced": 0,
        }
        assert [(row["name"], row["used"]["calls"]) for row in found["models"]] == [
            (f"large{HOSTILE}", 3),
            ("small", 2),
        ]
        assert len(found["bars"]) == 12
        assert sum(bar["used"]["cost"] for bar in found["bars"]) == 2.5
        listed = await got(client, "/costs", agent="nobody")
        assert listed["total"]["calls"] == 0


async def test_a_reply_that_a_hook_rejected_costs_too(tmp_path):
    priced = {"usage": Usage(100, 10), "cost": 0.5}
    agent = counted_agent(turns=[reply("short", **priced), reply("long enough", **priced)])
    async with console(tmp_path, agent) as made, made.browser() as client:
        run = await done(client, "x")
        found = await got(client, "/costs")
        assert found["total"]["cost"] == run["cost"] == 1.0
        assert found["total"]["calls"] == 2


async def test_answers_of_hooks_are_no_calls_of_models(tmp_path):
    @hook(BEFORE_LLM)
    def cached(ctx, request):
        return HookResult.answer("from a cache") if request.hop else None

    turns = [reply("", tool_calls=(call("delete", path="a"),), usage=Usage(100, 10), cost=0.5)]
    agent = Agent("clerk", llm=ScriptedModel(turns), tools=[delete], hooks=[cached])
    async with console(tmp_path, agent) as made, made.browser() as client:
        assert (await done(client, "x"))["status"] == "completed"
        total = (await got(client, "/costs"))["total"]
        assert (total["calls"], total["input_tokens"], total["cost"]) == (1, 100, 0.5)


# Statistics and verdicts.


async def test_stats_are_those_of_the_command(tmp_path):
    recorder = ObservabilityHook(tmp_path / "runs.db")
    async with console(tmp_path, counted_agent(hooks=[recorder])) as made, made.browser() as client:
        await done(client, "a secret")
        await asyncio.to_thread(recorder.flush)
        found = await got(client, "/stats", agent="clerk")
        stats = run_stats(made.server.service.store, agent="clerk")
        assert found["totals"]["model_calls"] == stats.totals.model_calls == 3
        assert {each["hook"]: each["verbs"] for each in found["hooks"]} == {
            each.hook: each.verbs for each in stats.hooks
        }
        assert (await got(client, "/stats", model="small"))["totals"]["model_calls"] == 1
        assert (await got(client, "/stats", since=4e9))["totals"]["runs"] == 0


async def test_verdicts_of_a_run_are_listed_in_order_and_in_pages(tmp_path):
    async with console(tmp_path, counted_agent()) as made, made.browser() as client:
        run = await done(client, "a secret")
        found = await got(client, f"/runs/{run['id']}/verdicts")
        verdicts = [(each["hook"], each["verb"], each["point"], each["tool"]) for each in found["verdicts"]]
        assert verdicts[:2] == [
            ("shadow(strict)", "shadow", "before_tool", ""),
            (f"broken{HOSTILE}", "failed", "after_tool", "delete"),
        ]
        assert ("no_deleting", "block", "before_tool", "delete") in verdicts
        assert found["verdicts"][0]["reason"].startswith("would block")
        (blocked,) = [each for each in found["verdicts"] if each["verb"] == "block"]
        assert blocked["refused"]
        assert blocked["phase"] == "guard"
        assert blocked["duration"] > 0
        pages, after = [], 0
        while after or not pages:
            page = await got(client, f"/runs/{run['id']}/verdicts", after=after, limit=2)
            pages += page["verdicts"]
            after = page["next"]
        assert pages == found["verdicts"]


# Storing.


async def test_figures_are_stored_when_the_server_stops(tmp_path):
    async with console(tmp_path, counted_agent()) as made, made.browser() as client:
        await done(client, "secret")
    store = RunStore(tmp_path / "runs.db")
    assert {each.hook: each.verbs for each in hook_figures(store, "hour")}["no_deleting"] == {"block": 1}
    assert costs(store, "hour").total.calls == 2
    store.close()


async def test_facts_that_could_not_be_stored_are_stored_later_and_not_twice(tmp_path, monkeypatch):
    failures = [StoreError("the disk is full")] * 2
    write = RunStore.write

    def failing(self, runs, events, records=()):
        if records and failures:
            raise failures.pop()
        return write(self, runs, events, records)

    monkeypatch.setattr(RunStore, "write", failing)
    monkeypatch.setattr("hookline.server.live_run.RETRY_SECONDS", 0.01)
    async with console(tmp_path, counted_agent()) as made, made.browser() as client:
        await done(client, "secret")
    assert not failures
    store = RunStore(tmp_path / "runs.db")
    assert {each.hook: each.verbs for each in hook_figures(store, "hour")}["no_deleting"] == {"block": 1}
    assert costs(store, "hour").total.calls == 2
    store.close()


@pytest.mark.parametrize("used", [{"usage": Usage(5, 10**30)}, {"cost": 1e308}])
async def test_replies_that_claim_an_impossible_usage_or_cost_do_not_end_the_statistics(tmp_path, used):
    agent = Agent("helper", llm=ScriptedModel([reply("Done.", **used)], loop=True))
    async with console(tmp_path, agent) as made, made.logged_in("read", "run") as client:
        for _ in range(2):
            assert (await done(client, "Go."))["status"] == "completed"
        for path in ("/costs", "/stats"):
            assert await got(client, path)
        page = (await client.get("/console/cost")).text
        assert "could not be" not in page
