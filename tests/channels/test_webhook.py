"""The webhook channel accepts each signed message once and returns replies."""

import asyncio
import json
import os
import re
import subprocess
import threading
import time
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline._net.signatures import HEADER, sign
from hookline.channels.protocol import Address, Channel, ChannelError
from hookline.channels.webhook.channel import WebhookChannel
from hookline.payloads import InboundMessage, OutboundMessage
from tests.properties import examples

from ..waiting import wait_until
from .helpers import SECRET, RecordingGateway, reply, served, signed, signed_get

PAGE = Path(__file__).parents[2] / "docs/guides/channels/webhook.md"
HELLO = {"id": "m1", "chat": "c1", "text": "hello", "sender": "ann", "thread": "t"}
NEWS = Address("webhook", "c1", "t")


def webhook(tmp_path, **options):
    return WebhookChannel(secret=SECRET, store=tmp_path / "chats.db", **options)


@pytest.fixture
async def deliver():
    return RecordingGateway()


@pytest.fixture
async def channel(tmp_path):
    return webhook(tmp_path)


@pytest.fixture
async def client(channel, deliver):
    async with (
        served(channel, deliver=deliver) as url,
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client,
    ):
        yield client


async def post(client, body, **options):
    return await client.post("/webhook/webhook", **signed(body, **options))


async def test_a_signed_message_is_delivered_before_it_is_accepted(client, deliver, channel):
    answer = await post(client, HELLO)
    assert (answer.status_code, answer.json()) == (202, {"status": "accepted", "id": "m1"})
    assert deliver.messages == [
        InboundMessage("hello", "webhook", "c1", sender="ann", message_id="m1", thread_id="t"),
    ]
    assert isinstance(channel, Channel)
    assert channel.health().ok


async def test_the_sender_of_a_message_defaults_to_its_chat(client, deliver):
    assert (await post(client, {"id": "1", "chat": "c", "text": "x"})).status_code == 202
    assert deliver.messages[0].sender == "c"


async def test_a_repeated_request_is_not_delivered_again(client, deliver):
    request = signed(HELLO)
    answers = [await client.post("/webhook/webhook", **request) for _ in range(3)]
    answers.append(await post(client, HELLO, at=time.time() - 60))
    assert [answer.status_code for answer in answers] == [202, 200, 200, 200]
    assert answers[1].json()["status"] == "known"
    assert len(deliver.messages) == 1


async def test_an_id_that_was_used_for_another_message_is_rejected(client, deliver):
    await post(client, HELLO)
    answer = await post(client, {**HELLO, "text": "another"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "id_taken")
    assert (await post(client, {**HELLO, "text": "another", "chat": "c2"})).status_code == 202
    assert deliver.texts == ["hello", "another"]


async def test_an_old_or_future_request_is_rejected(client, deliver):
    for off in (-400, 400):
        answer = await post(client, HELLO, at=time.time() + off)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "bad_time")
    assert deliver.messages == []


def deep(levels):
    return b'{"id":"1","chat":"c","text":' + b"[" * levels + b"]" * levels + b"}"


