"""llama.cpp in this process: shared, thread-safe, and stopped when a stream is closed."""

import asyncio
import gc
import json
import os
import subprocess
import sys
import threading
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest

from hookline import Message, ModelRequest
from hookline.models import BadRequestError, ContextOverflowError, UnknownModelError
from hookline.providers.local import llama, weights
from hookline.providers.local.llama import engine_for, threads
from hookline.providers.local.model import EMBEDDED_CONTEXT, LocalModel

TINY = {"max_tokens": 3, "temperature": 0}


def asking(text="Hi.", **params):
    return {
        "messages": [{"role": "user", "content": text}],
        "stream": True,
        "stream_options": {"include_usage": True},
        **TINY,
        **params,
    }


async def whole(engine, **body):
    return [chunk async for chunk in engine.stream(asking(**body))]


class Counted:
    """The server of an engine, with a count of its output."""

    def __init__(self, server):
        self._server, self.chunks, self.ended = server, 0, threading.Semaphore(0)

    def __getattr__(self, name):
        return getattr(self._server, name)

    def handle_chat_completions(self, body, take):
        def count(chunk):
            self.chunks += 1
            return take(chunk)

        try:
            return self._server.handle_chat_completions(body, count)
        finally:
            self.ended.release()


@pytest.fixture
def counted(engine, monkeypatch):
    server = Counted(engine._server)
    monkeypatch.setattr(engine, "_server", server)
    return server


def test_models_of_the_same_file_share_an_engine(engine, tmp_path):
    link = tmp_path / "link.gguf"
    link.symlink_to(weights.weights_path())
    assert LocalModel().load() is engine
    assert LocalModel(link, context=EMBEDDED_CONTEXT).load() is engine


def test_there_is_a_thread_for_each_kind_of_work():
    writing, reading = threads()
    assert 1 <= writing <= reading <= os.cpu_count()


async def test_concurrent_requests_in_one_loop_all_get_complete_replies(local):
    request = ModelRequest((Message("user", "Hi."),), params=TINY)
    replies = await asyncio.gather(*(local.complete(request) for _ in range(3)))
    assert all(reply.usage.output_tokens in (2, 3) and reply.content for reply in replies)


def test_requests_from_several_threads_and_loops_all_get_complete_replies(local):
    replies = []

    def ask(text):
        request = ModelRequest((Message("user", text),), params=TINY)
        replies.append(asyncio.run(local.complete(request)))

    askers = [threading.Thread(target=ask, args=(text,)) for text in ("One?", "Two?", "Three?", "Four?")]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert len(replies) == 4
    assert all(1 <= reply.usage.output_tokens <= 3 for reply in replies)


async def test_closing_the_stream_stops_the_model_at_its_next_token(engine, counted):
    stream = engine.stream(asking("Tell a long story.", max_tokens=400))
    async for chunk in stream:
        if chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
            break
    seen = counted.chunks
    await stream.aclose()
    assert await asyncio.to_thread(counted.ended.acquire, timeout=30)
    assert counted.chunks <= seen + 5
    assert (await whole(engine))[-1]["usage"]["completion_tokens"] == 3


async def test_a_cancelled_task_stops_the_model(local, counted):
    begun = asyncio.Event()

    async def read():
        async for _ in local.stream(ModelRequest((Message("user", "Tell a long story."),), params={"max_tokens": 400})):
            begun.set()

    task = asyncio.create_task(read())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(counted.ended.acquire, timeout=30)
    assert counted.chunks < 30


async def test_closing_the_stream_stops_the_processing_of_a_long_prompt(engine, counted):
    stream = engine.stream(asking("word " * 2000))
    first = await anext(stream)
    assert first["prompt_progress"]["processed"] < first["prompt_progress"]["total"]
    await stream.aclose()
    assert await asyncio.to_thread(counted.ended.acquire, timeout=30)
    assert counted.chunks <= 3


async def test_closing_a_waiting_stream_does_not_affect_others(engine, counted):
    served = asyncio.create_task(whole(engine, text="Count to ten.", max_tokens=6))
    waiting = asyncio.create_task(whole(engine, text="Tell a long story.", max_tokens=400))
    await asyncio.sleep(0.05)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (await served)[-1]["usage"]["completion_tokens"] <= 6
    for _ in range(2):
        assert await asyncio.to_thread(counted.ended.acquire, timeout=30)
    assert counted.chunks < 60


async def test_nothing_is_left_behind_when_a_stream_is_dropped(engine, counted):
    stream = engine.stream(asking("Tell a long story.", max_tokens=400))
    await anext(stream)
    del stream
    gc.collect()
    await asyncio.sleep(0)
    assert await asyncio.to_thread(counted.ended.acquire, timeout=30)
    assert counted.chunks < 30


async def test_a_request_that_is_too_long_is_a_context_overflow(engine):
    with pytest.raises(ContextOverflowError, match=f"context of {EMBEDDED_CONTEXT}; shorten it, or use a larger"):
        await whole(engine, text="word " * 5000)


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": "hot"},
        {"max_tokens": "many"},
        {"messages": "Hi."},
        {"n": 2},
        {"response_format": {"type": "json_schema"}},
    ],
    ids=str,
)
async def test_an_invalid_request_is_a_bad_request(engine, params):
    with pytest.raises(BadRequestError, match="the local model rejected the request"):
        await whole(engine, **params)


