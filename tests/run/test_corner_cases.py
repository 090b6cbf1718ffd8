"""Combinations of rules: nested runs, late results, several failures, shared objects."""

import asyncio
import os
import threading
from typing import Annotated

import pytest
from pydantic import BaseModel, BeforeValidator, Field

from hookline import (
    AFTER_LLM,
    AFTER_STEP,
    AFTER_TOOL,
    BEFORE_LLM,
    BEFORE_STEP,
    BEFORE_TOOL,
    ON_ERROR,
    ON_PROGRESS,
    ON_RUN_END,
    ON_RUN_START,
    ON_STOP,
    Agent,
    AgentContext,
    Budget,
    HookRegistry,
    HookResult,
    Limits,
    Message,
    RunFailedError,
    ScriptedModel,
    Session,
    call,
    guard,
    hook,
    observer,
    reply,
    tool,
)
from hookline.errors import InvalidResultError, ModelError
from hookline.events import HookExecuted, RetryIgnored, ToolProgressed
from hookline.hooks import HookAction, PassThrough
from hookline.models import ModelResponse
from hookline.plugins import Plugin
from hookline.points import TOOL_END_WITH_PATH
from hookline.testing import EventLog, scripted_agent
from tests.waiting import until_others_wait


@tool
async def quick() -> str:
    """Be quick."""
    return "quick"


def tool_texts(result):
    return [m.content for m in result.messages if m.role == "tool"]


# Results made by hand


def test_a_verb_may_be_given_as_text_and_must_exist():
    @guard(BEFORE_TOOL)
    def block(ctx, request):
        return HookResult("block", "no")

    result = scripted_agent([call("quick"), reply("x")], tools=[quick], hooks=[block]).run("x")
    assert result.steps[0].outcomes == ("blocked",)
    with pytest.raises(InvalidResultError, match="is not a verb"):
        HookResult("blok", "no")
    with pytest.raises(InvalidResultError, match="stop kind"):
        HookResult(HookAction.STOP, "x")


# Cancellation through several runs


def parent_of(child):
    @tool
    async def delegate() -> str:
        """Ask another agent, in the same task."""
        return (await child.arun("sub")).reply

    return scripted_agent([call("delegate"), reply("went on")], tools=[delegate])


async def test_a_timeout_applies_to_a_nested_run_in_a_tool():
    child = Agent("child", llm=ScriptedModel([reply("late")], delay=5))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await parent_of(child).arun("x")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(parent_of(child).arun("x"), 0.05)


async def test_a_cancelled_caller_cancels_a_guard_that_asks_another_agent_even_if_it_fails_open():
    ran = []
    child = Agent("child", llm=ScriptedModel([reply("late")], delay=5))

    @tool
    async def act() -> str:
        """Act."""
        ran.append(1)
        return "x"

    @guard(BEFORE_TOOL, on_failure="open")
    async def judge(ctx, request):
        await child.arun("fine?")

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await scripted_agent([call("act")], tools=[act], hooks=[judge]).arun("x")
    assert ran == []


async def test_arun_inside_the_cleanup_of_a_cancelled_task_gives_its_result():
    seen = []

    async def work():
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            seen.append((await scripted_agent([reply("tidied")]).arun("tidy")).reply)
            raise

    task = asyncio.create_task(work())
    await until_others_wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["tidied"]


async def test_a_caller_cancelled_together_with_the_run_is_still_cancelled():
    @hook(BEFORE_LLM)
    async def wait(ctx, request):
        ctx.scratch["interrupt"] = ctx.interrupt
        await asyncio.sleep(5)

    ctx = AgentContext()
    task = asyncio.create_task(scripted_agent([reply("x")], hooks=[wait]).arun("x", ctx=ctx))
    await until_others_wait()
    task.cancel()
    ctx.scratch["interrupt"].cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_whatever_ends_a_run_cancels_the_runs_it_started():
    started = []
    child = Agent("child", llm=ScriptedModel([reply("late")], delay=5))

    @tool
    async def launch(ctx) -> str:
        """Start another run and leave it."""
        started.append(child.start("sub", ctx=ctx))
        return "started"

    await scripted_agent([call("launch"), reply("done")], tools=[launch]).arun("x")
    assert (await started[0].result()).status == "cancelled"
    assert (await started[0].result()).stop.message == "the run has ended"


