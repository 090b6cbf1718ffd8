"""Errors of the vendors' clients are mapped to Hookline's errors."""

import time
from email.utils import formatdate

import pytest

import hookline
import hookline.models
from hookline import Agent, Message, ModelRequest, hook
from hookline.models import (
    AuthError,
    BadRequestError,
    ContextOverflowError,
    ModelTimeoutError,
    OverloadedError,
    ProviderError,
    RateLimitError,
    UnknownModelError,
    UnreachableError,
)
from hookline.providers.anthropic import AnthropicModel
from hookline.providers.error_mapping import Endpoint, map_error, retry_after
from hookline.providers.openai import OpenAIModel

from .servers import Said, sse, whole

pytestmark = pytest.mark.slow

ASKED = ModelRequest((Message("user", "Hi."),))
KEY = "sk-secret-0123456789"


@pytest.fixture
def openai(script):
    return OpenAIModel("gpt-x", base_url=script.url, api_key=KEY, max_retries=0)


@pytest.fixture
def responses(script):
    return OpenAIModel("gpt-x", api="responses", base_url=script.url, api_key=KEY, max_retries=0)


@pytest.fixture
def anthropic(script):
    return AnthropicModel("claude-x", base_url=script.url, api_key=KEY, max_retries=0)


async def both(model):
    """Return the error of a whole reply, and check that a streamed one has the same."""
    with pytest.raises(ProviderError) as whole_one:
        await model.complete(ASKED)
    with pytest.raises(ProviderError) as streamed:
        async for _ in model.stream(ASKED):
            pass
    assert type(whole_one.value) is type(streamed.value)
    assert str(whole_one.value) == str(streamed.value)
    return whole_one.value


OPENAI = [
    (
        401,
        {"message": "Incorrect API key provided", "type": "invalid_request_error", "code": "invalid_api_key"},
        AuthError,
    ),
    (403, {"message": "Country not supported", "code": "unsupported_country_region_territory"}, AuthError),
    (
        404,
        {"message": "The model `x` does not exist", "type": "invalid_request_error", "code": "model_not_found"},
        UnknownModelError,
    ),
    (404, {"message": "File Not Found", "type": "not_found_error", "code": 404}, UnknownModelError),
    (400, {"message": "x is not a valid model ID", "code": 400}, UnknownModelError),
    (429, {"message": "Rate limit reached", "type": "requests", "code": "rate_limit_exceeded"}, RateLimitError),
    (429, {"message": "Request too large: the context window", "type": "tokens"}, RateLimitError),
    (
        429,
        {"message": "You exceeded your current quota", "type": "insufficient_quota", "code": "insufficient_quota"},
        AuthError,
    ),
    (402, {"message": "Insufficient credits", "code": 402}, AuthError),
    (400, {"message": "Please reduce the length", "code": "context_length_exceeded"}, ContextOverflowError),
    (
        400,
        {"message": "This model's maximum context length is 4096 tokens", "type": "BadRequestError", "code": 400},
        ContextOverflowError,
    ),
    (
        400,
        {"message": "request (3031 tokens) exceeds it", "type": "exceed_context_size_error", "code": 400},
        ContextOverflowError,
    ),
    (413, {"message": "Too large"}, ContextOverflowError),
    (
        400,
        {"message": "Unknown parameter: 'stop'", "type": "invalid_request_error", "code": "unknown_parameter"},
        BadRequestError,
    ),
    (422, {"message": "temperature: not a number"}, BadRequestError),
    (409, {"message": "Conflict"}, BadRequestError),
    (408, {"message": "Too slow"}, ModelTimeoutError),
    (500, {"message": "The server had an error", "type": "server_error"}, OverloadedError),
    (503, {"message": "OverloadedError"}, OverloadedError),
]


@pytest.mark.parametrize(("status", "error", "kind"), OPENAI)
async def test_every_error_of_openai_has_its_class(script, openai, responses, status, error, kind):
    script.say(whole({"error": error}, status))
    for model in (openai, responses):
        error_raised = await both(model)
        assert type(error_raised) is kind
        assert error_raised.status == status
        assert "openai" in str(error_raised)
        assert "gpt-x" in str(error_raised)
        assert error["message"][:20] in str(error_raised)


