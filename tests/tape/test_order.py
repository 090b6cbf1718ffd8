"""The order of a replay comes from the tape and does not depend on the speed of hooks."""

from __future__ import annotations

import ast
import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import hookline.tape
from hookline import (
    AFTER_LLM,
    AFTER_STEP,
    AFTER_TOOL,
    APPROVAL_REQUESTED,
    BEFORE_LLM,
    BEFORE_STEP,
    BEFORE_TOOL,
    ON_ERROR,
    ON_PROGRESS,
    Agent,
    AgentContext,
    AgentResult,
    Budget,
    HookResult,
    Limits,
    ModelRequest,
    RunFailedError,
    ScriptedModel,
    call,
    guard,
    hook,
    observer,
    tool,
)
from hookline._base.tasks import settle
from hookline._run.waiters import STALL_SECONDS
from hookline.events import HookExecuted, ToolEnded
from hookline.models import ModelResponse, OverloadedError
from hookline.tape import Replay, Tape, TapeHook, areplay
from hookline.tape import format as fmt
from hookline.tape import order as order_module
from hookline.tape.order import Order
from hookline.teams import Team

POINTS = (BEFORE_STEP, BEFORE_LLM, AFTER_LLM, BEFORE_TOOL, AFTER_TOOL, ON_PROGRESS, ON_ERROR)
PAUSES = (0, 0, 0, 0.0005, 0.002, 0.005)


@tool
async def work(n: int, ctx: Any) -> str:
    """Work for a while."""
    await asyncio.sleep(Random(n).choice(PAUSES))
    if n % 3 == 1:
        ctx.progress(0.5, f"half of {n}")
        await asyncio.sleep(Random(-n).choice(PAUSES))
    if n % 5 == 4:
        raise ValueError(f"no {n}")
    return f"did {n}"


@tool(timeout=0.01)
async def dawdle(n: int) -> str:
    """Work for too long."""
    await asyncio.sleep(3600)
    return f"did {n}"


