import asyncio
import re

from hypothesis import given
from hypothesis import strategies as st

from hookline.channels.conversations import address_of, key_of, session_id
from hookline.channels.protocol import Address
from hookline.channels.queues import ConversationQueues

texts = st.text(st.characters() | st.sampled_from('",[]:|/\\\ud800'), max_size=6)
addresses = st.builds(Address, texts, texts, texts, texts)


@given(addresses, addresses)
def test_each_address_has_its_own_key(one, other):
    assert (key_of(one) == key_of(other)) == (one == other)
    assert (session_id(key_of(one)) == session_id(key_of(other))) == (one == other)
    assert address_of(key_of(one)) == one


@given(addresses, st.integers(0, 3))
def test_a_session_id_is_safe_as_a_file_name(address, generation):
    id = session_id(key_of(address), generation)
    assert re.fullmatch(r"[A-Za-z0-9-]{33,60}", id)
    assert (id == session_id(key_of(address))) == (generation == 0)


async def test_each_queue_keeps_its_order_and_the_limit_applies_to_all_queues():
    done, now, most = [], 0, 0

    async def work(key, item):
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        done.append((key, item))
        now -= 1

    queues = ConversationQueues(work, limit=3)
    for item in range(5):
        for key in "abcdefgh":
            queues.put(key, item)
    assert queues.waiting == 40
    await queues.wait_until_idle()
    assert most == 3
    for key in "abcdefgh":
        assert [item for name, item in done if name == key] == list(range(5))
    assert (len(queues), queues.waiting, queues.running) == (0, 0, 0)


async def test_a_waiting_item_holds_no_slot():
    go, done = asyncio.Event(), []

    async def work(key, item):
        if key == "slow":
            await go.wait()
        done.append(key)

    queues = ConversationQueues(work, limit=2)
    for _ in range(5):
        queues.put("slow", 1)
    queues.put("quick", 1)
    while "quick" not in done:
        await asyncio.sleep(0)
    go.set()
    await queues.wait_until_idle()
    assert done.count("slow") == 5


async def test_a_queue_continues_after_a_failure():
    done = []

    async def work(key, item):
        if item == 1:
            raise ValueError("broken")
        done.append(item)

    queues = ConversationQueues(work)
    for item in (1, 2):
        queues.put("a", item)
    await queues.wait_until_idle()
    assert done == [2]


async def test_a_paused_queue_finishes_its_current_item_and_starts_no_other():
    go, done = asyncio.Event(), []

    async def work(key, item):
        await go.wait()
        done.append(item)

    queues = ConversationQueues(work, limit=1)
    for key in "ab":
        for item in (1, 2):
            queues.put(key, item)
    while not queues.running:
        await asyncio.sleep(0)
    queues.pause()
    queues.put("c", 3)
    go.set()
    await queues.wait_until_idle()
    assert done == [1]
    await queues.stop()
    assert len(queues) == 0


async def test_clearing_removes_waiting_items_but_not_the_current_one():
    go = asyncio.Event()

    async def work(key, item):
        await go.wait()

    queues = ConversationQueues(work)
    for item in range(3):
        queues.put("a", item)
    while not queues.running:
        await asyncio.sleep(0)
    assert queues.clear("a") == [1, 2]
    assert queues.clear("nobody") == []
    assert (queues.waiting, queues.waiting_in("a"), queues.running) == (0, 0, 1)
    go.set()
    await queues.wait_until_idle()
