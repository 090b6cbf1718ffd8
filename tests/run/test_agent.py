"""The four ways to run, from any loop or thread (DESIGN 6.6)."""

import asyncio
import contextvars
import gc
import threading
import time
import weakref

import pytest

from hookline import (
    AFTER_LLM,
    AFTER_STEP,
    BEFORE_LLM,
    BEFORE_STEP,
    BEFORE_TOOL,
    ON_RUN_END,
    ON_RUN_START,
    Agent,
    AgentContext,
    HooklineError,
    HookRegistry,
    Limits,
    RegistrationError,
    RunFailedError,
    ScriptedModel,
    ToolCallRequest,
    call,
    guard,
    hook,
    observer,
    reply,
    tool,
)
from hookline._kernel.scope import CURRENT
from hookline._run.cancellation import Cancellation
from hookline._run.context import services_of
from hookline.compat import LLMAgent
from hookline.events import HookExecuted, PointFired, RunFinished, RunStarted, Steered, TextDelta, ToolStarted
from hookline.plugins import Plugin
from hookline.testing import EventLog, scripted_agent
from tests.waiting import wait_until

WHO = contextvars.ContextVar("who", default="nobody")


@tool
async def wait() -> str:
    """Wait long."""
    await asyncio.sleep(30)
    return "never"


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


# Ways to run


def test_run_blocks_and_returns_the_result():
    assert scripted_agent([reply("hi")]).run("x").reply == "hi"


@pytest.mark.filterwarnings("ignore:.*blocks the event loop:RuntimeWarning")
async def test_run_works_inside_a_running_loop():
    assert scripted_agent([call("add", a=1, b=1), reply("hi")], tools=[add]).run("x").reply == "hi"


async def test_arun_awaits():
    assert (await scripted_agent([reply("hi")]).arun("x")).reply == "hi"


async def test_stream_gives_typed_events_from_first_to_last_without_gaps():
    agent = scripted_agent([call("add", a=1, b=1), reply("two words")], tools=[add])
    events = [event async for event in agent.stream("x")]
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert isinstance(events[0], RunStarted)
    assert isinstance(events[-1], RunFinished)
    assert events[-1].result.reply == "two words"
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "two words"
    assert len({event.run_id for event in events}) == 1


async def test_stream_raises_after_the_last_event_when_the_run_failed():
    events = []
    with pytest.raises(RunFailedError):
        async for event in scripted_agent([OSError("down")]).stream("x"):
            events.append(event)
    assert events[-1].result.status == "failed"


async def test_leaving_a_stream_cancels_the_run():
    done = []

    @observer("on_run_end")
    def end(ctx, result):
        done.append(result.status)

    agent = Agent("a", llm=ScriptedModel([reply("one two three")], delay=0.01), hooks=[end])
    stream = agent.stream("x")
    async for event in stream:
        if isinstance(event, TextDelta):
            break
    await stream.aclose()
    assert done == ["cancelled"]


async def test_a_handle_can_be_read_by_many_and_again_from_any_seq():
    run = scripted_agent([reply("a b c")]).start("x")

    async def read(after=0):
        return [event.seq async for event in run.events(after)]

    first, second = await asyncio.gather(read(), read())
    again, late = await read(), await read(after=3)
    assert first == second == again == list(range(1, len(again) + 1))
    assert late == again[3:]
    assert (await run.result()).reply == "a b c"
    assert run.done


def test_start_without_a_loop_runs_in_the_background_and_wait_blocks():
    run = scripted_agent([reply("hi")]).start("x")
    assert run.wait(timeout=60).reply == "hi"
    assert threading.current_thread() is threading.main_thread()


def test_events_of_a_background_run_can_be_read_from_another_loop():
    run = Agent("a", llm=ScriptedModel([reply("a b c")], delay=0.005)).start("x")

    async def read():
        return [event async for event in run.events()], await run.result()

    events, result = asyncio.run(read())
    assert events[-1].seq == len(events)
    assert result.reply == "a b c"


