"""Metrics of everything that shares a database: the queue, leases, takeovers and the time of recoveries."""

import os
import re
import socket
import time
from pathlib import Path

import httpx
import msgspec
import pytest

from hookline import Agent, ScriptedModel, reply
from hookline._run.journal import Append
from hookline.config.errors import ConfigError
from hookline.config.settings import Settings
from hookline.hooks import MetricsHook
from hookline.server import build_server, health
from hookline.server.health import MetricsServer, add_fleet_metrics
from hookline.stores.runs import DURABLE, NewRun, RunRecord, RunStore, StoredEvent

GUIDE = Path(__file__).parents[2] / "docs/guides/serve.md"


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request, tmp_path):
    return tmp_path / "runs.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")


@pytest.fixture
def store(place):
    with_short_leases = RunStore(place, lease_seconds=1e-6)
    yield with_short_leases
    with_short_leases.close()


def shown(store):
    metrics = MetricsHook()
    add_fleet_metrics(metrics, store)
    lines = [line.rsplit(" ", 1) for line in metrics.text().splitlines() if not line.startswith("#")]
    return {name.removeprefix("hookline_"): float(value) for name, value in lines}


def served(number, status):
    ids = dict.fromkeys(("owner", "session", "session_id", "task_id", "correlation_id"), "x")
    return RunRecord(f"run_{number}", "helper", **ids, transport="api", task="go", status=status, created=1000.0)


def test_the_queue_shows_the_runs_that_wait_on_any_server(store):
    store.write([served(1, "queued"), served(2, "queued"), served(3, "completed")], [])
    found = shown(store)
    assert found["queue_depth"] == 2
    assert found["queue_oldest_seconds"] > 1e6


def test_nothing_is_queued_in_an_empty_database(store):
    found = shown(store)
    assert (found["queue_depth"], found["queue_oldest_seconds"]) == (0, 0)
    assert (found["takeovers_total"], found["recoveries_total"]) == (0, 0)


def test_the_time_until_recent_runs_began_is_shown(store):
    now = time.time()
    begun = [
        msgspec.structs.replace(served(n, "completed"), created=now - 10, started=now - 10 + n, ended=now)
        for n in range(100)
    ]
    old = msgspec.structs.replace(served(200, "completed"), created=now - 4000, started=now, ended=now)
    store.write([*begun, old], [])
    found = shown(store)
    assert found['start_seconds{quantile="0.5"}'] == pytest.approx(50, abs=1)
    assert found['start_seconds{quantile="0.95"}'] == pytest.approx(95, abs=1)


def test_the_slots_of_workers_are_shown_with_those_that_are_used(place):
    store = RunStore(place)
    store.workers.register({"aaa": {}}, 5)
    for n in range(2):
        run = msgspec.structs.replace(served(n, "running"), host=DURABLE)
        store.accept([NewRun(run, StoredEvent(run.id, 1, "run_accepted", 1.0, b"{}"), b"{}")])
    store.journal.claim("run_1", "", b"")
    store.journal.claim("of a program", "", b"{}")
    found = shown(store)
    assert (found['slots{state="used"}'], found['slots{state="all"}']) == (1, 5)
    store.close()


def test_a_lease_is_held_until_it_is_not_renewed(store, place):
    patient = RunStore(place, lease_seconds=1000)
    patient.journal.claim("one", "helper", b"{}")
    store.journal.claim("two", "helper", b"{}")
    found = shown(store)
    patient.close()
    assert (found['leases{state="held"}'], found['leases{state="expired"}']) == (1, 1)


@pytest.mark.parametrize("status", ["waiting", "interrupted"])
def test_a_run_without_a_process_is_counted_by_its_status(store, status):
    epoch = store.journal.claim("one", "helper", b"{}").epoch
    store.journal.append(Append("one", epoch, 1, [b"[]"], status=status))
    found = shown(store)
    assert found[f'durable_runs{{state="{status}"}}'] == 1
    assert found['leases{state="held"}'] == found['leases{state="expired"}'] == 0


