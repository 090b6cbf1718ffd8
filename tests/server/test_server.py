"""The server starts, becomes ready, stops in time and leaves nothing behind."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from socket import gethostname

import httpx
import msgspec
import pytest

from hookline import BEFORE_LLM, BEFORE_TOOL, Agent, HookResult, ScriptedModel, call, guard, hook, reply, tool
from hookline._web.http_server import WebError
from hookline.cli.approval_prompt import Approver
from hookline.config.errors import ConfigError
from hookline.config.settings import Settings
from hookline.hooks import AuditLogHook
from hookline.hooks.metrics import MetricsHook
from hookline.server import build
from hookline.server.a2a.api import A2aApi
from hookline.server.api import RunsApi
from hookline.server.app import Server
from hookline.server.build import build_server
from hookline.server.health import Traffic
from hookline.server.routing import Gate
from hookline.stores import verify_audit
from hookline.stores.errors import StoreError
from hookline.stores.keys import KeyStore
from hookline.stores.runs import RunRecord, RunStore
from hookline.teams import Roster
from tests.environment import with_source
from tests.leases import expire_lease

from ..waiting import wait_until
from .rig import Blocker, make, service_at

ROOT = Path(__file__).parents[2]
JSON = {"content-type": "application/json"}


def server_at(folder, *agents, keys=None, **options):
    service = service_at(folder, *agents, **{"port": 0, **options})
    metrics = MetricsHook()
    traffic = Traffic(metrics)
    gate = Gate(keys, service.options, count=traffic)
    return Server(
        service,
        [RunsApi(service)],
        gate,
        service.options,
        keys=keys,
        metrics=metrics,
        traffic=traffic,
    )


@asynccontextmanager
async def running(*args, **options):
    server = server_at(*args, **options)
    await server.start()
    try:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            yield server, client
    finally:
        await server.stop(grace=0)


def others():
    """Tasks other than that of the test."""
    return asyncio.all_tasks() - {asyncio.current_task()}


async def read_stream(client, run_id):
    """The events of a run until its stream ends."""
    async with client.stream("GET", f"/runs/{run_id}/events") as answer:
        return [json.loads(line[6:]) async for line in answer.aiter_lines() if line.startswith("data: ")]


# Health and status


async def test_a_running_server_is_healthy_and_ready_and_has_metrics(tmp_path):
    async with running(tmp_path) as (_, client):
        assert (await client.get("/healthz")).json() == {"status": "ok"}
        assert (await client.get("/readyz")).json() == {"status": "ready"}
        run = (await client.post("/runs", json={"task": "hi", "wait": 60})).json()
        assert run["status"] == "completed"
        assert (await client.get(f"/runs/{run['id']}")).status_code == 200
        numbers = await client.get("/metrics")
    assert numbers.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = numbers.text.splitlines()
    assert 'hookline_http_requests_total{method="GET",route="/runs/{id}",status="200"} 1.0' in lines
    assert 'hookline_http_requests_total{method="POST",route="/runs",status="201"} 1.0' in lines
    assert 'hookline_served_runs{state="running"} 0.0' in lines
    assert "hookline_server_ready 1.0" in lines
    assert "hookline_store_problem 0.0" in lines


async def test_a_starting_server_is_healthy_but_not_ready_and_accepts_no_runs(tmp_path):
    server, opened = server_at(tmp_path), asyncio.Event()
    open_service = server.service.open

    async def slow():
        await opened.wait()
        await open_service()

    server.service.open = slow
    starting = asyncio.create_task(server.start())
    await wait_until(lambda: not server.url.endswith(":0"))
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        assert (await client.get("/healthz")).status_code == 200
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.json()["problem"]) == (503, "the server is starting")
        refused = await client.post("/runs", json={"task": "hi"})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        opened.set()
        await starting
        assert (await client.get("/readyz")).status_code == 200
    await server.stop()


async def test_a_stopped_server_does_not_start(tmp_path):
    server = server_at(tmp_path)
    await server.stop()
    await server.start()
    assert (server.state, server.url[-2:]) == ("stopped", ":0"), "the server does not listen"


@pytest.mark.parametrize(
    ("opens", "read"),
    [
        ("RunStore", lambda store: store.get("x")),
        ("approval_store", lambda store: store.rows()),
        ("session_store_at", lambda store: store.list()),
    ],
)
async def test_a_stopped_server_has_closed_its_stores(tmp_path, monkeypatch, opens, read):
    open_store, opened = getattr(build, opens), []
    monkeypatch.setattr(build, opens, lambda *args, **kw: opened.append(open_store(*args, **kw)) or opened[0])
    server = build_server(msgspec.structs.replace(settings(tmp_path), sessions=str(tmp_path / "sessions.db")), make())
    await server.start()
    await server.stop()
    with pytest.raises(StoreError, match="has been closed"):
        read(opened[0])


async def test_a_second_start_is_an_error_and_changes_nothing(tmp_path):
    async with running(tmp_path) as (server, client):
        with pytest.raises(RuntimeError, match="started already"):
            await server.start()
        assert (await client.get("/readyz")).status_code == 200


async def test_the_server_is_not_ready_while_runs_cannot_be_stored(tmp_path, monkeypatch):
    monkeypatch.setattr("hookline.server.live_run.RETRY_SECONDS", 0.02)
    async with running(tmp_path) as (server, client):
        store, broken = server.service._store, True

        def sometimes(work):
            def attempt(*given, **options):
                if broken:
                    raise StoreError("/secret/path/runs.db cannot grow, the disk is full: make room")
                return work(*given, **options)

            return attempt

        for name in ("accept", "write"):
            monkeypatch.setattr(store, name, sometimes(getattr(store, name)))
        assert (await client.post("/runs", json={"task": "hi"})).status_code == 503
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.json()["problem"]) == (503, "runs cannot be stored now")
        assert "hookline_store_problem 1" in (await client.get("/metrics")).text
        assert "the disk is full" in (await server.status()).problem, "the operator sees the problem"
        broken = False
        while (await client.get("/readyz")).status_code != 200:
            await asyncio.sleep(0.01)
        assert (await client.post("/runs", json={"task": "hi"})).status_code in (201, 202)


async def test_the_status_shows_runs_approvals_and_requests(tmp_path):
    blocker = Blocker()
    async with running(tmp_path, blocker.agent()) as (server, client):
        run = (await client.post("/runs", json={"task": "hi"})).json()
        await wait_until(lambda: blocker.entered)
        status = await server.status()
        ((under_way, doing, caller),) = status.runs
        assert (under_way.id, under_way.status, doing, caller) == (run["id"], "running", "blocker", "local")
        assert (status.state, status.url, status.needs_keys, status.requests) == ("running", server.url, False, 1)
        assert [agent.name for agent in status.agents] == ["helper"]
        assert status.per_second > 0
        blocker.open.set()


# Shutdown


async def test_runs_finish_within_the_grace_period_and_their_streams_end(tmp_path):
    blocker = Blocker()
    async with running(tmp_path, blocker.agent()) as (server, client):
        run = (await client.post("/runs", json={"task": "hi"})).json()
        reading = asyncio.create_task(read_stream(client, run["id"]))
        await wait_until(lambda: blocker.entered and server.service.counts()["readers"])
        stopping = asyncio.create_task(server.stop(grace=60))
        await wait_until(lambda: server.state == "stopping")
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.json()["problem"]) == (503, "the server is stopping")
        refused = await client.post("/runs", json={"task": "too late"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
        assert int(refused.headers["retry-after"]) > 0
        assert (await client.get(f"/runs/{run['id']}")).json()["status"] == "running"
        assert not stopping.done()
        blocker.open.set()
        events = await reading
        await stopping
        assert (events[-1]["type"], events[-1]["status"], events[-1]["reply"]) == ("run_closed", "completed", "done")
        with pytest.raises(httpx.TransportError):
            await client.get("/healthz")
    assert others() == set()


@pytest.mark.parametrize("how", ["the grace is over", "it is stopped once more"])
async def test_unfinished_runs_are_interrupted_and_their_streams_say_so(tmp_path, how):
    blocker = Blocker()
    async with running(tmp_path, blocker.agent(), max_runs=1) as (server, client):
        ids = [(await client.post("/runs", json={"task": "hi"})).json()["id"] for _ in range(2)]
        reading = [asyncio.create_task(read_stream(client, each)) for each in ids]
        await wait_until(lambda: blocker.entered == 1 and server.service.counts()["readers"] == 2)
        if how == "the grace is over":
            await server.stop(grace=0.01)
        else:
            stopping = asyncio.create_task(server.stop(grace=600))
            await wait_until(lambda: server.state == "stopping")
            await server.stop(grace=0)
            await stopping
        for events in await asyncio.gather(*reading):
            assert (events[-1]["type"], events[-1]["status"]) == ("run_closed", "interrupted")
    assert others() == set()


async def test_a_server_stopped_during_its_start_does_not_serve(tmp_path):
    server, begun = server_at(tmp_path), asyncio.Event()

    async def for_ever():
        begun.set()
        await asyncio.sleep(600)

    server.service.open = for_ever
    starting = asyncio.create_task(server.start())
    await begun.wait()
    await server.stop()
    await starting
    assert server.state == "stopped"
    assert others() == set()


async def test_a_tool_that_blocks_a_thread_does_not_block_the_shutdown(tmp_path):
    blocked, left = threading.Event(), threading.Event()

    @tool
    def block() -> str:
        """Wait."""
        blocked.set()
        left.wait(60)
        return "late"

    async with running(tmp_path, make([call("block"), reply("done")], tools=[block])) as (server, client):
        run = (await client.post("/runs", json={"task": "hi"})).json()
        await wait_until(blocked.is_set)
        await server.stop(grace=0)
        assert server.service._store.get(run["id"]).status == "interrupted"
    left.set()


async def test_a_stream_of_a_run_in_another_process_ends_with_the_server(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("hookline.stores.runs.POLL_SECONDS", 0.01)
    async with running(tmp_path) as (server, client):
        elsewhere = RunRecord(
            "run_elsewhere",
            "helper",
            "local",
            "s",
            "sid",
            "t",
            "c",
            "api",
            "hi",
            status="running",
            created=time.time(),
            host=gethostname(),
            pid=os.getpid(),
        )
        server.service._store.write([elsewhere], [])
        reading = asyncio.create_task(read_stream(client, elsewhere.id))
        await wait_until(lambda: server.service.counts()["readers"])
        await server.stop(grace=600)
        assert await reading == []
    assert [record.message for record in caplog.records if record.levelname in ("ERROR", "WARNING")] == []
    assert others() == set()


# Failed starts


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"host": "0.0.0.0"}, "at 0.0.0.0"),
        ({"hosts": ["agents.example.com"]}, "hosts is set"),
        ({"public_url": "https://agents.example.com"}, "public_url is set"),
        ({"trusted_proxies": ["10.0.0.0/8"]}, "trusted_proxies is set"),
    ],
)
async def test_an_exposed_server_does_not_start_without_a_key(tmp_path, options, why):
    keys = KeyStore(tmp_path / "keys.db")
    for given in (None, keys):
        with pytest.raises(ConfigError, match=r"hookline keys add") as refused:
            await server_at(tmp_path, keys=given, **options).start()
        assert why in str(refused.value)
    row, _ = keys.add("old", ["run"])
    keys.revoke(row.id)
    with pytest.raises(ConfigError, match="there is none"):
        await server_at(tmp_path, keys=keys, **options).start()
    _, secret = keys.add("ci", ["read"])
    async with running(tmp_path, keys=keys, **options) as (server, client):
        assert (await server.status()).needs_keys
        assert (await client.get("/runs")).status_code == 401
        assert (await client.get("/runs", headers={"x-api-key": secret})).status_code == 200
        named = await client.get("/healthz", headers={"host": "agents.example.com"})
        assert named.status_code == (200 if "example" in str(options) else 421)
    assert others() == set()


async def test_a_taken_port_is_an_error(tmp_path):
    async with running(tmp_path) as (first, client):
        port = int(first.url.rpartition(":")[2])
        second = server_at(tmp_path, port=port)
        with pytest.raises(WebError, match="is taken by another program"):
            await second.start()
        assert second.state == "stopped"
        assert (await client.post("/runs", json={"task": "hi", "wait": 60})).json()["status"] == "completed"


@pytest.mark.parametrize("broken", ["runs.db", "keys.db"])
@pytest.mark.sqlite
async def test_unusable_files_are_reported_before_the_server_starts(tmp_path, broken):
    (tmp_path / broken).write_text("this is no database, and never was one")
    server = server_at(tmp_path, keys=KeyStore(tmp_path / "keys.db"))
    with pytest.raises(StoreError, match=broken):
        await server.start()
    assert (server.state, others()) == ("stopped", set())


# Settings


def settings(folder, **options):
    return Settings(
        server={"port": 0, **options},
        runs=str(folder / "runs.db"),
        sessions=str(folder / "sessions"),
        approval_file=str(folder / "approvals.db"),
        metadata={"user_role": "guest"},
    )


@asynccontextmanager
async def built(given, agent):
    server = build_server(given, agent)
    await server.start()
    try:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            yield server, client
    finally:
        await server.stop(grace=0)


async def test_without_a_runs_file_runs_are_kept_in_memory(tmp_path):
    given = msgspec.structs.replace(settings(tmp_path, keys=str(tmp_path / "keys.db")), runs=None)
    async with built(given, make()) as (server, client):
        run = (await client.post("/runs", json={"task": "hi", "wait": 60})).json()
        assert (await client.get(f"/runs/{run['id']}")).json()["status"] == "completed"
        assert server.service._store.path == ":memory:"
    assert not (tmp_path / "runs.db").exists()


async def test_an_unknown_agent_in_the_settings_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"server.agents: there is no agent 'helpr'\. Did you mean"):
        build_server(settings(tmp_path, agents=["helpr"]), make())


@pytest.mark.parametrize(("mode", "reply_"), [("yes", "a is gone"), ("deny", "The user denies all calls")])
async def test_calls_do_not_wait_if_all_are_approved_or_denied(tmp_path, mode, reply_):
    @tool
    def delete(path: str) -> str:
        """Delete."""
        return f"{path} is gone"

    @guard(BEFORE_TOOL)
    def ask(ctx, payload):
        return HookResult.ask("May it?")

    def turn(request):
        last = request.messages[-1]
        return reply(last.content) if last.role == "tool" else call("delete", path="a")

    approver = Approver(mode, nullcontext, str(tmp_path / "approvals.db"))
    agent = Agent("helper", llm=ScriptedModel([turn], loop=True), tools=[delete], hooks=[ask, approver])
    async with built(settings(tmp_path), agent) as (server, client):
        run = (await client.post("/runs", json={"task": "hi", "wait": 60})).json()
        assert reply_ in run["reply"]
        assert server.service.approvals.rows() == []


@pytest.mark.parametrize("declared", ["by the setting", "as a hook", "both"])
async def test_requests_and_runs_share_one_audit_log(tmp_path, declared):
    path = tmp_path / "audit.jsonl"
    given = settings(tmp_path)
    if declared != "as a hook":
        given = msgspec.structs.replace(given, audit=str(path))
    agent = make(hooks=[] if declared == "by the setting" else [AuditLogHook(path)])
    async with built(given, agent) as (server, client):
        assert server.gate.is_audited
        await client.post("/runs", json={"task": "hi", "wait": 60})
    report = verify_audit(path)
    assert report.ok
    kinds = [json.loads(line)["type"] for line in path.read_text().splitlines()]
    assert "auth" in kinds
    assert ("run_end" in kinds) == (declared != "by the setting"), "the builder of the agent adds the hook"


async def test_each_personality_is_served_and_counted(tmp_path):
    for name in ("clerk", "poet"):
        (tmp_path / f"{name}.toml").write_text(f'instructions = "You are the {name}."\n')
    roster = Roster(make(), tmp_path, first="poet")
    async with built(settings(tmp_path), roster) as (_, client):
        assert [each["name"] for each in (await client.get("/agents")).json()["agents"]] == ["poet", "clerk"]
        run = (await client.post("/runs", json={"task": "hi", "agent": "clerk", "wait": 60})).json()
        assert (run["status"], run["agent"]) == ("completed", "clerk")
        assert 'hookline_runs_total{agent="clerk",status="completed"} 1.0' in (await client.get("/metrics")).text
    async with built(settings(tmp_path, agents=["clerk"]), roster) as (_, client):
        assert [each["name"] for each in (await client.get("/agents")).json()["agents"]] == ["clerk"]
        assert (await client.post("/runs", json={"task": "hi", "agent": "poet"})).status_code == 404


async def test_the_duration_of_hooks_is_a_metric_and_not_an_event(tmp_path):
    quiet = hook(BEFORE_LLM, name="quiet")(lambda ctx, request: None)
    async with built(settings(tmp_path), make(hooks=[quiet])) as (_, client):
        run = (await client.post("/runs", json={"task": "hi", "wait": 60})).json()
        text = (await client.get("/metrics")).text
        page = await client.get(f"/runs/{run['id']}/events", headers={"Accept": "application/json"})
    assert 'hookline_hook_seconds_count{hook="quiet",point="before_llm"} 1.0' in text
    assert not {"hook_executed", "point_fired"} & {event["type"] for event in page.json()["events"]}


async def test_all_metrics_are_in_the_guides(tmp_path):
    async with built(settings(tmp_path), make()) as (_, client):
        await client.post("/runs", json={"task": "hi", "wait": 60})
        text = (await client.get("/metrics")).text
    pages = "".join((ROOT / "docs" / page).read_text() for page in ("guides/serve.md", "reference/hooks/metrics.md"))
    names = set(re.findall(r"^# TYPE (\w+) ", text, re.MULTILINE))
    assert len(names) > 20
    assert [name for name in names if f"`{name}`" not in pages] == []


@pytest.mark.slow
async def test_the_run_of_a_killed_process_is_interrupted_and_its_events_can_be_read(tmp_path):
    program = f"""
        import asyncio, sys
        from pathlib import Path
        from hookline.server.build import build_server
        from tests.server.rig import Blocker
        from tests.server.test_server import settings

        async def main():
            blocker = Blocker()
            server = build_server(settings(Path({str(tmp_path)!r})), blocker.agent())
            await server.start()
            print(server.url, flush=True)
            while not blocker.entered:
                await asyncio.sleep(0.01)
            print("entered", flush=True)
            await asyncio.sleep(600)

        asyncio.run(main())
    """
    env = with_source()
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True, cwd=ROOT, env=env
    )
    try:
        url = process.stdout.readline().strip()
        run = httpx.post(f"{url}/runs", json={"task": "hi", "session": "mine"}, timeout=60).json()
        assert process.stdout.readline() == "entered\n"
        seen = httpx.get(f"{url}/runs/{run['id']}/events?limit=200", headers={"accept": "application/json"}, timeout=60)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    expire_lease(settings(tmp_path).runs, process.pid)
    server = build_server(settings(tmp_path), make())
    await server.start()
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        left = (await client.get(f"/runs/{run['id']}")).json()
        assert (left["status"], left["reason"]) == ("interrupted", "its process ended")
        events = await read_stream(client, run["id"])
        again = await client.post("/runs", json={"task": "go on", "session": "mine", "wait": 60})
        assert again.json()["status"] == "completed"
    await server.stop()
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    kept = seen.json()["events"]
    assert events[: len(kept)] == kept, "events that were read before are still stored"
    assert (events[-1]["type"], events[-1]["status"]) == ("run_closed", "interrupted")


def test_the_request_rate_is_measured_over_ten_seconds():
    now = 100.0
    traffic = Traffic(clock=lambda: now)
    now = 110.0
    for _ in range(50):
        traffic("GET", "/runs", 200, 0.1)
    traffic("GET", "/runs", 401, 0.1)
    assert (traffic.per_second(), traffic.total, traffic.refused) == (5.1, 51, 1)
    now = 121.0
    assert traffic.per_second() == 0


async def test_a_server_deletes_old_runs_after_everything_else_has_started(tmp_path, monkeypatch):
    deleting, opened, open_api = threading.Event(), [], A2aApi.open

    def tidy(store, served_days, forget):
        deleting.set()
        yield 0

    async def open_slowly(api):
        await asyncio.sleep(0.3)  # a step would begin meanwhile, and keep others from the file
        await open_api(api)
        opened.append(deleting.is_set())

    monkeypatch.setattr(RunStore, "tidy", tidy)
    monkeypatch.setattr(A2aApi, "open", open_slowly)
    settings = Settings(runs=str(tmp_path / "runs.db"), server={"port": 0, "keys": str(tmp_path / "keys.db")})
    server = build_server(settings, make(), home=tmp_path)
    await server.start()
    assert opened == [False]
    assert await asyncio.to_thread(deleting.wait, 20)
    await server.stop(grace=0)
