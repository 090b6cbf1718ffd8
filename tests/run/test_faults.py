"""The effect of misbehaving hooks, tools and models on a run."""

import asyncio
import threading

import pytest

from hookline import (
    AFTER_STEP,
    BEFORE_LLM,
    BEFORE_PROMPT_BUILD,
    BEFORE_TOOL,
    ON_PROGRESS,
    ON_RUN_END,
    ON_RUN_START,
    ON_STOP,
    Agent,
    AgentContext,
    Budget,
    HookResult,
    Limits,
    RunFailedError,
    ScriptedModel,
    call,
    guard,
    hook,
    observer,
    reply,
    tool,
)
from hookline.events import HookExecuted, ModelReplied, SubagentEvent, ToolEnded, ToolSettled, ToolStarted
from hookline.hooks import PassThrough
from hookline.payloads import Usage
from hookline.tape import TapeHook, replay
from hookline.testing import EventLog, FakeClock, scripted_agent


@tool
def wipe() -> str:
    """Wipe everything."""
    return "wiped"


@guard(BEFORE_TOOL, tools="wipe")
def no_wiping(ctx, request):
    return HookResult.block("never")


def contents(result):
    return [message.content for message in result.messages if message.role == "tool"]


# The switch of a run


def watched():
    """An observer that records the interrupt of its run and the calls of a watcher."""
    kept, reported = [], []

    @observer(ON_RUN_START)
    def subscribe(ctx, start):
        kept.append(ctx.interrupt)
        ctx.interrupt.subscribe(reported.append)

    return subscribe, kept, reported


async def test_the_interrupt_of_a_run_that_completed_is_not_cancelled():
    subscribe, kept, reported = watched()
    result = await scripted_agent([reply("x")], hooks=[subscribe]).arun("x")
    (interrupt,) = kept
    assert result.status == "completed"
    assert reported == []
    assert not interrupt.cancelled
    assert not interrupt.cancel_token.is_set()


@pytest.mark.parametrize("ending", ["stop", "end"])
async def test_the_interrupt_of_a_run_that_a_hook_ended_is_not_cancelled_either(ending):
    subscribe, kept, reported = watched()
    say = hook(BEFORE_LLM)(lambda ctx, request: getattr(HookResult, ending)("enough"))
    await scripted_agent([reply("x")], hooks=[subscribe, say]).arun("x")
    assert reported == []
    assert not kept[0].cancel_token.is_set()


async def test_the_interrupt_of_a_run_that_was_interrupted_is_cancelled():
    subscribe, kept, reported = watched()

    @tool
    async def wait() -> str:
        """Wait long."""
        run.cancel("enough")
        await asyncio.sleep(30)
        return "never"

    run = scripted_agent([call("wait")], tools=[wait], hooks=[subscribe]).start("x")
    assert (await run.result()).status == "cancelled"
    assert reported == ["enough"]
    assert kept[0].cancel_token.is_set()


def time_limit():
    """A context with a time limit, and the clock that has to pass it."""
    clock = FakeClock()
    return AgentContext(budget=Budget(Limits(seconds=0.02), clock=clock), clock=clock), clock


async def test_the_interrupt_of_a_run_that_a_time_limit_interrupted_is_cancelled():
    subscribe, kept, reported = watched()
    ctx, clock = time_limit()

    @tool
    async def wait() -> str:
        """Wait long."""
        clock.advance(1)
        await asyncio.sleep(30)
        return "never"

    result = await scripted_agent([call("wait")], tools=[wait], hooks=[subscribe]).arun("x", ctx=ctx)
    assert result.status == "stopped"
    assert reported == ["the run has ended"]
    assert kept[0].cancel_token.is_set()


# An interceptor beside hooks


def test_an_interceptor_composes_with_the_other_hooks_of_agent_conversation_and_run():
    order = []

    class Noting(PassThrough):
        def intercept(self, point, payload, ctx):
            if point is BEFORE_TOOL:
                order.append("interceptor")

    def noting(name):
        return hook(BEFORE_TOOL, name=name)(lambda ctx, request: order.append(name))

    agent = scripted_agent([call("wipe"), reply("x")], tools=[wipe], hooks=[Noting(), noting("agent")])
    result = agent.run("x", ctx=AgentContext(hooks=[noting("conversation")]), hooks=[no_wiping, noting("run")])
    assert order == ["interceptor", "agent", "conversation", "run"]
    assert contents(result) == ["never"]


# A run inside a run, without a context


def asking(inner, how, **options):
    @tool
    async def ask() -> str:
        """Ask another agent."""
        return (await inner.arun("q", **options)).reply

    @tool(name="ask")
    def ask_and_block() -> str:
        """Ask another agent, and block."""
        return inner.run("q", **options).reply

    return ask if how == "arun" else ask_and_block


