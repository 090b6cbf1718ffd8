"""``hookline db backup``: what it copies can be restored, also if programs write meanwhile."""

import json
import os
import shlex
import shutil
import sqlite3
import subprocess
import threading
from contextlib import closing

import pytest

from hookline import BEFORE_LLM, Agent, ScriptedModel, Session, guard, reply
from hookline.hooks import ObservabilityHook
from hookline.stores import JsonSessionStore, KeyStore, RunStore
from hookline.stores.paths import default_runs_path
from tests.postgres_cluster import MISSING

pytestmark = pytest.mark.sqlite


@pytest.fixture
def hookline(folder, in_process, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "data"))
    monkeypatch.delenv("HOOKLINE_DATABASE", raising=False)
    return in_process


def work(store, run_id):
    agent = Agent("bot", llm=ScriptedModel([reply("done")], loop=True))
    return agent.run("go", durable=store, run_id=run_id).status


def runs_of(place):
    store = RunStore(place)
    try:
        return sorted(run.id for run in store.runs(limit=10_000))
    finally:
        store.close()


def test_sqlite_files_are_backed_up_while_they_are_written_and_can_be_put_back(hookline, folder):
    path = default_runs_path(folder)
    store = RunStore(path)
    JsonSessionStore(folder / "data/hookline/sessions").save(Session("s"))
    started, stop, done = threading.Event(), threading.Event(), []

    def write():
        while not stop.is_set():
            work(store, f"run_{len(done):04}")
            done.append(None)
            if len(done) == 5:
                started.set()

    writer = threading.Thread(target=write)
    writer.start()
    started.wait(60)
    before = len(done)
    code, out, err = hookline("db", "backup", "copies/monday")
    after = len(done)
    stop.set()
    writer.join()
    store.close()
    assert (code, err) == (0, "")
    assert path.name in out
    copy = folder / "copies/monday" / path.name
    saved = runs_of(copy)
    assert before <= len(saved) <= after + 1, "the backup is the state at one moment while it was made"
    assert saved == [f"run_{number:04}" for number in range(len(saved))]
    assert JsonSessionStore(folder / "copies/monday/sessions").load("s") is not None
    assert os.stat(copy).st_mode & 0o077 == 0

    # Restore it as the guide says.
    for name in (path, f"{path}-wal", f"{path}-shm"):
        if os.path.exists(name):
            os.remove(name)
    shutil.copy(copy, path)
    assert runs_of(path) == saved
    store = RunStore(path)
    assert work(store, saved[0]) == "completed"
    assert work(store, "run_later") == "completed"
    store.close()


def test_a_backup_overwrites_nothing_and_says_what_is_wrong(hookline, folder):
    assert hookline("db", "backup", "copies")[1] == "There are no files to back up.\n"
    KeyStore(folder / "one.db").add("me", ["read"])
    assert hookline("db", "backup", "copies", "one.db")[0] == 0
    code, _, err = hookline("db", "backup", "copies", "one.db")
    assert code != 0
    assert "copies has files already: give a new folder" in err
    (folder / "other").mkdir()
    shutil.copy(folder / "one.db", folder / "other/one.db")
    assert "two of the files are called one.db" in hookline("db", "backup", "more", "one.db", "other/one.db")[2]
    (folder / "text.db").write_text("not a database, but long enough to be read as one " * 40)
    assert "text.db cannot be copied" in hookline("db", "backup", "texts", "text.db")[2]
    with closing(sqlite3.connect(folder / "copies/one.db")) as db, db:
        assert db.execute("SELECT name FROM keys").fetchall() == [("me",)]
    db.close()


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_a_dump_of_postgresql_restores_runs_journals_and_the_queue(
    hookline, folder, cluster, postgres_url, monkeypatch
):
    url = postgres_url.replace("postgres@", "postgres:s3cr3t@")
    monkeypatch.setenv("HOOKLINE_DATABASE", url)
    hookline("db", "init")
    store = RunStore(url)
    work(store, "a")
    store.close()
    code, out, err = hookline("db", "backup", "dumps")
    assert (code, err) == (0, "")
    assert "s3cr3t" not in out
    server = postgres_url.partition("&schema=")[0]
    subprocess.run(["psql", server, "-c", "CREATE DATABASE restored"], check=True, capture_output=True)
    restore = [word.replace("/postgres?", "/restored?") for word in shlex.split(out.splitlines()[-1])]
    assert restore[0] == "pg_restore"
    subprocess.run(restore, check=True, capture_output=True)
    restored = url.replace("/postgres?", "/restored?")
    monkeypatch.setenv("HOOKLINE_DATABASE", restored)
    code, out, _ = hookline("db", "check", "--json")
    assert (code, {each["state"] for each in json.loads(out)}) == (0, {"ok"})
    assert runs_of(restored) == ["a"]
    store = RunStore(restored)
    assert [work(store, run_id) for run_id in ("a", "b")] == ["completed"] * 2
    assert store.db.execute(f"SELECT count(*) FROM {store.db.prefix}_queue.procrastinate_jobs") == [(0,)]
    store.close()


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_without_pg_dump_the_command_is_shown(hookline, postgres_url, monkeypatch):
    monkeypatch.setenv("HOOKLINE_DATABASE", postgres_url.replace("postgres@", "postgres:s3cr3t@"))
    monkeypatch.setattr("shutil.which", lambda name: None)
    code, _, err = hookline("db", "backup", "dumps")
    assert code != 0
    assert "pg_dump is not installed: install it, or run where it is: pg_dump --format=custom " in err
    assert "s3cr3t" not in err


def test_a_file_with_the_facts_of_runs_is_backed_up(hookline, folder):
    """Some versions of SQLite take the table of their sums for damaged."""
    path = default_runs_path(folder)
    agent = Agent("bot", llm=ScriptedModel([reply("done")]), hooks=[guard(BEFORE_LLM)(lambda ctx, request: None)])
    observed = ObservabilityHook(path)
    assert agent.run("go", hooks=[observed]).status == "completed"
    assert observed.flush()
    code, out, err = hookline("db", "backup", "copies")
    assert (code, err) == (0, ""), out
    assert runs_of(folder / "copies" / os.path.basename(path)) == runs_of(path)


def test_a_file_that_cannot_be_copied_leaves_no_part_of_a_backup(hookline, folder):
    (folder / "bad.db").write_text("not a database")
    RunStore(folder / "good.db").open()
    code, _, err = hookline("db", "backup", "copies", "good.db", "bad.db")
    assert code != 0
    assert "bad.db cannot be copied" in err
    assert hookline("db", "backup", "copies", "good.db")[0] == 0
