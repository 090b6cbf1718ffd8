"""Journal: writes to the journals of durable runs, and questions about them, in SQLite and PostgreSQL."""

import sqlite3
import time
from contextlib import closing

import pytest

from hookline._run.journal import RUN_STATUSES, Append, LeaseLostError, Writer
from hookline.stores import RunStore
from hookline.stores.runs import RunRecord, run_row
from tests.postgres_cluster import MISSING
from tests.waiting import wait_until


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.skipif(bool(MISSING), reason=MISSING))])
def open_store(request, tmp_path):
    opened = []
    place = tmp_path / "runs.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")

    def make(**options):
        opened.append(RunStore(place, **options))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


def events(*numbers):
    return [(number, "token", 1.5, b'{"n":%d}' % number) for number in numbers]


def stored(store):
    journal = store.db.execute("SELECT run_id, seq, data FROM journal ORDER BY seq")
    found = store.db.execute("SELECT seq, type, at, data FROM events ORDER BY seq")
    rows = store.db.execute("SELECT run_id, status FROM runs")
    return (
        [(*row[:-1], bytes(row[-1])) for row in journal],
        [(*row[:3], bytes(row[3]), *row[4:]) for row in found],
        rows,
    )


def served(status):
    return run_row(RunRecord("r", "bot", "me", "", "", "", "", "api", "task", status=status, created=1.0))


def test_a_process_that_did_not_learn_of_the_end_of_its_run_does_not_undo_it(open_store):
    store = open_store()
    claim = store.journal.claim("r", "bot", b"{}")
    store.journal.append(Append("r", claim.epoch, 1, [b"[1]"], (), "completed", b"{}"), row=served("completed"))
    with pytest.raises(LeaseLostError):
        store.journal.append(Append("r", claim.epoch, 2, status="interrupted"), row=served("queued"))
    found = store.journal.get("r")
    assert (found.status, bytes(found.result)) == ("completed", b"{}")
    assert store.db.execute("SELECT status FROM runs") == [("completed",)]


def test_a_write_stores_entries_events_and_the_row_of_the_run_together(open_store):
    store = open_store()
    claim = store.journal.claim("r", "bot", b"{}")
    store.journal.append(Append("r", claim.epoch, 1, [b"[1]", b"[2]"], events(1, 2)), row=served("running"))
    store.journal.append(Append("r", claim.epoch, 3, [b"[3]"], events(3), "completed", b"{}"), row=served("completed"))
    assert stored(store) == (
        [("r", 1, b"[[1],[2]]"), ("r", 3, b"[[3]]")],
        events(1, 2, 3),
        [("r", "completed")],
    )
    run = store.journal.get("r")
    assert (run.status, run.result, run.lease) == ("completed", b"{}", 0)


@pytest.mark.parametrize("status", ["", "completed"])
def test_a_write_of_an_earlier_epoch_stores_nothing(open_store, status):
    store = open_store(lease_seconds=0.001)
    old = store.journal.claim("r", "bot", b"{}")
    time.sleep(0.01)
    new = store.journal.claim("r", "bot", b"{}")
    write = Append("r", old.epoch, 1, [b"[1]"], events(1), status, None, 0.5)
    with pytest.raises(LeaseLostError):
        store.journal.append(write, row=served("running"))
    with pytest.raises(LeaseLostError):
        store.journal.append(write, also=lambda db: pytest.fail("more was written"))
    with pytest.raises(LeaseLostError):
        store.journal.renew("r", old.epoch)
    assert stored(store) == ([], [], [("r", "running")])
    assert store.journal.totals()["recoveries"] == (0, 0.0)
    run = store.journal.get("r")
    assert (run.status, run.epoch) == ("running", new.epoch)


def test_a_process_that_takes_over_gets_the_entries_and_the_number_of_the_last_event(open_store):
    store = open_store(lease_seconds=0.001)
    first = store.journal.claim("r", "bot", b"{}")
    assert (first.entries, first.last_event) == ((), 0)
    store.journal.append(Append("r", first.epoch, 1, [b'["a"]', b'["b",{"x":[1]}]'], events(1, 2)))
    store.journal.append(Append("r", first.epoch, 3, [b'["c"]']))
    time.sleep(0.01)
    second = store.journal.claim("r", "bot", b"{}")
    assert (second.entries, second.last_event) == ((b'["a"]', b'["b",{"x":[1]}]', b'["c"]'), 2)


def test_each_process_that_takes_a_run_counts_until_one_of_them_gives_it_back(open_store):
    store = open_store(lease_seconds=0.001)
    for attempts in range(3):
        claim = store.journal.claim("r", "bot", b"{}")
        assert claim.run.attempts == attempts
        time.sleep(0.01)
    store.journal.append(Append("r", claim.epoch, 1, status="interrupted"))
    assert store.journal.get("r").attempts == 0


