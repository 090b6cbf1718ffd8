"""Channels that are added and removed while the gateway runs."""

import asyncio

import httpx
import pytest

from hookline import BEFORE_LLM, Agent, ScriptedModel
from hookline._web.http_server import HttpServer
from hookline.channels import WebhookChannel
from hookline.channels.access import Access
from hookline.channels.factory import build_gateway, follow_plugins
from hookline.channels.gateway import Gateway
from hookline.channels.in_memory import MemoryChannel
from hookline.channels.protocol import ChannelError, Health
from hookline.config.errors import ConfigError
from hookline.config.settings import Settings
from hookline.plugins import PluginManager
from hookline.stores.mailbox import Mailbox
from hookline.stores.sessions import SqliteSessionStore

from ..waiting import wait_until
from .conftest import echo
from .helpers import SECRET, signed


class Slow:
    """A model that answers ``slow`` once ``go`` is set."""

    points = frozenset({BEFORE_LLM})

    def __init__(self):
        self.asked, self.let = asyncio.Event(), asyncio.Event()

    async def __call__(self, point, ctx, request):
        if request.messages[-1].content == "slow":
            self.asked.set()
            await self.let.wait()


def gateway_of(folder, *channels, slow=None, servers=()):
    return Gateway(
        Agent("bot", llm=ScriptedModel([echo], loop=True), hooks=[slow] if slow else []),
        channels,
        mailbox=Mailbox(folder / "gateway.db"),
        sessions=SqliteSessionStore(folder / "sessions.db"),
        servers=servers,
    )


async def test_items_of_a_removed_channel_wait_until_it_is_added_again(tmp_path):
    slow, here, there = Slow(), MemoryChannel("here"), MemoryChannel("there")
    gateway = gateway_of(tmp_path, here, there, slow=slow)
    await gateway.start()
    there.failures.append(ChannelError("not now", retry_after=1000))
    await there.say("unsent", chat="a")
    await wait_until(lambda: gateway.status().retried == 1)
    await there.say("slow", chat="b")
    await slow.asked.wait()
    await there.say("waits", chat="b")
    await wait_until(lambda: gateway.status().waiting == 1)
    await gateway.remove("there", "the bridge is closed")
    assert gateway.status().channels == {"here": Health(True), "there": Health(False, "the bridge is closed")}
    with pytest.raises(ChannelError):
        await there.say("nobody hears this", chat="b")
    tries = await gateway._mailbox.transact(
        lambda db: db.execute("SELECT tries FROM inbox WHERE state = 'waiting'").fetchall()
    )
    assert tries == [(0,), (0,)]  # the run that was broken off does not count
    await here.say("hello")
    assert await here.replies(1) == ["echo hello"]
    assert there.sent == []
    slow.let.set()
    await gateway.add(there)
    assert gateway.status().channels == {"here": Health(True), "there": Health(True)}
    assert await there.replies(2, "b") == ["echo slow", "echo waits"]
    await gateway.stop(grace=0)
    assert (await Mailbox(tmp_path / "gateway.db").unclaimed([])) == {"there": (0, 1)}  # its time has not come


async def test_another_process_takes_over_the_items_of_a_removed_channel(tmp_path):
    slow, one, two = Slow(), MemoryChannel("memory"), MemoryChannel("memory")
    first, second = gateway_of(tmp_path, one, slow=slow), gateway_of(tmp_path, two)
    await first.start()
    await second.start()
    await one.say("hello")
    await one.replies(1)
    await first.wait_until_idle()  # a reply that is not noted as sent would be sent again
    await one.say("slow")
    await slow.asked.wait()
    await first.remove("memory")
    assert await two.replies(1) == ["echo slow"]
    await two.say("more")
    assert await two.replies(2) == ["echo slow", "echo more"]
    assert one.texts() == ["echo hello"]
    await first.stop()
    await second.stop()


@pytest.mark.usefixtures("polls_often")
async def test_a_gateway_continues_without_channels_and_names_are_unique(tmp_path):
    channel = MemoryChannel()
    gateway = gateway_of(tmp_path, channel)
    with pytest.raises(ChannelError, match="is not running"):
        await gateway.add(MemoryChannel("other"))
    await gateway.start()
    with pytest.raises(ConfigError, match="two channels are called 'memory'"):
        await gateway.add(MemoryChannel())
    await gateway.remove("memory")
    with pytest.raises(ConfigError, match="there is no channel 'memory'"):
        await gateway.remove("memory")
    looks = gateway._mailbox.poll
    seen = []
    gateway._mailbox.poll = lambda channels: (seen.append(1), looks(channels))[1]
    while len(seen) < 3:
        await asyncio.sleep(0.01)
    assert not gateway._lifecycle.is_stopping
    await gateway.add(channel)
    await channel.say("hello")
    assert await channel.replies(1) == ["echo hello"]
    await gateway.stop()


