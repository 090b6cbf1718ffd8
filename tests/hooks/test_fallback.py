"""FallbackModelHook: another model answers when the first one fails."""

import pytest

from hookline import (
    AFTER_LLM,
    BEFORE_LLM,
    Agent,
    AgentContext,
    Budget,
    HookResult,
    Limits,
    RegistrationError,
    RunFailedError,
    ScriptedModel,
    call,
    hook,
    observer,
    reply,
    tool,
)
from hookline.events import Discarded, ModelReplied
from hookline.hooks import FallbackModelHook, ModelRetryHook
from hookline.models import BadRequestError, OverloadedError, RateLimitError
from hookline.payloads import Usage
from hookline.testing import EventLog

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


@tool
def add(a: int, b: int) -> str:
    """Add."""
    return str(a + b)


def primary(*turns):
    return ScriptedModel(turns, name="first")


def other(*turns, name="second"):
    return ScriptedModel(turns, name=name)


def agent_of(model, *hooks, **options):
    return Agent("a", llm=model, hooks=hooks, **options)


def test_the_fallback_model_gets_the_failed_request_and_its_reply_is_the_answer():
    second = other([call("add", a=1, b=2)])
    model = primary(OverloadedError("no"), reply("three"))
    agent = agent_of(
        model,
        FallbackModelHook(second),
        tools=[add],
        params={"temperature": 0},
        instructions="Be brief.",
        response_format=SCHEMA,
    )
    result = agent.run("go")
    assert (result.reply, result.tool_calls) == ("three", 1)
    (asked,) = second.requests
    failed = model.requests[0]
    for field in ("messages", "tools", "response_format", "tool_choice", "params"):
        assert getattr(asked, field) == getattr(failed, field)
    assert (asked.purpose, asked.model, failed.model) == ("fallback", "second", "first")


def test_a_tool_choice_of_a_hook_is_passed_on():
    @hook(BEFORE_LLM)
    def forced(ctx, request):
        return request.replace(tool_choice="add") if request.purpose == "step" else None

    second = other("ok")
    agent_of(primary(OverloadedError("no")), forced, FallbackModelHook(second), tools=[add]).run("go")
    assert second.requests[0].tool_choice == "add"


def test_its_call_passes_the_hooks_and_its_usage_counts_once():
    seen = []

    @observer(BEFORE_LLM)
    def before(ctx, request):
        seen.append(("before", request.purpose, request.model))

    @observer(AFTER_LLM)
    def after(ctx, got):
        seen.append(("after", got.purpose, got.source, got.model, got.usage.total_tokens, got.cost))

    second = other(reply("ok", usage=Usage(10, 5), cost=0.25))
    log = EventLog()
    result = agent_of(primary(OverloadedError("no")), before, after, FallbackModelHook(second)).run("go", sinks=[log])
    assert seen == [
        ("before", "step", "first"),
        ("before", "fallback", "second"),
        ("after", "fallback", "model", "second", 15, 0.25),
        ("after", "step", "FallbackModelHook", "second", 0, 0.0),
    ]
    assert (result.usage, result.cost) == (Usage(10, 5), 0.25)
    assert result.steps[0].usage == Usage(10, 5)
    assert sum(event.usage.total_tokens for event in log.of(ModelReplied)) == 15


def test_retries_come_before_the_fallback():
    model, second = primary(*[RateLimitError("no")] * 3), other("ok")
    result = agent_of(model, FallbackModelHook(second), ModelRetryHook(base_delay=0)).run("go")
    assert (result.reply, len(model.requests), len(second.requests)) == ("ok", 3, 1)


def test_the_fallback_is_asked_at_once_if_the_retry_gives_up():
    for error in (BadRequestError("no"), RateLimitError("no", retry_after=999)):
        model, second = primary(error), other("ok")
        assert agent_of(model, FallbackModelHook(second), ModelRetryHook(base_delay=0)).run("go").reply == "ok"
        assert len(model.requests) == 1


def test_the_fallback_call_is_retried_too():
    second = other(RateLimitError("no"), "ok")
    result = agent_of(primary(BadRequestError("no")), ModelRetryHook(base_delay=0), FallbackModelHook(second)).run("go")
    assert (result.reply, len(second.requests)) == ("ok", 2)


def test_the_original_error_stands_if_all_models_fail():
    second, third = other(ValueError("second")), other(RateLimitError("third"), name="third")
    with pytest.raises(RunFailedError, match="the first") as failure:
        agent_of(primary(OverloadedError("the first")), FallbackModelHook([second, third])).run("go")
    assert [len(model.requests) for model in (second, third)] == [1, 1]
    assert [error.message for error in failure.value.result.errors] == ["the first", "second", "third"]