class Pauses:
    """Pauses of random lengths, from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    async def next(self) -> None:
        await asyncio.sleep(self._random.choice(PAUSES))


def hooks(seed: int) -> list[Any]:
    """Hooks that decide by values of the context, after a pause at each point."""
    pauses = Pauses(seed)

    @hook(*POINTS, name="note")
    async def note(ctx: Any, payload: Any) -> HookResult:
        await pauses.next()
        readings = f"{ctx.random.random():.6f} {ctx.clock.time():.6f} {ctx.new_id('note')}"
        await pauses.next()
        return HookResult.cont(reason=readings)

    @guard(BEFORE_TOOL)
    async def judge(ctx: Any, payload: Any) -> HookResult | None:
        await pauses.next()
        chance = ctx.random.random()
        if payload.name == "delegate":
            return None
        if chance < 0.1:
            return HookResult.block("Not this one.", reason=f"{chance:.6f}")
        return HookResult.ask("Really?") if chance < 0.4 else None

    @hook(APPROVAL_REQUESTED)
    async def approve(ctx: Any, asked: Any) -> HookResult:
        await pauses.next()
        return HookResult.approve() if len(asked.call.id) % 2 else HookResult.deny("No.")

    @hook(AFTER_TOOL)
    async def again(ctx: Any, result: Any) -> HookResult | None:
        await pauses.next()
        return HookResult.retry() if result.outcome == "error" and result.attempt == 1 else None

    @hook(ON_ERROR)
    async def patient(ctx: Any, failure: Any) -> HookResult | None:
        await pauses.next()
        return HookResult.retry() if failure.where == "model" else None

    @observer(AFTER_TOOL)
    async def watch(ctx: Any, result: Any) -> HookResult:
        await pauses.next()
        return HookResult.cont(reason=f"watched {result.id}")

    @observer(AFTER_TOOL)
    async def look(ctx: Any, result: Any) -> HookResult:
        await pauses.next()
        return HookResult.cont(reason=f"looked at {result.id}")

    return [note, judge, approve, again, patient, watch, look]


@dataclass(frozen=True)
class Plan:
    """A scenario: a batch of calls for each step, for the boss and each of its helpers."""

    boss: tuple[tuple[int, ...], ...]
    helpers: tuple[tuple[tuple[int, ...], ...], ...]
    overloaded: bool = False

    def agent(self, seed: int, *more: Any) -> Agent:
        """Return the agent, with hooks that pause according to the seed, and additional ones."""
        helpers = [
            Agent(f"helper{i}", llm=ScriptedModel([*_batches(steps), f"answer {i}"]), tools=[work, dawdle])
            for i, steps in enumerate(self.helpers)
        ]
        delegated = [[call("delegate", to=helper.name, task="go") for helper in helpers]] if helpers else []
        errors = [OverloadedError("busy", retry_after=0.0)] if self.overloaded else []
        turns = [*errors, *delegated, *_batches(self.boss), "done"]
        tools = [work, dawdle, *([Team(helpers)] if helpers else [])]
        return Agent("boss", llm=ScriptedModel(turns), tools=tools, hooks=[*hooks(seed), *more])


def _batches(steps: tuple[tuple[int, ...], ...]) -> list[Any]:
    return [[call("dawdle" if n == 7 else "work", n=n) for n in batch] for batch in steps]


async def recorded(agent: Agent, path: Path, ctx: AgentContext | None = None) -> AgentResult:
    """Record one run, whose text is streamed."""
    ctx = ctx or AgentContext(random=Random(1))
    try:
        return await agent.arun("go", hooks=[TapeHook(path)], ctx=ctx, sinks=[lambda event: None])
    except RunFailedError as failed:
        return failed.result


def outcome(replay: Replay) -> tuple[Any, ...]:
    """Return the results of a replay."""
    return (
        replay.first_difference,
        replay.stop_reason,
        replay.recorded,
        replay.replayed,
        replay.differences,
        replay.result.status,
    )


_batch = st.lists(st.integers(0, 9), min_size=1, max_size=3).map(tuple)
_steps = st.lists(_batch, max_size=2).map(tuple)
plans = st.builds(Plan, _steps, st.lists(_steps, max_size=2).map(tuple), st.booleans())


@pytest.mark.slow
@given(plans, st.integers(0, 10**6))
@settings(max_examples=12, deadline=None, derandomize=True, phases=(Phase.generate,))
def test_delays_of_hooks_change_no_decision(plan: Plan, seed: int) -> None:
    async def play() -> None:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "run.tape"
            result = await recorded(plan.agent(seed), path)
            for other in (seed, seed + 1, seed + 2):
                again = await areplay(path, plan.agent(other))
                assert (again.first_difference, again.stop_reason) == ("", "")
                assert again.recorded == again.replayed
                assert again.recorded
                assert again.result.status == result.status == "completed"

    asyncio.run(play())


@pytest.mark.parametrize("slow", ["boss", "helper0", "helper1"])
async def test_a_replay_waits_for_a_slow_hook(tmp_path: Path, slow: str) -> None:
    def linger(pause: float) -> Any:
        @hook(AFTER_LLM, ON_PROGRESS, phase=None)
        async def linger(ctx: Any, payload: Any) -> None:
            if ctx.agent_name == slow:
                await asyncio.sleep(pause)

        return linger

    path, plan = tmp_path / "run.tape", Plan(((0, 1),), (((3,),), ((3, 4),)))
    await recorded(plan.agent(1, linger(0)), path)
    quick, slowed = [await areplay(path, plan.agent(2, linger(pause))) for pause in (0, 0.1)]
    assert outcome(quick) == outcome(slowed)
    assert slowed.same


@pytest.mark.slow
async def test_a_replay_beside_a_busy_loop_is_the_same(tmp_path: Path) -> None:
    path, plan = tmp_path / "run.tape", Plan(((0, 1, 2),), (((3,),), ((3, 4),)))
    await recorded(plan.agent(1), path)

    async def spin() -> None:
        while True:
            sum(range(20_000))
            await asyncio.sleep(0)

    busy = [asyncio.create_task(spin()) for _ in range(5)]
    try:
        assert (await areplay(path, plan.agent(2))).same
    finally:
        for task in busy:
            task.cancel()


def strict(*runs: str) -> Any:
    """A guard that blocks the calls of these agents."""

    @guard(BEFORE_TOOL, priority=100)
    def no(ctx: Any, payload: Any) -> HookResult | None:
        return HookResult.block("No.", reason=f"not in {ctx.agent_name}") if ctx.agent_name in runs else None

    return no


@pytest.mark.slow
@given(st.permutations(["helper0", "helper1", "helper2"]), st.integers(1, 3), st.integers(0, 10**6))
@settings(max_examples=8, deadline=None, derandomize=True, phases=(Phase.generate,))
def test_the_first_difference_does_not_depend_on_speed(names: list[str], count: int, seed: int) -> None:
    plan = Plan((), (((3,),), ((3,), (0,)), ((5, 6),)))
    blocked = names[:count]

    async def play() -> None:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "run.tape"
            await recorded(plan.agent(seed), path)
            found = set()
            for other in range(4):
                again = await areplay(path, plan.agent(seed + other, strict(*blocked)))
                assert not again.same
                found.add(again.first_difference)
            assert len(found) == 1
            assert "not in helper" in found.pop()

    asyncio.run(play())


async def test_a_different_request_ends_the_replay_at_the_same_position_at_any_speed(tmp_path: Path) -> None:
    plan, path = Plan((), (((3,),), ((3,), (0,)), ((5, 6),))), tmp_path / "run.tape"

    def hint(value: int) -> Any:
        @hook(BEFORE_LLM)
        def hint(ctx: Any, request: Any) -> Any:
            return request.replace(params={"seed": value}) if ctx.agent_name != "boss" and request.hop else None

        return hint

    await recorded(plan.agent(1, hint(1)), path)
    assert (await areplay(path, plan.agent(1, hint(1)))).same
    outcomes = [outcome(await areplay(path, plan.agent(seed, hint(2)))) for seed in range(1, 6)]
    assert all(each == outcomes[0] for each in outcomes)
    assert (
        outcomes[0][1]
        == "the next request to the model has other settings than the recorded one, so the reply to it is not known"
    )


class Hanging(ScriptedModel):
    """A model that calls two tools, then streams one word and hangs."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[str | ModelResponse]:
        if len(request.messages) > 1:
            yield "well "
            await asyncio.sleep(3600)
        async for piece in super().stream(request):
            yield piece


