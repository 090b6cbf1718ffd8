"""The processes that execute durable runs, and the runs that none of them can continue."""

import os
import signal
import subprocess
import sys

import pytest

from hookline._run.journal import Append
from hookline.stores import workers as workers_module
from hookline.stores.runs import RunStore


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request, tmp_path):
    return str(tmp_path / "runs.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")


@pytest.fixture
def store(place):
    opened = RunStore(place, lease_seconds=1e-6)
    yield opened
    opened.close()


def digests(store):
    return [worker.digests for worker in store.workers.running()]


def test_two_servers_of_one_process_are_registered_until_each_stops(place, store):
    other = RunStore(place)
    store.workers.register({"aaa": {}, "bbb": {}})
    other.workers.register({"ccc": {}})
    assert digests(store) == [("aaa", "bbb"), ("ccc",)]
    assert [worker.pid for worker in store.workers.running()] == [os.getpid()] * 2
    store.workers.unregister()
    assert digests(other) == [("ccc",)]
    other.workers.register({"ddd": {}})
    assert digests(other) == [("ddd",)]
    other.close()


def test_a_process_that_was_killed_does_not_count(place, store):
    if store.db.is_shared:
        pytest.skip("on PostgreSQL its lease has to expire first: see test_leases.py")
    code = "import sys; from hookline.stores.runs import RunStore; RunStore(sys.argv[1]).workers.register({'aaa': {}})"
    killed = f"{code}; import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert subprocess.run([sys.executable, "-c", killed, place], check=False).returncode == -signal.SIGKILL
    with store.db.transaction() as db:
        assert db.execute("SELECT count(*) FROM workers").fetchone() == (1,)
    assert digests(store) == []
    store.workers.register({"bbb": {}})
    with store.db.transaction() as db:
        assert db.execute("SELECT digests FROM workers").fetchall() == [("bbb",)]


@pytest.mark.parametrize(
    ("status", "shown"), [("", True), ("waiting", True), ("interrupted", True), ("completed", False)]
)
def test_a_run_is_pinned_until_it_ends_or_a_process_has_its_version(store, status, shown):
    claim = store.journal.claim("one", "helper", b"{}", "aaa")
    if status:
        store.journal.append(Append("one", claim.epoch, 1, status=status, result=b"[]"))
    store.workers.register({"bbb": {}})
    found = [(run.run_id, run.digest, run.digests) for run in store.workers.pinned()]
    assert found == ([("one", "aaa", ("bbb",))] if shown else [])
    assert store.workers.pinned_by_digest() == ({"aaa": 1} if shown else {})
    store.workers.register({"aaa": {}})
    assert (store.workers.pinned(), store.workers.pinned_by_digest()) == ([], {})


def test_a_run_that_a_process_executes_is_not_pinned(place):
    store = RunStore(place, lease_seconds=1000)
    store.journal.claim("one", "helper", b"{}", "aaa")
    store.workers.register({"bbb": {}})
    assert store.workers.pinned() == []
    store.close()


def test_a_pinned_run_names_the_parts_that_differ_from_the_most_similar_version(store):
    store.workers.register({"aaa": {"hook a": "1", "hook b": "1", "tool c": "1"}})
    store.journal.claim("one", "helper", b"{}", "aaa")
    store.workers.register(
        {"bbb": {"hook a": "2", "hook b": "2"}, "ccc": {"hook a": "1", "hook b": "2", "tool c": "1"}}
    )
    (run,) = store.workers.pinned()
    assert run.different == ("hook b",)
    assert run.problem.startswith(
        "run one waits for a worker with digest aaa; the running workers have bbb, ccc (different: hook b): start a"
    )
    store.workers.unregister()
    (run,) = store.workers.pinned()
    assert "digest aaa; no worker is running: start a worker" in run.problem


def test_a_version_is_forgotten_after_a_time_unless_a_run_needs_it(store, monkeypatch):
    for digest in ("aaa", "bbb"):
        store.workers.register({digest: {"hook a": digest}})
    store.journal.claim("one", "helper", b"{}", "aaa")
    monkeypatch.setattr(workers_module, "KEEP_SECONDS", -1.0)
    store.workers.register({"ccc": {"hook a": "ccc"}})
    with store.db.transaction() as db:
        assert db.execute("SELECT digest FROM agent_versions").fetchall() == [("aaa",)]
