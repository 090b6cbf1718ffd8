"""The lifecycle of a run: DESIGN 3, 4.7, 5.3 to 5.5, 6.1 to 6.3."""

import asyncio
import threading

import msgspec
import pytest

from hookline import (
    AFTER_LLM,
    AFTER_STEP,
    AFTER_TOOL,
    BEFORE_LLM,
    BEFORE_PROMPT_BUILD,
    BEFORE_STEP,
    BEFORE_TOOL,
    ON_ERROR,
    ON_RUN_END,
    ON_RUN_START,
    ON_STOP,
    SESSION_START,
    Agent,
    AgentContext,
    Budget,
    HookError,
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
from hookline.events import SubagentEvent
from hookline.hooks import PassThrough
from hookline.payloads import Step, StopSignal, ToolSpec, Usage
from hookline.testing import scripted_agent
from hookline.tools import Tool


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


ADD = call("add", a=1, b=2)


def roles(result):
    return [message.role for message in result.messages]


# The course of a run


def test_points_of_a_run_fire_in_the_order_of_the_table():
    seen = []
    points = (SESSION_START, ON_RUN_START, BEFORE_PROMPT_BUILD, BEFORE_STEP, BEFORE_LLM, AFTER_LLM)
    points += (BEFORE_TOOL, AFTER_TOOL, AFTER_STEP, ON_STOP, ON_RUN_END)

    @observer(*points)
    def watch(point, ctx, payload):
        seen.append(str(point))

    scripted_agent([ADD, reply("3")], tools=[add], hooks=[watch]).run("sum")
    step = ["before_step", "before_llm", "after_llm"]
    assert seen == [
        "session_start",
        "on_run_start",
        "before_prompt_build",
        *step,
        "before_tool",
        "after_tool",
        "after_step",
        *step,
        "after_step",
        "on_stop",
        "on_run_end",
    ]


def test_the_result_of_a_completed_run_is_complete():
    result = scripted_agent([[ADD, call("nope")], ADD, reply("done")], tools=[add]).run("go", task_id="t", metadata={})
    assert (result.status, result.reply, result.task) == ("completed", "done", "go")
    assert result.stop == StopSignal("completed")
    assert result.hook_ended is None
    assert (result.tool_calls, result.successful_tool_calls, result.tool_names) == (3, 2, ("add", "nope"))
    assert [step.index for step in result.steps] == [0, 1, 2]
    assert result.steps[0].outcomes == ("ok", "error")
    assert result.usage.total_tokens > 0
    assert result.cost == 0.0
    assert roles(result) == ["user", "assistant", "tool", "tool", "assistant", "tool", "assistant"]
    assert result.ids.task_id == result.ids.correlation_id == "t"
    assert result.ids.run_id.startswith("run_")
    assert result.ids.agent == "test"
    assert result.elapsed > 0


def test_the_task_that_leaves_on_run_start_is_what_the_transcript_records():
    @hook(ON_RUN_START)
    def rewrite(ctx, payload):
        return payload.replace(task=payload.task.upper())

    result = scripted_agent([reply("ok")], hooks=[rewrite]).run("shout")
    assert result.task == "SHOUT"
    assert result.messages[0].content == "SHOUT"


def test_prompt_parts_are_joined_and_override_replaces_the_instructions():
    def parts(**fields):
        @hook(BEFORE_PROMPT_BUILD)
        def give(ctx, payload):
            return fields

        return give

    agent = scripted_agent([reply("a")], instructions="base", hooks=[parts(prepend_system="one", append_system="two")])
    agent.run("x")
    assert agent.model.requests[0].messages[0] == Message("system", "one\n\nbase\n\ntwo")
    agent = scripted_agent([reply("a")], instructions="base", hooks=[parts(override_system="other")])
    agent.run("x")
    assert agent.model.requests[0].messages[0].content == "other"


def test_without_a_system_prompt_there_is_no_system_message():
    agent = scripted_agent([reply("a")])
    agent.run("x")
    assert [m.role for m in agent.model.requests[0].messages] == ["user"]


def test_before_llm_changes_the_request_and_never_the_transcript():
    @hook(BEFORE_LLM)
    def secret(ctx, request):
        return request.replace(messages=[*request.messages, Message("user", "only you see this")])

    agent = scripted_agent([reply("ok")], hooks=[secret])
    result = agent.run("x")
    assert agent.model.requests[0].messages[-1].content == "only you see this"
    assert [m.content for m in result.messages] == ["x", "ok"]


# Ending


def test_end_at_run_start_leaves_the_transcript_untouched_and_calls_no_model():
    @hook(ON_RUN_START)
    def rail(ctx, payload):
        return HookResult.end("I can't.", reason="blocked")

    session = Session("s")
    agent = scripted_agent([reply("never")], hooks=[rail])
    result = agent.run("bad", session=session)
    assert (result.status, result.reply, result.hook_ended) == ("ended", "I can't.", "blocked")
    assert agent.model.requests == []
    assert list(session.messages) == []
    assert list(result.messages) == []


def test_hook_ended_is_the_hooks_name_when_it_gives_no_reason():
    @hook(BEFORE_STEP)
    def door(ctx, payload):
        return HookResult.end("bye")

    assert scripted_agent([reply("x")], hooks=[door]).run("x").hook_ended == "door"


def test_end_appends_its_reply_marked_as_a_hooks_after_all_results():
    @guard(BEFORE_TOOL)
    def stop_here(ctx, payload):
        return HookResult.end("no more")

    result = scripted_agent([[ADD, ADD]], tools=[add], hooks=[stop_here]).run("x")
    assert roles(result) == ["user", "assistant", "tool", "tool", "assistant"]
    assert result.messages[-1].hook == "stop_here"
    assert result.messages[-1].content == "no more"
    assert result.steps[0].outcomes == ("cancelled", "cancelled")


def test_a_reply_ended_at_after_llm_is_not_recorded():
    @hook(AFTER_LLM)
    def rail(ctx, payload):
        return HookResult.end("clean")

    result = scripted_agent([reply("dirty")], hooks=[rail]).run("x")
    assert [m.content for m in result.messages] == ["x", "clean"]


# Stopping


def test_a_stop_at_run_start_takes_effect_before_the_first_model_call():
    @hook(ON_RUN_START)
    def halt(ctx, payload):
        return HookResult.stop("not today")

    agent = scripted_agent([reply("x")], hooks=[halt])
    result = agent.run("x")
    assert result.status == "stopped"
    assert result.stop == StopSignal("stop_requested", "not today", "halt")
    assert agent.model.requests == []
    assert roles(result) == ["user"]


@pytest.mark.parametrize("point", [BEFORE_STEP, BEFORE_LLM])
def test_a_stop_before_the_model_keeps_it_from_being_called_and_after_step_still_fires(point):
    seen = []

    @hook(point)
    def halt(ctx, payload):
        return HookResult.stop("enough", kind="time_limit")

    @observer(AFTER_STEP)
    def after(ctx, step):
        seen.append(step.index)

    agent = scripted_agent([reply("x")], hooks=[halt, after])
    result = agent.run("x")
    assert (result.status, result.stop.kind) == ("stopped", "time_limit")
    assert agent.model.requests == []
    assert seen == [0]
    assert len(result.steps) == 0


def test_a_stop_at_after_llm_cancels_the_calls_of_that_reply():
    @hook(AFTER_LLM)
    def halt(ctx, payload):
        return HookResult.stop("enough")

    seen = []

    @observer(AFTER_TOOL)
    def after(ctx, result):
        seen.append(result.outcome)

    result = scripted_agent([[ADD, ADD]], tools=[add], hooks=[halt, after]).run("x")
    assert result.status == "stopped"
    assert seen == ["cancelled", "cancelled"]
    assert roles(result) == ["user", "assistant", "tool", "tool"]


def test_a_stop_during_judging_keeps_the_outcomes_that_are_known():
    @hook(BEFORE_TOOL)
    def block_first_then_stop(ctx, payload):
        if payload.arguments.get("a") == 1:
            return HookResult.block("no")
        return HookResult.stop("enough")

    result = scripted_agent([[ADD, call("add", a=2, b=2)]], tools=[add], hooks=[block_first_then_stop]).run("x")
    assert result.steps[0].outcomes == ("blocked", "cancelled")
    assert result.status == "stopped"


def test_the_strongest_signal_gives_the_stop_reason():
    @hook(AFTER_STEP)
    def both(ctx, payload):
        return HookResult.stop("weak", kind="finish_reason")

    @hook(AFTER_STEP)
    def strong(ctx, payload):
        return HookResult.stop("strong", kind="cost_limit")

    result = scripted_agent([reply("x")], hooks=[both, strong]).run("x")
    assert (result.status, result.stop.message) == ("stopped", "strong")


def test_finish_reason_counts_as_completed():
    @hook(AFTER_STEP)
    def finish(ctx, payload):
        return HookResult.stop("finished", kind="finish_reason")

    result = scripted_agent([ADD], tools=[add], hooks=[finish]).run("x")
    assert (result.status, result.stop.kind) == ("completed", "finish_reason")


def test_on_stop_sees_the_signals_and_keep_going_continues_with_a_note():
    seen = []

    @hook(ON_STOP)
    def once_more(ctx, payload):
        seen.append([signal.kind for signal in payload.signals])
        return HookResult.keep_going("Check again.") if len(seen) == 1 else None

    agent = scripted_agent([reply("first"), reply("second")], hooks=[once_more])
    result = agent.run("x")
    assert seen == [["completed"], ["completed"]]
    assert result.reply == "second"
    assert [m.content for m in result.messages] == ["x", "first", "Check again.", "second"]


def test_keep_going_is_honoured_at_most_eight_times():
    @hook(ON_STOP)
    def forever(ctx, payload):
        return HookResult.keep_going()

    agent = scripted_agent([reply(str(i)) for i in range(10)], hooks=[forever])
    result = agent.run("x")
    assert (result.status, result.reply) == ("completed", "8")


def test_keep_going_cannot_clear_a_limit():
    @hook(ON_STOP)
    def forever(ctx, payload):
        return HookResult.keep_going()

    result = scripted_agent([ADD] * 5, tools=[add], hooks=[forever], limits=Limits(steps=2)).run("x")
    assert (result.status, result.stop.kind, len(result.steps)) == ("stopped", "steps_limit", 2)


def test_on_stop_does_not_fire_for_an_end_or_a_failure():
    seen = []

    @hook(ON_STOP)
    def watch(ctx, payload):
        seen.append(payload)

    @hook(BEFORE_STEP)
    def end(ctx, payload):
        return HookResult.end("bye")

    scripted_agent([reply("x")], hooks=[watch, end]).run("x")
    with pytest.raises(RunFailedError):
        scripted_agent([ValueError("down")], hooks=[watch]).run("x")
    assert seen == []


# Limits


def test_an_agent_without_limits_stops_after_twenty_steps():
    agent = Agent("a", llm=ScriptedModel([ADD], loop=True), tools=[add])
    result = agent.run("x")
    assert (result.status, result.stop.kind) == ("stopped", "steps_limit")
    assert result.stop.message == "Step limit reached: 20/20"
    assert len(result.steps) == 20


def test_completing_at_the_very_last_allowed_step_is_completing():
    assert scripted_agent([ADD, reply("x")], tools=[add], limits=Limits(steps=2)).run("x").status == "completed"


@pytest.mark.parametrize(
    ("limits", "kind"),
    [
        ({"tokens": 5}, "token_limit"),
        ({"cost": 0.5}, "cost_limit"),
        ({"seconds": 0}, "time_limit"),
        ({"steps": 1}, "steps_limit"),
    ],
)
def test_limits_of_the_conversations_budget_stop_the_run(limits, kind):
    turns = [reply("", tool_calls=(ADD.replace(id=f"c{i}"),), cost=0.3) for i in range(9)]
    ctx = AgentContext(budget=Budget(Limits(**limits)))
    result = scripted_agent(turns, tools=[add]).run("some words in a task", ctx=ctx)
    assert (result.status, result.stop.kind) == ("stopped", kind)


def test_tool_calls_never_exceed_their_limit_even_within_a_batch():
    ran = []

    @tool
    def note(n: int) -> str:
        """Note."""
        ran.append(n)
        return "ok"

    ctx = AgentContext(budget=Budget(Limits(tool_calls=2)))
    batch = [call("note", n=i) for i in range(4)]
    result = scripted_agent([batch, reply("x")], tools=[note]).run("x", ctx=ctx)
    assert sorted(ran) == [0, 1]
    assert result.steps[0].outcomes == ("ok", "ok", "cancelled", "cancelled")
    assert (result.status, result.stop.message) == ("stopped", "Tool call limit reached: 2/2")


def test_the_budget_of_a_conversation_counts_all_its_runs():
    ctx = AgentContext()
    agent = scripted_agent([reply("a b"), reply("c")])
    first = agent.run("one two three", ctx=ctx)
    second = agent.run("four", ctx=ctx)
    assert ctx.budget.tokens == first.usage.total_tokens + second.usage.total_tokens
    assert ctx.budget.steps == 0


def test_an_unknown_price_makes_the_cost_unknown():
    class Priceless(ScriptedModel):
        def _response(self, turn, number, request):
            return super()._response(turn, number, request).replace(cost=None)

    assert Agent("a", llm=Priceless([reply("x")])).run("x").cost is None


# Failure


def test_a_failed_run_raises_with_its_result_and_the_cause():
    @hook(BEFORE_LLM)
    def broken(ctx, payload):
        raise KeyError("oops")

    with pytest.raises(RunFailedError, match="broken") as caught:
        scripted_agent([reply("x")], hooks=[broken]).run("x")
    result = caught.value.result
    assert result.status == "failed"
    assert result.stop is None
    assert isinstance(caught.value.__cause__.__cause__, KeyError)
    assert [(e.where, e.source, e.fatal) for e in result.errors] == [("hook", "broken", True)]


def test_a_closed_failure_reaches_on_error_once():
    seen = []

    @observer(ON_ERROR)
    def watch(ctx, failure):
        seen.append((failure.where, failure.fatal, failure.errors[0].source))

    @hook(BEFORE_STEP)
    def broken(ctx, payload):
        raise RuntimeError("x")

    with pytest.raises(RunFailedError):
        scripted_agent([reply("x")], hooks=[watch, broken]).run("x")
    assert seen == [("hook", True, "broken")]


def test_an_open_failure_reaches_on_error_as_not_fatal_and_the_run_continues():
    seen = []

    @observer(ON_ERROR)
    def watch(ctx, failure):
        seen.append((failure.where, failure.fatal))

    @observer(AFTER_STEP)
    def broken(ctx, payload):
        raise RuntimeError("x")

    result = scripted_agent([reply("x")], hooks=[watch, broken]).run("x")
    assert result.status == "completed"
    assert seen == [("hook", False)]
    assert [e.fatal for e in result.errors] == [False]


def test_a_failure_inside_on_error_does_not_fire_it_again():
    seen = []

    @hook(ON_ERROR)
    def broken(ctx, failure):
        seen.append(failure.where)
        raise RuntimeError("again")

    with pytest.raises(RunFailedError, match="down"):
        scripted_agent([ValueError("down")], hooks=[broken]).run("x")
    assert seen == ["model"]


def test_a_closed_failure_at_on_error_fails_a_run_that_would_have_recovered():
    @tool
    def bad() -> str:
        """Fail."""
        raise ValueError("tool")

    @hook(ON_ERROR)
    def broken(ctx, failure):
        raise RuntimeError("handler")

    with pytest.raises(RunFailedError, match="handler"):
        scripted_agent([call("bad"), reply("fine")], tools=[bad], hooks=[broken]).run("x")


def test_verbs_at_on_error_are_for_model_failures_only():
    @tool
    def bad() -> str:
        """Fail."""
        raise ValueError("tool")

    @hook(ON_ERROR)
    def retry(ctx, failure):
        return HookResult.retry()

    with pytest.raises(RunFailedError, match="only for model failures"):
        scripted_agent([call("bad"), reply("fine")], tools=[bad], hooks=[retry]).run("x")


def test_on_run_end_failures_do_not_skip_later_hooks_and_fail_the_run_after_all():
    seen = []

    @hook(ON_RUN_END, priority=1)
    def broken(ctx, result):
        raise RuntimeError("disk full")

    @hook(ON_RUN_END)
    def later(ctx, result):
        seen.append(result.status)

    with pytest.raises(RunFailedError, match="disk full") as caught:
        scripted_agent([reply("x")], hooks=[broken, later]).run("x")
    assert seen == ["completed"]
    assert caught.value.result.status == "failed"
    assert caught.value.result.reply == "x"


def test_on_run_end_may_change_the_reply_and_never_the_status():
    @hook(ON_RUN_END)
    def sign(ctx, result):
        return result.replace(reply=result.reply + " -- bot")

    @hook(ON_RUN_END)
    def cheat(ctx, result):
        return result.replace(status="ended")

    assert scripted_agent([reply("x")], hooks=[sign]).run("x").reply == "x -- bot"
    with pytest.raises(RunFailedError, match="may not change status"):
        scripted_agent([reply("x")], hooks=[cheat]).run("x")


def test_recovered_tool_errors_do_not_make_a_run_failed():
    @tool
    def bad() -> str:
        """Fail."""
        raise ValueError("tool down")

    agent = scripted_agent([call("bad"), reply("sorry")], tools=[bad])
    result = agent.run("x")
    assert result.status == "completed"
    assert [(e.where, e.type, e.source) for e in result.errors] == [("tool", "ValueError", "bad")]
    assert agent.model.requests[1].messages[-1].content == "ValueError: tool down"


# State


def test_state_changes_apply_before_the_next_hook_and_reach_the_next_request():
    seen = []

    @hook(BEFORE_STEP, priority=1)
    def tag(ctx, payload):
        state = ctx.state.with_metadata(step=payload.index).with_system_prompt("new prompt")
        return HookResult.cont(state=state)

    @hook(BEFORE_STEP)
    def look(ctx, payload):
        seen.append(ctx.state.metadata["step"])

    agent = scripted_agent([reply("x")], instructions="old", hooks=[tag, look])
    agent.run("x", metadata={"user": "u"})
    assert seen == [0]
    assert agent.model.requests[0].messages[0].content == "new prompt"


def test_every_verb_carries_state():
    @guard(BEFORE_TOOL)
    def block(ctx, payload):
        return HookResult.block("no", state=ctx.state.with_metadata(blocked=True))

    session = Session("s")
    scripted_agent([ADD, reply("x")], tools=[add], hooks=[block]).run("x", session=session)
    assert session.metadata == {"blocked": True}


@pytest.mark.parametrize("field", ["steps", "usage", "signals", "errors"])
def test_what_belongs_to_the_loop_cannot_be_changed(field):
    values = {"steps": [], "usage": {"input_tokens": 9}, "signals": [{"kind": "unknown"}], "errors": []}
    values["errors"] = [{"where": "tool", "type": "x", "message": "y"}]

    @hook(AFTER_STEP)
    def meddle(ctx, payload):
        return HookResult.cont(state=ctx.state.replace({field: values[field]}))

    with pytest.raises(RunFailedError, match=f"may not change {field}"):
        scripted_agent([reply("x")], hooks=[meddle]).run("x")


def test_messages_added_while_calls_are_open_follow_the_results():
    @hook(BEFORE_TOOL)
    def remark(ctx, payload):
        return HookResult.cont(state=ctx.state.with_messages(Message("user", f"about {payload.id}")))

    result = scripted_agent([[ADD, ADD], reply("x")], tools=[add], hooks=[remark]).run("x")
    assert roles(result) == ["user", "assistant", "tool", "tool", "user", "user", "assistant"]
    assert [m.content for m in result.messages[4:6]] == ["about call_0_0", "about call_0_1"]


def test_removing_one_half_of_a_call_and_its_result_raises():
    @hook(AFTER_STEP)
    def cut(ctx, step):
        if step.index == 0:
            return HookResult.cont(state=ctx.state.replace(messages=list(ctx.state.messages)[:-1]))

    with pytest.raises(RunFailedError, match="removed together"):
        scripted_agent([ADD, reply("x")], tools=[add], hooks=[cut]).run("x")


def test_hook_state_is_fresh_for_each_run_and_own_to_each_instance():
    class Counter:
        points = frozenset({ON_RUN_START, BEFORE_LLM})
        counts = ()

        def __call__(self, point, ctx, payload):
            if point == ON_RUN_START:
                assert id(self) not in ctx.hook_state
                ctx.hook_state[id(self)] = 0
            ctx.hook_state[id(self)] += 1
            Counter.counts += (ctx.hook_state[id(self)],)

    ctx = AgentContext()
    agent = scripted_agent([reply("a"), reply("b")], hooks=[Counter(), Counter()])
    agent.run("x", ctx=ctx)
    agent.run("y", ctx=ctx)
    assert Counter.counts == (1, 1, 2, 2) * 2
    assert ctx.hook_state == {}


def test_own_state_is_fresh_for_each_run_also_for_nested_runs():
    class CountRequests:
        points = frozenset({BEFORE_LLM})

        def __init__(self):
            self.counts = []

        def __call__(self, point, ctx, request):
            own = ctx.own_state(self, list)
            own.append(request)
            self.counts.append((ctx.agent_name, len(own)))

    @tool
    async def ask(ctx) -> str:
        return (await scripted_agent([reply("a")], name="inner").arun("x")).reply

    one, two = CountRequests(), CountRequests()
    agent = scripted_agent([call("ask"), reply("x")] * 2, name="outer", tools=[ask], hooks=[one, two])
    for _ in range(2):
        agent.run("x")
    assert one.counts == two.counts == [("outer", 1), ("inner", 1), ("outer", 2)] * 2


def test_scratch_belongs_to_the_conversation():
    @hook(ON_RUN_START)
    def count(ctx, payload):
        ctx.scratch["runs"] = ctx.scratch.get("runs", 0) + 1

    ctx = AgentContext()
    agent = scripted_agent([reply("a"), reply("b")], hooks=[count])
    agent.run("x", ctx=ctx)
    agent.run("y", ctx=ctx)
    assert ctx.scratch == {"runs": 2}


# Sessions


def test_runs_of_one_session_share_a_transcript_and_session_start_fires_once():
    started = []

    @observer(SESSION_START)
    def start(ctx, payload):
        started.append((payload.session_id, payload.platform))

    session = Session("s1", platform="console")
    agent = scripted_agent([reply("one"), reply("two")], hooks=[start])
    agent.run("a", session=session)
    result = agent.run("b", session=session)
    assert started == [("s1", "console")]
    assert [m.content for m in agent.model.requests[1].messages] == ["a", "one", "b"]
    assert [m.content for m in result.messages] == ["b", "two"]
    assert [m.content for m in session.messages] == ["a", "one", "b", "two"]


def test_runs_share_a_conversation_only_with_the_same_context():
    agent = scripted_agent([reply(str(i)) for i in range(4)])
    ctx = AgentContext()
    agent.run("a", ctx=ctx)
    agent.run("b", ctx=ctx)
    agent.run("c")
    assert [len(request.messages) for request in agent.model.requests] == [1, 3, 1]


async def test_two_runs_at_once_on_one_session_lose_nothing():
    import asyncio

    session = Session("s")
    agent = Agent("a", llm=ScriptedModel([reply("r")], loop=True, delay=0.01))
    await asyncio.gather(*(agent.arun(f"m{i}", session=session) for i in range(5)))
    contents = [m.content for m in session.messages]
    assert sorted(contents[::2]) == [f"m{i}" for i in range(5)]
    assert contents[1::2] == ["r"] * 5


def test_call_ids_repeated_in_later_runs_of_a_session_are_replaced():
    same = ADD.replace(id="call_1")
    agent = scripted_agent([same, same, reply("x"), same, reply("y")], tools=[add])
    session = Session("s")
    agent.run("a", session=session)
    agent.run("b", session=session)
    ids = [c.id for m in session.messages for c in m.tool_calls]
    assert len(set(ids)) == 3
    assert ids[0] == "call_1"
    assert [m.call_id for m in session.messages if m.role == "tool"] == ids


# Interceptors


def test_pass_through_is_an_agent_without_hooks_and_arguments_are_still_validated():
    agent = scripted_agent([call("add", a="x", b=1), ADD, reply("3")], tools=[add], hooks=[PassThrough()])
    assert len(agent.hooks) == 0
    assert [step.outcomes for step in agent.run("x").steps] == [("error",), ("ok",), ()]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_users_own_interceptor_sees_every_point(is_async):
    class Recorder(PassThrough):
        def __init__(self):
            self.seen = []

        def intercept(self, point, payload, ctx):
            self.seen.append(str(point))
            return asyncio.sleep(0) if is_async else None

    recorder = Recorder()
    result = scripted_agent([ADD, reply("3")], tools=[add], hooks=[recorder]).run("x")
    assert result.reply == "3"
    assert recorder.seen[:3] == ["session_start", "on_run_start", "before_prompt_build"]
    assert recorder.seen.count("on_progress") == 2
    assert recorder.seen[-1] == "on_run_end"


def test_an_interceptor_that_raises_fails_the_run():
    class Broken(PassThrough):
        async def intercept(self, point, payload, ctx):
            if point == BEFORE_LLM:
                raise OSError("gone")

    with pytest.raises(RunFailedError, match="hook 'Broken' failed at before_llm: OSError: gone"):
        scripted_agent([reply("3")], hooks=[Broken()]).run("x")


# Layers


def test_layers_fire_agent_then_conversation_then_run():
    seen = []

    def named(name, priority=0):
        @hook(BEFORE_STEP, name=name, priority=priority)
        def h(ctx, payload):
            seen.append(name)

        return h

    ctx = AgentContext(hooks=[named("conversation", priority=50)])
    agent = scripted_agent([reply("x")], hooks=[named("agent")])
    agent.run("x", ctx=ctx, hooks=[named("run", priority=100)])
    assert seen == ["agent", "conversation", "run"]


def test_hooks_registered_during_a_run_count_from_the_next_fire_on():
    seen = []

    @hook(AFTER_LLM)
    def late(ctx, payload):
        seen.append(payload.hop)

    @hook(BEFORE_LLM)
    def register(ctx, payload):
        if payload.hop == 0:
            ctx.hooks.register(late)

    scripted_agent([ADD, reply("x")], tools=[add], hooks=[register]).run("x")
    assert seen == [0, 1]


@pytest.mark.parametrize(("allowed", "expected"), [(None, ["own", "a", "b"]), ([], ["own"]), (["b"], ["own", "b"])])
def test_allowed_plugins_filter_every_fire_of_a_run(allowed, expected):
    seen = []

    def of(plugin):
        @hook(BEFORE_STEP, name=plugin or "own", plugin=plugin)
        def h(ctx, payload):
            seen.append(plugin or "own")

        return h

    agent = scripted_agent([reply("x")], hooks=[of(None), of("a"), of("b")])
    agent.run("x", allowed_plugins=allowed)
    assert seen == expected


# What the end makes of the state


@pytest.mark.parametrize("change", ["metadata", "messages", "both"])
def test_changes_of_hooks_at_the_end_are_saved_before_observers_are_called(change):
    session, seen = Session("s", [Message("user", "old")], {"n": 0}), []

    @hook(ON_RUN_END, priority=2)
    def first(ctx, result):
        state = ctx.state
        if change != "metadata":
            state = state.replace(messages=[m.replace(content=m.content.upper()) for m in state.messages])
        return HookResult.cont(state=state if change == "messages" else state.replace(metadata={"n": 1}))

    @hook(ON_RUN_END, priority=1)
    def second(ctx, result):
        if change == "both":
            return HookResult.cont(state=ctx.state.with_messages(Message("user", "more")))
        return None

    @observer(ON_RUN_END)
    def look(ctx, result):
        seen.append(([m.content for m in session.messages], dict(session.metadata)))

    result = scripted_agent([reply("yes")], hooks=[first, second, look]).run("go", session=session)
    expected = {
        "metadata": (["old", "go", "yes"], {"n": 1}),
        "messages": (["OLD", "GO", "YES"], {"n": 0}),
        "both": (["OLD", "GO", "YES", "more"], {"n": 1}),
    }[change]
    assert seen == [expected]
    assert ([m.content for m in session.messages], session.metadata) == expected
    assert [m.content for m in result.messages] == [c for c in expected[0] if c != "old"]


def test_a_refused_model_call_at_on_stop_stops_the_run_once():
    seen = []

    @hook(ON_STOP)
    async def judge(ctx, stopping):
        seen.append([signal.kind for signal in stopping.signals])
        await ctx.llm.complete("was that all?")

    agent = scripted_agent([ADD, reply("never")], tools=[add], hooks=[judge])
    result = agent.run("x", ctx=AgentContext(budget=Budget(Limits(tokens=1))))
    assert (result.status, result.stop.kind) == ("stopped", "token_limit")
    assert seen == [["token_limit"]]
    assert len(result.steps) == 1


def test_keep_going_does_not_continue_if_a_limit_is_reached_too():
    @hook(AFTER_LLM)
    def stop(ctx, answer):
        return HookResult.stop("enough", kind="token_limit")

    @hook(ON_STOP)
    def go_on(ctx, stopping):
        assert [signal.kind for signal in stopping.signals] == ["token_limit", "completed"]
        return HookResult.keep_going("more")

    result = scripted_agent([reply("a"), reply("b")], hooks=[stop, go_on]).run("x")
    assert (result.status, result.stop.kind, len(result.steps)) == ("stopped", "token_limit", 1)
    assert roles(result) == ["user", "assistant"]


def test_the_note_of_keep_going_is_a_user_message():
    asked = []

    @hook(ON_STOP)
    def go_on(ctx, stopping):
        asked.append(1)
        return HookResult.keep_going("more") if len(asked) == 1 else None

    result = scripted_agent([reply("a"), reply("b")], hooks=[go_on]).run("x")
    assert [(m.role, m.content) for m in result.messages[2:]] == [("user", "more"), ("assistant", "b")]


def test_a_stop_before_the_first_step_prevents_the_model_call():
    for point in (SESSION_START, BEFORE_PROMPT_BUILD):

        @observer(point)
        async def ask(ctx, payload):
            spent.charge(Usage(5, 5), 0.0)
            await ctx.llm.complete("may I?")

        spent = Budget(Limits(tokens=3))
        agent = scripted_agent([reply("never")], hooks=[ask])
        result = agent.run("x", ctx=AgentContext(budget=spent))
        assert (result.status, result.stop.kind) == ("stopped", "token_limit"), point
        assert agent.model.requests == []
        assert roles(result) == ["user"]


async def test_a_cancellation_that_on_run_end_survived_does_not_reach_what_its_caller_does_next(monkeypatch):
    monkeypatch.setattr("hookline._run.cancellation.GRACE", 0.02)

    @hook(ON_RUN_END)
    def cancel(ctx, result):
        ctx.interrupt.cancel("too late")

    result = await scripted_agent([reply("x")], hooks=[cancel]).arun("x")
    await asyncio.sleep(0.05)
    assert result.status == "completed"
    assert asyncio.current_task().cancelling() == 0


def test_the_events_of_a_blocking_run_in_a_tool_come_in_the_loop_of_the_outer_run():
    threads = set()
    child = scripted_agent([reply("inner")], name="child")

    @tool
    def ask(ctx) -> str:
        """Ask another agent, and block."""
        return child.run("x", ctx=ctx).reply

    log = []

    def sink(event):
        threads.add(threading.get_ident())
        log.append(event)

    result = scripted_agent([call("ask"), reply("done")], tools=[ask], sinks=[sink]).run("x")
    assert result.messages[2].content == "inner"
    assert any(isinstance(event, SubagentEvent) for event in log)
    assert len(threads) == 1


def test_a_closed_failure_at_the_end_fails_the_run_and_keeps_its_reply():
    @hook(ON_RUN_END)
    def fail(ctx, result):
        raise ValueError("no room")

    with pytest.raises(RunFailedError, match="no room") as failed:
        scripted_agent([reply("x")], hooks=[fail]).run("x")
    assert failed.value.result.status == "failed"
    assert isinstance(failed.value.__cause__, HookError)
    assert (failed.value.result.reply, failed.value.result.output) == ("x", "x")
    assert [(error.source, error.fatal) for error in failed.value.result.errors] == [("fail", True)]


def test_observers_at_the_end_see_the_reply_that_a_hook_changed_as_the_output_too():
    seen = []

    @hook(ON_RUN_END)
    def change(ctx, result):
        return result.replace(reply="y")

    @observer(ON_RUN_END)
    def watch(ctx, result):
        seen.append((result.reply, result.output))

    result = scripted_agent([reply("x")], hooks=[change, watch]).run("x")
    assert [*seen, (result.reply, result.output)] == [("y", "y"), ("y", "y")]


def test_an_interceptor_may_change_of_a_result_what_a_hook_may():
    class Judge(PassThrough):
        def __init__(self, **changes):
            self.changes = changes

        def intercept(self, point, payload, ctx):
            return msgspec.structs.replace(payload, **self.changes) if point is ON_RUN_END else None

    assert scripted_agent([reply("x")], hooks=[Judge(reply="y")]).run("x").reply == "y"
    with pytest.raises(RunFailedError, match="'Judge' at on_run_end: AgentResult: a hook may not change status"):
        scripted_agent([reply("x")], hooks=[Judge(status="failed")]).run("x")


def test_a_step_without_a_model_call_is_empty_and_not_in_the_result():
    steps = []

    @hook(BEFORE_LLM)
    def stop(ctx, request):
        return HookResult.stop("enough")

    @observer(AFTER_STEP)
    def watch(ctx, step):
        steps.append(msgspec.structs.replace(step, duration=0.0))

    result = scripted_agent([reply("never")], hooks=[stop, watch]).run("x")
    assert steps == [Step(0)]
    assert (result.steps, result.status) == ((), "stopped")


def test_the_description_of_a_tool_may_depend_on_the_run():
    def offer(ctx):
        return ToolSpec("add", f"Add for {ctx.deps}.") if ctx.deps else None

    def summed(a: int, b: int) -> int:
        return a + b

    agent = scripted_agent([reply("x")] * 2, tools=[Tool(summed, name="add", description="Add.", offer=offer)])
    agent.run("x", deps="ann")
    agent.run("x")
    assert [request.tools for request in agent.model.requests] == [(ToolSpec("add", "Add for ann."),), ()]


def test_a_failing_offer_of_a_tool_fails_the_run_with_an_error_of_the_tool():
    def offer(ctx):
        raise KeyError("gone")

    broken = Tool(lambda: "x", name="broken", description="Break.", offer=offer)
    with pytest.raises(RunFailedError, match="broken") as failed:
        scripted_agent([reply("x")], tools=[broken]).run("x")
    (error,) = failed.value.result.errors
    assert (error.where, error.type, error.fatal) == ("tool", "HooklineError", True)
    assert error.message == str(failed.value)


# What the result says


def test_an_end_during_the_model_call_of_a_hook_names_the_hook_that_ended():
    @guard(BEFORE_TOOL)
    async def judge(ctx, request):
        await ctx.llm.complete("fine?", purpose="judge")

    @hook(BEFORE_LLM, name="rail")
    def rail(ctx, request):
        return HookResult.end("no questions", reason="rule 7") if request.purpose == "judge" else None

    result = scripted_agent([ADD], tools=[add], hooks=[judge, rail]).run("x")
    assert (result.status, result.reply, result.hook_ended) == ("ended", "no questions", "rule 7")
    assert result.messages[-1] == Message("assistant", "no questions", hook="rail")


def test_the_reply_of_a_run_that_only_called_tools_is_the_last_text_of_the_model():
    result = scripted_agent([["first", ADD], ["second", ADD], reply("x")], tools=[add], limits=Limits(steps=2)).run(
        "go"
    )
    assert (result.status, result.reply) == ("stopped", "second")
    with pytest.raises(RunFailedError) as failed:
        scripted_agent([ValueError("no")]).run("go")
    assert failed.value.result.reply == ""


def test_an_empty_reply_stops_the_run_with_unknown():
    result = scripted_agent([reply("")]).run("go")
    assert (result.status, result.stop.kind, result.reply) == ("stopped", "unknown", "")
    assert "neither text nor tool calls" in result.stop.message


def test_a_stop_that_was_recorded_is_no_stop_of_a_run_that_failed_or_was_ended():
    @hook(BEFORE_LLM, priority=1)
    def stop(ctx, request):
        return HookResult.stop("enough")

    @hook(BEFORE_LLM)
    def fail(ctx, request):
        raise ValueError("no")

    @hook(BEFORE_LLM)
    def end(ctx, request):
        return HookResult.end("over")

    with pytest.raises(RunFailedError) as failed:
        scripted_agent([reply("x")], hooks=[stop, fail]).run("x")
    assert failed.value.result.stop is None
    result = scripted_agent([reply("x")], hooks=[stop, end]).run("x")
    assert (result.status, result.stop) == ("ended", None)


def test_a_result_contains_only_the_messages_of_its_run_even_if_the_history_was_rewritten():
    session = Session("s", [Message("user", "a"), Message("assistant", "b")])

    @hook(BEFORE_LLM)
    def shorten(ctx, request):
        if len(ctx.state.messages) > 2:
            return HookResult.cont(state=ctx.state.replace(messages=ctx.state.messages[1:]))
        return None

    result = scripted_agent([reply("x")], hooks=[shorten]).run("go", session=session)
    assert [m.content for m in result.messages] == ["go", "x"]
    assert [m.content for m in session.messages] == ["b", "go", "x"]


def test_open_failures_at_the_end_are_in_the_errors():
    seen = []

    @hook(ON_RUN_END, on_failure="open", name="shaky")
    def shaky(ctx, result):
        raise ValueError("no")

    @hook(BEFORE_TOOL, name="wall")
    def wall(ctx, request):
        return HookResult.block("no")

    @observer(ON_RUN_END)
    def watch(ctx, result):
        seen.append([error.source for error in result.errors])

    result = scripted_agent([ADD, reply("x")], tools=[add], hooks=[shaky, wall, watch]).run("x")
    assert result.status == "completed"
    assert [error.source for error in result.errors] == ["wall", "shaky"]
    assert seen == [["wall"]]


def test_changes_of_the_result_are_kept_after_a_refused_model_call_at_the_end():
    @hook(ON_RUN_END, priority=1)
    def reword(ctx, result):
        return result.replace(reply="better")

    @hook(ON_RUN_END)
    async def ask(ctx, result):
        await ctx.llm.complete("was it good?")

    agent = scripted_agent([ADD, reply("x")], tools=[add], hooks=[reword, ask])
    result = agent.run("x", ctx=AgentContext(budget=Budget(Limits(tokens=1))))
    assert (result.status, result.reply) == ("stopped", "better")


def test_messages_that_a_hook_sets_on_the_result_are_kept_when_another_changes_the_state():
    mine = (Message("assistant", "in short"),)

    @hook(ON_RUN_END, priority=1)
    def shorten(ctx, result):
        return result.replace(messages=mine)

    @hook(ON_RUN_END)
    def note(ctx, result):
        return HookResult.cont(state=ctx.state.with_messages(Message("user", "note")))

    session = Session("s")
    result = scripted_agent([reply("x")], hooks=[shorten, note]).run("go", session=session)
    assert result.messages == mine
    assert [m.content for m in session.messages] == ["go", "x", "note"]


async def test_steering_a_run_that_never_started_its_task_is_not_recorded():
    session = Session("s")

    @hook(ON_RUN_START)
    def end(ctx, start):
        run.steer("hello?")
        return HookResult.end("closed")

    run = scripted_agent([reply("x")], hooks=[end]).start("go", session=session)
    assert (await run.result()).status == "ended"
    assert session.messages == ()
