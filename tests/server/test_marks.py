"""The tools and verdicts of served runs, as columns of their events."""

import pytest

from hookline import (
    AFTER_LLM,
    AFTER_TOOL,
    BEFORE_LLM,
    BEFORE_TOOL,
    ON_RUN_START,
    Agent,
    HookResult,
    ScriptedModel,
    call,
    guard,
    reply,
    tool,
)
from hookline._kernel.events import HookExecuted
from hookline.server.marks import is_refusal
from hookline.stores.run_queries import refusals, verdict_counts
from hookline.teams import Team

from ..waiting import wait_until
from .rig import ADMIN, ME, make, serving


@tool
def delete(name: str) -> str:
    """Delete a file."""
    raise AssertionError("the guard blocks it")


@tool
def look(name: str) -> str:
    """Look at a file."""
    return "nothing"


@guard(BEFORE_TOOL, tools="delete")
def no_deleting(ctx, payload):
    return HookResult.block("nothing is deleted")


TURNS = [call("look", name="a"), call("delete", name="a"), reply("done")]


@pytest.mark.parametrize("durable", [False, True])
async def test_runs_are_found_by_tool_hook_and_verb_and_blocked_calls_have_their_tool(tmp_path, durable):
    agent = make(TURNS, tools=[delete, look], hooks=[no_deleting])
    async with serving(tmp_path, agent, make(name="quiet"), durable=durable) as service:
        run = await service.start(ME, "tidy up", agent="helper")
        other = await service.start(ME, "say hello", agent="quiet")
        for each in (run, other):
            assert (await service.wait(each.id, ME)).status == "completed"
        for chosen in ({"tool": "delete"}, {"tool": "look"}, {"hook": "no_deleting"}, {"verb": "block"}):
            assert [each.id for each in await service.list(ADMIN, **chosen)] == [run.id], chosen
        assert verdict_counts(service.store, [run.id, other.id]) == {run.id: {"block": 1}}
        (found,) = refusals(service.store, 10, owner=ME.id)
        assert (found.run_id, found.hook, found.tool, found.verb) == (run.id, "no_deleting", "delete", "block")
        assert (found.reason, found.arguments) == ("nothing is deleted", '{"name":"a"}')


async def test_a_call_of_a_subagent_counts_for_the_run_of_the_caller(tmp_path):
    inner = Agent("inner", llm=ScriptedModel([call("delete", name="b"), reply("no")]), tools=[delete])
    team = Team(max_handoffs=0)
    outer = make([call("delegate", to="inner", task="go"), reply("done")], tools=[team], hooks=[no_deleting])
    for agent in (outer, inner):
        team.add(agent)
    async with serving(tmp_path, outer) as service:
        run = await service.start(ME, "tidy up")
        await service.wait(run.id, ME)
        (found,) = refusals(service.store, 10, owner=ME.id)
        assert (found.run_id, found.tool, found.arguments) == (run.id, "delete", '{"name":"b"}')
        assert [each.id for each in await service.list(ME, tool="delete", verb="block")] == [run.id]


async def test_a_call_that_a_person_denies_is_a_refusal(tmp_path):
    @guard(BEFORE_TOOL, tools="look")
    def ask(ctx, payload):
        return HookResult.ask("May it?")

    async with serving(tmp_path, make([call("look", name="a"), reply("done")], tools=[look], hooks=[ask])) as service:
        run, store = await service.start(ME, "x"), service.approvals
        await wait_until(lambda: store.rows(status="pending"))
        (row,) = store.rows(status="pending")
        store.decide(row.id, decision="deny", digest=row.digest, by="ann", message="not today")
        await service.wait(run.id, ME)
        (found,) = refusals(service.store, 10)
        assert (found.verb, found.tool, found.by, found.reason) == ("denied", "look", "ann", "not today")
        assert verdict_counts(service.store, [run.id]) == {run.id: {"ask": 1, "claim": 1, "denied": 1}}


@pytest.mark.parametrize(
    ("verb", "point", "phase", "refused"),
    [
        ("block", BEFORE_TOOL, "guard", True),
        ("end", BEFORE_LLM, "guard", True),
        ("end", AFTER_TOOL, "guard", False),
        ("stop", ON_RUN_START, "guard", True),
        ("stop", AFTER_TOOL, "guard", False),
        ("retry", AFTER_LLM, "guard", True),
        ("retry", AFTER_TOOL, "guard", False),
        ("failed", BEFORE_TOOL, "guard", True),
        ("failed", BEFORE_TOOL, "observe", False),
        ("replace", BEFORE_TOOL, "rewrite", False),
        ("ask", BEFORE_TOOL, "guard", False),
    ],
)
def test_a_verdict_that_prevents_something_is_a_refusal(verb, point, phase, refused):
    assert is_refusal(HookExecuted(point=str(point), verb=verb, phase=phase)) is refused