@tool
async def hang(n: int) -> None:
    """Hang."""
    await asyncio.sleep(3600)


LIMITED = {
    "model": lambda seed: Agent("a", llm=Hanging([[call("work", n=0)]]), tools=[work], hooks=hooks(seed)),
    "tools": lambda seed: Agent(
        "a",
        llm=ScriptedModel([[call("hang", n=1), call("work", n=0), call("hang", n=2)]]),
        tools=[work, hang],
        hooks=[note_only(seed)],
    ),
    "subagent": lambda seed: Agent(
        "a",
        llm=ScriptedModel([call("delegate", to="b", task="go")]),
        hooks=[note_only(seed)],
        tools=[Team([Agent("b", llm=ScriptedModel([[call("hang", n=1), call("work", n=0)]]), tools=[work, hang])])],
    ),
    "nested": lambda seed: Agent(
        "a",
        llm=ScriptedModel([[call("delegate", to="b", task="go"), call("work", n=1), call("hang", n=2)]]),
        hooks=[note_only(seed)],
        tools=[
            work,
            hang,
            Team(
                [
                    Agent(
                        "b",
                        llm=ScriptedModel([[call("delegate", to="c", task="go"), call("work", n=3)]]),
                        tools=[
                            work,
                            Team(
                                [
                                    Agent(
                                        "c",
                                        llm=ScriptedModel([[call("hang", n=1), call("work", n=0)]]),
                                        tools=[work, hang],
                                    )
                                ]
                            ),
                        ],
                    )
                ]
            ),
        ],
    ),
}


