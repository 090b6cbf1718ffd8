"""The engine of a run: fires, checkpoints, failures, cancellation, steering (DESIGN 4.7, 4.8, 5, 6.6)."""

import asyncio
from contextlib import suppress

import pytest

from hookline import (
    AFTER_LLM,
    AFTER_STEP,
    BEFORE_LLM,
    BEFORE_STEP,
    BEFORE_TOOL,
    ON_ERROR,
    ON_PROGRESS,
    ON_RUN_END,
    ON_RUN_START,
    ON_STOP,
    AgentContext,
    Budget,
    HookError,
    HookRegistry,
    HookResult,
    Limits,
    Message,
    RunFailedError,
    Session,
    call,
    guard,
    hook,
    observer,
    reply,
    tool,
)
from hookline._kernel.scope import CURRENT
from hookline._run.context import services_of
from hookline.errors import CallRefusedError
from hookline.events import ModelReplied, Signalled, Steered, StepFinished
from hookline.hooks import PassThrough
from hookline.payloads import RunStart, StopSignal, Usage
from hookline.points import Point
from hookline.testing import EventLog, FakeClock, scripted_agent


@pytest.fixture
def checked(own_points):
    return Point("test_course_checked", RunStart, verbs=("replace", "end", "stop"), closed="refused")


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


ADD = call("add", a=1, b=2)


# Points that a hook or a tool fires


def check(checked, seen):
    @tool
    async def check(ctx) -> str:
        """Ask the hooks."""
        try:
            verdict = await ctx.fire(checked, RunStart("a"))
        except Exception as error:
            seen.append(error)
            raise
        seen.append(verdict)
        return "asked"

    return check


def test_an_end_at_a_point_that_a_tool_fired_is_returned_to_the_tool(checked):
    seen = []

    @hook(checked, name="ender")
    def end(ctx, payload):
        return HookResult.end("over")

    result = scripted_agent([call("check"), reply("x")], tools=[check(checked, seen)], hooks=[end]).run("x")
    assert (result.status, result.messages[2].content) == ("completed", "asked")
    assert (seen[0].action.value, seen[0].value, seen[0].hook) == ("end", "over", "ender")


def test_a_stop_at_a_point_that_a_tool_fired_stops_the_run_after_the_call(checked):
    seen = []

    @hook(checked)
    def stop(ctx, payload):
        return HookResult.stop("enough")

    result = scripted_agent([call("check"), reply("x")], tools=[check(checked, seen)], hooks=[stop]).run("x")
    assert (result.status, result.stop.message) == ("stopped", "enough")
    assert result.messages[2].content == "asked"


def test_a_model_call_at_such_a_point_is_refused_while_the_run_stops(checked):
    seen = []

    @hook(checked)
    async def ask(ctx, payload):
        await ctx.llm.complete("may I?")

    @hook(BEFORE_TOOL)
    def spend(ctx, request):
        budget.charge(Usage(50, 50), 0.0)

    budget = Budget(Limits(tokens=100))
    agent = scripted_agent([call("check")], tools=[check(checked, seen)], hooks=[ask, spend])
    result = agent.run("x", ctx=AgentContext(budget=budget))
    assert (result.status, result.stop.kind) == ("stopped", "token_limit")
    assert seen == []  # the limit was reached before the call started

    @hook(checked)
    async def spend_and_ask(ctx, payload):
        budget.charge(Usage(50, 50), 0.0)
        await ctx.llm.complete("may I?")

    budget = Budget(Limits(tokens=100))
    result = scripted_agent([call("check")], tools=[check(checked, seen)], hooks=[spend_and_ask]).run(
        "x", ctx=AgentContext(budget=budget)
    )
    assert isinstance(seen[0], CallRefusedError)
    assert (str(seen[0]), seen[0].status) == ("the run is stopping", "stopped")
    assert (result.status, result.stop.kind) == ("stopped", "token_limit")
    assert result.messages[2].is_error


