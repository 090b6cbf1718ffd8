"""Open pages are kept up to date together."""

import asyncio
import json

import pytest
from starlette.requests import Request

from hookline.server.console.live import BEAT, MAX_KEPT, LiveViews
from hookline.server.halts import HaltService
from hookline.stores import RunStore, StoreError

from ..rig import ME
from .rig import console

REQUEST = Request({"type": "http", "hookline.caller": ME})
HALTS = HaltService(RunStore(":memory:").halts, None)


class Store:
    """Something that changes, and counts how often it was looked at."""

    def __init__(self):
        self.value = 0

    async def pulse(self):
        return self.value


async def next_sections(stream):
    """Return the next sections that a stream sends."""
    while (data := await stream._more(1.0)) == BEAT:
        pass
    return json.loads(data[6:])


@pytest.fixture
async def store(monkeypatch):
    monkeypatch.setattr("hookline.server.console.live.INTERVAL", 0.005)
    return Store()


@pytest.fixture
async def live(store):
    made = LiveViews(store.pulse, HALTS)
    yield made
    await made.close()


async def test_a_page_that_cannot_be_rendered_does_not_stop_the_others(store, live, caplog):
    async def broken():
        if store.value:
            raise ValueError("a bug")
        return {"x": "<p>first</p>"}

    async def fine():
        return {"x": f"<p>{store.value}</p>"}

    await live.stream(REQUEST, "broken", broken)
    other = await live.stream(REQUEST, "fine", fine)
    assert await next_sections(other) == {"x": "<p>0</p>"}
    store.value = 1
    assert await next_sections(other) == {"x": "<p>1</p>"}
    store.value = 2
    assert await next_sections(other) == {"x": "<p>2</p>"}
    assert "could not be rendered" in caplog.text


async def next_problem(stream):
    """Return the next problem that a stream reports; empty if the page is up to date again."""
    while b"event: problem" not in (data := await stream._more(1.0)):
        pass
    return json.loads(data.partition(b"event: problem\ndata: ")[2])


@pytest.mark.parametrize("error", [ValueError("a bug"), StoreError("the disk is gone")])
@pytest.mark.parametrize("place", ["pulse", "version", "render"])
async def test_a_page_says_that_it_is_not_up_to_date_until_it_is_again(store, monkeypatch, caplog, error, place):
    monkeypatch.setattr("hookline.server.console.live.RETRY_SECONDS", 0.005)
    failing = set()

    async def pulse():
        return value("pulse")

    async def version():
        return value("version")

    async def render():
        return {"x": f"<p>{value('render')}</p>"}

    def value(what):
        if what in failing:
            raise error
        return store.value

    live = LiveViews(pulse, HALTS)
    stream = await live.stream(REQUEST, "page", render, version)
    assert await next_sections(stream) == {"x": "<p>0</p>"}
    failing.add(place)
    store.value = 1
    assert "not up to date" in await next_problem(stream)
    late = await live.stream(REQUEST, "page", render, version)  # a page that opens meanwhile says so too
    assert "not up to date" in await next_problem(late)
    assert str(error) in caplog.text
    failing.clear()
    data = b""
    while b"event: problem" not in data:
        data += await stream._more(1.0)
    assert b"<p>1</p>" in data
    assert data.endswith(b'event: problem\ndata: ""\n\n')
    await live.close()


async def test_pages_that_open_at_once_share_a_view_and_both_get_everything(store, live):
    rendered = asyncio.Event()

    async def slow():
        await rendered.wait()
        return {"x": "<p>all</p>"}

    opening = [asyncio.create_task(live.stream(REQUEST, "same", slow)) for _ in range(2)]
    await asyncio.sleep(0)
    rendered.set()
    for stream in await asyncio.gather(*opening):
        assert await next_sections(stream) == {"x": "<p>all</p>"}
    assert len(live._views) == 1


async def test_a_page_that_cannot_be_opened_leaves_nothing_behind(store, live):
    async def broken():
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        await live.stream(REQUEST, "broken", broken)
    assert live._views == {}


async def test_a_page_is_not_rendered_again_for_its_stream_unless_something_changed(store, live):
    rendered = []

    async def render():
        rendered.append(store.value)
        return {"x": f"<p>{store.value}</p>"}

    assert await live.show(REQUEST, "page", render) == {"x": "<p>0</p>"}
    stream = await live.stream(REQUEST, "page", render)
    assert await next_sections(stream) == {"x": "<p>0</p>"}
    assert rendered == [0]
    store.value = 1
    assert await next_sections(stream) == {"x": "<p>1</p>"}
    assert rendered == [0, 1]


async def test_a_change_between_a_page_and_its_stream_is_sent(store, live):
    async def render():
        return {"x": f"<p>{store.value}</p>"}

    await live.show(REQUEST, "page", render)
    store.value = 1
    stream = await live.stream(REQUEST, "page", render)
    seen = await next_sections(stream)
    while seen != {"x": "<p>1</p>"}:
        seen = await next_sections(stream)


async def test_pages_without_a_stream_are_forgotten(store, live, monkeypatch):
    async def render():
        return {"x": "<p>0</p>"}

    await live.stream(REQUEST, "open", render)
    for n in range(MAX_KEPT + 10):
        await live.show(REQUEST, n, render)
    assert {key for key, *_ in live._views} == {"open", *range(10, MAX_KEPT + 10)}
    monkeypatch.setattr("hookline.server.console.live.KEPT_SECONDS", -1.0)
    await live.show(REQUEST, "last", render)
    assert {key for key, *_ in live._views} == {"open", "last"}


async def test_a_page_that_opens_shows_what_is_new_and_leaves_the_open_one_alone(store, live):
    async def render():
        return {"x": f"<p>{store.value}</p>"}

    stream = await live.stream(REQUEST, "page", render)
    store.value = 1
    assert await live.show(REQUEST, "page", render) == {"x": "<p>1</p>"}
    (view,) = live._views.values()
    assert view.readers
    seen = await next_sections(stream)
    while seen != {"x": "<p>1</p>"}:
        seen = await next_sections(stream)


async def test_streams_end_when_the_server_stops(store, live):
    async def render():
        return {"x": "<p>0</p>"}

    stream = await live.stream(REQUEST, "page", render)
    assert await next_sections(stream) == {"x": "<p>0</p>"}
    waiting = asyncio.create_task(stream._more(60.0))
    await asyncio.sleep(0)
    await live.close()
    assert await waiting is None
    late = await live.stream(REQUEST, "page", render)
    assert await late._more(60.0) is None


async def test_an_open_page_does_not_delay_the_end_of_the_server(tmp_path, caplog):
    async with (
        console(tmp_path) as made,
        made.browser() as browser,
        browser.stream("GET", "/console/now") as stream,
    ):
        lines = stream.aiter_lines()
        await anext(lines)
        await made.server.stop(grace=0)
        async for _ in lines:  # it ends as it should, and is not cut off
            pass
    assert not [each for each in caplog.records if each.levelname == "ERROR"]
