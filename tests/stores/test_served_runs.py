"""RunStore: runs of a server, also recorded by the hook, and files of earlier formats."""

import os
import re
import sqlite3
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import pytest

from hookline.stores import RunRecord, RunStore, StoreError, run_stats
from hookline.stores.facts import FactWriter, Gate, ObservedRun, RunFact
from hookline.stores.leases import process_start
from hookline.stores.postgres import PostgresDatabase
from hookline.stores.retention import delete_runs, prune
from hookline.stores.run_figures import hook_figures
from hookline.stores.run_queries import _refused, refusals
from hookline.stores.runs import OPEN_STATES, STATES, IdempotencyKey, NewRun, StoredEvent, _chosen, _few_runs
from hookline.stores.sql import PerDialect, Schema

NOW = time.time()
DAY = 24 * 3600.0
ME = os.uname().nodename, os.getpid(), process_start(os.getpid())
FORMATS = Path(__file__).parent / "run_formats"


def served(id, **known):
    """A run as a server stores it."""
    known = {"created": NOW - 10, "host": ME[0], "pid": ME[1], "born": ME[2], **known}
    return RunRecord(id, "helper", "me", "talk", "served-1", id, id, "api", "the task", **known)


def observed(id, **known):
    """The same run as the hook records it."""
    known = {"status": "completed", "started": NOW - 9, "ended": NOW - 5, "created": NOW - 9, **known}
    return RunRecord(id, "helper", "", "", "served-1", id, id, "", "", **known)


def ended(id, ago=5.0, **known):
    known = {"status": "completed", "reply": "the reply", "started": NOW - ago - 4, "ended": NOW - ago, **known}
    return served(id, created=NOW - ago - 5, **known)


def model_call(id, **about):
    run = ObservedRun(id, "helper", **about)
    return RunFact(
        run, NOW, "model", model="m", source="model", input_tokens=10, output_tokens=5, cost=0.25, duration=1.0
    )


def run_fact(id, status="completed", **about):
    """The fact that a run of an agent ended."""
    return RunFact(ObservedRun(id, "helper", **about), NOW - 9, "run", outcome=status, duration=4.0)


def event(id, seq=1):
    return StoredEvent(id, seq, "run_closed", NOW, b"{}")


@pytest.fixture
def store(tmp_path):
    made = RunStore(tmp_path / "runs.db")
    yield made
    made.close()


# One row.


@pytest.mark.parametrize("hook_is_last", [True, False])
def test_a_run_that_a_server_and_the_hook_record_is_one_row_and_the_servers_values_win(store, hook_is_last):
    at_server = ended("run_1", status="failed", error="OverloadedError: try later", steps=3, cost=0.5)
    store.write([served("run_1", status="queued")], [])
    if not hook_is_last:
        store.add([observed("run_1", status="completed", steps=2)], [model_call("run_1"), run_fact("run_1")])
    store.write([at_server], [event("run_1")])
    if hook_is_last:
        store.add([observed("run_1", status="completed", steps=2)], [model_call("run_1"), run_fact("run_1")])
    assert store.runs() == [msgspec.structs.replace(at_server, observed=True)]
    assert store.get("run_1").error_type == "OverloadedError"
    totals = run_stats(store).totals
    assert (totals.runs, totals.statuses, totals.model_calls) == (1, {"completed": 1}, 1)  # how the agent ended


def test_a_server_lists_its_own_runs_and_statistics_have_those_that_the_hook_recorded(store):
    store.write([ended("served only")], [])
    store.add([observed("recorded only")], [run_fact("recorded only")])
    assert [run.id for run in store.runs(served=True)] == ["served only"]
    assert store.count(served=True) == 1
    assert (store.get("served only").is_served, store.get("recorded only").is_served) == (True, False)
    assert {run.id for run in store.runs()} == {"served only", "recorded only"}
    assert run_stats(store).totals.runs == 1


