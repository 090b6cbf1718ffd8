"""Model calls: streaming, answers, retries and failures (DESIGN 4.5, 4.6, 5)."""

import asyncio

import pytest

from hookline import (
    AFTER_LLM,
    BEFORE_LLM,
    BEFORE_STEP,
    ON_ERROR,
    ON_TOKEN,
    Agent,
    HookResult,
    Message,
    RunFailedError,
    ScriptedModel,
    call,
    guard,
    hook,
    observer,
    reply,
    tool,
)
from hookline.errors import CallRefusedError, ModelError
from hookline.events import Discarded, ModelCalled, ModelReplied, TextDelta
from hookline.models import ModelResponse, RateLimitError
from hookline.payloads import ToolCall, Usage
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


def test_text_that_after_llm_changes_is_shown_as_changed_after_on_token_has_seen_it():
    @hook(ON_TOKEN)
    def hide(ctx, token):
        return token.replace(delta=token.delta.replace("secret", "***"))

    @hook(AFTER_LLM)
    def hide_too(ctx, answer):
        return answer.replace(content=answer.content.replace("secret", "###"))

    log = EventLog()
    result = scripted_agent([reply("a secret b")], hooks=[hide, hide_too], sinks=[log]).run("x")
    assert [event.text for event in log.of(TextDelta)] == ["a ### b"]
    assert result.reply == "a ### b"


def test_text_that_only_on_token_changes_is_shown_as_changed_and_recorded_as_it_was():
    @hook(ON_TOKEN)
    def hide(ctx, token):
        return token.replace(delta=token.delta.replace("secret", "***"))

    @guard(AFTER_LLM)
    def allow(ctx, answer):
        return None

    for hooks in ([hide], [hide, allow]):
        log = EventLog()
        result = scripted_agent([reply("a secret b")], hooks=hooks, sinks=[log]).run("x")
        assert "".join(event.text for event in log.of(TextDelta)) == "a *** b"
        assert result.reply == "a secret b"


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

    with pytest.raises(RunFailedError, match="filter down") as caught:
        scripted_agent([reply("one two")], hooks=[broken]).run("x")
    assert [m.role for m in caught.value.result.messages] == ["user"]


def test_a_stream_without_a_closing_response_is_an_error_and_what_it_gave_is_counted():
    class Bare(ScriptedModel):
        async def stream(self, request):
            yield "just "
            yield "text"

    with pytest.raises(RunFailedError, match="ended without its final response") as failed:
        Agent("a", llm=Bare(), sinks=[EventLog()]).run("a b")
    result = failed.value.result
    assert [message.role for message in result.messages] == ["user"]
    assert result.usage == Usage(2, 2)
    assert result.cost is None


# Answers


@pytest.mark.parametrize("value", ["hi", ModelResponse(content="hi"), {"content": "hi"}])
def test_an_answer_replaces_the_model_call_and_fires_after_llm(value):
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


def test_an_invalid_answer_fails_and_the_error_says_what_is_expected():
    @hook(BEFORE_LLM)
    def cache(ctx, request):
        return HookResult.answer(42)

    with pytest.raises(RunFailedError, match="text or a ModelResponse, not int"):
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


def test_a_rejected_reply_emits_discarded():
    @hook(AFTER_LLM)
    def check(ctx, answer):
        return HookResult.retry() if answer.attempt == 1 else None

    def kinds(stream):
        log = EventLog()
        scripted_agent([reply("bad"), reply("good")], hooks=[check], sinks=[log]).run("x", stream=stream)
        return [type(e).__name__ for e in log if isinstance(e, (TextDelta, Discarded, ModelReplied))]

    assert kinds("live") == ["TextDelta", "Discarded", "TextDelta", "ModelReplied"]
    assert kinds("safe") == ["Discarded", "TextDelta", "ModelReplied"]


