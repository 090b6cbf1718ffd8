"""ResponseCacheHook: cached model replies."""

import asyncio
import threading

import pytest

from hookline import (
    AFTER_LLM,
    BEFORE_LLM,
    AgentContext,
    Attachment,
    HookResult,
    Message,
    ModelReply,
    ModelRequest,
    RegistrationError,
    ScriptedModel,
    Session,
    call,
    guard,
    hook,
    observer,
    reply,
    tool,
)
from hookline._run.agent import Agent
from hookline.hooks import FallbackModelHook, ModelRetryHook, ResponseCacheHook
from hookline.models import RateLimitError
from hookline.payloads import ToolCall, ToolSpec, Usage
from hookline.testing import FakeClock, fire_hook, scripted_agent


@tool
def add(a: int, b: int) -> str:
    """Add."""
    return str(a + b)


def ask(cache, request, ctx=None):
    """What the cache serves for a request, if anything."""
    verdict = fire_hook(cache, BEFORE_LLM, request, ctx=ctx or AgentContext())
    return verdict.answer.value if verdict.answer else None


def keep(cache, request, ctx=None, **fields):
    given = {"content": "kept", "request": request, "attempt": request.attempt, "hop": request.hop, **fields}
    fire_hook(cache, AFTER_LLM, ModelReply(**given), ctx=ctx or AgentContext())


def request(*messages, **fields):
    return ModelRequest(messages or (Message("user", "hi"),), **fields)


def test_a_repeated_task_is_answered_from_the_cache_at_no_cost():
    cache, seen = ResponseCacheHook(), []

    @observer(AFTER_LLM)
    def watch(ctx, got):
        seen.append((got.source, got.usage.total_tokens, got.cost))

    agent = scripted_agent([reply("hello", usage=Usage(3, 4), cost=0.5)], hooks=[cache, watch])
    first, second = agent.run("hi"), agent.run("hi")
    assert (first.reply, second.reply, len(agent.model.requests)) == ("hello", "hello", 1)
    assert (second.usage, second.cost) == (Usage(), 0.0)
    assert seen == [("model", 7, 0.5), ("ResponseCacheHook", 0, 0.0)]
    assert (cache.hits, cache.misses, len(cache)) == (1, 1, 1)


def test_a_run_with_tools_is_cached_although_call_ids_differ():
    cache = ResponseCacheHook()
    turns = [
        lambda _: reply("", tool_calls=(ToolCall("call_a", "add", {"a": 1, "b": 2}),), finish_reason="tool_calls"),
        "3",
    ]
    agent = scripted_agent(turns, tools=[add], hooks=[cache])
    agent.run("1+2")
    renamed = []

    @hook(AFTER_LLM, priority=-5)
    def rename(ctx, got):  # providers use other ids in each run
        calls = tuple(c.replace(id=f"other_{c.id}") for c in got.tool_calls)
        renamed.extend(calls)
        return got.replace(tool_calls=calls)

    result = agent.run("1+2", hooks=[rename])
    assert (result.reply, result.tool_calls, len(agent.model.requests), len(renamed)) == ("3", 1, 2, 1)


def test_calls_of_a_cached_reply_get_new_ids_if_the_transcript_has_theirs():
    cache, session = ResponseCacheHook(), Session("s")

    @hook(BEFORE_LLM)
    def forget(ctx, request):  # only this message, so that requests repeat
        last = max(i for i, m in enumerate(request.messages) if m.role == "user")
        return request.replace(messages=request.messages[last:])

    agent = scripted_agent([[call("add", a=1, b=2)], "3"], tools=[add], hooks=[cache, forget])
    for _ in range(3):
        assert agent.run("1+2", session=session).reply == "3"
    assert len(agent.model.requests) == 2
    ids = [c.id for m in session.messages for c in m.tool_calls]
    assert len(set(ids)) == len(ids) == 3
    assert [m.call_id for m in session.messages if m.role == "tool"] == ids


BASE = request(
    Message("user", "hi"),
    Message("assistant", "", (ToolCall("c1", "add", {"a": 1, "b": 2}),)),
    Message("tool", "3", call_id="c1", name="add"),
    tools=(ToolSpec("add"),),
    model="m",
    params={"seed": 1, "top_p": 1},
)


@pytest.mark.parametrize(
    "changes",
    [
        {"messages": (*BASE.messages, Message("user", "x"))},
        {"messages": BASE.messages[:1]},
        {"messages": (Message("user", "ho"), *BASE.messages[1:])},
        {"messages": (Message("system", "hi"), *BASE.messages[1:])},
        {"messages": (*BASE.messages[:2], Message("tool", "3", call_id="c1", name="add", is_error=True))},
        {
            "messages": (
                BASE.messages[0],
                Message("assistant", "", (ToolCall("c1", "add", {"a": 2}),)),
                BASE.messages[2],
            )
        },
        {"messages": (BASE.messages[0], Message("assistant", "", (ToolCall("c1", "sub"),)), BASE.messages[2])},
        {"tools": ()},
        {"tools": (ToolSpec("add", "Add."),)},
        {"model": "n"},
        {"params": {"seed": 2, "top_p": 1}},
        {"response_format": {"type": "object"}},
        {"tool_choice": "add"},
    ],
)
def test_a_request_that_differs_for_the_model_is_another_request(changes):
    cache = ResponseCacheHook()
    keep(cache, BASE)
    assert ask(cache, BASE).content == "kept"
    assert ask(cache, BASE.replace(changes)) is None