def test_models_of_a_list_and_of_several_hooks_are_tried_in_order_and_once_each():
    for several in (False, True):
        second, third, fourth = other(ValueError("no")), other("ok", name="third"), other("never", name="fourth")
        models = [second, third, fourth]
        hooks = [FallbackModelHook(model) for model in models] if several else [FallbackModelHook(models)]
        log = EventLog()
        assert agent_of(primary(OverloadedError("no")), *hooks).run("go", sinks=[log]).reply == "ok"
        assert [len(model.requests) for model in models] == [1, 1, 0]
        replied = [(event.purpose, event.source, event.model) for event in log.of(ModelReplied)]
        assert replied == [("fallback", "model", "third"), ("step", "FallbackModelHook", "third")]


def test_a_model_can_be_asked_several_times():
    second = other(ValueError("no"), ValueError("no"), "ok")
    assert agent_of(primary(OverloadedError("no")), FallbackModelHook(second, attempts=3)).run("go").reply == "ok"
    second = other(ValueError("no"), ValueError("no"), "ok")
    with pytest.raises(RunFailedError):
        agent_of(primary(OverloadedError("no")), FallbackModelHook(second, attempts=2)).run("go")


def test_it_acts_on_the_named_errors_only():
    second = other("ok")
    with pytest.raises(RunFailedError):
        agent_of(primary(BadRequestError("no")), FallbackModelHook(second, on=["OverloadedError"])).run("go")
    assert second.requests == []
    assert (
        agent_of(primary(OverloadedError("no")), FallbackModelHook(second, on=[OverloadedError])).run("go").reply
        == "ok"
    )


def test_a_model_call_of_a_hook_falls_back_too():
    @hook(AFTER_LLM)
    async def judge(ctx, got):
        if got.purpose == "step":
            assert (await ctx.llm.complete("good?", purpose="judge")).content == "yes"

    second = other("yes")
    result = agent_of(primary("ok", OverloadedError("no")), judge, FallbackModelHook(second)).run("go")
    assert (result.reply, len(second.requests)) == ("ok", 1)


def test_a_hook_that_ends_the_run_at_the_fallback_reply_ends_it():
    @hook(AFTER_LLM)
    def rail(ctx, got):
        return HookResult.end("Not this.", reason="rail") if "secret" in got.content else None

    result = agent_of(primary(OverloadedError("no")), rail, FallbackModelHook(other("a secret"))).run("go")
    assert (result.status, result.reply, result.hook_ended) == ("ended", "Not this.", "rail")


def test_a_hook_that_fails_closed_at_the_fallback_call_fails_the_run():
    @hook(BEFORE_LLM)
    def broken(ctx, request):
        if request.purpose == "fallback":
            raise ValueError("broken")

    second, third = other("never"), other("never", name="third")
    with pytest.raises(RunFailedError, match="the first"):
        agent_of(primary(OverloadedError("the first")), broken, FallbackModelHook([second, third])).run("go")
    assert second.requests == third.requests == []


def test_a_limit_that_is_reached_stops_the_run_before_the_fallback():
    model = primary([call("add", a=1, b=2)], OverloadedError("no"))
    second = other("never")
    ctx = AgentContext(budget=Budget(Limits(tool_calls=1)))
    agent = agent_of(model, FallbackModelHook(second), tools=[add])
    result = agent.run("go", ctx=ctx)
    assert (result.status, result.stop.kind, second.requests) == ("stopped", "tool_calls_limit", [])


def test_a_stop_signal_meanwhile_stops_the_run():
    @hook(BEFORE_LLM)
    def enough(ctx, request):
        return HookResult.stop("enough") if request.purpose == "fallback" else None

    second = other("never")
    result = agent_of(primary(OverloadedError("no")), enough, FallbackModelHook(second)).run("go")
    assert (result.status, result.stop.message, second.requests) == ("stopped", "enough", [])


def test_its_reply_can_be_rejected_like_any_other():
    @hook(AFTER_LLM)
    def picky(ctx, got):
        return HookResult.retry("Again.") if got.content == "bad" and got.purpose == "step" else None

    model, second = primary(OverloadedError("no"), "good"), other("bad")
    log = EventLog()
    assert agent_of(model, picky, FallbackModelHook(second)).run("go", sinks=[log]).reply == "good"
    assert [event.purpose for event in log.of(Discarded)] == ["step"]


def test_a_model_can_be_named(tmp_path):
    (tmp_path / "turns.json").write_text('["from a file"]')
    hook = FallbackModelHook(f"scripted:{tmp_path / 'turns.json'}")
    assert agent_of(primary(OverloadedError("no")), hook).run("go").reply == "from a file"


@pytest.mark.parametrize(
    ("model", "options", "says"),
    [
        ("opnai:x", {}, "Did you mean 'openai'"),
        ([], {}, "at least one"),
        (3, {}, "is not a model"),
        (ScriptedModel, {}, "create an instance"),
        ([other(), object()], {}, "it lacks name"),
        (other(), {"attempts": 0}, "attempts"),
        (other(), {"on": []}, "on must be a list"),
    ],
)
def test_invalid_arguments_are_rejected(model, options, says):
    with pytest.raises(RegistrationError, match=says):
        FallbackModelHook(model, **options)