async def test_access_rules_are_replaced_when_a_channel_is_added_again(gateways):
    gateway, channel = await gateways(access=Access(["anna"]))
    await gateway.remove("memory")
    await gateway.add(channel)
    await channel.say("hi", sender="bob")
    assert await channel.replies(1) == ["echo hi"]
    await gateway.remove("memory")
    await gateway.add(channel, Access(["anna"]))
    await channel.say("hi", sender="bob")
    assert gateway.status().refused == 1


async def test_a_channel_that_fails_to_start_is_not_added(tmp_path):
    class Broken(MemoryChannel):
        async def start(self, deliver):
            raise ChannelError("no such host")

    gateway = gateway_of(tmp_path, MemoryChannel("here"))
    await gateway.start()
    with pytest.raises(ChannelError, match="no such host"):
        await gateway.add(Broken("broken"))
    assert list(gateway.status().channels) == ["here"]
    await gateway.stop()


async def test_routes_are_added_and_removed_with_their_channel(tmp_path):
    webhook = WebhookChannel(secret=SECRET, store=tmp_path / "chats.db")
    host = HttpServer([], port=0, grace=1)
    gateway = gateway_of(tmp_path, MemoryChannel("here"), servers=[host])
    await gateway.start()
    async with httpx.AsyncClient(base_url=host.url, trust_env=False, timeout=60) as client:

        async def post(number):
            request = signed({"id": f"m{number}", "chat": "room", "text": "hello"})
            return (await client.post("/webhook/webhook", **request)).status_code

        assert await post(1) == 404
        await gateway.add(webhook)
        assert await post(2) == 202
        await gateway.remove("webhook")
        assert await post(3) == 404
    await gateway.stop()


PIGEON = """
from hookline.channels.in_memory import MemoryChannel

class Pigeon(MemoryChannel):
    def __init__(self, name="bird"):
        super().__init__(name)
"""


async def test_channels_follow_their_plugin(tmp_path):
    folder = tmp_path / "plugins" / "post"
    folder.mkdir(parents=True)
    manifest = 'id = "post"\nversion = "1.0"\napi = "1"\nchannels = { pigeon = "pigeon.py:Pigeon" }\n'
    (folder / "plugin.toml").write_text(manifest)
    (folder / "pigeon.py").write_text(PIGEON)
    plugins = PluginManager(folder=tmp_path / "plugins", installed=False)
    plugins.activate("post")
    settings = Settings(
        channels=["pigeon", f"{tmp_path}/other.py:other"],
        gateway={"database": "gateway.db"},
        sessions=str(tmp_path / "sessions.db"),
    )
    (tmp_path / "other.py").write_text(
        "from hookline.channels.in_memory import MemoryChannel\nother = MemoryChannel('other')"
    )
    answerer = Agent("bot", llm=ScriptedModel([echo], loop=True))
    gateway = build_gateway(settings, answerer, home=tmp_path, offered=plugins.channels)
    await gateway.start()
    follow_plugins(gateway, plugins, settings, home=tmp_path)
    old = gateway.channels["bird"]
    await asyncio.to_thread(plugins.deactivate, "post")  # any thread may do that
    await wait_until(lambda: not gateway.status().channels["bird"].ok and old._deliver is None)
    assert gateway.status().channels["bird"].detail == "the plugin post is switched off"
    assert gateway.status().channels["other"].ok
    await asyncio.to_thread(plugins.activate, "post")
    await wait_until(lambda: gateway.status().channels["bird"].ok)
    new = gateway.channels["bird"]
    assert new is not old
    await new.say("coo")
    assert await new.replies(1) == ["echo coo"]
    await gateway.stop()
    plugins.close()


async def test_items_of_a_channel_that_is_not_configured_are_reported_at_the_start(tmp_path, caplog):
    slow, gone = Slow(), MemoryChannel("gone")
    gateway = gateway_of(tmp_path, gone, slow=slow)
    await gateway.start()
    gone.failures.append(ChannelError("not now", retry_after=1000))
    await gone.say("unsent", chat="a")
    await wait_until(lambda: gateway.status().retried == 1)
    await gone.say("slow", chat="b")
    await gone.say("slow", chat="b")
    await slow.asked.wait()
    other = gateway_of(tmp_path, MemoryChannel("here"))
    await other.start()
    assert "there is no channel" not in caplog.text  # a program that runs sees to it
    await other.stop()
    await gateway.stop(grace=0)
    gateway = gateway_of(tmp_path, MemoryChannel("here"))
    await gateway.start()
    assert "the mailbox has 2 messages and 1 reply of the channel 'gone', which is not configured" in caplog.text
    await gateway.stop()
    caplog.clear()
    gateway = gateway_of(tmp_path, again := MemoryChannel("gone"))
    await gateway.start()
    assert await again.replies(2, "b") == ["echo slow", "echo slow"]
    assert "there is no channel" not in caplog.text
    await gateway.stop(grace=0)