def test_a_run_without_an_end_is_interrupted_when_its_process_is_gone_and_is_ended_once(store):
    abandoned = served("run_1", status="waiting", pid=2**22 + 1, born=None)
    store.write([abandoned, served("run_2", status="waiting")], [event("run_1", 4)])
    store.add([observed("run_3", status="running", ended=None, host=ME[0], pid=2**22 + 1)], {})
    assert [(run.id, run.is_abandoned) for run in store.abandoned()] == [("run_1", True)]
    assert store.get("run_1").status == store.get("run_3").status == "interrupted"
    assert store.get("run_2").status == "waiting"

    def last(run, seq):
        return msgspec.structs.replace(run, ended=NOW, last_seq=seq), event(run.id, seq)

    assert store.close_abandoned("run_1", last).last_seq == 5
    assert store.close_abandoned("run_1", last).last_seq == 5
    assert [each.seq for each in store.events("run_1")] == [4, 5]
    assert store.close_abandoned("run_3", last) is None  # no server stored it
    assert store.abandoned() == []


# Pruning.


def test_texts_and_events_are_deleted_while_the_numbers_stay_for_the_statistics(store):
    error = "OverloadedError: the task was too long"
    store.write([ended("new")], [event("new")])
    key = IdempotencyKey("me", "key", "digest", "old", NOW)
    assert store.accept([NewRun(ended("old", 40 * DAY, status="failed", error=error), event("old"), key=key)])[0].stored
    facts = [model_call("old"), model_call("new"), run_fact("old", "failed"), run_fact("new")]
    store.add([observed("old"), observed("new")], facts)
    assert store.prune_served(30) == 1
    assert store.prune_served(30) == 0
    assert [run.id for run in store.runs(served=True)] == ["new"]
    assert (store.events("old"), len(store.events("new"))) == ([], 1)
    old = store.get("old")
    assert (old.owner, old.session, old.task, old.reply, old.reason, old.error) == (
        "",
        "",
        "",
        "",
        "",
        "OverloadedError",
    )
    with store.db.transaction() as db:
        assert db.execute("SELECT count(*) FROM idempotency_keys").fetchone() == (0,)
    assert run_stats(store).totals.statuses == {"failed": 1, "completed": 1}
    assert store.prune(30) == 1
    assert store.get("old") is None


def test_an_error_that_begins_with_a_sentence_is_deleted_with_the_other_texts(store):
    store.write([ended("old", 40 * DAY, status="failed", error="the file of Ann: gone")], [])
    store.add([observed("old")], {})
    assert store.get("old").error_type == ""
    store.prune_served(30)
    assert store.get("old").error == ""


def test_a_served_run_that_the_hook_did_not_record_is_deleted_as_a_whole(store):
    store.write([ended("old", 40 * DAY), ended("new")], [event("old")])
    assert store.prune_served(30) == 1
    assert [run.id for run in store.runs()] == ["new"]


def test_any_number_of_runs_is_deleted_a_few_in_each_transaction(store, monkeypatch):
    monkeypatch.setattr("hookline.stores.retention.AT_ONCE", 3)
    store.write([ended(f"run_{n}", 40 * DAY) for n in range(7)], [event(f"run_{n}") for n in range(7)])
    store.add([observed(f"run_{n}") for n in range(0, 7, 2)], {})
    assert store.prune_served(30) == 7
    assert (store.count(served=True), store.count()) == (0, 4)
    with store.db.transaction() as db:
        assert db.execute("SELECT count(*) FROM events").fetchone() == (0,)


@pytest.mark.parametrize(("seconds", "steps"), [(0.0, [4, 1, 1, 1]), (1e9, [4, 3])])
def test_a_step_that_took_long_is_followed_by_a_smaller_one(store, monkeypatch, seconds, steps):
    for name, value in {"AT_ONCE": 4, "FEWEST": 1, "STEP_SECONDS": seconds}.items():
        monkeypatch.setattr(f"hookline.stores.retention.{name}", value)
    store.write([ended(f"run_{n}", 40 * DAY) for n in range(7)], [])
    assert [deleted for deleted in store.tidy(30) if deleted] == steps
    times = {"created": NOW - 41 * DAY, "ended": NOW - 40 * DAY}
    store.add([observed(f"seen_{n}", **times) for n in range(7)], [])
    assert [deleted for deleted in prune(store.db, NOW - 30 * DAY) if deleted] == steps


def test_a_new_run_does_not_wait_for_the_deletion_of_old_ones(postgres_url):
    store = RunStore(postgres_url)
    store.write([ended("old", 40 * DAY)], [event("old")])
    with store.db.transaction(write=True, lock=None) as db:
        delete_runs(db, ["old"])  # as a step does, and not committed yet
        assert store.accept([NewRun(served("new"), event("new"), b"{}")], limit=5)[0].stored
        assert store.begin(served("new")) is None
        store.write([ended("new")], [event("new", 2)])
    assert {run.id for run in store.runs()} == {"new"}
    store.close()


