"""RunStore and run_stats: recorded runs, pruning, statistics, and damaged files."""

import os
import re
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from uuid import UUID

import pytest

from hookline.stores import RunRecord, RunStore, StoreError, leases, run_stats
from hookline.stores.leases import is_process_running
from hookline.stores.runs import PARTS
from tests.environment import with_source

ROOT = Path(__file__).parents[2]
NOW = time.time()


def run_row(run_id, started=NOW - 10, *, ended=NOW - 5, status="completed", pid=None, host="here", agent="a", cost=0.5):
    """A run as the hook records it."""
    return RunRecord(
        run_id,
        agent,
        "",
        "",
        "s",
        run_id,
        run_id,
        "",
        "",
        status=status,
        stop=status,
        steps=2,
        tool_calls=1,
        input_tokens=10,
        output_tokens=5,
        cost=cost,
        created=started,
        started=started,
        ended=ended,
        elapsed=None if ended is None else ended - started,
        host=host,
        pid=os.getpid() if pid is None else pid,
    )


def model_row(run_id, *, at=NOW - 6, model="m", source="model", cost=0.25, duration=1.0, verdict="cont", tokens=10):
    return (run_id, at, 0, 1, "step", model, "p", "", source, verdict, "stop", tokens, 5, 0, cost, duration)


def tool_row(run_id, *, tool="t", outcome="ok", duration=1.0, at=NOW - 6):
    return (run_id, at, "c", 1, tool, outcome, duration)


@pytest.fixture
def store(tmp_path):
    made = RunStore(tmp_path / "sub" / "runs.db")
    yield made
    made.close()


def add(store, *rows, **parts):
    store.add(rows, parts)


@pytest.mark.sqlite
def test_the_file_is_created_when_first_used_and_readable_by_its_owner_only(store):
    path = Path(store.path)
    assert not path.parent.exists()
    store.open()
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_newest_run_comes_first(store):
    add(store, *(run_row(f"run_{n}", NOW - n) for n in range(30)))
    assert [row.id for row in store.runs(3)] == ["run_0", "run_1", "run_2"]
    assert store.runs(1)[0].cost == 0.5


def test_a_finished_run_replaces_its_unfinished_row(store):
    add(store, run_row("run_1", ended=None, status="running"))
    add(store, run_row("run_1"))
    assert [(row.id, row.status) for row in store.runs()] == [("run_1", "completed")]


def test_a_run_is_found_by_the_beginning_of_its_id(store):
    add(store, run_row("run_ab"), run_row("run_ac", NOW - 1), run_row("run_a"))
    assert store.find("run_ab").id == "run_ab"
    assert store.find("run_a").id == "run_a"
    assert store.find("last").id == "run_ac"
    with pytest.raises(StoreError, match="more than one run begins with 'run'"):
        store.find("run")
    for nothing in ("run_x", "%", "\ud800"):
        with pytest.raises(StoreError, match="there is no run"):
            store.find(nothing)


def test_calls_come_in_the_order_in_which_they_began(store):
    add(
        store,
        run_row("r"),
        model_calls=[model_row("r", at=NOW), model_row("r", at=NOW - 5, verdict="retry")],
        tool_calls=[tool_row("r", at=NOW - 1, duration=2.0), tool_row("other")],
    )
    calls = [(call.kind, call.outcome) for call in store.calls("r")]
    assert calls == [("model", "retry"), ("tool", "ok"), ("model", "stop")]


def test_prune_deletes_old_runs_with_all_their_rows(store):
    old = NOW - 8 * 86400
    for run_id, at in (("old", old), ("new", NOW - 5)):
        parts = {
            "model_calls": [model_row(run_id)],
            "tool_calls": [tool_row(run_id)],
            "verdicts": [(run_id, at, "before_tool", "c", "h", "guard", "block", "", None, 1)],
            "approvals": [(run_id, at, "c", "t", "denied", "h", 1.0)],
            "errors": [(run_id, at, "tool", "Blocked", "h", "c", 0)],
        }
        assert set(parts) == set(PARTS)
        add(store, run_row(run_id, at - 1, ended=at), **parts)
    assert store.prune(7) == 1
    assert [row.id for row in store.runs()] == ["new"]
    with store.db.transaction() as db:
        for table in PARTS:
            assert db.execute(f"SELECT DISTINCT run_id FROM {table}").fetchall() == [("new",)]
    assert store.prune(7) == 0


def test_a_store_with_keep_days_prunes_when_it_is_written(tmp_path):
    store = RunStore(tmp_path / "runs.db", keep_days=7)
    add(store, run_row("old", NOW - 9 * 86400, ended=NOW - 8 * 86400), run_row("new"))
    assert [row.id for row in store.runs()] == ["new"]
    store.close()