async def test_a_second_cancellation_does_not_cut_the_cleanup_short():
    seen = []

    @tool
    async def wait() -> str:
        """Wait."""
        await asyncio.sleep(5)
        return "x"

    @hook(AFTER_TOOL, ON_RUN_END)
    async def slow(point, ctx, payload):
        await asyncio.sleep(0.03)
        seen.append(str(point))

    task = asyncio.create_task(scripted_agent([call("wait")], tools=[wait], hooks=[slow]).arun("x"))
    await until_others_wait()
    for _ in range(4):
        task.cancel()
        await asyncio.sleep(0.01)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["after_tool", "on_run_end"]


async def test_a_hanging_on_run_end_hook_can_be_cancelled(monkeypatch):
    monkeypatch.setattr("hookline._run.cancellation.GRACE", 0.05)
    monkeypatch.setattr("hookline._run.cancellation.GRACE", 0.05)
    seen = []

    @hook(ON_RUN_END, priority=1)
    async def hang(ctx, result):
        await asyncio.sleep(30)

    @hook(ON_RUN_END)
    def later(ctx, result):
        seen.append(result.status)

    run = scripted_agent([reply("x")], hooks=[hang, later]).start("x")
    await until_others_wait()
    run.cancel()
    assert (await asyncio.wait_for(run.result(), 60)).status == "completed"
    assert seen == ["completed"]


def test_the_reason_of_a_cancellation_is_in_the_result():
    @hook(BEFORE_STEP)
    def cancel(ctx, payload):
        ctx.interrupt.cancel("user pressed x")

    result = scripted_agent([reply("x")], hooks=[cancel]).run("x")
    assert (result.stop.kind, result.stop.message) == ("user_requested", "user pressed x")


async def test_a_run_whose_coroutine_is_closed_ends_silently():
    coroutine = scripted_agent([reply("x")], hooks=[hook(BEFORE_LLM)(lambda ctx, p: asyncio.sleep(5))]).arun("x")
    coroutine.send(None)
    coroutine.close()
    assert coroutine.cr_frame is None


async def test_giving_up_on_settled_does_not_lose_the_result():
    run = Agent("a", llm=ScriptedModel([reply("hi")], delay=0.05)).start("x")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(run.settled(), 0.01)
    assert (await run.result()).reply == "hi"


# Late and stubborn tools


@tool
async def stubborn() -> str:
    """Suppress the cancellation."""
    try:
        await asyncio.sleep(5)
    except asyncio.CancelledError:
        pass
    return "late"


@pytest.mark.parametrize("batch", [[call("stubborn")], [call("stubborn"), call("stubborn")]])
async def test_the_late_result_of_a_cancelled_tool_is_dropped(batch):
    run = scripted_agent([batch], tools=[stubborn]).start("x")
    await until_others_wait()
    run.cancel()
    result = await run.result()
    assert set(result.steps[0].outcomes) == {"cancelled"}
    assert "late" not in tool_texts(result)


def test_a_timeout_bounds_a_tool_that_swallows_cancellation():
    @tool(timeout=0.03)
    async def deaf() -> str:
        """Ignore everything."""
        for _ in range(20):
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                pass
        return "late"

    result = scripted_agent([call("deaf"), reply("x")], tools=[deaf]).run("x")
    assert tool_texts(result) == ["TimeoutError: no result after 0.03 s"]


def test_progress_without_any_await_after_it_is_not_lost():
    @tool
    async def work(ctx) -> str:
        """Report and return at once."""
        ctx.progress(0.5, "half")
        return "done"

    log = EventLog()
    scripted_agent([call("work"), reply("x")], tools=[work], sinks=[log]).run("x")
    assert [event.message for event in log.of(ToolProgressed)] == ["work: half (50%)"]


