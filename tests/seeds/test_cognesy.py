"""The Cognesy agents hooks page, from top to bottom, kept by Hookline."""

import math
from datetime import datetime

import pytest

from hookline import (
    AFTER_STEP,
    AFTER_TOOL,
    BEFORE_LLM,
    BEFORE_STEP,
    BEFORE_TOOL,
    ON_ERROR,
    ON_RUN_END,
    ON_RUN_START,
    ON_STOP,
    Agent,
    AgentContext,
    AgentResult,
    Budget,
    ErrorReport,
    HookRegistry,
    HookResult,
    Limits,
    Message,
    RunFailedError,
    ScriptedModel,
    Stopping,
    ToolCallRequest,
    ToolCallResult,
    call,
    guard,
    hook,
    observer,
    reply,
    tool,
)
from hookline.compat import HookStack
from hookline.events import HookExecuted, Signalled
from hookline.hooks import (
    ApplyContextConfigHook,
    AuditTrailHook,
    CostLimitHook,
    ExecutionTimeLimitHook,
    FinishReasonHook,
    HookAction,
    PassThrough,
    RateLimitHook,
    RoleBasedAccessHook,
    StepsLimitHook,
    TokenUsageLimitHook,
    ToolCallsLimitHook,
    limits_plugin,
)
from hookline.payloads import AgentState, RunStart, Step, StepStart
from hookline.plugins import Plugin
from hookline.points import POINTS, resolve
from hookline.testing import EventLog, sample

TRIGGERS = {
    "BeforeExecution": ON_RUN_START,
    "BeforeStep": BEFORE_STEP,
    "BeforeToolUse": BEFORE_TOOL,
    "AfterToolUse": AFTER_TOOL,
    "AfterStep": AFTER_STEP,
    "OnStop": ON_STOP,
    "AfterExecution": ON_RUN_END,
    "OnError": ON_ERROR,
}


@tool
def look_up(key: str) -> str:
    """Look something up."""
    return f"value of {key}"


@tool
def broken() -> str:
    """Always fails."""
    raise OSError("disk on fire")


class Recorder:
    points = frozenset(TRIGGERS.values())

    def __init__(self):
        self.seen = []

    def __call__(self, point, ctx, payload):
        self.seen.append((point, payload, ctx.state))

    @property
    def order(self):
        return [str(point) for point, _, _ in self.seen]

    def at(self, point):
        return [payload for where, payload, _ in self.seen if where == point]


class LogSteps:
    """The page's LogStepsHook: notes the step count and the trigger."""

    def __init__(self):
        self.lines = []

    def __call__(self, point, ctx, payload):
        self.lines.append(f"Step {ctx.state.step_count} | Trigger: {point}")


def make(turns, **options):
    return Agent("t", "", options.pop("instructions", ""), llm=ScriptedModel(turns), tools=[look_up, broken], **options)


def two_steps():
    return [call("look_up", key="k"), reply("done")]


# Introduction


async def test_each_hook_works_with_the_output_of_the_one_before():
    first = hook(ON_RUN_START)(lambda ctx, p: HookResult.cont(state=ctx.state.with_metadata(trail="a")))
    second = hook(ON_RUN_START)(
        lambda ctx, p: HookResult.cont(state=ctx.state.with_metadata(trail=ctx.state.metadata["trail"] + "b"))
    )
    ctx = AgentContext()
    await make([reply("x")], hooks=[first, second]).arun("x", ctx=ctx)
    assert ctx.session.metadata == {"trail": "ab"}


async def test_no_hook_can_corrupt_shared_state_in_place():
    refused = []

    def vandal(point, ctx, payload):
        for attempt in (
            lambda: setattr(ctx.state, "system_prompt", "hacked"),
            lambda: ctx.state.metadata.update(x=1),
            lambda: setattr(payload, "name", "other"),
            lambda: payload.arguments.update(key="evil"),
        ):
            try:
                attempt()
            except (TypeError, AttributeError):
                refused.append(1)

    agent = make(two_steps(), instructions="honest")
    agent.register_hook(vandal, points=BEFORE_TOOL)
    result = await agent.arun("x", metadata={"user": "ada"})
    assert len(refused) == 4
    assert result.messages[2].content == "value of k"


# Lifecycle Events


@pytest.mark.parametrize(("name", "point"), TRIGGERS.items())
def test_every_trigger_name_is_a_point(name, point):
    snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")
    assert resolve(name) is point
    assert resolve(snake) is point


async def test_the_triggers_fire_in_the_order_of_the_diagram():
    recorder = Recorder()
    await make(two_steps(), hooks=[recorder]).arun("x")
    assert recorder.order == [
        "on_run_start",
        "before_step",
        "before_tool",
        "after_tool",
        "after_step",
        "before_step",
        "after_step",
        "on_stop",
        "on_run_end",
    ]


async def test_before_step_comes_before_the_llm_call_of_each_step():
    agent = make(two_steps())
    calls_before = []
    agent.register_hook(lambda ctx, p: calls_before.append(len(agent.model.requests)), points="BeforeStep")
    await agent.arun("x")
    assert calls_before == [0, 1]


async def test_tool_triggers_fire_for_each_call_of_a_step():
    recorder = Recorder()
    turns = [[call("look_up", key="a"), call("look_up", key="b")], reply("done")]
    await make(turns, hooks=[recorder]).arun("x")
    assert [p.arguments["key"] for p in recorder.at(BEFORE_TOOL)] == ["a", "b"]
    assert [p.result for p in recorder.at(AFTER_TOOL)] == ["value of a", "value of b"]


async def test_a_batch_is_judged_as_a_whole_before_any_call_of_it_runs():
    # A deliberate difference: the page interleaves the calls, here the judging comes first.
    recorder = Recorder()
    turns = [[call("look_up", key="a"), call("look_up", key="b")], reply("done")]
    await make(turns, hooks=[recorder]).arun("x")
    assert recorder.order[2:6] == ["before_tool", "before_tool", "after_tool", "after_tool"]


async def test_on_stop_fires_once_when_a_stop_condition_is_detected():
    recorder = Recorder()
    await make([reply("done")], hooks=[recorder]).arun("x")
    (stopping,) = recorder.at(ON_STOP)
    assert [signal.kind for signal in stopping.signals] == ["completed"]


async def test_on_error_fires_when_a_tool_fails_and_the_run_goes_on():
    recorder = Recorder()
    result = await make([call("broken"), reply("sorry")], hooks=[recorder]).arun("x")
    (failure,) = recorder.at(ON_ERROR)
    assert (failure.where, failure.fatal) == ("tool", False)
    assert "disk on fire" in failure.errors[0].message
    assert (result.status, result.reply) == ("completed", "sorry")