def test_a_model_call_is_retried_at_most_twice_and_then_the_chain_continues():
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
    with pytest.raises(RunFailedError, match="c"):
        agent.run("x")
    assert len(agent.model.requests) == 3


# Failures


def test_an_unhandled_model_failure_fails_the_run_with_its_cause():
    with pytest.raises(RunFailedError, match="server down") as caught:
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


def test_an_interrupted_stream_is_charged_and_its_text_discarded():
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

    with pytest.raises(RunFailedError, match="'scripted' returned str, not a ModelResponse"):
        Agent("a", llm=Wrong()).run("x")


def test_a_cancelled_error_raised_by_a_model_is_a_failure():
    import asyncio

    with pytest.raises(RunFailedError, match="CancelledError"):
        scripted_agent([asyncio.CancelledError()]).run("x")


def test_the_events_of_a_model_call_contain_model_usage_and_source():
    log = EventLog()
    scripted_agent([reply("hi", usage=Usage(3, 4), cost=0.25, organization_id="org")], tools=[add], sinks=[log]).run(
        "x"
    )
    (called,) = log.of(ModelCalled)
    (replied,) = log.of(ModelReplied)
    assert (called.model, called.messages, called.tools) == ("scripted", 1, ("add",))
    assert (replied.provider, replied.usage, replied.cost, replied.organization_id) == (
        "scripted",
        Usage(3, 4),
        0.25,
        "org",
    )


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


async def test_a_call_that_is_interrupted_is_charged_at_the_models_price():
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


# What is kept, shown and charged


def test_a_run_that_is_complete_at_before_llm_calls_the_model_no_more():
    @hook(BEFORE_LLM)
    def done(ctx, request):
        return HookResult.stop("nothing to do", kind="finish_reason")

    agent = scripted_agent([reply("never")], hooks=[done])
    result = agent.run("x")
    assert (result.status, result.stop.kind) == ("completed", "finish_reason")
    assert agent.model.requests == []


def test_calls_that_after_llm_gives_get_ids_that_no_other_call_has():
    twice = [ToolCall("same", "add", {"a": n, "b": n}) for n in (1, 2)]
    twice.append(call("add", a=3, b=3))

    @hook(AFTER_LLM)
    def more(ctx, answer):
        return answer.replace(tool_calls=twice) if answer.hop < 2 else None

    log = EventLog()
    result = scripted_agent([reply("a"), reply("b"), reply("c")], tools=[add], hooks=[more], sinks=[log]).run("x")
    ids = [made.id for message in result.messages for made in message.tool_calls]
    assert len(ids) == len(set(ids)) == 6
    assert ids[0] == "same"
    assert all(each.startswith("call_") for each in ids[1:])
    assert [m.call_id for m in result.messages if m.role == "tool"] == ids
    assert [m.content for m in result.messages if m.role == "tool"] == ["2", "4", "6"] * 2
    assert [made.id for event in log.of(ModelReplied) for made in event.tool_calls] == ids


def test_calls_with_ids_of_their_own_keep_them():
    made = ModelResponse("", (ToolCall("one", "add", {"a": 1, "b": 1}), ToolCall("two", "add", {"a": 2, "b": 2})))
    result = scripted_agent([made, reply("x")], tools=[add]).run("x")
    assert [c.id for c in result.messages[1].tool_calls] == ["one", "two"]


class Pieces:
    """A model that streams the given items: pieces of text, a whole response, or an error to raise."""

    name, provider = "pieces", "test"

    def __init__(self, *turns):
        self.turns, self.closed = list(turns), 0

    async def complete(self, request):
        raise AssertionError("it is streamed")

    async def stream(self, request):
        try:
            for piece in self.turns.pop(0):
                if isinstance(piece, Exception):
                    raise piece
                yield piece
        finally:
            self.closed += 1

    def count_tokens(self, content):
        return len(content.split()) if isinstance(content, str) else 10