EVENTS = {"model": 36, "tools": 33, "subagent": 50, "nested": 90}
"""The number of events up to which the test interrupts each of them; after the last one it hangs."""

EACH_POSITION = pytest.mark.parametrize("step", [29, pytest.param(1, marks=pytest.mark.slow)])


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now, self._timers = 1_000.0, list[tuple[float, Any]]()

    def time(self) -> float:
        return self.now

    monotonic = time

    def call_later(self, seconds: float, callback: Any) -> Any:
        timer = asyncio.Event()  # it is set when the timer is cancelled
        self._timers.append((self.now + seconds, lambda: timer.is_set() or callback()))

        class Handle:
            cancel = timer.set

        return Handle()

    def advance(self, seconds: float) -> None:
        """Move the clock, and call the timers."""
        self.now += seconds
        timers, self._timers = self._timers, []
        for _, callback in sorted(timers, key=lambda pair: pair[0]):
            callback()


async def interrupted(agent: Agent, path: Path, way: str, at: int) -> None:
    """Record a run that is cancelled, or reaches its time limit, at this event.

    The end of ``way`` says when: ``now``, while the event is emitted, or ``soon``, when the run awaits something. A
    timer never fires while an event is emitted.
    """
    clock, loop, events = Clock(), asyncio.get_running_loop(), 0
    # A hook of another run reads this clock, so it must be the clock of the run too.
    ctx = AgentContext(random=Random(1), clock=clock, budget=Budget(Limits(seconds=100), clock=clock))

    def watch(event: Any) -> None:
        nonlocal events
        events += 1
        if events == at:
            loop.call_soon(interrupt) if way.endswith("soon") else interrupt()

    if way.startswith("caller"):
        work = asyncio.ensure_future(agent.arun("go", hooks=[TapeHook(path)], ctx=ctx, sinks=[watch]))
        interrupt: Any = work.cancel
    else:
        run = agent.start("go", hooks=[TapeHook(path)], ctx=ctx, sinks=[watch])
        interrupt = (lambda: run.cancel("enough")) if way.startswith("run") else (lambda: clock.advance(1_000))
        work = asyncio.ensure_future(run.settled())
    async with asyncio.timeout(30):
        await asyncio.wait([work])
    assert events >= at


def note_only(seed: int) -> Any:
    return hooks(seed)[0]


@pytest.mark.parametrize("which", ["model", "tools", "subagent"])
async def test_a_time_limit_is_reached_at_its_recorded_position_at_any_speed(tmp_path: Path, which: str) -> None:
    path = tmp_path / "run.tape"
    await interrupted(LIMITED[which](1), path, "limit soon", EVENTS[which])
    result = Tape.load(path).result
    assert result is not None
    assert (result.status, result.stop.kind if result.stop else "") == ("stopped", "time_limit")
    for seed in range(1, 5):
        again = await areplay(path, LIMITED[which](seed))
        assert (again.first_difference, again.stop_reason, again.result.stop) == ("", "", result.stop)
        assert again.recorded == again.replayed


async def test_an_observer_that_a_time_limit_interrupted_does_not_overtake_another_one_if_it_is_faster(
    tmp_path: Path,
) -> None:
    for attempt in range(10):  # on a busy machine, the limit may fall between two other entries
        path = tmp_path / f"run{attempt}.tape"
        await interrupted(LIMITED["model"](1), path, "limit soon", 25)
        again = await areplay(path, LIMITED["model"](2))
        assert again.replayed[: len(again.recorded)] == again.recorded
        last = again.recorded[-1]
        if (last.point, last.hook) == ("after_tool", "look"):
            return
    pytest.fail("the limit never fell between the two observers")