@pytest.mark.parametrize(("closed", "fatal"), [("refused", False), ("the run fails", True)])
def test_a_closed_failure_at_such_a_point_is_fatal_if_the_point_declares_it(own_points, closed, fatal):
    point = Point(f"test_course_{fatal}", RunStart, closed=closed)
    reported = []

    @hook(point, name="broken")
    def broken(ctx, payload):
        raise ValueError("no")

    @observer(ON_ERROR)
    def watch(ctx, failure):
        reported.append((failure.fatal, failure.errors[0].source))

    @tool
    async def ask(ctx) -> str:
        """Ask the hooks."""
        try:
            await ctx.fire(point, RunStart("a"))
        except HookError as error:
            return f"refused by {error.hook}"
        return "never"

    result = scripted_agent([call("ask"), reply("x")], tools=[ask], hooks=[broken, watch]).run("x")
    assert result.messages[2].content == "refused by broken"
    assert reported == [(fatal, "broken")]


# What else was said where something failed


def test_a_stop_beside_a_closed_failure_is_recorded_and_so_is_an_open_failure():
    log = EventLog()

    @guard(BEFORE_STEP, priority=3)
    def stop(ctx, step):
        return HookResult.stop("enough")

    @guard(BEFORE_STEP, priority=2, on_failure="open", name="shaky")
    def shaky(ctx, step):
        raise KeyError("shaky")

    @guard(BEFORE_STEP, priority=1, name="broken")
    def broken(ctx, step):
        raise ValueError("no")

    with pytest.raises(RunFailedError) as failed:
        scripted_agent([reply("x")], hooks=[stop, shaky, broken], sinks=[log]).run("x")
    assert [event.signal.message for event in log.of(Signalled)] == ["enough"]
    assert {error.source: error.fatal for error in failed.value.result.errors} == {"shaky": False, "broken": True}


def test_a_refused_model_call_keeps_the_signals_of_its_point():
    @guard(BEFORE_STEP, priority=2)
    def stop(ctx, step):
        return HookResult.stop("enough")

    @guard(BEFORE_STEP, priority=1)
    async def ask(ctx, step):
        budget.charge(Usage(5, 5), 0.0)
        await ctx.llm.complete("may I?")

    budget = Budget(Limits(tokens=9))
    result = scripted_agent([reply("x")], hooks=[stop, ask]).run("x", ctx=AgentContext(budget=budget))
    assert (result.status, result.stop.kind, result.stop.message) == ("stopped", "stop_requested", "enough")


def test_the_failure_of_an_interceptor_names_it():
    class Broken(PassThrough):
        async def intercept(self, point, payload, ctx):
            if point is BEFORE_LLM:
                raise ValueError("no")

    with pytest.raises(RunFailedError, match=r"'Broken' failed at before_llm.*no") as failed:
        scripted_agent([reply("x")], hooks=[Broken()]).run("x")
    (error,) = failed.value.result.errors
    assert (error.where, error.type, error.source, error.fatal) == ("hook", "ValueError", "Broken", True)
    assert isinstance(failed.value.__cause__.__cause__, ValueError)


# Checkpoints


def test_hooks_may_call_the_model_in_a_complete_run_but_not_in_a_stopped_one():
    answers = []

    @hook(ON_STOP)
    async def judge(ctx, stopping):
        answers.append((await ctx.llm.complete("good?")).content)

    scripted_agent([reply("x"), reply("yes")], hooks=[judge]).run("x")
    assert answers == ["yes"]

    @hook(AFTER_LLM)
    def stop(ctx, answer):
        return HookResult.stop("enough") if answer.purpose == "step" else None

    result = scripted_agent([reply("x"), reply("yes")], hooks=[judge, stop]).run("x")
    assert answers == ["yes"]
    assert (result.status, result.stop.message) == ("stopped", "enough")


