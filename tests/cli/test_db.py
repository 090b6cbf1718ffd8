"""``hookline db``, ``hookline doctor`` and the setting ``database``."""

import json

import pytest

from hookline.stores.keys import KeyStore
from hookline.stores.runs import RunRecord, RunStore
from hookline.stores.schemas import databases_at
from hookline.stores.sql import Schema
from tests.postgres_cluster import MISSING
from tests.waiting import block_until

pytestmark = [pytest.mark.skipif(bool(MISSING), reason=MISSING), pytest.mark.sqlite]
PASSWORD = "s3cr3t"


@pytest.fixture
def url(postgres_url):
    """The server trusts everybody, so it ignores the password."""
    return postgres_url.replace("postgres@", f"postgres:{PASSWORD}@")


@pytest.fixture
def hookline(folder, in_process, monkeypatch, url):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "data"))
    monkeypatch.setenv("HOOKLINE_DATABASE", url)

    def run(*args):
        code, out, err = in_process(*args)
        assert PASSWORD not in out + err
        return code, out, err

    return run


def states(out):
    return {each["store"]: each["state"] for each in json.loads(out)}


def test_init_creates_all_tables_and_check_compares_their_versions(hookline, url, monkeypatch):
    code, out, _ = hookline("db", "check", "--json")
    assert (code, set(states(out).values())) == (2, {"missing: hookline db init"})
    created = hookline("db", "init")[1]
    assert created.startswith("Created: runs, approvals, ")
    assert created.endswith(", queue.\n")
    assert hookline("db", "init")[1] == "All tables exist already.\n"
    code, out, _ = hookline("db", "check", "--json")
    assert (code, set(states(out).values())) == (0, {"ok"})
    assert hookline("db", "upgrade")[1] == "All tables are up to date.\n"
    with RunStore(url).db.transaction(write=True) as db:
        db.execute("UPDATE hookline_schema SET version = 99, min_writer = 99")
    code, out, _ = hookline("db", "check", "--json")
    assert (code, states(out)["runs"]) == (2, "format 99, written by a newer Hookline: update Hookline")
    code, _, err = hookline("stats")
    assert (code != 0, "were written by a newer Hookline (format 99): update Hookline" in err) == (True, True)


def test_upgrade_converts_tables_of_an_earlier_version(hookline, url, monkeypatch):
    from hookline.stores import tickets

    hookline("db", "init")
    old = tickets.SCHEMA
    later = Schema(
        "tickets",
        contents="tickets",
        application_id=old.application_id,
        version=old.version + 1,
        statements=old.statements,
        upgrades={**old.upgrades, old.version: ("ALTER TABLE tickets ADD COLUMN colour TEXT",)},
    )
    monkeypatch.setattr(tickets, "SCHEMA", later)
    assert states(hookline("db", "check", "--json")[1])["tickets"].endswith("is needed: hookline db upgrade")
    assert hookline("db", "upgrade")[1] == "Upgraded: tickets.\n"
    assert hookline("db", "check")[0] == 0


def test_copy_takes_the_files_that_the_database_replaces(hookline, folder, in_process, url, monkeypatch):
    monkeypatch.delenv("HOOKLINE_DATABASE")
    from hookline.stores.paths import default_runs_path

    store = RunStore(default_runs_path("."))
    store.write([RunRecord("run_1", "bot", "me", "", "", "", "", "http", "task", "completed", ended=1.0)], [])
    store.close()
    hookline("keys", "add", "ci", "--scope", "run")
    monkeypatch.setenv("HOOKLINE_DATABASE", url)
    assert "No API keys" in hookline("keys")[1]
    code, out, err = hookline("db", "copy")
    assert (code, err) == (0, "")
    assert [line.split()[:2] for line in out.splitlines()[1:] if line.strip()] == [["runs", "2"], ["keys", "2"]]
    assert "ci" in hookline("keys")[1]
    copied = RunStore(url)
    assert copied.get("run_1").status == "completed"
    assert [run.id for run in copied.runs(text="task")] == ["run_1"]
    copied.close()
    code, _, err = hookline("db", "copy")
    assert (code != 0, "nothing was copied" in err) == (True, True)


def test_without_an_address_there_is_advice(hookline, monkeypatch):
    monkeypatch.delenv("HOOKLINE_DATABASE")
    code, _, err = hookline("db", "init")
    assert (code, "no database is set: add database = " in err) == (2, True)


@pytest.mark.parametrize("given", ["shop.db", f"mysql://ada:{PASSWORD}@db.example/shop"])
def test_an_address_of_another_kind_is_refused(hookline, given):
    code, _, err = hookline("db", "check", "--database", given)
    assert (code, "is not the address of a PostgreSQL database" in err) == (2, True)


def test_the_settings_are_shown_without_the_password(hookline, url):
    _, out, _ = hookline("config", "--json")
    shown = json.loads(out)
    assert shown["database"]["value"].startswith("postgresql://postgres@/")
    assert shown["runs"]["value"] == shown["approval_file"]["value"] == shown["database"]["value"]
    assert shown["sessions"]["value"] == shown["spending_file"]["value"] == shown["database"]["value"]


def test_a_store_with_a_file_of_its_own_stays_there(hookline, folder):
    (folder / "hookline.toml").write_text('runs = "runs.db"\nsessions = "kept"\n')
    shown = json.loads(hookline("config", "--json")[1])
    assert shown["runs"]["value"] == str(folder / "runs.db")
    assert shown["sessions"]["value"] == str(folder / "kept")