def test_wait_raises_after_its_timeout_and_the_run_continues():
    run = Agent("a", llm=ScriptedModel([reply("hi")], delay=0.1)).start("x")
    with pytest.raises(TimeoutError):
        run.wait(timeout=0.01)
    assert run.wait().reply == "hi"


async def test_wait_in_the_event_loop_of_the_run_raises_with_advice():
    run = scripted_agent([reply("hi")]).start("x")
    with pytest.raises(RuntimeError, match="await run.result"):
        run.wait()
    await run.result()


async def test_a_failed_run_raises_from_every_way_to_wait():
    run = scripted_agent([OSError("down")]).start("x")
    with pytest.raises(RunFailedError):
        await run.result()
    run = scripted_agent([OSError("down")]).start("x")
    with pytest.raises(RunFailedError):
        await asyncio.to_thread(run.wait)


async def test_giving_up_on_result_does_not_cancel_the_run():
    run = Agent("a", llm=ScriptedModel([reply("hi")], delay=0.05)).start("x")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await run.result()
    assert (await run.result()).reply == "hi"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_exit_inside_a_run_reaches_the_caller_and_later_runs_still_work(error):
    ended = []

    @hook(BEFORE_STEP)
    def leave(ctx, payload):
        raise error

    @observer("on_run_end")
    def end(ctx, result):
        ended.append(result.status)

    with pytest.raises(error):
        scripted_agent([reply("x")], hooks=[leave, end]).run("x")
    assert ended == ["failed"]
    assert scripted_agent([reply("hi")]).run("x").reply == "hi"


def test_a_forked_process_gets_a_loop_of_its_own():
    import os

    assert scripted_agent([reply("hi")]).run("x").reply == "hi"
    pid = os.fork()
    if pid == 0:
        try:
            done = scripted_agent([reply("child")]).start("x").wait(timeout=60).reply == "child"
        finally:
            os._exit(0 if done else 1)
    assert os.waitpid(pid, 0)[1] == 0


# Runs inside runs


def nested_agent(seen):
    inner = scripted_agent([reply("inner")] * 9, name="inner")

    @hook(BEFORE_STEP)
    def ask_another(ctx, payload):
        seen.append(inner.run("sub").reply)

    return scripted_agent([reply("outer")] * 9, hooks=[ask_another])


@pytest.mark.filterwarnings("ignore:.*blocks the event loop:RuntimeWarning")
def test_a_sync_hook_may_run_another_agent():
    seen = []
    assert nested_agent(seen).run("x").reply == "outer"
    assert seen == ["inner"]


@pytest.mark.filterwarnings("ignore:.*blocks the event loop:RuntimeWarning")
async def test_a_sync_hook_may_run_another_agent_inside_a_loop():
    seen = []
    assert (await nested_agent(seen).arun("x")).reply == "outer"
    assert seen == ["inner"]


@pytest.mark.filterwarnings("ignore:.*blocks the event loop:RuntimeWarning")
def test_runs_nested_three_deep_through_hooks_and_sync_tools_do_not_deadlock():
    innermost = scripted_agent([reply("deep")] * 3)

    @tool
    def dive() -> str:
        """Run another agent from a worker thread."""
        return innermost.run("x").reply

    middle = scripted_agent([call("dive"), reply("middle")] * 3, tools=[dive])
    seen = []

    @hook(BEFORE_STEP)
    def through(ctx, payload):
        seen.append(middle.run("y").messages[2].content)

    assert scripted_agent([reply("top")], hooks=[through]).run("z").reply == "top"
    assert seen == ["deep"]


@pytest.mark.filterwarnings("ignore:.*blocks the event loop:RuntimeWarning")
@pytest.mark.parametrize("is_async", [False, True])
def test_a_hook_is_not_called_again_by_a_run_it_started(is_async):
    entered = []
    agent = scripted_agent([reply("x")] * 5)

    def again_sync(ctx, payload):
        entered.append(payload.task)
        agent.run("nested")

    async def again_async(ctx, payload):
        entered.append(payload.task)
        await agent.arun("nested")

    agent.register_hook(hook(ON_RUN_START)(again_async if is_async else again_sync))
    agent.run("first")
    agent.run("second")
    assert entered == ["first", "second"]