def test_a_run_that_is_complete_while_its_calls_are_judged_runs_none_of_them():
    @guard(BEFORE_TOOL)
    def done(ctx, request):
        return HookResult.stop("that is all", kind="finish_reason")

    result = scripted_agent([[ADD, ADD], reply("x")], tools=[add], hooks=[done]).run("x")
    assert (result.status, result.stop.kind) == ("completed", "finish_reason")
    assert result.steps[0].outcomes == ("cancelled", "cancelled")


def test_the_step_limit_interrupts_no_step_while_other_limits_do():
    agent = scripted_agent([ADD, reply("x")], tools=[add], limits=Limits(steps=1))
    result = agent.run("x", ctx=AgentContext(budget=Budget(Limits(tokens=10_000))))
    assert (result.status, result.stop.kind) == ("stopped", "steps_limit")
    assert result.steps[0].outcomes == ("ok",)


def test_the_clock_of_the_budget_decides_when_the_time_limit_is_reached():
    class Clock:
        now = 0.0

        def time(self):
            return 0.0

        def monotonic(self):
            return self.now

    clock, looks = Clock(), []

    @tool
    async def wait(ctx) -> str:
        """Wait until the loop has looked at the clock."""
        budget = services_of(ctx).budget
        real = budget.out_of_time

        def look():
            looks.append(real())
            clock.now = 2.0
            return looks[-1]

        budget.out_of_time = look
        await asyncio.sleep(30)
        return "late"

    ctx = AgentContext(budget=Budget(Limits(seconds=0.01), clock=clock), clock=clock)
    result = scripted_agent([call("wait"), reply("x")], tools=[wait]).run("x", ctx=ctx)
    assert looks[0] is None
    assert looks[1].kind == "time_limit"
    assert (result.status, result.stop.kind) == ("stopped", "time_limit")
    assert result.steps[0].outcomes == ("cancelled",)


async def test_the_call_later_of_a_clock_is_used_for_the_time_limit():
    alarms, rung = [], []

    class Clock:
        now = 0.0

        def time(self):
            return 0.0

        def monotonic(self):
            return self.now

        def call_later(self, seconds, callback):
            alarms.append((seconds, callback))
            return asyncio.get_running_loop().call_later(60, rung.append, seconds)

    clock = Clock()

    @tool
    async def wait() -> str:
        """Wait until the clock is past the limit."""
        clock.now = 7.5
        alarms[0][1]()
        await asyncio.sleep(30)
        return "late"

    ctx = AgentContext(budget=Budget(Limits(seconds=7.0), clock=clock), clock=clock)
    result = await scripted_agent([call("wait"), reply("x")], tools=[wait]).arun("x", ctx=ctx)
    assert [seconds for seconds, _ in alarms] == [pytest.approx(7.001, abs=1e-6)]
    assert (result.status, result.stop.kind) == ("stopped", "time_limit")


async def test_a_time_limit_that_passes_while_the_run_ends_affects_nothing_else():
    clock = FakeClock()

    @hook(ON_RUN_END)
    async def slow(ctx, result):
        clock.advance(1)
        await asyncio.sleep(0.1)

    ctx = AgentContext(budget=Budget(Limits(seconds=0.02), clock=clock), clock=clock)
    result = await scripted_agent([reply("x")], hooks=[slow]).arun("x", ctx=ctx)
    await asyncio.sleep(0.01)
    assert (result.status, result.errors) == ("completed", ())
    assert asyncio.current_task().cancelling() == 0


# Cancellation


async def test_the_hooks_of_a_cancelled_run_may_still_wait_and_the_first_reason_counts():
    seen = []

    @observer(AFTER_STEP, ON_RUN_END)
    async def watch(point, ctx, payload):
        await asyncio.sleep(0.001)
        seen.append(str(point))

    @tool
    async def wait(ctx) -> str:
        """Wait long."""
        ctx.interrupt.cancel("one")
        ctx.interrupt.cancel("two")
        await asyncio.sleep(30)
        return "never"

    result = await scripted_agent([call("wait")], tools=[wait], hooks=[watch]).arun("x")
    assert (result.status, result.stop) == ("cancelled", StopSignal("user_requested", "one"))
    assert seen == ["after_step", "on_run_end"]
    assert asyncio.current_task().cancelling() == 0


