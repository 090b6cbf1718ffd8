"""The tools and verdicts of served runs, as columns of their events."""

from collections import Counter

import pytest

from hookline import (
    AFTER_LLM,
    AFTER_TOOL,
    APPROVAL_REQUESTED,
    BEFORE_LLM,
    BEFORE_TOOL,
    ON_PROGRESS,
    ON_RUN_START,
    Agent,
    HookResult,
    ScriptedModel,
    call,
    guard,
    hook,
    observer,
    reply,
    tool,
)
from hookline.hooks import ObservabilityHook
from hookline.stores.approvals import ApprovalStore
from hookline.stores.run_queries import refusals, verdict_times
from hookline.stores.run_statistics import run_stats
from hookline.teams import Team

from ..waiting import wait_until
from .rig import ADMIN, ME, make, serving


def verbs_of(store, ids):
    return {run_id: dict(Counter(verb for _, verb in spoken)) for run_id, spoken in verdict_times(store, ids).items()}


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
        assert verbs_of(service.store, [run.id, other.id]) == {run.id: {"block": 1}}
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
        assert verbs_of(service.store, [run.id]) == {run.id: {"ask": 1, "claim": 1, "denied": 1}}


def boom(ctx, payload):
    raise OSError("gone")


def says(result):
    return lambda ctx, payload: result if getattr(payload, "attempt", 1) == 1 else None


def always(result):
    return lambda ctx, payload: result


STAYS = HookResult.block("it stays")
ENDS = HookResult.end("Enough.")
AGAIN = HookResult.retry("again")
STOPS = HookResult.stop("Enough.")
CASES = {
    "a guard blocks": ([guard(BEFORE_TOOL, name="h")(says(STAYS))], ["h block"]),
    "a rewriter blocks": ([hook(BEFORE_TOOL, name="h")(says(STAYS))], ["h block"]),
    "a guard that fails open": ([guard(BEFORE_TOOL, name="h", on_failure="open")(boom)], []),
    "a guard that fails and blocks": ([guard(BEFORE_TOOL, name="h", on_failure="block")(boom)], ["h failed"]),
    "a guard that fails closed": ([guard(BEFORE_TOOL, name="h")(boom)], ["h failed"]),
    "a rewriter that fails open": ([hook(BEFORE_TOOL, name="h", on_failure="open")(boom)], []),
    "a rewriter that fails and blocks": ([hook(BEFORE_TOOL, name="h", on_failure="block")(boom)], ["h failed"]),
    "a rewriter that fails closed": ([hook(BEFORE_TOOL, name="h")(boom)], ["h failed"]),
    "an observer that fails": ([observer(BEFORE_TOOL, name="h")(boom)], []),
    "an observer that fails closed": ([observer(BEFORE_TOOL, name="h", on_failure="closed")(boom)], ["h failed"]),
    "one guard fails open, another blocks": (
        [guard(BEFORE_TOOL, name="h", on_failure="open")(boom), guard(BEFORE_TOOL, name="g")(says(STAYS))],
        ["g block"],
    ),
    "the second of two closed failures": (
        [guard(BEFORE_TOOL, name="h")(boom), observer(BEFORE_TOOL, name="g", on_failure="closed")(boom)],
        ["h failed"],
    ),
    "an end before a model call": ([guard(BEFORE_LLM, name="h")(says(ENDS))], ["h end"]),
    "an end after a tool call": ([guard(AFTER_TOOL, name="h")(says(ENDS))], []),
    "a closed failure after a tool call": ([guard(AFTER_TOOL, name="h")(boom)], []),
    "a closed failure after a model call": ([guard(AFTER_LLM, name="h")(boom)], ["h failed"]),
    "a closed failure while a tool runs": ([observer(ON_PROGRESS, name="h", on_failure="closed")(boom)], []),
    "a stop before the run": ([guard(ON_RUN_START, name="h")(says(STOPS))], ["h stop"]),
    "a stop before a tool call": ([guard(BEFORE_TOOL, name="h")(says(STOPS))], ["h stop"]),
    "a stop after a tool call": ([guard(AFTER_TOOL, name="h")(says(STOPS))], []),
    "a rejected reply": (
        [guard(AFTER_LLM, name="h")(lambda ctx, it: AGAIN if it.attempt == 1 else None)],
        ["h retry"] * 2,
    ),
    "a reply that a rewriter may not reject again": (
        [hook(AFTER_LLM, name="h")(lambda ctx, it: AGAIN if it.tool_calls else None)],
        ["h retry"] * 2,
    ),
    "a tool call that is repeated": ([guard(AFTER_TOOL, name="h")(says(AGAIN))], []),
    "a changed call": ([hook(BEFORE_TOOL, name="h")(says(HookResult.replace({"arguments": {"name": "b"}})))], []),
    "an answered call": ([guard(BEFORE_TOOL, name="h")(says(HookResult.answer("nothing")))], []),
    "an approver that denies": (
        [
            guard(BEFORE_TOOL, name="g")(says(HookResult.ask("May it?"))),
            hook(APPROVAL_REQUESTED, name="h")(always(HookResult.deny())),
        ],
        ["h denied"],
    ),
    "an approver that fails": (
        [guard(BEFORE_TOOL, name="g")(says(HookResult.ask("May it?"))), hook(APPROVAL_REQUESTED, name="h")(boom)],
        ["h denied"],
    ),
}