ANTHROPIC = [
    (401, "authentication_error", "invalid x-api-key", AuthError),
    (403, "permission_error", "Not allowed", AuthError),
    (402, "billing_error", "Pay", AuthError),
    (400, "invalid_request_error", "Your credit balance is too low to access the API", AuthError),
    (404, "not_found_error", "model: claude-x", UnknownModelError),
    (429, "rate_limit_error", "Slow down", RateLimitError),
    (400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum", ContextOverflowError),
    (400, "invalid_request_error", "input length and `max_tokens` exceed context limit", ContextOverflowError),
    (413, "request_too_large", "Request exceeds the maximum size", ContextOverflowError),
    (400, "invalid_request_error", "messages: roles must alternate", BadRequestError),
    (500, "api_error", "Internal server error", OverloadedError),
    (529, "overloaded_error", "OverloadedError", OverloadedError),
]


@pytest.mark.parametrize(("status", "name", "message", "kind"), ANTHROPIC)
async def test_every_error_of_anthropic_has_its_class(script, anthropic, status, name, message, kind):
    script.say(whole({"type": "error", "error": {"type": name, "message": message}}, status))
    error_raised = await both(anthropic)
    assert type(error_raised) is kind
    assert error_raised.status == status
    assert message[:20] in str(error_raised)


async def test_every_error_class_can_occur():
    kinds = {kind for *_, kind in OPENAI} | {kind for *_, kind in ANTHROPIC} | {UnreachableError}
    assert kinds == set(ProviderError.__subclasses__())
    assert all(getattr(hookline.models, kind.__name__) is kind for kind in kinds)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "OverloadedError", "type": "server_error"}, OverloadedError),
        ({"message": "Too long", "type": "exceed_context_size_error", "code": 400}, ContextOverflowError),
        ({"message": "Bad", "type": "invalid_request_error"}, BadRequestError),
        ({"message": "Something", "code": 429}, RateLimitError),
        ({"message": "Something"}, OverloadedError),
        ("Something", OverloadedError),
    ],
)
async def test_an_error_in_the_middle_of_a_chat_stream(script, openai, error, kind):
    script.say(sse({"choices": [{"index": 0, "delta": {"content": "Hel"}}]}, {"error": error}))
    stream = openai.stream(ASKED)
    assert await anext(stream) == "Hel"
    with pytest.raises(kind):
        await anext(stream)


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (
            {"type": "response.failed", "response": {"error": {"code": "server_error", "message": "Oh"}}},
            OverloadedError,
        ),
        ({"type": "response.failed", "response": {"error": {"code": "rate_limit_exceeded"}}}, RateLimitError),
        ({"type": "error", "code": "context_length_exceeded", "message": "Oh"}, ContextOverflowError),
        ({"type": "error", "error": {"code": "context_length_exceeded", "message": "Oh"}}, ContextOverflowError),
    ],
)
async def test_an_error_in_the_middle_of_a_response_stream(script, responses, event, kind):
    script.say(sse({"type": "response.output_text.delta", "delta": "Hel"}, event, named=True))
    stream = responses.stream(ASKED)
    assert await anext(stream) == "Hel"
    with pytest.raises(kind):
        await anext(stream)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("overloaded_error", OverloadedError),
        ("rate_limit_error", RateLimitError),
        ("invalid_request_error", BadRequestError),
        ("something_new", OverloadedError),
    ],
)
async def test_an_error_in_the_middle_of_a_message_stream(script, anthropic, name, kind):
    begun = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}}
    script.say(sse(begun, {"type": "error", "error": {"type": name, "message": "Oh"}}, named=True))
    stream = anthropic.stream(ASKED)
    assert await anext(stream) == "Hel"
    with pytest.raises(kind):
        await anext(stream)


async def test_an_error_with_a_success_status_is_an_error(script, openai):
    script.say(whole({"error": {"message": "Provider returned error", "code": 502}}))
    with pytest.raises(OverloadedError, match="Provider returned error"):
        await openai.complete(ASKED)


async def test_an_invalid_stream_is_an_error(script, openai, anthropic):
    nonsense = Said([b"event: message_start\ndata: {oops\n\n"], headers={"Content-Type": "text/event-stream"})
    script.say(nonsense)
    for model in (openai, anthropic):
        with pytest.raises(OverloadedError, match="incomplete reply"):
            await anext(model.stream(ASKED))


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": formatdate(0, usegmt=True)}, 0.0),
        ({"retry-after": "soon"}, None),
        ({}, None),
    ],
)
def test_retry_after_headers_are_parsed(headers, seconds):
    assert retry_after(headers) == seconds


