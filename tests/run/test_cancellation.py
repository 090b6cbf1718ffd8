"""Cancellation: at any moment, from anywhere (DESIGN 4.5, 5.5, 6.6)."""

import asyncio
import queue
import threading
import time

import pytest

from hookline import (
    AFTER_LLM,
    AFTER_STEP,
    AFTER_TOOL,
    APPROVAL_REQUESTED,
    BEFORE_LLM,
    BEFORE_STEP,
    BEFORE_TOOL,
    ON_RUN_END,
    ON_RUN_START,
    ON_STOP,
    Agent,
    AgentContext,
    HookResult,
    ScriptedModel,
    call,
    guard,
    hook,
    observer,
    reply,
    tool,
)
from hookline._run.cancellation import GRACE, Cancellation
from hookline._run.termination import RunStoppedError
from hookline.events import RunFinished, SubagentEvent, TextDelta
from hookline.points import APPROVAL_DECIDED
from hookline.tape import TapeHook, areplay
from hookline.testing import EventLog, scripted_agent
from tests.waiting import until_others_wait, wait_until


@tool
async def wait() -> str:
    """Wait long."""
    await asyncio.sleep(30)
    return "never"


@tool
async def quick() -> str:
    """Be quick."""
    return "quick"


def watching():
    seen = []

    @observer(AFTER_TOOL, AFTER_STEP, ON_STOP, ON_RUN_END)
    def watch(point, ctx, payload):
        seen.append(str(point) if point != AFTER_TOOL else f"after_tool {payload.outcome}")

    return seen, watch


async def test_cancelling_mid_tool_keeps_what_finished_and_cancels_the_rest():
    seen, watch = watching()
    started = []

    @observer(BEFORE_TOOL)
    def note(ctx, request):
        started.append(request.name)

    agent = scripted_agent([[call("quick"), call("wait"), call("quick")]], tools=[wait, quick], hooks=[watch, note])
    run = agent.start("x")
    await wait_until(lambda: len(started) == 3)
    await until_others_wait()
    run.cancel("enough")
    result = await run.result()
    assert result.status == "cancelled"
    assert result.steps[0].outcomes == ("ok", "cancelled", "ok")
    assert [m.role for m in result.messages] == ["user", "assistant", "tool", "tool", "tool"]
    assert seen == ["after_tool ok", "after_tool cancelled", "after_tool ok", "after_step", "on_run_end"]


async def test_cancelling_a_single_running_tool():
    agent = scripted_agent([call("wait")], tools=[wait])
    run = agent.start("x")
    await until_others_wait()
    run.cancel()
    result = await run.result()
    assert result.steps[0].outcomes == ("cancelled",)


async def test_cancelling_mid_generation_closes_the_stream():
    closed = []

    class Slow(ScriptedModel):
        async def stream(self, request):
            try:
                for _ in range(1000):
                    yield "word "
                    await asyncio.sleep(0.001)
            finally:
                closed.append(True)

    run = Agent("a", llm=Slow()).start("x")
    async for event in run.events():
        if isinstance(event, TextDelta):
            run.cancel()
    result = await run.result()
    assert result.status == "cancelled"
    assert closed == [True]
    assert 0 < result.usage.output_tokens < 1000
    assert [m.role for m in result.messages] == ["user"]


async def test_a_sync_tools_thread_is_abandoned_and_its_late_result_dropped():
    started, release = threading.Event(), threading.Event()

    @tool
    def stuck() -> str:
        """Block a thread."""
        started.set()
        release.wait()
        return "late"

    run = scripted_agent([call("stuck")], tools=[stuck]).start("x")
    await wait_until(started.is_set)
    run.cancel()
    result = await run.result()
    release.set()
    await asyncio.sleep(0.02)
    assert result.messages[-1].content == "Cancelled: the call did not finish."


