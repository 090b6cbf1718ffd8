"""Push subscriptions, in the file of the runs."""

import os
import subprocess
import sys

import pytest

from hookline.stores.push_subscriptions import PushSubscription
from hookline.stores.runs import RunRecord, RunStore


@pytest.fixture
def store(tmp_path):
    store = RunStore(tmp_path / "runs.db")
    yield store
    store.close()


def row(id, run="run_1", **more):
    return PushSubscription(run, id, "me", "https://example.com/", **more)


def run(id, **more):
    return RunRecord(id, "helper", "me", "talk", "s", id, id, "a2a", "hi", **more)


def test_subscriptions_are_stored_by_run_and_id_up_to_the_limit(store):
    assert store.push_subscriptions.save(row("a", token="old", created=1.0), 2)
    assert store.push_subscriptions.save(row("b", created=2.0), 2)
    assert not store.push_subscriptions.save(row("c"), 2)
    assert store.push_subscriptions.save(row("a", token="new", created=1.0), 2)
    assert store.push_subscriptions.save(row("c", run="run_2"), 2)
    assert [(each.id, each.token) for each in store.push_subscriptions.for_run("run_1")] == [("a", "new"), ("b", "")]
    assert store.push_subscriptions.delete("run_1", "a")
    assert not store.push_subscriptions.delete("run_1", "a")
    assert [each.id for each in store.push_subscriptions.for_run("run_1")] == ["b"]


def test_a_delivery_is_recorded_unless_the_subscription_was_replaced(store):
    first, second = row("a", created=1.0), row("a", created=2.0)
    store.push_subscriptions.save(first, 5)
    store.push_subscriptions.mark_delivered(first, 7, done=False)
    assert store.push_subscriptions.for_run("run_1")[0].seq == 7
    store.push_subscriptions.save(second, 5)
    store.push_subscriptions.mark_delivered(first, 9, done=True)
    assert [(each.seq, each.done) for each in store.push_subscriptions.for_run("run_1")] == [(0, False)]


def test_abandoned_subscriptions_are_claimed_once(store, tmp_path):
    code = (
        "import sys\nfrom hookline.stores.runs import RunStore\n"
        "from hookline.stores.push_subscriptions import PushSubscription\n"
        "store = RunStore(sys.argv[1])\n"
        "store.push_subscriptions.save(PushSubscription('run_1', 'a', 'me', 'https://example.com/'), 5)\n"
        "store.push_subscriptions.save(PushSubscription('run_1', 'b', 'me', 'https://example.com/', done=True), 5)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "runs.db")], check=True, env=dict(os.environ))
    other = RunStore(tmp_path / "runs.db")
    assert [each.id for each in store.push_subscriptions.claim_abandoned()] == ["a"]
    with store.db.transaction(write=True) as db:
        db.execute("UPDATE pushes SET pid = ?", (os.getppid(),))  # a process that is running
    assert other.push_subscriptions.claim_abandoned() == []
    other.close()


def test_released_subscriptions_can_be_claimed_while_their_process_runs(store, tmp_path):
    """Claimed as from another process: on SQLite, a process always claims its own."""
    for id in ("a", "b", "c"):
        store.push_subscriptions.save(row(id), 5)
    store.push_subscriptions.release([("run_1", "a"), ("run_1", "b")])
    code = (
        "import sys\nfrom hookline.stores.runs import RunStore\nstore = RunStore(sys.argv[1])\n"
        "print([each.id for each in store.push_subscriptions.claim_abandoned()])\n"
        "store.push_subscriptions.release([('run_1', 'c')])"  # not its own
    )
    claim = [sys.executable, "-c", code, str(tmp_path / "runs.db")]
    assert subprocess.run(claim, check=True, capture_output=True, text=True).stdout == "['a', 'b']\n"
    with store.db.transaction() as db:
        found = db.execute("SELECT id FROM pushes WHERE host = ''").fetchall()
    assert found == []


def test_subscriptions_are_deleted_with_their_runs(store):
    store.write([run("run_1", status="completed", ended=1.0), run("run_2")], [])
    store.push_subscriptions.save(row("a"), 5)
    store.push_subscriptions.save(row("a", run="run_2"), 5)
    store.prune_served(1)
    assert (store.push_subscriptions.for_run("run_1"), len(store.push_subscriptions.for_run("run_2"))) == ([], 1)


def test_the_repr_of_a_subscription_has_no_secrets():
    assert "secret" not in repr(row("a", token="secret", credentials="secret"))


def test_runs_are_counted_as_they_are_listed(store):
    states = {"completed": 9.0, "failed": 9.0, "queued": None}
    store.write([run(f"run_{n}", status=each, created=n, ended=states[each]) for n, each in enumerate(states)], [])
    assert store.count(owner="me") == 3
    assert store.count(owner="other") == 0
    assert store.count(session="talk", states=["failed", "queued"], agent="helper") == 2
    assert store.count(session="walk") == 0
    assert [each.id for each in store.runs(session="talk", states=["failed"])] == ["run_1"]
