"""Every place that shows a run shows the same numbers, however the run ended."""

import logging
from contextlib import closing

import pytest
from bs4 import BeautifulSoup

from hookline import (
    Agent,
    HookResult,
    RunFailedError,
    ScriptedModel,
    call,
    guard,
    hook,
    reply,
    tool,
)
from hookline.errors import RunWaitingError
from hookline.explain import explain
from hookline.explain.from_facts import facts_view, stored_view
from hookline.explain.view import ModelCall
from hookline.hooks import ObservabilityHook
from hookline.payloads import Usage
from hookline.records import RecordHook, read_runs
from hookline.records.account import Account
from hookline.records.blocks import read_blocks, summarize
from hookline.stores import RunStore
from hookline.teams import Team
from tests.cases import Failures

from .build import TASK, Scene
from .doors.served import Api
from .vectors import doors, vectors

NUMBERS = ("status", "steps", "tool_calls", "input_tokens", "output_tokens", "cost")


@pytest.fixture(autouse=True)
def quiet():
    """Many hooks fail on purpose."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def numbers_of_row(run):
    return {name: getattr(run, name) for name in NUMBERS}


def numbers_of_view(view):
    return {name: getattr(view, name) for name in NUMBERS if name != "steps"} | {"steps": view.step_count}


def tokens_of_calls(view):
    """The tokens of all model calls in a view, also of those whose replies were rejected."""
    calls = [item for _, step, _ in view.all_steps() for item in step.items if isinstance(item, ModelCall)]
    return sum(each.input_tokens for each in calls), sum(each.output_tokens for each in calls)


async def numbers_at_every_door(vector, folder):
    """Run a vector; the numbers of the run by where they were read."""
    with closing(RunStore(folder / "runs.db")) as store:
        hook = ObservabilityHook(store)
        agent = Scene(vector, folder).agent(hook, RecordHook(folder / "records"))
        try:
            result = await agent.arun(TASK, durable=store)
        except RunFailedError as failure:
            result = failure.result
        assert hook.flush(10)
        row = store.find(result.ids.run_id)
        (recorded,) = read_runs([folder / "records"])
        (block,) = [each for file in (folder / "records").iterdir() for each in read_blocks(file, Account())]
        summary = summarize(block, Account())
        return {
            "list": numbers_of_row(row),
            "record": numbers_of_view(explain(recorded)),
            "events": numbers_of_view(stored_view(store, row)),
            "facts": numbers_of_view(facts_view(row, store.tree_facts(row.id))),
            "record ls": numbers_of_row(row) | {"status": summary.status, "steps": summary.steps},
            "calls in events": numbers_of_row(row)
            | dict(zip(("input_tokens", "output_tokens"), tokens_of_calls(stored_view(store, row)), strict=True)),
        }


@guard("before_tool", tools="pay")
def ask(ctx, request):
    return HookResult.ask("Pay?")


@hook("approval_requested")
def wait(ctx, request):
    return HookResult.wait()


@tool(effects=[])
def look() -> str:
    """Look."""
    return "seen"


@tool(effects=[])
def pay() -> str:
    """Pay."""
    return "paid"


USED = {"usage": Usage(7, 3, 2), "cost": 0.5}


@pytest.mark.parametrize("observed", [True, False], ids=["observed", "journal only"])
@pytest.mark.parametrize("inside", [False, True], ids=["alone", "in a subagent"])
async def test_a_run_that_waits_has_the_numbers_of_what_it_has_done(tmp_path, observed, inside):
    first = reply("", tool_calls=(call("look"), call("look")), **USED)
    turns = [first, reply("", tool_calls=(call("pay"),), **USED), reply("Done.", **USED)]
    hooks = [ask, wait, RecordHook(tmp_path / "records")]
    agent = Agent("payer", llm=ScriptedModel(turns), tools=[look, pay], hooks=hooks)
    if inside:
        team = Team([agent])
        start = reply("", tool_calls=(call("delegate", to="payer", task="Pay."),), **USED)
        agent = Agent("boss", llm=ScriptedModel([start, reply("Fine.")]), tools=[team], hooks=hooks)
    with closing(RunStore(tmp_path / "runs.db")) as store:
        observer = ObservabilityHook(store)
        if observed:
            agent.hooks.register(observer)
        with pytest.raises(RunWaitingError) as waiting:
            await agent.arun(TASK, durable=store)
        assert not observed or observer.flush(10)
        row = store.get(waiting.value.run_id)
        (recorded,) = read_runs([tmp_path / "records"])
        found = {"record": explain(recorded), "events": stored_view(store, row)}
        if observed:
            found["facts"] = facts_view(row, store.tree_facts(row.id))
        expected = {"status": "waiting", "steps": 1 if inside else 2, "tool_calls": 0 if inside else 2}
        expected |= {
            "input_tokens": 21 if inside else 14,
            "output_tokens": 9 if inside else 6,
            "cost": 1.5 if inside else 1.0,
        }
        assert {name: numbers_of_view(view) for name, view in found.items()} == dict.fromkeys(found, expected)
        assert numbers_of_row(row) == expected
        assert {view.why for view in found.values()} == {"It waits for a decision about pay."}
        (block,) = [each for file in (tmp_path / "records").iterdir() for each in read_blocks(file, Account())]
        summary = summarize(block, Account())
        assert (summary.status, summary.steps) == (recorded.status, recorded.steps) == (row.status, row.steps)
        assert [numbers_of_row(each) for each in store.runs(outermost=True)] == [expected]


@pytest.mark.timeout(600)
async def test_every_view_of_every_vector_has_the_same_numbers(tmp_path):
    failures = Failures()
    for number, vector in enumerate(vectors()):
        place = tmp_path / f"{number}"
        place.mkdir()
        with failures.of({"vector": vector.id}):
            found = await numbers_at_every_door(vector, place)
            assert {name: each for name, each in found.items() if each != found["list"]} == {}, found["list"]
    failures.check(number + 1)


@pytest.mark.timeout(600)  # as many requests as there are vectors, three times
async def test_every_page_of_a_server_has_the_same_numbers_of_every_vector(tmp_path):
    api, failures = Api(), Failures()
    chosen = [each for each in vectors() if doors()["api"].why_not(each) is None]
    async with api.open(tmp_path, chosen):
        for vector in chosen:
            with failures.of({"vector": vector.id}):
                run = await api.run(vector)
                id, accept = run["id"], {"accept": "application/json"}
                view = (await api.client.get(f"/runs/{id}/explain", headers=accept)).json()
                view = {"input_tokens": 0, "output_tokens": 0, "tool_calls": 0, "step_count": 0} | view
                listed = (await api.client.get(f"/runs?agent={api.names[vector.id]}")).json()["runs"]
                head = BeautifulSoup((await api.client.get(f"/console/runs/{id}")).text, "lxml")
                shown = {str(each.contents[0]).strip(): each.b.text for each in head.select("#run-head li") if each.b}
                numbers = {name: run[name] for name in NUMBERS}
                assert {name: view["step_count" if name == "steps" else name] for name in NUMBERS} == numbers
                assert [{name: each[name] for name in NUMBERS} for each in listed] == [numbers]
                assert (shown["steps"], shown["tool calls"]) == (f"{run['steps']:,}", f"{run['tool_calls']:,}")
                assert shown["tokens"].startswith(f"{run['input_tokens']:,} in, {run['output_tokens']:,} out")
    failures.check(len(chosen))
