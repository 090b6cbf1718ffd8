"""Model calls: streaming, answers, retries and failures (DESIGN 4.5, 4.6, 5)."""

import asyncio

import pytest

from hookline import (
    AFTER_LLM,
    BEFORE_LLM,
    ON_ERROR,
    ON_TOKEN,
    Agent,
    Discarded,
    HookResult,
    Message,
    ModelCalled,
    ModelError,
    ModelReplied,
    ModelResponse,
    RunFailed,
    ScriptedModel,
    TextDelta,
    Usage,
    call,
    hook,
    observer,
    reply,
    tool,
)
from hookline.testing import EventLog, scripted_agent


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


# Streaming


def test_each_piece_passes_on_token_and_once_more_as_final():
    seen = []

    @observer(ON_TOKEN)
    def watch(ctx, token):
        seen.append((token.delta, token.text, token.final))

    scripted_agent([reply("one two")], hooks=[watch]).run("x")
    assert seen == [("one", "one", False), (" two", "one two", False), ("", "one two", True)]


def test_on_token_gets_the_whole_text_at_once_when_nothing_streamed():
    class Whole:
        name, provider = "whole", "test"

        async def complete(self, request):
            return ModelResponse("all at once", usage=Usage(1, 3))

        def count_tokens(self, content):
            return 1

    seen = []

    @observer(ON_TOKEN)
    def watch(ctx, token):
        seen.append((token.delta, token.text, token.final))

    assert Agent("a", llm=Whole(), hooks=[watch]).run("x").reply == "all at once"
    assert seen == [("all at once", "all at once", True)]


def test_what_is_shown_is_what_left_on_token_and_what_is_recorded_left_after_llm():
    @hook(ON_TOKEN)
    def hide(ctx, token):
        return token.replace(delta=token.delta.replace("secret", "***"))

    @hook(AFTER_LLM)
    def hide_too(ctx, answer):
        return answer.replace(content=answer.content.replace("secret", "###"))

    log = EventLog()
    result = scripted_agent([reply("a secret b")], hooks=[hide, hide_too], sinks=[log]).run("x")
    assert "".join(event.text for event in log.of(TextDelta)) == "a *** b"
    assert result.reply == "a ### b"


def test_text_held_back_can_be_shown_at_the_final_piece():
    @hook(ON_TOKEN)
    def hold(ctx, token):
        return token.replace(delta=token.text if token.final else "")

    log = EventLog()
    scripted_agent([reply("one two three")], hooks=[hold], sinks=[log]).run("x")
    assert [event.text for event in log.of(TextDelta)] == ["one two three"]


def test_an_end_at_on_token_aborts_the_generation_and_after_llm_reaches_observers_only():
    seen, closed = [], []

    class Closing(ScriptedModel):
        async def stream(self, request):
            try:
                async for piece in super().stream(request):
                    yield piece
            finally:
                closed.append(True)

    @hook(ON_TOKEN)
    def stop(ctx, token):
        return HookResult.end("stopped you") if "two" in token.text else None

    @hook(AFTER_LLM)
    def decider(ctx, answer):
        seen.append("decider")

    @observer(AFTER_LLM)
    def watch(ctx, answer):
        seen.append(("observer", answer.content, answer.usage.output_tokens))

    agent = Agent("a", llm=Closing([reply("one two three four")]), hooks=[stop, decider, watch])
    result = agent.run("x")
    assert closed == [True]
    assert seen == [("observer", "one", 2)], "what the hook did not let pass is not in the log of another"
    assert (result.status, result.reply) == ("ended", "stopped you")
    assert [m.content for m in result.messages] == ["x", "stopped you"]
    assert result.usage.output_tokens == 2


def test_a_closed_failure_at_on_token_aborts_too_and_the_reply_is_not_recorded():
    @hook(ON_TOKEN)
    def broken(ctx, token):
        raise RuntimeError("filter down")

    with pytest.raises(RunFailed, match="filter down") as caught:
        scripted_agent([reply("one two")], hooks=[broken]).run("x")
    assert [m.role for m in caught.value.result.messages] == ["user"]


def test_a_stream_without_a_closing_response_counts_what_it_gave():
    class Bare(ScriptedModel):
        async def stream(self, request):
            yield "just "
            yield "text"

    result = Agent("a", llm=Bare(), sinks=[EventLog()]).run("a b")
    assert result.reply == "just text"
    assert result.usage == Usage(2, 2)
    assert result.cost is None


# Answers