def streamed(*turns, hooks=()):
    model, log = Pieces(*turns), EventLog()
    result = Agent("a", llm=model, tools=[add], hooks=hooks, sinks=[log]).run("x")
    return result, log, model


def test_a_reply_that_came_whole_is_shown_whole():
    result, log, model = streamed([ModelResponse("all at once", usage=Usage(1, 3))])
    assert [event.text for event in log.of(TextDelta)] == ["all at once"]
    assert (result.reply, result.usage, model.closed) == ("all at once", Usage(1, 3), 1)


def test_pieces_after_the_whole_reply_are_not_read():
    result, log, model = streamed(["one", ModelResponse("one", usage=Usage(1, 1)), "two"])
    assert [event.text for event in log.of(TextDelta)] == ["one"]
    assert (result.reply, model.closed) == ("one", 1)


def test_a_stream_without_a_whole_reply_may_be_tried_again_and_is_counted():
    seen = []

    @observer(AFTER_LLM)
    def watch(ctx, answer):
        seen.append(answer.content)

    @hook(ON_ERROR)
    def again(ctx, failure):
        return HookResult.retry()

    whole = ModelResponse("fine", usage=Usage(2, 1), cost=0.5)
    result, log, _ = streamed(["one ", "two"], [whole], hooks=[watch, again])
    assert seen == ["fine"]
    assert (result.reply, result.usage) == ("fine", Usage(12, 3))
    assert len(log.of(Discarded)) == 1


def test_a_stream_that_fails_is_charged_for_what_came_and_for_nothing_if_nothing_came():
    @hook(ON_ERROR)
    def again(ctx, failure):
        return HookResult.retry()

    whole = ModelResponse("fine", usage=Usage(2, 1), cost=0.5)
    result, log, model = streamed([OSError("gone")], [whole], hooks=[again])
    assert (result.usage, result.reply, model.closed) == (Usage(2, 1), "fine", 2)
    assert log.of(Discarded) == []
    result, log, model = streamed(["one ", "two", OSError("gone")], ["x", OSError("gone")], [whole], hooks=[again])
    assert (result.usage, result.reply, model.closed) == (Usage(22, 4), "fine", 3)
    assert [(e.hop, e.attempt, e.purpose) for e in log.of(Discarded)] == [(0, 1, "step"), (0, 2, "step")]
    assert [event.text for event in log.of(TextDelta)] == ["one ", "two", "x", "fine"]
    made = ModelResponse("", (ToolCall("c", "add", {"a": 1, "b": 1}),), Usage(1, 1))
    _, log, _ = streamed([made], ["x", OSError("gone")], [whole], hooks=[again])
    assert [(e.hop, e.attempt, e.purpose) for e in log.of(Discarded)] == [(1, 1, "step")]


def test_the_discarded_text_of_a_later_step_has_its_hop():
    @hook(AFTER_LLM)
    def reject(ctx, answer):
        return HookResult.retry() if answer.hop == 1 and answer.attempt < 3 else None

    log = EventLog()
    agent = scripted_agent([call("add", a=1, b=1), *map(reply, "abc")], tools=[add], hooks=[reject], sinks=[log])
    assert agent.run("x").reply == "c"
    assert [(e.hop, e.attempt, e.purpose) for e in log.of(Discarded)] == [(1, 1, "step"), (1, 2, "step")]
    assert agent.model.requests[-1].messages[-1].role == "user"
    assert agent.model.requests[-1].messages[-1].content  # there is a default note


