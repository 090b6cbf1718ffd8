"""Event streams can be resumed after any event, without loss or repetition."""

import asyncio
import json
import math
import random
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import Agent, Limits, ScriptedModel, call, get_model, reply, tool
from hookline.server.sse import preferred_media
from hookline.stores.errors import StoreError
from hookline.stores.runs import RunStore

from ..waiting import wait_until
from .http_rig import Stream, api, events_in, finished
from .rig import ME, Blocker, serving


def numbers(events):
    return [event["seq"] for event in events]


def all_of(run):
    return list(range(1, run["last_seq"] + 1))


@tool
async def breathe() -> str:
    """Let other tasks run."""
    await asyncio.sleep(0)
    return "ok"


def busy(steps=6):
    """An agent whose runs have many events."""
    model = ScriptedModel(
        [lambda request: call("breathe") if len(request.messages) < 2 * steps else reply("done")], loop=True
    )
    return Agent("helper", llm=model, tools=[breathe], limits=Limits(steps=math.inf))


async def start(served, **fields):
    return (await served.client().post("/runs", json={"task": "x", **fields})).json()["id"]


async def until_over(served, run_id):
    run = (await served.client().get(f"/runs/{run_id}?wait=60")).json()
    assert run["ended"] is not None
    return run


# Live streams


async def test_events_are_streamed_live_and_the_stream_ends_with_the_run(tmp_path):
    blocker = Blocker()
    async with api(tmp_path, blocker.agent(), real=True, heartbeat=0.1) as served:
        client, got, beats = served.client(real=True), "", 0
        run_id = (await client.post("/runs", json={"task": "x"})).json()["id"]
        async with client.stream("GET", f"/runs/{run_id}/events") as answer:
            headers = {name: answer.headers[name] for name in ("content-type", "cache-control", "x-accel-buffering")}
            assert list(headers.values()) == ["text/event-stream; charset=utf-8", "no-store", "no"]
            async for piece in answer.aiter_text():
                got += piece
                beats += got.endswith("\n:\n\n") or piece == ":\n\n"
                if "event: tool_started" in got and beats >= 2:
                    blocker.open.set()
        events = events_in(got)
        run = await until_over(served, run_id)
        assert got.startswith("retry: 2000\n\n")
        assert numbers(events) == all_of(run)
        assert (events[0]["type"], events[-1]["type"]) == ("run_accepted", "run_closed")
        assert served.service.counts()["readers"] == 0


async def test_a_reader_sees_stored_events_only(tmp_path, monkeypatch):
    blocker = Blocker()
    async with serving(tmp_path, blocker.agent()) as service:
        run = await service.start(ME, "x")
        await wait_until(lambda: blocker.entered)
        await service._recorder.flushed()
        reader = await service.read(run.id, ME, service._live[run.id].record.last_seq)
        real, held = RunStore.write, asyncio.Event()
        loop = asyncio.get_running_loop()

        def write(self, runs, events, *records):
            asyncio.run_coroutine_threadsafe(held.wait(), loop).result()
            real(self, runs, events, *records)

        monkeypatch.setattr(RunStore, "write", write)
        blocker.open.set()
        await wait_until(lambda: service._live[run.id].closed)
        reading = asyncio.create_task(reader.more(0.0))
        for _ in range(20):
            await asyncio.sleep(0.001)
        early = reading.done()
        held.set()
        assert not early
        seen = [event.seq for event in await reading] + [event.seq async for event in reader]
        assert seen[-1] == RunStore(tmp_path / "runs.db").events(run.id)[-1].seq
        reader.close()


@pytest.mark.slow
async def test_the_text_of_the_embedded_model_is_streamed(tmp_path):
    pytest.importorskip("xllamacpp")
    agent = Agent("local", llm=get_model("local"), params={"max_tokens": 12})
    async with api(tmp_path, agent, real=True) as served:
        run = await finished(served.client(real=True), "Say hello.")
        events = events_in((await served.client(real=True).get(f"/runs/{run['id']}/events")).text)
        assert numbers(events) == all_of(run)
        pieces = [event["text"] for event in events if event["type"] == "text_delta"]
        assert "".join(pieces) == run["reply"] == events[-1]["reply"]
        assert len(pieces) > 1


# Resuming