async def test_on_error_fires_when_the_model_fails():
    recorder = Recorder()
    with pytest.raises(RunFailedError, match="rate limited"):
        await make([ConnectionError("rate limited")], hooks=[recorder]).arun("x")
    (failure,) = recorder.at(ON_ERROR)
    assert (failure.where, failure.fatal, failure.errors[0].type) == ("model", True, "ConnectionError")
    assert recorder.order[-1] == "on_run_end"


async def test_on_error_fires_when_a_hook_fails():
    recorder = Recorder()

    def bad(ctx, payload):
        raise LookupError("no such rule")

    agent = make(two_steps(), hooks=[recorder])
    agent.register_hook(bad, points=AFTER_STEP, name="bad")
    with pytest.raises(RunFailedError, match="no such rule"):
        await agent.arun("x")
    (failure,) = recorder.at(ON_ERROR)
    assert (failure.where, failure.errors[0].source) == ("hook", "bad")


async def test_errors_accumulate_in_the_state():
    counts = []
    agent = make([call("broken"), call("broken"), reply("sorry")])
    agent.register_hook(lambda ctx, p: counts.append(len(ctx.state.errors)), points="OnError")
    result = await agent.arun("x")
    assert counts == [1, 2]
    assert [e.source for e in result.errors] == ["broken", "broken"]


# Implementing a Hook


async def test_the_log_steps_example_sees_step_count_and_trigger():
    log = LogSteps()
    agent = make(two_steps())
    agent.register_hook(log, points=(BEFORE_STEP, AFTER_STEP))
    await agent.arun("x")
    assert log.lines == [
        "Step 0 | Trigger: before_step",
        "Step 1 | Trigger: after_step",
        "Step 1 | Trigger: before_step",
        "Step 2 | Trigger: after_step",
    ]


async def test_a_hook_that_returns_nothing_leaves_everything_unchanged():
    plain = await make(two_steps()).arun("x")
    hooked = await make(two_steps(), hooks=[Recorder()]).arun("x")
    assert [(m.role, m.content) for m in hooked.messages] == [(m.role, m.content) for m in plain.messages]


# Understanding HookContext


async def test_the_state_is_there_at_every_trigger():
    recorder = Recorder()
    await make([call("broken"), reply("x")], hooks=[recorder]).arun("hello", metadata={"user": "ada"})
    assert {str(point) for point, _, _ in recorder.seen} == {str(p) for p in TRIGGERS.values()}
    for _, _, state in recorder.seen:
        assert isinstance(state, AgentState)
        assert state.metadata["user"] == "ada"


async def test_the_state_gives_messages_metadata_and_execution_data():
    states = []
    agent = make(two_steps(), instructions="sys")
    agent.register_hook(lambda ctx, p: states.append(ctx.state), points="AfterExecution")
    result = await agent.arun("hello")
    (state,) = states
    assert [m.role for m in state.messages] == ["user", "assistant", "tool", "assistant"]
    assert (state.system_prompt, state.step_count) == ("sys", 2)
    assert state.usage == result.usage
    assert state.current_step.content == "done"
    assert state.ids.run_id == result.ids.run_id


async def test_the_trigger_type_tells_a_hook_where_it_is():
    recorder = Recorder()
    await make([reply("x")], hooks=[recorder]).arun("x")
    assert all(point in POINTS for point, _, _ in recorder.seen)
    assert recorder.seen[0][0] == "on_run_start"


async def test_the_tool_call_is_the_payload_before_tool_use():
    recorder = Recorder()
    await make(two_steps(), hooks=[recorder]).arun("x")
    (payload,) = recorder.at(BEFORE_TOOL)
    assert isinstance(payload, ToolCallRequest)
    assert (payload.name, payload.arguments) == ("look_up", {"key": "k"})


async def test_the_tool_execution_is_the_payload_after_tool_use():
    recorder = Recorder()
    await make(two_steps(), hooks=[recorder]).arun("x")
    (payload,) = recorder.at(AFTER_TOOL)
    assert isinstance(payload, ToolCallResult)
    assert (payload.result, payload.outcome) == ("value of k", "ok")


async def test_the_error_list_is_in_the_on_error_payload():
    recorder = Recorder()
    await make([call("broken"), reply("x")], hooks=[recorder]).arun("x")
    (payload,) = recorder.at(ON_ERROR)
    assert isinstance(payload, ErrorReport)
    assert [(e.type, e.source) for e in payload.errors] == [("OSError", "broken")]
    assert "disk on fire" in payload.errors[0].message


async def test_metadata_can_be_read_by_key_with_a_default():
    seen = []

    @hook("BeforeStep")
    def read(ctx, payload):
        seen.append((ctx.state.metadata.get("user_id"), ctx.state.metadata.get("missing", "fallback")))

    await make([reply("x")], hooks=[read]).arun("x", metadata={"user_id": 7})
    assert seen == [(7, "fallback")]


async def test_the_time_of_a_hook_call_is_on_the_clock_and_in_the_events():
    # A deliberate difference: createdAt and updatedAt are ctx.clock and the time of the events.
    class Noon:
        def time(self):
            return 43200.0

        def monotonic(self):
            return 1.0

    log, times = EventLog(), []
    ender = hook("BeforeExecution")(lambda ctx, p: times.append(ctx.clock.time()) or HookResult.cont(reason="noted"))
    await make([reply("x")], hooks=[ender], sinks=[log]).arun("x", ctx=AgentContext(clock=Noon()))
    assert times == [43200.0]
    assert [e.at for e in log.of(HookExecuted)] == [43200.0]


async def test_a_hook_can_tell_whether_there_are_errors():
    seen = []
    agent = make([call("broken"), reply("x")])
    agent.register_hook(lambda ctx, p: seen.append(bool(ctx.state.errors)), points=(BEFORE_STEP,))
    await agent.arun("x")
    assert seen == [False, True]


async def test_an_observer_can_tell_whether_the_tool_was_blocked():
    verdicts = []
    blocker = guard(BEFORE_TOOL)(lambda ctx, p: HookResult.block("no") if p.arguments["key"] == "bad" else None)

    @observer(BEFORE_TOOL)
    def watch(ctx, payload, verdict):
        verdicts.append(verdict.action is HookAction.BLOCK)

    turns = [[call("look_up", key="bad"), call("look_up", key="good")], reply("x")]
    await make(turns, hooks=[watch, blocker]).arun("x")
    assert verdicts == [True, False]