async def test_the_late_result_of_a_tool_that_ignores_cancellation_is_dropped():
    @tool
    async def stubborn() -> str:
        """Ignore being cancelled."""
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            await asyncio.sleep(0.03)
        return "late"

    @hook(AFTER_TOOL)
    async def slow(ctx, result):
        await asyncio.sleep(0.1)

    run = scripted_agent([[call("stubborn"), call("wait")]], tools=[stubborn, wait], hooks=[slow]).start("x")
    await until_others_wait()
    run.cancel()
    result = await run.result()
    assert result.steps[0].outcomes == ("cancelled", "cancelled")
    assert "late" not in [m.content for m in result.messages]


@pytest.mark.parametrize(
    "point", [ON_RUN_START, BEFORE_STEP, BEFORE_LLM, AFTER_LLM, BEFORE_TOOL, AFTER_TOOL, AFTER_STEP]
)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_hook_can_cancel_its_own_run_anywhere(point, is_async):
    ends = []

    def cancel_sync(ctx, payload):
        ctx.interrupt.cancel("from a hook")

    async def cancel_async(ctx, payload):
        ctx.interrupt.cancel("from a hook")

    @observer(ON_RUN_END)
    def end(ctx, result):
        ends.append(result.status)

    agent = scripted_agent(
        [[call("quick"), call("quick")], reply("x")],
        tools=[quick],
        hooks=[hook(point)(cancel_async if is_async else cancel_sync), end],
    )
    result = agent.run("x")
    assert result.status == "cancelled"
    assert ends == ["cancelled"]
    calls = [c.id for m in result.messages for c in m.tool_calls]
    assert [m.call_id for m in result.messages if m.role == "tool"] == calls
    if point == BEFORE_TOOL:
        assert result.steps[0].outcomes == ("cancelled", "cancelled")


async def test_a_cancel_that_comes_with_the_last_fire_does_not_leak_to_the_caller():
    @hook(ON_STOP)
    def cancel(ctx, payload):
        ctx.interrupt.cancel()

    result = await scripted_agent([reply("x")], hooks=[cancel]).arun("x")
    assert result.status == "cancelled"
    await asyncio.sleep(0)  # would raise here
    await asyncio.sleep(0.001)


async def test_cancelling_before_the_run_begins_still_gives_a_result():
    run = scripted_agent([reply("x")]).start("x")
    run.cancel()
    assert (await run.result()).status == "cancelled"


async def test_cancelling_twice_or_after_the_end_changes_nothing():
    run = scripted_agent([reply("x")]).start("x")
    result = await run.result()
    run.cancel()
    run.cancel()
    assert result.status == "completed"
    assert (await run.result()).status == "completed"


async def test_cancelling_the_caller_of_arun_cancels_the_run_and_cleans_up():
    seen, watch = watching()
    task = asyncio.create_task(scripted_agent([call("wait")], tools=[wait], hooks=[watch]).arun("x"))
    await until_others_wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["after_tool cancelled", "after_step", "on_run_end"]


async def test_asyncio_timeout_around_arun_works_as_usual():
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await scripted_agent([call("wait")], tools=[wait]).arun("x")


async def test_cancelling_the_conversation_cancels_all_its_runs():
    ctx = AgentContext()
    agent = Agent("a", llm=ScriptedModel([call("wait")], loop=True), tools=[wait])
    runs = [agent.start("x", ctx=ctx) for _ in range(3)]
    await until_others_wait()
    ctx.interrupt.cancel("all of you")
    results = await asyncio.gather(*(run.result() for run in runs))
    assert {result.status for result in results} == {"cancelled"}
    assert ctx.interrupt._watchers == ()


async def test_a_failing_watcher_does_not_prevent_the_cancellation(caplog):
    ctx, reported = AgentContext(), []
    ctx.interrupt.subscribe(lambda reason: 1 / 0)
    run = Agent("a", llm=ScriptedModel([call("wait")]), tools=[wait]).start("x", ctx=ctx)
    ctx.interrupt.subscribe(reported.append)
    await until_others_wait()
    ctx.interrupt.cancel("enough")
    assert reported == ["enough"]
    assert (await run.result()).status == "cancelled"
    assert "a watcher of an interrupt failed" in caplog.text


