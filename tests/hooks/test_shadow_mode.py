"""shadow: a hook that reports its decisions and changes nothing."""

import asyncio
import logging
import time

import pytest

from hookline import (
    AFTER_LLM,
    APPROVAL_REQUESTED,
    BEFORE_LLM,
    BEFORE_PROMPT_BUILD,
    BEFORE_TOOL,
    ON_RUN_END,
    ON_RUN_START,
    AgentContext,
    HookRegistry,
    HookResult,
    Message,
    RegistrationError,
    call,
    guard,
    hook,
    observer,
    reply,
    tool,
)
from hookline.events import HookExecuted, ShadowDecided
from hookline.hooks import Strict, shadow
from hookline.payloads import AgentState
from hookline.testing import EventLog, fire_hook, sample, scripted_agent


@tool
def add(a: int, b: int) -> str:
    """Add."""
    return str(a + b)


def run(*hooks, turns=None, log=None, **options):
    agent = scripted_agent(turns or [[call("add", a=1, b=2)], reply("ok")], tools=[add], hooks=hooks)
    return agent.run("go", sinks=[log] if log is not None else (), **options)


def reported(shadowed):
    return [(d.point, d.verb, d.reason, d.text) for d in shadowed.decisions]


def deciding(result, point=BEFORE_TOOL, **options):
    @hook(point, **options)
    def decider(ctx, payload):
        return result(payload) if callable(result) else result

    return decider


@pytest.mark.parametrize(
    ("point", "result", "verb", "text"),
    [
        (BEFORE_TOOL, HookResult.block("No.", reason="why"), "block", "No."),
        (BEFORE_TOOL, HookResult.ask("Sure?", reason="why"), "ask", "Sure?"),
        (BEFORE_TOOL, HookResult.answer({"x": 1}, reason="why"), "answer", "{'x': 1}"),
        (BEFORE_TOOL, HookResult.end("Bye.", reason="why"), "end", "Bye."),
        (BEFORE_TOOL, HookResult.stop("Enough.", reason="why"), "stop", "Enough."),
        (BEFORE_TOOL, HookResult.replace({"arguments": {"a": 5, "b": 5}}, reason="why"), "replace", "arguments: {'"),
        (AFTER_LLM, HookResult.retry("Again.", reason="why"), "retry", "Again."),
        (BEFORE_LLM, HookResult.answer("Mine.", reason="why"), "answer", "Mine."),
        (ON_RUN_START, HookResult.replace({"task": "other"}, reason="why"), "replace", "task: other"),
        (BEFORE_PROMPT_BUILD, HookResult.merge(append_system="X", reason="why"), "merge", "{'append_system': 'X'}"),
    ],
)
def test_every_verb_is_reported_and_changes_nothing(point, result, verb, text):
    plain, log = run(), EventLog()
    shadowed = shadow(deciding(result, point))
    under = run(shadowed, log=log)
    assert (under.status, under.reply, under.tool_calls) == (plain.status, plain.reply, plain.tool_calls)
    assert [m.content for m in under.messages] == [m.content for m in plain.messages]
    event = log.of(ShadowDecided)[0]
    assert (event.point, event.hook, event.verb, event.reason) == (point, "decider", verb, "why")
    assert event.text.startswith(text)
    assert event.run_id == under.ids.run_id
    assert shadowed.decisions[0].replace(seq=event.seq, at=event.at) == event
    assert not [e for e in log.of(HookExecuted) if e.verb != "cont"]


def test_a_claim_is_reported_and_not_made():
    @guard(BEFORE_TOOL)
    def careful(ctx, request):
        return HookResult.ask("Really?")

    shadowed = shadow(deciding(HookResult.approve(by="me"), APPROVAL_REQUESTED))
    assert run(careful, shadowed).steps[0].outcomes == ("blocked",)
    assert reported(shadowed)[0][:2] == ("approval_requested", "claim")
    passing = shadow(deciding({"handled": False}, "inbound_claim"))
    assert not fire_hook(passing, "inbound_claim").handled
    assert passing.decisions == ()


