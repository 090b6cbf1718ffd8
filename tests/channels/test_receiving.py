import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.channels import receiving
from hookline.channels.receiving import Backoff, InFlight, RetryingDelivery, await_unless_stopped
from hookline.stores.messages import InboundMessage

said = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2)), max_size=12)


@given(said)
def test_every_message_is_handed_on_and_each_conversation_stays_in_order(said):
    async def at_once(seconds, stopping):
        await asyncio.sleep(0)
        return False

    async def scenario(monkeypatch):
        monkeypatch.setattr(receiving, "sleep_unless_stopped", at_once)
        messages = [InboundMessage(f"{n}", chat_id=chat) for n, (chat, _) in enumerate(said)]
        left = {f"{n}": failures for n, (_, failures) in enumerate(said)}
        stored, troubles = [], []

        async def deliver(message):
            await asyncio.sleep(0)
            if left[message.text]:
                left[message.text] -= 1
                raise OSError("full")
            stored.append(message)
            return True

        assert await RetryingDelivery(deliver, asyncio.Event(), troubles.append).take(messages)
        for chat in "abc":
            assert [m for m in stored if m.chat_id == chat] == [m for m in messages if m.chat_id == chat]
        assert len(stored) == len(messages)
        assert not troubles or troubles[-1] == ""

    with pytest.MonkeyPatch.context() as monkeypatch:
        asyncio.run(scenario(monkeypatch))


async def test_a_stop_leaves_what_could_not_be_stored():
    stopping, tried = asyncio.Event(), []

    async def full(message):
        tried.append(message)
        stopping.set()
        raise OSError("full")

    handover = RetryingDelivery(full, stopping, lambda detail: None)
    assert not await handover.take([InboundMessage("one"), InboundMessage("two")])
    assert [message.text for message in tried] == ["one"]


def test_waits_grow_up_to_a_limit_and_begin_anew():
    waits = Backoff(1, 8)
    found = [waits.next() for _ in range(6)]
    for wait, about in zip(found, (1, 2, 4, 8, 8, 8), strict=True):
        assert 0.75 * about <= wait <= 1.25 * about
    waits.reset()
    assert waits.next() <= 1.25


async def test_what_is_awaited_is_cancelled_by_a_stop_and_leaves_no_task():
    before, stopping = asyncio.all_tasks(), asyncio.Event()
    assert await await_unless_stopped(asyncio.sleep(0, "there"), stopping) == "there"
    asyncio.get_running_loop().call_soon(stopping.set)
    assert await await_unless_stopped(asyncio.sleep(1000), stopping) is None
    with pytest.raises(ZeroDivisionError):
        await await_unless_stopped(_fails(), asyncio.Event())
    assert asyncio.all_tasks() == before


async def _fails():
    raise ZeroDivisionError


async def test_busy_is_over_when_nothing_is_under_way():
    busy = InFlight()
    await busy.over()
    with busy, pytest.raises(TimeoutError):
        with busy:
            pass
        await asyncio.wait_for(busy.over(), 0.01)
    await busy.over()
