"""ModelRetryHook: retries of model calls."""

import asyncio
from random import Random

import pytest

from hookline import (
    AFTER_LLM,
    Agent,
    AgentContext,
    Budget,
    HookResult,
    Limits,
    RegistrationError,
    RunFailedError,
    ScriptedModel,
    hook,
    reply,
)
from hookline.events import RetryIgnored
from hookline.hooks import ModelRetryHook
from hookline.hooks._support.backoff import Backoff
from hookline.models import BadRequestError, ModelTimeoutError, OverloadedError, RateLimitError, UnreachableError
from hookline.payloads import ErrorInfo
from hookline.testing import EventLog, fire_hook, scripted_agent


def quick(*args, **options):
    return ModelRetryHook(*args, **{"base_delay": 0, **options})


@pytest.mark.parametrize("error", [RateLimitError, OverloadedError, ModelTimeoutError, UnreachableError])
def test_a_transient_failure_is_retried(error):
    agent = scripted_agent([error("no"), error("no"), reply("ok")], hooks=[quick()])
    result = agent.run("go")
    assert (result.reply, result.status) == ("ok", "completed")
    assert [request.attempt for request in agent.model.requests] == [1, 2, 3]
    assert [[m.content for m in request.messages] for request in agent.model.requests] == [["go"]] * 3
    assert [message.role for message in result.messages] == ["user", "assistant"]


@pytest.mark.parametrize("error", [BadRequestError("no"), ValueError("no")])
def test_a_permanent_failure_is_not_retried(error):
    agent = scripted_agent([error, reply("never")], hooks=[quick()])
    with pytest.raises(RunFailedError):
        agent.run("go")
    assert len(agent.model.requests) == 1


@pytest.mark.parametrize("on", [["ValueError"], [ValueError], (error for error in (ValueError, "KeyError"))])
def test_the_errors_to_retry_after_can_be_named(on):
    agent = scripted_agent([ValueError("no"), reply("ok")], hooks=[quick(on=on)])
    assert agent.run("go").reply == "ok"
    agent = scripted_agent([RateLimitError("no"), reply("never")], hooks=[quick(on=["ValueError"])])
    with pytest.raises(RunFailedError):
        agent.run("go")


@pytest.mark.parametrize("most", [1, 2])
def test_after_the_last_retry_the_run_fails_with_the_error_of_the_model(most):
    agent = scripted_agent([RateLimitError(f"no {n}") for n in range(9)], hooks=[quick(most)])
    log = EventLog()
    with pytest.raises(RunFailedError, match=f"no {most}") as failure:
        agent.run("go", sinks=[log])
    assert len(agent.model.requests) == most + 1
    assert log.of(RetryIgnored) == []
    assert failure.value.result.status == "failed"


def test_retries_of_other_hooks_count_too():
    @hook(AFTER_LLM)
    def picky(ctx, got):
        return HookResult.retry("Again.") if got.attempt == 1 else None

    turns = [reply("bad"), RateLimitError("no"), RateLimitError("no"), reply("never")]
    agent = scripted_agent(turns, hooks=[quick(), picky])
    with pytest.raises(RunFailedError):
        agent.run("go")
    assert len(agent.model.requests) == 3


def test_calls_of_hooks_and_every_step_are_retried_too():
    @hook(AFTER_LLM)
    async def judge(ctx, got):
        if got.purpose == "step":
            assert (await ctx.llm.complete("Is it good?", purpose="judge")).content == "yes"

    agent = scripted_agent(
        [RateLimitError("a"), reply("ok"), RateLimitError("b"), reply("yes")], hooks=[quick(), judge]
    )
    assert agent.run("go").reply == "ok"


def test_failures_of_tools_and_hooks_are_not_retried():
    error = ErrorInfo("tool", "RateLimitError", "no")
    verdict = fire_hook(quick(), "on_error", errors=(error,), where="tool")
    assert (verdict.action, verdict.failures) == ("cont", ())


@pytest.mark.parametrize(("asked", "calls"), [(5.0, 1), (float("inf"), 1), (0.01, 2)])
def test_a_retry_after_above_max_delay_is_not_retried(asked, calls):
    agent = scripted_agent([RateLimitError("no", retry_after=asked), reply("ok")], hooks=[quick(max_delay=1)])
    if calls == 1:
        with pytest.raises(RunFailedError):
            agent.run("go")
    else:
        assert agent.run("go").reply == "ok"
    assert len(agent.model.requests) == calls


