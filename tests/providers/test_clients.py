"""One client for each event loop, closed with it."""

import asyncio
import gc
import ssl
import subprocess
import sys
import threading
import warnings

import pytest

from hookline import Agent, Message, ModelRequest
from hookline.models import ProviderError
from hookline.providers.anthropic import AnthropicModel
from hookline.providers.openai import OpenAIModel
from hookline.providers.remote import LoopClients, _make_client

from .servers import Said, Script, sse, whole

REQUEST = ModelRequest((Message("user", "Hi."),))
REPLY = {"choices": [{"message": {"content": "Hello."}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 1}}
PIECE = {"choices": [{"index": 0, "delta": {"content": "Hello."}, "finish_reason": None}]}


class Client:
    def __init__(self):
        self.closed_in = None

    def is_closed(self):
        return self.closed_in is not None

    async def close(self):
        self.closed_in = asyncio.get_running_loop()


@pytest.fixture
def no_warnings():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


def test_a_loop_keeps_its_client_and_closes_it_at_its_end():
    clients = LoopClients(Client)

    async def use():
        both = await asyncio.gather(clients.get(), clients.get())
        return {*both, await clients.get()}, asyncio.get_running_loop()

    first, first_loop = asyncio.run(use())
    second, second_loop = asyncio.run(use())
    assert len(first) == len(second) == 1
    assert first != second
    assert [client.closed_in for client in (*first, *second)] == [first_loop, second_loop]


def test_closed_loops_are_removed():
    clients = LoopClients(Client)
    for _ in range(3):
        asyncio.run(clients.get())
    assert len(clients._clients_by_loop) == 1


async def test_a_client_is_closed_in_its_loop_when_its_model_is_collected():
    clients = LoopClients(Client)
    client = await clients.get()
    del clients
    gc.collect()
    for _ in range(3):
        await asyncio.sleep(0)
    assert client.closed_in is asyncio.get_running_loop()


async def test_a_closed_client_is_replaced():
    clients = LoopClients(Client)
    first = await clients.get()
    await first.close()
    assert await clients.get() is not first


def test_connections_that_are_kept_open_leave_nothing_behind(script, no_warnings):
    script.say(whole(REPLY))
    model = OpenAIModel("m", base_url=script.url)

    async def talk():
        return [(await model.complete(REQUEST)).content for _ in range(2)]

    replies = [asyncio.run(talk()) for _ in range(3)]
    threads = [threading.Thread(target=lambda: replies.append(asyncio.run(talk()))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert replies == [["Hello.", "Hello."]] * 6


@pytest.mark.slow
def test_a_model_that_is_dropped_leaves_nothing_open_in_the_background_loop(script, no_warnings):
    script.say(whole(REPLY))
    for _ in range(3):
        agent = Agent("a", llm=OpenAIModel("m", base_url=script.url))
        agent.itself = agent  # a reference cycle, which only the garbage collector frees
        assert agent.run("Hi.").reply == "Hello."
        del agent
        gc.collect()


@pytest.mark.slow
def test_a_program_that_ends_leaves_nothing_open(script):
    script.say(whole(REPLY))
    program = f"""
from hookline import Agent
from hookline.models import ProviderError
from hookline.providers.anthropic import AnthropicModel
from hookline.providers.openai import OpenAIModel
agent = Agent("a", llm=OpenAIModel("m", base_url={script.url!r}))
agent.itself = agent
print(agent.run("Hi.").reply)
"""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout == "Hello.\n"
    assert "unclosed" not in done.stderr


def test_a_connection_is_used_again_in_its_loop(script):
    script.say(whole(REPLY))
    model = OpenAIModel("m", base_url=script.url)

    async def talk():
        for _ in range(3):
            await model.complete(REQUEST)

    asyncio.run(talk())
    assert len(script.connections) == 1


def test_a_stream_that_is_not_read_to_its_end_is_closed(script, no_warnings):
    more = b'data: {"choices": [{"index": 0, "delta": {"content": "."}}]}\n\n'
    script.say(sse(PIECE, hold=more))
    model = OpenAIModel("m", base_url=script.url)

    async def leave():
        stream = model.stream(REQUEST)
        assert await anext(stream) == "Hello."
        await stream.aclose()
        assert await asyncio.to_thread(script.gone.wait, 20)

    asyncio.run(leave())


def test_a_stream_whose_reader_is_cancelled_is_closed(script, no_warnings):
    script.say(sse(PIECE, hold=b": still here\n\n"))
    model = OpenAIModel("m", base_url=script.url)

    async def leave():
        async def read(started):
            async for _ in model.stream(REQUEST):
                started.set()

        started = asyncio.Event()
        task = asyncio.create_task(read(started))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(script.gone.wait, 20)

    asyncio.run(leave())


@pytest.mark.parametrize(("make", "variable"), [(OpenAIModel, "OPENAI_API_KEY"), (AnthropicModel, "ANTHROPIC_API_KEY")])
def test_a_redirect_to_another_server_does_not_take_the_key_along(script, monkeypatch, make, variable):
    monkeypatch.setenv(variable, "sk-the-key-of-the-user")
    with Script() as other:
        thread = threading.Thread(target=other.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            other.say(whole(REPLY))
            script.say(Said([], 307, {"Location": f"{other.url}/v1/chat/completions"}))
            with pytest.raises(ProviderError) as failed:
                asyncio.run(make("m", base_url=script.url, max_retries=0).complete(REQUEST))
        finally:
            other.shutdown()
            thread.join()
    assert "sk-the-key-of-the-user" in str(script.requests[0][1])
    assert other.requests == []
    assert "redirect" in str(failed.value)


def test_clients_share_certificates_until_the_environment_names_others(monkeypatch, tmp_path):
    def made():
        endpoint = OpenAIModel("m", base_url="https://models.test/v1", api_key="k")._endpoint
        return _make_client(lambda http: http._transport._pool._ssl_context, endpoint)

    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    usual = made()
    assert usual.verify_mode == ssl.CERT_REQUIRED
    assert made() is usual
    one = tmp_path / "one.pem"
    one.write_text(ssl.DER_cert_to_PEM_cert(usual.get_ca_certs(binary_form=True)[0]))
    monkeypatch.setenv("SSL_CERT_FILE", str(one))
    assert len(made().get_ca_certs()) == 1