def test_a_takeover_and_its_recovery_are_counted_once_with_their_time(store):
    first = store.journal.claim("one", "helper", b"{}")
    store.journal.append(Append("one", first.epoch, 1, [b"[]"]))
    second = store.journal.claim("one", "helper", b"{}")
    found = shown(store)
    assert (found["takeovers_total"], found["recoveries_total"]) == (1, 0)
    assert found["takeover_seconds_total"] > 0
    store.journal.append(Append("one", second.epoch, 2, [b"[]"], recovery_seconds=0.5))
    store.journal.append(Append("one", second.epoch, 3, [b"[]"]))
    found = shown(store)
    assert (found["takeovers_total"], found["recoveries_total"]) == (1, 1)
    assert found["recovery_seconds_total"] > 0


def test_a_run_that_was_suspended_is_recovered_without_a_takeover(store):
    first = store.journal.claim("one", "helper", b"{}")
    store.journal.append(Append("one", first.epoch, 1, [b"[]"], status="waiting"))
    second = store.journal.claim("one", "helper", b"{}")
    store.journal.append(Append("one", second.epoch, 2, [b"[]"], recovery_seconds=0.5))
    found = shown(store)
    assert (found["takeovers_total"], found["recoveries_total"]) == (0, 1)


def test_workers_are_shown_with_the_runs_that_wait_for_another_version(store):
    for number, digest in enumerate(["aaa", "bbb", "bbb"]):
        store.journal.claim(f"run_{number}", "helper", b"{}", digest)
    store.workers.register({"aaa": {}})
    found = shown(store)
    assert (found['workers{digest="aaa"}'], found['pinned_runs{digest="bbb"}']) == (1, 2)
    assert 'pinned_runs{digest="aaa"}' not in found
    store.workers.unregister()
    assert shown(store)['pinned_runs{digest="aaa"}'] == 1


def test_a_worker_serves_its_metrics_until_it_stops():
    metrics = MetricsHook()
    metrics.counter("hookline_made_total", "Made.").add()
    server = MetricsServer(metrics, "127.0.0.1:0")
    url = server.start()
    assert "hookline_made_total 1.0" in httpx.get(url).text
    server.stop()
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


@pytest.mark.parametrize("address", ["9464", ":9464", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536"])
def test_an_address_for_metrics_that_is_not_valid_is_refused(address):
    with pytest.raises(ConfigError, match=r"must be like 127\.0\.0\.1:9464"):
        MetricsServer(MetricsHook(), address)


def test_a_port_for_metrics_that_is_taken_is_reported():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match="give another"):
            MetricsServer(MetricsHook(), address).start()


def test_the_guide_lists_the_metrics_of_a_fleet():
    documented = re.findall(r"^\| `(hookline_\w+)` \|", GUIDE.read_text(), re.MULTILINE)
    before = MetricsHook()
    after = MetricsHook()
    add_fleet_metrics(after, RunStore(":memory:"))
    names = [{family.name for family in metrics.registry.collect()} for metrics in (before, after)]
    new = names[1] - names[0]
    assert len(new) == 14
    assert new <= {name.removesuffix("_total") for name in documented}


def test_an_export_reads_the_state_of_the_queue_once(store, monkeypatch):
    asked, read = [], health.queue_state
    monkeypatch.setattr(health, "queue_state", lambda store: asked.append(1) or read(store))
    metrics = MetricsHook()
    add_fleet_metrics(metrics, store)
    assert "hookline_queue_depth 0.0" in metrics.text()
    assert len(asked) == 1
    store.write([served(1, "queued")], [])
    assert "hookline_queue_depth 1.0" in metrics.text(), "each export reads it anew"
    assert len(asked) == 2


@pytest.mark.sqlite
async def test_a_server_that_stops_leaves_no_file_open(tmp_path):
    settings = Settings(runs=str(tmp_path / "runs.db"), server={"port": 0, "keys": str(tmp_path / "keys.db")})
    server = build_server(settings, Agent("helper", llm=ScriptedModel([reply("done")])), home=tmp_path)
    await server.start()
    async with httpx.AsyncClient(base_url=server.url) as client:
        assert "hookline_contradictions" in (await client.get("/metrics")).text
    await server.stop(grace=0)
    files = [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]
    assert [file for file in files if file.startswith(str(tmp_path))] == []