@pytest.mark.parametrize(
    ("trigger", "payload"),
    [
        ("BeforeExecution", RunStart),
        ("BeforeStep", StepStart),
        ("BeforeToolUse", ToolCallRequest),
        ("AfterToolUse", ToolCallResult),
        ("AfterStep", Step),
        ("OnStop", Stopping),
        ("AfterExecution", AgentResult),
        ("OnError", ErrorReport),
    ],
)
def test_each_trigger_has_a_payload_type_and_samples_of_it_can_be_made(trigger, payload):
    assert resolve(trigger).payload is payload
    assert isinstance(sample(trigger), payload)


# Registering Hooks


async def test_a_hook_is_registered_with_triggers_priority_and_name():
    events = EventLog(every_call=True)
    log = LogSteps()
    agent = make(two_steps(), sinks=[events])
    agent.register_hook(log, points=AFTER_STEP, priority=10, name="log_steps")
    await agent.arun("x")
    assert len(log.lines) == 2
    assert [(e.hook, e.point) for e in events.of(HookExecuted)] == [("log_steps", "after_step")] * 2


async def test_a_capability_is_a_plugin_that_brings_its_hooks():
    log = LogSteps()
    log.points = frozenset({AFTER_STEP})
    agent = make(two_steps(), plugins=[Plugin("logging", hooks=[log])])
    await agent.arun("x")
    assert len(log.lines) == 2


async def test_a_hook_can_listen_to_several_triggers():
    log = LogSteps()
    agent = make([reply("x")])
    agent.register_hook(log, points=("BeforeStep", "AfterStep"))
    await agent.arun("x")
    assert [line.split()[-1] for line in log.lines] == ["before_step", "after_step"]


async def test_all_triggers_can_be_named_at_once():
    recorder = Recorder()
    agent = make([call("broken"), reply("x")])
    agent.register_hook(recorder, points=POINTS)
    await agent.arun("x")
    assert {str(p) for p in TRIGGERS.values()} <= set(recorder.order)


async def test_no_triggers_registers_nothing():
    # A deliberate difference: HookTriggers::none() leaves nothing behind in the registry.
    recorder = Recorder()
    agent = make([reply("x")])
    agent.register_hook(recorder, points=())
    await agent.arun("x")
    assert recorder.seen == []
    assert len(agent.hooks) == 0


@pytest.mark.parametrize(("name", "point"), TRIGGERS.items())
async def test_each_single_trigger_can_be_chosen(name, point):
    recorder = Recorder()
    agent = make([call("broken"), reply("x")])
    agent.register_hook(recorder, points=name)
    await agent.arun("x")
    assert set(recorder.order) == {str(point)}


# Via HookStack (Manual)


async def test_a_hook_stack_can_be_put_in_place_of_the_agents_hooks():
    log = LogSteps()
    stack = HookStack()
    stack = stack.with_hook(log, "AfterStep", priority=10, name="log_steps")
    await make(two_steps(), hooks=stack).arun("x")
    assert log.lines == ["Step 1 | Trigger: after_step", "Step 2 | Trigger: after_step"]


def test_a_hook_stack_is_immutable_and_resorts_with_each_hook():
    empty = HookStack()
    low, high = hook(BEFORE_STEP)(lambda c, p: None), hook(BEFORE_STEP)(lambda c, p: None)
    one = empty.with_hook(low, priority=1)
    two = one.with_hook(high, priority=2)
    assert (empty.at(BEFORE_STEP), one.at(BEFORE_STEP), two.at(BEFORE_STEP)) == ([], [low], [high, low])


async def test_hooks_can_be_chained_fluently():
    order = []
    stack = (
        HookStack()
        .with_hook(lambda ctx, p: order.append("A"), "before_step", priority=100)
        .with_hook(lambda ctx, p: order.append("B"), "after_step", priority=50)
        .with_hook(lambda ctx, p: order.append("C"), "on_error", priority=0)
    )
    await make([call("broken"), reply("x")], hooks=stack).arun("x")
    assert order == ["A", "C", "B", "A", "B"]


async def test_a_registered_hook_that_carries_its_own_options_can_be_added():
    order = []
    prebuilt = hook(AFTER_STEP, priority=10, name="log_steps")(lambda ctx, p: order.append("prebuilt"))
    stack = HookStack().with_hook(lambda ctx, p: order.append("plain"), AFTER_STEP).with_hook(prebuilt)
    await make([reply("x")], hooks=stack).arun("x")
    assert order == ["prebuilt", "plain"]
    assert stack.entries(AFTER_STEP)[0].name == "log_steps"


async def test_a_hook_in_a_stack_is_not_entered_again_by_a_model_call_of_its_own():
    depths, depth = [], 0

    async def judge(ctx, payload):
        nonlocal depth
        depth += 1
        depths.append(depth)
        if depth < 4:
            await ctx.llm.complete("is this fine?", purpose="judge")
        depth -= 1

    stack = HookStack().with_hook(judge, BEFORE_LLM)
    result = await make([reply("fine"), reply("x"), reply("y"), reply("z")], hooks=stack).arun("x")
    assert depths == [1]
    assert result.reply == "x"


# CallableHook


async def test_any_callable_can_be_a_hook():
    printed = []

    class Method:
        def on_step(self, ctx, payload):
            printed.append("method")

    agent = make([reply("x")])
    agent.register_hook(lambda ctx, payload: printed.append("lambda"), points=AFTER_STEP)
    agent.register_hook(Method().on_step, points=AFTER_STEP)

    async def coroutine(ctx, payload):
        printed.append("coroutine")

    agent.register_hook(coroutine, points=AFTER_STEP)
    await agent.arun("x")
    assert printed == ["lambda", "method", "coroutine"]


# Hook Priority


@pytest.mark.parametrize("point", TRIGGERS.values())
async def test_hooks_run_in_descending_priority(point):
    order = []
    agent = make([call("broken"), reply("x")])
    for priority in (-200, 200, 0, 100):
        agent.register_hook(lambda ctx, p, *, n=priority: order.append(n), points=point, priority=priority)
    await agent.arun("x")
    assert order[:4] == [200, 100, 0, -200]


def test_the_sort_is_stable():
    hooks = [hook(AFTER_STEP)(lambda c, p: None) for _ in range(6)]
    assert HookRegistry(hooks).at(AFTER_STEP) == hooks


async def test_a_stop_at_200_holds_and_the_hooks_after_it_still_run():
    signalled = []
    agent = make(two_steps())
    agent.register_hook(
        lambda ctx, p: HookResult.stop("over", kind="token_limit"), points=AFTER_STEP, priority=200, name="limit"
    )
    agent.register_hook(lambda ctx, p: signalled.append("logic ran"), points=AFTER_STEP)
    result = await agent.arun("x")
    assert signalled == ["logic ran"]
    assert (result.status, result.stop.kind, result.stop.hook) == ("stopped", "token_limit", "limit")