async def test_open_approvals_are_decided_as_cancelled():
    decisions = []

    @guard(BEFORE_TOOL)
    def ask(ctx, request):
        return HookResult.ask("ok?")

    @hook(APPROVAL_REQUESTED)
    async def never(ctx, request):
        await asyncio.sleep(30)

    @observer(APPROVAL_DECIDED)
    def decided(ctx, decision):
        decisions.append(decision.decision)

    for batch in ([call("quick")], [call("quick"), call("quick")]):
        decisions.clear()
        run = scripted_agent([batch], tools=[quick], hooks=[ask, never, decided]).start("x")
        await until_others_wait()
        run.cancel()
        result = await run.result()
        assert decisions == ["cancelled"] * len(batch)
        assert result.steps[0].outcomes == ("cancelled",) * len(batch)


async def test_hooks_that_hang_after_a_cancellation_get_five_seconds_in_all(monkeypatch):
    monkeypatch.setattr("hookline._run.cancellation.GRACE", 0.1)
    seen = []

    @hook(AFTER_TOOL)
    async def hang(ctx, result):
        seen.append("after_tool")
        await asyncio.sleep(3600)

    @hook(ON_RUN_END)
    async def end(ctx, result):
        seen.append("on_run_end")

    run = scripted_agent([[call("wait"), call("wait")]], tools=[wait], hooks=[hang, end]).start("x")
    await until_others_wait()
    run.cancel()
    with pytest.raises(Exception, match="still running"):  # a closed failure is stronger than a cancellation
        await run.result()
    assert seen == ["after_tool", "after_tool", "on_run_end"]


async def test_a_cancellation_during_on_run_end_does_not_interrupt_it():
    seen = []

    @hook(ON_RUN_END, priority=1)
    async def slow(ctx, result):
        await asyncio.sleep(0.05)
        seen.append("slow")

    @hook(ON_RUN_END)
    def later(ctx, result):
        seen.append("later")

    run = scripted_agent([reply("x")], hooks=[slow, later]).start("x")
    await until_others_wait()
    run.cancel()
    assert (await run.result()).status == "completed"
    assert seen == ["slow", "later"]


async def test_a_caller_cancelled_during_on_run_end_still_calls_the_remaining_hooks():
    seen = []

    @hook(ON_RUN_END, priority=1)
    async def slow(ctx, result):
        seen.append("slow")
        await asyncio.sleep(30)

    @hook(ON_RUN_END)
    def later(ctx, result):
        seen.append("later")

    task = asyncio.create_task(scripted_agent([reply("x")], hooks=[slow, later]).arun("x"))
    await until_others_wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["slow", "later"]


async def test_cancel_is_safe_from_another_thread():
    run = scripted_agent([call("wait")], tools=[wait]).start("x")
    await until_others_wait()
    threading.Thread(target=run.cancel).start()
    assert (await run.result()).status == "cancelled"


def test_a_sync_tool_sees_the_cancellation_through_its_context():
    begun, seen = threading.Event(), queue.SimpleQueue()

    @tool
    def patient(ctx) -> str:
        """Wait for the cancellation."""
        begun.set()
        seen.put(ctx.interrupt.cancel_token.wait(30))
        return "x"

    run = scripted_agent([call("patient")], tools=[patient]).start("x")
    assert begun.wait(30)
    run.cancel()
    assert run.wait().status == "cancelled"
    assert seen.get(timeout=30) is True


async def test_a_run_that_a_hook_starts_at_the_end_of_a_run_ends_with_it(tmp_path):
    path = tmp_path / "run.tape"

    def agent():
        late = Agent("late", llm=ScriptedModel(["late"]))

        @hook("on_run_end")
        def leaves(ctx, result):
            late.start("go")

        return Agent("a", llm=ScriptedModel(["done"]), hooks=[leaves])

    log = EventLog()
    await agent().arun("x", sinks=[log], hooks=[TapeHook(path)])
    nested = [event.event for event in log if isinstance(event, SubagentEvent)]
    (ended,) = [event.result for event in nested if isinstance(event, RunFinished)]
    assert (ended.ids.agent, ended.status) == ("late", "cancelled")
    assert isinstance(log[-1], RunFinished)
    assert (await areplay(path, agent())).same


