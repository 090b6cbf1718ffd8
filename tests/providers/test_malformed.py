"""Malformed replies: anything that a server sends gives a response or one of our errors."""

import json
from contextlib import suppress
from functools import partial

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hookline import Message, ModelRequest, get_model
from hookline.models import ModelResponse, OverloadedError, ProviderError
from hookline.payloads import Usage
from hookline.providers.anthropic import AnthropicModel
from hookline.providers.openai import OpenAIModel
from tests.properties import examples

from .servers import Said, sse, whole

pytestmark = pytest.mark.slow

VENDORS = ("deepseek", "gemini", "openrouter", "groq")

ASKED = ModelRequest((Message("user", "Hi."),))
MAKERS = {
    "chat": lambda url: OpenAIModel("gpt-4o", base_url=url, max_retries=0),
    "responses": lambda url: OpenAIModel("gpt-4o", api="responses", base_url=url, max_retries=0),
    "messages": lambda url: AnthropicModel("claude-sonnet-4-5", base_url=url, max_retries=0),
    **{
        name: partial(lambda name, url: get_model(f"{name}:m", base_url=url, api_key="k", max_retries=0), name)
        for name in VENDORS
    },
}
CALL = {"index": 0, "id": "c", "function": {"name": "add", "arguments": "{}"}}
BLOCK = {"type": "tool_use", "id": "c", "name": "add", "input": {}}
ITEM = {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"}
SAID = {"type": "message", "content": [{"type": "output_text", "text": "Hi."}]}
OPENAI_USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}
USAGE = {
    "input_tokens": 7,
    "output_tokens": 2,
    "cache_read_input_tokens": 1,
    "cache_creation_input_tokens": 1,
    "cache_creation": {"ephemeral_5m_input_tokens": 1},
    "input_tokens_details": {"cached_tokens": 1},
}
RESPONSE = {"model": "m", "status": "completed", "output": [SAID, ITEM], "usage": USAGE, "incomplete_details": None}
GOOD = {
    "chat": {
        "model": "m",
        "choices": [{"index": 0, "message": {"content": "Hi.", "tool_calls": [CALL]}, "finish_reason": "stop"}],
        "usage": OPENAI_USAGE,
    },
    "responses": RESPONSE,
    "messages": {
        "model": "m",
        "content": [{"type": "text", "text": "Hi."}, BLOCK],
        "stop_reason": "end_turn",
        "usage": USAGE,
    },
}
EVENTS = {
    "chat": [
        {"model": "m", "choices": [{"index": 0, "delta": {"content": "Hi.", "tool_calls": [CALL]}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": OPENAI_USAGE},
    ],
    "responses": [
        {"type": "response.output_text.delta", "delta": "Hi."},
        {"type": "response.output_item.done", "item": ITEM},
        {"type": "response.completed", "response": RESPONSE},
    ],
    "messages": [
        {"type": "message_start", "message": {"model": "m", "usage": USAGE}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi."}},
        {"type": "content_block_start", "index": 1, "content_block": BLOCK},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "{}"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
    ],
}
OWN = {"reasoning_content": "Hm.", "reasoning_details": [{"type": "reasoning.text", "text": "Hm."}]}
OWN_CALL = {**CALL, "extra_content": {"google": {"thought_signature": "s"}}}
for vendor in VENDORS:
    GOOD[vendor] = {
        "model": "m",
        "choices": [{"message": {"content": "Hi.", "tool_calls": [OWN_CALL], **OWN}, "finish_reason": "stop"}],
        "usage": {**OPENAI_USAGE, "cost": 0.1, "prompt_cache_hit_tokens": 1},
    }
    EVENTS[vendor] = [
        {"choices": [{"delta": {"content": "Hi.", **OWN}}]},
        {"choices": [{"delta": {"tool_calls": [OWN_CALL], **OWN}}]},
        {"choices": [{"delta": {}, "finish_reason": "stop"}], "x_groq": {"usage": OPENAI_USAGE}, "usage": OPENAI_USAGE},
    ]
EACH = pytest.mark.parametrize("api", MAKERS)
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3) | st.just("error"), inner, max_size=2)
    ),
    max_leaves=4,
)
ODD = st.sampled_from([None, [], {}, "", "7", -7, 1.5, 10**30, True, [None], {"a": 1}, ["a"], {"type": "text"}]) | ANY
GENTLE = settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def places(value, path=()):
    """Return the paths in a JSON value at which something can be replaced."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def spoilt(value, path, odd):
    if not path:
        return odd
    copy = value.copy()
    copy[path[0]] = spoilt(value[path[0]], path[1:], odd)
    return copy


@st.composite
def spoilt_once_or_twice(draw, good):
    for _ in range(draw(st.integers(1, 2))):
        good = spoilt(good, draw(st.sampled_from(list(places(good)))), draw(ODD))
    return good


def stream_of(api, events):
    """Encode events as the server sends them, including invalid ones."""
    if api != "messages":
        return sse(*events, done=True)
    names = [event.get("type") if isinstance(event, dict) else "message_delta" for event in events]
    lines = [
        f"event: {json.dumps(n).strip(chr(34))}\ndata: {json.dumps(e)}\n\n" for n, e in zip(names, events, strict=True)
    ]
    return Said([line.encode() for line in lines], headers={"Content-Type": "text/event-stream"})


def check(response):
    """Check that a response has the declared types and can be serialized."""
    assert isinstance(response, ModelResponse)
    texts = [response.content, response.model, *(text for call in response.tool_calls for text in (call.id, call.name))]
    assert all(isinstance(text, str) for text in texts)
    counts = msgspec.structs.astuple(response.usage)
    assert all(type(tokens) is int and tokens >= 0 for tokens in counts)
    msgspec.json.encode(response)


async def streamed(model):
    *pieces, response = [item async for item in model.stream(ASKED)]
    assert all(isinstance(piece, str) for piece in pieces)
    return response


@EACH
async def test_the_unmodified_replies_are_valid(api, script):
    model = MAKERS[api](script.url)
    script.say(whole(GOOD[api]), stream_of(api, EVENTS[api]))
    for response in (await model.complete(ASKED), await streamed(model)):
        check(response)
        assert (response.content, [call.name for call in response.tool_calls]) == ("Hi.", ["add"])
        assert response.usage.output_tokens == 2


@pytest.mark.slow
@GENTLE
@EACH
@given(st.data())
async def test_any_reply_gives_a_response_or_one_of_our_errors(api, script, data):
    script.turns[:] = [whole(data.draw(ANY | spoilt_once_or_twice(GOOD[api])))]
    with suppress(ProviderError):
        model = MAKERS[api](script.url)
        response = await model.complete(ASKED)
        check(response)
        # What a vendor wants back is part of the next request.
        await model.complete(ModelRequest((Message("assistant", "", response.tool_calls),)))


@pytest.mark.slow
@GENTLE
@EACH
@given(st.data())
async def test_any_stream_gives_a_response_or_one_of_our_errors(api, script, data):
    events = data.draw(st.lists(ANY, max_size=3) | spoilt_once_or_twice(EVENTS[api]).filter(lambda e: type(e) is list))
    script.turns[:] = [stream_of(api, events)]
    with suppress(ProviderError):
        check(await streamed(MAKERS[api](script.url)))


@pytest.mark.parametrize(
    ("api", "data"),
    [
        ("chat", {"choices": [None]}),
        ("chat", {"choices": {"a": 1}}),
        ("chat", spoilt(GOOD["chat"], ("choices", 0, "finish_reason"), ["stop"])),
        ("chat", spoilt(GOOD["chat"], ("model",), {"a": 1})),
        ("chat", spoilt(GOOD["chat"], ("choices", 0, "message", "tool_calls", 0, "id"), 7)),
        ("responses", {"foo": 1}),
        ("responses", {"output": [None]}),
        ("messages", {"foo": 1}),
        ("messages", {"content": "Hi."}),
        ("messages", {"content": [{"type": "text", "text": 7}]}),
    ],
)
async def test_a_malformed_reply_counts_as_incomplete(api, script, data):
    script.say(whole(data))
    with pytest.raises(OverloadedError, match="incomplete reply"):
        await MAKERS[api](script.url).complete(ASKED)


@pytest.mark.parametrize(
    ("api", "event"),
    [
        ("chat", {"choices": [None]}),
        ("chat", {"choices": [{"delta": {"tool_calls": [7]}}]}),
        ("responses", {"type": "response.output_item.done"}),
        ("responses", {"type": "response.completed", "response": 7}),
        ("messages", {"type": "message_start"}),
        ("messages", {"type": "content_block_start", "index": 0}),
        ("messages", {"type": "content_block_start", "index": [], "content_block": {}}),
    ],
)
async def test_a_malformed_event_counts_as_incomplete(api, script, event):
    script.say(stream_of(api, [*EVENTS[api], event]))
    with pytest.raises(OverloadedError, match="incomplete reply"):
        await streamed(MAKERS[api](script.url))


@EACH
@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5_000], ids=["too deep", "too long a number"])
async def test_invalid_json_is_an_error(api, script, text):
    body = f'{{"type": "message_start", "x": {text}'.encode()
    script.say(Said([body + b"}"]), Said([b"event: message_start\ndata: " + body + b"}\n\n"]))
    for ask in (MAKERS[api](script.url).complete, lambda _: streamed(MAKERS[api](script.url))):
        with pytest.raises(ProviderError):
            await ask(ASKED)


@pytest.mark.parametrize("given_tokens", ["7", 7.0, -7, 0, None, "many", [7], 10**30])
async def test_an_invalid_token_count_does_not_break_a_reply_and_is_estimated(script, given_tokens):
    usage = {"prompt_tokens": given_tokens, "completion_tokens": 2, "prompt_tokens_details": 3}
    script.say(whole({**GOOD["chat"], "usage": usage}))
    model = MAKERS["chat"](script.url)
    response = await model.complete(ASKED)
    counted = 7 if given_tokens in ("7", 7.0) else model.count_tokens(ASKED.messages)
    assert (response.content, response.usage) == ("Hi.", Usage(counted, 2))


async def test_a_usage_of_nothing_is_estimated(script):
    script.say(whole({**GOOD["chat"], "usage": {"prompt_tokens": 0, "completion_tokens": 0}}))
    usage = (await MAKERS["chat"](script.url).complete(ASKED)).usage
    assert usage.input_tokens > 0
    assert usage.output_tokens > 0


@pytest.mark.slow
@EACH
@pytest.mark.parametrize("usage", ["lots", 7, ["a"], None])
async def test_a_missing_usage_is_estimated(api, script, usage):
    script.say(whole({**GOOD[api], "usage": usage}))
    assert (await MAKERS[api](script.url).complete(ASKED)).usage.total_tokens > 0
