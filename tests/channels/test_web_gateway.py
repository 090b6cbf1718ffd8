"""Webhook and web chat with a real gateway and agent, also across restarts."""

import asyncio
import re

import httpx

from hookline import Agent, ScriptedModel, hook
from hookline._web.http_server import HttpServer
from hookline.channels import Gateway, GatewayOptions, MemoryChannel, WebChannel, WebhookChannel
from hookline.stores import Mailbox, SqliteSessionStore

from .approval_setup import CODE, ApprovalSetup
from .helpers import SECRET, signed, signed_get
from .test_web import id_of, opened


def gateway_of(folder, *hooks, port=0):
    channels = [WebChannel(store=folder / "chats.db"), WebhookChannel(secret=SECRET, store=folder / "chats.db")]
    host = HttpServer(channels, port=port, grace=1)
    gateway = Gateway(
        Agent("bot", llm=ScriptedModel([echo], loop=True), hooks=hooks),
        channels,
        mailbox=Mailbox(str(folder / "mailbox.db")),
        sessions=SqliteSessionStore(folder / "sessions.db"),
        servers=[host],
    )
    return gateway, host


def echo(request):
    return f"{len(request.messages)}: {request.messages[-1].content}"


async def replies(client, count):
    target = "/webhook/webhook/replies?chat=room&after=0&wait=5"
    async with asyncio.timeout(60):
        while True:
            found = (await client.get(target, headers=signed_get(target))).json()["replies"]
            if len(found) >= count:
                return [one["text"] for one in found]


async def test_a_conversation_continues_after_a_restart(tmp_path):
    for turn in (1, 2):
        gateway, host = gateway_of(tmp_path)
        await gateway.start()
        async with httpx.AsyncClient(base_url=host.url, trust_env=False, timeout=60) as client:
            request = signed({"id": f"m{turn}", "chat": "room", "text": f"turn {turn}"})
            assert (await client.post("/webhook/webhook", **request)).status_code == 202
            assert (await client.post("/webhook/webhook", **request)).status_code == 200
            async with opened(host.url) as page:
                await page.say("messages", id=id_of(turn), text=f"hello {turn}")
                assert (await page.messages(2 * turn))[-2:] == [f"hello {turn}", f"{2 * turn - 1}: hello {turn}"]
            assert len(await replies(client, turn)) == turn
        await gateway.stop()
    assert kept_texts(tmp_path) == ["1: turn 1", "3: turn 2"]


def kept_texts(folder):
    channel = WebhookChannel(secret=SECRET, store=folder / "chats.db")
    return [one.text for one in channel._store.since("webhook", "room", side="out")]


async def test_a_gateway_serves_its_web_channels_at_the_configured_port(tmp_path):
    channels = [WebChannel(store=tmp_path / "chats.db"), WebhookChannel(secret=SECRET, store=tmp_path / "chats.db")]
    kept = {"mailbox": Mailbox(str(tmp_path / "m.db")), "sessions": SqliteSessionStore(tmp_path / "s.db")}
    agent = Agent("bot", llm=ScriptedModel([echo], loop=True))
    gateway = Gateway(agent, channels, **kept, options=GatewayOptions(port=0))
    await gateway.start()
    (url,) = gateway.urls
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client:
        assert (await client.get("/")).status_code == 200
        request = signed({"id": "m1", "chat": "room", "text": "hello"})
        assert (await client.post("/webhook/webhook", **request)).status_code == 202
        assert await replies(client, 1) == ["1: hello"]
    await gateway.stop()
    assert Gateway(agent, [MemoryChannel()], **kept).urls == []
    assert Gateway(agent, channels, **kept, servers=()).urls == []


async def test_accepted_messages_are_answered_by_the_next_gateway(tmp_path):
    started, never = asyncio.Event(), asyncio.Event()

    @hook("before_llm")
    async def hang(ctx, payload):
        started.set()
        await never.wait()

    gateway, host = gateway_of(tmp_path, hang)
    await gateway.start()
    async with opened(host.url) as page:
        await page.say("messages", id=id_of(1), text="hello")
        await page.hear("taken")
        await started.wait()
        await page.hear("typing")
    await gateway.stop(grace=0)
    gateway, host = gateway_of(tmp_path, port=host.port)
    await gateway.start()
    async with opened(host.url) as page:
        texts = await page.messages(2)
        assert texts[0] == "hello"
        assert re.fullmatch(r"\d: hello", texts[1])
    await gateway.stop()


async def test_programs_and_people_decide_about_calls_over_http(tmp_path):
    channel = WebhookChannel(secret=SECRET, store=tmp_path / "chats.db")
    host = HttpServer([channel], port=0, grace=1)
    async with ApprovalSetup(tmp_path, channel=channel, servers=[host]) as setup:
        async with httpx.AsyncClient(base_url=host.url, trust_env=False, timeout=60) as client:

            async def say(id, text, sender):
                body = signed({"id": id, "chat": "room", "text": text, "sender": sender})
                assert (await client.post("/webhook/webhook", **body)).status_code == 202

            await say("m1", "write a", "ada")
            (question,) = await replies(client, 1)
            code = CODE.search(question)[1]
            await say("m2", f"/approve {code}", "bob")
            assert (await replies(client, 2))[1] == "You are not allowed to decide about calls here."
            await say("m3", f"/approve {code}", "ada")
            assert (await replies(client, 4))[2:] == [f"{code}: approved. write runs.", "The tool said: wrote a"]
        assert [row.by for row in setup.store.rows()] == ["webhook:ada"]
