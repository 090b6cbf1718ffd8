"""What channels store has no secrets either: messages, chats, sessions and the list of runs."""

import httpx
import pytest

from hookline import Agent, ScriptedModel
from hookline._web.http_server import HttpServer
from hookline.channels import Gateway, GatewayOptions, WebChannel, WebhookChannel
from hookline.hooks import SensitiveDataHook
from hookline.stores import Mailbox, RunStore, SqliteSessionStore

from ..secret_scene import SENSITIVE, leaks, planted, rows_of
from .helpers import SECRET, signed
from .test_web import id_of, opened
from .test_web_gateway import replies


def echo(request):
    return f"You said {planted('inreply')} and {request.messages[-1].content}"


@pytest.mark.parametrize("durable", [False, True])
async def test_channels_store_no_secret(tmp_path, durable):
    channels = [WebChannel(store=tmp_path / "chats.db"), WebhookChannel(secret=SECRET, store=tmp_path / "chats.db")]
    host, store = HttpServer(channels, port=0, grace=1), RunStore(tmp_path / "runs.db")
    sessions = SqliteSessionStore(tmp_path / "sessions.db")
    gateway = Gateway(
        Agent("bot", llm=ScriptedModel([echo], loop=True), hooks=[SensitiveDataHook(**SENSITIVE)], runs=store),
        channels,
        mailbox=Mailbox(str(tmp_path / "mailbox.db")),
        sessions=sessions,
        servers=[host],
        durable=store if durable else None,
        options=GatewayOptions(durable=durable),
    )
    await gateway.start()
    async with httpx.AsyncClient(base_url=host.url, trust_env=False, timeout=60) as client:
        request = signed({"id": "m1", "chat": "room", "text": f"It is {planted('intask')}."})
        assert (await client.post("/webhook/webhook", **request)).status_code == 202
        assert "[planted]" in (await replies(client, 1))[0]
    async with opened(host.url) as page:
        await page.say("messages", id=id_of(1), text=f"It is {planted('intask')}.")
        assert (await page.messages(2))[0] == "It is [planted]."
    await gateway.wait_until_idle()
    await gateway.stop()
    chats = channels[0]._store
    assert rows_of(chats)["messages"].count("[planted]") == 5
    stores = [store, chats, channels[1]._store, sessions]
    assert leaks(tmp_path, *stores, exact=not durable) == []