def test_one_process_at_a_time_deletes_old_runs_and_only_when_that_is_due(store, monkeypatch):
    monkeypatch.setattr("hookline.stores.retention.AT_ONCE", 1)
    store.write([ended(f"old_{n}", 40 * DAY) for n in range(3)], [])
    other = RunStore(store.path) if not store.db.is_shared else store
    steps = store.tidy(30)
    assert next(filter(None, steps)) == 1  # after the statistics
    assert list(other.tidy(30)) == []  # the statistics are done, and nobody else may delete runs
    steps.close()  # the process stops before it is done
    assert sum(other.tidy(30)) == 2
    store.write([ended("old_4", 40 * DAY)], [])
    assert list(store.tidy(30)) == []
    monkeypatch.setattr("hookline.stores.runs.TIDY_SECONDS", 0.0)
    assert sum(store.tidy(30)) == 1


def test_a_lease_that_is_not_renewed_is_taken_over(store, monkeypatch):
    monkeypatch.setattr("hookline.stores.retention.LEASE_SECONDS", -1.0)
    monkeypatch.setattr("hookline.stores.retention.AT_ONCE", 1)
    store.write([ended(f"old_{n}", 40 * DAY) for n in range(3)], [])
    hung = store.tidy(30)
    assert next(filter(None, hung)) == 1
    assert sum(store.tidy(30)) == 2
    store.write([ended("old_9", 40 * DAY)], [])
    assert list(hung) == []  # it has lost its lease
    assert store.get("old_9") is not None


def test_what_the_hook_recorded_is_deleted_while_the_server_keeps_the_run(store):
    store.write([ended("run_1", 10 * DAY)], [event("run_1")])
    store.add([observed("run_1", ended=NOW - 10 * DAY)], [model_call("run_1")])
    assert store.prune(7) == 1
    assert store.prune(7) == 0
    assert store.get("run_1").reply == "the reply"
    assert len(store.events("run_1")) == 1
    assert store.calls("run_1") == []
    assert run_stats(store).totals.runs == 0


def test_keep_days_count_from_the_end_of_a_run(store):
    times = {"created": NOW - 40 * DAY, "started": NOW - 40 * DAY, "ended": NOW - DAY}
    store.write([served("run_1", status="completed", **times)], [event("run_1")])
    store.add([observed("run_1", **times), observed("run_2", **times)], [model_call("run_2")])
    assert (store.prune_served(30), store.prune(30)) == (0, 0)
    assert (len(store.events("run_1")), len(store.calls("run_2"))) == (1, 1)


def test_prune_served_never_deletes_a_running_run(store):
    store.write([served("run_1", status="waiting", created=NOW - 90 * DAY)], [event("run_1")])
    assert store.prune_served(30) == 0
    assert len(store.events("run_1")) == 1


# Long lists.


def plan(store, **chosen):
    source, values = _chosen({"outermost": True, **chosen})
    query = f"EXPLAIN QUERY PLAN SELECT * FROM {source} ORDER BY created DESC, run_id DESC LIMIT 50"
    with store.db.transaction() as db:
        return " ".join(row[-1] for row in db.execute(query, values))


@pytest.mark.parametrize("owner", [None, "me"])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.sqlite
def test_runs_in_a_state_are_found_by_an_index_and_not_sorted(store, state, owner):
    found = plan(store, states=(state,), owner=owner)
    if state in OPEN_STATES:
        assert "USING INDEX open_by_status" in found
    elif owner is None:
        assert "USING INDEX ended_by_status" in found
    assert "SEARCH runs USING INDEX" in found
    assert "TEMP B-TREE" not in found


@pytest.mark.parametrize(
    ("chosen", "index"),
    [
        ({}, "runs_by_time"),
        ({"owner": "me"}, "runs_by_owner"),
        ({"session_id": "served-1"}, "runs_by_session"),
        ({"agent": "helper"}, "runs_by_agent"),
        ({"states": OPEN_STATES}, "open_runs"),
        ({"correlation_id": "c"}, "runs_by_correlation"),
    ],
)
@pytest.mark.sqlite
def test_lists_come_from_an_index_in_their_order(store, chosen, index):
    found = plan(store, **chosen)
    assert f"USING INDEX {index}" in found
    assert "TEMP B-TREE" not in found


