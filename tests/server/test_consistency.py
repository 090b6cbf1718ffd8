"""Rows about durable runs that contradict each other: they are found, counted, shown, and repaired."""

import time

import pytest

from hookline.hooks import MetricsHook
from hookline.payloads import ApprovalRequest, Ids, ToolCallRequest
from hookline.server.consistency import ConsistencyCheck, Contradiction
from hookline.server.health import add_fleet_metrics
from hookline.server.postgres_queue import SHARE, PostgresQueue, create_queue, namespace_of
from hookline.stores import ApprovalStore
from hookline.stores.runs import DURABLE, IdempotencyKey, NewRun, RunRecord, RunStore, StoredEvent
from tests.postgres_cluster import MISSING

ON_POSTGRES = pytest.param("postgresql", marks=pytest.mark.skipif(bool(MISSING), reason=MISSING))
LONG_AGO = time.time() - 3600


@pytest.fixture(params=["sqlite", ON_POSTGRES])
def place(request, tmp_path):
    return str(tmp_path / "runs.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")


@pytest.fixture
def store(place):
    opened = RunStore(place)
    opened.open()
    if opened.db.is_shared:
        create_queue(opened.db)
    yield opened
    opened.close()


def accept(store, id, session="s", at=LONG_AGO, *, key="", job=True):
    """Accept a durable run like a server."""
    record = RunRecord(
        id, "bot", "me", session, session, id, id, "api", "go", created=at, host=DURABLE, origin="server"
    )
    event = StoredEvent(id, 1, "run_accepted", at, b"{}")
    given = IdempotencyKey("me", key, "digest", id, at) if key else None
    also = PostgresQueue(store, 1).put_in if job and store.db.is_shared else None
    (accepted,) = store.accept([NewRun(record, event, b'{"task":"go"}', given)], also=also)
    assert accepted.stored


def execute(store, sql, *values):
    with store.db.transaction(write=True) as db:
        assert db.execute(sql, values).rowcount == 1


def jobs(store):
    found = store.db.execute(f"SELECT queueing_lock FROM {namespace_of(store.db)}.procrastinate_jobs")
    return [run_id for (run_id,) in found]


def check(store, *found):
    """Check that exactly these contradictions are found and counted, and that none is left after the repair."""
    consistency, expected = ConsistencyCheck(store), [Contradiction(*each) for each in found]
    assert sorted(consistency.find(), key=str) == sorted(expected, key=str)
    metrics = MetricsHook()
    add_fleet_metrics(metrics, store)
    for kind in ("open_journal", "lost_job", "stale_job", "orphan_key", "orphan_approval", "unreadable_wait"):
        count = sum(each.kind == kind for each in expected)
        assert f'hookline_contradictions{{kind="{kind}"}} {count:.1f}' in metrics.text()
    assert consistency.repair(expected) == expected
    assert consistency.find() == []
    assert consistency.repair(expected) == [], "they do not exist any more"


def test_runs_in_every_ordinary_state_contradict_nothing(store):
    accept(store, "a", key="k")
    accept(store, "b", job=False)  # it waits for the run before it
    accept(store, "c", "other", time.time(), job=False)  # it was accepted just now
    claim = store.journal.claim("a", "bot", b"")
    assert claim.epoch == 1
    assert ConsistencyCheck(store).find() == []


def test_a_run_that_has_ended_with_an_open_journal_is_never_continued(store):
    accept(store, "a", job=False)
    accept(store, "b", "other", job=False)
    for id, status in (("a", "completed"), ("b", "interrupted")):
        execute(store, "UPDATE runs SET status = ?, ended = ? WHERE run_id = ?", status, LONG_AGO, id)
    check(store, ("open_journal", "a"), ("open_journal", "b"))
    assert store.journal.get("a").status == "completed"
    assert store.journal.get("b").status == "failed"
    assert store.journal.claim("a", "bot", b"").run.is_over