async def test_a_hook_is_called_again_by_runs_that_did_not_start_in_it():
    entered = []

    @hook(BEFORE_LLM)
    async def note(ctx, payload):
        entered.append(ctx.run_id)
        await asyncio.sleep(0.01)

    agent = Agent("a", llm=ScriptedModel([reply("x")], loop=True), hooks=[note])
    await asyncio.gather(*(agent.arun(str(i)) for i in range(4)))
    assert len(set(entered)) == 4


# Steering


async def test_steering_reaches_the_next_model_call_after_the_results():
    agent = scripted_agent([call("pause"), reply("done")], tools=[])
    gate = asyncio.Event()

    @tool
    async def pause() -> str:
        """Wait."""
        await gate.wait()
        return "ok"

    log = EventLog()
    agent = scripted_agent([call("pause"), reply("done")], tools=[pause], sinks=[log])
    run = agent.start("x")
    await wait_until(lambda: log.of(ToolStarted))
    assert run.steer("And be quick.")
    gate.set()
    result = await run.result()
    assert [m.content for m in result.messages] == ["x", "", "ok", "And be quick.", "done"]
    assert [e.text for e in log.of(Steered)] == ["And be quick."]


async def test_steering_at_the_last_moment_makes_the_run_continue():
    @hook(AFTER_STEP)
    async def late(ctx, step):
        if step.index == 0:
            assert run.steer("wait, one more thing")

    run = scripted_agent([reply("bye"), reply("sure")], hooks=[late]).start("x")
    result = await run.result()
    assert result.reply == "sure"
    assert not run.steer("too late")


# Identity and options


def test_ids_reach_every_payload_and_the_result():
    seen = []

    @observer(ON_RUN_START, BEFORE_LLM, AFTER_LLM, BEFORE_TOOL)
    def watch(ctx, payload):
        seen.append(payload.ids)
        assert (ctx.run_id, ctx.task_id, ctx.correlation_id) == (
            payload.ids.run_id,
            payload.ids.task_id,
            payload.ids.correlation_id,
        )

    agent = scripted_agent([call("add", a=1, b=1), reply("x")], tools=[add], hooks=[watch])
    result = agent.run("x", task_id="task-1", correlation_id="corr-1")
    assert set(map(id, seen)) == {id(seen[0])}
    assert (result.ids.task_id, result.ids.correlation_id) == ("task-1", "corr-1")


def test_deps_and_metadata_reach_hooks_and_tools():
    @tool
    def who(ctx) -> str:
        """Tell."""
        return f"{ctx.deps['db']} {ctx.state.metadata['user']}"

    result = scripted_agent([call("who"), reply("x")], tools=[who]).run("x", deps={"db": 1}, metadata={"user": "u"})
    assert result.messages[2].content == "1 u"


def test_metadata_that_is_no_json_is_rejected():
    with pytest.raises(TypeError, match="not JSON"):
        scripted_agent([reply("x")]).run("x", metadata={"x": object()})


def test_unknown_options_are_rejected():
    with pytest.raises(
        TypeError, match=r"unknown option budget; use ctx=AgentContext\(budget=\.\.\.\); known: allowed"
    ):
        scripted_agent([reply("x")]).run("x", budget=3)
    with pytest.raises(TypeError, match="unknown option metdata; known: .*, metadata, output_type, "):
        scripted_agent([reply("x")]).run("x", metdata={})


