import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.channels import receiving
from hookline.channels.receiving import Backoff, InFlight, RetryingDelivery, await_unless_stopped
from hookline.stores.messages import InboundMessage

deliveries = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2)), max_size=12)


@given(deliveries)
def test_every_message_is_delivered_in_order_per_conversation(deliveries):
    async def no_delay(stopping, seconds):
        await asyncio.sleep(0)
        return False

    async def scenario(monkeypatch):
        monkeypatch.setattr(receiving, "wait_at_most", no_delay)
        messages = [InboundMessage(f"{n}", chat_id=chat) for n, (chat, _) in enumerate(deliveries)]
        left = {f"{n}": failures for n, (_, failures) in enumerate(deliveries)}
        stored, problems = [], []

        async def deliver(message):
            await asyncio.sleep(0)
            if left[message.text]:
                left[message.text] -= 1
                raise OSError("full")
            stored.append(message)
            return True

        assert await RetryingDelivery(deliver, asyncio.Event(), problems.append).deliver_all(messages)
        for chat in "abc":
            assert [m for m in stored if m.chat_id == chat] == [m for m in messages if m.chat_id == chat]
        assert len(stored) == len(messages)
        assert not problems or problems[-1] == ""

    with pytest.MonkeyPatch.context() as monkeypatch:
        asyncio.run(scenario(monkeypatch))


async def test_a_stopped_channel_leaves_unstored_messages_to_the_platform():
    stopping, tried = asyncio.Event(), []

    async def full(message):
        tried.append(message)
        stopping.set()
        raise OSError("full")

    delivery = RetryingDelivery(full, stopping, lambda detail: None)
    assert not await delivery.deliver_all([InboundMessage("one"), InboundMessage("two")])
    assert [message.text for message in tried] == ["one"]


def test_delays_double_up_to_a_limit_and_start_again_after_a_reset():
    backoff = Backoff(1, 8)
    delays = [backoff.next() for _ in range(6)]
    for delay, expected in zip(delays, (1, 2, 4, 8, 8, 8), strict=True):
        assert 0.75 * expected <= delay <= 1.25 * expected
    backoff.reset()
    assert backoff.next() <= 1.25


async def test_a_stop_cancels_what_is_awaited_and_leaves_no_task():
    before, stopping = asyncio.all_tasks(), asyncio.Event()
    assert await await_unless_stopped(asyncio.sleep(0, "there"), stopping) == "there"
    asyncio.get_running_loop().call_soon(stopping.set)
    assert await await_unless_stopped(asyncio.sleep(1000), stopping) is None
    with pytest.raises(ZeroDivisionError):
        await await_unless_stopped(_fails(), asyncio.Event())
    assert asyncio.all_tasks() == before


async def _fails():
    raise ZeroDivisionError


async def test_waiting_for_idle_ends_when_no_operation_is_in_progress():
    in_flight = InFlight()
    await in_flight.wait_until_idle()
    with in_flight, pytest.raises(TimeoutError):
        with in_flight:
            pass
        await asyncio.wait_for(in_flight.wait_until_idle(), 0.01)
    await in_flight.wait_until_idle()