def test_a_reply_that_is_ended_at_its_third_piece_was_shown_up_to_there():
    seen = []

    @hook(ON_TOKEN)
    def end(ctx, token):
        if token.delta == "three":
            return HookResult.end("enough")
        return token.replace(delta=token.delta.upper())

    @observer(AFTER_LLM)
    def watch(ctx, answer):
        seen.append((answer.content, answer.tool_calls, answer.usage))

    calls = (ToolCall("c", "add", {"a": 1, "b": 1}),)
    turn = ["one ", "two ", "three", ModelResponse("one two three", calls, Usage(5, 5))]
    result, log, model = streamed(turn, hooks=[end, watch])
    assert (result.status, result.reply, model.closed) == ("ended", "enough", 1)
    assert seen == [("ONE TWO ", (), Usage(10, 3))]
    assert [event.text for event in log.of(TextDelta)] == ["ONE ", "TWO "]
    assert result.usage == Usage(10, 3)


def test_an_answer_that_is_ended_at_on_token_is_withdrawn_too():
    seen = []

    @hook(BEFORE_LLM)
    def answer(ctx, request):
        return HookResult.answer("secret")

    @hook(ON_TOKEN)
    def end(ctx, token):
        return HookResult.end("no")

    @observer(AFTER_LLM)
    def watch(ctx, reply):
        seen.append((reply.content, reply.usage))

    result = scripted_agent([], hooks=[answer, end, watch]).run("x")
    assert (result.status, result.reply, seen) == ("ended", "no", [("", Usage())])


def test_a_price_of_an_answer_counts_and_none_is_free():
    @hook(BEFORE_LLM)
    def answer(ctx, request):
        return HookResult.answer(ModelResponse("hi", usage=Usage(1, 1), cost=0.5))

    seen = []

    @observer(AFTER_LLM)
    def watch(ctx, reply):
        seen.append((reply.cost, reply.usage))

    scripted_agent([], hooks=[answer, watch]).run("x")
    assert seen == [(0.5, Usage(1, 1))]


def test_content_of_none_is_an_empty_text():
    made = ModelResponse(None, (ToolCall("c", "add", {"a": 1, "b": 1}),), Usage(1, 1))

    class Bare:
        name, provider = "bare", "test"

        def __init__(self):
            self.turns = [made, ModelResponse("x", usage=Usage(1, 1))]

        async def complete(self, request):
            return self.turns.pop(0)

        def count_tokens(self, content):
            return 1

    result = Agent("a", llm=Bare(), tools=[add]).run("x")
    assert (result.messages[1].content, result.reply) == ("", "x")


@pytest.mark.parametrize(
    ("refusal", "status", "by"), [("end", "ended", "wall"), ("raise", "failed", "wall"), ("model", "failed", "")]
)
def test_a_refused_model_call_contains_the_hook_and_the_reason(refusal, status, by):
    seen = []

    @hook(BEFORE_LLM, name="wall")
    def wall(ctx, request):
        if request.purpose == "step" or refusal == "model":
            return None
        if refusal == "raise":
            raise ValueError("broken wall")
        return HookResult.end("not now", reason="rule 7")

    @hook(BEFORE_STEP)
    async def ask(ctx, step):
        try:
            await ctx.llm.complete("?")
        except CallRefusedError as refused:
            seen.append((refused.status, refused.reply, refused.hook, refused.reason, str(refused)))

    turns = [OSError("offline"), reply("x")] if refusal == "model" else [reply("x")]
    result = scripted_agent(turns, hooks=[wall, ask]).run("x")
    assert result.reply == "x"
    ((got, said, hook_name, reason, message),) = seen
    assert (got, hook_name) == (status, by)
    assert (said, reason) == (("not now", "rule 7") if refusal == "end" else ("", ""))
    assert {"end": "wall", "raise": "broken wall", "model": "offline"}[refusal] in message


def test_retry_after_of_a_provider_is_in_the_error():
    waits = []

    @hook(ON_ERROR)
    def again(ctx, failure):
        waits.append((failure.errors[0].type, failure.errors[0].retry_after))
        return HookResult.retry()

    scripted_agent([RateLimitError("slow down", retry_after=3.5), OSError("gone"), reply("x")], hooks=[again]).run("x")
    assert waits == [("RateLimitError", 3.5), ("OSError", None)]