async def test_the_cancellation_of_the_caller_reaches_the_run_and_its_children():
    reasons, waiting = [], asyncio.Event()

    @tool
    async def wait(ctx) -> str:
        """Wait long."""
        ctx.interrupt.subscribe(reasons.append)
        waiting.set()
        await asyncio.sleep(30)
        return "never"

    @observer(ON_RUN_END)
    def watch(ctx, result):
        reasons.append(result.stop)

    task = asyncio.create_task(scripted_agent([call("wait")], tools=[wait], hooks=[watch]).arun("x"))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert reasons == ["the caller was cancelled", StopSignal("user_requested", "the caller was cancelled")]


async def test_a_run_that_was_cancelled_before_its_start_calls_no_model():
    ctx = AgentContext()
    ctx.interrupt.cancel("no more")
    agent = scripted_agent([reply("x")])
    result = await agent.arun("x", ctx=ctx)
    assert (result.status, result.stop.message) == ("cancelled", "no more")
    assert agent.model.requests == []
    assert result.messages == ()


# Steering


async def test_steering_messages_are_appended_in_order_and_once():
    log = EventLog()
    gate = asyncio.Event()

    @tool
    async def pause() -> str:
        """Wait."""
        await gate.wait()
        return "ok"

    agent = scripted_agent([call("pause"), reply("done")], tools=[pause], sinks=[log])
    run = agent.start("x")
    while not agent.model.requests:
        await asyncio.sleep(0)
    assert run.steer("one")
    assert run.steer("two")
    gate.set()
    result = await run.result()
    assert result.messages[3:5] == (Message("user", "one"), Message("user", "two"))
    assert [event.text for event in log.of(Steered)] == ["one", "two"]
    assert run.steer("three") is False


async def test_a_late_steering_message_is_in_the_session_for_the_next_run():
    session = Session("s")

    @hook(ON_STOP)
    def stop(ctx, stopping):
        run.steer("and then?")

    @hook(AFTER_LLM)
    def enough(ctx, answer):
        return HookResult.stop("enough")

    run = scripted_agent([reply("x")], hooks=[stop, enough]).start("go", session=session)
    assert (await run.result()).status == "stopped"
    assert [m.content for m in session.messages] == ["go", "x", "and then?"]


async def test_steering_fails_at_the_end_of_a_run():
    said = []

    @hook(ON_RUN_END)
    def late(ctx, result):
        said.append(run.steer("too late"))

    run = scripted_agent([reply("x")], hooks=[late]).start("go")
    result = await run.result()
    assert said == [False]
    assert [m.content for m in result.messages] == ["go", "x"]


@hook(ON_RUN_START)
def nothing(ctx, start):
    return None


def test_a_hook_unregistered_during_a_fire_is_not_called_at_the_next():
    seen = []

    @observer(BEFORE_STEP)
    def once(ctx, step):
        seen.append(step.index)
        remove()

    agent = scripted_agent([ADD, reply("x")], tools=[add])
    remove = agent.register_hook(once)
    agent.run("x")
    assert seen == [0]


def test_a_hook_that_a_sink_registers_between_two_steps_is_called_in_the_next():
    seen = []

    @observer(BEFORE_STEP)
    def late(ctx, step):
        seen.append(step.index)

    def sink(event):
        if event.index == 0:
            agent.register_hook(late)

    sink.events = frozenset((StepFinished,))
    agent = scripted_agent([ADD, reply("x")], tools=[add], sinks=[sink])
    agent.run("x")
    assert seen == [1]