@pytest.mark.parametrize("value", ["hi", ModelResponse(content="hi"), {"content": "hi"}])
def test_an_answer_takes_the_place_of_the_model_and_passes_after_llm(value):
    seen = []

    @hook(BEFORE_LLM)
    def cache(ctx, request):
        return HookResult.answer(value)

    @observer(AFTER_LLM)
    def watch(ctx, answer):
        seen.append((answer.content, answer.source, answer.usage))

    agent = scripted_agent([], hooks=[cache, watch])
    result = agent.run("x")
    assert (result.reply, result.status) == ("hi", "completed")
    assert seen == [("hi", "cache", Usage())]
    assert agent.model.requests == []
    assert result.cost == 0.0


def test_an_answer_may_hold_tool_calls_which_are_judged_and_run():
    @hook(BEFORE_LLM)
    def plan(ctx, request):
        if request.hop == 0:
            return HookResult.answer(ModelResponse(tool_calls=(call("add", a=2, b=2),)))

    result = scripted_agent([reply("4")], tools=[add], hooks=[plan]).run("x")
    assert result.steps[0].outcomes == ("ok",)
    assert result.messages[1].tool_calls[0].id


def test_an_answer_that_is_none_of_these_fails_and_says_what_is_expected():
    @hook(BEFORE_LLM)
    def cache(ctx, request):
        return HookResult.answer(42)

    with pytest.raises(RunFailed, match="text or a ModelResponse, not int"):
        scripted_agent([], hooks=[cache]).run("x")


# Retries


def test_retry_sends_the_rejected_reply_and_the_note_in_the_next_request_only():
    seen = []

    @hook(BEFORE_LLM)
    def watch(ctx, request):
        seen.append((request.hop, request.attempt))

    @hook(AFTER_LLM)
    def check(ctx, answer):
        return HookResult.retry("Be polite.") if "damn" in answer.content else None

    agent = scripted_agent([reply("damn", usage=Usage(5, 5)), reply("hello", usage=Usage(7, 7))], hooks=[watch, check])
    result = agent.run("x")
    assert seen == [(0, 1), (0, 2)]
    assert list(agent.model.requests[1].messages)[1:] == [Message("assistant", "damn"), Message("user", "Be polite.")]
    assert [m.content for m in result.messages] == ["x", "hello"]
    assert result.usage == Usage(12, 12)
    assert len(result.steps) == 1


def test_rejected_calls_are_written_out_as_text():
    @hook(AFTER_LLM)
    def check(ctx, answer):
        return HookResult.retry("No tools.") if answer.tool_calls else None

    agent = scripted_agent([["thinking", call("add", a=1, b=2)], reply("ok")], tools=[add], hooks=[check])
    agent.run("x")
    rejected = agent.model.requests[1].messages[-2]
    assert rejected == Message("assistant", 'thinking\nadd({"a":1,"b":2})')


def test_streaming_consumers_learn_that_a_reply_was_discarded():
    @hook(AFTER_LLM)
    def check(ctx, answer):
        return HookResult.retry() if answer.attempt == 1 else None

    log = EventLog()
    scripted_agent([reply("bad"), reply("good")], hooks=[check], sinks=[log]).run("x")
    kinds = [type(e).__name__ for e in log if isinstance(e, (TextDelta, Discarded, ModelReplied))]
    assert kinds == ["TextDelta", "Discarded", "TextDelta", "ModelReplied"]


def test_a_model_call_is_retried_at_most_twice_and_then_the_chain_goes_on():
    seen = []

    @hook(AFTER_LLM, priority=1)
    def never_happy(ctx, answer):
        return HookResult.retry()

    @hook(AFTER_LLM)
    def later(ctx, answer):
        seen.append(answer.attempt)

    agent = scripted_agent([reply(str(i)) for i in range(5)], hooks=[never_happy, later])
    result = agent.run("x")
    assert len(agent.model.requests) == 3
    assert seen == [3]
    assert result.reply == "2"
    assert (result.status, result.stop.kind) == ("stopped", "retry_limit")


def test_retries_of_after_llm_and_on_error_count_together():
    @hook(AFTER_LLM)
    def check(ctx, answer):
        return HookResult.retry()

    @hook(ON_ERROR)
    def again(ctx, failure):
        return HookResult.retry()

    agent = scripted_agent([ValueError("a"), reply("b"), ValueError("c"), reply("d")], hooks=[check, again])
    with pytest.raises(RunFailed, match="c"):
        agent.run("x")
    assert len(agent.model.requests) == 3


# Failures