def test_the_built_in_guards_have_priority_200_and_the_finish_reason_guard_minus_200():
    limits = [StepsLimitHook(1), TokenUsageLimitHook(1), ExecutionTimeLimitHook(1), CostLimitHook(1)]
    for limit in (*limits, ToolCallsLimitHook(1), RateLimitHook()):
        assert {entry.priority for entry in HookRegistry([limit]).stack.layers[0]} == {200}
    (entry,) = HookRegistry([FinishReasonHook(["stop"])]).stack.layers[0]
    assert (entry.point, entry.priority) == (AFTER_STEP, -200)


async def test_a_built_in_guard_takes_precedence_over_custom_hooks_at_the_default_priority():
    def custom(ctx, payload):
        return None

    agent = make([reply("x")])
    agent.register_hook(custom, points=BEFORE_STEP)
    agent.register_hook(limit := StepsLimitHook(3))
    assert agent.hooks.at(BEFORE_STEP) == [limit, custom]


# Modifying Agent State


async def test_a_hook_can_attach_metadata_for_the_hooks_after_it():
    seen = []
    agent = make([reply("x")])
    agent.register_hook(
        lambda ctx, p: HookResult.cont(state=ctx.state.with_metadata(processed_at=123)), points=BEFORE_STEP, priority=1
    )
    agent.register_hook(
        lambda ctx, p: seen.append(ctx.state.metadata["processed_at"]), points=(BEFORE_STEP, AFTER_STEP)
    )
    await agent.arun("x")
    assert seen == [123, 123]


@pytest.mark.parametrize("name", TRIGGERS)
async def test_state_can_be_changed_at_every_trigger(name):
    ctx = AgentContext()
    agent = make([call("broken"), reply("x")])
    agent.register_hook(lambda c, p: HookResult.cont(state=c.state.with_metadata(mark=name)), points=name)
    await agent.arun("x", ctx=ctx)
    assert ctx.session.metadata == {"mark": name}


async def test_a_hook_can_adjust_the_system_prompt_by_step_count():
    @hook("BeforeStep")
    def wrap_up(ctx, payload):
        state = ctx.state
        if state.step_count == 6:
            state = state.with_system_prompt(state.system_prompt + "\n\nPlease wrap up your current task.")
        return HookResult.cont(state=state)

    agent = make([call("look_up", key="k")] * 6 + [reply("done")], instructions="Work.", hooks=[wrap_up])
    await agent.arun("x")
    prompts = [request.messages[0].content for request in agent.model.requests]
    assert prompts == ["Work."] * 6 + ["Work.\n\nPlease wrap up your current task."]


async def test_a_hook_can_add_a_message_before_the_next_llm_call():
    @hook("AfterStep")
    def nudge(ctx, payload):
        if payload.index == 0:
            return HookResult.cont(state=ctx.state.with_messages(Message("user", "hurry up")))
        return None

    agent = make(two_steps(), hooks=[nudge])
    await agent.arun("x")
    assert [m.content for m in agent.model.requests[1].messages][-2:] == ["value of k", "hurry up"]


async def test_a_hook_can_remove_messages_before_the_next_llm_call():
    @hook("BeforeStep")
    def forget(ctx, payload):
        if payload.index == 1:
            return HookResult.cont(state=ctx.state.replace(messages=ctx.state.messages[:1]))
        return None

    agent = make(two_steps(), hooks=[forget])
    await agent.arun("x")
    assert [m.role for m in agent.model.requests[1].messages] == ["user"]


async def test_a_hook_can_transform_messages_before_the_next_llm_call():
    @hook("BeforeStep")
    def redact(ctx, payload):
        clean = [m.replace(content=m.content.replace("1234", "****")) for m in ctx.state.messages]
        return HookResult.cont(state=ctx.state.replace(messages=clean))

    agent = make([reply("x")], hooks=[redact])
    result = await agent.arun("my pin is 1234")
    assert agent.model.requests[0].messages[0].content == "my pin is ****"
    assert result.messages[0].content == "my pin is ****"


async def test_a_tool_result_cannot_be_separated_from_its_call():
    @hook("BeforeStep", name="careless")
    def careless(ctx, payload):
        kept = [m for m in ctx.state.messages if m.role != "tool"]
        return HookResult.cont(state=ctx.state.replace(messages=kept))

    with pytest.raises(RunFailedError, match="'careless' at before_step: .*only be removed together"):
        await make(two_steps(), hooks=[careless]).arun("x")


async def test_what_belongs_to_the_loop_cannot_be_changed():
    @hook("BeforeStep", name="forger")
    def forger(ctx, payload):
        return HookResult.cont(state=ctx.state.replace(steps=[Step(0)]))

    with pytest.raises(RunFailedError, match="'forger' at before_step: .*may not change steps"):
        await make([reply("x")], hooks=[forger]).arun("x")


# Blocking Tool Execution


class BlockDangerousTools:
    blocked_tools = ("delete_all_data", "drop_database", "rm_rf")

    def __call__(self, point, ctx, payload):
        if payload.name in self.blocked_tools:
            return HookResult.block(f'Tool "{payload.name}" is not permitted in this environment.')
        return None


def dangerous(ran):
    @tool
    def delete_all_data() -> str:
        """Delete everything."""
        ran.append("deleted")
        return "gone"

    return delete_all_data


async def test_a_blocked_tool_does_not_run_and_the_model_gets_the_message():
    ran = []
    model = ScriptedModel([[call("delete_all_data"), call("look_up", key="k")], reply("understood")])
    agent = Agent("t", llm=model, tools=[dangerous(ran), look_up])
    agent.register_hook(BlockDangerousTools(), points="BeforeToolUse", priority=200, name="block_dangerous_tools")
    result = await agent.arun("wipe it")
    refused, served = model.requests[1].messages[-2:]
    assert ran == []
    assert (refused.content, refused.is_error) == (
        'Tool "delete_all_data" is not permitted in this environment.',
        True,
    )
    assert (served.content, served.is_error) == ("value of k", False)
    assert (result.status, result.reply) == ("completed", "understood")


async def test_a_block_is_recorded_in_the_error_list_without_failing_the_run():
    recorder = Recorder()
    agent = Agent("t", llm=ScriptedModel([call("delete_all_data"), reply("ok")]), tools=[dangerous([])])
    agent.register_hook(BlockDangerousTools(), points=BEFORE_TOOL, name="policy")
    agent.register_hook(recorder)
    result = await agent.arun("x")
    (error,) = result.errors
    assert (error.type, error.source, error.fatal) == ("Blocked", "policy", False)
    assert "not permitted" in error.message
    assert recorder.at(ON_ERROR) == []
    assert result.status == "completed"


