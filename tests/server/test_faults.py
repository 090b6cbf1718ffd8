"""Network, file and process failures: other callers are not affected, and nothing is lost or left behind."""

import asyncio
import json
import random
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from contextlib import closing
from pathlib import Path

import pytest

from hookline import Agent, ScriptedModel, reply
from hookline.stores import sqlite
from tests.environment import with_source
from tests.leases import expire_lease

from ..waiting import wait_until
from .rig import ADMIN
from .wire import TalkingBlocker, Wire, is_whole, served

pytestmark = pytest.mark.slow


ROOT = Path(__file__).parents[2]
HEAD = b"POST /runs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


async def works(server):
    """Whether another client is served normally."""
    async with Wire(server.url) as wire:
        return is_whole(await wire.events(await wire.start("still working?")))


def talking():
    return Agent("helper", llm=ScriptedModel([reply("all is well")], loop=True))


# Invalid requests


NONSENSE = [
    b"\r\n\r\n\r\n",
    b"hello?\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),  # TLS
    b"GET /healthz HTTP/1.1\r\nHost 127.0.0.1\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 1_000_000 + b"\r\n\r\n",
    b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -5\r\n\r\n",
    HEAD + b"Content-Length: 5\r\nContent-Length: 7\r\n\r\n{}",
    HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    HEAD + b"Transfer-Encoding: gzip, nonsense\r\n\r\n{}",
    b"POST /runs HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}",
    b"GET /healthz HTTP/1.1\r\n\r\n",
    b"\x00" * 1000,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]


async def test_invalid_http_is_rejected_and_closes_only_its_connection(tmp_path):
    async with served(tmp_path, talking()) as server:
        for sent in NONSENSE:
            async with Wire(server.url) as wire:
                wire.send(sent)
                wire.writer.write_eof()
                status, _ = await asyncio.wait_for(wire.head(), 60)
                assert status in (0, 400, 404, 501), (status, sent[:80])
                await asyncio.wait_for(wire.gone(), 60)
        assert await works(server)
        assert [run.task for run in await server.service.list(ADMIN)] == ["still working?"]


@pytest.mark.parametrize("how", ["declared", "chunked", "declared short, and more is sent"])
async def test_a_body_that_is_too_long_is_rejected(tmp_path, how):
    async with served(tmp_path, talking(), max_body=2000) as server:
        async with Wire(server.url) as wire:
            body = json.dumps({"task": "x" * 3000}).encode()
            match how:
                case "declared":
                    wire.send(HEAD + b"Content-Length: 999999999999\r\n\r\n" + body)
                case "chunked":
                    pieces = [
                        b"%x\r\n%b\r\n" % (len(body[at : at + 100]), body[at : at + 100])
                        for at in range(0, len(body), 100)
                    ]
                    wire.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(pieces) + b"0\r\n\r\n")
                case _:
                    wire.send(HEAD + b"Content-Length: 15\r\n\r\n" + body)
            status, _ = await wire.head()
            assert status == (400 if "short" in how else 413)
        assert await works(server)
        assert [run.task for run in await server.service.list(ADMIN)] == ["still working?"]


async def test_slow_and_incomplete_bodies_start_no_run(tmp_path):
    async with served(tmp_path, talking(), body_seconds=0.2) as server:
        async with Wire(server.url) as slow, Wire(server.url) as half, Wire(server.url) as left:
            for wire in (slow, half, left):
                wire.send(HEAD + b'Content-Length: 100\r\n\r\n{"task": ')
            half.writer.write_eof()  # the client can only receive from here on
            left.writer.transport.abort()
            assert (await slow.head())[0] == 408
            assert (await half.head())[0] in (0, 400, 408)
            await asyncio.wait_for(slow.gone(), 60)
            await asyncio.wait_for(half.gone(), 60)
        assert await works(server)
        assert [run.task for run in await server.service.list(ADMIN)] == ["still working?"]


# Clients that do not read or disconnect


@pytest.mark.parametrize("transport", ["sse", "a2a", "chat"])
async def test_a_response_to_a_client_that_never_reads_is_abandoned_without_effect_on_others(
    tmp_path, monkeypatch, transport
):
    monkeypatch.setattr("hookline._web.middleware.SEND_SECONDS", 0.3)
    word = "y" * 50_000
    turn = lambda request: " ".join([word] * 100) if request.messages[-1].content == "much" else "all is well"  # noqa: E731
    agent = Agent("helper", llm=ScriptedModel([turn], loop=True))
    async with served(tmp_path, agent) as server:
        async with Wire(server.url, narrow=True) as deaf:
            deaf.writer.transport.pause_reading()
            match transport:
                case "sse":
                    async with Wire(server.url) as other:
                        run_id = await other.start("much")
                    deaf.ask("GET", f"/runs/{run_id}/events")
                case "a2a":
                    message = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "much"}]}
                    asked = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage"}
                    deaf.ask("POST", "/a2a/helper", asked | {"params": {"message": message}}, A2A_Version="1.0")
                case _:
                    messages = [{"role": "user", "content": "much"}]
                    deaf.ask("POST", "/v1/chat/completions", {"model": "helper", "stream": True, "messages": messages})
            await wait_until(lambda: server.service.counts()["readers"])
            assert all(await asyncio.gather(*(works(server) for _ in range(5))))
            await wait_until(lambda: server.service.counts()["readers"] == 0)  # though the client is still connected
        (run,) = [run for run in await server.service.list(ADMIN) if run.task == "much"]
        assert (await server.service.wait(run.id, ADMIN)).status == "completed", "a run does not depend on its reader"


