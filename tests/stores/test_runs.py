"""RunStore and run_stats: recorded runs, pruning, statistics, and damaged files."""

import os
import re
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from uuid import UUID

import pytest
from msgspec.structs import astuple

from hookline.stores import RunRecord, RunStore, StoreError, leases, run_stats
from hookline.stores import facts as module
from hookline.stores.facts import Gate, ObservedRun, RunFact
from hookline.stores.leases import is_process_running
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


def model_fact(
    run_id, *, at=NOW - 6, model="m", source="model", cost=0.25, duration=1.0, verb="cont", tokens=10, agent="a"
):
    """A model call as the hook records it."""
    return RunFact(
        ObservedRun(run_id, agent),
        at,
        "model",
        model=model,
        source=source,
        verb=verb,
        outcome="stop",
        attempt=1,
        purpose="step",
        input_tokens=tokens,
        output_tokens=5,
        cost=cost,
        duration=duration,
    )


def tool_fact(run_id, *, tool="t", outcome="ok", duration=1.0, at=NOW - 6, agent="a"):
    return RunFact(
        ObservedRun(run_id, agent), at, "tool", call_id="c", tool=tool, outcome=outcome, attempt=1, duration=duration
    )


def block_fact(run_id, *, at=NOW - 6, reason="", agent="a"):
    """A call that a guard blocked."""
    gates = (Gate("early", "guard", "cont", 3), Gate("guard", "guard", "block", 20, reason, True))
    where = {"point": "before_tool", "call_id": "c", "tool": "t", "gates": gates}
    return RunFact(
        ObservedRun(run_id, agent), at, "fire", hook="guard", verb="block", refused=True, reason=reason, **where
    )


def error_fact(run_id, *, at=NOW - 6, place="tool", kind="Blocked", source="guard", fatal=False):
    return RunFact(ObservedRun(run_id, "a"), at, "error", outcome=kind, source=source, place=place, fatal=fatal)


def near(seconds):
    """A duration as statistics tell it, from the class that it is in."""
    return pytest.approx(seconds, rel=0.1)


@pytest.fixture
def store(tmp_path):
    made = RunStore(tmp_path / "sub" / "runs.db")
    yield made
    made.close()


def add(store, *rows):
    """Store runs and facts, with the fact that a run ended, as the hook does."""
    runs = [row for row in rows if isinstance(row, RunRecord)]
    ended = [
        RunFact(ObservedRun(run.id, run.agent), run.created, "run", outcome=run.status, duration=run.elapsed)
        for run in runs
        if run.ended is not None
    ]
    store.add(runs, [*(row for row in rows if isinstance(row, RunFact)), *ended])


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
        model_fact("r", at=NOW),
        model_fact("r", at=NOW - 5, verb="retry"),
        tool_fact("r", at=NOW - 1, duration=2.0),
        tool_fact("other"),
    )
    calls = [(call.kind, call.outcome) for call in store.calls("r")]
    assert calls == [("model", "retry"), ("tool", "ok"), ("model", "stop")]


def test_prune_deletes_old_runs_with_their_facts_and_reasons_and_keeps_sums(store):
    old = NOW - 8 * 86400
    for run_id, at in (("old", old), ("new", NOW - 5)):
        facts = [
            model_fact(run_id, at=at),
            tool_fact(run_id, at=at),
            block_fact(run_id, at=at, reason=f"a {run_id} rule"),
        ]
        add(store, run_row(run_id, at - 1, ended=at), *facts, error_fact(run_id, at=at))
    assert store.prune(7) == 1
    assert [row.id for row in store.runs()] == ["new"]
    assert store.facts("old") == []
    assert len(store.facts("new")) == 5
    stats = run_stats(store)
    assert [refusal.reason for refusal in stats.refusals] == ["a new rule"]
    assert (stats.totals.model_calls, stats.tools[0].calls) == (2, 2)
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
    add(store, run_row("run_\ud800"), model_fact("run_x", tokens=2**70, cost=float("nan")))
    assert store.runs()[0].id == "run_?"
    assert run_stats(store).totals.runs == 1


@pytest.mark.parametrize("odd", ["run_\ud800", UUID(int=7)])
def test_one_value_that_sqlite_cannot_store_loses_and_duplicates_no_fact(store, odd):
    add(store, *(model_fact("r", at=float(n)) for n in range(300)), model_fact(odd))
    assert store.db.execute("SELECT count(*) FROM facts") == [(301,)]
    assert run_stats(store).totals.model_calls == 301