FILTERS = [
    {"tool": "shell"},
    {"hook": "guard"},
    {"verb": "block"},
    {"hook": "guard", "verb": "block"},
    {"verb": "shadow"},
    {"model": "small"},
    {"tool": "shell", "owner": "me", "states": ("failed",)},
    *(
        {"owner": owner, "states": states}
        for owner in (None, "me")
        for states in (("failed",), ("failed", "completed"))
    ),
    {"agent": "helper", "states": ("failed", "cancelled")},
    {"origin": "library"},
    {"session_id": "served-1"},
]


def plans(store, db, statement, values):
    """Return how a database finds rows; on PostgreSQL, how it would find them in tables with many rows."""
    if store.db.is_shared:
        db.execute("SET LOCAL enable_seqscan = off")
        db.execute("SET LOCAL enable_sort = off")
    command = "EXPLAIN" if store.db.is_shared else "EXPLAIN QUERY PLAN"
    return " / ".join(row[-1] for row in db.execute(f"{command} {statement}", values).fetchall())


@pytest.mark.parametrize("chosen", FILTERS, ids=str)
def test_no_filter_of_runs_reads_a_whole_table_or_sorts_many_rows(store, chosen):
    seen = []
    with store.db.transaction() as db:

        class Watched:
            def execute(self, statement, values=()):
                seen.append(plans(store, db, statement, values))
                return db.execute(statement, values)

        store._listed(Watched(), 50, "", chosen, _few_runs(Watched(), chosen))
        store._listed(Watched(), 50, "run_1", chosen, None)
        store._listed(Watched(), 50, "", chosen, ["run_1", "run_2"])
    for plan in seen:
        assert "Seq Scan" not in plan
        scans = re.findall(
            r"SCAN (?!runs USING INDEX|part\b|f USING (?:COVERING )?INDEX (?:facts_with_several|shadow_facts))[^/]*",
            plan,
        )
        assert scans == [], plan


@pytest.mark.parametrize("chosen", [{}, {"verb": "block"}, {"tool": "shell"}, {"model": "small"}], ids=str)
@pytest.mark.sqlite
def test_a_search_by_what_happened_reads_no_rows_of_other_runs(store, chosen):
    source, values = _chosen({"outermost": True, **chosen})
    with store.db.transaction() as db:
        found = plans(store, db, f"SELECT run_id FROM {source} ORDER BY created DESC, run_id DESC LIMIT 50", values)
    assert "SCAN runs USING COVERING INDEX runs_by_time" in found


@pytest.mark.parametrize(
    "chosen", [{}, {"verb": "block"}, {"hook": "h"}, {"tool": "t"}, {"owner": "me"}, {"agent": "a"}], ids=str
)
def test_no_filter_of_refusals_reads_a_whole_table(store, chosen):
    with store.db.transaction() as db:

        class Watched:
            def execute(self, statement, values=()):
                plan = plans(store, db, statement, values)
                assert "Seq Scan" not in plan
                assert "SCAN facts" not in re.sub(r"SCAN facts USING (COVERING )?INDEX refused", "", plan)
                return db.execute(statement, values)

        assert list(_refused(Watched(), chosen, "", 50)) == []
        assert list(_refused(Watched(), chosen, "17.0", 50)) == []


def watch_plans(store, monkeypatch):
    """Return a list to which the plans of all statements in transactions are added."""
    seen, transaction = [], store.db.transaction

    @contextmanager
    def watched(**options):
        with transaction(**options) as db:

            class Watched:
                def execute(self, statement, values=()):
                    seen.append(plans(store, db, statement, values))
                    return db.execute(statement, values)

            yield Watched()

    monkeypatch.setattr(store.db, "transaction", watched)
    return seen