BAD = {
    "not JSON": (b"hello", 400, "bad_json"),
    "empty": (b"", 400, "bad_json"),
    "invalid UTF-8": (b'{"id":"1","chat":"c","text":"\xff\xfe"}', 400, "bad_json"),
    "a key twice": (b'{"id":"1","id":"2","chat":"c","text":"x"}', 400, "bad_json"),
    "one of very many keys twice": (
        b"{" + b"".join(b'"%d":1,' % number for number in range(60_000)) + b'"59999":2}',
        400,
        "bad_json",
    ),
    "no number": (b'{"id":"1","chat":"c","text":NaN}', 400, "bad_json"),
    "deep": (deep(100_000), 400, "bad_json"),
    "a long number": (b'{"id":"1","chat":"c","text":' + b"9" * 10_000 + b"}", 400, "bad_json"),
    "a list": (b"[]", 422, "bad_message"),
    "no text": (b'{"id":"1","chat":"c"}', 422, "missing_field"),
    "null": (b'{"id":null,"chat":"c","text":"x"}', 422, "missing_field"),
    "a number": (b'{"id":1,"chat":"c","text":"x"}', 422, "bad_field"),
    "a list as text": (b'{"id":"1","chat":"c","text":["x"]}', 422, "bad_field"),
    "spaces": (b'{"id":"1","chat":"c","text":"  "}', 422, "bad_field"),
    "an empty id": (b'{"id":"","chat":"c","text":"x"}', 422, "bad_field"),
    "a long id": (b'{"id":"' + b"1" * 201 + b'","chat":"c","text":"x"}', 422, "bad_field"),
    "a line break in an id": (b'{"id":"1\\n","chat":"c","text":"x"}', 422, "bad_field"),
    "half a character": (b'{"id":"1","chat":"c","text":"\\ud800"}', 422, "bad_field"),
    "another field": (b'{"id":"1","chat":"c","text":"x","thread_id":"t"}', 422, "unknown_field"),
}


async def test_an_invalid_signed_body_is_rejected_with_a_reason(client, deliver):
    for name, (body, status, code) in BAD.items():
        answer = await post(client, body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), name
        assert answer.json()["error"]["message"]
    assert deliver.messages == []


async def test_other_content_types_and_methods_are_rejected(client, deliver):
    request = signed(HELLO)
    for headers, status in (
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/json; charset=latin-1"}, 415),
        ({"Content-Encoding": "gzip"}, 415),
    ):
        answer = await client.post("/webhook/webhook", content=request["content"], headers=request["headers"] | headers)
        assert answer.status_code == status
    utf8 = request["headers"] | {"Content-Type": "application/json; charset=UTF-8"}
    assert (await client.get("/webhook/webhook")).status_code == 405
    assert (await client.post("/webhook/webhook", content=b"{}")).status_code == 415
    unsigned = {"Content-Type": "application/json"}
    assert (await client.post("/webhook/webhook", content=request["content"], headers=unsigned)).status_code == 401
    twice = [*request["headers"].items(), (HEADER, request["headers"][HEADER])]
    assert (await client.post("/webhook/webhook", content=request["content"], headers=twice)).status_code == 401
    assert deliver.messages == []
    assert (await client.post("/webhook/webhook", content=request["content"], headers=utf8)).status_code == 202