def pair(how, inner_turns, inner_tools=(), *, options=None, **outer):
    inner = scripted_agent(inner_turns, name="inner", tools=inner_tools)
    outer_agent = scripted_agent(
        [call("ask"), reply("done")], name="outer", tools=[asking(inner, how, **(options or {}))], **outer
    )
    return inner, outer_agent


@pytest.mark.parametrize("how", ["arun", "run"])
async def test_the_guards_of_the_outer_run_hold_in_a_nested_run(how):
    inner, outer = pair(how, [call("wipe"), reply("x")], [wipe], hooks=[no_wiping])
    await outer.arun("x")
    assert inner.model.requests[-1].messages[-1].content == "never"


@pytest.mark.parametrize("how", ["arun", "run"])
async def test_a_nested_run_counts_in_the_budget_of_the_outer_run(how):
    ctx, replies = AgentContext(budget=Budget()), EventLog()
    _, outer = pair(how, [reply("one two three")], sinks=[replies])
    result = await outer.arun("x", ctx=ctx)
    inside = [each.event for each in replies.of(SubagentEvent) if isinstance(each.event, ModelReplied)]
    counted = [*replies.of(ModelReplied), *inside]
    assert len(inside) == 1
    assert ctx.budget.usage == result.usage == sum((event.usage for event in counted), Usage())


@pytest.mark.parametrize("how", ["arun", "run"])
async def test_a_nested_run_is_stopped_by_the_budget_of_the_outer_run(how):
    ctx = AgentContext(budget=Budget(Limits(tokens=60)))
    inner, outer = pair(how, [reply("word " * 100), reply("never")])
    result = await outer.arun("x", ctx=ctx)
    assert (result.status, result.stop.kind) == ("stopped", "token_limit")
    assert len(outer.model.requests) == 1


@pytest.mark.parametrize("how", ["arun", "run"])
async def test_a_nested_run_is_cancelled_with_the_outer_run(how):
    begun, statuses = threading.Event(), []

    @tool
    async def wait() -> str:
        """Wait long."""
        begun.set()
        await asyncio.sleep(30)
        return "never"

    see = observer(ON_RUN_END)(lambda ctx, result: statuses.append((ctx.agent_name, result.status)))
    _, outer = pair(how, [call("wait")], [wait], hooks=[see])
    run = outer.start("x")
    await asyncio.to_thread(begun.wait, 20)
    run.cancel("enough")
    assert (await run.result()).status == "cancelled"
    assert statuses == [("inner", "cancelled"), ("outer", "cancelled")]


@pytest.mark.parametrize("how", ["arun", "run"])
async def test_a_nested_run_has_the_ids_and_depth_of_its_place(how):
    places = []
    see = observer(ON_RUN_START)(lambda ctx, start: places.append((ctx.agent_name, ctx.depth, ctx.ids.parent_run_id)))
    _, outer = pair(how, [reply("x")], hooks=[see])
    result = await outer.arun("x")
    assert places == [("outer", 0, ""), ("inner", 1, result.ids.run_id)]


@pytest.mark.parametrize("how", ["arun", "run"])
async def test_inherit_false_inherits_nothing(how):
    ctx = AgentContext(budget=Budget(Limits(tokens=10**6)))
    inner, outer = pair(how, [call("wipe"), reply("x")], [wipe], hooks=[no_wiping], options={"inherit": False})
    result = await outer.arun("x", ctx=ctx)
    assert inner.model.requests[-1].messages[-1].content == "wiped"
    alone = await scripted_agent([call("ask"), reply("done")], tools=[tool(name="ask")(lambda: "x")]).arun("x")
    assert result.usage.output_tokens == alone.usage.output_tokens


async def test_a_run_that_a_hook_starts_is_inside_its_run_too():
    inner = scripted_agent([call("wipe"), reply("x")], tools=[wipe])

    @hook(ON_RUN_START)
    async def ask(ctx, start):
        await inner.arun("q")

    await scripted_agent([reply("x")], hooks=[ask, no_wiping]).arun("x")
    assert inner.model.requests[-1].messages[-1].content == "never"


async def test_a_run_after_another_is_not_inside_it():
    depths = []
    see = observer(ON_RUN_START)(lambda ctx, start: depths.append(ctx.depth))
    agent = scripted_agent([reply("x"), reply("y")], hooks=[see])
    await agent.arun("x")
    await agent.arun("y")
    assert depths == [0, 0]


# GeneratorExit