def test_a_model_failure_without_help_fails_the_run_with_its_cause():
    with pytest.raises(RunFailed, match="server down") as caught:
        scripted_agent([ConnectionError("server down")]).run("x")
    assert isinstance(caught.value.__cause__, ModelError)
    assert isinstance(caught.value.__cause__.__cause__, ConnectionError)
    (error,) = caught.value.result.errors
    assert (error.where, error.type, error.message, error.fatal) == ("model", "ConnectionError", "server down", True)


def test_on_error_sees_the_request_and_can_retry_with_a_note():
    seen = []

    @hook(ON_ERROR)
    def again(ctx, failure):
        seen.append((failure.where, failure.purpose, failure.hop, failure.attempt, len(failure.request.messages)))
        return HookResult.retry("Once more, shorter.")

    agent = scripted_agent([TimeoutError("slow"), reply("ok")], hooks=[again])
    assert agent.run("x").reply == "ok"
    assert seen == [("model", "step", 0, 1, 1)]
    assert agent.model.requests[1].messages[-1] == Message("user", "Once more, shorter.")


def test_on_error_can_answer_that_one_call():
    seen = []

    @hook(ON_ERROR)
    def fallback(ctx, failure):
        return HookResult.answer("I am offline.")

    @observer(AFTER_LLM)
    def watch(ctx, answer):
        seen.append(answer.source)

    result = scripted_agent([OSError("down")], hooks=[fallback, watch]).run("x")
    assert (result.status, result.reply) == ("completed", "I am offline.")
    assert seen == ["fallback"]


def test_on_error_can_end_the_run():
    @hook(ON_ERROR)
    def give_up(ctx, failure):
        return HookResult.end("Sorry.", reason="outage")

    result = scripted_agent([OSError("down")], hooks=[give_up]).run("x")
    assert (result.status, result.reply, result.hook_ended) == ("ended", "Sorry.", "outage")


def test_a_stream_that_breaks_off_is_charged_and_its_text_discarded():
    class Breaking(ScriptedModel):
        async def stream(self, request):
            yield "half "
            raise ConnectionError("cut")

    @hook(ON_ERROR)
    def fallback(ctx, failure):
        return HookResult.answer("whole")

    log = EventLog()
    result = Agent("a", llm=Breaking(), hooks=[fallback], sinks=[log]).run("x")
    assert result.reply == "whole"
    assert result.usage.output_tokens == 1
    assert len(log.of(Discarded)) == 1


def test_a_model_that_returns_no_response_is_a_failure_that_names_it():
    class Wrong(ScriptedModel):
        async def complete(self, request):
            return "text"

    with pytest.raises(RunFailed, match="'scripted' returned str, not a ModelResponse"):
        Agent("a", llm=Wrong()).run("x")


def test_a_model_that_raises_cancelled_though_nobody_cancelled_has_failed():
    import asyncio

    with pytest.raises(RunFailed, match="CancelledError"):
        scripted_agent([asyncio.CancelledError()]).run("x")


def test_the_events_of_a_model_call_tell_model_usage_and_source():
    log = EventLog()
    scripted_agent([reply("hi", usage=Usage(3, 4), cost=0.25, organization_id="org")], tools=[add], sinks=[log]).run(
        "x"
    )
    (called,) = log.of(ModelCalled)
    (replied,) = log.of(ModelReplied)
    assert (called.model, called.messages, called.tools) == ("scripted", 1, ("add",))
    assert (replied.provider, replied.usage, replied.cost, replied.organization_id) == (
        "scripted", Usage(3, 4), 0.25, "org",
    )  # fmt: skip


async def test_a_model_that_cannot_count_does_not_change_how_a_cancelled_run_ends():
    class Uncounting(ScriptedModel):
        def count_tokens(self, content):
            raise ValueError("the template refuses these messages")

        async def stream(self, request):
            yield "once "
            await asyncio.sleep(60)

    run = Agent("a", llm=Uncounting()).start("Tell.")
    async for event in run.events():
        if isinstance(event, TextDelta):
            run.cancel("enough")
    assert (await run.result()).status == "cancelled"


async def test_a_call_that_is_broken_off_is_charged_at_the_models_price():
    class Priced(ScriptedModel):
        def price(self, usage):
            return usage.output_tokens * 0.5

        async def stream(self, request):
            yield "once upon a time"
            await asyncio.sleep(60)

    run = Agent("a", llm=Priced()).start("Tell.")
    async for event in run.events():
        if isinstance(event, TextDelta):
            run.cancel("enough")
    assert (await run.result()).cost == 2.0
