"""``hookline halt``: stop all runs of a project, and release them."""

import json
import signal

import pytest

from tests.waiting import block_until

WRITE = {"tool": "write_file", "arguments": {"path": "a.txt", "content": "hi"}}
PAUSE = """
import asyncio, pathlib
from hookline import hook

@hook("after_tool")
async def pause(ctx, result):
    pathlib.Path("paused").touch()
    while not pathlib.Path("go").exists():
        await asyncio.sleep(0.01)
"""
UNTIL_HALTED = """
import asyncio, pathlib
from hookline import hook
from hookline._run.context import services_of

@hook("after_tool")
async def pause(ctx, result):
    pathlib.Path("paused").touch()
    while not pathlib.Path("go").exists() and not any(each.latest() for each in services_of(ctx).halts):
        await asyncio.sleep(0.05)
"""
RUNS = ("--runs", "runs.db")


def test_a_halted_project_runs_nothing_until_it_is_released(hookline, script):
    assert hookline("halt", "--status", *RUNS).returncode == 0
    halted = hookline("halt", "the", "API", "charges", "twice", *RUNS)
    assert halted.returncode == 0
    assert "charges twice" in halted.stdout
    status = hookline("halt", "--status", *RUNS)
    assert (status.returncode, "the API charges twice" in status.stdout) == (3, True)
    run = hookline("run", "Hi.", "-m", script("never"), *RUNS)
    assert (run.returncode, run.stdout) == (3, "")
    assert "the API charges twice" in run.stderr
    released = hookline("halt", "--release", *RUNS)
    assert (released.returncode, "Runs are not halted" in released.stdout) == (0, True)
    assert hookline("run", "Hi.", "-q", "-m", script("hi"), *RUNS).stdout == "hi\n"


def test_a_project_without_a_setting_has_a_switch_too(hookline, script):
    assert hookline("halt", "stop").returncode == 0
    assert hookline("run", "Hi.", "-m", script("never")).returncode == 3
    assert hookline("halt", "--release").returncode == 0


def test_halting_twice_and_releasing_twice_say_so(hookline):
    hookline("halt", "first", *RUNS)
    again = hookline("halt", "second", *RUNS)
    assert ("that halt and its reason stay" in again.stderr, "first" in again.stdout) == (True, True)
    hookline("halt", "--release", *RUNS)
    assert "runs are not halted" in hookline("halt", "--release", *RUNS).stderr


def test_the_status_as_json(hookline):
    assert json.loads(hookline("halt", "--status", "--json", *RUNS).stdout) == {"halted": False}
    hookline("halt", "stop", *RUNS)
    found = json.loads(hookline("halt", "--status", "--json", *RUNS).stdout)
    assert (found["halted"], found["reason"], found["problem"]) == (True, "stop", "")


def test_both_acts_are_in_the_audit_log(hookline, folder):
    hookline("halt", "stop", *RUNS, "--audit", "audit.jsonl")
    hookline("halt", "--release", *RUNS, "--audit", "audit.jsonl")
    records = [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]
    acts = [(each["action"], each["reason"]) for each in records if each["type"] == "halt"]
    assert acts == [("halted", "stop"), ("released", "stop")]
    shown = hookline("audit", "show", "audit.jsonl").stdout
    assert "all runs halted by " in shown


def test_doctor_and_stats_show_the_halt(hookline, script, folder):
    (folder / "hookline.toml").write_text('runs = "runs.db"\n')
    hookline("run", "Hi.", "-m", script("hi"))
    assert "Runs are not halted" in hookline("doctor", "--no-model", "--no-sandbox").stdout
    hookline("halt", "it charges twice")
    assert "it charges twice" in hookline("doctor", "--no-model", "--no-sandbox").stdout.replace("\n", " ")
    assert hookline("stats").stdout.startswith("Runs are halted since ")


@pytest.mark.parametrize("given", [("reason", "--release"), ("reason", "--status"), ("--release", "--status")])
def test_one_act_at_a_time(hookline, given):
    done = hookline("halt", *given, *RUNS)
    assert (done.returncode, "and nothing else" in done.stderr) == (2, True)


def test_a_project_without_a_database_has_no_switch(hookline):
    done = hookline("halt", "stop", "--runs", "none")
    assert (done.returncode, "so there is no stop switch" in done.stderr) == (2, True)


def test_a_durable_run_is_suspended_by_another_process_and_resumed_after_the_release(start, hookline, script, folder):
    (folder / "rules.py").write_text(UNTIL_HALTED)
    options = ["--write", "--hooks", "rules.py", *RUNS, "--yes"]
    process = start("run", "Write it.", "--durable", "-m", script(WRITE, "Done."), *options)
    block_until(lambda: (folder / "paused").exists() or process.poll() is not None)
    hookline("halt", "it charges twice", *RUNS)
    assert process.wait(30) == 6
    assert "it charges twice" in process.stderr.read()
    resumed = hookline("runs", "resume", "last", "-m", script(WRITE, "Done."), *options)
    assert resumed.returncode == 6, resumed.stderr
    hookline("halt", "--release", *RUNS)
    (folder / "go").touch()
    done = hookline("runs", "resume", "last", "-m", script(WRITE, "Done."), *options)
    assert (done.returncode, done.stdout) == (0, "Done.\n"), done.stderr


def test_a_killed_durable_run_is_not_continued_while_the_project_is_halted(start, hookline, script, folder):
    (folder / "rules.py").write_text(PAUSE)
    options = ["--write", "--hooks", "rules.py", *RUNS, "--yes"]
    process = start("run", "Write it.", "--durable", "-m", script(WRITE, "Done."), *options)
    block_until(lambda: (folder / "paused").exists() or process.poll() is not None)
    hookline("halt", "stop", *RUNS)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (folder / "go").touch()
    (folder / "a.txt").write_text("canary")
    resume = ["runs", "resume", "last", "-m", script(WRITE, "Done."), *options]
    assert hookline(*resume).returncode == 6
    hookline("halt", "--release", *RUNS)
    done = hookline(*resume)
    assert (done.returncode, done.stdout) == (0, "Done.\n"), done.stderr
    assert (folder / "a.txt").read_text() == "canary"


def test_a_damaged_database_lets_nothing_begin(hookline, script, folder):
    (folder / "runs.db").write_bytes(b"not a database" * 1000)
    run = hookline("run", "Hi.", "-m", script("never"), *RUNS)
    assert (run.returncode, run.stdout) == (3, "")
    assert "the stop switch cannot be read" in run.stderr
    status = hookline("halt", "--status", *RUNS)
    assert (status.returncode, "cannot be read: " in status.stdout) == (3, True)