@pytest.mark.parametrize("task", [None, 3, b"x"])
def test_a_task_that_is_no_text_is_rejected(task):
    with pytest.raises(TypeError, match="the task must be text"):
        scripted_agent([reply("x")]).run(task)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"llm": "gpt"}, "unknown kind of model 'gpt'"),
        ({"llm": ScriptedModel}, "create an instance"),
        ({"llm": ScriptedModel(), "tools": add}, r"write tools=\[...\]"),
        (
            {"llm": ScriptedModel(), "sinks": [3]},
            "sinks must be a list of callables that take an event: 3 cannot be called",
        ),
        ({"llm": ScriptedModel(), "tools": [3]}, "not a tool"),
        ({"llm": ScriptedModel(), "tools": [add, add]}, "two tools"),
        ({"llm": ScriptedModel(), "hooks": [3]}, "not a hook"),
        ({"llm": ScriptedModel(), "hooks": guard(BEFORE_TOOL)(lambda ctx, p: None)}, "list of hooks"),
        ({"llm": ScriptedModel(), "max_parallel_tools": 0}, "at least 1"),
        ({"llm": ScriptedModel(), "plugins": ["no-such-plugin"]}, "no installed plugin"),
    ],
)
def test_an_agent_that_cannot_work_is_rejected_with_the_reason(options, message):
    with pytest.raises(RegistrationError, match=message):
        Agent("a", **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ctx": {"user": 1}}, "ctx= takes an AgentContext, not dict"),
        ({"session": "abc"}, "session= takes a Session, not str"),
        ({"hooks": 3}, "hooks must be a list"),
    ],
)
def test_what_a_run_cannot_use_is_rejected_before_it_begins(options, message):
    with pytest.raises((TypeError, RegistrationError), match=message):
        scripted_agent([reply("x")]).run("x", **options)


def test_a_budget_of_another_type_is_rejected():
    with pytest.raises(TypeError, match=r"budget= takes a Budget\(Limits\(tokens=...\)\), not int"):
        AgentContext(budget=100)


def test_random_numbers_come_from_the_context_and_can_be_seeded():
    from random import Random

    draws = [AgentContext(random=Random(7)).random.random() for _ in range(2)]
    assert draws[0] == draws[1]
    assert 0 <= AgentContext().random.random() < 1


def test_a_registry_may_be_shared_and_the_old_name_works():
    registry = HookRegistry()
    agents = [LLMAgent(name, "", "", llm=ScriptedModel([reply("x")]), hooks=registry) for name in "ab"]
    seen = []
    registry.on(BEFORE_STEP, lambda ctx, payload: seen.append(ctx.agent_name))
    for agent in agents:
        agent.run("x")
    assert seen == ["a", "b"]


def test_plugins_are_added_and_removed_as_a_whole():
    seen = []

    @hook(BEFORE_STEP)
    def count(ctx, payload):
        seen.append(1)

    def configure(agent):
        agent.limits = Limits(steps=3)

    plugin = Plugin("math", hooks=[count], tools=[add], configure=configure)
    agent = scripted_agent([call("add", a=1, b=1), reply("x"), reply("y")], plugins=[plugin])
    assert agent.run("x").steps[0].outcomes == ("ok",)
    assert agent.limits.steps == 3
    agent.hooks.unregister_plugin("math")
    agent.run("y")
    assert len(seen) == 2


def test_register_hook_counts_for_later_runs_and_can_be_undone():
    seen = []
    agent = scripted_agent([reply("x")] * 3)
    undo = agent.register_hook(observer(BEFORE_STEP)(lambda ctx, p: seen.append(1)), priority=5)
    agent.run("x")
    undo()
    agent.run("x")
    assert seen == [1]


# Events


def test_there_is_one_record_per_fire_and_hook_calls_only_with_a_result():
    @hook(BEFORE_STEP)
    def quiet(ctx, payload):
        return None

    @hook(ON_RUN_START)
    def loud(ctx, payload):
        return payload.replace(task="y")

    log, every = EventLog(), EventLog(every_call=True)
    scripted_agent([reply("x")], hooks=[quiet, loud], sinks=[log]).run("x")
    scripted_agent([reply("x")], hooks=[quiet, loud], sinks=[every]).run("x")
    assert [(e.hook, e.verb) for e in log.of(HookExecuted)] == [("loud", "replace")]
    assert [(e.hook, e.verb) for e in every.of(HookExecuted)] == [("loud", "replace"), ("quiet", "cont")]
    assert [e.point for e in log.of(PointFired)].count("before_step") == 1