def test_ids_hops_purposes_and_the_order_of_params_do_not_count():
    cache = ResponseCacheHook()
    keep(cache, BASE)
    renamed = (
        BASE.messages[0],
        BASE.messages[1].replace(tool_calls=(ToolCall("zz", "add", {"b": 2, "a": 1}),)),
        BASE.messages[2].replace(call_id="zz"),
    )
    same = {"hop": 4, "purpose": "judge", "ids": {"run_id": "r"}, "params": {"top_p": 1, "seed": 1}}
    assert ask(cache, BASE.replace(same, messages=renamed)).content == "kept"


def test_results_that_swapped_their_calls_are_another_request():
    cache = ResponseCacheHook()
    calls = Message("assistant", "", (ToolCall("a", "add"), ToolCall("b", "add")))
    keep(cache, request(calls, Message("tool", "1", call_id="a"), Message("tool", "2", call_id="b")))
    assert ask(cache, request(calls, Message("tool", "1", call_id="b"), Message("tool", "2", call_id="a"))) is None
    other = Message("assistant", "", (ToolCall("x", "add"), ToolCall("y", "add")))
    assert ask(cache, request(other, Message("tool", "1", call_id="x"), Message("tool", "2", call_id="y")))


def test_the_key_is_the_final_request():
    @hook(BEFORE_LLM)
    def stamp(ctx, given):
        return given.replace(messages=(Message("user", f"it is {ctx.deps}"),))

    agent = scripted_agent(["a", "b"], hooks=[ResponseCacheHook(), stamp])
    assert [agent.run("x", deps=day).reply for day in ("mon", "mon", "tue")] == ["a", "a", "b"]


def test_another_providers_model_of_the_same_name_is_another_model():
    cache = ResponseCacheHook()
    one, two = ScriptedModel(["one"]), ScriptedModel(["two"])
    two.provider = "elsewhere"
    assert [Agent("a", llm=model, hooks=[cache]).run("hi").reply for model in (one, two)] == ["one", "two"]


def test_the_reply_of_a_fallback_of_the_same_name_is_not_cached():
    model, other = ScriptedModel([RateLimitError("busy"), reply("own")]), ScriptedModel(["other"])
    other.provider = "elsewhere"
    agent = Agent("a", llm=model, hooks=[ResponseCacheHook(), FallbackModelHook(other)])
    assert [agent.run("hi").reply for _ in range(3)] == ["other", "own", "own"]


@pytest.mark.parametrize(
    "fields",
    [
        {"finish_reason": "length"},
        {"finish_reason": "content_filter"},
        {"finish_reason": "other"},
        {"content": ""},
        {"source": "some_hook"},
        {"tool_calls": (ToolCall("c", "add", "{not json"),)},
    ],
)
def test_incomplete_replies_and_answers_of_hooks_are_not_cached(fields):
    cache = ResponseCacheHook()
    keep(cache, request(), **fields)
    assert len(cache) == 0


def test_a_rejected_reply_is_removed_and_the_next_attempt_goes_to_the_model():
    @hook(AFTER_LLM)
    def picky(ctx, got):
        return HookResult.retry("Again.") if got.content == "bad" else None

    @hook(BEFORE_LLM)
    def same(ctx, given):  # all attempts have the same request
        return given.replace(messages=given.messages[:1])

    cache = ResponseCacheHook()
    agent = scripted_agent(["bad", "bad", "good", "never"], hooks=[picky, same, cache])
    assert agent.run("hi").reply == "good"
    assert agent.run("hi").reply == "good"
    assert (len(agent.model.requests), len(cache)) == (3, 1)


def test_a_rejected_cached_reply_is_removed():
    agent = scripted_agent(["old", "new", "newer"], hooks=[ResponseCacheHook()])
    agent.run("hi")

    @hook(AFTER_LLM)
    def picky(ctx, got):
        return HookResult.retry("Again.") if got.content == "old" else None

    assert agent.run("hi", hooks=[picky]).reply == "new"
    assert agent.run("hi").reply == "newer"


def test_a_reply_that_was_rejected_when_it_came_is_removed():
    @hook(AFTER_LLM)
    def picky(ctx, got):
        return HookResult.retry("Again.") if got.content == "old" else None

    agent = scripted_agent(["old", "new", "newer"], hooks=[ResponseCacheHook()])
    assert agent.run("hi", hooks=[picky]).reply == "new"
    assert agent.run("hi").reply == "newer"


