"""The one stream of events: numbering, sinks, and readers anywhere (DESIGN 6.5)."""

import asyncio
import logging
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline import EventStream, Ids, RunStarted, StepStarted, TextDelta


def make(*sinks, keep=True):
    return EventStream("run_1", lambda: 12.5, sinks, keep)


def emit(stream, count, start=0):
    for n in range(start, start + count):
        stream.emit(StepStarted, {"index": n})


async def collect(stream, **options):
    return [event.seq async for event in stream.read(**options)]


def test_events_are_numbered_without_gaps_and_stamped():
    seen = []
    stream = make(seen.append)
    stream.emit(RunStarted, {"ids": Ids("hi")})
    stream.emit(TextDelta, {"text": "x"})
    assert [(e.seq, e.at, e.run_id) for e in seen] == [(1, 12.5, "run_1"), (2, 12.5, "run_1")]
    assert (seen[0].ids.run_id, seen[1].text) == ("hi", "x")


def test_every_sink_gets_every_event_in_order():
    one, two = [], []
    emit(make(one.append, two.append), 5)
    assert [e.seq for e in one] == [e.seq for e in two] == [1, 2, 3, 4, 5]


def test_a_sink_that_raises_is_logged_and_disturbs_nobody(caplog):
    def broken(event):
        raise ValueError("oh no")

    seen = []
    stream = make(broken, seen.append)
    with caplog.at_level(logging.ERROR, "hookline"):
        emit(stream, 2)
    assert [e.seq for e in seen] == [1, 2]
    assert "event sink" in caplog.text
    assert "seq 2" in caplog.text
    assert "oh no" in caplog.text


@pytest.mark.parametrize(
    ("sinks", "keep", "listening"), [((), False, False), ((), True, True), ((print,), False, True)]
)
def test_a_stream_listens_only_if_somebody_does(sinks, keep, listening):
    assert EventStream("r", lambda: 0.0, sinks, keep).listening is listening


async def test_a_stream_nobody_listens_to_makes_no_events():
    stream = make(keep=False)
    stream.emit(StepStarted, {"no such field": 1})
    stream.close()
    assert await collect(stream) == []


async def test_a_reader_gets_what_was_and_what_comes_until_the_end():
    stream = make()
    emit(stream, 2)
    reading = asyncio.create_task(collect(stream))
    await asyncio.sleep(0)
    emit(stream, 2)
    await asyncio.sleep(0.01)
    emit(stream, 1)
    stream.close()
    assert await reading == [1, 2, 3, 4, 5]


async def test_events_reach_a_reader_as_they_happen():
    stream = make()
    events = stream.read()
    for n in range(3):
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        assert not waiting.done()
        emit(stream, 1, n)
        assert (await waiting).index == n
    await events.aclose()


@pytest.mark.parametrize(("after", "expected"), [(0, [1, 2, 3]), (1, [2, 3]), (3, []), (9, []), (-5, [1, 2, 3])])
async def test_a_reader_can_go_on_after_a_number(after, expected):
    stream = make()
    emit(stream, 3)
    stream.close()
    assert await collect(stream, after=after) == expected


async def test_a_reader_can_wait_for_a_number_that_has_not_come_yet():
    stream = make()
    reading = asyncio.create_task(collect(stream, after=2))
    await asyncio.sleep(0)
    emit(stream, 4)
    stream.close()
    assert await reading == [3, 4]


async def test_many_readers_each_get_everything():
    stream = make()
    readers = [asyncio.create_task(collect(stream)) for _ in range(10)]
    for n in range(20):
        emit(stream, 1, n)
        await asyncio.sleep(0)
    stream.close()
    assert await asyncio.gather(*readers) == [list(range(1, 21))] * 10


async def test_a_reader_that_leaves_disturbs_nobody():
    stream = make()
    leaving, staying = asyncio.create_task(collect(stream)), asyncio.create_task(collect(stream))
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    emit(stream, 2)
    stream.close()
    assert await staying == [1, 2]


def test_readers_in_other_loops_and_threads_get_everything():
    stream = make()
    results, ready = [], threading.Barrier(5)

    async def read():
        ready.wait(5)
        results.append(await collect(stream))

    threads = [threading.Thread(target=lambda: asyncio.run(read())) for _ in range(4)]
    for thread in threads:
        thread.start()
    ready.wait(5)
    emit(stream, 500)
    stream.close()
    for thread in threads:
        thread.join(5)
    assert results == [list(range(1, 501))] * 4


def test_a_reader_whose_loop_is_closed_disturbs_nobody():
    stream = make()
    loop = asyncio.new_event_loop()
    reading = loop.create_task(collect(stream))
    loop.run_until_complete(asyncio.sleep(0))
    reading.cancel()
    loop.run_until_complete(asyncio.gather(reading, return_exceptions=True))
    loop.close()
    emit(stream, 1)
    stream.close()
    assert asyncio.run(collect(stream)) == [1]


@given(st.lists(st.sampled_from(["emit", "pause"]), max_size=20), st.integers(0, 10))
def test_no_event_is_lost_or_doubled_however_reading_and_writing_alternate(steps, after):
    async def main():
        stream = make()
        reading = asyncio.create_task(collect(stream, after=after))
        for step in steps:
            if step == "emit":
                emit(stream, 1)
            else:
                await asyncio.sleep(0)
        stream.close()
        return await reading

    assert asyncio.run(main()) == list(range(after + 1, steps.count("emit") + 1))


def test_events_emitted_from_many_threads_are_still_numbered_without_gaps():
    seen = []
    stream = make(seen.append)
    threads = [threading.Thread(target=emit, args=(stream, 300)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(e.seq for e in seen) == list(range(1, 1801))


async def test_the_events_of_a_run_are_numbered_from_one_without_gaps(scripted_agent):
    seen = []
    agent = scripted_agent(["hello"], sinks=[seen.append])
    result = await agent.arun("hi")
    assert [e.seq for e in seen] == list(range(1, len(seen) + 1))
    assert (type(seen[0]).__name__, type(seen[-1]).__name__) == ("RunStarted", "RunFinished")
    assert {e.run_id for e in seen} == {result.ids.run_id}


async def test_a_sink_that_raises_does_not_disturb_a_run(scripted_agent):
    def broken(event):
        raise ValueError("oh no")

    assert (await scripted_agent(["hello"], sinks=[broken]).arun("hi")).reply == "hello"