def test_the_deletion_of_old_records_reads_no_whole_table(store, monkeypatch):
    store.write([ended(f"old_{n}", 40 * DAY) for n in range(3)], [event("old_1")])
    store.add([observed("seen", created=NOW - 41 * DAY, ended=NOW - 40 * DAY)], [model_call("seen")])
    refused = {"hook": "h", "verb": "block", "refused": True, "gates": (Gate("h", "guard", "block", 1, "no", True),)}
    store.add([], [RunFact(ObservedRun("old_1", owner="me"), NOW - 40 * DAY, "fire", **refused)])
    monkeypatch.setattr(store, "keep_days", 30)
    monkeypatch.setattr("hookline.stores.runs.TIDY_SECONDS", 0.0)
    list(FactWriter(store.db).roll_up())
    seen = watch_plans(store, monkeypatch)
    assert sum(store.tidy(30)) == 4
    assert store.db.execute("SELECT 1 FROM rollups WHERE kind = 'refusal'") == []
    assert len(seen) > 20
    seen = [plan for plan in seen if "new_sums" not in plan]  # it has few rows at any time
    whole = [plan for plan in seen if "Seq Scan" in plan or re.search(r"SCAN (?!owners|periodic_work|CONSTANT)", plan)]
    assert whole == []
    sums = [plan for plan in seen if "rollups" in plan and "owners" not in plan]
    assert [plan for plan in sums if not re.search(r"owner\W|owner =|refusal_rollups", plan)] == []