@pytest.mark.parametrize("days", [0, -1, True, "7", float("nan"), float("inf"), 10**9])
def test_an_invalid_number_of_days_is_refused(store, days):
    with pytest.raises(StoreError, match="number of days must be positive"):
        RunStore(":memory:", keep_days=days)
    for prune in (store.prune, store.prune_served):
        with pytest.raises(StoreError, match="number of days must be positive"):
            prune(days)


def test_values_that_sqlite_cannot_store_are_converted(store):
    add(store, run_row("run_\ud800"), model_calls=[model_row("run_x", tokens=2**70, cost=float("nan"))])
    assert store.runs()[0].id == "run_?"
    assert run_stats(store).totals.runs == 1


@pytest.mark.parametrize("odd", ["run_\ud800", UUID(int=7)])
def test_one_value_that_sqlite_cannot_store_loses_and_duplicates_no_row(store, odd):
    add(store, model_calls=[model_row("r", at=float(n)) for n in range(300)] + [model_row(odd)])
    with store.db.transaction() as db:
        assert db.execute("SELECT count(*) FROM model_calls").fetchone() == (301,)


def test_all_of_many_rows_are_stored(store):
    for count in (0, 1, 3, 4, 31, 33, 255, 256, 700):
        add(store, model_calls=[model_row("r", at=float(n)) for n in range(count)])
    with store.db.transaction() as db:
        assert db.execute("SELECT count(*) FROM model_calls").fetchone() == (1283,)


# Unfinished runs.


def test_an_unfinished_run_is_running_while_its_process_is(store, monkeypatch):
    monkeypatch.setattr(leases, "gethostname", lambda: "here")
    add(
        store,
        run_row("mine", time.time(), ended=None, status="running"),
        run_row("killed", ended=None, status="running", pid=dead_pid()),
        run_row("elsewhere", ended=None, status="running", host="there"),
        run_row("elsewhere, long ago", NOW - 2 * 86400, ended=None, status="running", host="there"),
    )
    assert {row.id: row.status for row in store.runs()} == {
        "mine": "running",
        "killed": "interrupted",
        "elsewhere": "running",
        "elsewhere, long ago": "interrupted",
    }
    assert run_stats(store).totals.statuses == {"running": 2, "interrupted": 2}


def dead_pid():
    """The pid of a process that has ended."""
    return int(
        subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True).stdout
    )


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="this system does not tell when a process began")
def test_a_process_that_reuses_the_pid_of_a_dead_one_is_not_mistaken_for_it():
    from socket import gethostname

    assert is_process_running(gethostname(), os.getpid(), time.time())
    assert not is_process_running(gethostname(), os.getpid(), NOW - 10 * 86400)


# Unusable files.


@pytest.mark.sqlite
def test_a_file_of_another_program_is_refused(tmp_path):
    path = tmp_path / "runs.db"
    path.write_text("not a database, but long enough to look like one" * 100)
    with pytest.raises(StoreError, match="is not a SQLite database"):
        RunStore(path).open()
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE mine (x)")
    db.close()
    with pytest.raises(StoreError, match="not one of runs"):
        RunStore(other).runs()


@pytest.mark.sqlite
def test_a_folder_in_place_of_the_file_is_an_error(tmp_path):
    with pytest.raises(StoreError):
        RunStore(tmp_path).open()


@pytest.mark.slow
def test_two_processes_write_one_file(tmp_path):
    path = tmp_path / "runs.db"
    code = (
        "import sys\nfrom hookline import Agent, ScriptedModel\nfrom hookline.hooks import ObservabilityHook\n"
        "h = ObservabilityHook(sys.argv[1])\n"
        "a = Agent('a', llm=ScriptedModel(['x'], loop=True), hooks=[h])\n"
        "for _ in range(40): a.run('x'); h.flush()\n"
        "assert h.problem() is None\n"
    )
    env = with_source()
    both = [subprocess.Popen([sys.executable, "-c", code, str(path)], env=env) for _ in range(2)]
    assert [process.wait(60) for process in both] == [0, 0]
    store = RunStore(path)
    assert run_stats(store).totals.statuses == {"completed": 80}
    store.close()


# Statistics.


def test_statistics_of_an_empty_store_are_zero(store):
    stats = run_stats(store)
    assert (stats.totals.runs, stats.totals.cost, stats.totals.p50) == (0, 0.0, None)
    assert (stats.models, stats.tools, stats.hooks, stats.timeline) == ((), (), (), ())


def test_percentiles_are_exact(store):
    rows = [model_row("r", duration=float(n)) for n in range(1, 21)]
    add(store, run_row("r"), model_calls=[*reversed(rows), model_row("r", model="one", duration=3.0)])
    by_model = {model.model: (model.p50, model.p95) for model in run_stats(store).models}
    assert by_model == {"m": (10.0, 19.0), "one": (3.0, 3.0)}