async def test_a_blocked_call_reaches_after_tool_use_with_blocked_status():
    recorder = Recorder()
    agent = Agent("t", llm=ScriptedModel([call("delete_all_data"), reply("ok")]), tools=[dangerous([])])
    agent.register_hook(BlockDangerousTools(), points=BEFORE_TOOL)
    agent.register_hook(recorder)
    await agent.arun("x")
    (execution,) = recorder.at(AFTER_TOOL)
    assert (execution.outcome, execution.result) == ("blocked", None)


async def test_a_block_without_a_message_names_the_tool_and_the_hook():
    agent = Agent("t", llm=ScriptedModel([call("delete_all_data"), reply("ok")]), tools=[dangerous([])])
    agent.register_hook(lambda ctx, p: HookResult.block(), points=BEFORE_TOOL, name="policy")
    result = await agent.arun("x")
    assert "'delete_all_data'" in result.messages[2].content
    assert "'policy'" in result.messages[2].content


async def test_a_high_priority_block_runs_before_other_hooks_and_they_are_not_asked():
    asked = []
    agent = Agent("t", llm=ScriptedModel([call("delete_all_data"), reply("ok")]), tools=[dangerous([])])
    agent.register_hook(lambda ctx, p: asked.append(p.name), points=BEFORE_TOOL)
    agent.register_hook(BlockDangerousTools(), points=BEFORE_TOOL, priority=200)
    await agent.arun("x")
    assert asked == []


# Applying Context Configuration


async def test_a_before_execution_hook_can_set_prompt_and_response_format_for_the_first_llm_call():
    schema = {"type": "object", "properties": {"total": {"type": "number"}}}

    @hook("BeforeExecution")
    def configure(ctx, payload):
        state = ctx.state.with_system_prompt("You are a data analysis assistant.").replace(response_format=schema)
        return HookResult.cont(state=state)

    agent = make([reply("{}")], instructions="old prompt", hooks=[configure])
    await agent.arun("x")
    request = agent.model.requests[0]
    assert request.messages[0] == Message("system", "You are a data analysis assistant.")
    assert request.response_format == schema


async def test_without_such_a_hook_the_agents_own_prompt_and_format_hold():
    schema = {"type": "object"}
    agent = make([reply("{}")], instructions="own prompt", response_format=schema, hooks=[Recorder()])
    await agent.arun("x")
    request = agent.model.requests[0]
    assert (request.messages[0].content, request.response_format) == ("own prompt", schema)


async def test_apply_context_config_sets_prompt_and_format_before_the_first_llm_call():
    schema = {"type": "object", "properties": {"total": {"type": "number"}}}
    config = ApplyContextConfigHook(system_prompt="You are a data analysis assistant.", response_format=schema)
    agent = make([reply("{}")], instructions="old prompt", hooks=[config])
    await agent.arun("x")
    request = agent.model.requests[0]
    assert request.messages[0] == Message("system", "You are a data analysis assistant.")
    assert request.response_format == schema
    assert config.points == {TRIGGERS["BeforeExecution"]}


async def test_apply_context_config_modifies_the_state():
    recorder = Recorder()
    await make([reply("x")], hooks=[recorder, ApplyContextConfigHook("new prompt")]).arun("x")
    assert {state.system_prompt for _, _, state in recorder.seen} == {"new prompt"}


@pytest.mark.parametrize("empty", [None, {}])
async def test_apply_context_config_only_applies_non_empty_values(empty):
    schema = {"type": "object"}
    config = ApplyContextConfigHook(system_prompt="", response_format=empty)
    agent = make([reply("{}")], instructions="own prompt", response_format=schema, hooks=[config])
    await agent.arun("x")
    request = agent.model.requests[0]
    assert (request.messages[0].content, request.response_format) == ("own prompt", schema)


async def test_use_context_config_is_a_plugin_around_that_hook():
    context = Plugin("context", hooks=[ApplyContextConfigHook("You are a data analysis assistant.")])
    agent = make([reply("a"), reply("b")], instructions="own prompt", plugins=[context])
    await agent.arun("x")
    await agent.arun("x", allowed_plugins=[])
    prompts = [request.messages[0].content for request in agent.model.requests]
    assert prompts == ["You are a data analysis assistant.", "own prompt"]


# Built-in Guard Hooks: what the loop does with limits and stop signals


async def test_the_step_limit_stops_with_its_reason_and_message():
    agent = make([call("look_up", key="k")] * 20, limits=Limits(steps=10))
    result = await agent.arun("x")
    assert (result.status, result.stop.kind, result.stop.message) == (
        "stopped",
        "steps_limit",
        "Step limit reached: 10/10",
    )
    assert len(agent.model.requests) == 10


async def test_a_bare_agent_stops_after_20_steps():
    agent = make([call("look_up", key="k")] * 30)
    result = await agent.arun("x")
    assert (result.stop.kind, len(agent.model.requests)) == ("steps_limit", 20)


async def test_the_step_limit_can_be_disabled():
    agent = make([call("look_up", key="k")] * 25 + [reply("x")], limits=Limits(steps=math.inf))
    result = await agent.arun("x")
    assert (result.status, len(result.steps)) == ("completed", 26)


async def test_a_user_written_steps_limit_counts_with_a_counter_of_its_own():
    class StepsLimit:
        points = frozenset({BEFORE_STEP})

        def __init__(self, max_steps, step_counter):
            self.max_steps, self.step_counter = max_steps, step_counter

        def __call__(self, point, ctx, payload):
            count = self.step_counter(ctx.state)
            if count >= self.max_steps:
                return HookResult.stop(f"Step limit reached: {count}/{self.max_steps}", kind="steps_limit")
            return None

    agent = make([call("look_up", key="k")] * 9, hooks=[StepsLimit(3, lambda state: state.step_count)])
    result = await agent.arun("x")
    assert (result.status, result.stop.message) == ("stopped", "Step limit reached: 3/3")
    assert (len(agent.model.requests), result.stop.kind) == (3, "steps_limit")


async def test_the_token_limit_counts_input_and_output_of_all_llm_calls():
    usage = {"input_tokens": 40, "output_tokens": 10}
    turn = reply("").replace(tool_calls=[call("look_up", key="k").replace(id="c")], usage=usage)
    agent = make([turn] * 9)
    result = await agent.arun("x", ctx=AgentContext(budget=Budget(Limits(tokens=150))))
    assert (result.status, result.stop.kind) == ("stopped", "token_limit")
    assert len(agent.model.requests) == 3
    assert result.usage.total_tokens == 150


