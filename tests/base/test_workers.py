"""Worker threads that can be abandoned."""

import asyncio
import contextvars
import threading
import time

import pytest

from hookline._base import workers
from hookline._base.workers import in_thread

var = contextvars.ContextVar("var", default="unset")


async def test_a_function_runs_in_another_thread_and_gives_its_result():
    def work(a, b):
        return threading.current_thread(), a + b

    thread, total = await in_thread(work, 1, 2)
    assert total == 3
    assert thread is not threading.current_thread()
    assert thread.daemon


async def test_the_callers_context_variables_are_seen_but_not_changed():
    var.set("mine")

    def work():
        seen = var.get()
        var.set("changed")
        return seen

    assert await in_thread(work) == "mine"
    assert var.get() == "mine"


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt("stop"), SystemExit(3)])
async def test_an_exception_is_raised_in_the_awaiting_code(error):
    def work():
        raise error

    with pytest.raises(type(error)) as caught:
        await in_thread(work)
    assert caught.value is error


async def test_stop_iteration_does_not_break_the_future():
    with pytest.raises(RuntimeError, match="StopIteration"):
        await in_thread(next, iter(()))


async def test_cancelling_abandons_the_thread_and_drops_its_late_result():
    release, finished = threading.Event(), threading.Event()

    def work():
        release.wait(60)
        finished.set()
        return "late"

    task = asyncio.create_task(in_thread(work))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not finished.is_set()
    release.set()
    assert await in_thread(finished.wait, 5)
    await asyncio.sleep(0)  # the late result arrives here and is dropped


def test_a_result_for_a_loop_that_is_closed_is_dropped():
    release, finished = threading.Event(), threading.Event()

    def work():
        release.wait(60)
        finished.set()

    async def main():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(in_thread(work), 0.01)

    asyncio.run(main())
    release.set()
    assert finished.wait(60)
    assert asyncio.run(in_thread(lambda: "still works")) == "still works"


async def test_many_calls_run_at_once_even_when_some_hang():
    barrier = threading.Barrier(20, timeout=60)
    assert sorted(await asyncio.gather(*(in_thread(barrier.wait) for _ in range(20)))) == list(range(20))


async def test_idle_workers_are_used_again():
    def thread():
        return threading.get_ident()

    seen = set()
    for _ in range(20):
        seen.add(await in_thread(thread))
        deadline = time.monotonic() + 1
        while not workers._idle and time.monotonic() < deadline:
            await asyncio.sleep(0.001)
    before = threading.active_count()
    for _ in range(20):
        seen.add(await in_thread(thread))
        while not workers._idle and time.monotonic() < deadline + 1:
            await asyncio.sleep(0.001)
    assert threading.active_count() <= before + 1
    assert len(seen) < 40