def test_the_caller_can_request_an_event_for_every_call():
    seen = EventLog()
    agent = scripted_agent([reply("x")], hooks=[observer(BEFORE_STEP)(lambda ctx, p: None)])
    agent.run("x", sinks=[seen], every_call=True)
    (executed,) = seen.of(HookExecuted)
    assert executed.duration is not None
    assert executed.duration >= 0


def test_a_sink_that_raises_does_not_affect_the_run(caplog):
    def broken(event):
        raise OSError("disk full")

    log = EventLog()
    assert scripted_agent([reply("x")], sinks=[broken, log]).run("x").status == "completed"
    assert isinstance(log[-1], RunFinished)
    assert "disk full" in caplog.text


def test_events_are_json_both_ways():
    log = EventLog()
    scripted_agent([[call("add", a=1, b=1), call("nope")], reply("x")], tools=[add], sinks=[log]).run("x")
    for event in log:
        assert type(event).from_json(event.to_json()) == event


# Nothing is left behind


def test_a_finished_run_leaves_nothing_for_the_garbage_collector():
    refs = []

    @hook(ON_RUN_START)
    def remember(ctx, payload):
        refs.append(weakref.ref(services_of(ctx).budget))

    agent = scripted_agent([call("add", a=1, b=1), reply("x")], tools=[add], hooks=[remember])

    async def once():
        await agent.arun("x")

    gc.disable()
    try:
        asyncio.run(once())
        for _ in range(100):  # a worker thread may still hold its job
            if refs[0]() is None:
                break
            time.sleep(0.01)
        assert refs[0]() is None
    finally:
        gc.enable()


def test_tool_call_request_digest_depends_on_name_and_arguments_alone():
    one = ToolCallRequest("a", "t", {"x": 1, "y": [1, 2]})
    same = ToolCallRequest("b", "t", {"y": [1, 2], "x": 1}, hop=3, attempt=2)
    assert one.digest == same.digest
    assert one.digest != ToolCallRequest("a", "t", {"x": 1, "y": [2, 1]}).digest
    assert one.digest != ToolCallRequest("a", "u", {"x": 1, "y": [1, 2]}).digest