def test_a_model_that_repeats_a_rejected_reply_is_called_again():
    @hook(AFTER_LLM)
    def picky(ctx, got):
        return HookResult.retry("Again.") if got.content == "bad" else None

    agent = scripted_agent(["bad", "bad", "good"], hooks=[picky, ResponseCacheHook()])
    assert agent.run("hi").reply == "good"


def test_a_reply_after_a_failure_is_cached():
    agent = scripted_agent([RateLimitError("no"), "ok"], hooks=[ModelRetryHook(base_delay=0), ResponseCacheHook()])
    assert [agent.run("hi").reply for _ in range(2)] == ["ok", "ok"]
    assert len(agent.model.requests) == 2


def test_rewriters_get_a_cached_reply_as_the_model_gave_it():
    @hook(AFTER_LLM)
    def sign(ctx, got):
        return got.replace(content=f"{got.content}!")

    agent = scripted_agent(["hi"], hooks=[sign, ResponseCacheHook()])
    assert [agent.run("x").reply for _ in range(3)] == ["hi!"] * 3


def test_guards_still_judge_a_cached_request():
    cache = ResponseCacheHook()
    agent = scripted_agent(["hi", "never"], hooks=[cache])
    agent.run("x")

    @guard(BEFORE_LLM)
    def closed(ctx, given):
        return HookResult.end("closed")

    assert agent.run("x", hooks=[closed]).reply == "closed"


def test_the_least_recently_used_reply_is_removed_first():
    cache = ResponseCacheHook(2)
    one, two, three = (request(Message("user", text)) for text in "123")
    keep(cache, one)
    keep(cache, two)
    assert ask(cache, one)
    keep(cache, three)
    assert [ask(cache, r) is not None for r in (one, two, three)] == [True, False, True]
    assert len(cache) == 2


def test_a_reply_expires_after_ttl_on_the_monotonic_clock():
    cache, clock = ResponseCacheHook(ttl=10), FakeClock()
    ctx = AgentContext(clock=clock)
    keep(cache, request(), ctx)
    clock.advance(9.9)
    assert ask(cache, request(), ctx)
    clock.advance(0.1)
    assert ask(cache, request(), ctx) is None
    assert len(cache) == 0


def test_only_the_given_purposes_are_cached():
    cache = ResponseCacheHook(purposes=["judge"])
    keep(cache, request())
    assert len(cache) == 0
    keep(cache, request(), purpose="judge")
    assert ask(cache, request()) is None
    assert ask(cache, request(purpose="judge"))


def test_the_cache_can_be_cleared():
    cache = ResponseCacheHook()
    keep(cache, request())
    cache.clear()
    assert (ask(cache, request()), cache.hits, cache.misses) == (None, 0, 1)


def test_text_with_lone_surrogates_is_cached():
    cache = ResponseCacheHook()
    keep(cache, request(Message("user", "a\ud800")), content="one")
    keep(cache, request(Message("user", "a\ud801")), content="two")
    assert ask(cache, request(Message("user", "a\ud800"))).content == "one"
    assert ask(cache, request(Message("user", "a\ud801"))).content == "two"


async def test_concurrent_runs_share_it():
    cache = ResponseCacheHook()
    agent = scripted_agent([lambda r: r.messages[-1].content], hooks=[cache])
    agent.model.loop = True
    tasks = [str(n % 5) for n in range(200)]
    results = await asyncio.gather(*(agent.arun(task) for task in tasks))
    assert [result.reply for result in results] == tasks
    assert cache.hits + cache.misses == 200


@pytest.mark.slow
def test_it_is_safe_from_several_threads():
    cache = ResponseCacheHook(3)

    def work(offset):
        for n in range(200):
            text = str((n + offset) % 7)
            keep(cache, request(Message("user", text)), content=text)
            got = ask(cache, request(Message("user", text)))
            assert got is None or got.content == text

    failures = []

    def guarded(offset):
        try:
            work(offset)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert (len(cache), cache.hits + cache.misses) == (3, 800)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_entries": 0}, "max_entries"),
        ({"max_entries": True}, "max_entries"),
        ({"ttl": 0}, "cache nothing"),
        ({"ttl": -1}, "ttl"),
        ({"ttl": float("nan")}, "ttl"),
        ({"purposes": []}, "purposes"),
        ({"purposes": "step"}, r"\['step'\]"),
    ],
)
def test_invalid_arguments_are_rejected(options, says):
    with pytest.raises(RegistrationError, match=says):
        ResponseCacheHook(**options)


def test_requests_with_other_attachments_are_other_requests():
    cats, dogs = (Attachment.of(b"\x89PNG\r\n\x1a\n" + name, name="photo.png") for name in (b"cats", b"dogs"))
    model = ScriptedModel(["Cats.", "Dogs."])
    agent = Agent("a", llm=model, hooks=[ResponseCacheHook()])
    replies = [agent.run("What is this?", attachments=[each]).reply for each in (cats, dogs, cats)]
    assert replies == ["Cats.", "Dogs.", "Cats."]
    assert len(model.requests) == 2