def test_all_of_many_facts_are_stored(store):
    for count in (0, 1, 3, 4, 31, 33, 255, 256, 700):
        add(store, *(model_fact("r", at=float(n)) for n in range(count)))
    assert len(store.facts("r")) == run_stats(store).totals.model_calls == 1283


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
    with closing(sqlite3.connect(other)) as db, db:
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
    assert [process.wait() for process in both] == [0, 0]
    store = RunStore(path)
    assert run_stats(store).totals.statuses == {"completed": 80}
    store.close()


# Statistics.


def test_statistics_of_an_empty_store_are_zero(store):
    stats = run_stats(store)
    assert (stats.totals.runs, stats.totals.cost, stats.totals.p50) == (0, 0.0, None)
    assert (stats.models, stats.tools, stats.hooks, stats.timeline) == ((), (), (), ())


def test_percentiles_have_an_error_of_at_most_ten_percent(store):
    rows = [model_fact("r", duration=float(n)) for n in range(1, 21)]
    add(store, run_row("r"), *reversed(rows), model_fact("r", model="one", duration=3.0))
    by_model = {model.model: (model.p50, model.p95) for model in run_stats(store).models}
    assert by_model == {"m": (near(10.0), near(19.0)), "one": (near(3.0), near(3.0))}


def test_a_reply_from_a_hook_does_not_count_as_a_model_call(store):
    add(store, run_row("r"), model_fact("r"), model_fact("r", source="cache", cost=0.0))
    stats = run_stats(store)
    assert (stats.totals.model_calls, stats.totals.input_tokens, stats.totals.cost) == (1, 10, 0.25)


def test_calls_with_unknown_costs_are_counted(store):
    add(store, run_row("r"), model_fact("r"), model_fact("r", cost=None))
    stats = run_stats(store)
    assert (stats.totals.cost, stats.totals.unpriced, stats.models[0].unpriced) == (0.25, 1, 1)


def test_statistics_can_be_filtered_by_time_agent_and_model(store):
    add(
        store,
        run_row("old", NOW - 5000, ended=NOW - 4000),
        run_row("new", agent="b"),
        *(
            model_fact("old", model="x"),
            model_fact("new", model="x", agent="b"),
            model_fact("new", model="y", agent="b"),
        ),
        *(tool_fact("old"), tool_fact("new", tool="u", outcome="error", agent="b")),
    )
    assert run_stats(store, since=NOW - 100).totals.runs == 1
    assert [tool.tool for tool in run_stats(store, agent="b").tools] == ["u"]
    assert [(m.model, m.calls) for m in run_stats(store, model="x").models] == [("x", 2)]
    assert run_stats(store, model="y").totals.runs == 1
    assert [tool.tool for tool in run_stats(store, model="y").tools] == ["u"]
    assert run_stats(store, agent="nobody").totals.runs == 0


@pytest.mark.parametrize("ago", [60, 3000, 5000, 3600 * 30, 86400 * 10, 86400 * 35])
def test_statistics_since_a_moment_count_exactly_what_happened_from_then_on(store, ago):
    since = NOW - ago
    add(store, *(model_fact("r", at=since + offset) for offset in (-4000, -1, 0, 1, ago / 2, ago)))
    add(store, block_fact("r", at=since - 1), block_fact("r", at=since))
    stats = run_stats(store, since=since)
    assert (stats.totals.model_calls, stats.refusals[0].count) == (4, 1)
    assert sum(bar.tokens for bar in stats.timeline) == 4 * 15
    assert sum(bar.refusals for bar in stats.timeline) == 1