def test_a_conversation_context_can_be_used_from_several_threads():
    ctx = AgentContext()
    agent = Agent("a", llm=ScriptedModel([reply("r")], loop=True))
    threads = [threading.Thread(target=lambda: [agent.run("x", ctx=ctx) for _ in range(10)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ctx.session.messages) == 80
    assert ctx.budget.usage.output_tokens == 40


# The handle on a run


def test_a_handle_knows_the_ids_of_its_run_and_whether_it_has_ended(caplog):
    gate = threading.Event()

    @hook(ON_RUN_START, timeout=20)
    def hold(ctx, start):
        gate.wait(10)

    run = scripted_agent([reply("x")], hooks=[hold]).start("go", task_id="t")
    assert not run.done
    gate.set()
    result = run.wait(20)
    assert run.done
    assert (run.id, run.ids) == (result.ids.run_id, result.ids)
    assert run.ids.task_id == "t"
    assert run.steer("late") is False
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.filterwarnings("ignore:.*blocks the event loop:RuntimeWarning")
@pytest.mark.parametrize("way", ["start", "run", "nested"])
def test_a_run_sees_the_context_variables_of_its_caller(way):
    seen = []

    @observer(BEFORE_STEP)
    async def watch(ctx, step):
        seen.append((WHO.get(), CURRENT.get().ctx is ctx))

    agent = scripted_agent([reply("x")], hooks=[watch])
    token = WHO.set("ann")
    try:
        if way == "start":
            agent.start("x").wait(20)
        elif way == "run":
            agent.run("x")
        else:

            async def inside():
                return agent.run("x")

            asyncio.run(inside())
    finally:
        WHO.reset(token)
    assert seen == [("ann", True)]


async def test_the_current_run_is_set_only_during_the_run():
    before = CURRENT.get(None)
    await scripted_agent([reply("x")]).arun("x")
    assert CURRENT.get(None) is before


async def test_a_wait_that_is_interrupted_cancels_the_run_and_waits_for_its_end(monkeypatch):
    run = scripted_agent([call("wait")], tools=[wait]).start("x")
    real = run._future

    class Interrupted:
        def result(self, timeout=None):
            raise KeyboardInterrupt

    def started(times=iter([Interrupted()])):
        return next(times, real)

    monkeypatch.setattr(run, "_started", started)
    with pytest.raises(KeyboardInterrupt):
        await asyncio.to_thread(run.wait)
    assert real.done()
    assert real.result().stop.message == "interrupted"


async def test_settled_does_not_raise_for_a_failed_run_but_result_does():
    run = scripted_agent([OSError("offline")]).start("x")
    await run.settled()
    assert run.done
    with pytest.raises(RunFailedError, match="offline") as failed:
        await run.result()
    assert isinstance(failed.value.__cause__.__cause__, OSError)
    with pytest.raises(RunFailedError, match="offline"):
        await asyncio.to_thread(run.wait)


async def test_a_run_that_is_cancelled_without_a_reason_says_cancelled():
    run = scripted_agent([call("wait")], tools=[wait]).start("x")
    run.cancel()
    assert (await run.result()).stop.message == "cancelled"


async def test_events_may_be_read_from_a_number_on_and_stop_at_the_end():
    run = scripted_agent([reply("x")]).start("x")
    events = [event async for event in run.events()]
    assert isinstance(events[0], RunStarted)
    assert isinstance(events[-1], RunFinished)
    assert [event async for event in run.events(after=len(events) - 1)] == events[-1:]


async def test_when_a_run_has_ended_its_context_is_empty_and_that_of_its_caller_as_before():
    kept = []

    @observer(ON_RUN_END)
    def keep(ctx, result):
        kept.append(ctx)

    outer = AgentContext()
    result = await scripted_agent([reply("x")], hooks=[keep]).arun("x", ctx=outer)
    assert result.status == "completed"
    (ctx,) = kept
    assert ctx.llm is None
    assert [message.content for message in ctx.state.messages] == ["x", "x"]
    with pytest.raises(HooklineError, match=r"ctx.fire works only inside a run"):
        await ctx.fire(BEFORE_STEP, {"index": 1})
    assert not outer.interrupt.cancelled
    assert outer.interrupt._watchers == ()


async def test_a_reader_of_a_run_that_failed_to_begin_is_not_left_waiting():
    log = EventLog()

    @hook(ON_RUN_START)
    def fail(ctx, start):
        raise ValueError("no")

    run = scripted_agent([reply("x")], hooks=[fail], sinks=[log]).start("x")
    events = [event async for event in run.events()]
    assert isinstance(events[-1], RunFinished)
    assert events[-1].result.status == "failed"
    assert list(log) == events
    await run.settled()


async def test_a_cancellation_from_another_thread_is_delivered_in_the_runs_own(monkeypatch):
    threads = []
    real = Cancellation._cancel

    def cancel(self):
        threads.append(threading.get_ident())
        real(self)

    monkeypatch.setattr(Cancellation, "_cancel", cancel)
    ctx = AgentContext()

    @tool
    async def leave(ctx) -> str:
        """Cancel from elsewhere."""
        await asyncio.to_thread(outer.interrupt.cancel, "from a thread")
        await asyncio.sleep(30)
        return "never"

    outer = ctx
    result = await scripted_agent([call("leave")], tools=[leave]).arun("x", ctx=ctx)
    assert (result.status, result.stop.message) == ("cancelled", "from a thread")
    assert threads == [threading.get_ident()]


def test_an_agent_can_be_annotated_with_its_deps_alone():
    assert Agent[int] == Agent[int, str]
