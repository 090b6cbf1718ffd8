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
def test_no_two_addresses_have_the_same_key(one, other):
    assert (key_of(one) == key_of(other)) == (one == other)
    assert (session_id(key_of(one)) == session_id(key_of(other))) == (one == other)
    assert address_of(key_of(one)) == one


@given(addresses, st.integers(0, 3))
def test_a_session_id_is_safe_as_the_name_of_a_file(address, generation):
    id = session_id(key_of(address), generation)
    assert re.fullmatch(r"[A-Za-z0-9-]{33,60}", id)
    assert (id == session_id(key_of(address))) == (generation == 0)


async def test_each_lane_is_in_order_and_the_limit_holds_over_all():
    done, now, most = [], 0, 0

    async def work(key, item):
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        done.append((key, item))
        now -= 1

    lanes = ConversationQueues(work, limit=3)
    for item in range(5):
        for key in "abcdefgh":
            lanes.put(key, item)
    assert lanes.waiting == 40
    await lanes.wait_until_idle()
    assert most == 3
    for key in "abcdefgh":
        assert [item for lane, item in done if lane == key] == list(range(5))
    assert (lanes.count, lanes.waiting, lanes.running) == (0, 0, 0)


async def test_what_waits_behind_its_own_lane_holds_no_place():
    go, done = asyncio.Event(), []

    async def work(key, item):
        if key == "slow":
            await go.wait()
        done.append(key)

    lanes = ConversationQueues(work, limit=2)
    for _ in range(5):
        lanes.put("slow", 1)
    lanes.put("quick", 1)
    while "quick" not in done:
        await asyncio.sleep(0)
    go.set()
    await lanes.wait_until_idle()
    assert done.count("slow") == 5


async def test_a_failure_does_not_end_a_lane():
    done = []

    async def work(key, item):
        if item == 1:
            raise ValueError("broken")
        done.append(item)

    lanes = ConversationQueues(work)
    for item in (1, 2):
        lanes.put("a", item)
    await lanes.wait_until_idle()
    assert done == [2]


async def test_a_paused_lane_finishes_what_it_is_at_and_begins_nothing():
    go, done = asyncio.Event(), []

    async def work(key, item):
        await go.wait()
        done.append(item)

    lanes = ConversationQueues(work, limit=1)
    for key in "ab":
        for item in (1, 2):
            lanes.put(key, item)
    while not lanes.running:
        await asyncio.sleep(0)
    lanes.pause()
    lanes.put("c", 3)
    go.set()
    await lanes.wait_until_idle()
    assert done == [1]
    await lanes.stop()
    assert lanes.count == 0


async def test_dropping_takes_what_waits_and_not_what_runs():
    go = asyncio.Event()

    async def work(key, item):
        await go.wait()

    lanes = ConversationQueues(work)
    for item in range(3):
        lanes.put("a", item)
    while not lanes.running:
        await asyncio.sleep(0)
    assert lanes.drop("a") == [1, 2]
    assert lanes.drop("nobody") == []
    assert (lanes.waiting, lanes.waiting_in("a"), lanes.running) == (0, 0, 1)
    go.set()
    await lanes.wait_until_idle()
