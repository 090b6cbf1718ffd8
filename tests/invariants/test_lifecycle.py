"""DESIGN 7.1, 7.4, 7.5 and 6.5: every point fires at its moment, and everything that starts also ends."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings

from hookline import (
    AFTER_STEP,
    AFTER_TOOL,
    APPROVAL_REQUESTED,
    BEFORE_STEP,
    BEFORE_TOOL,
    ON_ERROR,
    ON_PROGRESS,
    ON_RUN_END,
    ON_STOP,
    Agent,
    HookRegistry,
    HookResult,
    Limits,
    RunFailedError,
    ScriptedModel,
    Session,
    call,
    guard,
    hook,
    observer,
)
from hookline.events import (
    ApprovalAsked,
    ApprovalDecided,
    PointFired,
    RunFinished,
    RunStarted,
    StepFinished,
    StepStarted,
    ToolEnded,
    ToolProgressed,
    ToolSettled,
    ToolStarted,
)
from hookline.points import POINTS
from hookline.testing import EventLog, sample
from tests.properties import examples
from tests.waiting import until_others_wait

from .strategies import LOOP_POINTS, TOOLS, Played, Scenario, play, recorder, scenarios

OUTCOMES = {"ok", "error", "blocked", "answered", "cancelled"}
NEVER_RAN = {"blocked", "answered"}
quick = settings(max_examples=examples(100), deadline=None)


def read(path: str) -> str:
    return f"what is in {path}"


def broken() -> None:
    raise ValueError("broken")


@guard(BEFORE_TOOL, tools="read")
def ask(ctx: Any, request: Any) -> HookResult:
    return HookResult.ask("may it read?")


@hook(APPROVAL_REQUESTED)
def approve(ctx: Any, request: Any) -> HookResult:
    return HookResult.approve(by="a person")


@hook(ON_STOP)
def one_more(ctx: Any, stopping: Any) -> HookResult | None:
    return HookResult.keep_going("go on") if len(ctx.state.steps) < 3 else None


def full_run(**options: Any) -> tuple[Agent, Played]:
    """Return two calls that fire every point of the loop, then two answers."""
    played = Played(Session("s"))
    hooks = [*recorder(played, *LOOP_POINTS), ask, approve, one_more]
    turns = [[call("read", path="a.txt"), call("broken")], "an answer", "another"]
    return Agent("a", llm=ScriptedModel(turns), tools=[read, broken], hooks=hooks, **options), played


STEP = ["before_step", "before_llm", "on_token", "after_llm"]
TALK = ["before_step", "before_llm", "on_token", "on_token", "on_token", "after_llm", "after_step", "on_stop"]
MOMENTS = [
    "session_start",
    "on_run_start",
    "before_prompt_build",
    *STEP,
    "before_tool",
    "before_tool",
    "approval_requested",
    "approval_decided",
    "on_progress",
    "on_progress",
    "on_progress",
    "on_progress",
    "on_error",
    "after_tool",
    "tool_end_with_path",
    "after_tool",
    "after_step",
    *TALK,
    *[p for p in TALK if p != "on_token"][:2],
    "on_token",
    "on_token",
    "after_llm",
    "after_step",
    "on_stop",
    "on_run_end",
]


async def test_every_point_of_the_loop_fires_at_its_moment() -> None:
    agent, played = full_run(max_parallel_tools=1)
    result = await agent.arun("a task", session=played.session)
    assert result.reply == "another"
    assert [str(point) for point, _ in played.fired] == MOMENTS
    assert {point for point, _ in played.fired} == set(LOOP_POINTS)


async def test_a_later_run_of_the_session_fires_all_but_session_start() -> None:
    agent, played = full_run(max_parallel_tools=1)
    await agent.arun("a task", session=played.session)
    played.fired.clear()
    agent.model.requests.clear()
    await agent.arun("a task", session=played.session)
    assert [str(point) for point, _ in played.fired] == MOMENTS[1:]


async def test_every_fire_is_one_event_if_a_consumer_wants_it() -> None:
    agent, played = full_run()
    await agent.arun("a task", session=played.session, sinks=[log := EventLog()])
    assert Counter(event.point for event in log.of(PointFired)) == Counter(point for point, _ in played.fired)


def test_the_table_has_29_points_and_the_loop_fires_its_own() -> None:
    assert len(POINTS) >= 29
    assert {point for point in POINTS.values() if point.fired_by == "the loop"} == set(LOOP_POINTS)


@pytest.mark.parametrize("point", [point for point in POINTS.values() if point.fired_by != "the loop"])
async def test_points_outside_the_loop_fire_through_the_registry(point: Any) -> None:
    played, registry = Played(Session("s")), HookRegistry()
    registry.extend(recorder(played, point))
    seen = []
    registry.register(observer(point)(lambda ctx, payload: seen.append(payload)))
    payload = sample(point)
    verdict = await registry.fire(point, payload)
    assert verdict.payload == payload
    assert played.at(point) == seen == [payload]


@quick
@given(scenarios())
def test_on_run_end_fires_exactly_once(scenario: Scenario) -> None:
    (played,) = asyncio.run(play(scenario))
    assert len(played.at(ON_RUN_END)) == 1


@pytest.mark.parametrize("reason", ["before it began", "in on_run_end"])
async def test_on_run_end_fires_once_when_cancelled_at_the_edges(reason: str) -> None:
    ends = []

    @hook(ON_RUN_END)
    async def end(ctx: Any, result: Any) -> None:
        ends.append(result.status)
        ctx.interrupt.cancel()
        await asyncio.sleep(0)

    run = Agent("a", llm=ScriptedModel(["hello"]), hooks=[end]).start("a task")
    if reason == "before it began":
        run.cancel()
    result = await run.result()
    assert ends == [result.status]
    assert result.status == ("cancelled" if reason == "before it began" else "completed")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
async def test_on_run_end_fires_once_when_the_process_exits(error: type[BaseException]) -> None:
    ends = []

    @hook("before_step")
    def leave(ctx: Any, step: Any) -> None:
        raise error

    end = hook(ON_RUN_END)(lambda ctx, result: ends.append(result.status))
    run = Agent("a", llm=ScriptedModel(["hello"]), hooks=[leave, end]).arun("a task")
    with pytest.raises(error):
        await run
    assert ends == ["failed"]


@quick
@given(scenarios())
def test_every_attempt_of_a_call_ends_once_and_every_call_is_settled_once(scenario: Scenario) -> None:
    (played,) = asyncio.run(play(scenario, ON_PROGRESS, AFTER_TOOL))
    check_pairs([(p.phase, p.call_id, p.attempt, p.outcome) for p in played.at(ON_PROGRESS) if p.phase != "progress"])
    if scenario.listening:
        kinds = {ToolStarted: "tool_start", ToolEnded: "tool_end"}
        events = [event for event in played.log if type(event) in kinds]
        check_pairs([(kinds[type(e)], e.call_id, e.attempt, getattr(e, "outcome", None)) for e in events])
        check_settled(played.log, [made.id for message in played.session.messages for made in message.tool_calls])
    ended = {(p.call_id, p.attempt): p.outcome for p in played.at(ON_PROGRESS) if p.phase == "tool_end"}
    assert {(r.id, r.attempt): r.outcome for r in played.at(AFTER_TOOL)} == ended


@pytest.mark.parametrize("size", [1, 3])
async def test_calls_that_are_cancelled_while_they_run_are_reported_as_ended(size: int) -> None:
    played, begun = Played(Session("s")), asyncio.Event()

    async def wait(number: int) -> None:
        if number == size:
            begun.set()
        await asyncio.Event().wait()

    model = ScriptedModel([[call("wait", number=number + 1) for number in range(size)]])
    agent = Agent("a", llm=model, tools=[wait], hooks=recorder(played, ON_PROGRESS))
    run = agent.start("a task", sinks=[log := EventLog()])
    await begun.wait()
    run.cancel("now")
    assert (await run.result()).status == "cancelled"
    reports = [(p.phase, p.call_id, p.attempt, p.outcome) for p in played.at(ON_PROGRESS)]
    check_pairs(reports)
    assert [outcome for _, _, _, outcome in reports] == [None] * size + ["cancelled"] * size
    assert [event.outcome for event in log.of(ToolEnded)] == ["cancelled"] * size


class Some(EventLog):
    events = frozenset((ToolStarted, ToolProgressed, ToolEnded))


@quick
@given(scenarios())
def test_the_events_of_calls_are_paired_for_a_consumer_of_only_these(scenario: Scenario) -> None:
    played, log = Played(Session("s")), Some()
    hooks = [*recorder(played, AFTER_TOOL), *(spec.build(f"{spec.say}_{i}") for i, spec in enumerate(scenario.hooks))]
    model = ScriptedModel(scenario.turns, loop=True)
    agent = Agent("a", llm=model, tools=TOOLS, hooks=hooks, limits=Limits(steps=scenario.max_steps), sinks=[log])
    with suppress(RunFailedError):
        agent.run("a task")
    kinds = {ToolStarted: "tool_start", ToolEnded: "tool_end"}
    reports = [event for event in log if type(event) in kinds]
    check_pairs([(kinds[type(e)], e.call_id, e.attempt, getattr(e, "outcome", None)) for e in reports])
    assert all(event.message for event in log)
    ended = {(e.call_id, e.attempt): e.outcome for e in log.of(ToolEnded)}
    assert {(r.id, r.attempt): r.outcome for r in played.at(AFTER_TOOL)} == ended


def check_pairs(reports: list[tuple[str, str, int, str | None]]) -> None:
    """Check that every attempt has exactly one end, and a start before it if and only if the tool ran."""
    started, over = set(), set()
    for phase, *key, outcome in reports:
        attempt = tuple(key)
        assert attempt not in over
        if phase == "tool_start":
            assert attempt not in started
            started.add(attempt)
        else:
            over.add(attempt)
            assert outcome in OUTCOMES
            assert outcome not in NEVER_RAN if attempt in started else outcome != "ok"
    assert started <= over


def check_settled(log: EventLog, calls: list[str]) -> None:
    """Check that every call has one settled event, after its last end."""
    settled = [event.call_id for event in log.of(ToolSettled)]
    assert sorted(settled) == sorted(calls)
    for event in log.of(ToolSettled):
        assert all(end.seq < event.seq for end in log.of(ToolEnded) if end.call_id == event.call_id)


@quick
@given(scenarios())
def test_after_tool_fires_for_every_call_in_call_order(scenario: Scenario) -> None:
    (played,) = asyncio.run(play(scenario, AFTER_TOOL))
    called = [call.id for message in played.session.messages for call in message.tool_calls]
    assert list(dict.fromkeys(result.id for result in played.at(AFTER_TOOL))) == called


@quick
@given(scenarios())
def test_each_step_that_began_gets_its_after_step(scenario: Scenario) -> None:
    (played,) = asyncio.run(play(scenario, BEFORE_STEP, AFTER_STEP))
    steps = [(str(point), payload.index) for point, payload in played.fired if point != ON_RUN_END]
    wanted = [(point, index) for index in range(len(steps) // 2) for point in ("before_step", "after_step")]
    assert steps == wanted


@quick
@given(scenarios())
def test_events_are_numbered_without_gaps_and_close_what_they_open(scenario: Scenario) -> None:
    (played,) = asyncio.run(play(scenario))
    log = played.log
    if not scenario.listening:
        return
    assert [event.seq for event in log] == list(range(1, len(log) + 1))
    assert len(log.of(RunStarted)) <= 1
    assert len(log.of(RunFinished)) == 1
    assert isinstance(log[-1], RunFinished)
    assert [e.index for e in log.of(StepStarted)] == [e.index for e in log.of(StepFinished)]
    assert Counter(e.call_id for e in log.of(ApprovalAsked)) == Counter(e.call_id for e in log.of(ApprovalDecided))


@pytest.mark.parametrize("stubborn", [False, True])
async def test_an_open_approval_is_decided_once_when_the_run_is_cancelled(stubborn: bool) -> None:
    decided = []

    @hook(APPROVAL_REQUESTED)
    async def dawdle(ctx: Any, request: Any) -> HookResult:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            if not stubborn:
                raise
            await asyncio.sleep(0.01)
        return HookResult.approve()

    ask_all = guard(BEFORE_TOOL)(lambda ctx, request: HookResult.ask("?"))
    decide = observer("approval_decided")(lambda ctx, decision: decided.append(decision.decision))
    agent = Agent("a", llm=ScriptedModel([[call("read", path="a")] * 2]), tools=[read], hooks=[ask_all, dawdle, decide])
    run = agent.start("a task")
    await until_others_wait()
    run.cancel()
    assert (await run.result()).status == "cancelled"
    await asyncio.sleep(0.03)
    assert decided == ["cancelled", "cancelled"]


async def test_an_error_reaches_on_error_with_its_place() -> None:
    played = Played(Session("s"))
    turns = [call("broken"), call("missing"), call("read", nothing=1), RuntimeError("down")]
    agent = Agent("a", llm=ScriptedModel(turns), tools=[broken, read], hooks=recorder(played, ON_ERROR))
    with pytest.raises(Exception, match="down"):
        await agent.arun("a task")
    assert [failure.where for failure in played.at(ON_ERROR)] == ["tool", "tool", "tool", "model"]
    assert [failure.fatal for failure in played.at(ON_ERROR)] == [False, False, False, True]