async def test_an_attempt_that_lost_the_database_does_not_count_although_another_process_took_the_run(open_store):
    store = open_store(lease_seconds=0.001)
    first = store.journal.claim("r", "bot", b"{}")
    time.sleep(0.01)
    store.journal.claim("r", "bot", b"{}")
    assert store.journal.get("r").attempts == 2
    writer = Writer(store.journal, first, time.monotonic(), pytest.fail)
    for _ in range(2):
        await writer.release()
        assert (store.journal.get("r").attempts, store.journal.get("r").status) == (1, "running")


@pytest.mark.parametrize("count", [1, 50, 51, 3000])
def test_a_write_may_have_any_number_of_events(open_store, count):
    store = open_store()
    claim = store.journal.claim("r", "bot", b"{}")
    store.journal.append(Append("r", claim.epoch, 1, [b"[]"], events(*range(1, count + 1))))
    assert stored(store)[1] == events(*range(1, count + 1))


async def test_entries_that_nothing_waits_for_are_written_together(open_store):
    store, writes = open_store(), []
    claim = store.journal.claim("r", "bot", b"{}")
    append = store.journal.append
    store.journal.append = lambda write: writes.append(write) or append(write)
    writer = Writer(store.journal, claim, time.monotonic(), pytest.fail)
    for number in range(100):
        writer.put("lane", "event", str(number))
    assert (writer.count, writer.committed) == (100, 0)
    await writer.flush()
    assert [len(write.entries) for write in writes] == [100]
    assert writer.committed == 100
    writer.put("lane", "event", "100")  # nothing waits for it, and it is written nevertheless
    await wait_until(lambda: writer.committed == 101)


@pytest.mark.parametrize("is_held", [False, True])
async def test_a_writer_that_is_closed_writes_what_was_put_before_and_during_recovery_nothing(open_store, is_held):
    store = open_store()
    writer = Writer(store.journal, store.journal.claim("r", "bot", b"{}"), time.monotonic(), pytest.fail)
    writer.begin()
    writer.is_held = is_held
    writer.put("lane", "event", "before")
    written = writer.close()
    writer.put("lane", "event", "after")
    assert await written
    assert writer.close() is None
    assert [data for _, _, data in stored(store)[0]] == ([] if is_held else [b'[["lane","event","before",null]]'])
    assert (store.journal.get("r").status, store.journal.get("r").lease) == ("interrupted", 0)


@pytest.mark.sqlite  # it looks at the log of the file
def test_a_write_does_not_copy_the_input_of_the_run(tmp_path):
    store = RunStore(tmp_path / "runs.db")
    claim = store.journal.claim("r", "bot", b'{"task":"%s"}' % (b"x" * 1_000_000))
    store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for seq in range(1, 11):
        store.journal.append(Append("r", claim.epoch, seq, [b"[]"], events(seq)))
    assert (tmp_path / "runs.db-wal").stat().st_size < 1_000_000
    store.close()


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_a_paused_writer_holds_no_lock_on_postgres(postgres_url):
    """A write without more to do is one statement, so there is no transaction in which the process can be paused."""
    store = RunStore(postgres_url)
    claim = store.journal.claim("r", "bot", b"{}")
    begun = []
    connection = store.db._server.connection
    store.db._server.connection = lambda namespace, begin="": begun.append(begin) or connection(namespace, begin)
    try:
        store.journal.append(Append("r", claim.epoch, 1, [b"[]"], events(1)), row=served("running"))
        store.journal.renew("r", claim.epoch)
    finally:
        store.db._server.connection = connection
    assert begun == ["", ""]
    store.close()


def test_prune_deletes_ended_runs_with_the_prefix_only(open_store):
    store = open_store()
    for run_id, status in (("a1", "completed"), ("a2", "waiting"), ("b1", "completed")):
        claim = store.journal.claim(run_id, "bot", b"{}")
        store.journal.append(Append(run_id, claim.epoch, 1, [b"[]"], (), status, b"[]"))
    store.db.execute("UPDATE durable_runs SET changed = 1", write=True)
    assert store.journal.prune(1, "a") == 1
    assert sorted(run.run_id for run in store.journal.runs()) == ["a2", "b1"]
    assert store.journal.prune(1) == 1


@pytest.mark.sqlite  # PostgreSQL reads small tables without their indexes
@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM durable_runs ORDER BY changed DESC, run_id DESC LIMIT 100",
        "SELECT * FROM durable_runs WHERE status IN ('new', 'running', 'waiting', 'interrupted')",
        f"SELECT run_id FROM durable_runs WHERE changed < 5 AND status IN {tuple(RUN_STATUSES)}",
        "SELECT * FROM runs WHERE run_id >= 'a' AND run_id < 'b' OR run_id >= 'c' AND run_id < 'd'",
    ],
)
def test_questions_about_durable_runs_use_an_index(tmp_path, query):
    store = RunStore(tmp_path / "runs.db")
    store.open()
    store.close()
    with closing(sqlite3.connect(tmp_path / "runs.db")) as db, db:
        plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {query}")]
    db.close()
    assert "USING" in " ".join(plan)
    assert not [line for line in plan if line.startswith("SCAN") and "INDEX" not in line]