def test_a_working_directory_that_is_gone_does_not_leave_a_call_open(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getcwd", lambda: (_ for _ in ()).throw(FileNotFoundError("gone")))

    @tool
    def read(path: str) -> str:
        """Read."""
        return "text"

    watch = observer(TOOL_END_WITH_PATH)(lambda ctx, payload: None)
    with pytest.raises(RunFailedError):
        scripted_agent([call("read", path="a"), reply("x")], tools=[read], hooks=[watch]).run("x")


# Judged is executed


def test_values_that_guards_cannot_see_do_not_run():
    got, judged = [], []

    class Order(BaseModel):
        item: str
        secret: str = Field(default="none", exclude=True)

    @tool
    def place(order: Order) -> str:
        """Place an order."""
        got.append(order.secret)
        return "ok"

    @guard(BEFORE_TOOL)
    def judge(ctx, request):
        judged.append(request.arguments["order"])

    sent = call("place", order={"item": "tea", "secret": "rm -rf"})
    scripted_agent([sent, reply("x")], tools=[place], hooks=[judge]).run("x")
    assert judged == [{"item": "tea"}]
    assert got == ["none"]


def test_a_validator_that_counts_runs_once():
    got, judged = [], []

    @tool
    def take(n: Annotated[int, BeforeValidator(lambda v: int(v) + 1)]) -> str:
        """Take."""
        got.append(n)
        return "ok"

    judge = guard(BEFORE_TOOL)(lambda ctx, request: judged.append(request.arguments["n"]))
    scripted_agent([call("take", n=1), reply("x")], tools=[take], hooks=[judge]).run("x")
    assert judged == got == [2]


def test_a_validator_may_raise_anything():
    def explode(value):
        raise KeyError("q")

    @tool
    def take(n: Annotated[int, BeforeValidator(explode)]) -> str:
        """Take."""
        return "ok"

    result = scripted_agent([call("take", n=1), reply("x")], tools=[take]).run("x")
    assert tool_texts(result) == ["Invalid arguments for take: KeyError: 'q'"]


@pytest.mark.parametrize(("given", "ran"), [({"path": "/safe"}, ["/safe"]), ({"paht": "/safe"}, [])])
def test_the_arguments_from_an_interceptor_are_validated_and_run(given, ran):
    got = []

    @tool
    def read(path: str) -> str:
        """Read."""
        got.append(path)
        return "text"

    class Rewriting(PassThrough):
        async def intercept(self, point, payload, ctx):
            return payload.replace(arguments=given) if point == BEFORE_TOOL else None

    scripted_agent([call("read", path="/etc"), reply("x")], tools=[read], hooks=[Rewriting()]).run("x")
    assert got == ran


# Failures beside failures


def test_on_run_end_keeps_what_the_other_hooks_made_of_the_result():
    @hook(ON_RUN_END, priority=1)
    def redact(ctx, result):
        return result.replace(reply="***")

    @hook(ON_RUN_END)
    def broken(ctx, result):
        raise OSError("disk full")

    with pytest.raises(RunFailedError, match="disk full") as caught:
        scripted_agent([reply("secret")], hooks=[redact, broken]).run("x")
    assert caught.value.result.reply == "***"


def test_a_failing_on_error_after_on_run_end_keeps_the_result_too():
    @hook(ON_RUN_END)
    def redact(ctx, result):
        return result.replace(reply="***")

    @observer(ON_RUN_END)
    def soft(ctx, result):
        raise OSError("soft")

    @hook(ON_ERROR)
    def broken(ctx, failure):
        raise RuntimeError("handler down")

    with pytest.raises(RunFailedError, match="handler down") as caught:
        scripted_agent([reply("secret")], hooks=[redact, soft, broken]).run("x")
    assert caught.value.result.reply == "***"


def test_a_refused_model_call_at_on_run_end_skips_no_later_hook():
    seen = []

    @hook(ON_RUN_END, priority=1)
    async def ask(ctx, result):
        await ctx.llm.complete("sum up")

    @hook(ON_RUN_END)
    def later(ctx, result):
        seen.append(result.status)

    ctx = AgentContext(budget=Budget(Limits(tokens=1)))
    result = scripted_agent([reply("x")], hooks=[ask, later]).run("a b c", ctx=ctx)
    assert seen == [result.status]


def test_an_open_failure_beside_a_closed_one_is_reported_too():
    seen = []

    @observer(ON_ERROR)
    def watch(ctx, failure):
        seen.append((failure.errors[0].source, failure.fatal))

    @hook(BEFORE_STEP, priority=2, on_failure="open")
    def soft(ctx, payload):
        raise RuntimeError("soft")

    @hook(BEFORE_STEP, priority=1)
    def hard(ctx, payload):
        raise RuntimeError("hard")

    with pytest.raises(RunFailedError, match="hard") as caught:
        scripted_agent([reply("x")], hooks=[watch, soft, hard]).run("x")
    assert sorted(seen) == [("hard", True), ("soft", False)]
    assert {error.source for error in caught.value.result.errors} == {"soft", "hard"}


def test_a_models_own_error_is_not_its_own_cause():
    with pytest.raises(RunFailedError) as caught:
        scripted_agent([]).run("x")
    assert isinstance(caught.value.__cause__, ModelError)
    assert caught.value.__cause__.__cause__ is not caught.value.__cause__


def test_of_two_causes_at_the_same_time_the_stronger_one_counts():
    gate = threading.Barrier(2, timeout=60)

    @guard(BEFORE_TOOL)
    def ask(ctx, request):
        return HookResult.ask("ok?")

    @hook("approval_requested")
    async def edit(ctx, request):
        await asyncio.to_thread(gate.wait)
        return HookResult.edit({"n": request.call.arguments["n"] + 10})

    @guard(BEFORE_TOOL)
    def judge(ctx, request):
        if request.arguments["n"] == 11:
            return HookResult.end("enough")
        if request.arguments["n"] == 12:
            raise RuntimeError("guard down")

    @tool
    def act(n: int) -> str:
        """Act."""
        return "x"

    with pytest.raises(RunFailedError, match="guard down"):
        for _ in range(20):  # both answers arrive at the same time, in any order
            scripted_agent([[call("act", n=1), call("act", n=2)]], tools=[act], hooks=[ask, edit, judge]).run("x")


def test_a_verb_about_the_model_call_of_a_tool_applies_to_the_run():
    @tool
    async def think(ctx) -> str:
        """Think."""
        return (await ctx.llm.complete("hm", purpose="tool")).content

    @guard(BEFORE_LLM)
    def no_thinking(ctx, request):
        return HookResult.end("No thinking.") if request.purpose == "tool" else None

    result = scripted_agent([call("think"), reply("x")], tools=[think], hooks=[no_thinking]).run("x")
    assert (result.status, result.reply) == ("ended", "No thinking.")
    assert result.steps[0].outcomes == ("cancelled",)


def test_a_refused_call_that_leaves_a_progress_hook_is_not_lost():
    @tool
    async def work(ctx) -> str:
        """Report twice."""
        ctx.progress(0.1)
        await asyncio.sleep(0.01)
        ctx.progress(0.2)
        await asyncio.sleep(0.01)
        return "done"

    @observer(ON_PROGRESS)
    async def comment(ctx, progress):
        if progress.phase == "progress":
            await ctx.llm.complete("how is it?", purpose="comment")

    @guard(BEFORE_LLM)
    def no_comment(ctx, request):
        return HookResult.end("No comment.") if request.purpose == "comment" else None

    result = scripted_agent([call("work"), reply("x")], tools=[work], hooks=[comment, no_comment]).run("x")
    assert (result.status, result.reply) == ("ended", "No comment.")


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_an_exit_in_a_separate_task_reaches_the_caller(error):
    def leave(ctx, payload):
        raise error

    async def leave_async(ctx, payload):
        raise error

    timed = guard(BEFORE_STEP, timeout=5)(leave)
    with pytest.raises(error):
        scripted_agent([reply("x")], hooks=[timed]).run("x")
    two = [observer(BEFORE_STEP)(leave_async), observer(BEFORE_STEP)(leave_async)]
    with pytest.raises(error):
        scripted_agent([reply("x")], hooks=two).run("x")
    assert scripted_agent([reply("hi")]).run("x").reply == "hi"


# Stops, retries and limits


def test_a_retry_while_the_run_stops_is_reported_and_the_remaining_hooks_still_run():
    @hook(AFTER_TOOL, priority=2)
    def stop(ctx, result):
        return HookResult.stop("enough")

    @hook(AFTER_TOOL, priority=1)
    def again(ctx, result):
        return HookResult.retry() if result.id.endswith("_1") else None

    @hook(AFTER_TOOL)
    def redact(ctx, result):
        return result.replace(result="***")

    log = EventLog()
    batch = [call("quick"), call("quick")]
    result = scripted_agent([batch], tools=[quick], hooks=[stop, again, redact], sinks=[log]).run("x")
    assert tool_texts(result) == ["***", "***"]
    assert [event.why for event in log.of(RetryIgnored)] == ["the run is ending"]


def test_a_call_refused_because_the_run_stops_still_leads_to_on_stop():
    seen = []

    @hook(BEFORE_STEP, priority=1)
    def stop(ctx, payload):
        return HookResult.stop("enough")

    @hook(AFTER_STEP)
    async def ask(ctx, payload):
        await ctx.llm.complete("well?")

    @observer(ON_STOP)
    def watch(ctx, payload):
        seen.append(payload.signals[0].message)

    result = scripted_agent([reply("x")], hooks=[stop, ask, watch]).run("x")
    assert result.status == "stopped"
    assert seen == ["enough"]


def test_one_call_of_unknown_price_does_not_switch_the_cost_limit_off():
    def turn(cost):
        return lambda request: ModelResponse(tool_calls=(call("quick"),), cost=cost)

    class Priced(ScriptedModel):
        def _response(self, turn, number, request):
            return turn

    model = Priced([turn(None)] + [turn(0.6)] * 9)
    result = Agent("a", llm=model, tools=[quick]).run("x", ctx=AgentContext(budget=Budget(Limits(cost=1.0))))
    assert (result.status, result.stop.kind, result.cost) == ("stopped", "cost_limit", None)
    assert len(result.steps) == 3


async def test_steering_during_on_stop_is_answered():
    @observer(ON_STOP)
    async def speak(ctx, payload):
        if len(ctx.state.steps) == 1:
            assert run.steer("and another thing")

    run = scripted_agent([reply("bye"), reply("sure")], hooks=[speak]).start("x")
    assert (await run.result()).reply == "sure"


# Hooks, plugins, registries


@pytest.mark.filterwarnings("ignore:.*blocks the event loop:RuntimeWarning")
def test_a_finished_hook_guards_the_runs_that_later_hooks_start():
    seen = []

    @hook(ON_RUN_START)
    async def first(ctx, payload):
        seen.append(payload.task)

    @hook(ON_RUN_START)
    def second(ctx, payload):
        if payload.task == "outer":
            inner.run("inner")

    inner = scripted_agent([reply("x")], hooks=[first])
    scripted_agent([reply("x")], hooks=[first, second]).run("outer")
    assert seen == ["outer", "inner"]


def test_a_plugin_that_is_not_allowed_has_no_tools():
    block = guard(BEFORE_TOOL)(lambda ctx, request: HookResult.block("no"))
    agent = scripted_agent([call("quick"), reply("x")] * 3, plugins=[Plugin("shell", [block], [quick])])
    assert agent.run("x", allowed_plugins=["shell"]).steps[0].outcomes == ("blocked",)
    result = agent.run("x", allowed_plugins=[])
    assert result.steps[0].outcomes == ("error",)
    assert "Unknown tool 'quick'" in tool_texts(result)[0]
    agent.unplug("shell")
    assert agent.run("x").steps[0].outcomes == ("error",)
    assert agent.hooks.at(BEFORE_TOOL) == []


def test_allowed_plugins_as_text_is_rejected():
    with pytest.raises(TypeError, match=r"allowed_plugins must be a list of names: \['safety'\]"):
        scripted_agent([reply("x")]).run("x", allowed_plugins="safety")


def test_a_registry_given_to_one_run_keeps_its_options():
    registry = HookRegistry()
    registry.register(lambda ctx, request: HookResult.block("no"), points=BEFORE_TOOL, phase="guard", name="rule")
    log = EventLog()
    result = scripted_agent([call("quick"), reply("x")], tools=[quick], sinks=[log]).run("x", hooks=registry)
    assert result.steps[0].outcomes == ("blocked",)
    assert [(event.hook, event.phase) for event in log.of(HookExecuted)] == [("rule", "guard")]


def test_a_registry_can_be_changed_from_many_threads():
    registry = HookRegistry()

    def register():
        for _ in range(50):
            registry.register(lambda ctx, payload: None, points=BEFORE_STEP)
            registry.at(BEFORE_STEP)

    threads = [threading.Thread(target=register) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(registry.at(BEFORE_STEP)) == 300


def test_a_decorated_method_is_a_hook_with_its_self():
    class Limit:
        def __init__(self, n):
            self.n = n

        @guard(BEFORE_TOOL)
        def check(self, ctx, request):
            return HookResult.block(f"limit {self.n}")

    result = scripted_agent([call("quick"), reply("x")], tools=[quick], hooks=[Limit(3).check]).run("x")
    assert tool_texts(result) == ["limit 3"]


def test_the_duration_of_a_hook_that_calls_the_model_is_its_own():
    @hook(BEFORE_STEP)
    async def slow(ctx, payload):
        await asyncio.sleep(0.03)
        await ctx.llm.complete("hm", purpose="judge")

    log = EventLog(every_call=True)
    other = observer(BEFORE_LLM)(lambda ctx, request: None)
    scripted_agent([reply("a"), reply("b")], hooks=[slow, other], sinks=[log]).run("x")
    (took,) = [event.duration for event in log.of(HookExecuted) if event.hook == "slow"]
    assert took >= 0.03


# State and sessions


@pytest.mark.filterwarnings("ignore:.*blocks the event loop:RuntimeWarning")
def test_state_added_at_on_run_end_keeps_the_messages_of_other_runs():
    session = Session("s")

    @hook(ON_RUN_END)
    def note(ctx, result):
        if result.task == "slow":
            return HookResult.cont(state=ctx.state.with_messages(Message("user", "note")))

    @hook(ON_RUN_START)
    def meanwhile(ctx, payload):
        if payload.task == "slow":
            scripted_agent([reply("two")]).run("quick", session=session)

    scripted_agent([reply("one")], hooks=[note, meanwhile]).run("slow", session=session)
    assert [m.content for m in session.messages] == ["quick", "two", "slow", "one", "note"]


def test_the_open_assistant_message_may_be_reworded():
    @hook(BEFORE_TOOL)
    def reword(ctx, request):
        *rest, last = ctx.state.messages
        return HookResult.cont(state=ctx.state.replace(messages=[*rest, last.replace(content="I try.")]))

    result = scripted_agent([call("quick"), reply("x")], tools=[quick], hooks=[reword]).run("x")
    assert [m.content for m in result.messages] == ["x", "I try.", "quick", "x"]


def test_state_can_be_edited_as_plain_data():
    @hook(AFTER_STEP)
    def edit(ctx, step):
        if step.index == 0:
            plain = dict(ctx.state)
            plain["messages"].append({"role": "user", "content": "by the way"})
            return HookResult.cont(state=ctx.state.replace(plain))

    session = Session("s", messages=[Message("user", "before")])
    result = scripted_agent([call("quick"), reply("x")], tools=[quick], hooks=[edit]).run("y", session=session)
    assert [m.content for m in result.messages] == ["y", "", "quick", "by the way", "x"]
    assert [m.content for m in session.messages] == ["before", "y", "", "quick", "by the way", "x"]


def test_messages_given_as_mappings_become_messages():
    @hook(BEFORE_LLM)
    def add(ctx, request):
        return request.replace(messages=request.messages.plus({"role": "user", "content": "psst"}))

    agent = scripted_agent([reply("x")], hooks=[add])
    agent.run("y")
    assert agent.model.requests[0].messages[-1] == Message("user", "psst")
    assert Session(messages=[{"role": "user", "content": "hi"}]).messages == (Message("user", "hi"),)


def test_a_hook_may_call_the_model_before_it_returns_a_changed_state():
    @hook(AFTER_LLM)
    async def tag(ctx, answer):
        state = ctx.state
        if answer.purpose == "step":
            await ctx.llm.complete("topic?", purpose="tag")
            return HookResult.cont(state=state.with_metadata(tagged=True))

    session = Session("s")
    scripted_agent([reply("x"), reply("tea")], hooks=[tag]).run("y", session=session)
    assert session.metadata == {"tagged": True}


def test_a_nested_run_is_a_conversation_of_its_own():
    child = scripted_agent([reply("child")])

    @tool
    async def delegate(ctx) -> str:
        """Delegate."""
        return (await child.arun("sub", ctx=ctx)).reply

    session = Session("s")
    result = scripted_agent([call("delegate"), reply("x")], tools=[delegate]).run("y", session=session)
    assert [m.content for m in session.messages] == ["y", "", "child", "x"]
    assert result.usage.output_tokens == 2  # the usage of the child counts in the parent's budget


def test_a_forked_process_can_still_run_sync_tools():
    @tool
    def work() -> str:
        """Work in a thread."""
        return "worked"

    agent = scripted_agent([call("work"), reply("x")] * 2, tools=[work])
    agent.run("x")
    pid = os.fork()
    if pid == 0:
        done = False
        try:
            done = agent.start("x").wait(timeout=60).steps[0].outcomes == ("ok",)
        finally:
            os._exit(0 if done else 1)
    assert os.waitpid(pid, 0)[1] == 0


async def test_redaction_covers_results_and_errors_alike():
    secret = "4111-1111-1111-1111"

    @tool
    def read() -> dict:
        return {"card": secret}

    @tool
    def fail() -> str:
        raise ValueError(f"the card {secret} was declined")

    @hook(AFTER_TOOL)
    def redact(ctx, result):
        return result.with_text(result.text.replace(secret, "[card]"))

    result = await scripted_agent([[call("read"), call("fail")], "done"], tools=[read, fail], hooks=[redact]).arun("go")
    read_by_model = [message for message in result.messages if message.role == "tool"]
    assert [message.content for message in read_by_model] == [
        '{"card":"[card]"}',
        "ValueError: the card [card] was declined",
    ]
    assert [message.is_error for message in read_by_model] == [False, True]