async def test_every_list_of_refusals_has_what_a_hook_prevented_and_nothing_else(tmp_path):
    def turn(request):
        return reply("done") if any(each.role == "tool" for each in request.messages) else call("look", name="a")

    recorder = ObservabilityHook(tmp_path / "runs.db")
    agents = [
        Agent(name, llm=ScriptedModel([turn], loop=True), tools=[look], hooks=[recorder, *hooks])
        for name, (hooks, _) in CASES.items()
    ]
    listed, said, counted = {}, {}, {}
    async with serving(tmp_path, *agents) as service:
        for name in CASES:
            run = await service.start(ME, "x", agent=name)
            await service.wait(run.id, ME)
            found = refusals(service.store, 10, agent=name)
            listed[name] = [f"{each.hook or each.by} {each.verb}" for each in found]
            answers = service.store.verdicts(run.id, 0, 100)
            said[name] = [f"{each.hook or each.by} {each.verb}" for each in answers if each.refused]
            assert {each.tool for each in found if each.point in (BEFORE_TOOL, APPROVAL_REQUESTED)} <= {"look"}
        recorder.flush()
        for name in CASES:
            found = run_stats(service.store, agent=name).refusals
            counted[name] = [f"{each.hook} {each.verb}" for each in found for _ in range(each.count)]
    expected = {name: refused for name, (_, refused) in CASES.items()}
    assert listed == expected
    assert said == expected
    assert counted == expected


async def test_a_call_that_was_denied_while_its_run_was_suspended_has_its_tool(tmp_path):
    @guard(BEFORE_TOOL, tools="look")
    def ask(ctx, payload):
        return HookResult.ask("May it?")

    @guard(BEFORE_TOOL, tools="look", name="not_b")
    def not_b(ctx, payload):
        return HookResult.block("not b") if payload.arguments["name"] == "b" else None

    recorder = ObservabilityHook(tmp_path / "runs.db")

    def turn(request):
        calls = [call("look", name="denied"), call("look", name="edited")]
        return reply("done") if request.messages[-1].role == "tool" else calls

    def agent():
        return Agent("helper", llm=ScriptedModel([turn], loop=True), tools=[look], hooks=[recorder, ask, not_b])

    async with serving(tmp_path, agent(), durable=True) as service:
        run = await service.start(ME, "x")
        await wait_until(lambda: service.store.journal.get(run.id).status == "waiting" and run.id not in service._live)
    store = ApprovalStore(tmp_path / "approvals.db")
    for row in store.rows(status="pending"):
        edited = {"name": "b"} if row.arguments["name"] == "edited" else None
        decision = "edit" if edited else "deny"
        store.decide(row.id, decision=decision, digest=row.digest, by="ann", arguments=edited)
    store.close()
    async with serving(tmp_path, agent(), durable=True) as service:
        assert (await service.wait(run.id, ME)).status == "completed"
        found = refusals(service.store, 10, tool="look")
        assert {(each.verb, each.hook or each.by) for each in found} == {("denied", "ann"), ("block", "not_b")}
        recorder.flush()
        stats = run_stats(service.store)
        assert {(each.verb, each.tool) for each in stats.refusals} == {("denied", "look"), ("block", "look")}
        assert [each.tool for each in stats.approvals] == ["look"]