class Leaving(ScriptedModel):
    """A model that raises GeneratorExit."""

    async def complete(self, request):
        raise GeneratorExit


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("who", ["hook", "guard", "observer", "tool", "model"])
async def test_a_generator_exit_raised_anywhere_ends_the_run_once(who, is_async):
    ends = []

    def leave(ctx, payload):
        raise GeneratorExit

    async def leave_later(ctx, payload):
        await asyncio.sleep(0)
        raise GeneratorExit

    leaving = leave_later if is_async else leave

    @tool
    async def go_later() -> str:
        """Go."""
        await asyncio.sleep(0)
        raise GeneratorExit

    @tool(name="go_later")
    def go() -> str:
        """Go."""
        raise GeneratorExit

    end = observer(ON_RUN_END)(lambda ctx, result: ends.append(result.status))
    hooks = [end]
    if who in ("hook", "guard", "observer"):
        hooks.append(
            {"hook": hook, "guard": guard, "observer": observer}[who](BEFORE_LLM, on_failure="closed")(leaving)
        )
    turns = [call("go_later"), reply("x")] if who == "tool" else [reply("x")]
    model = Leaving(turns) if who == "model" else ScriptedModel(turns)
    agent = Agent("a", llm=model, tools=[go_later if is_async else go], hooks=hooks)
    if who == "tool":
        result = await agent.arun("x")
        assert ("GeneratorExit" in contents(result)[0], result.status) == (True, "completed")
    else:
        with pytest.raises(RunFailedError, match="GeneratorExit"):
            await agent.arun("x")
    assert ends == ["completed" if who == "tool" else "failed"]


# Calls that do not start


@pytest.mark.parametrize("verb", ["block", "answer"])
def test_a_call_that_does_not_start_is_not_reported_as_started_and_settles_once(verb):
    log, phases = EventLog(), []
    say = guard(BEFORE_TOOL)(lambda ctx, request: getattr(HookResult, verb)("no"))
    see = observer(ON_PROGRESS)(lambda ctx, progress: phases.append(progress.phase))
    scripted_agent([call("wipe"), reply("x")], tools=[wipe], hooks=[say, see], sinks=[log]).run("x")
    assert (len(log.of(ToolStarted)), len(log.of(ToolEnded)), len(log.of(ToolSettled))) == (0, 1, 1)
    assert phases == ["tool_end"]


# A cancellation of the run's own


def cancelling(point, then, is_async):
    """A hook that cancels its run, and then returns ``end`` or raises."""

    def leave(ctx, payload):
        ctx.interrupt.cancel("policy")
        if then == "raise":
            raise ValueError("broken")
        return HookResult.end("over") if HookResult.end("").action in point.verbs else None

    async def leave_later(ctx, payload):
        await asyncio.sleep(0)
        return leave(ctx, payload)

    return hook(point)(leave_later if is_async else leave)


async def outcome(agent, **options):
    """Return the result of a run and the number of pending cancellations of its caller."""

    async def caller():
        try:
            result = await agent.arun("x", **options)
        except RunFailedError as failed:
            result = failed.result
        await asyncio.sleep(0)  # a remaining cancellation would be raised here
        return result, asyncio.current_task().cancelling()

    return await asyncio.create_task(caller())


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("then", ["end", "raise"])
@pytest.mark.parametrize("point", [ON_RUN_START, BEFORE_PROMPT_BUILD, ON_STOP], ids=str)
async def test_the_caller_of_a_run_that_a_hook_cancels_gets_its_result(point, then, is_async):
    ends = []
    end = observer(ON_RUN_END)(lambda ctx, result: ends.append(result.status))
    result, cancels = await outcome(scripted_agent([reply("x")], hooks=[cancelling(point, then, is_async), end]))
    assert result.status == {"end": "cancelled", "raise": "failed"}[then]
    assert ends == [result.status]
    assert cancels == 0
    if then == "end":
        assert result.stop.message == "policy"


@pytest.mark.parametrize("point", [ON_RUN_START, BEFORE_PROMPT_BUILD, AFTER_STEP, ON_STOP], ids=str)
async def test_a_time_limit_that_a_hook_turns_into_another_exception_does_not_reach_the_caller(point):
    limited, clock = time_limit()

    @hook(point)
    async def turn(ctx, payload):
        clock.advance(1)
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            raise ValueError("turned") from None

    result, cancels = await outcome(scripted_agent([reply("x")], hooks=[turn]), ctx=limited)
    assert (result.status, cancels) == ("failed", 0)
    assert "turned" in result.errors[-1].message


@pytest.mark.parametrize("point", [ON_RUN_START, BEFORE_PROMPT_BUILD, ON_STOP], ids=str)
async def test_the_callers_own_cancellation_still_reaches_it(point):
    begun = asyncio.Event()

    @hook(point)
    async def wait(ctx, payload):
        begun.set()
        await asyncio.sleep(30)

    task = asyncio.create_task(scripted_agent([reply("x")], hooks=[wait]).arun("x"))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# What the model reads of a failure


