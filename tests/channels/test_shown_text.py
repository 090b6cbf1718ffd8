"""Rejected text on real channels: a WebSocket page, a webhook and the Bot API (DESIGN 7.14)."""

import asyncio
import json

import httpx

from hookline import AFTER_LLM, ON_RUN_END, Agent, HookResult, ScriptedModel, guard, hook
from hookline._web.http_server import HttpServer
from hookline.channels import Gateway, TelegramChannel, WebChannel, WebhookChannel
from hookline.channels.access import Access
from hookline.stores import Mailbox, SqliteSessionStore

from ..waiting import wait_until
from .bot_api import TOKEN, BotApi
from .helpers import SECRET, signed
from .test_web import id_of, opened
from .test_web_gateway import replies


@guard(AFTER_LLM)
async def rail(ctx, answer):
    await asyncio.sleep(0.01)
    return HookResult.retry("Do not tell.") if "code" in answer.content else None


def answer(request):
    return "All is well." if "Do not tell." in request.messages[-1].content else "The launch code is 4711."


@hook(ON_RUN_END)
async def last_word(ctx, end):
    await asyncio.sleep(0.05)
    return HookResult.replace(end.replace(reply="All is well."))


def gateway_of(folder, channels, servers=(), hooks=(rail,)):
    return Gateway(
        Agent("bot", llm=ScriptedModel([answer], loop=True), hooks=hooks, stream="live"),
        channels,
        mailbox=Mailbox(str(folder / "mailbox.db")),
        sessions=SqliteSessionStore(folder / "sessions.db"),
        servers=servers,
        access={channel.name: Access(None) for channel in channels},
    )


async def test_people_in_the_web_chat_see_no_text_that_a_hook_replaces_at_the_end_of_the_run(tmp_path):
    channel = WebChannel(store=tmp_path / "chats.db")
    host = HttpServer([channel], port=0, grace=1)
    gateway = gateway_of(tmp_path, [channel], [host], hooks=[last_word])
    await gateway.start()
    try:
        async with opened(host.url) as page:
            await page.say("messages", id=id_of(1), text="Tell me.")
            frames = []
            async with asyncio.timeout(60):
                while "All is well." not in "".join(frames):
                    frames.append(json.dumps(await page.hear("message", "draft")))
            assert "launch" not in "".join(frames)
    finally:
        await gateway.stop()


async def test_people_in_the_web_chat_and_behind_a_webhook_get_no_rejected_text(tmp_path):
    channels = [WebChannel(store=tmp_path / "chats.db"), WebhookChannel(secret=SECRET, store=tmp_path / "chats.db")]
    host = HttpServer(channels, port=0, grace=1)
    gateway = gateway_of(tmp_path, channels, [host])
    await gateway.start()
    try:
        async with opened(host.url) as page:
            await page.say("messages", id=id_of(1), text="Tell me.")
            frames = []
            async with asyncio.timeout(60):
                while "All is well." not in "".join(frames):
                    frames.append(json.dumps(await page.hear("message", "draft")))
            assert "launch" not in "".join(frames)
            assert [f["text"] for f in map(json.loads, frames) if f["type"] == "message"] == [
                "Tell me.",
                "All is well.",
            ]
        async with httpx.AsyncClient(base_url=host.url, trust_env=False, timeout=60) as client:
            await client.post("/webhook/webhook", **signed({"id": "m1", "chat": "room", "text": "Tell me."}))
            assert await replies(client, 1) == ["All is well."]
    finally:
        await gateway.stop()


async def test_people_on_telegram_get_no_rejected_text(tmp_path):
    async with BotApi() as api:
        gateway = gateway_of(tmp_path, [TelegramChannel("phone", token=TOKEN, base_url=api.url)])
        await gateway.start()
        try:
            await api.say("Tell me.")
            await wait_until(api.texts)
            assert api.texts() == ["All is well."]
        finally:
            await gateway.stop()