def test_a_hook_that_returns_none_is_not_reported():
    for result in (None, HookResult.cont(), HookResult.cont(reason="fine")):
        shadowed = shadow(deciding(result))
        run(shadowed)
        assert shadowed.decisions == ()


def test_state_is_reported_and_not_applied():
    @hook(BEFORE_LLM)
    def change(ctx, request):
        return HookResult.cont(state=ctx.state.with_metadata(x=1))

    @hook(AFTER_LLM)
    async def later(ctx, got):
        if got.purpose == "step":
            await ctx.llm.complete("hm?")
            return HookResult.cont(state=ctx.state.with_messages(Message("user", "new")))

    @hook(AFTER_LLM)
    async def earlier(ctx, got):
        state = ctx.state
        if got.purpose == "step":
            await ctx.llm.complete("hm?")
            return HookResult.cont(state=state.with_metadata(x=1))

    first, second, third, seen = shadow(change), shadow(later), shadow(earlier), []

    @observer(ON_RUN_END)
    def look(ctx, result):
        seen.append((dict(ctx.state.metadata), len(ctx.state.messages)))

    run(first, second, third, look, turns=["ok", "hm", "hm"])
    assert seen == [({}, 2)]
    assert reported(first)[0] == ("before_llm", "cont", "", "changes the state")
    assert reported(second) == reported(third) == [("after_llm", "cont", "", "changes the state")]


@pytest.mark.parametrize(
    ("point", "result"),
    [
        (BEFORE_TOOL, 3),
        (BEFORE_TOOL, "text"),
        (BEFORE_TOOL, HookResult.keep_going("x")),
        (BEFORE_TOOL, HookResult.replace({"nothing": 1})),
        (BEFORE_TOOL, HookResult.replace({"id": "x"})),
        (BEFORE_PROMPT_BUILD, {"nothing": "x"}),
        (APPROVAL_REQUESTED, HookResult.claim(approve=True, deny="x")),
    ],
)
def test_an_invalid_result_is_reported_as_a_failure(point, result):
    shadowed = shadow(deciding(result, point))
    fire_hook(shadowed, point)
    (decision,) = shadowed.decisions
    assert (decision.verb, decision.reason) == ("failed", "would have failed closed")
    assert "InvalidResultError" in decision.text


def test_a_state_that_would_not_be_accepted_is_a_failure():
    @hook(BEFORE_LLM)
    def change(ctx, request):
        return HookResult.cont(
            state=ctx.state.replace(signals=()).replace(errors=({"where": "hook", "type": "x", "message": ""},))
        )

    shadowed = shadow(change)
    run(shadowed, turns=["ok"])
    assert reported(shadowed)[0][1] == "failed"
    merging = shadow(deciding(lambda p: HookResult.merge(state=AgentContext().state), BEFORE_PROMPT_BUILD))
    run(merging, turns=["ok"])
    assert "state= is only for hooks that decide" in reported(merging)[0][3]


@pytest.mark.parametrize(
    ("on_failure", "words"),
    [("closed", "failed closed"), ("block", "failed and blocked the call"), ("open", "failed open")],
)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_failure_is_reported_and_stops_nothing(on_failure, words, is_async, caplog):
    def broken(ctx, request):
        raise ValueError("broken")

    async def broken_later(ctx, request):
        await asyncio.sleep(0)
        raise ValueError("broken")

    shadowed = shadow(guard(BEFORE_TOOL, on_failure=on_failure)(broken_later if is_async else broken))
    result = run(shadowed)
    assert (result.status, result.steps[0].outcomes, result.errors) == ("completed", ("ok",), ())
    assert reported(shadowed) == [("before_tool", "failed", f"would have {words}", "ValueError: broken")]
    assert f"would have {words}: ValueError: broken" in caplog.text