def test_the_elapsed_time_of_a_run_comes_from_its_budget():
    clock = FakeClock()
    agent = scripted_agent([lambda request: clock.advance(3) or reply("x")], hooks=[nothing])
    assert agent.run("x", ctx=AgentContext(clock=clock)).elapsed == 3


# Questions inside a hook


def test_a_hook_registered_during_a_model_call_of_another_hook_sees_its_next_call():
    seen = []

    @observer(BEFORE_LLM)
    def late(ctx, request):
        seen.append(request.purpose)

    @hook(ON_RUN_START)
    async def ask(ctx, start):
        await ctx.llm.complete("a", purpose="first")
        agent.register_hook(late)
        await ctx.llm.complete("b", purpose="second")

    @observer(BEFORE_LLM)
    def always(ctx, request):
        return None

    for hooks in ([ask], [ask, always]):
        seen.clear()
        agent = scripted_agent([reply("1"), reply("2"), reply("3")], hooks=hooks)
        agent.run("x")
        assert seen == ["second", "step"]


def test_a_hook_is_skipped_only_for_its_own_model_call():
    seen = []

    def asking(name):
        @hook(BEFORE_STEP, BEFORE_LLM, name=name)
        async def ask(point, ctx, payload):
            if point == BEFORE_STEP:
                await ctx.llm.complete("?", purpose=name)
            else:
                seen.append((name, payload.purpose))

        return ask

    scripted_agent([reply(str(n)) for n in range(3)], hooks=[asking("a"), asking("b")]).run("x")
    assert seen == [("b", "a"), ("a", "b"), ("a", "step"), ("b", "step")]


# Failures at on_error


def closed(ctx):
    raise KeyError("second")


async def refused(ctx):
    await ctx.llm.complete("?", purpose="refused")


async def stopped(ctx):
    services_of(ctx).budget.charge(Usage(50, 50), 0.0)
    await ctx.llm.complete("?")


@pytest.mark.parametrize("second", [closed, refused, stopped])
def test_of_two_failures_the_first_one_counts_and_on_error_fires_once(second):
    reported = []

    @hook(BEFORE_STEP, name="first")
    def first(ctx, step):
        raise ValueError("first")

    @hook(ON_ERROR, name="second")
    async def mend(ctx, failure):
        reported.append(failure.errors[0].source)
        made = second(ctx)
        if made is not None:
            await made

    @hook(BEFORE_LLM, name="wall")
    def wall(ctx, request):
        return HookResult.end("no") if request.purpose == "refused" else None

    @observer(ON_ERROR, name="shaky")
    def shaky(ctx, failure):
        raise OSError("third")

    agent = scripted_agent([reply("x")], hooks=[first, mend, wall, shaky])
    with pytest.raises(RunFailedError, match="'first' failed at before_step") as failed:
        agent.run("x", ctx=AgentContext(budget=Budget(Limits(tokens=60))))
    assert reported == ["first"]
    assert {"first", "shaky"} <= {error.source for error in failed.value.result.errors}
    assert failed.value.result.errors[0].message == str(failed.value.__cause__)


def test_a_failing_observer_at_on_error_is_recorded_and_not_reported_again():
    reported = []

    @hook(BEFORE_STEP, on_failure="open", name="first")
    def first(ctx, step):
        raise ValueError("first")

    @observer(ON_ERROR, name="shaky")
    def shaky(ctx, failure):
        reported.append(failure.errors[0].source)
        raise OSError("second")

    result = scripted_agent([reply("x")], hooks=[first, shaky]).run("x")
    assert reported == ["first"]
    assert [(error.source, error.fatal) for error in result.errors] == [("first", False), ("shaky", False)]
    assert result.status == "completed"


