"""Tests that every channel must pass: subclass :class:`Conformance` and provide a fixture ``rig``."""

import asyncio
from collections import Counter

import pytest

from hookline.channels.protocol import Address, Channel, ChannelError, Health, UndeliverableError
from hookline.stores.messages import OutboundMessage

from ..waiting import wait_until
from .platforms import Inbox


class Rig:
    """A channel and its platform. Subclasses implement the platform."""

    channel: Channel
    chat = "kitchen"
    """The chat of the tests."""

    async def say(self, text: str) -> None:
        """Write a message in the chat as a person."""
        raise NotImplementedError

    async def heard(self) -> list[str]:
        """The texts that people have seen in the chat."""
        raise NotImplementedError

    @property
    def address(self) -> Address:
        return Address(self.channel.name, self.chat)


class ApiRig(Rig):
    """A channel and the server of its platform, on which people write and read."""

    def __init__(self, channel, api, chat):
        self.channel, self.api, self.chat = channel, api, chat

    async def say(self, text):
        await self.api.say(text)

    async def heard(self):
        return self.api.texts()


async def ready(channel, inbox):
    await channel.start(inbox)
    await wait_until(lambda: channel.health().ok)


class Conformance:
    """Tests of the promises in ``channels/protocol.py``."""

    async def test_it_is_a_channel(self, rig):
        assert isinstance(rig.channel, Channel)
        limit = rig.channel.capabilities.max_length
        assert limit is None or limit > 0
        assert rig.channel.capabilities.length("abc") == 3

    async def test_messages_are_delivered_once_and_in_order(self, rig):
        inbox = Inbox()
        await ready(rig.channel, inbox)
        for n in range(5):
            await rig.say(f"number {n}")
        await wait_until(lambda: len(inbox.messages) == 5)
        assert inbox.texts == [f"number {n}" for n in range(5)]
        assert {message.chat_id for message in inbox.messages} == {rig.chat}
        assert len({message.message_id for message in inbox.messages}) == 5
        assert all(message.message_id and message.sender and message.platform for message in inbox.messages)
        await rig.channel.stop()

    async def test_a_repeated_text_is_two_messages(self, rig):
        inbox = Inbox()
        await ready(rig.channel, inbox)
        await rig.say("again")
        await rig.say("again")
        await wait_until(lambda: inbox.texts == ["again", "again"])
        await rig.channel.stop()

    async def test_delivery_is_retried_until_the_message_is_stored(self, rig):
        inbox = Inbox()
        inbox.failures = [OSError("the disk is full"), RuntimeError("busy")]
        await ready(rig.channel, inbox)
        await rig.say("keep me")
        await rig.say("and me")
        await wait_until(lambda: inbox.texts == ["keep me", "and me"])
        await wait_until(lambda: rig.channel.health().ok)
        await rig.channel.stop()

    async def test_stopping_waits_for_deliveries_in_progress(self, rig):
        inbox = Inbox()
        await ready(rig.channel, inbox)
        inbox.open.clear()
        await rig.say("on its way")
        await wait_until(lambda: inbox.messages)
        stopping = asyncio.create_task(rig.channel.stop())
        await asyncio.sleep(0)
        assert not stopping.done()
        inbox.open.set()
        await stopping

    async def test_it_can_be_started_and_stopped_again_and_stopped_twice(self, rig):
        inbox = Inbox()
        await rig.channel.stop()
        for text in ("first", "second"):
            await ready(rig.channel, inbox)
            await rig.say(text)
            await wait_until(lambda text=text: text in inbox.texts)
            await rig.channel.stop()
            await rig.channel.stop()
        assert sorted(inbox.texts) == ["first", "second"]

    async def test_starting_twice_is_an_error_and_does_no_harm(self, rig):
        inbox = Inbox()
        await ready(rig.channel, inbox)
        with pytest.raises(ChannelError, match="already"):
            await rig.channel.start(inbox)
        await rig.say("still there")
        await wait_until(lambda: inbox.texts == ["still there"])
        await rig.channel.stop()

    async def test_health_is_reported_before_during_and_after_a_run(self, rig):
        def told(ok):
            health = rig.channel.health()
            assert isinstance(health, Health)
            assert health.ok is ok
            assert health.ok or health.detail

        told(False)
        await ready(rig.channel, Inbox())
        told(True)
        await rig.channel.stop()
        told(False)

    async def test_sending_requires_a_started_channel(self, rig):
        for _ in range(2):
            with pytest.raises(ChannelError) as caught:
                await rig.channel.send(rig.address, OutboundMessage("hello"), key="k")
            assert not isinstance(caught.value, UndeliverableError)  # it may be sent later
            await ready(rig.channel, Inbox())
            await rig.channel.stop()

    async def test_many_sends_at_once_all_arrive(self, rig):
        await ready(rig.channel, Inbox())
        texts = [f"reply {n}" for n in range(30)]
        ids = await asyncio.gather(*(rig.channel.send(rig.address, OutboundMessage(text), key=text) for text in texts))
        assert len(set(ids)) == 30
        assert all(ids)
        seen = []
        while len(seen) < 30:
            seen = await rig.heard()
        assert Counter(seen) == Counter(texts)
        await rig.channel.stop()

    async def test_stopping_waits_for_sends_in_progress(self, rig):
        await ready(rig.channel, Inbox())
        sending = [
            asyncio.create_task(rig.channel.send(rig.address, OutboundMessage(f"{n}"), key=f"{n}")) for n in range(5)
        ]
        await asyncio.sleep(0)
        await rig.channel.stop()
        assert len(await asyncio.gather(*sending)) == 5

    async def test_replies_are_not_received_as_messages(self, rig):
        inbox = Inbox()
        await ready(rig.channel, inbox)
        await rig.channel.send(rig.address, OutboundMessage("from the agent"), key="1")
        await rig.say("from a person")
        await wait_until(lambda: inbox.messages)
        await rig.channel.stop()
        assert inbox.texts == ["from a person"]

    async def test_typing_and_edit_exist_if_the_capabilities_say_so(self, rig):
        await ready(rig.channel, Inbox())
        if rig.channel.capabilities.typing:
            await rig.channel.typing(rig.address)
        if rig.channel.capabilities.edit:
            sent = await rig.channel.send(rig.address, OutboundMessage("one"), key="1")
            await rig.channel.edit(rig.address, sent, OutboundMessage("two"))
            assert (await rig.heard())[-1] == "two"
        await rig.channel.stop()
