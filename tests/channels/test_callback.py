"""Replies are posted to a callback, signed, and its responses are respected."""

import asyncio
from email.utils import formatdate
from time import time

import httpx
import pytest
from starlette.responses import Response
from starlette.routing import Route

from hookline._net.signatures import HEADER, verify
from hookline._web.http_server import HttpServer
from hookline.channels.protocol import Address, ChannelError, UndeliverableError
from hookline.channels.webhook.channel import WebhookChannel
from hookline.payloads import OutboundMessage

from .helpers import SECRET, RecordingGateway, served

NEWS = Address("webhook", "c1", "t")


class Receiver:
    """A callback server with configurable responses that records requests."""

    def __init__(self):
        self.got, self.status, self.headers, self.hang = [], 200, {}, None

    def routes(self):
        async def take(request):
            self.got.append((dict(request.headers), await request.body()))
            if self.hang is not None:
                await self.hang.wait()
            return Response("thanks", self.status, self.headers)

        return [Route("/{rest:path}", take, methods=["POST", "GET"])]


@pytest.fixture
async def receiver():
    receiver = Receiver()
    host = HttpServer([receiver], port=0, grace=1, hosts=["callback.example"])
    await host.start()
    receiver.url = f"{host.url}/replies?to=me"
    yield receiver
    if receiver.hang is not None:
        receiver.hang.set()
    await host.stop()


@pytest.fixture
async def channel(receiver):
    return WebhookChannel(secret=[SECRET, "the secret before it"], callback=receiver.url, seconds=30)


async def send(channel, text="hello", key="key-1"):
    return await channel.send(NEWS, OutboundMessage(text, reply_to="m1"), key=key)


async def test_a_reply_is_posted_signed_and_with_its_key(channel, receiver):
    assert await send(channel, "hällo") == "key-1"
    ((headers, body),) = receiver.got
    verify([SECRET], headers[HEADER.lower()], body)
    assert headers["idempotency-key"] == "key-1"
    assert headers["content-type"] == "application/json"
    reply = httpx.Response(200, content=body).json()
    assert reply == {"type": "reply", "id": "key-1", "chat": "c1", "thread": "t", "text": "hällo", "reply_to": "m1"}


async def test_a_permanently_rejected_reply_is_undeliverable(channel, receiver):
    for status in (400, 401, 403, 404, 410, 413, 422):
        receiver.status = status
        with pytest.raises(UndeliverableError, match=str(status)):
            await send(channel)


async def test_a_temporarily_rejected_reply_can_be_retried(channel, receiver):
    await channel.start(RecordingGateway())
    for count, status in enumerate((302, 307, 408, 409, 425, 429, 500, 502, 503), 1):
        receiver.status, receiver.headers = status, {"Location": "/elsewhere"}
        with pytest.raises(ChannelError, match=str(status)) as caught:
            await send(channel)
        assert not isinstance(caught.value, UndeliverableError)
        assert len(receiver.got) == count
        assert str(status) in channel.health().detail
    receiver.status = 204
    await send(channel)
    assert channel.health().ok


async def test_retry_after_is_respected(channel, receiver):
    soon = formatdate(time() + 1800, usegmt=True)
    for said, low, high in (("17", 17, 17), ("0", 0, 0), ("999999999", 3600, 3600), (soon, 1, 1800), ("a while", 0, 0)):
        receiver.status, receiver.headers = 503, {"Retry-After": said}
        with pytest.raises(ChannelError) as caught:
            await send(channel)
        pause = caught.value.retry_after
        assert pause is None if said == "a while" else low <= pause <= high


async def test_an_unreachable_callback_fails_within_the_time_limit(receiver):
    receiver.hang = asyncio.Event()
    slow = WebhookChannel(secret=SECRET, callback=receiver.url, seconds=0.2)
    with pytest.raises(ChannelError, match=r"longer than 0\.2 s"):
        await send(slow)
    gone = WebhookChannel(secret=SECRET, callback="http://127.0.0.1:1/x")
    with pytest.raises(ChannelError, match="refused the connection"):
        await send(gone)


async def test_a_host_name_with_a_private_address_must_be_allowed(monkeypatch, receiver):
    port = receiver.url.partition("127.0.0.1:")[2].partition("/")[0]
    monkeypatch.setattr("socket.getaddrinfo", lambda host, port, **_: [(2, 1, 6, "", ("127.0.0.1", int(port)))])
    for private, outcome in ((False, 0), (True, 1)):
        channel = WebhookChannel(secret=SECRET, callback=f"http://callback.example:{port}/x", private=private)
        if not private:
            with pytest.raises(ChannelError, match="private|a special address"):
                await send(channel)
        else:
            await send(channel)
        assert len(receiver.got) == outcome


async def test_a_reply_cannot_be_sent_back_as_a_message(channel, receiver):
    await send(channel)
    ((headers, body),) = receiver.got
    deliver = RecordingGateway()
    async with (
        served(channel, deliver=deliver) as url,
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client,
    ):
        same = {"Content-Type": "application/json", HEADER: headers[HEADER.lower()]}
        answer = await client.post("/webhook/webhook", content=body, headers=same)
        assert (await client.get("/webhook/webhook/replies?chat=c1")).status_code == 404
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "unknown_field")
    assert deliver.messages == []


async def test_a_cancelled_request_closes_its_connection(channel, receiver):
    receiver.hang = asyncio.Event()
    sending = asyncio.create_task(send(channel))
    while not receiver.got:
        await asyncio.sleep(0.005)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