@EACH_POSITION
@pytest.mark.parametrize("which", LIMITED)
@pytest.mark.parametrize("way", ["caller soon", "caller now", "run soon", "run now", "limit soon"])
async def test_a_run_that_was_interrupted_at_any_event_goes_as_far_as_recorded_at_any_speed(
    tmp_path: Path, which: str, way: str, step: int
) -> None:
    path = tmp_path / "run.tape"
    for at in sorted({*range(step, EVENTS[which] + 1, step), EVENTS[which]}):
        await interrupted(LIMITED[which](1), path, way, at)
        for seed in (1, 2) if step == 1 else (2,):
            async with asyncio.timeout(30):
                again = await areplay(path, LIMITED[which](seed))
            assert again.tape.result is not None
            assert (again.stop_reason, again.result.status) == ("", again.tape.result.status), at
            assert again.result.status == ("stopped" if way.startswith("limit") else "cancelled"), at
            cut = next(i for i, entry in enumerate(again.tape.entries) if isinstance(entry, CUTS))
            before = sum(_is_decision(entry) for entry in again.tape.entries[:cut])
            assert again.replayed[:before] == again.recorded[:before], at


CUTS = (fmt.CancellationEntry, fmt.InterruptionEntry, fmt.TimerEntry)


def _is_decision(entry: Any) -> bool:
    event = getattr(entry, "event", None)
    return isinstance(event, HookExecuted) and bool(event.verb != "cont" or event.reason)


async def test_a_steering_message_comes_at_its_recorded_position_at_any_speed(tmp_path: Path) -> None:
    path, plan = tmp_path / "run.tape", Plan(((0, 1), (2, 3)), ())
    run = plan.agent(1).start("go", hooks=[TapeHook(path)])
    async for event in run.events():
        if event.payload["type"] == "tool_started" and event.payload["tool"] == "work":
            run.steer(f"after event {event.seq}")
    await run.result()
    for seed in range(1, 6):
        assert (await areplay(path, plan.agent(seed))).same


@pytest.mark.parametrize("pauses", [False, True])
async def test_a_steering_message_that_came_too_late_for_a_request_is_in_the_next_one(
    tmp_path: Path, pauses: bool
) -> None:
    """It arrives while a hook judges the request, whose messages have been collected."""
    steered: list[Any] = []

    @hook(BEFORE_LLM)
    async def steer(ctx: Any, request: Any) -> None:
        if pauses:
            await asyncio.sleep(0)
        if steered:
            steered.pop().steer("and quickly")

    def agent() -> Agent:
        return Agent("a", llm=ScriptedModel([call("work", n=0), "done"]), tools=[work], hooks=[steer])

    path = tmp_path / "run.tape"
    run = agent().start("go", hooks=[TapeHook(path)])
    steered.append(run)
    result = await run.result()
    assert [message.content for message in result.messages if message.role == "user"] == ["go", "and quickly"]
    again = await areplay(path, agent())
    assert (again.first_difference, again.stop_reason) == ("", "")


async def test_a_hook_that_cancels_its_own_model_call_does_so_again(tmp_path: Path) -> None:
    class Slow(ScriptedModel):
        async def stream(self, request: ModelRequest) -> AsyncIterator[str | ModelResponse]:
            if request.purpose == "judge":
                await asyncio.sleep(3600)
            async for piece in super().stream(request):
                yield piece

    @hook(AFTER_LLM)
    async def judge(ctx: Any, reply: Any) -> HookResult | None:
        if reply.purpose != "step":
            return None
        try:
            async with asyncio.timeout(0.05):
                await ctx.llm.complete("Good?", purpose="judge")
        except TimeoutError:
            return HookResult.cont(reason="no opinion")
        return None

    path = tmp_path / "run.tape"
    await recorded(Agent("a", llm=Slow(["done"]), hooks=[judge]), path)
    again = await areplay(path, [judge])
    assert again.same
    assert [decision.reason for decision in again.replayed] == ["no opinion"]