def test_it_does_not_wait_longer_than_the_run_has_time_left():
    agent = scripted_agent([RateLimitError("no", retry_after=20), reply("never")], hooks=[quick()])
    with pytest.raises(RunFailedError):
        agent.run("go", ctx=AgentContext(budget=Budget(Limits(seconds=10))))
    assert len(agent.model.requests) == 1


def test_delays_double_with_jitter_up_to_the_maximum():
    ctx = AgentContext(random=Random(1))
    waits = [[Backoff(1, 100).delay(ctx, attempt) for _ in range(200)] for attempt in (1, 2, 3)]
    for mean, some in zip((1, 2, 4), waits, strict=True):
        assert 0.5 * mean <= min(some) < max(some) <= 1.5 * mean
        assert len(set(some)) > 100
    assert Backoff(10, 12).delay(ctx, 5) == 12
    assert Backoff(0, 12).delay(ctx, 5) == 0
    again = AgentContext(random=Random(1))
    assert Backoff(1, 100).delay(again, 1) == waits[0][0]


def test_retry_after_is_the_minimum_and_has_jitter_too():
    ctx = AgentContext(random=Random(1))
    waits = [Backoff(1, 100).delay(ctx, 1, 7.0) for _ in range(100)]
    assert 7.5 <= min(waits) < max(waits) <= 8.5
    assert Backoff(1, 7).delay(ctx, 1, 7.0) == 7
    assert Backoff(1, 7).delay(ctx, 1, 7.1) is None
    assert Backoff(0, 7).delay(ctx, 1, float("nan")) == 0
    assert Backoff(0, 7).delay(ctx, 1, -3.0) == 0
    assert Backoff(0, 7).delay(AgentContext(budget=Budget(Limits(seconds=0))), 1) is None


async def test_cancelling_during_the_delay_takes_effect_at_once():
    model = ScriptedModel([RateLimitError("no"), reply("never")])
    agent = Agent("a", llm=model, hooks=[ModelRetryHook(base_delay=600, max_delay=3600)])
    run = agent.start("go")
    while not model.requests:
        await asyncio.sleep(0.001)
    run.cancel("enough")
    result = await asyncio.wait_for(run.result(), 60)
    assert (result.status, result.stop.message, len(model.requests)) == ("cancelled", "enough", 1)


async def test_a_time_limit_cancels_the_delay():
    model = ScriptedModel([RateLimitError("no"), reply("never")])
    hook = ModelRetryHook(base_delay=600, max_delay=600)
    hook.backoff.delay = lambda *_: 600  # although the run has less time left
    ctx = AgentContext(budget=Budget(Limits(seconds=0.05)))
    result = await Agent("a", llm=model, hooks=[hook]).arun("go", ctx=ctx)
    assert (result.status, result.stop.kind) == ("stopped", "time_limit")


async def test_concurrent_runs_share_one_hook():
    hook = quick()
    agents = [
        scripted_agent([RateLimitError("no"), RateLimitError("no"), reply(str(n))], hooks=[hook]) for n in range(50)
    ]
    results = await asyncio.gather(*(agent.arun("go") for agent in agents))
    assert [result.reply for result in results] == [str(n) for n in range(50)]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_retries": 3}, "at most 2, not 3: the loop allows no more for one call"),
        ({"max_retries": 0}, "1 or more"),
        ({"max_retries": True}, "whole number"),
        ({"max_retries": 1.5}, "whole number"),
        ({"base_delay": -1}, "base_delay must be a number of seconds"),
        ({"base_delay": "1"}, "base_delay"),
        ({"max_delay": float("nan")}, "max_delay"),
        ({"max_delay": float("inf")}, "max_delay"),
        ({"max_delay": 0.1}, "longer than max_delay"),
        ({"on": ()}, "at least one"),
        ({"on": "RateLimitError"}, r"\['RateLimitError'\]"),
        ({"on": RateLimitError}, r"\[RateLimitError\]"),
        ({"on": [3]}, "list of names"),
        ({"on": None}, "list of names"),
    ],
)
def test_invalid_arguments_are_rejected(options, says):
    with pytest.raises(RegistrationError, match=says):
        ModelRetryHook(**options)