async def test_clients_that_disconnect_early_leave_nothing_behind(tmp_path):
    blocker, chance = TalkingBlocker(), random.Random(5)
    async with served(tmp_path, blocker.talker) as server:
        for number in range(40):
            async with Wire(server.url) as wire:
                kind = number % 4
                if kind == 0:
                    wire.send(HEAD[: chance.randint(1, len(HEAD))])
                elif kind == 1:
                    await wire.events(await wire.start(), most=2)
                elif kind == 2:
                    wire.ask("POST", "/runs", {"task": "go", "wait": 60})
                else:
                    asked = {
                        "model": "helper",
                        "messages": [{"role": "user", "content": "go"}],
                        "stream": number % 8 == 3,
                    }
                    wire.ask("POST", "/v1/chat/completions", asked)
                await wire.writer.drain()
        await wait_until(lambda: server.service.counts()["readers"] == 0)
        await wait_until(lambda: server.service.counts()["running"] >= 10)  # runs continue without readers
        blocker.open.set()
        await wait_until(lambda: not any(server.service.counts().values()))
        assert await works(server)


async def test_concurrent_cancellations_end_every_run_once(tmp_path):
    blocker = TalkingBlocker()
    async with served(tmp_path, blocker.talker) as server:
        async with Wire(server.url) as wire:
            ids = [await wire.start() for _ in range(50)]
        await wait_until(lambda: blocker.entered == 50)

        async def cancel(id):
            async with Wire(server.url) as wire:
                return await wire.json("POST", f"/runs/{id}/cancel")

        for status, run in await asyncio.gather(*(cancel(id) for id in ids for _ in range(4))):
            assert (status, run["status"]) == (200, "cancelled")
        async with Wire(server.url) as wire:
            for id in ids:
                events = await wire.events(id)
                assert is_whole(events, "cancelled")
                assert [each["type"] for each in events].count("run_closed") == 1


# Files


async def ready(server):
    async with Wire(server.url) as wire:
        return (await wire.json("GET", "/readyz"))[0]


async def becomes(server, status):
    async with asyncio.timeout(60):
        while await ready(server) != status:
            await asyncio.sleep(0.02)


def reconnect(store):
    """Close the connection of a store, which then opens another one. A reader may be using it in its thread."""
    with store.db._lock:
        store.db._disconnect()


class FullDisk:
    """Simulate a full disk for SQLite."""

    def __init__(self, monkeypatch):
        self.is_full = False
        prepare = sqlite.SqliteDatabase._prepare

        def limited(database, db):
            prepare(database, db)
            if self.is_full and database.schema.contents == "runs":
                (pages,) = db.execute("PRAGMA page_count").fetchone()
                db.execute(f"PRAGMA max_page_count={pages}")

        monkeypatch.setattr(sqlite.SqliteDatabase, "_prepare", limited)

    def begin(self, store):
        self.is_full = True
        reconnect(store)  # connections opened from now on see a full disk

    def end(self):
        self.is_full = False


@pytest.mark.sqlite
@pytest.mark.parametrize("how", ["the disk is full", "the file is locked", "the file is gone", "another is there"])
async def test_while_the_file_cannot_be_written_runs_are_rejected_and_no_event_is_lost(tmp_path, monkeypatch, how):
    monkeypatch.setattr("hookline.server.live_run.RETRY_SECONDS", 0.05)
    full = FullDisk(monkeypatch)
    blocker = TalkingBlocker("word " * 50)
    path = tmp_path / "runs.db"
    async with served(tmp_path, blocker.talker) as server, Wire(server.url) as wire, Wire(server.url) as other:
        run_id = await wire.start("x" * 5000)
        reading = asyncio.create_task(wire.events(run_id))
        await wait_until(lambda: blocker.entered)
        holder = None
        match how:
            case "the disk is full":
                full.begin(server.service._store)
            case "the file is locked":
                monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.1)
                reconnect(server.service._store)  # the timeout applies to new connections only
                holder = sqlite3.connect(path, isolation_level=None)
                holder.execute("BEGIN IMMEDIATE")
            case _:
                path.rename(tmp_path / "elsewhere.db")
                if how == "another is there":
                    path.write_bytes((tmp_path / "elsewhere.db").read_bytes())
        blocker.open.set()
        events = await asyncio.wait_for(reading, 60)
        assert is_whole(events), "readers get all events all the same"
        await becomes(server, 503)
        status, refused = await other.json("POST", "/runs", {"task": "one more"})
        assert (status, refused["error"]["code"]) == (503, "unavailable")
        match how:
            case "the disk is full":
                full.end()
            case "the file is locked":
                holder.execute("ROLLBACK")
                holder.close()
            case _:
                (tmp_path / "elsewhere.db").rename(path)
        await becomes(server, 200)
        assert await other.events(run_id) == events
        assert await works(server)
    with closing(sqlite3.connect(path)) as db:
        stored = [
            json.loads(data)
            for (data,) in db.execute("SELECT data FROM events WHERE run_id = ? ORDER BY seq", (run_id,))
        ]
    assert stored == events, "the events that readers got are stored"