def test_the_model_gets_the_name_of_the_failed_hook_and_the_errors_have_the_reason(caplog):
    @guard(BEFORE_TOOL, on_failure="block", name="judge")
    def broken(ctx, request):
        raise ValueError("password=hunter2")

    agent = scripted_agent([call("wipe"), reply("x")], tools=[wipe], hooks=[broken])
    result = agent.run("x")
    assert contents(result) == ["Blocked: the hook 'judge' failed."]
    assert not any("hunter2" in message.content for message in agent.model.requests[-1].messages)
    assert any("hunter2" in error.message for error in result.errors)
    assert "hunter2" in caplog.text


# A model that does not keep to what it was offered


def test_a_stream_that_ends_without_its_final_response_is_an_error():
    class Cut(ScriptedModel):
        async def stream(self, request):
            yield "half a"

    with pytest.raises(RunFailedError, match="ended without its final response") as failed:
        Agent("a", llm=Cut([]), sinks=[EventLog()]).run("x")
    result = failed.value.result
    assert [message.role for message in result.messages] == ["user"]
    assert result.errors[-1].where == "model"


def test_a_tool_that_a_hook_took_out_of_the_request_does_not_run():
    ran, judged = [], []

    @tool
    def secret() -> str:
        """Tell."""
        ran.append(True)
        return "reported"

    @hook(BEFORE_LLM)
    def hide(ctx, request):
        return request.replace(tools=[spec for spec in request.tools if spec.name != "secret"])

    see = guard(BEFORE_TOOL)(lambda ctx, request: judged.append(request.name))
    agent = scripted_agent([[call("secret"), call("wipe")], reply("x")], tools=[secret, wipe], hooks=[hide, see])
    result = agent.run("x")
    assert ran == []
    assert contents(result) == ["The tool 'secret' is not available in this step.", "wiped"]
    assert judged == ["wipe"]
    assert result.steps[0].outcomes == ("error", "ok")


# A hook for a tool that is not there


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if "matches no tool" in record.getMessage()]


def test_a_glob_that_matches_no_tool_is_logged_once_at_the_first_run(caplog):
    misspelt = guard(BEFORE_TOOL, name="judge", tools=["pong*", "wip*"])(lambda ctx, request: None)
    agent = scripted_agent([reply("x"), reply("y")], name="a", tools=[wipe], hooks=[misspelt])
    assert warnings(caplog) == []
    agent.run("x")
    agent.run("y")
    assert warnings(caplog) == ["hook 'judge': tools='pong*' matches no tool of agent 'a' (tools: wipe)"]


async def test_hooks_of_the_outer_run_may_be_for_tools_that_a_nested_run_does_not_have(caplog):
    careful = guard(BEFORE_TOOL, tools="ask")(lambda ctx, request: None)
    _, outer = pair("arun", [reply("x")], [wipe], hooks=[careful])
    await outer.arun("x")
    assert warnings(caplog) == []


def rules_at_line(line, **options):
    """Return a hook whose code fails at a line of ``rules.py``."""
    names = {}
    source = "\n" * (line - 2) + "def judge(ctx, request):\n    raise ValueError('the password is 1234')\n"
    exec(compile(source, "/home/someone/rules.py", "exec"), names)
    return guard(BEFORE_TOOL, name="judge", **options)(names["judge"])


def failing_run(line, folder, **options):
    """Run an agent with such a hook, and return the result and the events of the hook."""
    log = EventLog()
    hooks = [rules_at_line(line, **options), TapeHook(folder)]
    agent = scripted_agent([call("send"), reply("x")], tools=[send], hooks=hooks, sinks=[log])
    try:
        result = agent.run("x")
    except RunFailedError as failed:
        result = failed.result
    return result, [event for event in log if isinstance(event, HookExecuted)]


@tool
def send() -> str:
    """Send."""
    return "sent"


@pytest.mark.parametrize("on_failure", ["closed", "block", "open"])
def test_people_read_the_line_of_a_failed_hook_and_models_and_comparisons_do_not(on_failure, tmp_path):
    result, (event,) = failing_run(12, tmp_path, on_failure=on_failure)
    assert event.location == "rules.py:12"
    assert "rules.py" not in result.to_json().decode()  # neither the messages nor the errors
    (tape,) = tmp_path.glob("**/*.tape")
    assert replay(tape, [rules_at_line(12, on_failure=on_failure)]).same
    assert replay(tape, [rules_at_line(99, on_failure=on_failure)]).same
