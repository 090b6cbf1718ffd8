"""A process holds what it claimed in a PostgreSQL database as long as it renews its lease."""

import signal
import subprocess
import sys
import textwrap
import time

import msgspec
import pytest

from hookline.stores import leases
from hookline.stores.leases import LEASE_SECONDS
from hookline.stores.runs import RunRecord, RunStore, StoredEvent
from hookline.stores.sql import Owner

from ..waiting import block_until


def held(store, owner):
    return store.db.leases.is_held(owner.host, owner.pid, time.time(), owner.born)


def expire(store, owner):
    """Let the lease of this process expire, as if the process had been paused."""
    database = store.db.leases._db
    with database.transaction(write=True) as db:
        db.execute("UPDATE leases SET until = 1 WHERE id = ?", (owner.host,))


def record(store, id="run_1", **fields):
    owner = store.db.leases.owner()
    base = RunRecord(id, "helper", "me", "s", "sid", "t", "c", "api", "hi", "running", created=time.time())
    return msgspec.structs.replace(base, **owner._asdict() | fields)


def event(seq, data=b"{}", id="run_1"):
    return StoredEvent(id, seq, "step_started", 1.0, data)


def count(store, query, *values):
    with store.db.leases._db.transaction() as db:
        return db.execute(query, values).fetchone()[0]


@pytest.fixture
def store(postgres_url):
    store = RunStore(postgres_url)
    yield store
    store.close()


@pytest.fixture
def other(postgres_url, monkeypatch):
    """A process on another machine that holds a lease of two seconds, renewed all the time."""
    program = f"""
        import time
        from hookline.stores import leases
        from hookline.stores.runs import RunStore
        leases.gethostname = lambda: "elsewhere"
        leases.LEASE_SECONDS, leases.RENEW_SECONDS = 2.0, 0.05
        owner = RunStore({postgres_url!r}).db.leases.owner()
        print(owner.host, flush=True)
        time.sleep(600)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True)
    process.owner = Owner(process.stdout.readline().strip(), process.pid, None)
    monkeypatch.setattr(leases, "REMEMBER_SECONDS", 0.0)
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_process_on_another_machine_holds_what_it_claimed_until_it_is_killed(store, other):
    assert other.owner.host.startswith("elsewhere#")
    began = time.monotonic()
    while time.monotonic() < began + 2.5:  # longer than the lease: it is renewed
        assert held(store, other.owner)
        time.sleep(0.05)
    other.kill()
    block_until(lambda: not held(store, other.owner))


def test_a_paused_process_loses_its_lease_for_good(store, other):
    other.send_signal(signal.SIGSTOP)
    block_until(lambda: not held(store, other.owner))
    other.send_signal(signal.SIGCONT)
    renewed = "SELECT count(*) FROM leases WHERE id LIKE 'elsewhere#%' AND id != ?"
    block_until(lambda: count(store, renewed, other.owner.host))
    assert not held(store, other.owner)


def test_a_closed_store_gives_up_its_lease_at_once(store, postgres_url):
    second = RunStore(postgres_url)
    owner = store.db.leases.owner()
    assert second.db.leases.owner() == owner, "the stores of a process share its lease"
    query = "SELECT count(*) FROM leases WHERE id = ?"
    second.close()
    assert count(store, query, owner.host) == 1
    store.close()
    third = RunStore(postgres_url)
    assert count(third, query, owner.host) == 0
    third.close()


def test_a_process_whose_lease_expired_gets_another_one(store, monkeypatch):
    monkeypatch.setattr(leases, "RENEW_SECONDS", 0.02)
    owner = store.db.leases.owner()
    expire(store, owner)
    block_until(lambda: store.db.leases.owner() != owner)
    assert held(store, store.db.leases.owner())
    assert not held(store, owner)
    assert LEASE_SECONDS > 3 * 3.0, "one lost renewal is not the end"


def test_the_run_of_a_process_without_a_lease_is_interrupted(store, other):
    store.write([record(store, **other.owner._asdict())], [event(1)])
    assert store.get("run_1").status == "running"
    other.kill()
    block_until(lambda: store.get("run_1").status == "interrupted")
    assert [run.id for run in store.abandoned()] == ["run_1"]


def test_a_process_that_lost_its_lease_does_not_change_a_run_that_another_one_ended(store):
    run = record(store)
    assert store.write([run], [event(1)]) == set()

    def last(run, seq):
        return msgspec.structs.replace(run, ended=2.0, last_seq=seq), event(seq, b'{"closing": 1}')

    store.close_abandoned("run_1", last)
    late = record(store, status="completed", reply="too late", ended=3.0, last_seq=3)
    assert store.write([late], [event(2, b'{"late": 1}'), event(3)]) == {"run_1"}
    assert (store.get("run_1").reply, store.get("run_1").ended) == ("", 2.0)
    assert [(each.seq, each.data) for each in store.events("run_1")] == [(1, b"{}"), (2, b'{"closing": 1}')]