def test_a_key_without_its_run_is_deleted_so_that_the_request_can_be_repeated(store):
    accept(store, "a", key="k", job=False)
    execute(store, "DELETE FROM runs WHERE run_id = 'a'")
    execute(store, "DELETE FROM durable_runs WHERE run_id = 'a'")
    check(store, ("orphan_key", "a"))
    accept(store, "b", key="k")


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_a_queued_run_without_a_job_is_queued_again(postgres_url):
    store = RunStore(postgres_url)
    store.open()
    create_queue(store.db)
    accept(store, "a", job=False)
    accept(store, "b", job=False)
    store.halts.halt("stop", by="me")
    assert ConsistencyCheck(store).find() == [], "runs wait for the release"
    store.halts.release(by="me")
    check(store, ("lost_job", "a"))
    assert jobs(store) == ["a"]
    for number in range(2 * SHARE):
        accept(store, f"more_{number:02}", f"session_{number}", job=number < SHARE)
    assert len(jobs(store)) == SHARE
    assert ConsistencyCheck(store).find() == [], "the other runs of the caller are held back"
    store.close()


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_a_run_that_is_held_back_contradicts_nothing(postgres_url):
    store = RunStore(postgres_url)
    store.open()
    create_queue(store.db)
    for n in range(SHARE + 2):
        accept(store, f"run {n}", f"s {n}")
    assert len(jobs(store)) == SHARE
    assert ConsistencyCheck(store).find() == []
    store.close()


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_a_job_of_a_run_that_has_ended_is_deleted(postgres_url):
    store = RunStore(postgres_url)
    store.open()
    create_queue(store.db)
    for id in "abc":
        accept(store, id, id)
    for table, status in (("runs", "completed"), ("durable_runs", "completed")):
        execute(store, f"UPDATE {table} SET status = ? WHERE run_id = 'a'", status)
    execute(store, "UPDATE runs SET ended = ? WHERE run_id = 'a'", LONG_AGO)
    for table in ("runs", "durable_runs"):
        execute(store, f"DELETE FROM {table} WHERE run_id = 'b'")
    check(store, ("stale_job", "a"), ("stale_job", "b"))
    assert jobs(store) == ["c"]
    store.close()


def test_a_waiting_run_that_cannot_be_read_goes_on_from_its_journal(store):
    accept(store, "a", job=False)
    execute(store, "UPDATE durable_runs SET status = 'waiting', result = ? WHERE run_id = 'a'", b"[[")
    execute(store, "UPDATE runs SET status = 'waiting' WHERE run_id = 'a'")
    consistency = ConsistencyCheck(store)
    found = consistency.find()
    assert found == [Contradiction("unreadable_wait", "a")]
    assert found[0].problem == "run a waits for approvals that cannot be read"
    assert consistency.repair(found) == found
    assert [run.run_id for run in store.to_execute(begun=True)] == ["a"]
    assert store.get("a").status == "queued"


def ask(approvals, run_id, root_id="", *, asked=LONG_AGO, durable=True):
    """Store a call that waits for approval since long ago."""
    call = ToolCallRequest(f"call of {run_id}", "pay", {})
    ids = Ids(run_id=run_id, agent="bot")
    request = ApprovalRequest(call, (), "d")
    row = approvals.ask(request, seconds=1e9, ids=ids, root_id=root_id, durable=durable)
    with approvals.db.transaction(write=True) as db:
        db.execute("UPDATE approvals SET asked = ? WHERE id = ?", (asked, row.id))
    return row.id


@pytest.fixture
def approvals(store, tmp_path):
    store.approvals = ApprovalStore(store.path if store.db.is_shared else tmp_path / "approvals.db")
    yield store.approvals
    store.approvals.close()


def test_a_call_of_a_run_that_is_gone_is_cancelled(store, approvals):
    accept(store, "open", job=False)
    store.journal.claim("open", "bot", b"")
    waits, gone, inner = ask(approvals, "open"), ask(approvals, "gone"), ask(approvals, "inner", "gone")
    new, program = ask(approvals, "new", asked=time.time()), ask(approvals, "program", durable=False)
    check(store, ("orphan_approval", "gone"))
    states = {id: approvals.find(id).status for id in (waits, gone, inner, new, program)}
    assert states == {waits: "pending", gone: "cancelled", inner: "cancelled", new: "pending", program: "pending"}


@pytest.mark.parametrize("how", ["delete", "prune"])
def test_calls_of_a_deleted_run_are_cancelled_with_it(store, approvals, how):
    store.add([RunRecord("outer", "bot", created=LONG_AGO, status="failed", ended=LONG_AGO)])
    store.add([RunRecord("other", "bot", created=time.time(), status="failed", ended=time.time())])
    asked, kept = ask(approvals, "inner", "outer"), ask(approvals, "other")
    assert store.delete("outer") if how == "delete" else store.prune(0.01) == 1
    assert (approvals.find(asked).status, approvals.find(kept).status) == ("cancelled", "pending")
