"""ToolRetryHook: retries of tool calls."""

import asyncio

import pytest

from hookline import (
    AFTER_TOOL,
    APPROVAL_REQUESTED,
    BEFORE_TOOL,
    AgentContext,
    Budget,
    HookResult,
    Limits,
    RegistrationError,
    call,
    guard,
    hook,
    reply,
    tool,
)
from hookline.events import RetryIgnored, ToolEnded
from hookline.hooks import ToolRetryHook
from hookline.testing import EventLog, scripted_agent


def flaky(*failures, name="flaky"):
    """A tool that raises these, then works."""
    left, times = list(failures), []

    @tool(name=name)
    def work(n: int = 0) -> str:
        """Work."""
        times.append(n)
        if left:
            raise left.pop(0)
        return "done"

    work.times = times
    return work


def run(work, *hooks, calls=None, log=None, **options):
    agent = scripted_agent([calls or [call(work.name, n=1)], reply("ok")], tools=[work], hooks=hooks)
    result = agent.run("go", sinks=[log] if log is not None else (), **options)
    return result.steps[0].outcomes, [m.content for m in result.messages if m.role == "tool"]


def quick(*args, **options):
    return ToolRetryHook(*args, **{"base_delay": 0, **options})


def test_a_failed_call_is_retried_and_has_one_result():
    work, log = flaky(ValueError("no"), OSError("no")), EventLog()
    assert run(work, quick(), log=log) == (("ok",), ["done"])
    assert work.times == [1, 1, 1]
    assert [(event.attempt, event.outcome) for event in log.of(ToolEnded)] == [(1, "error"), (2, "error"), (3, "ok")]


@pytest.mark.parametrize("most", [1, 2])
def test_after_the_last_retry_the_model_gets_the_error(most):
    work, log = flaky(*[ValueError(f"no {n}") for n in range(9)]), EventLog()
    assert run(work, quick(most), log=log) == (("error",), [f"ValueError: no {most}"])
    assert len(work.times) == most + 1
    assert log.of(RetryIgnored) == []


def test_only_the_named_errors_and_tools_are_retried():
    for retry, times in [
        (quick(on=["ValueError"]), 2),
        (quick(on=[ValueError]), 2),
        (quick(on=["OSError"]), 1),
        (quick(tools="fl*"), 2),
        (quick(tools=["x", "flaky"]), 2),
        (quick(tools="other"), 1),
    ]:
        work = flaky(ValueError("no"))
        run(work, retry)
        assert len(work.times) == times


def test_each_attempt_is_judged_by_its_own_error():
    work = flaky(ValueError("no"), OSError("no"), ValueError("no"))
    assert run(work, quick(on=["ValueError"])) == (("error",), ["OSError: no"])


def test_invalid_blocked_and_answered_calls_are_not_retried():
    @guard(BEFORE_TOOL)
    def rules(ctx, request):
        if request.arguments.get("n") == 7:
            return HookResult.block("no")
        return HookResult.answer("served") if request.arguments.get("n") == 8 else None

    work, log = flaky(), EventLog()
    calls = [call("flaky", n="x"), call("nobody"), call("flaky", n=7), call("flaky", n=8)]
    outcomes, _ = run(work, quick(), rules, calls=calls, log=log)
    assert outcomes == ("error", "error", "blocked", "answered")
    assert work.times == []
    assert {event.attempt for event in log.of(ToolEnded)} == {1}
    assert log.of(RetryIgnored) == []


def test_a_tool_error_named_like_an_invalid_call_is_not_retried():
    work = flaky(type("InvalidCall", (Exception,), {})("no"))
    assert run(work, quick())[0] == ("error",)


def test_a_result_that_a_hook_corrected_is_not_retried():
    @hook(AFTER_TOOL, priority=100)
    def mend(ctx, result):
        return result.replace(error=None, result="mended")

    work = flaky(ValueError("no"))
    assert run(work, quick(), mend) == (("error",), ["mended"])
    assert work.times == [1]