async def test_a_token_limit_can_be_written_from_the_states_usage():
    @hook("BeforeStep")
    def limit(ctx, payload):
        return HookResult.stop("enough", kind="token_limit") if ctx.state.usage.total_tokens >= 50 else None

    usage = {"input_tokens": 40, "output_tokens": 10}
    turn = reply("").replace(tool_calls=[call("look_up", key="k").replace(id="c")], usage=usage)
    agent = make([turn] * 9, hooks=[limit])
    result = await agent.arun("x")
    assert (result.stop.kind, len(agent.model.requests)) == ("token_limit", 1)


class FakeClock:
    def __init__(self):
        self.now = 0.0

    def time(self):
        return self.now

    def monotonic(self):
        return self.now


def ticking_agent(clock, **options):
    @tool
    def work() -> str:
        """Takes 11.5 s."""
        clock.now += 11.5
        return "worked"

    return Agent("t", llm=ScriptedModel([call("work")] * 9), tools=[work], **options)


async def test_a_time_limit_listens_to_two_triggers_with_one_start_time():
    class ExecutionTimeLimit:
        def __init__(self, max_seconds):
            self.max_seconds = max_seconds

        def __call__(self, point, ctx, payload):
            if point == ON_RUN_START:
                ctx.hook_state[id(self)] = ctx.clock.monotonic()
                return None
            elapsed = ctx.clock.monotonic() - ctx.hook_state[id(self)]
            return HookResult.stop(f"{elapsed} s", kind="time_limit") if elapsed >= self.max_seconds else None

    clock = FakeClock()
    agent = ticking_agent(clock)
    agent.register_hook(ExecutionTimeLimit(30.0), points=("BeforeExecution", "BeforeStep"), priority=200)
    result = await agent.arun("x", ctx=AgentContext(clock=clock))
    assert (result.stop.kind, result.stop.message) == ("time_limit", "34.5 s")
    assert len(agent.model.requests) == 3


async def test_the_budgets_time_limit_is_wall_clock_for_the_whole_execution():
    clock = FakeClock()
    agent = ticking_agent(clock)
    budget = Budget(Limits(seconds=20.0), clock=clock)
    result = await agent.arun("x", ctx=AgentContext(clock=clock, budget=budget))
    assert (result.status, result.stop.kind, len(agent.model.requests)) == ("stopped", "time_limit", 2)


async def test_a_finish_reason_stop_runs_last_after_the_step_and_completes_the_run():
    order = []

    def finish(ctx, payload):
        order.append("finish reason")
        if ctx.state.current_step.finish_reason == "stop":
            return HookResult.stop("the model is done", kind="finish_reason")
        return None

    turn = reply("all said").replace(tool_calls=[call("look_up", key="k").replace(id="c")], finish_reason="stop")
    agent = make([turn, reply("unreached")])
    agent.register_hook(finish, points=AFTER_STEP, priority=-200)
    agent.register_hook(lambda ctx, p: order.append("logic"), points=AFTER_STEP)
    result = await agent.arun("x")
    assert order == ["logic", "finish reason"]
    assert (result.status, result.stop.kind, result.reply) == ("completed", "finish_reason", "all said")
    assert len(agent.model.requests) == 1


# Built-in Guard Hooks: UseGuards Capability


def test_use_guards_bundles_the_guards_with_sensible_defaults():
    steps, tokens, seconds = limits_plugin().hooks
    assert (type(steps), steps.limit) == (StepsLimitHook, 20)
    assert (type(tokens), tokens.limit) == (TokenUsageLimitHook, 32768)
    assert (type(seconds), seconds.limit) == (ExecutionTimeLimitHook, 300.0)


def test_use_guards_brings_the_finish_reason_guard_when_reasons_are_given():
    assert [type(hook) for hook in limits_plugin(finish_reasons=["stop"]).hooks][3:] == [FinishReasonHook]


async def test_use_guards_is_a_one_liner():
    plugin = limits_plugin(max_steps=10, max_tokens=5000, max_execution_time=30.0, finish_reasons=[])
    agent = make([call("look_up", key="k")] * 20, plugins=[plugin])
    result = await agent.arun("x")
    assert (result.stop.kind, result.stop.message, len(agent.model.requests)) == (
        "steps_limit",
        "Step limit reached: 10/10",
        10,
    )


@pytest.mark.parametrize(
    ("disabled", "left"),
    [
        ({"max_steps": None}, [TokenUsageLimitHook, ExecutionTimeLimitHook]),
        ({"max_tokens": None}, [StepsLimitHook, ExecutionTimeLimitHook]),
        ({"max_execution_time": None}, [StepsLimitHook, TokenUsageLimitHook]),
        ({"finish_reasons": None}, [StepsLimitHook, TokenUsageLimitHook, ExecutionTimeLimitHook]),
    ],
)
def test_null_disables_a_guard(disabled, left):
    assert [type(hook) for hook in limits_plugin(**disabled).hooks] == left


async def test_without_a_step_guard_there_is_no_step_limit():
    agent = make([call("look_up", key="k")] * 25 + [reply("x")], plugins=[limits_plugin(max_steps=None)])
    result = await agent.arun("x")
    assert (result.status, len(result.steps)) == ("completed", 26)


# Built-in Guard Hooks: Individual Guard Hooks


async def test_the_steps_limit_hook_emits_its_reason_and_a_descriptive_message():
    agent = make([call("look_up", key="k")] * 20)
    agent.register_hook(StepsLimitHook(max_steps=10, step_counter=lambda state: state.step_count))
    result = await agent.arun("x")
    assert (result.stop.kind, result.stop.message, result.stop.hook) == (
        "steps_limit",
        "Step limit reached: 10/10",
        "StepsLimitHook",
    )
    assert len(agent.model.requests) == 10


async def test_the_step_counter_can_count_different_things():
    failed = StepsLimitHook(2, lambda state: sum("error" in step.outcomes for step in state.steps))
    turns = [call("broken"), call("look_up", key="k"), call("broken"), reply("unreached")]
    agent = make(turns, hooks=[failed])
    assert (await agent.arun("x")).stop.kind == "steps_limit"
    assert len(agent.model.requests) == 3


