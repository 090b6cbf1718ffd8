"""Helpers for asyncio tasks."""

import asyncio

import pytest

from hookline._base.tasks import wait_at_most, with_timeout


async def test_a_wait_says_whether_the_event_is_set():
    event = asyncio.Event()
    assert not await wait_at_most(event, 0)
    event.set()
    assert await wait_at_most(event, 0)


@pytest.mark.parametrize("turns", range(5))
async def test_a_cancellation_that_arrives_together_with_the_event_is_not_lost(turns):
    event = asyncio.Event()
    task = asyncio.create_task(wait_at_most(event, 600))
    for _ in range(3):
        await asyncio.sleep(0)
    event.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    was_running = task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() == was_running


async def test_work_whose_task_is_cancelled_before_it_begins_is_closed():
    """Python would warn about a coroutine that was never awaited."""

    async def work():
        raise AssertionError("it does not begin")

    async def caller():
        asyncio.current_task().cancel()
        await with_timeout(5, given)

    given = work()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.ensure_future(caller())
    await asyncio.sleep(0)
    assert given.cr_frame is None
