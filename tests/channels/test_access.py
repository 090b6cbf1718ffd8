import re

import pytest

from hookline import observer
from hookline.channels.access import Access
from hookline.channels.in_memory import MemoryChannel
from hookline.channels.protocol import Capabilities
from hookline.stores.errors import StoreError
from hookline.stores.pairing import pair, people, revoke


@pytest.fixture
async def guarded(gateways):
    fired = []

    @observer("message_received", "inbound_claim", "message_sending", "before_dispatch", "message_sent", "on_run_start")
    def watch(point, ctx, payload):
        fired.append(str(point))

    async def make(**rules):
        gateway, channel = await gateways(hooks=[watch], access=Access(**rules))
        return gateway, channel, fired

    return make


async def test_a_message_from_a_sender_who_is_not_allowed_fires_no_point(guarded, caplog):
    caplog.set_level("INFO")
    gateway, channel, fired = await guarded(allow=["ada"])
    await channel.say("hi", sender="eve", message_id="m1")
    await gateway.wait_until_idle()
    assert (channel.sent, fired) == ([], [])
    assert "'eve' is not accepted: not allowed" in caplog.text
    await channel.say("hi", sender="ada")
    await gateway.wait_until_idle()
    assert channel.texts() == ["echo hi"]


@pytest.mark.parametrize(("mention", "mentioned", "answered"), [(True, False, 0), (True, True, 1), (False, False, 1)])
async def test_group_messages_must_mention_the_bot(guarded, mention, mentioned, answered):
    gateway, channel, _ = await guarded(mention=mention)
    await channel.say("hi", direct=False, mentioned=mentioned)
    await gateway.wait_until_idle()
    assert len(channel.sent) == answered


async def test_a_reply_in_a_thread_that_the_agent_takes_part_in_needs_no_mention(gateways):
    threads = MemoryChannel(capabilities=Capabilities(threads=True))
    gateway, channel = await gateways(channel=threads, access=Access(allow=["ada"]))

    async def say(text, thread, sender="ada", **fields):
        before = len(channel.sent)
        await channel.say(text, sender=sender, direct=False, thread_id=thread, **fields)
        await gateway.wait_until_idle()
        return channel.texts()[before:]

    assert await say("begin", "t1", message_id="t1") == []  # a new thread needs a mention
    assert await say("hello", "t1", mentioned=True) == ["echo hello"]
    assert await say("and more", "t1") == ["echo and more"]
    assert await say("elsewhere", "t2") == []
    assert await say("me too", "t1", sender="eve") == []

    await gateway.stop()
    gateway, channel = await gateways(channel=threads, access=Access(allow=["ada"]))
    assert await say("after a restart", "t1") == ["echo after a restart"]
    assert await say("elsewhere", "t2") == []


async def test_a_topic_is_not_a_thread(gateways):
    gateway, channel = await gateways(access=Access())
    await channel.say("hello", direct=False, thread_id="topic", mentioned=True)
    await channel.say("not for you", direct=False, thread_id="topic")
    await gateway.wait_until_idle()
    assert channel.texts() == ["echo hello"]


async def test_an_unknown_sender_gets_a_pairing_code(guarded):
    gateway, channel, fired = await guarded(pairing=True)
    await channel.say("hi", sender="bob")
    (asked,) = await channel.replies(1)
    code = re.search(r"[A-Z2-9]{4}-[A-Z2-9]{4}", asked)[0]
    assert fired == []
    await channel.say("hello?", sender="bob")  # no second code while one is open
    await gateway.wait_until_idle()
    assert len(channel.sent) == 1
    database = gateway._mailbox.database
    assert code.replace("-", "") not in str(people(database))
    with pytest.raises(StoreError, match="the code does not exist or has expired"):
        pair(database, "AAAA-AAAA")
    assert pair(database, code.lower()).sender == "bob"
    with pytest.raises(StoreError, match="the code does not exist or has expired"):
        pair(database, code)
    await channel.say("now?", sender="bob")
    await gateway.wait_until_idle()
    assert channel.texts()[1:] == ["echo now?"]
    assert revoke(database, "memory", "bob")
    assert not revoke(database, "memory", "bob")
    await channel.say("again", sender="bob", direct=False, mentioned=True)
    await gateway.wait_until_idle()
    assert len(channel.sent) == 2


async def test_pairing_codes_are_limited_and_not_sent_in_groups(guarded):
    gateway, channel, _ = await guarded(pairing=True)
    await channel.say("hi", sender="bob", direct=False, mentioned=True)
    for number in range(25):
        await channel.say("hi", sender=f"spam{number}", chat=f"spam{number}")
    await gateway.wait_until_idle()
    assert len(channel.sent) == 20


@pytest.mark.sqlite
async def test_codes_and_texts_are_deleted_after_use(guarded):
    gateway, channel, _ = await guarded(pairing=True, allow=["ada"])
    await channel.say("hi", sender="bob")
    await channel.say("a word of ada", sender="ada", chat="ada")
    await gateway.wait_until_idle()
    code = re.search(r"[A-Z2-9]{4}-[A-Z2-9]{4}", channel.texts()[0])[0]
    with gateway._mailbox.database.transaction() as db:
        kept = "".join(db.iterdump())
    assert "memory" in kept
    assert code not in kept
    assert "a word of ada" not in kept


@pytest.mark.parametrize("allow", ["ada", [7654321]])
def test_senders_must_be_a_list_of_strings(allow):
    with pytest.raises(TypeError, match="allow"):
        Access(allow)
