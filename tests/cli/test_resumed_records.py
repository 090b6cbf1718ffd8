"""The record of a durable run that was interrupted and resumed: one run at every door."""

import json
import signal

import pytest

from hookline.backtest import backtest
from hookline.explain import find_run
from hookline.records import read_runs
from tests.waiting import block_until

from .test_runs import ASK, PAUSE, WRITE

OPTIONS = ("--write", "--hooks", "rules.py", "--runs", "runs.db", "--records", "records")


@pytest.fixture(params=[signal.SIGKILL, signal.SIGINT], ids=["killed", "suspended"])
def interrupted(request, start, script, folder):
    """A recorded durable run that was interrupted before its second model call."""
    (folder / "rules.py").write_text(PAUSE + ASK)
    model = script(WRITE, "Not said.")
    process = start("run", "Write it.", "--durable", "--record", "--yes", "-m", model, *OPTIONS)
    block_until(lambda: (folder / "paused").exists() or process.poll() is not None)
    process.send_signal(request.param)
    process.wait()
    return folder


@pytest.fixture
def resumed(interrupted, hookline, script):
    (interrupted / "go").touch()
    done = hookline("runs", "resume", "last", "--yes", "-m", script(WRITE, "Done."), *OPTIONS)
    assert (done.returncode, done.stdout) == (0, "Done.\n"), done.stderr
    return interrupted


def test_an_interrupted_run_has_the_status_of_the_list_in_its_record(interrupted, hookline):
    (listed,) = json.loads(hookline("runs", "--json", "--runs", "runs.db").stdout)
    (recorded,) = json.loads(hookline("record", "ls", "--json", "--records", "records").stdout)
    view = json.loads(hookline("explain", "last", "--json", "--runs", "runs.db", "--records", "records").stdout)
    assert listed["status"] == recorded["status"] == view.get("status", "interrupted") == "interrupted"
    assert view["why"].endswith(("still running.", "was not stored."))


def test_a_resumed_run_is_one_complete_run_in_its_record(resumed, hookline):
    (run,) = read_runs([resumed / "records"])
    view = json.loads(hookline("explain", "last", "--json", "--runs", "runs.db", "--records", "records").stdout)
    steps = sum(step["index"] >= 0 for step in view["steps"])
    assert (view["id"], view["status"], view["reply"], steps) == (run.id, "completed", "Done.", 2)
    assert find_run(run.id, [resumed / "records"]).run.end.status == "completed"
    assert find_run(run.id[:9], [resumed / "records"]).run.end.status == "completed"
    (recorded,) = json.loads(hookline("record", "ls", "--json", "--records", "records").stdout)
    assert (recorded["status"], recorded["steps"]) == ("completed", 2)


def test_a_resumed_run_is_exported_and_judged_once(resumed, hookline):
    out = hookline("record", "export", "last", "--out", "one.moments", "--records", "records")
    assert "exported 1 run" in out.stderr
    out = hookline("record", "export", "--out", "all.moments", "--records", "records")
    assert "exported 1 run" in out.stderr
    assert len([*read_runs([resumed / "one.moments"])]) == len([*read_runs([resumed / "all.moments"])]) == 1
    out = hookline("coverage", "rules.py", "records", "--json")
    found = json.loads(out.stdout or out.stderr)
    assert (found["runs"], [tool["calls"] for tool in found["tools"]]) == (1, [1])
    report = backtest(str(resumed / "rules.py"), [resumed / "records"], workers=0)
    assert (report.runs, report.notes) == (1, ())


def test_a_run_that_waits_says_for_what(script, hookline, folder):
    (folder / "rules.py").write_text(PAUSE + ASK)
    (folder / "go").touch()
    waits = ("--wait", "--approval-file", "approvals.db")
    done = hookline("run", "Write.", "--durable", "--record", "-m", script(WRITE, "Done."), *OPTIONS, *waits)
    assert done.returncode == 6, done.stderr
    (listed,) = json.loads(hookline("runs", "--json", "--runs", "runs.db").stdout)
    (recorded,) = json.loads(hookline("record", "ls", "--json", "--records", "records").stdout)
    assert listed["status"] == recorded["status"] == "waiting"
    for records in ("records", "elsewhere"):  # from the record, and from the events
        shown = hookline("explain", listed["run_id"], "--json", "--runs", "runs.db", "--records", records)
        view = json.loads(shown.stdout)
        assert (view["status"], view["why"]) == ("waiting", "It waits for a decision about write_file.")