@pytest.mark.parametrize("is_async", [False, True])
def test_a_timeout_applies_and_is_reported(is_async):
    @guard(BEFORE_TOOL, timeout=0.02)
    def slow(ctx, request):
        time.sleep(0.3)

    @guard(BEFORE_TOOL, timeout=0.02)
    async def slow_later(ctx, request):
        await asyncio.sleep(60)

    shadowed = shadow(slow_later if is_async else slow)
    assert run(shadowed).steps[0].outcomes == ("ok",)
    assert reported(shadowed)[0][1:3] == ("failed", "would have failed closed")
    assert "still running after 0.02 s" in reported(shadowed)[0][3]
    in_time = shadow(guard(BEFORE_TOOL, timeout=30)(lambda ctx, request: HookResult.block("no")))
    assert run(in_time).steps[0].outcomes == ("ok",)
    assert reported(in_time)[0][1] == "block"


class Judge:
    """A hook of a class, with options by point and state of its own."""

    points = frozenset({BEFORE_TOOL, AFTER_LLM})
    phase = {BEFORE_TOOL: "guard"}
    priority = {BEFORE_TOOL: 100, AFTER_LLM: -5}
    tools = {BEFORE_TOOL: ("add",)}
    timeout = None

    def __call__(self, point, ctx, payload):
        count = ctx.hook_state.setdefault(id(self), [])
        count.append(str(point))
        return HookResult.block(str(len(count))) if point == BEFORE_TOOL else None


def test_it_fires_where_the_hook_would():
    registry, under = HookRegistry([Judge()]), HookRegistry([shadow(Judge())])
    for point in Judge.points:
        (real,), (entry,) = registry.stack.entries(point), under.stack.entries(point)
        assert (entry.phase, entry.priority, entry.tools, entry.plugin) == (
            real.phase,
            real.priority,
            real.tools,
            real.plugin,
        )
        assert (entry.name, entry.on_failure) == ("shadow(Judge)", "open")


def test_the_hooks_own_state_is_fresh_for_each_run():
    shadowed = shadow(Judge())
    for _ in range(2):
        run(shadowed)
    assert [d.text for d in shadowed.decisions] == ["2", "2"]


def test_only_calls_of_its_tools_reach_the_hook():
    @tool
    def other() -> str:
        """Other."""
        return ""

    shadowed = shadow(guard(BEFORE_TOOL, tools="o*")(lambda ctx, request: HookResult.block(request.name)))
    scripted_agent([[call("add", a=1, b=1), call("other")], "ok"], tools=[add, other], hooks=[shadowed]).run("go")
    assert [d.text for d in shadowed.decisions] == ["other"]


def test_a_hook_is_not_reentered_by_its_own_model_call():
    entered = []

    @hook(BEFORE_LLM)
    async def asking(ctx, request):
        entered.append(request.purpose)
        got = await ctx.llm.complete("Is it good?", purpose="judge")
        return HookResult.end(got.content)

    shadowed = shadow(asking)
    result = run(shadowed, turns=["no", "ok"])
    assert (result.reply, entered, reported(shadowed)[0][3]) == ("ok", ["step"], "no")


@pytest.mark.parametrize("order", [1, -1])
def test_a_hook_and_its_shadow_do_not_reenter_the_hook(order):
    depth, entered = [0], []

    @hook(BEFORE_LLM)
    async def asking(ctx, request):
        depth[0] += 1
        entered.append((request.purpose, depth[0]))
        await ctx.llm.complete("hm?", purpose="judge")
        depth[0] -= 1

    run(*[asking, shadow(asking)][::order], turns=["a", "b", "ok"])
    assert entered == [("step", 1), ("step", 1)]


def test_a_sync_hook_is_not_reentered_in_a_run_that_it_starts():
    entered = []
    inner = scripted_agent(["in"])

    @hook(BEFORE_LLM)
    def starting(ctx, request):
        entered.append(request.ids.agent)
        inner.run("x", ctx=ctx)

    inner.register_hook(starting)
    run(shadow(starting), turns=["ok"])
    assert entered == ["test"]


def test_a_refused_model_call_of_the_hook_does_not_end_the_run():
    @hook(BEFORE_LLM)
    async def asking(ctx, request):
        await ctx.llm.complete("hm?", purpose="judge")

    @hook(BEFORE_LLM)
    def ending(ctx, request):
        return HookResult.end("no") if request.purpose == "judge" else None

    shadowed = shadow(asking)
    assert run(shadowed, ending, turns=["ok"]).reply == "ok"
    assert reported(shadowed)[0][1:3] == ("failed", "would have ended the run")