@settings(max_examples=15)
@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["header", "query", "json"])), max_size=12), st.data())
async def test_a_stream_resumed_after_any_event_has_exactly_the_rest(tmp_path_factory, visits, data):
    folder, got = tmp_path_factory.mktemp("served"), []

    async def read(served, many, how):
        after = len(got)
        if how == "json":
            url = f"/runs/{run_id}/events?after={after}&limit={many + 1}"
            page = (await served.client().get(url, headers={"Accept": "application/json"})).json()
            got.extend(page["events"][:many])
            return
        stream = Stream(served, run_id, after if how == "header" else None, query=f"after={after}")
        async with stream:
            got.extend(await stream.events(many))

    async with api(folder, busy()) as served:
        secrets, run_id = served.secrets, await start(served)
        restarts = data.draw(st.integers(0, len(visits)))
        for many, how in visits[:restarts]:
            await read(served, many, how)
        if data.draw(st.booleans()):
            await until_over(served, run_id)
    async with api(folder, busy()) as served:
        served.secrets = secrets
        for many, how in visits[restarts:]:
            await read(served, many, how)
        await read(served, 10_000, "header")
        run = await until_over(served, run_id)
        assert served.service.counts()["readers"] == 0
    assert numbers(got) == all_of(run)
    assert got[-1]["type"] == "run_closed"
    stored = [json.loads(event.data) for event in RunStore(folder / "runs.db").events(run_id)]
    assert got == stored


@pytest.mark.slow
async def test_a_thousand_readers_that_reconnect_miss_and_repeat_nothing(tmp_path):
    dice, cycles = random.Random(3), 0
    async with api(tmp_path, busy(16)) as served:
        got = {await start(served): [] for _ in range(20)}

        async def follow(run_id):
            nonlocal cycles
            seen = got[run_id]
            for _ in range(50):
                many = dice.choice((0, 0, 1, 1, 2, 5))
                async with Stream(served, run_id, len(seen)) as stream:
                    if stream.status == 204:
                        break
                    seen += await stream.events(many)
                cycles += 1
            async with Stream(served, run_id, len(seen)) as stream:
                seen += await stream.events()

        await asyncio.gather(*map(follow, got))
        runs = {run_id: await until_over(served, run_id) for run_id in got}
        assert served.service.counts()["readers"] == 0
    assert cycles >= 1000
    for run_id, events in got.items():
        assert numbers(events) == all_of(runs[run_id])
        assert {event["run_id"] for event in events} == {run_id}


async def test_reconnecting_after_the_last_event_returns_204(tmp_path):
    async with api(tmp_path) as served:
        run = await finished(served.client())
        path, last = f"/runs/{run['id']}/events", run["last_seq"]
        for after in (last, last + 1, 10**14):
            answer = await served.client().get(path, headers={"Last-Event-ID": str(after)})
            assert (answer.status_code, answer.text) == (204, "")
        both = await served.client().get(path, params={"after": 3}, headers={"Last-Event-ID": str(last - 1)})
        assert numbers(events_in(both.text)) == [last]
        none = await served.client().get(path, params={"after": last - 2}, headers={"Last-Event-ID": ""})
        assert numbers(events_in(none.text)) == [last - 1, last]


@pytest.mark.parametrize("bad", ["x", "-1", "1.0", "+1", " 1 2", "0x1", "9" * 30, "\u0663".encode().decode("latin-1")])
async def test_an_invalid_event_id_is_rejected(tmp_path, bad):
    async with api(tmp_path) as served:
        run = await finished(served.client())
        path = f"/runs/{run['id']}/events"
        answer = await served.client().get(path, headers={"Last-Event-ID": bad.encode("latin-1")})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_event_id")
        assert (await served.client().get(path, params={"after": bad})).status_code in (200, 422)
        assert (await served.client().get(path, params={"after": "-1"})).status_code == 422


# Disconnecting


async def connected(served, run_id, *, version="1.1", method="GET", size=None):
    """A socket that has requested a stream."""
    host, port = served.url.removeprefix("http://").split(":")
    raw = socket.socket()
    if size is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
    raw.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(raw, (host, int(port)))
    key = served.headers()["Authorization"]
    head = f"{method} /runs/{run_id}/events HTTP/{version}\r\nHost: {host}:{port}\r\nAuthorization: {key}\r\n\r\n"
    await loop.sock_sendall(raw, head.encode())
    return raw


async def read_until(raw, mark):
    """Read from a socket until the text is found or the connection ends."""
    got, loop = b"", asyncio.get_running_loop()
    async with asyncio.timeout(60):
        while mark is None or mark not in got:
            piece = await loop.sock_recv(raw, 65536)
            if not piece:
                break
            got += piece
    return got.decode()


async def test_a_disconnected_reader_is_noticed_without_events(tmp_path):
    blocker = Blocker()
    async with api(tmp_path, blocker.agent(), real=True) as served:
        run_id = await start(served)
        await wait_until(lambda: blocker.entered)
        before = len(asyncio.all_tasks())
        sockets = [await connected(served, run_id) for _ in range(5)]
        for raw in sockets:
            await read_until(raw, b"event: tool_started")
        assert served.service.counts()["readers"] == 5
        for raw in sockets:
            raw.close()
        await wait_until(lambda: served.service.counts()["readers"] == 0)
        await wait_until(lambda: len(asyncio.all_tasks()) <= before)
        assert not served.service._live[run_id]._waiters
        blocker.open.set()
        assert (await until_over(served, run_id))["status"] == "completed"