@pytest.mark.parametrize("second", [closed, refused, stopped])
def test_a_failure_at_on_error_does_not_hide_the_closed_failure(second):
    reported = []

    @guard(BEFORE_STEP, priority=2, on_failure="open", name="shaky")
    def shaky(ctx, step):
        raise KeyError("shaky")

    @guard(BEFORE_STEP, priority=1, name="first")
    def first(ctx, step):
        raise ValueError("first")

    @hook(ON_ERROR, name="second")
    async def mend(ctx, failure):
        reported.append(failure.errors[0].source)
        if failure.errors[0].source == "shaky" and (made := second(ctx)) is not None:
            await made

    @hook(BEFORE_LLM, name="wall")
    def wall(ctx, request):
        return HookResult.end("no") if request.purpose == "refused" else None

    agent = scripted_agent([reply("x")], hooks=[shaky, first, mend, wall])
    with pytest.raises(RunFailedError, match="'first' failed at before_step"):
        agent.run("x", ctx=AgentContext(budget=Budget(Limits(tokens=60))))
    assert reported == ["first", "shaky"]


def test_of_two_failures_in_one_step_the_first_one_gives_the_reason():
    @hook(BEFORE_STEP, name="first")
    def first(ctx, step):
        raise ValueError("first")

    @hook(AFTER_STEP, on_failure="closed", name="second")
    def second(ctx, step):
        raise ValueError("second")

    with pytest.raises(RunFailedError, match="'first' failed at before_step") as failed:
        scripted_agent([reply("x")], hooks=[first, second]).run("x")
    assert [error.source for error in failed.value.result.errors] == ["first", "second"]


# A cancellation and something else at the same moment


class Alarms:
    """A clock whose timer a test can fire."""

    now, callback = 0.0, None

    def time(self):
        return 0.0

    def monotonic(self):
        return self.now

    def call_later(self, seconds, callback):
        self.callback = callback
        return asyncio.get_running_loop().call_later(60, lambda: None)

    def ring(self):
        self.now = 99.0
        self.callback()


async def run_with(what, *hooks):
    """Run a tool that does ``what``; return the result and whether the caller was cancelled."""
    clock, ended = Alarms(), []

    @tool
    async def wait(ctx) -> str:
        """Wait."""
        what(clock, ctx)
        await asyncio.sleep(30)
        return "late"

    @observer(ON_RUN_END)
    def watch(ctx, result):
        ended.append(result.status)

    ctx = AgentContext(budget=Budget(Limits(seconds=7.0), clock=clock), clock=clock)
    agent = scripted_agent([call("wait"), reply("x")], tools=[wait], hooks=[watch, *hooks])
    caller = asyncio.ensure_future(agent.arun("x", ctx=ctx))
    await asyncio.wait({caller})
    return ended[0], caller.cancelled()


def leave(clock, ctx):
    asyncio.current_task().cancel()


def ring(clock, ctx):
    clock.ring()


def cancel(clock, ctx):
    ctx.interrupt.cancel("bored")


@pytest.mark.parametrize(
    ("first", "then", "status", "left"),
    [
        (ring, leave, "cancelled", True),
        (leave, ring, "cancelled", True),
        (cancel, ring, None, False),
        (ring, cancel, None, False),
    ],
)
async def test_a_cancelled_caller_stays_cancelled_even_if_the_time_limit_is_reached_too(first, then, status, left):
    def both(clock, ctx):
        first(clock, ctx)
        then(clock, ctx)

    ended, was_cancelled = await run_with(both)
    assert was_cancelled is left
    assert status is None or ended == status


async def test_a_caller_cancelled_after_the_time_limit_is_cancelled():
    @hook(AFTER_STEP)
    async def late(ctx, step):
        asyncio.current_task().cancel()
        await asyncio.sleep(0)

    assert await run_with(ring, late) == ("cancelled", True)