async def test_a_nested_run_that_a_hook_no_longer_starts_is_a_difference(tmp_path: Path) -> None:
    helper = Agent("helper", llm=ScriptedModel(["fine"], loop=True))

    def ask(whether: bool) -> Any:
        @hook(AFTER_LLM)
        async def ask(ctx: Any, reply: Any) -> None:
            if whether and ctx.agent_name == "a":
                await helper.arun("Is it good?", ctx=ctx)

        return ask

    def agent(whether: bool) -> Agent:
        return Agent("a", llm=ScriptedModel([call("work", n=0), "done"]), tools=[work], hooks=[ask(whether)])

    path = tmp_path / "run.tape"
    await recorded(agent(True), path)
    assert (await areplay(path, agent(True))).same
    again = await areplay(path, agent(False))
    assert again.first_difference == "recorded: run; replayed: nothing"
    assert again.result.status == "completed"


async def test_a_recorded_cancellation_that_does_not_happen_ends_the_replay(tmp_path: Path) -> None:
    """A failing hook cancelled a concurrent call; without that hook the tape has no end for the call."""

    @hook(ON_PROGRESS, on_failure="closed")
    async def fail(ctx: Any, payload: Any) -> None:
        if payload.tool == "work" and payload.phase == "tool_end":
            raise RuntimeError("broken")

    def agent(*more: Any) -> Agent:
        model = ScriptedModel([[call("hang", n=1), call("work", n=0)]])
        return Agent("a", llm=model, tools=[work, hang], hooks=more)

    path = tmp_path / "run.tape"
    assert (await recorded(agent(fail), path)).status == "failed"
    assert (await areplay(path, agent(fail))).same
    again = await areplay(path, agent())
    assert again.stop_reason == "a call that was cancelled in the recording was not cancelled in the replay"


async def test_a_replay_does_not_wait_for_an_abandoned_tool(tmp_path: Path) -> None:
    release = asyncio.Event()

    @tool
    async def stubborn() -> str:
        """Ignore cancellation."""
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await release.wait()
        return "too late"

    @hook(ON_PROGRESS, on_failure="closed")
    async def fail(ctx: Any, payload: Any) -> None:
        if payload.tool == "work" and payload.phase == "tool_end":
            raise RuntimeError("broken")

    @hook(AFTER_STEP)
    async def wait(ctx: Any, step: Any) -> HookResult:
        release.set()
        await asyncio.sleep(0.01)
        return HookResult.cont(reason="waited")

    def agent() -> Agent:
        model = ScriptedModel([[call("stubborn"), call("work", n=0)]])
        return Agent("a", llm=model, tools=[work, stubborn], hooks=[fail, wait])

    path = tmp_path / "run.tape"
    assert (await recorded(agent(), path)).status == "failed"
    outcomes = [event.outcome for event in Tape.load(path).events() if isinstance(event, ToolEnded)]
    assert outcomes == ["ok", "cancelled"]
    again = await areplay(path, agent())
    assert (again.first_difference, again.stop_reason) == ("", "")
    assert [decision.reason for decision in again.replayed][-1] == "waited"


def test_a_replay_sets_no_timer_but_that_for_being_stuck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, plan = tmp_path / "run.tape", Plan(((0, 1, 7), (2,)), (((3,),), ((3, 4),)))
    asyncio.run(recorded(plan.agent(1), path))

    timers: list[float] = []

    async def play() -> Replay:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "call_at", lambda when, *args, **options: timers.append(when - loop.time()))
        monkeypatch.setattr(loop, "call_later", lambda delay, *args, **options: timers.append(delay) or Timer())
        return await areplay(path, plan.agent(-1))

    monkeypatch.setattr(Pauses, "next", _no_pause)
    assert asyncio.run(play()).same
    assert set(timers) == {STALL_SECONDS}


class Timer:
    def cancel(self) -> None:
        pass


async def _no_pause(self: Pauses) -> None:
    await asyncio.sleep(0)


def test_no_module_of_a_replay_waits_by_the_clock() -> None:
    folder = Path(hookline.tape.__file__).parent
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func)
            where = f"{path.name}:{node.lineno}"
            assert name != "asyncio.sleep" or ast.unparse(node.args[0]) == "0", where
            assert name not in ("time.sleep", "asyncio.wait_for", "asyncio.timeout"), where
            assert not any(option.arg == "timeout" for option in node.keywords if name.startswith("asyncio.")), where
            assert not name.endswith("loop.call_later"), where