async def test_a_client_that_never_reads_does_not_slow_others(tmp_path):
    blocker, long = Blocker(), "x" * 8_000_000

    @tool
    async def much() -> str:
        """More than fits into the buffers of a connection."""
        return long

    model = ScriptedModel([call("blocker"), call("much"), reply("done")])
    agent = Agent("helper", llm=model, tools=[blocker.tool, much], limits=Limits(steps=math.inf))
    async with api(tmp_path, agent, real=True) as served:
        run_id = await start(served)
        await wait_until(lambda: blocker.entered)
        deaf = [await connected(served, run_id, version="1.0", size=4096) for _ in range(3)]
        await wait_until(lambda: served.service.counts()["readers"] == 3)
        blocker.open.set()
        run = await until_over(served, run_id)
        assert run["status"] == "completed"
        events = events_in((await served.client(real=True).get(f"/runs/{run_id}/events")).text)
        assert numbers(events) == all_of(run)
        assert served.service.counts()["readers"] == 3, "they should still be connected, far behind"
        for raw in deaf:
            raw.close()
        await wait_until(lambda: served.service.counts()["readers"] == 0)


async def test_a_cancelled_stream_closes_its_reader(tmp_path):
    async with api(tmp_path, Blocker().agent()) as served:
        stream = Stream(served, await start(served))
        await stream.__aenter__()
        await stream.piece()
        assert served.service.counts()["readers"] == 1
        stream._task.cancel()
        while not stream._task.done():
            if not stream._sent.empty():
                stream._sent.get_nowait()
            await asyncio.sleep(0)
        assert stream._task.cancelled()
        assert served.service.counts()["readers"] == 0


async def test_a_store_error_ends_the_stream_and_it_can_be_resumed(tmp_path, monkeypatch):
    async with api(tmp_path) as served:
        run = await finished(served.client())
        await served.service._recorder.flushed()
        await wait_until(lambda: not served.service._live)
        path, real = f"/runs/{run['id']}/events", RunStore.events

        def broken(*_):
            raise StoreError("the disk is gone")

        monkeypatch.setattr(RunStore, "events", broken)
        answer = await served.client().get(path)
        assert (answer.status_code, events_in(answer.text)) == (200, [])
        assert "reconnect later" in answer.text
        assert "disk" not in answer.text
        assert served.service.counts()["readers"] == 0
        monkeypatch.setattr(RunStore, "events", real)
        assert numbers(events_in((await served.client().get(path)).text)) == all_of(run)


async def test_too_many_streams_are_rejected(tmp_path):
    async with api(tmp_path, Blocker().agent(), max_streams_per_caller=2) as served:
        run_id = await start(served)
        async with Stream(served, run_id) as first, Stream(served, run_id) as second:
            await first.piece(), await second.piece()
            answer = await served.client().get(f"/runs/{run_id}/events")
            assert (answer.status_code, "Retry-After" in answer.headers) == (429, True)
        assert served.service.counts()["readers"] == 0


# Formats and methods


async def test_http_1_0_and_head_requests_are_supported(tmp_path):
    async with api(tmp_path, real=True) as served:
        run = await finished(served.client(real=True))
        raw = await connected(served, run["id"], version="1.0")
        head, _, body = (await read_until(raw, None)).partition("\r\n\r\n")
        raw.close()
        assert "chunked" not in head
        assert numbers(events_in(body)) == all_of(run)
        raw = await connected(served, run["id"], method="HEAD")
        head = await read_until(raw, b"\r\n\r\n")
        raw.close()
        assert head.startswith("HTTP/1.1 200")
        assert "text/event-stream" in head
        answer = await served.client(real=True).head(f"/runs/{run['id']}/events?after={run['last_seq']}")
        assert answer.status_code == 204
        assert served.service.counts()["readers"] == 0


@pytest.mark.parametrize(
    ("accept", "media"),
    [
        (None, "text/event-stream"),
        ("", "text/event-stream"),
        ("*/*", "text/event-stream"),
        ("text/event-stream", "text/event-stream"),
        ("application/json", "application/json"),
        ("application/json, text/event-stream", "text/event-stream"),
        ("application/json, text/plain, */*", "application/json"),
        ("text/event-stream;q=0.5, application/json", "application/json"),
        ("text/event-stream; q=0.5, application/json; q=0.4", "text/event-stream"),
        ("text/event-stream;q=0, */*", "application/json"),
        ("TEXT/*", "text/event-stream"),
        ("application/*", "application/json"),
        ("text/html", ""),
        ("*/*;q=0", ""),
        ("application/json;q=high", ""),
    ],
)
def test_the_accept_header_decides_the_format_of_events(accept, media):
    assert preferred_media(accept, "text/event-stream", "application/json") == media


async def test_an_unacceptable_format_is_rejected(tmp_path):
    async with api(tmp_path) as served:
        run = await finished(served.client())
        answer = await served.client().get(f"/runs/{run['id']}/events", headers={"Accept": "image/png"})
        assert answer.status_code == 406
