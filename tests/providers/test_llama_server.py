"""The vendors' APIs against a real server: llama.cpp with the embedded weights."""

import asyncio
import gc
import socket
import threading
import warnings

import msgspec
import pytest

from hookline import ON_TOKEN, Agent, Message, ModelRequest, RunFailedError, get_model, hook
from hookline.models import (
    AuthError,
    BadRequestError,
    ContextOverflowError,
    ModelResponse,
    ModelTimeoutError,
    UnreachableError,
)
from hookline.providers.anthropic import AnthropicModel
from hookline.providers.openai import OpenAIModel

from .conftest import KEY

pytestmark = pytest.mark.slow


MADE = {
    "chat": lambda url, **options: OpenAIModel("smol", base_url=f"{url}/v1", **options),
    "responses": lambda url, **options: OpenAIModel("smol", api="responses", base_url=f"{url}/v1", **options),
    "messages": lambda url, **options: AnthropicModel("smol", base_url=url, **options),
    "ollama": lambda url, **options: get_model("ollama:smol", base_url=f"{url}/v1", **options),
    "lmstudio": lambda url, **options: get_model("lmstudio:smol", base_url=f"{url}/v1", **options),
    "vllm": lambda url, **options: get_model("vllm:smol", base_url=f"{url}/v1", **options),
}
SHORT = {"max_tokens": 4, "temperature": 0}


@pytest.fixture(params=MADE)
def make(request, llama):
    return lambda **options: MADE[request.param](llama, **{"api_key": KEY, "max_retries": 0, **options})


def asking(*messages, **params):
    return ModelRequest(messages or (Message("user", "Count: one, two,"),), params={**SHORT, **params})


async def test_a_whole_reply_and_a_streamed_one_are_the_same(make):
    model = make()
    whole = await model.complete(asking())
    again = await model.complete(asking())
    *pieces, streamed = [item async for item in model.stream(asking())]
    assert len(pieces) > 1
    assert "".join(pieces) == streamed.content
    assert streamed == msgspec.structs.replace(again, id=streamed.id)
    assert streamed.id != again.id
    assert whole.content
    assert whole.usage.output_tokens == streamed.usage.output_tokens == 4
    assert whole.usage.input_tokens == streamed.usage.input_tokens > 5
    assert streamed.usage.cached_tokens == streamed.usage.input_tokens - 1
    assert streamed.model.endswith(".gguf")
    assert (streamed.provider, streamed.cost) == (model.provider, None)


@pytest.mark.parametrize("api", ["chat", "messages"])  # llama.cpp does not report it in the Responses API
async def test_a_truncated_reply_has_the_reason_length(llama, api):
    assert (await MADE[api](llama, api_key=KEY).complete(asking())).finish_reason == "length"


async def test_a_long_conversation_is_accepted(make):
    messages = [
        Message("system", "Be short."),
        Message("user", "Hi."),
        Message("assistant", "Hello."),
        Message("user", "Bye."),
    ]
    response = await make().complete(asking(*messages))
    assert response.content
    assert response.usage.input_tokens > 20


async def test_a_reply_matches_its_schema(llama):  # llama.cpp supports schemas only in chat
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    request = asking(Message("user", "Give n."), max_tokens=12).replace(response_format=schema)
    response = await MADE["chat"](llama, api_key=KEY).complete(request)
    assert response.content.lstrip().startswith("{")


async def test_a_request_that_is_too_long_is_a_context_overflow(make):
    long = asking(Message("user", "word " * 3000))
    with pytest.raises(ContextOverflowError, match="too long for 'smol'") as raised:
        await make().complete(long)
    assert raised.value.status == 400
    with pytest.raises(ContextOverflowError):
        await anext(make().stream(long))


async def test_a_wrong_key_is_reported_without_the_key(make):
    with pytest.raises(AuthError, match=r"_API_KEY") as raised:
        await make(api_key="sk-wrong-secret").complete(asking())
    assert raised.value.status == 401
    assert "sk-wrong" not in str(raised.value)


async def test_an_invalid_request_is_a_bad_request(make):
    with pytest.raises(BadRequestError):
        await make().complete(asking(temperature="hot"))


async def test_no_reply_in_time_is_a_timeout(make):
    with pytest.raises(ModelTimeoutError, match="timeout="):
        await make(timeout=0.02).complete(asking(Message("user", "Tell of the sea."), max_tokens=40))


@pytest.mark.parametrize("api", MADE)
async def test_a_closed_port_is_unreachable(api):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(UnreachableError, match=url):
            await MADE[api](url, max_retries=0).complete(asking())


async def test_closing_a_stream_frees_the_server(make):
    model = make()
    stream = model.stream(asking(Message("user", "Tell a long story."), max_tokens=1500))
    await anext(stream)
    await stream.aclose()
    assert (await asyncio.wait_for(model.complete(asking(max_tokens=1)), 30)).usage.output_tokens == 1


def test_an_agent_runs_with_it(make):
    shown = []

    @hook(ON_TOKEN)
    def show(ctx, token):
        shown.append(token.delta)

    result = Agent("helper", llm=make(), hooks=[show], params=SHORT).run("Say hi.")
    assert result.status == "completed"
    assert result.reply == "".join(shown)
    assert result.usage.output_tokens <= 4


def test_an_agent_fails_with_the_providers_error(make):
    with pytest.raises(RunFailedError) as raised:
        Agent("helper", llm=make(api_key="wrong")).run("Say hi.")
    assert raised.value.result.errors[0].type == "AuthError"


def test_one_model_serves_many_loops_and_threads_and_leaves_nothing_open(make):
    model, replies = make(), []
    agent = Agent("helper", llm=model, params={"max_tokens": 1, "temperature": 0})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            replies.append(asyncio.run(model.complete(asking(max_tokens=1))))
        threads = [threading.Thread(target=lambda: replies.append(agent.run("Hi."))) for _ in range(3)]
        threads += [threading.Thread(target=lambda: replies.append(asyncio.run(agent.arun("Hi.")))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        gc.collect()
    assert len(replies) == 8
    assert all(isinstance(reply, ModelResponse) or reply.status == "completed" for reply in replies)
    assert [str(warning.message) for warning in caught] == []
