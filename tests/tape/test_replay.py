"""Replays call no model, tool or approver, repeat recorded readings, and find differences."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest

from hookline import (
    AFTER_LLM,
    AFTER_TOOL,
    APPROVAL_REQUESTED,
    BEFORE_LLM,
    BEFORE_STEP,
    BEFORE_TOOL,
    ON_ERROR,
    ON_PROGRESS,
    ON_RUN_END,
    ON_TOKEN,
    Agent,
    AgentContext,
    AgentResult,
    Budget,
    HookResult,
    Limits,
    ModelRequest,
    RunFailedError,
    ScriptedModel,
    Session,
    call,
    guard,
    hook,
    observer,
    tool,
)
from hookline.events import TextDelta
from hookline.hooks import TokenUsageLimitHook
from hookline.models import ModelResponse, OverloadedError
from hookline.tape import Replay, Tape, TapeError, TapeHook, areplay, replay, replay_all
from hookline.tape import format as fmt
from hookline.teams import Team

CALLED: list[str] = []


@tool
def add(a: int, b: int) -> int:
    """Add."""
    CALLED.append("add")
    return a + b


class Silent:
    """A model that must not be called."""

    name, provider = "scripted", "scripted"

    async def complete(self, request: ModelRequest) -> ModelResponse:
        raise AssertionError("the model was asked")

    async def stream(self, request: ModelRequest) -> AsyncIterator[str | ModelResponse]:
        raise AssertionError("the model was asked")
        yield ""

    def count_tokens(self, content: Any) -> int:
        raise AssertionError("the model was asked")


@pytest.fixture(autouse=True)
def path(tmp_path: Path) -> Path:
    CALLED.clear()
    return tmp_path / "run.tape"


def record(path: Path, turns: list[Any], *hooks: Any, **options: Any) -> AgentResult:
    """Record one run."""
    model = options.pop("model", None) or ScriptedModel(turns)
    agent = Agent("a", "", "be brief", llm=model, tools=options.pop("tools", [add]), hooks=hooks)
    try:
        return agent.run("a task", hooks=[TapeHook(path)], **options)
    except RunFailedError as failed:
        return failed.result


def check(path: Path, *hooks: Any, **options: Any) -> Replay:
    """Replay with the same hooks and check that everything is the same."""
    CALLED.clear()
    again = replay(path, hooks, **options)
    assert (again.first_difference, again.stop_reason) == ("", "")
    assert again.same
    assert again.recorded == again.replayed
    assert not again.differences
    assert CALLED == []
    then = again.tape.result
    assert then is not None
    assert (again.result.status, again.result.reply, again.result.ids) == (then.status, then.reply, then.ids)
    return again


@guard(BEFORE_TOOL)
def no_ones(ctx: Any, payload: Any) -> HookResult | None:
    return HookResult.block("No ones.", reason="rule 1") if payload.arguments.get("a") == 1 else None


def test_a_replay_needs_neither_model_nor_tools(path: Path) -> None:
    record(path, [[call("add", a=1, b=2), call("add", a=3, b="4"), call("add", a="x")], "done"], no_ones)
    assert CALLED == ["add"]
    assert len(check(path, no_ones).recorded) == 1


def test_the_recorded_agent_can_be_passed_and_its_model_is_not_called(path: Path) -> None:
    record(path, [[call("add", a=1, b=2), call("add", a=3, b=4)], "done"], no_ones)
    CALLED.clear()
    assert replay(path, Agent("a", "", "be brief", llm=Silent(), tools=[add], hooks=[no_ones])).same
    assert CALLED == []


@pytest.mark.filterwarnings("ignore:.*blocks the event loop:RuntimeWarning")
def test_a_replay_inside_a_running_loop_works(path: Path) -> None:
    record(path, ["done"])

    async def inside() -> bool:
        return replay(path).same

    assert asyncio.run(inside())


def test_a_replay_is_not_recorded_over_its_tape(path: Path) -> None:
    agent = Agent("a", llm=ScriptedModel(["done"]), hooks=[TapeHook(path)])
    agent.run("a task")
    before = path.read_bytes()
    assert replay(path, agent).same
    assert path.read_bytes() == before


def test_hooks_read_the_same_times_numbers_and_ids(path: Path) -> None:
    def reader(seen: list[Any]) -> Any:
        @hook(BEFORE_LLM, BEFORE_TOOL, AFTER_TOOL, AFTER_LLM)
        def read(ctx: Any, payload: Any) -> HookResult:
            values = (
                ctx.clock.time(),
                ctx.clock.monotonic(),
                ctx.random.random(),
                ctx.random.randint(0, 10**9),
                ctx.random.choice("abcdef"),
                ctx.random.randbytes(20),
                ctx.new_id("mine"),
                ctx.budget.elapsed,
            )
            seen.append(values)
            return HookResult.cont(reason=repr(values))

        return read

    then: list[Any] = []
    now: list[Any] = []
    record(path, [[call("add", a=1, b=2), call("add", a=2, b=2)], "done"], reader(then))
    check(path, reader(now))
    assert then == now
    assert len(then) == 8


def test_readings_of_a_tool_do_not_shift_the_readings_of_hooks(path: Path) -> None:
    @tool
    def dice(ctx: Any) -> float:
        """Throw."""
        return float(ctx.clock.time() + ctx.random.random())

    def reader(seen: list[Any]) -> Any:
        @hook(AFTER_TOOL)
        def read(ctx: Any, payload: Any) -> None:
            seen.append((ctx.clock.time(), ctx.random.random()))

        return read

    then: list[Any] = []
    now: list[Any] = []
    record(path, [[call("dice"), call("dice")], call("dice"), "done"], reader(then), tools=[dice])
    check(path, reader(now))
    assert then == now


def test_a_time_limit_has_the_same_effect_without_waiting(path: Path) -> None:
    @guard(BEFORE_TOOL)
    def slow(ctx: Any, payload: Any) -> HookResult | None:
        return HookResult.block("Too late.") if ctx.budget.elapsed > 0.05 else None

    @tool
    def wait() -> str:
        """Wait."""
        time.sleep(0.06)
        return "waited"

    record(path, [call("wait"), call("wait"), "done"], slow, tools=[wait])
    again = check(path, slow)
    assert {decision.verb for decision in again.replayed} == {"block"}  # on a busy machine, of both calls


async def test_a_time_limit_that_cancelled_a_model_call_does_so_without_waiting(path: Path) -> None:
    class Hanging(ScriptedModel):
        async def stream(self, request: ModelRequest) -> AsyncIterator[str | ModelResponse]:
            yield "well "
            await asyncio.sleep(3600)

    ctx = AgentContext(budget=Budget(Limits(seconds=0.05)))
    run = Agent("a", llm=Hanging(), hooks=[TapeHook(path)]).start("go", ctx=ctx)
    result = await run.result()
    assert (result.status, result.stop.kind if result.stop else "") == ("stopped", "time_limit")
    again = await asyncio.to_thread(replay, path)
    assert (again.first_difference, again.stop_reason) == ("", "")
    assert again.result.stop == result.stop


def test_a_tool_that_timed_out_does_so_without_waiting(path: Path) -> None:
    @tool(timeout=0.02)
    async def hang() -> None:
        """Hang."""
        await asyncio.sleep(3600)

    result = record(path, [call("hang"), "done"], tools=[hang])
    assert "no result after 0.02 s" in result.messages[2].content
    check(path)


def test_streamed_text_comes_in_the_same_pieces(path: Path) -> None:
    def shout(seen: list[str]) -> Any:
        @hook(ON_TOKEN)
        def loud(ctx: Any, payload: Any) -> Any:
            seen.append(payload.delta)
            return payload.replace(delta=payload.delta.upper())

        return loud

    then: list[str] = []
    now: list[str] = []
    record(path, ["one two three"], shout(then))
    check(path, shout(now))
    assert then == now == ["one", " two", " three", ""]


@pytest.mark.parametrize("mode", ["safe", "live"])
def test_held_and_live_text_is_shown_at_the_same_position_in_a_replay(path: Path, mode: Any) -> None:
    @guard(AFTER_LLM)
    def reject(ctx: Any, payload: Any) -> HookResult | None:
        return HookResult.retry("No.") if "bad" in payload.content else None

    agent = Agent("a", llm=ScriptedModel(["so bad", "so good"]), hooks=[TapeHook(path), reject], stream=mode)
    assert agent.run("x", sinks=[lambda event: None]).reply == "so good"
    check(path, reject)
    shown = [event.text for event in Tape.load(path).events() if isinstance(event, TextDelta)]
    assert shown == (["so good"] if mode == "safe" else ["so", " bad", "so", " good"])


def test_a_stream_that_a_hook_closed_is_closed_again(path: Path) -> None:
    @guard(ON_TOKEN)
    def enough(ctx: Any, payload: Any) -> HookResult | None:
        return HookResult.end("Enough.") if "two" in payload.text else None

    assert record(path, ["one two three"], enough).status == "ended"
    check(path, enough)
    assert not replay(path).same


def test_approvers_are_not_asked_again(path: Path) -> None:
    @guard(BEFORE_TOOL)
    def careful(ctx: Any, payload: Any) -> HookResult:
        return HookResult.ask("Really?")

    def approver(name: str, answer: Any) -> Any:
        @hook(APPROVAL_REQUESTED, name=name)
        def decide(ctx: Any, asked: Any) -> Any:
            CALLED.append(name)
            return answer(asked)

        return decide

    def answer(asked: Any) -> Any:
        a = asked.call.arguments["a"]
        if a == 4:
            raise RuntimeError("nobody is there")
        return {1: HookResult.approve(by="me"), 2: HookResult.deny("No."), 3: HookResult.edit({"a": 9, "b": 9})}[a]

    mine = approver("mine", answer)
    result = record(path, [[call("add", a=n, b=1) for n in (1, 2, 3, 4)], "done"], careful, mine)
    assert [m.content for m in result.messages if m.role == "tool"] == ["2", "No.", "18", "The approval failed."]
    check(path, careful, mine)
    check(path, careful)  # the approver is not needed


def test_a_call_without_a_recorded_approval_is_not_approved(path: Path) -> None:
    record(path, [call("add", a=1, b=2), "done"])

    @guard(BEFORE_TOOL)
    def careful(ctx: Any, payload: Any) -> HookResult:
        return HookResult.ask("Really?")

    again = replay(path, [careful])
    assert [decision.verb for decision in again.replayed] == ["ask"]
    assert (
        again.stop_reason
        == "the next request to the model has other messages than the recorded one, so the reply to it is not known"
    )


def test_retries_failures_and_calls_of_judges_are_answered_from_the_tape(path: Path) -> None:
    @hook(ON_ERROR)
    def patient(ctx: Any, failure: Any) -> HookResult | None:
        return HookResult.retry() if failure.where == "model" and failure.errors[0].retry_after == 3.0 else None

    @hook(AFTER_LLM)
    async def judge(ctx: Any, answer: Any) -> HookResult | None:
        if answer.purpose != "step" or answer.tool_calls:
            return None
        opinion = await ctx.llm.complete(f"Is it good? {answer.content}", purpose="judge")
        return HookResult.retry("Better, please.") if opinion.content == "no" else None

    turns = [OverloadedError("busy", retry_after=3.0), call("add", a=1, b=2), "bad", "no", "good", "yes"]
    assert record(path, turns, patient, judge).reply == "good"
    check(path, patient, judge)


def test_token_counts_are_the_recorded_ones(path: Path) -> None:
    @hook(BEFORE_LLM)
    async def count(ctx: Any, request: Any) -> HookResult:
        counted = ctx.llm.count_tokens(request.messages), await ctx.llm.count_request(request)
        return HookResult.cont(reason=str(counted))

    class Counting(ScriptedModel):
        def count_request(self, request: ModelRequest) -> int:
            return 4711

    record(path, [], count, model=Counting(["done"]))
    assert "4711" in check(path, count).replayed[0].reason


def test_progress_reports_of_tools_are_repeated(path: Path) -> None:
    @tool
    def work(ctx: Any) -> str:
        """Work."""
        ctx.progress(0.5, "half")
        return "done"

    def listener(seen: list[str]) -> Any:
        @observer(ON_PROGRESS)
        def listen(ctx: Any, payload: Any) -> None:
            seen.append(payload.message)

        return listen

    then: list[str] = []
    now: list[str] = []
    record(path, [call("work"), "done"], listener(then), tools=[work])
    check(path, listener(now))
    assert then == now
    assert any("half" in message for message in now)


def test_a_steering_message_is_repeated(path: Path) -> None:
    @tool
    def pause() -> str:
        """Pause."""
        started.wait(10)
        run.steer("And be polite.")
        return "ok"

    started = threading.Event()

    agent = Agent("a", llm=ScriptedModel([call("pause"), "done"]), tools=[pause], hooks=[TapeHook(path)])
    run = agent.start("a task")
    started.set()
    assert run.wait().status == "completed"
    again = check(path)
    assert "And be polite." in [message.content for message in again.result.messages]


@pytest.mark.parametrize("by_caller", [False, True])
async def test_a_cancelled_run_is_cancelled_again(path: Path, by_caller: bool) -> None:
    started = asyncio.Event()

    async def wait() -> None:
        started.set()
        await asyncio.sleep(3600)

    agent = Agent("a", llm=ScriptedModel([call("wait")]), tools=[wait], hooks=[TapeHook(path)])
    if by_caller:
        task = asyncio.ensure_future(agent.arun("go"))
        await started.wait()
        task.cancel()
        await asyncio.wait([task])
    else:
        run = agent.start("go")
        await started.wait()
        run.cancel("enough")
        await run.settled()
    again = await asyncio.to_thread(replay, path)
    assert (again.first_difference, again.stop_reason, again.result.status) == ("", "", "cancelled")


def team(model: Any = None) -> Agent:
    helpers = [
        Agent(f"helper{n}", llm=model or ScriptedModel([call("add", a=n, b=2), f"sum {n}"]), tools=[add])
        for n in (1, 2)
    ]
    both = [call("delegate", to="helper1", task="sum"), call("delegate", to="helper2", task="sum")]
    return Agent("boss", llm=model or ScriptedModel([both, "ok"]), tools=[Team(helpers)], hooks=[no_ones])


def test_nested_runs_are_replayed_without_their_models_and_tools(path: Path) -> None:
    team().run("go", hooks=[TapeHook(path)])
    assert CALLED == ["add"]
    CALLED.clear()
    again = replay(path, team(Silent()))
    assert (again.first_difference, again.stop_reason) == ("", "")
    assert [(decision.hook, decision.verb) for decision in again.replayed] == [("no_ones", "block")]
    assert again.replayed[0].run_id != again.result.ids.run_id
    assert CALLED == []


def test_model_calls_inside_a_tool_are_not_replayed_and_this_is_noted(path: Path) -> None:
    @tool
    async def think(ctx: Any) -> str:
        """Think."""
        return str((await ctx.llm.complete("hm")).content)

    record(path, [call("think"), "thought", "done"], tools=[think])
    assert "model calls and runs inside think are not replayed because a replay calls no tools" in check(path).notes


def test_usage_inside_a_tool_counts_in_the_budget_again(path: Path) -> None:
    @tool
    async def think(ctx: Any) -> str:
        """Think."""
        return str((await ctx.llm.complete("a long thought about this and that")).content)

    ctx = AgentContext(budget=Budget(Limits(tokens=10)))
    assert record(path, [call("think"), "thought", "done"], tools=[think], ctx=ctx).status == "stopped"
    check(path)


async def test_usage_inside_a_tool_counts_where_it_was_spent(path: Path) -> None:
    """It stops a concurrent subagent, before the tool ends."""
    asked, ended = asyncio.Event(), asyncio.Event()

    @tool
    async def think(ctx: Any) -> str:
        """Think, until the subagent has ended."""
        await ctx.llm.complete("a long thought about this and that")
        asked.set()
        await ended.wait()
        return "thought"

    @hook(AFTER_LLM)
    async def wait(ctx: Any, reply: Any) -> None:
        await asked.wait()

    @observer(ON_RUN_END)
    def end(ctx: Any, result: Any) -> None:
        ended.set()

    def boss() -> Agent:
        helper = Agent("helper", llm=ScriptedModel([call("add", a=2, b=3), "5"]), tools=[add], hooks=[wait, end])
        turns = [[call("think"), call("delegate", to="helper", task="sum")], "thought", "done"]
        return Agent("boss", llm=ScriptedModel(turns), tools=[think, Team([helper])])

    ctx = AgentContext(budget=Budget(Limits(tokens=10)))
    result = await boss().arun("go", hooks=[TapeHook(path)], ctx=ctx)
    assert (result.status, CALLED) == ("stopped", [])
    again = await areplay(path, boss())
    assert (again.first_difference, again.stop_reason) == ("", "")
    assert again.result.usage == result.usage


@pytest.mark.timeout(20)
def test_a_run_that_a_tool_starts_in_another_thread_is_part_of_the_tool(path: Path) -> None:
    """A thread of a pool has no copy of the context of the tool; the run is given ``ctx``."""

    def agent() -> Agent:
        helper = Agent("helper", llm=ScriptedModel([call("add", a=2, b=3), "5"]), tools=[add])

        @tool
        def ask(ctx: AgentContext) -> str:
            """Ask another agent."""
            with ThreadPoolExecutor(1) as pool:
                return pool.submit(lambda: helper.run("sum", ctx=ctx).reply).result()

        return Agent("a", llm=ScriptedModel([call("ask"), "done"]), tools=[ask], hooks=[no_ones])

    result = agent().run("go", hooks=[TapeHook(path)])
    assert CALLED == ["add"]
    again = replay(path, agent())
    assert (again.first_difference, again.stop_reason) == ("", "")
    assert (CALLED, again.result.usage) == (["add"], result.usage)


@pytest.mark.slow
def test_a_replay_does_not_need_the_recorded_embedded_model(path: Path) -> None:
    from hookline import get_model

    agent = Agent("a", "", "Be brief.", llm=get_model("local"), params={"max_tokens": 4}, limits=Limits(steps=1))
    result = agent.run("Say hello.", hooks=[TapeHook(path)])
    assert result.usage.output_tokens > 0
    assert check(path).result.usage == result.usage


def test_a_changed_hook_is_reported_with_both_decisions(path: Path) -> None:
    @guard(BEFORE_TOOL, name="no_ones")
    def milder(ctx: Any, payload: Any) -> None:
        return None

    @guard(BEFORE_TOOL)
    def no_threes(ctx: Any, payload: Any) -> HookResult | None:
        return HookResult.block("No threes.", reason="rule 3") if payload.arguments["a"] == 3 else None

    record(path, [[call("add", a=1, b=2), call("add", a=3, b=4)], "done"], no_ones)
    gone = replay(path, [milder])
    assert not gone.same
    assert [str(each) for each in gone.differences] == [
        "recorded: no_ones blocked the call at before_tool: rule 1; replayed: nothing"
    ]
    assert gone.stop_reason == "add was not called at this position in the recording"
    more = replay(path, [no_ones, no_threes])
    assert [str(each) for each in more.differences] == [
        "recorded: nothing; replayed: no_threes blocked the call at before_tool: rule 3"
    ]
    assert more.first_difference.startswith("recorded: all hooks passed at before_tool; replayed: no_threes blocked")
    assert (
        more.stop_reason
        == "the next request to the model has other messages than the recorded one, so the reply to it is not known"
    )
    assert more.result.status == "cancelled"


def test_a_loose_replay_goes_on_with_the_recorded_replies(path: Path) -> None:
    @guard(BEFORE_TOOL)
    def no_threes(ctx: Any, payload: Any) -> HookResult | None:
        return HookResult.block("No threes.") if payload.arguments["a"] == 3 else None

    record(path, [call("add", a=3, b=4), call("add", a=1, b=4), "done"], no_ones)
    again = replay(path, [no_ones, no_threes], strict=False)
    assert (again.stop_reason, again.result.reply, again.same) == ("", "done", False)
    assert [decision.hook for decision in again.replayed] == ["no_threes", "no_ones"]


def test_rewritten_arguments_end_the_replay(path: Path) -> None:
    record(path, [call("add", a=3, b=4), "done"])

    @hook(BEFORE_TOOL)
    def double(ctx: Any, payload: Any) -> Any:
        return payload.replace(arguments={"a": 6, "b": 8})

    assert replay(path, [double]).stop_reason == "add was called with other arguments in the recording"


def test_a_hook_that_ends_the_run_earlier_is_a_difference(path: Path) -> None:
    record(path, [call("add", a=3, b=4), "done"])

    @hook(BEFORE_STEP)
    def halt(ctx: Any, payload: Any) -> HookResult | None:
        return HookResult.stop("enough") if payload.index == 1 else None

    again = replay(path, [halt])
    assert (again.same, again.stop_reason, again.result.status) == (False, "", "stopped")


def test_an_incomplete_tape_is_replayed_to_its_end(path: Path) -> None:
    record(path, [call("add", a=3, b=4), "done"], no_ones)
    lines = path.read_bytes().split(b"\n")
    end = next(i for i, line in enumerate(lines) if line.startswith(b'{"entry":"tool_call"'))
    path.write_bytes(b"\n".join(lines[: end + 1]) + b"\n" + lines[end + 1][:30])
    again = replay(path, [no_ones])
    assert (again.first_difference, again.stop_reason) == ("", "the tape ends before add does")
    assert again.notes == (
        "its last line is incomplete: the program was killed while it wrote",
        "it ends before its run does",
    )


def test_a_replay_continues_the_recorded_conversation(path: Path) -> None:
    session = Session("s")
    first = Agent("a", llm=ScriptedModel(["one"]))
    first.run("before", session=session)
    record(path, ["two"], session=session)
    again = check(path)
    assert [message.content for message in again.tape.run.messages] == ["before", "one"]


def test_limits_have_the_same_effect(path: Path) -> None:
    ctx = AgentContext(budget=Budget(Limits(tokens=12, tool_calls=1)))
    result = record(path, [[call("add", a=3, b=4), call("add", a=4, b=4)], "done"], ctx=ctx)
    assert result.status == "stopped"
    assert check(path).result.stop == result.stop


def test_time_spent_before_the_run_counts_again(path: Path) -> None:
    ctx = AgentContext(budget=Budget(Limits(seconds=0.2)))
    Agent("a", llm=ScriptedModel(["one"])).run("before", ctx=ctx)
    time.sleep(0.21)
    assert record(path, ["two"], ctx=ctx).status == "stopped"
    check(path)


def test_a_tape_can_be_replayed_many_times(path: Path) -> None:
    record(path, [call("add", a=1, b=2), "done"], no_ones)
    tape = Tape.load(path)
    assert all(replay(tape, [no_ones]).same for _ in range(3))


def test_a_replayed_tool_has_the_recorded_effects_and_flags(path: Path) -> None:
    seen: list[Any] = []

    @observer(BEFORE_TOOL)
    def look(ctx: Any, request: Any) -> None:
        found = ctx.tool_registry.get(request.name)
        seen.append((found.effects, found.dangerous, found.untrusted, found.sandbox))

    @tool(effects=["read", "write"], untrusted=True)
    def edit() -> str:
        """Edit."""
        return "edited"

    edit.sandbox = "landlock"
    hooks = [look, TapeHook(path)]
    Agent("a", llm=ScriptedModel([call("edit"), "done"]), tools=[edit], hooks=hooks).run("go")
    replay(path, [look])
    expected = (frozenset({"read", "write"}), True, True, "landlock")
    assert seen == [expected, expected]


@pytest.mark.filterwarnings("ignore:.*blocks the event loop:RuntimeWarning")
async def test_two_tapes_of_one_run_are_both_complete(tmp_path: Path) -> None:
    paths = [tmp_path / "first.tape", tmp_path / "second.tape"]
    started = asyncio.Event()

    @tool
    async def wait(ctx: Any) -> str:
        """Wait for a message."""
        ctx.progress(0.5, "half")
        started.set()
        return "told"

    agent = Agent("a", llm=ScriptedModel([call("wait"), call("add", a=3, b=4), "done"]), tools=[wait, add])
    run = agent.start("go", hooks=[TapeHook(path) for path in paths])
    await started.wait()
    run.steer("And be polite.")
    await run.result()
    for path in paths:
        check(path)
        assert any(isinstance(entry, fmt.SteeringEntry) for entry in Tape.load(path).entries)


def test_a_run_in_a_tool_of_a_recorded_run_may_have_its_own_tape(path: Path, tmp_path: Path) -> None:
    @tool
    def ask() -> str:
        """Ask another agent."""
        record(tmp_path / "inner.tape", [call("add", a=1, b=2), "3"], no_ones)
        return "asked"

    record(path, [call("ask"), "done"], tools=[ask])
    check(path)
    again = replay(tmp_path / "inner.tape", [no_ones])
    assert again.same
    assert len(again.recorded) == 1


def test_a_subagent_with_its_own_tape_is_on_both(path: Path, tmp_path: Path) -> None:
    inner = tmp_path / "inner.tape"
    helper = Agent("helper", llm=ScriptedModel([call("add", a=1, b=2), "3"]), tools=[add], hooks=[TapeHook(inner)])
    boss = Agent("boss", llm=ScriptedModel([call("delegate", to="helper", task="sum"), "ok"]), tools=[Team([helper])])
    boss.run("go", hooks=[TapeHook(path)])
    assert replay(path, boss).same
    assert replay(inner).same


@pytest.mark.parametrize("limit", [float("inf"), 1e6, 2.5])
def test_a_limit_may_be_any_number(path: Path, limit: float) -> None:
    budget = Budget(Limits(steps=limit, tokens=limit, tool_calls=limit))  # type: ignore[arg-type]
    record(path, [call("add", a=3, b=4), "done"], ctx=AgentContext(budget=budget))
    check(path)


def test_a_run_without_end_is_recorded(path: Path) -> None:
    agent = Agent("a", llm=ScriptedModel(["done"]), limits=Limits(steps=float("inf")))  # type: ignore[arg-type]
    agent.run("a task", hooks=[TapeHook(path)])
    assert check(path).tape.run.limits.steps is None


def test_limit_messages_to_the_model_are_the_same(path: Path) -> None:
    limits = Limits(steps=3, tokens=1000, soft=0.1)
    turns = [call("add", a=3, b=4), call("add", a=1, b=1), "done"]
    agent = Agent("a", llm=ScriptedModel(turns), tools=[add], limits=limits)
    ctx = AgentContext(budget=Budget(Limits(tool_calls=9, soft=0.2)))
    agent.run("a task", ctx=ctx, hooks=[TapeHook(path), TokenUsageLimitHook(500, soft_limit=0.001)])
    note = agent.model.requests[2].messages[-1].content
    assert note.startswith("You have used 2 of 3 steps.\nYou have used ")
    assert "of 500 tokens.\nYou have used 2 of 9 tool calls. Wrap up" in note
    check(path, TokenUsageLimitHook(500, soft_limit=0.001))


def test_a_hook_may_seed_the_random_generator(path: Path) -> None:
    seen: list[float] = []

    @guard(BEFORE_LLM)
    def toss(ctx: Any, payload: Any) -> None:
        ctx.random.seed(7)
        seen.append(ctx.random.random())

    record(path, ["done"], toss)
    check(path, toss)
    assert seen == [Random(7).random()] * 2


def test_a_recorded_reply_that_a_hook_closed_early_cannot_be_completed(path: Path) -> None:
    @guard(ON_TOKEN)
    def cut(ctx: Any, payload: Any) -> HookResult | None:
        return HookResult.end("cut") if "two" in payload.text else None

    record(path, ["one two three"], cut)
    check(path, cut)
    assert replay(path).stop_reason == "a call that was cancelled in the recording was not cancelled in the replay"


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("fails", [False, True])
async def test_a_hook_that_cancels_the_run_does_what_it_did(path: Path, fails: bool, is_async: bool) -> None:
    """The replay does not cancel the run before it calls the hook."""

    def stop(ctx: Any, request: Any) -> None:
        ctx.interrupt.cancel("enough")
        if fails:
            raise ValueError("no")

    async def stop_async(ctx: Any, request: Any) -> None:
        stop(ctx, request)

    judge = hook(BEFORE_TOOL, name="stop")(stop_async if is_async else stop)
    agent = Agent("a", llm=ScriptedModel([call("add", a=1, b=1), "done"]), tools=[add])
    await agent.start("go", hooks=[judge, TapeHook(path)]).settled()
    again = await areplay(path, [judge])
    assert (again.first_difference, again.stop_reason) == ("", "")
    assert again.result.status == ("failed" if fails else "cancelled")


async def test_cancelling_a_replay_ends_it(path: Path) -> None:
    await asyncio.to_thread(record, path, ["done"])
    reached, ended = asyncio.Event(), asyncio.Event()

    @hook(BEFORE_LLM)
    async def linger(ctx: Any, payload: Any) -> None:
        reached.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    work = asyncio.create_task(areplay(path, [linger]))
    await reached.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    await asyncio.wait_for(ended.wait(), 10)


def test_many_tapes_are_replayed_one_at_a_time_and_damaged_ones_are_reported(tmp_path: Path) -> None:
    folder = tmp_path / "tapes"
    for name in ("a", "b", "c"):
        record(folder / f"{name}.tape", [call("add", a=1, b=2), "done"])
    (folder / "b.tape").write_bytes(b"garbage\n")
    errors: list[str] = []
    replays = replay_all(folder, [no_ones], on_error=lambda error: errors.append(str(error)))
    first = next(replays)
    assert (first.tape.name, first.same, errors) == ("a.tape", False, [])
    assert [again.tape.name for again in replays] == ["c.tape"]
    assert [error.partition(": ")[0] for error in errors] == [f"{folder / 'b.tape'} is not a tape"]
    with pytest.raises(TapeError, match="is not a tape"):
        list(replay_all([folder / "b.tape"]))


def test_each_of_many_replays_can_have_new_hooks_and_older_runs_are_left_out(tmp_path: Path) -> None:
    for name in ("a", "b"):
        record(tmp_path / f"{name}.tape", ["done"])
    made: list[int] = []

    def hooks() -> list[Any]:
        made.append(1)
        return []

    assert all(again.same for again in replay_all(tmp_path, hooks))
    assert len(made) == 2
    started = Tape.load(tmp_path / "b.tape").header.time
    assert [again.tape.name for again in replay_all(tmp_path, since=started)] == ["b.tape"]


def test_a_value_that_a_hook_read_once_comes_from_the_tape(tmp_path):
    values = iter([["sunday"], ["monday"]])

    @guard("before_tool", name="closed")
    async def closed(ctx, request):
        days = await ctx.once("days", lambda: next(values))
        return HookResult.cont(reason=f"closed on {days[0]}")

    @tool
    def work() -> str:
        """Work."""
        return "worked"

    model = ScriptedModel([call("work"), "done"])
    agent = Agent("a", llm=model, tools=[work], hooks=[closed, TapeHook(tmp_path / "a.tape")])
    agent.run("go")
    again = replay(tmp_path / "a.tape", [closed])
    assert again.same, again.first_difference
    assert next(values) == ["monday"]