async def test_the_token_usage_limit_hook_counts_input_and_output_of_all_llm_calls():
    @hook("AfterStep")
    async def judge(ctx, payload):
        await ctx.llm.complete("is this fine?", purpose="judge")

    usage = {"input_tokens": 900, "output_tokens": 100}
    turn = reply("").replace(tool_calls=[call("look_up", key="k").replace(id="c")], usage=usage)
    agent = make([turn] * 9, hooks=[judge, TokenUsageLimitHook(max_total_tokens=4000)])
    result = await agent.arun("x")
    assert (result.stop.kind, result.stop.message) == ("token_limit", "Token limit reached: 4000/4000")
    assert [request.purpose for request in agent.model.requests] == ["step", "judge", "step", "judge"]


@pytest.mark.parametrize("points", [None, ("BeforeExecution", "BeforeStep")])
async def test_the_execution_time_limit_hook_works_as_it_is_and_on_the_two_triggers_of_the_page(points):
    # A deliberate difference: the run's ledger knows when it began, so one trigger is enough.
    clock = FakeClock()
    agent = ticking_agent(clock)
    agent.register_hook(ExecutionTimeLimitHook(max_seconds=30.0), points=points, priority=200)
    result = await agent.arun("x", ctx=AgentContext(clock=clock))
    assert (result.stop.kind, result.stop.message) == ("time_limit", "Time limit reached: 34.5/30.0")
    assert len(agent.model.requests) == 3


async def test_use_guards_registers_the_time_limit_where_it_is_needed():
    clock = FakeClock()
    agent = ticking_agent(clock, plugins=[limits_plugin(max_execution_time=30.0)])
    assert (await agent.arun("x", ctx=AgentContext(clock=clock))).stop.kind == "time_limit"


async def test_the_finish_reason_hook_stops_when_the_reason_matches():
    turn = reply("all said").replace(tool_calls=[call("look_up", key="k").replace(id="c")], finish_reason="stop")
    finish = FinishReasonHook(
        stop_reasons=["stop"], finish_reason_resolver=lambda state: state.current_step.finish_reason
    )
    agent = make([call("look_up", key="k"), turn, reply("unreached")], hooks=[finish])
    result = await agent.arun("x")
    assert (result.status, result.stop.kind, result.reply) == ("completed", "finish_reason", "all said")
    assert len(agent.model.requests) == 2


async def test_the_finish_reason_guard_runs_after_all_other_post_step_hooks():
    seen = []

    def resolver(state):
        seen.append("finish reason")
        return state.current_step.finish_reason

    agent = make([reply("x")], hooks=[FinishReasonHook(["stop"], resolver)])
    agent.register_hook(lambda ctx, p: seen.append("post-processing"), points=AFTER_STEP, priority=-100)
    await agent.arun("x")
    assert seen == ["post-processing", "finish reason"]


# Built-in Guard Hooks: stop signals


async def test_a_stop_signal_is_recorded_as_an_event():
    log = EventLog()
    agent = make([reply("x")], sinks=[log])
    agent.register_hook(lambda ctx, p: HookResult.stop("enough"), points=BEFORE_STEP, name="limiter")
    await agent.arun("x")
    (signal,) = [e.signal for e in log.of(Signalled)]
    assert (signal.kind, signal.message, signal.hook) == ("stop_requested", "enough", "limiter")


async def test_a_signal_is_in_the_state_from_the_next_point_on():
    # A deliberate difference: there the hooks after it at the same trigger see it already.
    seen = []
    agent = make([reply("x")])
    agent.register_hook(lambda ctx, p: HookResult.stop("no"), points=BEFORE_STEP, priority=200)
    agent.register_hook(
        lambda point, ctx, p: seen.append((str(point), len(ctx.state.signals))), points=(BEFORE_STEP, AFTER_STEP)
    )
    await agent.arun("x")
    assert seen == [("before_step", 0), ("after_step", 1)]


async def test_when_several_guards_signal_the_strongest_reason_holds():
    recorder = Recorder()
    agent = make([reply("x")], hooks=[recorder])
    for kind in ("time_limit", "steps_limit", "finish_reason"):
        agent.register_hook(lambda ctx, p, *, kind=kind: HookResult.stop(kind=kind), points=BEFORE_STEP)
    result = await agent.arun("x")
    assert result.stop.kind == "steps_limit"
    assert [s.kind for s in recorder.at(ON_STOP)[0].signals] == ["steps_limit", "time_limit", "finish_reason"]


async def test_a_stopped_run_never_reaches_the_model_but_still_ends_properly():
    recorder = Recorder()
    agent = make([reply("never")], hooks=[recorder])
    agent.register_hook(lambda ctx, p: HookResult.stop("no"), points=BEFORE_STEP)
    await agent.arun("x")
    assert agent.model.requests == []
    assert recorder.order == ["on_run_start", "before_step", "after_step", "on_stop", "on_run_end"]


# How Hooks Execute


async def test_the_context_flows_through_the_chain_by_priority():
    agent = make([reply("x")])
    for name, priority in (("C", 0), ("A", 200), ("B", 100)):
        agent.register_hook(
            lambda ctx, p, *, name=name: HookResult.replace({"task": f"{p.task}>{name}"}),
            points="BeforeExecution",
            priority=priority,
        )
    assert (await agent.arun("task")).task == "task>A>B>C"


async def test_hooks_of_other_triggers_are_silently_skipped():
    log = LogSteps()
    events = EventLog(every_call=True)
    agent = make([reply("x")], sinks=[events])
    agent.register_hook(log, points="OnError")
    await agent.arun("x")
    assert log.lines == []
    assert events.of(HookExecuted) == []


async def test_each_hook_that_said_something_is_reported_with_trigger_name_and_time():
    log = EventLog()
    agent = make([reply("x")], sinks=[log])
    agent.register_hook(lambda ctx, p: HookResult.cont(reason="seen"), points=BEFORE_STEP, name="speaks")
    agent.register_hook(lambda ctx, p: None, points=BEFORE_STEP, name="silent")
    await agent.arun("x")
    (event,) = log.of(HookExecuted)
    assert (event.point, event.hook, event.reason) == ("before_step", "speaks", "seen")
    assert event.at > 0


async def test_every_successful_hook_execution_is_reported_when_a_consumer_asks():
    log = EventLog(every_call=True)
    agent = make(two_steps(), sinks=[log])
    agent.register_hook(lambda ctx, p: None, points=("BeforeStep", "AfterStep"), name="silent")
    await agent.arun("x")
    assert [(e.point, e.hook) for e in log.of(HookExecuted)] == [
        ("before_step", "silent"),
        ("after_step", "silent"),
        ("before_step", "silent"),
        ("after_step", "silent"),
    ]


async def test_the_pass_through_interceptor_is_an_agent_without_hooks():
    agent = make(two_steps(), hooks=[PassThrough()])
    assert len(agent.hooks) == 0
    result = await agent.arun("x")
    assert (result.reply, result.messages[2].content) == ("done", "value of k")