async def test_the_requested_wait_is_passed_on(script, openai, anthropic):
    later = formatdate(time.time() + 3600, usegmt=True)
    for model in (openai, anthropic):
        script.turns[:] = [whole({"error": {"message": "Slow down"}}, 429, retry_after_ms="250")]
        assert (await both(model)).retry_after == 0.25
        script.turns[:] = [whole({"error": {"message": "Slow down"}}, 429, retry_after=later)]
        with pytest.raises(RateLimitError) as raised:
            await model.complete(ASKED)
        assert 3000 < raised.value.retry_after <= 3600


def test_a_hook_sees_the_wait(script, openai):
    seen = []

    @hook("on_error")
    def look(ctx, failure):
        seen.append((failure.errors[0].type, failure.errors[0].retry_after))

    script.say(whole({"error": {"message": "Slow down"}}, 429, retry_after="3"))
    with pytest.raises(hookline.RunFailedError):
        Agent("a", llm=openai, hooks=[look]).run("Hi.")
    assert seen == [("RateLimitError", 3.0)]


@pytest.mark.parametrize("made", [OpenAIModel, AnthropicModel])
async def test_the_client_retries_max_retries_times(script, made):
    model = made("m", base_url=script.url, max_retries=1)
    script.say(whole({"error": {"message": "Slow down"}}, 429, retry_after_ms="1"))
    with pytest.raises(RateLimitError):
        await model.complete(ASKED)
    assert len(script.requests) == 2


@pytest.mark.parametrize("made", [OpenAIModel, AnthropicModel])
async def test_the_client_does_not_retry_after_a_long_wait(script, made):
    model = made("m", base_url=script.url, max_retries=2)
    script.say(whole({"error": {"message": "Come back tomorrow"}}, 429, retry_after="86400"))
    with pytest.raises(RateLimitError):
        await model.complete(ASKED)
    assert len(script.requests) == 1


async def test_error_messages_never_contain_the_key(script, openai, anthropic):
    script.say(whole({"error": {"message": f"Wrong key: {KEY} {'x' * 1000}"}}, 401))
    for model in (openai, anthropic):
        error_raised = await both(model)
        assert KEY not in str(error_raised)
        assert error_raised.__cause__ is None
        assert error_raised.__suppress_context__
        assert len(str(error_raised)) < 600


@pytest.mark.parametrize(
    "url", ["http://me:hidden@127.0.0.1:9/v1", "http://127.0.0.1:9/v1?api_key=hidden", "http://127.0.0.1:9/v1/#hidden"]
)
async def test_error_messages_contain_no_secrets_of_the_url(url):
    model = OpenAIModel("m", base_url=url, max_retries=0)
    with pytest.raises(UnreachableError, match=r"at http://127.0.0.1:9/v1: ") as raised:
        await model.complete(ASKED)
    assert "hidden" not in str(raised.value)


async def test_a_page_of_html_is_not_repeated(script, openai, anthropic):
    script.say(Said([b"<html><body>Bad gateway</body></html>"], 502, {"Content-Type": "text/html"}))
    for model in (openai, anthropic):
        error_raised = await both(model)
        assert isinstance(error_raised, OverloadedError)
        assert "<" not in str(error_raised)


async def test_a_silent_stream_is_a_timeout(script):
    for made in (OpenAIModel, AnthropicModel):
        model = made("m", base_url=script.url, max_retries=0, timeout=0.1)
        script.turns[:] = [sse({"type": "ping"}, named=True, quiet=True)]
        with pytest.raises(ModelTimeoutError, match=r"0\.1 s"):
            await anext(model.stream(ASKED))


def test_a_connection_that_times_out_is_unreachable():
    import httpx2

    for name in ("openai", "anthropic"):
        source = Endpoint(name, "http://10.0.0.1/v1", "KEY", 5.0)
        assert isinstance(map_error(httpx2.ConnectTimeout("slow"), source, "m"), UnreachableError)
        assert isinstance(map_error(httpx2.ReadTimeout("slow"), source, "m"), ModelTimeoutError)
        assert isinstance(map_error(httpx2.RemoteProtocolError("cut"), source, "m"), UnreachableError)


async def test_our_own_bugs_are_not_provider_errors(openai, monkeypatch):
    def broken(*_):
        raise KeyError("a bug")

    monkeypatch.setattr(openai._api, "body", broken)
    with pytest.raises(KeyError):
        await openai.complete(ASKED)