async def test_no_task_outlives_a_cancelled_run():
    before = asyncio.all_tasks()
    run = scripted_agent([[call("wait"), call("wait")]], tools=[wait], sinks=[EventLog()]).start("x")
    await until_others_wait()
    run.cancel()
    await run.result()
    await asyncio.sleep(0.01)
    assert asyncio.all_tasks() == before


# The object itself


def test_the_time_to_clean_up_is_counted_from_the_first_cancellation():
    cancellation = Cancellation()
    assert (cancellation.deadline, cancellation.grace_left) == (None, GRACE)
    before = time.monotonic()
    cancellation.start_grace_period()
    first = cancellation.deadline
    assert before + GRACE <= first <= time.monotonic() + GRACE
    cancellation.start_grace_period()
    assert cancellation.deadline == first
    assert cancellation.grace_left <= GRACE


async def in_task(work):
    """Run ``work`` in a task; return its result and the number of pending cancellations of the task."""

    async def inside():
        result = await work()
        return result, asyncio.current_task().cancelling()

    return await asyncio.create_task(inside())


async def test_resolving_a_request_restores_the_cancellation_count_of_the_task():
    async def work():
        cancellation = Cancellation()
        cancellation.begin()
        cancellation.request()
        cause = await cancellation.resolve()
        assert not cancellation.caller_was_cancelled
        return type(cause), cancellation.by_caller, cancellation.interrupted_work, cancellation.pending

    assert await in_task(work) == ((asyncio.CancelledError, 0, True, False), 0)


async def test_an_abort_is_replaced_by_what_caused_it():
    async def work():
        cancellation = Cancellation()
        cancellation.begin()
        cause = ValueError("beside")
        cancellation.abort(cause)
        cancellation.abort(ValueError("later"))
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(1)
        taken = await cancellation.resolve(asyncio.CancelledError())
        return taken is cause, cancellation.requested, cancellation.deadline

    assert await in_task(work) == ((True, False, None), 0)


async def test_a_cancellation_of_the_caller_is_raised_again_when_the_run_has_ended():
    async def work():
        cancellation = Cancellation()
        cancellation.begin()
        asyncio.current_task().cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(1)
        cause = await cancellation.resolve(asyncio.CancelledError())
        assert (type(cause), cancellation.by_caller, cancellation.requested) == (asyncio.CancelledError, 1, True)
        assert asyncio.current_task().cancelling() == 0
        with pytest.raises(asyncio.CancelledError):
            await cancellation.restore()

    assert await in_task(work) == (None, 1)


async def test_cancellations_from_before_the_run_are_not_its_own():
    async def work():
        asyncio.current_task().cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(1)
        cancellation = Cancellation()
        cancellation.begin()
        return cancellation.is_cancelled(), await cancellation.resolve()

    assert await in_task(work) == ((False, None), 1)


async def test_without_a_pending_cancellation_resolve_returns_none():
    async def work():
        cancellation = Cancellation()
        cancellation.begin()
        cancellation.check()
        return await cancellation.resolve(), cancellation.interrupted_work, cancellation.deadline

    assert await in_task(work) == ((None, False, None), 0)


async def test_a_request_before_the_run_begins_is_found_at_its_first_checkpoint():
    cancellation = Cancellation()
    cancellation.request()
    cancellation.begin()
    with pytest.raises(asyncio.CancelledError):
        cancellation.check()


async def test_a_request_near_the_end_starts_the_grace_period_and_interrupts_nothing():
    async def work():
        cancellation = Cancellation()
        cancellation.begin()
        cancellation.finish()
        cancellation.request()
        await asyncio.sleep(0)
        return cancellation.interrupted_work, cancellation.deadline is not None

    assert await in_task(work) == ((False, True), 0)