async def test_the_pass_through_interceptor_still_checks_arguments():
    result = await make([call("look_up", wrong=1), reply("x")], hooks=[PassThrough()]).arun("x")
    assert result.messages[2].is_error
    assert "key: field required" in result.messages[2].content


async def test_the_stack_can_be_replaced_by_a_strategy_of_ones_own():
    class NoTools(PassThrough):
        def __init__(self):
            self.seen = []

        async def intercept(self, point, payload, ctx):
            self.seen.append(str(point))
            return HookResult.block("no tools today") if point == BEFORE_TOOL else None

    strategy = NoTools()
    result = await make(two_steps(), hooks=[strategy]).arun("x")
    assert result.messages[2].content == "no tools today"
    assert strategy.seen[0] == "session_start"
    assert strategy.seen[-1] == "on_run_end"
    assert {"before_step", "after_tool", "after_step", "on_stop"} <= set(strategy.seen)


# Practical Examples: Audit Trail Hook


class AuditTrail:
    points = frozenset({AFTER_TOOL})

    def __init__(self):
        self.log = []

    def __call__(self, point, ctx, payload):
        self.log.append(
            {"tool": payload.name, "timestamp": ctx.clock.time(), "blocked": (payload.outcome == "blocked")}
        )


async def test_the_audit_trail_example_records_every_tool_invocation():
    trail, clock = AuditTrail(), FakeClock()
    clock.now = 99.0
    model = ScriptedModel([[call("delete_all_data"), call("look_up", key="k")], call("look_up", key="k"), reply("x")])
    agent = Agent("t", llm=model, tools=[dangerous([]), look_up], hooks=[trail])
    agent.register_hook(BlockDangerousTools(), points=BEFORE_TOOL)
    await agent.arun("x", ctx=AgentContext(clock=clock))
    assert trail.log == [
        {"tool": "delete_all_data", "timestamp": 99.0, "blocked": True},
        {"tool": "look_up", "timestamp": 99.0, "blocked": False},
        {"tool": "look_up", "timestamp": 99.0, "blocked": False},
    ]


async def test_the_built_in_audit_trail_hook_keeps_the_log_of_the_example():
    trail = AuditTrailHook()
    model = ScriptedModel([[call("delete_all_data"), call("look_up", key="k")], reply("x")])
    agent = Agent("t", llm=model, tools=[dangerous([]), look_up], hooks=[trail])
    agent.register_hook(BlockDangerousTools(), points=BEFORE_TOOL)
    await agent.arun("x")
    assert [(entry["tool"], entry["blocked"]) for entry in trail.get_log()] == [
        ("delete_all_data", True),
        ("look_up", False),
    ]
    assert all(datetime.fromisoformat(entry["timestamp"]).tzinfo for entry in trail.get_log())


# Practical Examples: Rate Limiting Hook


class RateLimit:
    points = frozenset({BEFORE_TOOL})

    def __init__(self, max_calls):
        self.max_calls = max_calls

    def __call__(self, point, ctx, payload):
        count = ctx.hook_state[id(self)] = ctx.hook_state.get(id(self), 0) + 1
        if count > self.max_calls:
            return HookResult.block(f"Rate limit exceeded: {count}/{self.max_calls} tool calls.")
        return None


async def test_the_rate_limit_example_blocks_calls_over_the_limit():
    agent = make([[call("look_up", key=k) for k in "abc"], reply("x")], hooks=[RateLimit(2)])
    result = await agent.arun("x")
    assert [m.content for m in result.messages if m.role == "tool"] == [
        "value of a",
        "value of b",
        "Rate limit exceeded: 3/2 tool calls.",
    ]


async def test_the_rate_limit_example_counts_per_execution():
    agent = make([[call("look_up", key=k) for k in "ab"], reply("x")] * 2, hooks=[RateLimit(2)])
    first, second = await agent.arun("x"), await agent.arun("x")
    assert (first.successful_tool_calls, second.successful_tool_calls) == (2, 2)


async def test_the_built_in_rate_limit_hook_blocks_the_51st_call():
    calls = [call("look_up", key=str(k)) for k in range(51)]
    result = await make([calls, reply("x")], hooks=[RateLimitHook()]).arun("x")
    tool_results = [m.content for m in result.messages if m.role == "tool"]
    assert tool_results[49:] == ["value of 49", "Rate limit exceeded: 51/50 tool calls."]
    assert result.status == "completed"


async def test_the_built_in_rate_limit_hook_counts_per_execution_and_only_calls_that_run():
    # A deliberate difference: the example counts blocked calls too, and never starts again.
    turns = [[call("look_up", key=k) for k in "abcd"], reply("x")]
    agent = make(turns * 2, hooks=[RateLimitHook(max_calls_per_run=2)])
    for result in (await agent.arun("x"), await agent.arun("x")):
        tool_results = [m.content for m in result.messages if m.role == "tool"]
        assert tool_results == ["value of a", "value of b", *["Rate limit exceeded: 3/2 tool calls."] * 2]


# Practical Examples: Conditional Tool Access


class RoleBasedAccess:
    points = frozenset({BEFORE_TOOL})
    phase = "guard"
    admin_only = ("deploy", "rollback", "delete_user")

    def __call__(self, point, ctx, payload):
        if payload.name in self.admin_only and ctx.state.metadata.get("user_role") != "admin":
            return HookResult.block(f'Tool "{payload.name}" requires admin privileges.')
        return None


@pytest.mark.parametrize(
    "access",
    [RoleBasedAccess(), RoleBasedAccessHook(["deploy", "rollback", "delete_user"])],
    ids=["the example", "the built-in hook"],
)
@pytest.mark.parametrize(
    ("metadata", "answer"),
    [
        ({"user_role": "admin"}, "deployed"),
        ({"user_role": "guest"}, 'Tool "deploy" requires admin privileges.'),
        ({}, 'Tool "deploy" requires admin privileges.'),
    ],
)
async def test_the_role_example_allows_or_denies_by_metadata(metadata, answer, access):
    @tool
    def deploy() -> str:
        """Deploy."""
        return "deployed"

    agent = Agent("t", llm=ScriptedModel([call("deploy"), reply("x")]), tools=[deploy], hooks=[access])
    result = await agent.arun("ship it", metadata=metadata)
    assert result.messages[2].content == answer


async def test_the_role_hook_lets_other_tools_pass():
    access = RoleBasedAccessHook(["deploy", "rollback", "delete_user"])
    result = await make(two_steps(), hooks=[access]).arun("x")
    assert result.messages[2].content == "value of k"
