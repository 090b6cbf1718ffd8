"""A start that comes to its end, fails, or is broken off."""

import asyncio

import pytest

from hookline._web import starting as module
from hookline._web.http_server import WebError
from hookline._web.starting import Starting


class Program:
    """Something with a start, in which it waits until it may go on."""

    def __init__(self, failure=None):
        self.starting, self.may_go_on, self.log = Starting(), asyncio.Event(), []
        self.failure = failure

    async def begin(self):
        self.log.append("begins")
        await self.may_go_on.wait()
        if self.failure is not None:
            raise self.failure
        self.log.append("has begun")

    async def stop(self):
        await self.starting.break_off()
        self.log.append("stopped")

    async def start(self):
        return await self.starting.go(self.begin, self.stop)


async def under_way(program):
    start = asyncio.create_task(program.start())
    while not program.log:
        await asyncio.sleep(0)
    return start


async def test_what_has_begun_is_not_begun_again_and_goes_on():
    program = Program()
    program.may_go_on.set()
    assert await program.start()
    with pytest.raises(WebError, match="make another"):
        await program.start()
    assert program.log == ["begins", "has begun"]


async def test_what_fails_is_stopped():
    program = Program(OSError("no such place"))
    program.may_go_on.set()
    with pytest.raises(OSError, match="no such place"):
        await program.start()
    assert program.log == ["begins", "stopped"]


async def test_what_is_broken_off_on_its_way_is_stopped():
    program = Program()
    start = await under_way(program)
    await program.starting.break_off()
    assert await start is False
    assert program.log == ["begins", "stopped"]


async def test_what_is_broken_off_before_does_not_begin():
    program = Program()
    await program.starting.break_off()
    assert await program.start() is False
    assert program.log == []


async def test_who_no_longer_wants_it_to_start_stops_it():
    program = Program()
    start = await under_way(program)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert program.log == ["begins", "stopped"]


async def test_a_start_that_takes_no_notice_does_not_hold_up_the_end(monkeypatch):
    monkeypatch.setattr(module, "BREAK_OFF", 0.01)
    over, began = asyncio.Event(), asyncio.Event()

    async def deaf():
        began.set()
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue

    async def stop():
        raise AssertionError("it began after all")

    starting = Starting()
    start = asyncio.create_task(starting.go(deaf, stop))
    await began.wait()
    await starting.break_off()
    over.set()
    assert await start
