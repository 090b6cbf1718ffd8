"""Receivers of push notifications, beside the runs."""

import os
import subprocess
import sys

import pytest

from hookline.stores.pushes import PushRow
from hookline.stores.run_log import RunLog, ServedRun


@pytest.fixture
def log(tmp_path):
    log = RunLog(tmp_path / "server.db")
    yield log
    log.close()


def row(id, run="run_1", **more):
    return PushRow(run, id, "me", "https://example.com/", **more)


def run(id, **more):
    return ServedRun(id, "helper", "me", "talk", "s", id, id, "a2a", "hi", **more)


def test_receivers_are_kept_by_run_and_id_and_no_more_than_so_many(log):
    assert log.pushes.put(row("a", token="old", created=1.0), 2)
    assert log.pushes.put(row("b", created=2.0), 2)
    assert not log.pushes.put(row("c"), 2)
    assert log.pushes.put(row("a", token="new", created=1.0), 2)
    assert log.pushes.put(row("c", run="run_2"), 2)
    assert [(each.id, each.token) for each in log.pushes.of("run_1")] == [("a", "new"), ("b", "")]
    assert log.pushes.delete("run_1", "a")
    assert not log.pushes.delete("run_1", "a")
    assert [each.id for each in log.pushes.of("run_1")] == ["b"]


def test_what_a_receiver_was_told_is_kept_but_not_for_another_that_took_its_place(log):
    first, second = row("a", created=1.0), row("a", created=2.0)
    log.pushes.put(first, 5)
    log.pushes.sent(first, 7, done=False)
    assert log.pushes.of("run_1")[0].seq == 7
    log.pushes.put(second, 5)
    log.pushes.sent(first, 9, done=True)
    assert [(each.seq, each.done) for each in log.pushes.of("run_1")] == [(0, False)]


def test_receivers_of_a_program_that_is_gone_are_taken_over_once(log, tmp_path):
    code = (
        "import sys; from hookline.stores.run_log import RunLog; from hookline.stores.pushes import PushRow\n"
        "log = RunLog(sys.argv[1])\n"
        "log.pushes.put(PushRow('run_1', 'a', 'me', 'https://example.com/'), 5)\n"
        "log.pushes.put(PushRow('run_1', 'b', 'me', 'https://example.com/', done=True), 5)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "server.db")], check=True, env=dict(os.environ))
    other = RunLog(tmp_path / "server.db")
    assert [each.id for each in log.pushes.adopt()] == ["a"]
    with log.db.transaction(write=True) as db:
        db.execute("UPDATE pushes SET pid = ?", (os.getppid(),))  # a program that is there
    assert other.pushes.adopt() == []
    other.close()


def test_receivers_go_with_their_runs(log):
    log.write([run("run_1", status="completed", ended=1.0), run("run_2")], [])
    log.pushes.put(row("a"), 5)
    log.pushes.put(row("a", run="run_2"), 5)
    log.prune(1)
    assert (log.pushes.of("run_1"), len(log.pushes.of("run_2"))) == ([], 1)


def test_a_receiver_is_shown_without_its_secrets():
    assert "secret" not in repr(row("a", token="secret", credentials="secret"))


def test_runs_are_counted_as_they_are_listed(log):
    states = ("completed", "failed", "queued")
    log.write([run(f"run_{n}", status=status, created=n) for n, status in enumerate(states)], [])
    assert log.count(owner="me") == 3
    assert log.count(owner="other") == 0
    assert log.count(session="talk", states=["failed", "queued"], agent="helper") == 2
    assert log.count(session="walk") == 0
    assert [each.id for each in log.runs(session="talk", states=["failed"])] == ["run_1"]
