"""A component is started and stopped at most once, by any number of callers."""

import asyncio

import pytest

from hookline._base import lifecycle as module
from hookline._base.lifecycle import Lifecycle, stop_component


class Component:
    """Records what its lifecycle calls; its start waits for ``may_start``, its shutdown for ``may_stop``."""

    def __init__(self, *, start_error=None, stop_error=None):
        self.lifecycle = Lifecycle(self._start, self._stop, grace=600)
        self.may_start, self.may_stop = asyncio.Event(), asyncio.Event()
        self.start_error, self.stop_error = start_error, stop_error
        self.log = []

    async def _start(self):
        self.log.append("starting")
        await self.may_start.wait()
        if self.start_error is not None:
            raise self.start_error
        self.log.append("started")

    async def _stop(self, grace):
        self.log.append(f"stopping in {grace:g} s")
        await self.lifecycle.wait_within_grace(grace, self.may_stop.wait())
        if self.stop_error is not None:
            raise self.stop_error
        self.log.append("stopped")

    async def starting(self):
        """The task of a start that has begun and waits."""
        task = asyncio.create_task(self.lifecycle.start())
        while not self.log:
            await asyncio.sleep(0)
        return task

    async def stopping(self, grace=None):
        """The task of a shutdown that has begun and waits."""
        task = asyncio.create_task(self.lifecycle.stop(grace))
        while "stopping" not in str(self.log):
            await asyncio.sleep(0)
        return task


async def test_the_state_follows_start_and_stop():
    component = Component()
    states = [component.lifecycle.state]
    start = await component.starting()
    states.append(component.lifecycle.state)
    component.may_start.set()
    assert await start is True
    states.append(component.lifecycle.state)
    stop = await component.stopping()
    states.append(component.lifecycle.state)
    component.may_stop.set()
    await stop
    states.append(component.lifecycle.state)
    assert states == ["new", "starting", "running", "stopping", "stopped"]


async def test_a_second_start_is_an_error_and_changes_nothing():
    component = Component()
    component.may_start.set()
    assert await component.lifecycle.start()
    with pytest.raises(RuntimeError, match="create another one"):
        await component.lifecycle.start()
    assert component.log == ["starting", "started"]
    assert component.lifecycle.state == "running"


async def test_a_failed_start_shuts_down_without_grace_and_raises():
    component = Component(start_error=OSError("port taken"))
    component.may_start.set()
    with pytest.raises(OSError, match="port taken"):
        await component.lifecycle.start()
    assert component.log == ["starting", "stopping in 0 s", "stopped"]


async def test_a_start_whose_caller_is_cancelled_shuts_down():
    component = Component()
    start = await component.starting()
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert component.log == ["starting", "stopping in 0 s", "stopped"]


async def test_stop_before_start_prevents_the_start():
    component = Component()
    await component.lifecycle.stop(grace=0)
    assert await component.lifecycle.start() is False
    assert component.log == ["stopping in 0 s", "stopped"]


async def test_stop_during_start_cancels_the_start():
    component = Component()
    start = await component.starting()
    await component.lifecycle.stop(grace=0)
    assert await start is False
    assert component.log == ["starting", "stopping in 0 s", "stopped"]


async def test_a_start_that_ignores_its_cancellation_does_not_block_the_shutdown(monkeypatch):
    monkeypatch.setattr(module, "CANCEL_START_SECONDS", 0.01)
    began, released, stopped = asyncio.Event(), asyncio.Event(), []

    async def stubborn():
        began.set()
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue

    async def stop(grace):
        stopped.append(grace)

    lifecycle = Lifecycle(stubborn, stop, grace=5)
    start = asyncio.create_task(lifecycle.start())
    await began.wait()
    await lifecycle.stop()
    released.set()
    assert await start is False
    assert (stopped, lifecycle.state) == ([5], "stopped")


async def test_two_callers_stop_once_and_both_wait_for_the_end():
    component = Component()
    first, second = await component.stopping(), asyncio.create_task(component.lifecycle.stop())
    await asyncio.sleep(0)
    assert not first.done()
    assert not second.done()
    component.may_stop.set()
    await asyncio.gather(first, second)
    assert component.log == ["stopping in 600 s", "stopped"]


async def test_a_stop_without_grace_ends_the_grace_period_of_another():
    component = Component()
    first = await component.stopping(grace=600)
    await component.lifecycle.stop(grace=0)
    await first
    assert component.log == ["stopping in 600 s", "stopped"]


async def test_a_cancelled_stop_continues_without_grace():
    component = Component()
    first = await component.stopping(grace=600)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await component.lifecycle.stop(grace=600)
    assert component.log == ["stopping in 600 s", "stopped"]


async def test_every_caller_gets_the_error_of_a_failed_shutdown():
    component = Component(stop_error=OSError("disk full"))
    for _ in range(2):
        with pytest.raises(OSError, match="disk full"):
            await component.lifecycle.stop(grace=0)
    assert component.lifecycle.state == "stopped"


async def test_cancelling_wait_stops_the_component():
    component = Component()
    component.may_start.set()
    component.may_stop.set()
    await component.lifecycle.start()
    waiting = asyncio.create_task(component.lifecycle.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert component.log[-1] == "stopped"


async def test_wait_returns_once_the_component_has_stopped():
    component = Component()
    waiting = asyncio.create_task(component.lifecycle.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    await component.lifecycle.stop(grace=0)
    await waiting
    assert component.lifecycle.state == "stopped"


async def fails():
    raise OSError("gone")


async def hangs():
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("stop", "logged"),
    [(fails, "the disk failed to stop: OSError: gone"), (hangs, "the disk did not stop within 0.01 s")],
)
async def test_a_part_that_fails_or_hangs_is_logged_and_does_not_block_the_others(stop, logged, caplog):
    await stop_component("the disk", stop, timeout=0.01)
    assert logged in caplog.text