def test_guards_and_approvers_judge_each_attempt():
    asked = []

    @guard(BEFORE_TOOL)
    def careful(ctx, request):
        return HookResult.ask("Really?")

    @hook(APPROVAL_REQUESTED)
    def approver(ctx, request):
        asked.append(request.call.attempt)
        return HookResult.approve()

    run(flaky(ValueError("no")), careful, approver, quick())
    assert asked == [1, 2]


def test_calls_of_one_batch_are_retried_separately():
    one, two = flaky(ValueError("a"), name="one"), flaky(ValueError("b"), ValueError("c"), name="two")
    agent = scripted_agent(
        [[call("one", n=1), call("two", n=2)], reply("ok")], tools=[one, two], hooks=[quick(on=["ValueError"])]
    )
    assert agent.run("go").steps[0].outcomes == ("ok", "ok")
    assert (one.times, two.times) == ([1, 1], [2, 2, 2])


def test_a_call_is_not_retried_at_a_limit():
    work = flaky(ValueError("why"))
    agent = scripted_agent([[call("flaky")], reply("ok")], tools=[work], hooks=[quick()])
    result = agent.run("go", ctx=AgentContext(budget=Budget(Limits(tool_calls=1))))
    assert (result.stop.kind, result.messages[-1].content) == ("tool_calls_limit", "ValueError: why")


def test_nothing_is_retried_when_the_run_is_about_to_stop():
    @hook(AFTER_TOOL, priority=100)
    def enough(ctx, result):
        return HookResult.stop("enough") if result.name == "good" else None

    good, bad, log = flaky(name="good"), flaky(ValueError("why"), name="bad"), EventLog()
    turns = [[call("good"), call("bad")], reply("never")]
    result = scripted_agent(turns, tools=[good, bad], hooks=[quick(), enough]).run("go", sinks=[log])
    assert (result.status, result.messages[-1].content) == ("stopped", "ValueError: why")
    assert log.of(RetryIgnored) == []


def test_it_does_not_wait_longer_than_the_run_has_time_left():
    work = flaky(ValueError("why"))
    agent = scripted_agent([[call("flaky")], reply("ok")], tools=[work], hooks=[ToolRetryHook(base_delay=10)])
    assert agent.run("go", ctx=AgentContext(budget=Budget(Limits(seconds=4)))).status == "completed"
    assert len(work.times) == 1


async def test_cancelling_during_the_delay_takes_effect_at_once_and_the_call_has_a_result():
    work = flaky(ValueError("no"))
    agent = scripted_agent(
        [[call("flaky")], reply("never")], tools=[work], hooks=[ToolRetryHook(base_delay=600, max_delay=3600)]
    )
    run = agent.start("go")
    while not work.times:
        await asyncio.sleep(0.001)
    run.cancel()
    result = await asyncio.wait_for(run.result(), 60)
    assert (result.status, len(work.times)) == ("cancelled", 1)
    assert [message.role for message in result.messages] == ["user", "assistant", "tool"]


async def test_after_a_cancel_failed_calls_are_not_retried():
    failed, hang = flaky(ValueError("no")), asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        await hang.wait()
        return ""

    hooks = [ToolRetryHook(base_delay=600, max_delay=3600)]
    agent = scripted_agent(
        [[call("flaky"), call("wait")]], tools=[failed, wait], hooks=hooks, sinks=[log := EventLog()]
    )
    run = agent.start("go")
    while not log.of(ToolEnded):
        await asyncio.sleep(0.001)
    run.cancel()
    result = await asyncio.wait_for(run.result(), 60)
    assert result.messages[2].content == "ValueError: no"
    assert [error.type for error in result.errors] == ["ValueError"]  # the hook was cancelled


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_retries": 3}, "at most 2"),
        ({"max_retries": -1}, "1 or more"),
        ({"base_delay": None}, "base_delay"),
        ({"on": []}, "at least one"),
        ({"on": "ValueError"}, r"\['ValueError'\]"),
        ({"tools": []}, "at least one"),
        ({"tools": [3]}, "list of names"),
        ({"tools": ""}, "list of names"),
    ],
)
def test_invalid_arguments_are_rejected(options, says):
    with pytest.raises(RegistrationError, match=says):
        ToolRetryHook(**options)
