"""A misbehaving channel ends no gateway, loses no message and blocks no other channel."""

import asyncio
import math

import pytest

from hookline import Agent, ScriptedModel
from hookline.channels import gateway as module
from hookline.channels.gateway import Gateway
from hookline.channels.in_memory import MemoryChannel
from hookline.channels.outbox import Outbox
from hookline.channels.protocol import ChannelError, Health
from hookline.channels.queues import ConversationQueues
from hookline.stores.mailbox import Mailbox
from hookline.stores.sessions import SqliteSessionStore


def on(folder, *channels):
    return Gateway(
        Agent("bot", llm=ScriptedModel(["hello"], loop=True)),
        channels,
        mailbox=Mailbox(folder / "gateway.db"),
        sessions=SqliteSessionStore(folder / "sessions.db"),
    )


@pytest.mark.parametrize("wanted", [math.nan, -math.inf, "soon", None, -1, 0, True])
async def test_an_invalid_retry_after_does_not_prevent_the_send(gateways, monkeypatch, wanted):
    monkeypatch.setattr("hookline.channels.outbox.MAX_DELAY", 0.01)
    gateway, channel = await gateways()
    channel.failures.append(ChannelError("not now", retry_after=wanted))
    await channel.say("hi")
    assert await channel.replies(1) == ["echo hi"]
    await gateway.wait_until_idle()
    assert gateway.status().retried == 1


def test_a_retry_after_of_zero_does_not_cause_a_busy_loop():
    assert [Outbox._delay(tries, 0) for tries in (5, 20)] == [pytest.approx(0.32), 1.0]
    assert Outbox._delay(20, 7) == 7.0


async def test_a_clock_that_was_set_back_does_not_delay_a_reply(tmp_path):
    channel = MemoryChannel()
    first = on(tmp_path, channel)
    await first.start()
    channel.failures.append(ChannelError("not now", retry_after=3600))
    await channel.say("hi")
    while not first.status().retried:
        await asyncio.sleep(0.01)
    ahead = "UPDATE outbox SET at = at + 1e8, due = due + 1e8"
    await first._mailbox.transact(lambda db: db.execute(ahead))
    await first.stop(grace=0)
    then = on(tmp_path, channel)
    await then.start()
    assert await channel.replies(1) == ["hello"]
    await then.stop()


async def test_a_message_is_answered_even_if_the_channel_cancels_the_delivery(gateways):
    gateway, channel = await gateways()
    saying = asyncio.create_task(channel.say("hi", message_id="m1"))
    await asyncio.sleep(0)
    saying.cancel()
    assert await channel.replies(1) == ["echo hi"]
    assert saying.cancelled()
    assert not await channel.say("hi", message_id="m1")


@pytest.mark.parametrize("health", [None, "fine", RuntimeError("no idea")])
async def test_a_channel_with_a_broken_health_check_is_unhealthy(gateways, health):
    class Unwell(MemoryChannel):
        def health(self):
            if isinstance(health, Exception):
                raise health
            return health

    gateway, channel = await gateways(channel=Unwell())
    (found,) = gateway.status().channels.values()
    assert isinstance(found, Health)
    assert not found.ok
    assert found.detail


@pytest.mark.usefixtures("polls_often")
async def test_a_channel_with_a_broken_ended_property_does_not_stop_polling(gateways, caplog):
    class Odd(MemoryChannel):
        asked = 0

        @property
        def ended(self):
            self.asked += 1
            raise RuntimeError("who knows")

    _, channel = await gateways(channel=Odd())
    while channel.asked < 2:
        await asyncio.sleep(0.01)
    assert "who knows" in caplog.text


class Deaf(MemoryChannel):
    """Work that ignores its cancellation."""

    async def hang(self):
        while not self.over:
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                self.cancelled = True

    over = cancelled = False