def test_statistics_read_only_the_sums_of_their_time(store, monkeypatch):
    store.add([observed("seen"), observed("old", created=NOW - 40 * DAY)], [model_call("seen")])
    seen = watch_plans(store, monkeypatch)
    # A month that begins at noon, at any time of the day: its first half day is read by the hour, the rest by the day.
    run_stats(store, since=(NOW - 30 * DAY) // DAY * DAY + DAY / 2)
    hook_figures(store, "month")
    sums = [plan for plan in seen if "rollups" in plan]
    assert len(sums) > 4
    assert [plan for plan in sums if not re.search(r"Index Cond: [^/]*began >=|began>\?", plan)] == []


@pytest.mark.sqlite
def test_statistics_read_no_runs_that_have_ended(store, monkeypatch):
    store.add([observed("seen")], [model_call("seen")])
    seen = watch_plans(store, monkeypatch)
    assert run_stats(store, since=NOW - 30 * DAY).totals.model_calls == 1
    of_runs = [plan for plan in seen if re.search(r"(SCAN|SEARCH) runs", plan)]
    # The first run of the time is the first one in an index by time, and so is the first run of all.
    by_time = ["observed_by_time"] * 2
    assert [re.search(r"INDEX (\w+)", plan)[1] for plan in of_runs] == ["open_runs", *by_time]
    assert not any("TEMP B-TREE" in plan for plan in of_runs)


def test_runs_are_chosen_by_state_and_owner(store):
    runs = [served(f"run_{n}", status=state, created=float(n + 1)) for n, state in enumerate(OPEN_STATES)]
    runs += [ended("run_8", status="failed"), msgspec.structs.replace(ended("run_9"), owner="other")]
    store.write(runs, [])

    def found(*states, **chosen):
        assert store.count(served=True, states=states, **chosen) == len(store.runs(states=states, **chosen))
        return [run.id for run in store.runs(served=True, states=states, **chosen)]

    assert found("waiting") == ["run_2"]
    assert found(*OPEN_STATES) == ["run_2", "run_1", "run_0"]
    assert found("failed", "completed") == ["run_9", "run_8"]
    assert found("failed", "queued", owner="me") == ["run_8", "run_0"]
    assert found("completed", owner="me") == []
    assert found("completed", owner="other") == ["run_9"]


def test_statistics_of_a_caller_are_those_of_its_runs_and_their_subagents(store):
    store.write([ended("run_1"), msgspec.structs.replace(ended("run_2"), owner="other")], [])
    nested = [observed("sub_1", parent_run_id="run_1"), observed("sub_2", parent_run_id="sub_1")]
    own = [observed("run_1"), observed("run_2"), observed("alone")]
    ids = ["run_1", "sub_1", "sub_2", "run_2", "alone"]
    whose = {"run_1": "me", "sub_1": "me", "sub_2": "me", "run_2": "other"}
    facts = [fact(id, owner=whose.get(id, "")) for id in ids for fact in (model_call, run_fact)]
    store.add([*own, *nested], facts)
    assert run_stats(store).totals.model_calls == run_stats(store).totals.runs == 5
    mine = run_stats(store, owner="me")
    assert (mine.totals.model_calls, mine.totals.runs, mine.models[0].calls) == (3, 3, 3)
    assert run_stats(store, owner="other", since=NOW - 3600).totals.model_calls == 1
    assert run_stats(store, owner="nobody").totals.runs == 0
    assert run_stats(store, owner="").totals.runs == 0


def test_a_run_that_was_ended_because_its_process_died_stays_in_the_statistics(store):
    store.write([served("run_1", status="running", started=NOW - 9, pid=2**22 + 1, born=None)], [event("run_1")])
    store.add([observed("run_1", status="running", ended=None)], [model_call("run_1")])
    assert run_stats(store).totals.statuses == {"interrupted": 1}

    def last(run, seq):
        return msgspec.structs.replace(run, status="interrupted", ended=NOW, elapsed=9.0, last_seq=seq), event(
            run.id, seq
        )

    store.close_abandoned("run_1", last)
    assert run_stats(store).totals.statuses == {"interrupted": 1}
    assert run_stats(store).totals.p50 == pytest.approx(9.0, rel=0.1)


# Files of earlier formats.


def of_format(path, name):
    """A file as an earlier version of Hookline left it."""
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript((FORMATS / f"{name}.sql").read_text())
    db.close()
    return path


def schema(path):
    with closing(sqlite3.connect(path)) as db, db:
        found = db.execute("SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'").fetchall()
    db.close()
    return {(kind, name): " ".join(sql.replace('"', "").split()) for kind, name, sql in found}


def contents(path):
    """The rows of all tables, each as a dict."""
    with closing(sqlite3.connect(path)) as db, db:
        db.row_factory = sqlite3.Row
        tables = [name for kind, name in schema(path) if kind == "table"]
        found = {name: [dict(row) for row in db.execute(f"SELECT * FROM {name}")] for name in tables}
    db.close()
    return found


@pytest.mark.parametrize("name", ["statistics_1", "served_1", "runs_3", "runs_5"])
@pytest.mark.sqlite
def test_a_file_of_an_earlier_format_gets_the_tables_of_a_new_one(tmp_path, store, name):
    store.open()
    path = of_format(tmp_path / "old.db", name)
    RunStore(path).open()
    assert schema(path) == schema(store.path)


@pytest.mark.sqlite
def test_statistics_of_the_earlier_format_are_converted_and_nothing_is_lost(tmp_path):
    path = of_format(tmp_path / "runs.db", "statistics_1")
    store = RunStore(path)
    done, left = store.get("run_1"), store.get("run_2")
    assert (done.status, done.stop, done.steps, done.cost, done.elapsed) == ("failed", "error", 2, 0.5, 4.0)
    assert (done.error, done.parent_run_id, done.started, done.created) == ("Overloaded", "run_0", 100.0, 100.0)
    assert (left.status, left.ended, left.steps) == ("interrupted", None, 0)
    found = run_stats(store)
    assert found.totals.statuses == {"failed": 1, "interrupted": 1}
    assert (found.models[0].calls, found.tools[0].tool, found.errors[0].type) == (1, "add", "Overloaded")
    assert (found.refusals[0].reason, found.approvals[0].decisions) == ("no", {"approved": 1})
    store.add([observed("run_9")])
    assert [run.id for run in store.runs()] == ["run_9", "run_2", "run_1"]
    store.close()
    assert RunStore(path).get("run_1") == done


@pytest.mark.sqlite
def test_a_file_of_format_3_is_converted_and_nothing_is_lost(tmp_path):
    path = of_format(tmp_path / "runs.db", "runs_3")
    before = contents(path)
    assert {name: len(rows) for name, rows in before.items() if rows} == {
        **{"runs": 3, "events": 45, "idempotency_keys": 2, "durable_runs": 1, "journal": 3, "agent_versions": 1},
        **{"model_calls": 6, "tool_calls": 3, "verdicts": 1, "errors": 1},
    }
    store = RunStore(path)
    durable, alone, blocked = store.runs()
    assert [each.task for each in store.runs(served=True)] == ["old.txt", "secret"]
    assert (durable.reply, alone.is_served, blocked.observed) == ("It says: old.txt is gone", False, True)
    assert [each.seq for each in store.events(blocked.id)] == list(range(1, blocked.last_seq + 1))
    assert (run_stats(store).totals.runs, store.verdicts(blocked.id)[0].reason) == (3, "rule 3")
    store.close()
    after = contents(path)
    moved = {name: before.pop(name) for name in ("model_calls", "tool_calls", "verdicts", "approvals", "errors")}
    for name, rows in before.items():
        assert [{column: row[column] for column in rows[0]} for row in after[name]] == rows if rows else not after[name]
    assert not moved.keys() & after.keys()
    kinds = Counter(row["kind"] for row in after["facts"])
    assert kinds == {"model": 6, "tool": 3, "fire": 1, "error": 1, "run": 3}


@pytest.mark.sqlite
def test_a_file_of_format_5_is_converted_to_facts_and_nothing_is_lost(tmp_path):
    path = of_format(tmp_path / "runs.db", "runs_5")
    before = contents(path)
    store = RunStore(path)
    runs = {run.id: run for run in store.runs(served=False)}
    found = {kind: [fact for id in runs for fact in store.facts(id) if fact.kind == kind] for kind in KINDS}
    for kind, table in KINDS.items():
        assert sorted(fact.at for fact in found[kind]) == sorted(row["at"] for row in before[table]), kind
    call = found["model"][-1]
    (old,) = (row for row in before["model_calls"] if (row["run_id"], row["at"]) == (call.run.run_id, call.at))
    for column, field in {"verdict": "verb", "finish_reason": "outcome"}.items():
        assert getattr(call, field) == old.pop(column)
    assert all(getattr(call, column) == value for column, value in old.items() if column != "run_id")
    assert [(fact.hook, fact.verb, fact.refused, fact.tool, fact.reason) for fact in found["fire"]].count(
        ("no_secrets", "block", True, "delete", "rule 3")
    ) == 2
    (nested,) = (run for run in runs.values() if run.parent_run_id)
    assert {(fact.run.agent, fact.run.asked) for fact in store.facts(nested.id)} == {("inner", "outer")}

    stats = run_stats(store)
    assert (stats.totals.runs, stats.totals.model_calls, stats.totals.tool_calls) == (6, 10, 5)
    assert stats.totals.unpriced == sum(row["cost"] is None for row in before["model_calls"])
    assert stats.totals.input_tokens == sum(row["input_tokens"] for row in before["model_calls"])
    assert [(each.hook, each.tool, each.reason, each.count) for each in stats.refusals] == [
        ("no_secrets", "delete", "rule 3", 2),
        ("", "delete", "", 1),
    ]
    assert {each.hook: each.verbs for each in stats.hooks} == {"no_secrets": {"block": 2}, "ask": {"ask": 1}}
    assert [each.decisions for each in stats.approvals] == [{"denied": 1}]
    assert ("model", "TimeoutError", 1) in {(each.place, each.type, each.fatal) for each in stats.errors}
    times = sorted(row["duration"] for row in before["model_calls"])
    assert stats.models[0].p50 == pytest.approx(times[(len(times) * 50 + 99) // 100 - 1], rel=0.1)
    assert run_stats(store, owner="key_other").refusals[0].count == 1

    first = min(run.created for run in runs.values())
    assert run_stats(store, since=first).models == run_stats(store, since=first - 3600).models == stats.models
    assert [each.verb for each in store.verdicts(nested.id)] == ["ask", "denied"]
    store.close()


@pytest.mark.sqlite
def test_refusals_in_format_5_that_only_a_server_stored_are_kept(tmp_path):
    path = of_format(tmp_path / "runs.db", "runs_5")
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE runs SET observed = 0")
        db.execute("DELETE FROM verdicts")
        db.execute("DELETE FROM approvals")
    store = RunStore(path)
    found = sorted((each.hook, each.verb, each.tool, each.owner) for each in refusals(store, 10))
    assert found == [
        ("no_secrets", "block", "delete", "key_me"),
        ("no_secrets", "block", "delete", "key_other"),
    ]
    store.close()


KINDS = {
    "model": "model_calls",
    "tool": "tool_calls",
    "fire": "verdicts",
    "approval": "approvals",
    "error": "errors",
}
"""The kinds of facts, and the tables in which format 5 had them."""


@pytest.mark.sqlite
def test_tables_of_format_5_in_postgresql_are_converted_like_those_of_a_file(tmp_path, postgres_url):
    path = of_format(tmp_path / "runs.db", "runs_5")
    rowid = PerDialect("", "ALTER TABLE verdicts ADD COLUMN rowid BIGINT GENERATED BY DEFAULT AS IDENTITY")
    found = sorted(schema(path).items(), key=lambda item: item[0][0] == "index")
    new = RunStore(path).db.schema
    old = Schema(
        "runs",
        contents="runs",
        application_id=new.application_id,
        version=5,
        statements=[*(sql for _, sql in found), rowid],
    )
    database = PostgresDatabase(postgres_url, old)
    with database.transaction(write=True) as db:
        for table, rows in contents(path).items():
            for row in rows:
                db.execute(
                    f"INSERT INTO {table} ({', '.join(row)}) VALUES ({','.join('?' * len(row))})", [*row.values()]
                )
        db.execute("DELETE FROM hookline_writers")  # as if another process had written them, and had ended
    database.close()
    store, file = RunStore(postgres_url), RunStore(path)
    assert store.db.upgrade()
    assert msgspec.to_builtins(run_stats(store)) == near(msgspec.to_builtins(run_stats(file)))
    assert msgspec.to_builtins(run_stats(store, owner="key_me")) == near(
        msgspec.to_builtins(run_stats(file, owner="key_me"))
    )
    for run in file.runs():
        assert store.facts(run.id) == file.facts(run.id)
    store.close()
    file.close()


def near(value):
    """The same value, but sums of numbers may have been added in another order."""
    if isinstance(value, dict):
        return {key: near(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(near, value))
    return pytest.approx(value) if isinstance(value, float) else value


@pytest.mark.sqlite
def test_a_servers_file_of_the_earlier_format_is_converted_and_nothing_is_lost(tmp_path):
    store = RunStore(of_format(tmp_path / "server.db", "served_1"), pinned=True)
    (run,) = store.runs(served=True, owner="me")
    assert (run.id, run.task, run.reply, run.status, run.last_seq) == ("run_1", "the task", "the reply", "completed", 2)
    assert (run.elapsed, run.cost, run.reason) == (4.0, 0.5, "why")
    assert [each.data for each in store.events("run_1")] == [b"{}", b"[]"]
    assert store.key("me", "key") == IdempotencyKey("me", "key", "digest", "run_1", 100.0)
    assert [each.url for each in store.push_subscriptions.for_run("run_1")] == ["https://example.com"]
    assert run_stats(store).totals.runs == 0
    store.close()


@pytest.mark.parametrize("name", ["statistics_1", "served_1"])
@pytest.mark.sqlite
def test_a_file_that_several_open_at_once_is_converted_once(tmp_path, name):
    path = of_format(tmp_path / "runs.db", name)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: RunStore(path).get("run_1"), range(4)))
    assert found == [found[0]] * 4
    assert found[0] is not None


@pytest.mark.sqlite
def test_a_file_of_an_earlier_format_that_may_not_be_written_says_what_to_do(tmp_path):
    store = RunStore(of_format(tmp_path / "runs.db", "statistics_1"))
    wanted = "earlier format, and its folder is read-only: make the file and its folder writable"
    with pytest.raises(StoreError, match=wanted), store.db._immutable():  # as it is read in a read-only folder
        pass


@pytest.mark.sqlite
def test_a_conversion_that_fails_leaves_the_file_as_it_was(tmp_path):
    path = of_format(tmp_path / "runs.db", "statistics_1")
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE events (somebody_elses)")
    db.close()
    before = schema(path)
    with pytest.raises(StoreError, match="was changed by another program: move it away"):
        RunStore(path).open()
    assert schema(path) == before
    with closing(sqlite3.connect(path)) as db, db:
        assert db.execute("SELECT run_id FROM runs").fetchall() == [("run_1",), ("run_2",)]
    db.close()


@pytest.mark.sqlite
def test_a_file_of_a_newer_format_is_left_alone_and_says_what_to_do(tmp_path, store):
    store.open()
    store.close()
    with closing(sqlite3.connect(store.path)) as db, db:
        db.execute("PRAGMA user_version = 99")
        db.execute("UPDATE hookline_schema SET min_writer = 99")
    db.close()
    with pytest.raises(StoreError, match=r"written by a newer Hookline \(format 99\): update Hookline"):
        RunStore(store.path).runs()


# Files that were moved.


@pytest.mark.sqlite
def test_a_pinned_store_refuses_to_write_where_another_one_starts_a_new_file(tmp_path):
    pinned, loose = RunStore(tmp_path / "a.db", pinned=True), RunStore(tmp_path / "b.db")
    for store in (pinned, loose):
        store.write([ended("run_1")], [])
        Path(store.path).rename(f"{store.path}.away")
    with pytest.raises(StoreError, match="was moved or deleted while in use: put it back"):
        pinned.write([ended("run_2")], [])
    assert pinned.get("run_1") is not None
    loose.write([ended("run_2")], [])
    assert [run.id for run in loose.runs()] == ["run_2"]
    pinned.close()
    loose.close()
