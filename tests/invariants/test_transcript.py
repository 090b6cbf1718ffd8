"""DESIGN 7.3: each tool call gets exactly one result, in call order, in all cases."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hookline import (
    AFTER_STEP,
    AFTER_TOOL,
    BEFORE_TOOL,
    ON_RUN_END,
    ON_RUN_START,
    Agent,
    HookResult,
    Limits,
    Message,
    RunFailedError,
    ScriptedModel,
    Session,
    call,
    guard,
    hook,
)
from hookline.payloads import ToolCall
from tests.properties import examples
from tests.waiting import until_others_wait

from .strategies import (
    STATUSES,
    TOOLS,
    HookSpec,
    Scenario,
    check_transcript,
    endless,
    fine,
    hook_specs,
    play,
    scenarios,
    slow,
    turns,
)

quick = settings(max_examples=examples(150), deadline=None)


async def run(turns: Any, tools: Any = TOOLS, hooks: Any = (), **options: Any) -> Any:
    try:
        return await Agent("a", llm=ScriptedModel(turns), tools=tools, hooks=hooks).arun("a task", **options)
    except RunFailedError as failed:
        return failed.result


@quick
@given(scenarios())
@example(Scenario((HookSpec(BEFORE_TOOL, "guard", "raise"),), ([call("fine"), call("slow")],)))
@example(Scenario((HookSpec(AFTER_TOOL, "rewrite", "end"),), ([call("fine"), call("slow")],)))
def test_every_call_has_one_result_for_any_hooks_tools_and_models(scenario: Scenario) -> None:
    (played,) = asyncio.run(play(scenario))
    check_transcript(played.session.messages)
    (final,) = played.at(ON_RUN_END)
    check_transcript(final.messages)
    assert played.result is not None or isinstance(played.raised, asyncio.CancelledError)


@settings(max_examples=examples(60), deadline=None)
@given(scenarios(runs=3))
def test_a_session_stays_valid_over_several_runs(scenario: Scenario) -> None:
    played = asyncio.run(play(scenario))
    check_transcript(played[-1].session.messages)
    said = [message for one in played for message in one.at(ON_RUN_END)[0].messages]
    kept = [message for message in played[-1].session.messages if message.content != "a note"]
    assert kept == [message for message in said if message.content != "a note"]


@quick
@given(scenarios())
def test_the_status_of_a_run_matches_its_events(scenario: Scenario) -> None:
    (played,) = asyncio.run(play(scenario))
    status = played.at(ON_RUN_END)[0].status
    assert status in STATUSES
    if played.result is not None:
        assert played.result.status in (status, "failed")
        assert (played.result.status == "failed") == isinstance(played.raised, RunFailedError)
        assert (played.result.hook_ended is not None) == (status == "ended")
    if scenario.cancel is None:
        assert status != "cancelled"


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(turns, min_size=1, max_size=4), st.lists(hook_specs((BEFORE_TOOL, AFTER_TOOL)), max_size=4))
def test_requests_are_as_valid_as_the_transcript(script: list[Any], specs: list[HookSpec]) -> None:
    model = ScriptedModel(script, loop=True)
    hooks = [spec.build(f"{spec.say}_{i}") for i, spec in enumerate(specs)]
    agent = Agent("a", llm=model, tools=TOOLS, hooks=hooks, limits=Limits(steps=4))
    try:
        asyncio.run(agent.arun("a task"))
    except RunFailedError:
        pass
    for request in model.requests:
        check_transcript(request.messages)


@pytest.mark.parametrize("size", [1, 3])
async def test_calls_cut_off_by_a_cancellation_get_cancelled_results(size: int) -> None:
    session = Session("s")
    agent = Agent("a", llm=ScriptedModel([[call("endless")] * size]), tools=[endless])
    run = agent.start("a task", session=session)
    await until_others_wait()
    run.cancel()
    result = await run.result()
    assert result.status == "cancelled"
    check_transcript(session.messages)
    assert [m.is_error for m in session.messages if m.role == "tool"] == [True] * size


async def test_a_late_result_of_a_cancelled_call_is_dropped() -> None:
    async def stubborn() -> str:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
        return "too late"

    @hook(AFTER_TOOL)
    async def take_time(ctx: Any, result: Any) -> None:
        await asyncio.sleep(0.03)

    agent = Agent("a", llm=ScriptedModel([[call("stubborn"), call("endless")]]), tools=[stubborn, endless])
    agent.register_hook(take_time)
    run = agent.start("a task")
    await until_others_wait()
    run.cancel()
    result = await run.result()
    assert "too late" not in [message.content for message in result.messages]


@pytest.mark.parametrize(
    "value", ["\ud800", ["\ud800"], {"\ud800": 1}, 2**70, [2**70], float("inf"), b"\xff", {1: {2}}, object()]
)
async def test_whatever_a_tool_returns_becomes_a_result(value: Any) -> None:
    def give() -> Any:
        return value

    result = await run([call("give"), "done"], [give])
    check_transcript(result.messages)
    assert result.status == "completed"


async def test_a_value_that_json_cannot_hold_is_served_or_refused_but_never_breaks_the_transcript() -> None:
    @hook(BEFORE_TOOL)
    def answer(ctx: Any, request: Any) -> HookResult:
        return HookResult.answer(["\ud800"])

    result = await run([[call("fine"), call("slow")], "done"], hooks=[answer])
    check_transcript(result.messages)


async def test_an_exception_that_cannot_be_printed_is_an_error_result() -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    def fail() -> None:
        raise Unprintable

    result = await run([call("fail"), "done"], [fail])
    check_transcript(result.messages)
    assert result.status == "completed"


def pair(call_id: str) -> tuple[Message, Message]:
    asked = Message("assistant", "", (ToolCall(call_id, "fine", {}),))
    return asked, Message("tool", "0", (), call_id, "fine")


@pytest.mark.parametrize("point", [ON_RUN_START, BEFORE_TOOL, AFTER_TOOL, AFTER_STEP])
@pytest.mark.parametrize(
    "added",
    [pair("own"), pair("own") * 2, pair("own")[::-1], pair("own")[:1], pair("own")[1:], pair("call_0_0")],
    ids=["pair", "twice", "reversed", "call only", "result only", "an id of the model's"],
)
async def test_calls_that_a_hook_adds_to_the_state_keep_the_transcript_valid(point: Any, added: Any) -> None:
    done = []

    @hook(point)
    def add(ctx: Any, payload: Any) -> HookResult | None:
        if done:
            return None
        done.append(point)
        return HookResult.cont(state=ctx.state.with_messages(*added))

    result = await run([[call("fine"), call("slow")], "done"], hooks=[add])
    check_transcript(result.messages)


@pytest.mark.parametrize(
    "change",
    [
        lambda messages: messages[::-1],
        lambda messages: [m for m in messages if m.role != "tool"],
        lambda messages: [m for m in messages if not m.tool_calls],
        lambda messages: messages[:2] + [Message("user", "between")] + messages[2:],
        lambda messages: messages[:2] + messages[2:][::-1],
    ],
    ids=["reversed", "no results", "no calls", "split", "results reversed"],
)
async def test_a_state_in_which_calls_and_results_do_not_match_is_rejected(change: Any) -> None:
    @hook(AFTER_STEP)
    def spoil(ctx: Any, step: Any) -> HookResult | None:
        return HookResult.cont(state=ctx.state.replace(messages=change(list(ctx.state.messages))))

    result = await run([[call("fine"), call("slow")], "done"], hooks=[spoil])
    assert result.status == "failed"
    assert "spoil" in result.errors[0].message
    check_transcript(result.messages)


async def test_a_note_added_while_calls_are_open_follows_their_results() -> None:
    @guard(BEFORE_TOOL, AFTER_TOOL)
    def note(point: Any, ctx: Any, payload: Any) -> HookResult:
        return HookResult.cont(state=ctx.state.with_messages(Message("user", f"{point} {payload.id}")))

    result = await run([[call("fine"), call("slow")], "done"], [fine, slow], [note])
    check_transcript(result.messages)
    notes = [message.content for message in result.messages if message.role == "user"]
    assert notes == ["a task"] + [f"{point} call_0_{i}" for point in ("before_tool", "after_tool") for i in (0, 1)]
    assert [message.role for message in result.messages[-6:]] == ["tool", "user", "user", "user", "user", "assistant"]