async def test_a_channel_that_does_not_stop_is_abandoned(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(module, "STOP_SECONDS", 0.05)

    class Stuck(Deaf):
        async def stop(self):
            await self.hang()

    stuck, other = Stuck("stuck"), MemoryChannel()
    gateway = on(tmp_path, other, stuck)
    await gateway.start()
    await gateway.stop()
    assert "stuck did not stop" in caplog.text
    assert other._deliver is None
    stuck.over = True


async def test_work_that_ignores_its_cancellation_does_not_block_stop(monkeypatch):
    monkeypatch.setattr("hookline.channels.queues.CANCEL_SECONDS", 0.05)
    deaf, began = Deaf(), asyncio.Event()

    async def work(key, item):
        began.set()
        await deaf.hang()

    queues = ConversationQueues(work)
    queues.put("a", 1)
    await began.wait()
    await queues.stop()
    assert deaf.cancelled
    deaf.over = True


async def test_work_that_ignores_its_cancellation_does_not_block_cancel(monkeypatch):
    monkeypatch.setattr("hookline.channels.queues.CANCEL_SECONDS", 0.05)
    deaf, began = Deaf(), asyncio.Event()

    async def work(key, item):
        began.set()
        await deaf.hang()

    queues = ConversationQueues(work)
    queues.put("a", 1)
    await began.wait()
    await queues.cancel(["a"], 0)
    assert deaf.cancelled
    deaf.over = True
    await queues.wait_until_idle()


async def test_a_gateway_that_was_stopped_does_not_start(tmp_path):
    channel = MemoryChannel()
    gateway = on(tmp_path, channel)
    await gateway.stop()
    await gateway.start()
    await gateway.wait()
    assert channel._deliver is None


async def test_a_gateway_cannot_be_started_twice(gateways):
    gateway, channel = await gateways()
    with pytest.raises(RuntimeError, match="started already"):
        await gateway.start()
    await channel.say("hi")
    assert await channel.replies(1) == ["echo hi"]


async def test_wait_returns_although_the_caller_of_stop_was_cancelled(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "STOP_SECONDS", 0.05)

    class Slow(MemoryChannel):
        began = asyncio.Event()

        async def stop(self):
            self.began.set()
            await asyncio.Event().wait()

    slow = Slow()
    gateway = on(tmp_path, slow)
    await gateway.start()
    stopping = asyncio.create_task(gateway.stop())
    await slow.began.wait()
    waiting = asyncio.create_task(gateway.wait())
    stopping.cancel()
    await asyncio.wait([stopping])
    await waiting


async def test_a_gateway_can_be_stopped_while_a_channel_starts(tmp_path):
    class Slow(MemoryChannel):
        began = asyncio.Event()

        async def start(self, deliver):
            self.began.set()
            await asyncio.Event().wait()

    first, slow, last = MemoryChannel("first"), Slow("slow"), MemoryChannel("last")
    gateway = on(tmp_path, first, slow, last)
    starting = asyncio.create_task(gateway.start())
    await slow.began.wait()
    await gateway.stop()
    await starting
    await gateway.wait()
    assert first._deliver is None
    assert last._deliver is None


async def test_a_failing_follow_up_does_not_lose_the_first_reply(gateways, caplog):
    class Answerer(Agent):
        def follow_up(self, session, result):
            raise RuntimeError("nobody to hand over to")

    gateway, channel = await gateways(answerer=Answerer("bot", llm=ScriptedModel(["hello"])))
    await channel.say("hi")
    assert await channel.replies(1) == ["hello"]
    assert "nobody to hand over to" in caplog.text


async def test_a_message_is_answered_even_if_its_plugins_are_unknown(gateways, caplog):
    class Answerer(Agent):
        def plugins_for(self, session):
            raise RuntimeError("that personality is gone")

    gateway, channel = await gateways(answerer=Answerer("bot", llm=ScriptedModel(["hello"])))
    await channel.say("hi")
    assert await channel.replies(1) == ["hello"]
    assert "that personality is gone" in caplog.text
    await gateway.wait_until_idle()
    assert (await gateway._mailbox.transact(lambda db: db.execute("SELECT state FROM inbox").fetchall())) == [("done",)]