def test_statistics_of_a_time_whose_hours_are_deleted_count_whole_days(store, monkeypatch):
    day = (NOW // 86400 - 60) * 86400
    add(store, *(model_fact("r", at=at) for at in (day - 1, day, day + 80_000, NOW)))
    with store.db.transaction(write=True) as db:
        db.execute("DELETE FROM rollups WHERE length = 3600 AND began < ?", (NOW - module.HOURS_KEPT,))
    assert run_stats(store, since=day + 50_000).totals.model_calls == 3


def test_sums_of_hours_are_deleted_and_those_of_days_stay(tmp_path):
    store = RunStore(tmp_path / "runs.db")
    add(store, model_fact("r", at=NOW - 50 * 86400), model_fact("r", at=NOW))
    found = store.db.execute("SELECT length, sum(count) FROM rollups GROUP BY 1 ORDER BY 1")
    assert found == [(300, 1), (3600, 1), (86400, 2)]
    store.close()


def test_tool_calls_are_counted_by_outcome_and_timed_if_they_ran(store):
    rows = [
        tool_fact("r", duration=2.0),
        tool_fact("r", outcome="error", duration=4.0),
        tool_fact("r", outcome="blocked", duration=0.0),
    ]
    add(store, run_row("r"), *rows)
    (stats,) = run_stats(store).tools
    assert (stats.calls, stats.outcomes) == (3, {"ok": 1, "error": 1, "blocked": 1})
    assert (stats.p50, stats.p95) == (near(2.0), near(4.0))


def test_errors_and_refusals_are_counted_with_their_last_time(store):
    errors = [error_fact("r", at=float(at), place="model", kind="RateLimitError", source="m") for at in range(3)]
    add(store, run_row("r"), *errors, *(block_fact("r", at=float(at), reason="no rm") for at in range(2)))
    stats = run_stats(store)
    assert [(e.type, e.count, e.last) for e in stats.errors] == [("RateLimitError", 3, 2.0)]
    assert [(r.hook, r.reason, r.count, r.last) for r in stats.refusals] == [("guard", "no rm", 2, 1.0)]
    assert [(m.model, m.errors) for m in stats.models] == [("m", 3)]
    assert [(hook.hook, hook.verbs) for hook in stats.hooks] == [("early", {"cont": 2}), ("guard", {"block": 2})]


def test_sums_of_everybody_do_not_depend_on_the_number_of_callers(store):
    facts = [model_fact("r", at=NOW) for _ in range(50)]
    add(
        store,
        *(RunFact(ObservedRun("r", "a", owner=f"caller {n}"), *astuple(fact)[1:]) for n, fact in enumerate(facts)),
    )
    assert store.db.execute("SELECT sum(count), count(*) FROM rollups WHERE everyone = 1 AND length = 3600") == [
        (50, 1)
    ]
    assert run_stats(store, owner="caller 7").totals.model_calls == 1


@pytest.mark.parametrize(("ago", "width"), [(1, 1), (50, 1), (24 * 30, 24), (24 * 300, 24 * 7), (24 * 9000, 24 * 364)])
def test_the_timeline_covers_every_run_with_a_limited_number_of_bars(store, ago, width):
    add(
        store,
        run_row("first", NOW - ago * 3600, ended=NOW),
        run_row("last", NOW - 1),
        model_fact("first", at=NOW),
    )
    stats = run_stats(store)
    assert stats.width == width * 3600
    assert 1 <= len(stats.timeline) <= 62
    assert sum(bar.runs for bar in stats.timeline) == 2
    assert sum(bar.tokens for bar in stats.timeline) == 15
    starts = [bar.began for bar in stats.timeline]
    assert all(abs(b - a - stats.width) < 1e-3 for a, b in zip(starts, starts[1:], strict=False))
    # A time before the first run does not add empty bars.
    assert run_stats(store, since=1).timeline[0] == stats.timeline[0]


# The page of the tables.


@pytest.mark.sqlite
def test_the_page_describes_the_real_schema(store):
    page = (ROOT / "docs/reference/database.md").read_text()
    store.open()
    with store.db.transaction() as db:
        tables = [name for (name,) in db.execute("SELECT name FROM pragma_table_list WHERE type = 'table'")]
        tables = [name for name in tables if not name.startswith(("sqlite_", "hookline_"))]
        assert sorted(tables) == sorted(
            (
                "runs",
                "facts",
                "rollups",
                "new_sums",
                "events",
                "idempotency_keys",
                "controls",
                "halts",
                "pushes",
                "task_messages",
                "durable_runs",
                "journal",
                "durable_totals",
                "workers",
                "agent_versions",
                "periodic_work",
                "run_texts",
            )
        )
        for table in tables:
            section = page.partition(f"## `{table}`\n")[2].partition("\n## ")[0]
            documented = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
            assert documented == [column[1] for column in db.execute(f"PRAGMA table_info({table})")], table
    assert f"0x{store.db.schema.application_id:X}" in page


@pytest.mark.sqlite
def test_the_queries_of_the_page_run(store):
    page = (ROOT / "docs/reference/database.md").read_text()
    queries = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    assert len(queries) >= 3
    add(store, run_row("r"), model_fact("r"), tool_fact("r"))
    with store.db.transaction() as db:
        for query in queries:
            db.execute(query).fetchall()