def test_a_reply_from_a_hook_does_not_count_as_a_model_call(store):
    add(store, run_row("r"), model_calls=[model_row("r"), model_row("r", source="cache", cost=0.0)])
    stats = run_stats(store)
    assert (stats.totals.model_calls, stats.totals.input_tokens, stats.totals.cost) == (1, 10, 0.25)


def test_calls_with_unknown_costs_are_counted(store):
    add(store, run_row("r"), model_calls=[model_row("r"), model_row("r", cost=None)])
    stats = run_stats(store)
    assert (stats.totals.cost, stats.totals.unpriced, stats.models[0].unpriced) == (0.25, 1, 1)


def test_statistics_can_be_filtered_by_time_agent_and_model(store):
    add(
        store,
        run_row("old", NOW - 5000, ended=NOW - 4000),
        run_row("new", agent="b"),
        model_calls=[model_row("old", model="x"), model_row("new", model="x"), model_row("new", model="y")],
        tool_calls=[tool_row("old"), tool_row("new", tool="u", outcome="error")],
    )
    assert run_stats(store, since=NOW - 100).totals.runs == 1
    assert [tool.tool for tool in run_stats(store, agent="b").tools] == ["u"]
    assert [(m.model, m.calls) for m in run_stats(store, model="x").models] == [("x", 2)]
    assert run_stats(store, model="y").totals.runs == 1
    assert run_stats(store, agent="nobody").totals.runs == 0


def test_tool_calls_are_counted_by_outcome_and_timed_if_they_ran(store):
    rows = [
        tool_row("r", duration=2.0),
        tool_row("r", outcome="error", duration=4.0),
        tool_row("r", outcome="blocked", duration=0.0),
    ]
    add(store, run_row("r"), tool_calls=rows)
    (stats,) = run_stats(store).tools
    assert (stats.calls, stats.outcomes, stats.p50, stats.p95) == (3, {"ok": 1, "error": 1, "blocked": 1}, 2.0, 4.0)


def test_errors_and_refusals_are_counted_with_their_last_time(store):
    add(
        store,
        run_row("r"),
        errors=[("r", float(at), "model", "RateLimitError", "m", "", 0) for at in range(3)],
        verdicts=[("r", float(at), "before_tool", "c", "guard", "guard", "block", "no rm", None, 1) for at in range(2)],
    )
    stats = run_stats(store)
    assert [(e.type, e.count, e.last) for e in stats.errors] == [("RateLimitError", 3, 2.0)]
    assert [(r.hook, r.reason, r.count, r.last) for r in stats.refusals] == [("guard", "no rm", 2, 1.0)]
    assert [(m.model, m.errors) for m in stats.models] == [("m", 3)]


@pytest.mark.parametrize(("ago", "width"), [(1, 1), (50, 1), (24 * 30, 24), (24 * 300, 24 * 7), (24 * 9000, 24 * 364)])
def test_the_timeline_covers_every_run_with_a_limited_number_of_bars(store, ago, width):
    add(
        store,
        run_row("first", NOW - ago * 3600, ended=NOW),
        run_row("last", NOW - 1),
        model_calls=[model_row("first", at=NOW)],
    )
    stats = run_stats(store)
    assert stats.width == width * 3600
    assert 1 <= len(stats.timeline) <= 62
    assert sum(bar.runs for bar in stats.timeline) == 2
    assert sum(bar.tokens for bar in stats.timeline) == 15
    starts = [bar.began for bar in stats.timeline]
    assert all(abs(b - a - stats.width) < 1e-3 for a, b in zip(starts, starts[1:], strict=False))


# The guide.


@pytest.mark.sqlite
def test_the_guide_describes_the_real_schema(store):
    page = (ROOT / "docs/guides/observability.md").read_text()
    store.open()
    with store.db.transaction() as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        tables = [name for name in tables if not name.startswith("sqlite_")]
        assert sorted(tables) == sorted(
            (
                "runs",
                *PARTS,
                "events",
                "hook_figures",
                "model_figures",
                "run_models",
                "idempotency_keys",
                "controls",
                "pushes",
                "durable_runs",
                "journal",
                "durable_totals",
                "workers",
                "agent_versions",
            )
        )
        for table in tables:
            section = page.partition(f"### `{table}`\n")[2].partition("\n### ")[0].partition("\n## ")[0]
            documented = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
            assert documented == [column[1] for column in db.execute(f"PRAGMA table_info({table})")], table
    assert f"0x{store.db.schema.application_id:X}" in page


@pytest.mark.sqlite
def test_the_queries_of_the_guide_run(store):
    page = (ROOT / "docs/guides/observability.md").read_text()
    queries = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    assert len(queries) >= 3
    add(store, run_row("r"), model_calls=[model_row("r")], tool_calls=[tool_row("r")])
    with store.db.transaction() as db:
        for query in queries:
            db.execute(query).fetchall()