async def test_long_messages_are_accepted_up_to_the_limit(client, deliver):
    assert (await post(client, {**HELLO, "text": "x" * 990_000})).status_code == 202
    answer = await post(client, {**HELLO, "id": "m2", "text": "x" * 1_000_000})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_long")
    assert len(deliver.messages) == 1


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A webhook in a thread, for tests that are not async."""
    deliver, loop, found, over = RecordingGateway(), asyncio.new_event_loop(), {}, asyncio.Event()
    there = threading.Event()

    async def serve():
        channel = WebhookChannel(secret=[SECRET, "another secret of ours"], store=tmp_path_factory.mktemp("w") / "c.db")
        async with served(channel, deliver=deliver) as url:
            found["url"] = url
            there.set()
            await over.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert there.wait(60)
    with httpx.Client(base_url=found["url"], trust_env=False, timeout=60) as client:
        yield client, deliver
    loop.call_soon_threadsafe(over.set)
    thread.join()
    loop.close()


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_a_request_that_was_changed_after_signing_is_not_delivered(running, data):
    client, deliver = running
    number = len(deliver.messages)
    body = json.dumps({"id": f"t{number}", "chat": "c", "text": data.draw(st.text("ab c", min_size=3))}).encode()
    request = signed(body, secret=data.draw(st.sampled_from((SECRET, "another secret of ours"))))
    content, header = bytearray(request["content"]), bytearray(request["headers"][HEADER].encode())
    which = data.draw(st.sampled_from((content, header)))
    at = data.draw(st.integers(0, len(which) - 1))
    which[at] = data.draw(st.integers(33, 126).filter(lambda byte: byte != which[at]))
    headers = {"Content-Type": "application/json", HEADER: header.decode()}
    answer = client.post("/webhook/webhook", content=bytes(content), headers=headers)
    assert answer.status_code == 401
    assert len(deliver.messages) == number


@settings(max_examples=examples(20), deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=8))
def test_repeated_requests_are_delivered_once_and_in_order(running, order):
    client, deliver = running
    start = len(deliver.messages)
    requests = [signed({"id": f"r{start}-{number}", "chat": "c", "text": f"{number}"}) for number in range(4)]
    answers = [client.post("/webhook/webhook", **requests[number]).status_code for number in order]
    firsts = list(dict.fromkeys(order))
    assert deliver.texts[start:] == [str(number) for number in firsts]
    assert answers.count(202) == len(firsts)
    assert set(answers) <= {200, 202}


async def test_many_concurrent_requests_are_all_delivered_once(client, deliver):
    requests = [signed({"id": f"m{number}", "chat": f"c{number % 7}", "text": "x"}) for number in range(50)] * 2
    answers = await asyncio.gather(*(client.post("/webhook/webhook", **request) for request in requests))
    assert sorted(answer.status_code for answer in answers) == [200] * 50 + [202] * 50
    assert {message.message_id for message in deliver.messages} == {f"m{number}" for number in range(50)}
    assert len(deliver.messages) == 50


async def test_a_message_that_could_not_be_stored_is_rejected_and_can_be_sent_again(channel, caplog):
    broken = [RuntimeError("the disk is full"), ChannelError("later", retry_after=7)]
    kept = RecordingGateway()

    async def deliver(message):
        if broken:
            raise broken.pop(0)
        return await kept(message)

    async with (
        served(channel, deliver=deliver) as url,
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client,
    ):
        first, second, third = [await post(client, {**HELLO, "text": text}) for text in ("1", "2", "hello")]
    assert [first.status_code, second.status_code, third.status_code] == [503, 503, 202]
    assert "disk" not in first.text
    assert "disk is full" in caplog.text
    assert second.headers["retry-after"] == "7"
    assert kept.texts == ["hello"]


async def test_messages_are_accepted_only_while_the_channel_is_started(channel):
    waiting, go, kept = asyncio.Event(), asyncio.Event(), RecordingGateway()

    async def slow(message):
        waiting.set()
        await go.wait()
        return await kept(message)

    async with (
        served(channel, deliver=slow) as url,
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client,
    ):
        on_its_way = asyncio.create_task(post(client, HELLO))
        await waiting.wait()
        stopping = asyncio.create_task(channel.stop())
        await wait_until(lambda: not channel.health().ok)
        refused = await post(client, {**HELLO, "id": "m2"})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
        assert not stopping.done()
        go.set()
        await stopping
        assert (await on_its_way).status_code == 202
    assert kept.texts == ["hello"]


# Replies that wait to be fetched


async def fetch(client, query="chat=c1"):
    target = f"/webhook/webhook/replies{query and '?'}{query}"
    return await client.get(target, headers=signed_get(target))


async def test_replies_are_stored_until_they_are_fetched(client, channel, deliver):
    await post(client, HELLO)
    for number in range(3):
        await channel.send(NEWS, OutboundMessage(f"reply {number}", reply_to="m1"), key=f"k{number}")
    await channel.send(NEWS, OutboundMessage("reply 0", reply_to="m1"), key="k0")
    await reply(channel, deliver.messages[0].replace(chat_id="another"), "not yours", "k9")
    page = (await fetch(client)).json()
    assert [one["text"] for one in page["replies"]] == ["reply 0", "reply 1", "reply 2"]
    first = page["replies"][0]
    assert (first["id"], first["chat"], first["thread"], first["reply_to"]) == ("k0", "c1", "t", "m1")
    assert page["more"] is False
    assert (await fetch(client, f"chat=c1&after={page['after']}")).json()["replies"] == []


async def test_replies_survive_a_restart(tmp_path):
    await webhook(tmp_path).send(NEWS, OutboundMessage("before"), key="k")
    async with served(webhook(tmp_path)) as url, httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client:
        assert [one["text"] for one in (await fetch(client)).json()["replies"]] == ["before"]


async def test_many_replies_come_in_pages(client, channel):
    for number in range(120):
        await channel.send(NEWS, OutboundMessage(str(number)), key=f"k{number}")
    first = (await fetch(client)).json()
    second = (await fetch(client, f"chat=c1&after={first['after']}")).json()
    assert first["more"]
    assert not second["more"]
    assert [int(one["text"]) for one in first["replies"] + second["replies"]] == list(range(120))


async def test_a_waiting_request_returns_when_a_reply_is_stored(client, channel):
    waiting = asyncio.create_task(fetch(client, "chat=c1&wait=30"))
    await wait_until(lambda: channel._new_reply._events)
    await channel.send(NEWS, OutboundMessage("at last"), key="k")
    assert [one["text"] for one in (await waiting).json()["replies"]] == ["at last"]


async def test_a_waiting_request_does_not_delay_the_stop_of_the_server(channel):
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client, asyncio.timeout(20):
        async with served(channel, grace=60) as url:
            client.base_url = url
            waiting = asyncio.create_task(fetch(client, "chat=c1&wait=30"))
            await wait_until(lambda: channel._new_reply._events)
        assert (await waiting).json()["replies"] == []


async def test_an_invalid_query_for_replies_is_rejected(client):
    for query in ("", "chat=", "chat=c&after=-1", "chat=c&after=x", "chat=c&wait=31", "chat=c&wait=x"):
        answer = await fetch(client, query)
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "bad_query"), query


async def test_replies_require_a_signature(client, channel):
    await channel.send(NEWS, OutboundMessage("a secret"), key="k")
    target = "/webhook/webhook/replies?chat=c1"
    old = {HEADER: sign(SECRET, b"GET " + target.encode(), at=time.time() - 400)}
    another = signed_get("/webhook/webhook/replies?chat=c2")
    as_post = {HEADER: sign(SECRET, b"")}
    for headers in ({}, old, another, as_post):
        answer = await client.get(target, headers=headers)
        assert answer.status_code == 401
        assert "a secret" not in answer.text


async def test_replies_of_a_chat_with_any_characters_can_be_fetched(client, channel, deliver):
    chat = "räum & küche/7?"
    assert (await post(client, {"id": "1", "chat": chat, "text": "x"})).status_code == 202
    await reply(channel, deliver.messages[0], "here", "k")
    assert (await fetch(client, f"chat={quote(chat, safe='')}")).json()["replies"][0]["chat"] == chat


# How it is set up


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"secret": "short"}, "openssl rand"),
        ({"secret": []}, "openssl rand"),
        ({"secret": [SECRET, ""]}, "openssl rand"),
        ({"name": "a b"}, "valid channel name"),
        ({"path": "hook"}, "not a valid path"),
        ({"path": "/a/../b"}, "not a valid path"),
        ({"callback": "ftp://example.com/x"}, "not http or https"),
        ({"callback": "https://me@example.com/x"}, "user name"),
        ({"callback": ""}, "callback"),
    ],
)
def test_invalid_settings_are_rejected(options, words):
    with pytest.raises(ChannelError, match=words):
        WebhookChannel(**{"secret": SECRET, **options})


def test_the_secret_is_not_in_the_repr():
    assert SECRET not in repr(WebhookChannel(secret=SECRET))


async def test_the_example_with_curl_works(client, deliver, channel):
    block = re.search(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
    settings = {"WEBHOOK_SECRET": SECRET, "URL": f"{str(client.base_url).rstrip('/')}/webhook/webhook"}
    done = await asyncio.create_subprocess_exec(
        "bash", "-euc", block, env={**os.environ, **settings}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    async with asyncio.timeout(60):
        await wait_until(lambda: deliver.messages)
        await reply(channel, deliver.messages[0], "from the agent", "k")
        out, err = await done.communicate()
    assert done.returncode == 0, err
    assert b'"accepted"' in out
    assert b"from the agent" in out