async def test_a_failure_counts_though_the_caller_was_cancelled_at_the_same_moment():
    callers, ended = [], []

    @hook(ON_PROGRESS, on_failure="closed", name="broken")
    def broken(ctx, progress):
        if progress.phase == "progress":
            callers[0].cancel()
            raise ValueError("no")

    @tool
    async def wait(ctx) -> str:
        """Wait."""
        ctx.progress(0.5, "half")
        await asyncio.sleep(30)
        return "late"

    @observer(ON_RUN_END)
    def watch(ctx, result):
        ended.append(result.status)

    agent = scripted_agent([call("wait"), reply("x")], tools=[wait], hooks=[broken, watch])
    callers.append(asyncio.ensure_future(agent.arun("x")))
    await asyncio.wait(callers)
    assert ended == ["failed"]
    assert callers[0].cancelled()


@pytest.mark.parametrize("before", [0, 1])
async def test_hooks_at_the_end_that_are_cut_off_leave_as_many_cancellations_as_there_were(monkeypatch, before):
    monkeypatch.setattr("hookline._run.cancellation.GRACE", 0.01)

    @hook(ON_RUN_END)
    async def slow(ctx, result):
        ctx.interrupt.cancel("bored")
        await asyncio.sleep(30)

    async def caller():
        for _ in range(before):
            asyncio.current_task().cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        await scripted_agent([reply("x")], hooks=[slow]).arun("x")
        return asyncio.current_task().cancelling()

    assert await asyncio.ensure_future(caller()) == before


async def test_a_run_may_be_cancelled_before_its_task_has_begun_and_the_log_stays_empty(caplog):
    run = scripted_agent([reply("x")]).start("x")
    run.cancel("no more")
    assert (await run.result()).status == "cancelled"
    assert caplog.messages == []


async def test_a_result_that_comes_when_the_time_is_up_is_too_late():
    clock = Alarms()

    @tool
    async def slow() -> str:
        """Use up the time limit."""
        clock.ring()
        return "late"

    ctx = AgentContext(budget=Budget(Limits(seconds=7.0), clock=clock), clock=clock)
    result = await scripted_agent([call("slow"), reply("x")], tools=[slow]).arun("x", ctx=ctx)
    assert (result.stop.kind, result.steps[0].outcomes) == ("time_limit", ("cancelled",))


def test_of_two_calls_that_break_off_a_run_at_the_same_moment_the_first_counts():
    @hook(ON_PROGRESS, on_failure="closed", name="broken")
    def broken(ctx, progress):
        if progress.phase == "progress":
            raise ValueError(progress.call_id)

    @tool
    async def wait(ctx) -> str:
        """Wait."""
        ctx.progress(0.5, "half")
        await asyncio.sleep(30)
        return "late"

    with pytest.raises(RunFailedError, match="call_0_0"):
        scripted_agent([[call("wait"), call("wait")]], tools=[wait], hooks=[broken]).run("x")


async def test_an_interceptor_may_call_the_model_and_is_not_called_again():
    answers = []

    class Own(PassThrough):
        async def intercept(self, point, payload, ctx):
            if point is BEFORE_LLM:
                answers.append((await ctx.llm.complete("may I?")).content)

    result = await scripted_agent([reply("yes"), reply("x")], hooks=[Own()]).arun("x")
    assert (result.reply, answers) == ("x", ["yes"])


def test_a_hook_that_a_sink_registers_within_a_step_is_called_there():
    judged = []

    def sink(event):
        if isinstance(event, ModelReplied) and not judged:
            judged.append("registered")
            agent.hooks.register(guard(BEFORE_TOOL)(lambda ctx, request: judged.append("late")))

    early = guard(BEFORE_TOOL)(lambda ctx, request: judged.append("early"))
    agent = scripted_agent([ADD, reply("x")], tools=[add], hooks=[early], sinks=[sink])
    agent.run("x")
    assert judged == ["registered", "early", "late"]


def test_hooks_may_be_registered_during_a_run_with_an_interceptor():
    class Registering(PassThrough):
        def intercept(self, point, payload, ctx):
            HookRegistry().register(nothing)

    assert scripted_agent([reply("x")], hooks=[Registering()]).run("x").reply == "x"


# What an engine keeps