# The Order class.


def happened(run: str, lane: str, text: str) -> fmt.EventEntry:
    return fmt.EventEntry(lane=lane, event={"type": "text_delta", "run_id": run, "text": text})


def order_of(*tape: fmt.TapeEntry) -> tuple[Order, list[Any], list[int]]:
    repeated: list[Any] = []
    missing: list[int] = []
    return Order(tape, repeated.append, missing.append), repeated, missing


async def test_an_answer_waits_for_everything_recorded_before_it() -> None:
    order, _, _ = order_of(happened("r", "", "a"), happened("r", "", "b"), happened("r", "", "c"))
    waiting = asyncio.create_task(order.wait_for(2))
    order.produced(1)
    await asyncio.sleep(0)
    assert not waiting.done()
    order.produced(0)
    await waiting
    assert order.intact


async def test_external_input_comes_after_everything_recorded_before_it() -> None:
    steered = fmt.SteeringEntry(text="hello")
    order, repeated, _ = order_of(happened("r", "", "a"), happened("r", "/0.0.1", "b"), steered, happened("r", "", "c"))
    order.produced(0)
    assert not repeated
    order.produced(1)
    assert repeated == [steered]


@pytest.mark.parametrize(("first", "second"), [("/0.0.1", "/0.1.1"), ("/0.1.1", "/0.0.1")])
async def test_the_earlier_divergence_on_the_tape_is_the_first_difference(first: str, second: str) -> None:
    order, _, _ = order_of(happened("r", "", "a"), happened("r", "/0.1.1", "b"), happened("r", "/0.0.1", "c"))
    order.diverge(first)
    assert order.intact
    order.diverge(second)
    order.produced(0)
    assert not order.intact
    assert order.reached == 1


async def test_a_lane_that_ends_early_is_detected_when_its_parent_waits_for_an_answer() -> None:
    order, _, missing = order_of(
        happened("r", "", "a"), happened("r", "/0.0.1", "b"), happened("r", "/0.0.1", "c"), happened("r", "", "d")
    )
    order.produced(0)
    order.produced(1)
    await order.wait_for(3, lane="")
    assert missing == [2]
    assert not order.intact


async def test_a_run_in_the_background_may_be_slower_than_it_was() -> None:
    order, _, missing = order_of(
        happened("r", "", "a"), happened("s", "/run.1", "b"), happened("s", "/run.1", "c"), happened("r", "", "d")
    )
    order.produced(0)
    order.produced(1)
    waiting = asyncio.create_task(order.wait_for(3, lane=""))
    await settle()
    await settle()
    assert not waiting.done()
    order.produced(2)
    await waiting
    assert not missing
    assert order.intact


async def test_a_replay_does_not_wait_for_lanes_of_a_diverged_lane() -> None:
    order, _, _ = order_of(
        happened("r", "", "a"), happened("r", "/0.0.1", "b"), happened("r", "", "c"), happened("r", "", "d")
    )
    order.produced(0)
    assert order.diverge("") == 2
    assert not order.intact


def work_of(steps: int) -> int:
    """Return how many lines of the order run while a long tape with many lanes is followed."""
    tape = [happened("r", lane, "x") for step in range(steps) for lane in ("", f"/{step}.0.1", "")]
    order, _, missing = order_of(*tape)
    lines = 0

    def count(frame: Any, event: str, _: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return count if frame.f_code.co_filename == order_module.__file__ else None

    before = sys.gettrace()
    sys.settrace(count)
    try:
        for position, entry in enumerate(tape):
            assert order.next_in(entry.lane) == position
            assert order.next_from(entry.lane) == position
            order.produced(position)
            order.next_in(entry.lane)
    finally:
        sys.settrace(before)
    assert not missing
    return lines


def test_following_a_long_tape_takes_linear_work() -> None:
    work_of(10)
    assert work_of(800) < 2.5 * work_of(400)