async def test_cancelling_while_the_hook_waits_cancels_the_run():
    waits = asyncio.Event()

    @hook(BEFORE_LLM)
    async def waiting(ctx, request):
        waits.set()
        await asyncio.sleep(600)

    shadowed = shadow(waiting)
    run = scripted_agent(["never"], hooks=[shadowed]).start("go")
    await waits.wait()
    run.cancel()
    assert (await asyncio.wait_for(run.result(), 60)).status == "cancelled"
    assert shadowed.decisions == ()


def test_a_hook_that_raises_cancelled_error_has_failed():
    @hook(BEFORE_LLM)
    async def odd(ctx, request):
        raise asyncio.CancelledError

    shadowed = shadow(odd)
    assert run(shadowed, turns=["ok"]).status == "completed"
    assert reported(shadowed)[0][1] == "failed"


def test_an_observing_point_of_a_hook_runs_unchanged():
    class Mixed(Judge):
        phase = {BEFORE_TOOL: "guard", AFTER_LLM: "observe"}

    shadowed = shadow(Mixed())
    run(shadowed)
    assert [d.text for d in shadowed.decisions] == ["2"]


@pytest.mark.slow
def test_decisions_are_bounded_and_long_values_shortened(caplog):
    caplog.set_level(logging.INFO, "hookline")
    shadowed = shadow(deciding(HookResult.block("x" * 10_000)))
    registry = HookRegistry([shadowed])

    async def fire():
        for n in range(1100):
            await registry.fire(BEFORE_TOOL, {"id": str(n), "name": "t"})

    asyncio.run(fire())
    assert len(shadowed.decisions) == 1000
    assert len(shadowed.decisions[0].text) == 200
    assert "shadow(decider) at before_tool would block: xxx" in caplog.text
    big = shadow(deciding(lambda p: {"arguments": {"a": ["x" * 1000] * 1000}}))
    fire_hook(big, BEFORE_TOOL)
    assert len(big.decisions[0].text) <= 200


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (observer(BEFORE_TOOL)(lambda ctx, request: None), "register it without shadow"),
        (Judge, r"write Judge\("),
        (lambda ctx, request: None, "names no points"),
        (3, "is not a hook"),
    ],
)
def test_objects_that_decide_nothing_are_rejected(given, says):
    with pytest.raises(RegistrationError, match=says):
        shadow(given)
    with pytest.raises(RegistrationError, match="already in shadow mode"):
        shadow(shadow(Judge()))


@pytest.mark.parametrize("ctx", [None, AgentContext(), object()], ids=["no context", "a conversation", "any object"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
async def test_outside_a_run_a_decision_is_reported_too(ctx, is_async):
    def decide(ctx, payload):
        return HookResult.block("No.", state=AgentState().with_metadata(a=1))

    async def decide_later(ctx, payload):
        await asyncio.sleep(0)
        return decide(ctx, payload)

    def fail(ctx, payload):
        raise ValueError("oh no")

    trials = [shadow(guard(BEFORE_TOOL)(made)) for made in (decide_later if is_async else decide, fail)]
    verdict = await HookRegistry(trials).fire(BEFORE_TOOL, sample(BEFORE_TOOL, name="add"), ctx=ctx)
    assert (verdict.action, verdict.failures) == ("cont", ())  # shadow() itself did not fail
    assert [[decision.verb for decision in trial.decisions] for trial in trials] == [["block"], ["failed"]]


def test_strict_in_shadow_mode_reports_the_tools_that_no_guard_names():
    @tool
    def named() -> str:
        """Named by a guard."""
        return ""

    @guard(BEFORE_TOOL, tools="named")
    def rule(ctx, request):
        return None

    trial = shadow(Strict())
    turns = [[call("add", a=1, b=2), call("named")], reply("ok")]
    result = scripted_agent(turns, tools=[add, named], hooks=[trial, rule]).run("go")
    assert result.steps[0].outcomes == ("ok", "ok")
    assert [(verb, text) for _, verb, _, text in reported(trial)] == [
        ("block", "add is not available: no guard judges it. Go on without it.")
    ]