def engine_of(**options):
    return scripted_agent([reply("x")])._prepare("x", options, None)._engine


async def test_children_are_cancelled_at_the_end_of_a_run_and_awaited():
    engine, reported = engine_of(), []
    over, going = engine.children.add(reported.append), engine.children.add(reported.append)
    over.set_result(None)
    asyncio.get_running_loop().call_soon(going.set_result, None)
    await engine.children.cancel()
    assert reported == ["the run has ended"]
    assert going.done()
    await engine.children.cancel()
    assert reported == ["the run has ended"]


async def test_a_child_that_does_not_end_is_awaited_for_half_of_the_grace_period(monkeypatch):
    limits = []

    async def within(limit, work, shielded=False):
        limits.append(limit)
        await work

    monkeypatch.setattr("hookline._run.children.with_timeout", within)
    monkeypatch.setattr("hookline._run.cancellation.GRACE", 8.0)
    engine = engine_of()
    going = engine.children.add(lambda reason: None)
    asyncio.get_running_loop().call_soon(going.set_result, None)
    await engine.children.cancel()
    assert limits == [4.0]


def test_the_context_of_a_closed_engine_is_still_readable():
    engine = engine_of()
    ctx = engine.ctx
    engine.run_state.append(Message("user", "hi"))
    engine.close()
    assert ctx.llm is None
    assert [message.content for message in ctx.state.messages] == ["hi"]
    assert not ctx.interrupt.cancelled


def test_the_interrupt_is_cancelled_at_the_end_of_an_interrupted_run():
    engine = engine_of()
    engine.cancellation.interrupted_work = True
    interrupt, reported = engine.ctx.interrupt, []
    interrupt.subscribe(reported.append)
    engine.close()
    assert reported == ["the run has ended"]


async def test_a_run_does_not_wait_forever_for_its_children(monkeypatch):
    monkeypatch.setattr("hookline._run.cancellation.GRACE", 0.02)
    engine = engine_of()
    going = engine.children.add(lambda reason: None)
    await engine.children.cancel()
    assert not going.done()


async def test_a_run_that_is_cancelled_while_it_waits_for_its_children_continues_waiting():
    engine = engine_of()
    going = engine.children.add(lambda reason: None)
    waiting = asyncio.create_task(engine.children.cancel())
    for _ in range(3):
        await asyncio.sleep(0)
    waiting.cancel()
    for _ in range(3):
        await asyncio.sleep(0)
    assert not waiting.done()
    going.set_result(None)
    await waiting


async def test_a_generator_exit_is_a_cause_inside_the_run_and_is_raised_again_where_the_run_is_being_closed():
    engine, cause = engine_of(), GeneratorExit()
    token = CURRENT.set(engine)
    try:
        assert await engine.resolve_cause(cause) is cause
    finally:
        CURRENT.reset(token)
    with pytest.raises(GeneratorExit):
        await engine.resolve_cause(cause)


async def test_a_failure_outside_the_context_of_the_run_is_returned_and_not_raised():
    cause = ValueError("x")
    assert await engine_of().resolve_cause(cause) is cause


async def test_a_cancelled_error_raised_by_code_is_resolved_like_a_cancellation():
    engine, raised = engine_of(), asyncio.CancelledError()
    assert await engine.resolve_cause(raised) is raised
    assert (engine.cancellation.interrupted_work, engine.cancellation.deadline is None) == (True, False)


def test_a_failure_at_on_error_contains_the_verdict_of_the_point():
    @hook(BEFORE_STEP, on_failure="open")
    def shaky(ctx, step):
        raise ValueError("first")

    @hook(ON_ERROR)
    def broken(ctx, failure):
        raise OSError("second")

    with pytest.raises(RunFailedError, match="second") as failed:
        scripted_agent([reply("x")], hooks=[shaky, broken]).run("x")
    verdict = failed.value.__cause__.verdict
    assert [error.source for error in verdict.failures] == ["shaky"]
