"""``hookline run --durable`` and ``hookline runs``."""

import json
import signal

import msgspec
import pytest

from hookline._run.journal import Append
from hookline.cli import approval_prompt
from hookline.stores import ApprovalStore, RunStore
from hookline.stores.runs import DURABLE, NewRun, RunRecord, StoredEvent, run_row
from tests.journals import set_format
from tests.waiting import block_until

WRITE = {"tool": "write_file", "arguments": {"path": "a.txt", "content": "hi"}}

PAUSE = """
import asyncio, pathlib
from hookline import hook

@hook("before_llm")
async def pause(ctx, request):
    while request.hop == 1 and not pathlib.Path("go").exists():
        pathlib.Path("paused").touch()
        await asyncio.sleep(0.01)
"""

ASK = """
from hookline import HookResult, guard

@guard("before_tool", tools="write_file")
def ask(ctx, request):
    return HookResult.ask("Write?")
"""


def test_a_killed_run_is_resumed_without_repeating_what_was_done(start, hookline, script, folder):
    (folder / "rules.py").write_text(PAUSE)
    options = ["--write", "--hooks", "rules.py", "--runs", "runs.db", "--yes"]
    process = start("run", "Write it.", "--durable", "-m", script(WRITE, "Not said."), *options)
    block_until(lambda: (folder / "paused").exists() or process.poll() is not None)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (folder / "a.txt").write_text("canary")
    (folder / "go").touch()
    listed = hookline("runs", "list", "--json", "--runs", "runs.db")
    (run,) = json.loads(listed.stdout)
    assert (run["task"], run["attempts"], run["status"]) == ("Write it.", 1, "interrupted")
    assert f"hookline runs resume {run['run_id']} continues this run" in process.stderr.read()
    done = hookline("runs", "resume", "last", "-m", script(WRITE, "Done."), *options)
    assert (done.returncode, done.stdout) == (0, "Done.\n"), done.stderr
    assert (folder / "a.txt").read_text() == "canary"
    again = hookline("runs", "resume", run["run_id"][:12], "-q", "-m", script(), *options)
    assert (again.returncode, again.stdout) == (0, "Done.\n"), again.stderr