@pytest.mark.sqlite
async def test_a_process_that_locks_the_file_delays_only_runs(tmp_path, monkeypatch):
    monkeypatch.setattr("hookline.stores.sqlite.BUSY_SECONDS", 60.0)  # a busy machine may take longer than usual
    blocker = TalkingBlocker(closed=False)
    hold = """
        import sqlite3, sys
        db = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
        db.execute("BEGIN IMMEDIATE")
        print("held", flush=True)
        sys.stdin.read()
        db.execute("ROLLBACK")
    """
    async with served(tmp_path, blocker.talker) as server:
        assert await works(server)
        holder = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", textwrap.dedent(hold), str(tmp_path / "runs.db")),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert await holder.stdout.readline() == b"held\n"
        waiting = [asyncio.create_task(works(server)) for _ in range(10)]
        async with Wire(server.url) as wire:
            for _ in range(20):  # the event loop does not wait for the file
                assert (await wire.json("GET", "/healthz"))[0] == 200
                await asyncio.sleep(0.05)
        assert not any(task.done() for task in waiting)
        holder.stdin.close()
        assert await holder.wait() == 0
        assert all(await asyncio.gather(*waiting))
        assert await ready(server) == 200


async def test_a_clock_that_goes_backwards_does_not_change_the_order(tmp_path, monkeypatch):
    blocker, now = TalkingBlocker(), time.time
    async with served(tmp_path, blocker.talker) as server, Wire(server.url) as wire, Wire(server.url) as other:
        before = await other.start()
        run_id = await wire.start()
        reading = asyncio.create_task(wire.events(run_id))
        await wait_until(lambda: blocker.entered == 2)
        monkeypatch.setattr(time, "time", lambda: now() - 7200)
        blocker.open.set()
        assert is_whole(await reading)
        assert is_whole(await other.events(before))
        status, run = await other.json("GET", f"/runs/{run_id}")
        assert (status, run["status"]) == (200, "completed")
        assert await works(server)


# Processes

PROGRAM = """
    import asyncio, signal, sys
    from pathlib import Path
    from tests.server.wire import TalkingBlocker, built

    async def main():
        blocker = TalkingBlocker()
        server = built(Path(sys.argv[1]), blocker.talker)
        await server.start()
        print(server.url, flush=True)
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        await stop.wait()
        await server.stop(grace=0.1)

    asyncio.run(main())
"""


def is_blocked(events):
    return any(each["type"] == "tool_started" for each in events)


@pytest.mark.parametrize("ended", [signal.SIGTERM, signal.SIGKILL])
async def test_streams_of_an_ended_process_are_completed_by_it_or_by_the_next(tmp_path, ended):
    env = with_source()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path), stdout=subprocess.PIPE, cwd=ROOT, env=env
    )
    seen = {}

    async def follow(id, wire):
        wire.ask("GET", f"/runs/{id}/events")
        assert (await wire.head())[0] == 200
        try:
            async for block in wire.blocks():
                if b"\ndata: " in block:
                    seen.setdefault(id, []).append(json.loads(block.partition(b"\ndata: ")[2]))
        except (ValueError, ConnectionError, asyncio.IncompleteReadError):
            pass  # the connection was closed

    async def one(url):
        async with Wire(url) as wire:
            await follow(await wire.start(), wire)

    try:
        url = (await process.stdout.readline()).decode().strip()
        tasks = [asyncio.create_task(one(url)) for _ in range(50)]
        await wait_until(lambda: len(seen) == 50 and all(map(is_blocked, seen.values())))
    finally:
        process.send_signal(ended)
        await process.wait()
    await asyncio.gather(*tasks)
    if ended == signal.SIGTERM:
        assert process.returncode == 0
        assert all(is_whole(events, "interrupted") for events in seen.values())
    else:
        assert not any(events[-1]["type"] == "run_closed" for events in seen.values())
        expire_lease(tmp_path / "runs.db", process.pid)
    async with served(tmp_path, talking()) as server:
        for id, events in seen.items():
            async with Wire(server.url) as wire:
                assert (await wire.json("GET", f"/runs/{id}"))[1]["status"] == "interrupted"
            if ended == signal.SIGKILL:
                async with Wire(server.url) as wire:
                    assert is_whole(events + await wire.events(id, len(events)), "interrupted")
        assert await works(server)