def test_a_run_and_its_session_are_in_the_database(hookline, folder, url):
    (folder / "model.json").write_text('["Hello."]')
    code, out, err = hookline("run", "Hi.", "--session", "talk", "--model", "scripted:model.json")
    assert (code, out.strip()) == (0, "Hello."), err
    code, out, _ = hookline("stats", "--json")
    assert (code, json.loads(out)["totals"]["runs"]) == (0, 1)
    assert not list((folder / "data").rglob("*.db"))
    keys = KeyStore(url)
    _, secret = keys.add("ci", ["run"])
    assert "ci" in hookline("keys")[1]
    keys.close()


def test_the_stores_of_declared_hooks_are_in_the_database_unless_they_have_a_place(hookline, folder, url):
    (folder / "model.json").write_text('["Hello.", "Again."]')
    declared = ("MemoryInjectionHook", "EpisodeLoggerHook", "NotesInjectorHook", "TicketRules", "ApprovalsHook")
    declared += ("PersistSessionHook", "ObservabilityHook")
    (folder / "hookline.toml").write_text(f"hooks = {json.dumps(declared)}")
    code, out, err = hookline("run", "Hi.", "--session", "s", "--model", "scripted:model.json")
    assert (code, out.strip()) == (0, "Hello."), err
    assert not list((folder / "data").rglob("*.db"))
    existing = {each.schema.name for each in databases_at(url) if each.stored_version() is not None}
    assert {"memory", "notes", "sessions", "runs"} <= existing
    (folder / "hookline.toml").write_text('hooks = [{ use = "NotesInjectorHook", args = { notes = "own.db" } }]')
    code, out, err = hookline("run", "Hi.", "--model", "scripted:model.json")
    assert (code, (folder / "own.db").exists()) == (0, True), err


def test_the_audit_log_is_indexed_in_the_database(hookline, folder, url):
    (folder / "model.json").write_text('["Hello."]')
    assert hookline("run", "Hi.", "--model", "scripted:model.json")[0] == 0

    def found():
        return {each["type"] for each in json.loads(hookline("audit", "search", "--json")[1])}

    block_until(lambda: "run_end" in found())
    assert hookline("audit", "verify")[0] == 0
    (log,) = (folder / "data").rglob("audit-*.jsonl")
    log.unlink()
    code, out, _ = hookline("audit", "verify")
    assert (code, "deleted" in out) == (1, True)


@pytest.mark.parametrize(("ready", "mark"), [(False, "no"), (True, "ok")])
def test_doctor_checks_the_database(hookline, ready, mark):
    if ready:
        hookline("db", "init")
    _, out, _ = hookline("doctor", "--no-model", "--no-sandbox")
    line = next(line for line in out.splitlines() if " database " in line)
    assert line.split()[0] == mark
    assert ("all tables up to date" if ready else "hookline db init") in out
    assert "indexedinpostgresql://postgres@" in "".join(out.split())


def test_doctor_says_that_the_server_is_away(hookline):
    _, out, _ = hookline(
        "doctor", "--no-model", "--no-sandbox", "--database", f"postgresql://a:{PASSWORD}@127.0.0.1:1/x"
    )
    assert "cannot be reached" in out


@pytest.mark.parametrize("store", ["runs", "approvals", "keys", "sessions"])
def test_a_server_does_not_start_on_tables_of_a_newer_version(hookline, folder, url, store):
    hookline("db", "init")
    database = next(each for each in databases_at(url) if each.schema.name == store)
    with database.transaction(write=True) as db:
        db.execute("UPDATE hookline_schema SET version = 99, min_writer = 99")
    (folder / "model.json").write_text('["Hello."]')
    code, _, err = hookline("serve", "--model", "scripted:model.json", "--port", "0")
    assert (code != 0, "were written by a newer Hookline (format 99): update Hookline" in err) == (True, True)


@pytest.mark.parametrize(
    ("lease", "expected"), [(1000, "ok durable runs 1 running"), (1e-6, "no durable runs 1 expired")]
)
def test_doctor_shows_durable_runs_and_complains_of_those_that_no_process_takes_over(hookline, url, lease, expected):
    hookline("db", "init")
    store = RunStore(url, lease_seconds=lease)
    store.journal.claim("one", "helper", b"{}")
    store.close()
    _, out, _ = hookline("doctor", "--no-model", "--no-sandbox")
    line = next(line for line in out.splitlines() if " durable runs " in line)
    assert " ".join(line.split()).startswith(expected)
    assert ("no process took over the expired ones: hookline worker" in " ".join(out.split())) == (lease < 1)


def test_doctor_says_which_run_waits_for_another_version_and_what_differs(hookline, url):
    hookline("db", "init")
    store = RunStore(url, lease_seconds=1e-6)
    store.workers.register({"aaa": {"hook budget": "1", "tool pay": "1"}})
    store.journal.claim("run_one", "helper", b"{}", "aaa")
    store.workers.register({"bbb": {"hook budget": "2", "tool pay": "1"}})
    _, out, _ = hookline("doctor", "--no-model", "--no-sandbox")
    text = " ".join(out.split())
    assert "ok workers 1 with digest bbb" in text
    assert (
        "no pinned run run run_one waits for a worker with digest aaa; the running workers have bbb (different: hook "
        "budget): start a worker with the hooks, instructions and tools that the run was begun with, or let it go on "
        "with others: hookline runs unpin run_one"
    ) in text
    store.workers.unregister()
    _, out, _ = hookline("doctor", "--no-model", "--no-sandbox")
    assert "- workers none is running: hookline worker, or hookline serve --durable" in " ".join(out.split())
    store.close()