@pytest.mark.parametrize("moment", ["model", "hook"])
def test_ctrl_c_suspends_a_run_and_names_the_command_that_resumes_it(start, hookline, script, folder, moment):
    (folder / "rules.py").write_text(PAUSE)
    (folder / "go").touch() if moment == "model" else None
    options = ["--write", "--hooks", "rules.py", "--runs", "runs.db", "--yes"]
    turns = script(WRITE, "word " * 500, delay=0.05) if moment == "model" else script(WRITE, "Not said.")
    process = start("run", "Write it.", "--durable", "-m", turns, *options)
    done = folder / ("a.txt" if moment == "model" else "paused")
    block_until(lambda: done.exists() or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate()
    (run,) = json.loads(hookline("runs", "list", "--json", "--runs", "runs.db").stdout)
    assert (process.returncode, run["status"]) == (130, "interrupted")
    assert error.splitlines()[-1] == f"note: interrupted: hookline runs resume {run['run_id']} continues the run"
    (folder / "a.txt").write_text("canary")
    (folder / "go").touch()
    done = hookline("runs", "resume", "last", "-m", script(WRITE, "Done."), *options)
    assert (done.returncode, done.stdout) == (0, "Done.\n"), done.stderr
    assert (folder / "a.txt").read_text() == "canary"


def test_a_run_of_another_journal_format_is_named_and_refused_unchanged(start, hookline, script, folder):
    (folder / "rules.py").write_text(PAUSE)
    options = ["--write", "--hooks", "rules.py", "--runs", "runs.db", "--yes"]
    process = start("run", "Write it.", "--durable", "-m", script(WRITE, "Not said."), *options)
    block_until(lambda: (folder / "paused").exists() or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    process.communicate()
    store = RunStore(folder / "runs.db")
    set_format(store, 1, "aaa")
    before = [store.db.execute(f"SELECT * FROM {name}") for name in ("durable_runs", "journal", "events")]
    (run,) = json.loads(hookline("runs", "list", "--json", "--runs", "runs.db").stdout)
    refused = f"run {run['run_id']} cannot be continued: its journal has format 1"
    assert run["problem"].startswith(refused)
    for command in (["list"], ["resume", "last", "-m", script("Done."), *options[:-1]], ["unpin", "last"]):
        done = hookline("runs", *command, *([] if "--runs" in command else ["--runs", "runs.db"]))
        told = " ".join((done.stdout + done.stderr).split())
        assert refused in told
        assert "Continue it with the version of Hookline that began it" in told
        assert (done.returncode == 0) == (command == ["list"])
    assert [store.db.execute(f"SELECT * FROM {name}") for name in ("durable_runs", "journal", "events")] == before
    assert hookline("runs", "delete", "last", "--runs", "runs.db").returncode == 0


def test_a_closed_pipe_suspends_a_run(start, hookline, script, folder):
    turns = script("word " * 500, delay=0.05)
    process = start("run", "Say it.", "--durable", "--json", "-m", turns, "--runs", "runs.db")
    process.stdout.readline()
    process.stdout.close()
    assert process.wait() == 141
    assert process.stderr.read() == ""
    done = hookline("runs", "resume", "last", "-m", script("Said."), "--runs", "runs.db")
    assert (done.returncode, done.stdout) == (0, "Said.\n"), done.stderr


@pytest.fixture
def waiting(in_process, monkeypatch, tmp_path):
    """A run that waits for an approval, and a function that runs commands with the same settings."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(approval_prompt, "HOLD_SECONDS", 0.01)
    monkeypatch.setattr("hookline.cli.run.piped_text", str)
    (tmp_path / "rules.py").write_text(ASK)
    options = ["--write", "--hooks", "rules.py", "--runs", "runs.db", "--wait", "--approval-file", "approvals.db"]

    (tmp_path / "turns.json").write_text(json.dumps([WRITE, "Done."]))

    def run(*args):
        return in_process(*args, "-m", "scripted:turns.json", *options)

    run.first = run("run", "Write it.", "--durable")
    return run


def test_a_run_that_waits_for_an_approval_is_suspended_and_resumed_after_the_decision(waiting, in_process, tmp_path):
    code, _, notes = waiting.first
    store = RunStore(tmp_path / "runs.db")
    (run,) = store.journal.runs("waiting")
    assert code == 6
    assert f"hookline runs resume {run.run_id}" in notes
    assert not (tmp_path / "a.txt").exists()
    _, listed, _ = in_process("runs", "--runs", "runs.db")
    head, line = listed.splitlines()
    assert (head.split()[0], line.split()[0], "waiting" in line.split()) == ("run", run.run_id, True)
    still = waiting("runs", "resume", "last")
    assert still[0] == 6, still
    approvals = ApprovalStore(tmp_path / "approvals.db")
    (row,) = approvals.rows(status="pending")
    assert row.expires - row.asked > 7 * 24 * 3600
    approvals.decide(row.id, decision="approve", digest=row.digest, by="anna")
    assert waiting("runs", "resume", "last")[:2] == (0, "Done.\n")
    assert (tmp_path / "a.txt").read_text() == "hi"
    assert in_process("runs", "list", "--open", "--runs", "runs.db")[1] == "no run can be resumed\n"
    approvals.close()
    store.close()


def test_runs_are_deleted_and_unknown_ids_are_refused(waiting, in_process):
    code, shown, _ = in_process("runs", "delete", "last", "--runs", "runs.db")
    assert (code, shown[:11]) == (0, "deleted run")
    code, _, error = in_process("runs", "resume", "last", "--runs", "runs.db")
    assert code == 2
    assert "there is no durable run: hookline run TASK --durable starts one" in error
    code, _, error = in_process("runs", "resume", "run_x", "--runs", "runs.db")
    assert code == 2
    assert "there is no durable run 'run_x': hookline run TASK --durable starts one" in error


def test_deleting_a_run_cancels_the_approvals_that_it_waits_for(waiting, in_process):
    store = ApprovalStore("approvals.db")
    (row,) = store.rows(status="pending")
    code, shown, _ = in_process("runs", "delete", "last", "--runs", "runs.db", "--approval-file", "approvals.db")
    assert (code, shown.rpartition(", ")[2].strip()) == (0, "and cancelled 1 approval")
    assert (store.rows(status="pending"), store.find(row.id).status) == ([], "cancelled")


def test_a_durable_run_needs_a_file(in_process, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hookline.cli.run.piped_text", str)
    code, _, error = in_process("run", "go", "--durable", "--runs", "none")
    assert code == 2
    assert "a durable run needs a file for its journal: set runs, or give --runs runs.db" in error


@pytest.fixture
def pinned(monkeypatch, tmp_path):
    """A run that the only worker cannot continue."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    store = RunStore(tmp_path / "runs.db", lease_seconds=1e-6)
    store.journal.claim("run_one", "helper", b'{"task":"Pay."}', "aaa")
    store.workers.register({"bbb": {}})
    yield store
    store.close()


def test_the_list_says_which_run_waits_for_another_version(pinned, in_process):
    problem = "run run_one waits for a worker with digest aaa; the running workers have bbb: start a worker"
    _, listed, _ = in_process("runs", "list", "--runs", "runs.db")
    assert problem in " ".join(listed.split())
    (run,) = json.loads(in_process("runs", "list", "--runs", "runs.db", "--json")[1])
    assert (run["digest"], run["problem"][: len(problem)]) == ("aaa", problem)
    pinned.workers.register({"aaa": {}})
    assert "waits for" not in in_process("runs", "list", "--runs", "runs.db")[1]


def test_a_run_is_unpinned_once_and_not_while_it_is_executed(pinned, in_process, tmp_path):
    executing = RunStore(tmp_path / "runs.db", lease_seconds=1000)
    executing.journal.claim("run_two", "helper", b"{}", "aaa")
    executing.close()
    assert "run run_two is being executed" in in_process("runs", "unpin", "run_two", "--runs", "runs.db")[2]
    assert in_process("runs", "unpin", "run_one", "--runs", "runs.db")[:2] == (
        0,
        "unpinned run_one: any worker may continue it\n",
    )
    assert pinned.journal.get("run_one").digest == ""
    assert "run run_one is not pinned" in in_process("runs", "unpin", "run_one", "--runs", "runs.db")[2]


@pytest.mark.parametrize(("status", "code"), [("completed", 0), ("failed", 1)])
def test_the_reply_of_a_run_of_a_server_that_has_ended_is_shown(in_process, monkeypatch, tmp_path, status, code):
    monkeypatch.chdir(tmp_path)
    store = RunStore(tmp_path / "runs.db")
    run = RunRecord("run_served", "a", "me", "s", "s", "t", "c", "api", "Go.", host=DURABLE)
    store.accept([NewRun(run, StoredEvent("run_served", 1, "run_accepted", 0.0, b"{}"), b"{}")])
    claim = store.journal.claim("run_served", "", b"")
    ended = msgspec.structs.replace(run, status=status, reply="Gone.")
    end = Append("run_served", claim.epoch, 1, status=status, result=b"null")
    store.journal.append(end, row=run_row(ended))
    shown = in_process("runs", "resume", "run_served", "--runs", "runs.db")
    assert shown == (code, "Gone.\n", f"note: run run_served of a server has ended: {status}\n")
    store.close()


TOOLS = """
from hookline import tool

@tool
def pay(to: str) -> str:
    "Pay somebody."
    return f"paid {to}"
"""


@pytest.fixture
def begun(hookline, script, folder):
    """A durable run with a model, tools and rules of its own, which waits for an approval."""
    (folder / "tools.py").write_text(TOOLS)
    (folder / "rules.py").write_text(ASK.replace("write_file", "pay"))
    model = script({"tool": "pay", "arguments": {"to": "bob"}}, "Done.")
    options = ["-m", model, "--tools", "tools.py", "--hooks", "rules.py", "--max-steps", "none", "--wait"]
    run = hookline("run", "Pay.", "--durable", "--runs", "runs.db", "--approval-file", "approvals.db", *options)
    assert run.returncode == 6, run.stderr
    (row,) = ApprovalStore(folder / "approvals.db").rows()
    ApprovalStore(folder / "approvals.db").decide(row.id, decision="approve", digest=row.digest, by="ada")
    return folder


def test_a_run_is_resumed_with_the_options_of_its_first_call(begun, hookline, tmp_path):
    done = hookline("runs", "resume", "last", "--runs", "runs.db")
    assert (done.returncode, done.stdout) == (0, "Done.\n"), done.stderr


def test_paths_of_the_first_call_are_those_of_its_folder(begun, hookline):
    (begun / "elsewhere").mkdir()
    done = hookline("runs", "resume", "last", "--runs", "../runs.db", cwd=begun / "elsewhere")
    assert (done.returncode, done.stdout) == (0, "Done.\n"), done.stderr


def test_options_that_are_given_when_a_run_is_resumed_win(begun, hookline, script):
    (begun / "other").mkdir()
    other = script({"tool": "pay", "arguments": {"to": "bob"}}, "Another model.", name="other/turns.json")
    done = hookline("runs", "resume", "last", "--runs", "runs.db", "-m", other)
    assert (done.returncode, done.stdout) == (0, "Another model.\n"), done.stderr


def test_options_with_secrets_are_not_stored(hookline, script, folder):
    secret = "sk-abcdefghijklmnop"
    options = ["-m", script("hi"), "--param", f"api_key={secret}", "--mcp", "none"]
    run = hookline("run", "Hi.", "--durable", "--runs", "runs.db", *options)
    assert run.returncode == 0, run.stderr
    assert "--param is not stored with the run, because it looks like a secret" in run.stderr
    (stored,) = RunStore(folder / "runs.db").journal.runs()
    assert set(msgspec.json.decode(stored.start)["settings"]) == {"model", "mcp"}
    assert secret.encode() not in stored.start


BLOCK = """
from hookline import HookResult, guard

@guard("before_tool", tools="write_file")
def never(ctx, request):
    return HookResult.block("No.")
"""


def test_the_list_has_everything_that_ran_in_the_project_newest_first(hookline, script, folder, terminal):
    (folder / "hookline.toml").write_text('runs = "runs.db"\napproval_file = "approvals.db"\nwrite = true\n')
    (folder / "block.py").write_text(BLOCK)
    (folder / "ask.py").write_text(ASK)
    assert hookline("runs").stdout.startswith("no run is recorded in ")
    assert hookline("run", "One.", "-m", script("Done.", name="one.json")).returncode == 0
    assert hookline("run", "Two.", "-m", script(WRITE, "Blocked."), "--hooks", "block.py").returncode == 0
    at = terminal("run", "Three.", "-m", script(WRITE, "Denied.", name="three.json"), "--hooks", "ask.py")
    at.wait_for("[e]dit: ")
    at.send("n")
    at.wait_for("no reason): ")
    at.send("\n")
    assert at.end() == 0
    assert hookline("run", "Four.", "--durable", "-m", script("Stored.", name="four.json")).returncode == 0
    listed = json.loads(hookline("runs", "--json").stdout)
    assert [run["status"] for run in listed] == ["completed"] * 4
    assert [run["created"] for run in listed] == sorted((run["created"] for run in listed), reverse=True)
    assert [(run["agent"], run["origin"], run["steps"], run["cost"]) for run in listed][1] == (
        "hookline",
        "command line",
        2,
        0.0,
    )
    assert [(run["durable"], run["task"]) for run in listed] == [(True, "Four."), *[(False, "")] * 3]
    shown = hookline("runs", COLUMNS="150").stdout.splitlines()
    assert shown[0].split() == ["run", "began", "status", "agent", "from", "steps", "cost", "task"]
    assert [line.split()[0] for line in shown[1:]] == [run["run_id"] for run in listed]
    assert [line.split()[0] for line in hookline("runs", "-n", "1", COLUMNS="150").stdout.splitlines()[1:]] == [
        listed[0]["run_id"]
    ]
    assert hookline("runs", "--open").stdout == "no run can be resumed\n"