async def test_a_time_limit_interrupts_the_pending_work():
    class Clock:
        def call_later(self, seconds, ring):
            self.seconds, self.ring = seconds, ring
            return asyncio.get_running_loop().call_later(3600, print)

    async def work():
        clock, reached, cancellation = Clock(), iter([False, True]), Cancellation()
        cancellation.begin()
        cancellation.set_time_limit(lambda: 7.0, clock, lambda: next(reached))
        first = clock.ring
        first()  # not reached yet by the clock of the budget, so the timer starts again
        assert not cancellation.pending
        assert clock.ring is not first
        clock.ring()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(1)
        cause = await cancellation.resolve(asyncio.CancelledError())
        cancellation.finish()
        return type(cause), clock.seconds >= 7.0

    assert await in_task(work) == ((RunStoppedError, True), 0)


def test_a_request_for_a_run_whose_loop_is_closed_is_ignored():
    cancellation = Cancellation()

    async def begin():
        cancellation.begin()

    asyncio.run(begin())
    cancellation.request()
    assert cancellation.requested


async def test_a_request_from_another_thread_before_the_run_begins_breaks_it_off():
    async def work():
        cancellation = Cancellation()
        cancellation.set_loop(asyncio.get_running_loop())
        thread = threading.Thread(target=cancellation.request)
        thread.start()
        thread.join()
        cancellation.begin()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asyncio.Event().wait(), 1)
        return type(await cancellation.resolve())

    assert await in_task(work) == (asyncio.CancelledError, 0)


async def test_a_request_after_a_resolved_cancellation_does_not_interrupt_later_hooks():
    async def work():
        cancellation = Cancellation()
        cancellation.begin()
        cancellation.start_grace_period()
        cancellation.request()
        return asyncio.current_task().cancelling()

    assert await in_task(work) == (0, 0)


async def test_an_abort_is_found_at_the_next_checkpoint():
    async def work():
        cancellation = Cancellation()
        cancellation.begin()
        cancellation.abort(ValueError("beside"))
        with pytest.raises(asyncio.CancelledError):
            cancellation.check()
        return str(await cancellation.resolve())

    assert await in_task(work) == ("beside", 0)


async def test_only_the_task_of_the_run_may_have_cancellations_from_before_it():
    async def work():
        asyncio.current_task().cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(1)
        cancellation = Cancellation()
        cancellation.begin()

        async def beside():
            asyncio.current_task().cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.sleep(1)
            return cancellation.is_cancelled()

        return await asyncio.create_task(beside())

    assert await in_task(work) == (True, 1)


async def test_a_run_that_never_started_has_nothing_to_resolve():
    assert await Cancellation().resolve() is None


async def test_another_task_does_not_resolve_the_cancellation_of_the_run():
    async def work():
        cancellation = Cancellation()
        cancellation.begin()
        asyncio.current_task().cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(1)
        taken = await asyncio.create_task(cancellation.resolve())
        return taken, asyncio.current_task().cancelling(), cancellation.by_caller

    assert await in_task(work) == ((None, 1, 0), 1)


async def test_a_request_counts_more_than_a_time_limit_at_the_same_moment():
    async def work():
        cancellation = Cancellation()
        cancellation.begin()
        cancellation.abort(RunStoppedError())
        cancellation.request()
        return type(await cancellation.resolve()), cancellation.deadline is not None

    assert await in_task(work) == ((asyncio.CancelledError, True), 0)


async def test_a_cancelled_error_raised_by_code_starts_the_grace_period():
    async def work():
        cancellation, raised = Cancellation(), asyncio.CancelledError()
        cancellation.begin()
        taken = await cancellation.resolve(raised)
        return taken is raised, cancellation.requested, cancellation.interrupted_work, cancellation.deadline is not None

    assert await in_task(work) == ((True, False, True, True), 0)