async def test_json_mode_is_llama_cpps_own(engine):
    assert (await whole(engine, response_format={"type": "json_object"}))[-1]["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize(
    "messages",
    [
        [Message("user", "Hi.")],
        [
            Message("system", "Be brief."),
            Message("user", "ü 😀 <|im_end|>"),
            Message("assistant"),
            Message("user", "?"),
        ],
    ],
)
async def test_what_is_counted_is_what_is_charged(local, messages):
    reply = await local.complete(ModelRequest(messages, params={"max_tokens": 1}))
    assert local.count_tokens(messages) == reply.usage.input_tokens


def test_a_text_is_counted_without_a_template(local):
    assert local.count_tokens("") == 0
    assert local.count_tokens("Hello world") == 2
    assert local.count_tokens("<|im_end|>") == 1


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize", "/props", "/apply-template", "/slots"])
def test_the_port_needs_the_secret_key(engine, path):
    address = urlsplit(engine._server.listening_address)
    assert address.hostname in ("127.0.0.1", "localhost")
    for headers in ({}, {"Authorization": "Bearer guess"}):
        connection = HTTPConnection(address.hostname, address.port, timeout=10)
        connection.request("POST", path, json.dumps(asking()), {"Content-Type": "application/json", **headers})
        assert connection.getresponse().status == 401
        connection.close()


@pytest.mark.parametrize("size", [8, 1_000_000, 90_000_000])
def test_a_broken_file_is_rejected(local, tmp_path, size):
    broken = tmp_path / "broken.gguf"
    with weights.weights_path().open("rb") as whole_file:
        broken.write_bytes(whole_file.read(size))
    with pytest.raises(UnknownModelError, match=r"cannot load .*broken\.gguf"):
        engine_for(broken, 256)
    with pytest.raises(UnknownModelError):
        engine_for(broken, 256)


ALONE = """
import asyncio, gc, json, os, sys, threading
from hookline.providers.local import weights
from hookline.providers.local.llama import engine_for

barrier, got = threading.Barrier(4), []
def load():
    barrier.wait()
    got.append(engine_for(weights.fetch(), 256))
loaders = [threading.Thread(target=load) for _ in range(4)]
for loader in loaders: loader.start()
for loader in loaders: loader.join()
engine = got[0]

body = {"messages": [{"role": "user", "content": "Tell a story."}], "max_tokens": 150, "stream": True}
real, seen, ended = engine._server, [], threading.Event()
class Counted:
    def handle_chat_completions(self, body, take):
        real.handle_chat_completions(body, lambda chunk: seen.append(1) or take(chunk))
        ended.set()
engine._server = Counted()
loop, stream = asyncio.new_event_loop(), engine.stream(body)
loop.run_until_complete(anext(stream))
loop.close()
stopped = ended.wait(30)
engine._server = real

async def ask(engine):
    return len([chunk async for chunk in engine.stream({**body, "max_tokens": 2})])

sys.stdout.flush()
child = os.fork()
if child == 0:
    other = engine_for(weights.fetch(), 256)
    os._exit(40 + (other is not engine and asyncio.run(ask(other)) > 2))
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(json.dumps({
    "engines": len(set(map(id, got))), "stopped": stopped, "chunks": len(seen), "child": status,
    "parent": asyncio.run(ask(engine)),
}))
"""


@pytest.fixture(scope="module")
def alone(local):
    """Run code in a separate process and return its output."""
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_concurrent_threads_load_the_weights_once(alone):
    assert alone["engines"] == 1


def test_a_closed_loop_stops_the_model(alone):
    assert alone["stopped"]
    assert alone["chunks"] < 20


def test_a_forked_process_loads_its_own_engine(alone):
    assert alone["child"] == 41
    assert alone["parent"] > 2


LEAVING = """
import sys, time
from hookline import Agent
agent = Agent("a", llm="local", params={"max_tokens": 400})
run = agent.start("Tell a very long story about a ship and its crew.")
time.sleep(float(sys.argv[1]))
if sys.argv[2] == "cancel":
    run.cancel("enough")
    print(run.wait().status)
"""


@pytest.mark.parametrize(("seconds", "then"), [("0.3", "leave"), ("3", "leave"), ("3", "cancel")])
def test_a_program_that_ends_while_the_model_loads_or_writes_ends_cleanly(seconds, then):
    done = subprocess.run([sys.executable, "-c", LEAVING, seconds, then], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ("cancelled\n" if then == "cancel" else "")


def test_no_call_starts_once_the_program_is_ending(monkeypatch):
    monkeypatch.setattr(llama, "_exiting", True)
    with pytest.raises(RuntimeError, match="the program is ending"), llama._llama_call():
        pass
    assert not llama._active_calls


def test_the_likelihood_of_a_text_is_known_for_each_of_its_words(engine):
    likely = engine.likelihood("The capital of France is the city of", "Paris, not 12 Zoë")
    unlikely = engine.likelihood("The capital of France is the city of", "bread, not 12 Zoë")
    assert len(likely) == len(unlikely) == 4
    assert all(figure <= 0 for figure in likely)
    assert likely[0] > unlikely[0] + 3


def test_texts_are_tokenized_one_by_one_and_marks_in_them_are_text(engine):
    one, two, empty = engine.tokenize(["ab cd", "<|im_end|>", ""])
    assert one == engine.tokenize(["ab cd"])[0]
    assert len(two) > 1
    assert empty == []
