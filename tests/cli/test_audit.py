"""hookline audit: verify, show, keygen; and the log that --audit writes."""

import json
import sys
import threading
import time

import pytest

from hookline import Agent, HookResult, ScriptedModel, call, guard, reply, tool
from hookline.cli.audit import follow_records
from hookline.hooks import AuditLogHook
from hookline.payloads import Usage
from hookline.stores import AuditLog
from hookline.stores import verify_audit as verify
from hookline.stores.audit.describe import describe
from tests.waiting import block_until


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.fixture
def run(in_process):
    return in_process


@pytest.fixture
def made(here):
    """A log with a run in it that has all sorts of records."""

    @tool
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    @guard("before_tool")
    def no_big(ctx, request):
        return HookResult.block("no", reason="too big \x1b[31m") if request.arguments["a"] > 100 else None

    audit = AuditLogHook("audit.jsonl", content=True)
    turns = [[call("add", a=1, b=2), call("add", a=500, b=2)], reply("Three.", usage=Usage(1200, 60), model="gpt-x")]
    Agent("helper", llm=ScriptedModel(turns), tools=[add], hooks=[audit, no_big]).run("1 + 2?")
    audit.log.close()
    return here / "audit.jsonl"


def shown(out):
    return [line.split()[4 if line[34:40].strip() else 3] for line in out.splitlines()[1:]]


# verify


def test_an_unchanged_log_is_reported_as_unchanged(run, made):
    code, out, _ = run("audit", "verify", "audit.jsonl")
    assert code == 0
    assert "✓ audit.jsonl" in out
    assert "unchanged" in out
    assert verify(made).head in out


def test_a_changed_log_is_reported_line_by_line_with_exit_code_1(run, made):
    made.write_bytes(made.read_bytes().replace(b'"agent":"helper"', b'"agent":"HELPER"', 1))
    code, out, _ = run("audit", "verify", "audit.jsonl")
    assert code == 1
    assert "✗ audit.jsonl" in out
    assert "audit.jsonl:3" in out
    assert "changed" in out


def test_the_report_is_there_as_json(run, made):
    code, out, _ = run("audit", "verify", "audit.jsonl", "--json")
    told = json.loads(out)
    assert (code, told["ok"], told["findings"]) == (0, True, [])
    made.write_bytes(made.read_bytes()[:-100])
    code, out, _ = run("audit", "verify", "audit.jsonl", "--json")
    assert (code, json.loads(out)["findings"][0]["kind"]) == (1, "cut")


def test_a_cut_tail_shows_against_a_head_or_a_checkpoint_elsewhere(run, made):
    head = verify(made).head
    (made.parent / "audit.jsonl.head").rename("kept")
    made.write_bytes(b"\n".join(made.read_bytes().split(b"\n")[:-3]) + b"\n")
    assert run("audit", "verify", "audit.jsonl", "--head", head)[0] == 1
    assert run("audit", "verify", "audit.jsonl", "--checkpoint", "kept")[0] == 1


def test_a_log_whose_end_was_cut_with_its_checkpoint_does_not_verify_silently(run, made):
    made.write_bytes(b"\n".join(made.read_bytes().split(b"\n")[:-3]) + b"\n")
    (made.parent / "audit.jsonl.head").unlink()
    code, out, _ = run("audit", "verify", "audit.jsonl")
    assert code == 3
    assert "? audit.jsonl" in out
    assert "nothing proves its end" in " ".join(out.split())
    code, out, _ = run("audit", "verify", "audit.jsonl", "--json")
    assert (code, json.loads(out)["ok"], json.loads(out)["end_proven"]) == (3, False, False)


def test_keys_are_created_and_used(run, here):
    code, out, _ = run("audit", "keygen", "my.key")
    assert code == 0
    assert "my.key.pub" in out
    log = AuditLog("signed.jsonl", sign="my.key")
    log.record("test")
    log.close()
    assert run("audit", "verify", "signed.jsonl", "--key", "my.key.pub")[0] == 0
    assert run("audit", "keygen", "my.key")[0] == 2
    run("audit", "keygen", "other.key")
    code, out, _ = run("audit", "verify", "signed.jsonl", "--key", "other.key.pub")
    assert code == 1
    assert "signature" in out


@pytest.mark.parametrize(
    "args",
    [["none.jsonl"], ["."], ["audit.jsonl", "--key", "none"], ["audit.jsonl", "--head", "abc"], []],
)
def test_an_unreadable_log_exits_with_2(run, made, args):
    code, _, err = run("audit", "verify", *args)
    assert code == 2
    assert err.startswith("error: ")


def test_a_file_of_any_bytes_makes_neither_command_stumble(run, here):
    (here / "junk.jsonl").write_bytes(bytes(range(256)) * 20 + b'\n{"type":5}\n{"type":"model"}\n[]\n')
    assert run("audit", "verify", "junk.jsonl")[0] == 1
    code, out, _ = run("audit", "show", "junk.jsonl")
    assert code == 0
    assert "no record" in out
    assert "\x1b" not in out


# show


def test_records_are_shown_newest_last_without_control_characters(run, made):
    code, out, _ = run("audit", "show", "audit.jsonl")
    assert code == 0
    assert shown(out) == [
        "open",
        "run_start",
        "task",
        "model",
        "verdict",
        "error",
        "tool",
        "tool",
        "model",
        "stop",
        "run_end",
    ]
    assert "no_big block at before_tool: too big \\x1b[31m" in out
    assert "add blocked" in out
    assert "1,200 in, 60 out" in out
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--type", "tool"], ["tool", "tool"]),
        (["--type", "tool", "--type", "stop"], ["tool", "tool", "stop"]),
        (["--tool", "add"], ["model", "tool", "tool"]),
        (["--hook", "no_big"], ["verdict"]),
        (["--verb", "block"], ["verdict"]),
        (["--model", "gpt-x"], ["model"]),
        (["--tail", "2"], ["stop", "run_end"]),
        (["-n", "0", "--type", "run_end"], ["run_end"]),
        (["--since", "1h", "--type", "stop"], ["stop"]),
        (["--until", "2020-01-01T00:00"], []),
        (["--run", "none"], []),
    ],
)
def test_filters(run, made, args, expected):
    code, out, err = run("audit", "show", "audit.jsonl", *args)
    assert (code, shown(out)) == (0, expected)
    assert expected or "no matching records" in err


def test_a_run_is_found_by_the_end_of_its_id(run, made):
    run_id = json.loads(made.read_bytes().splitlines()[-1])["run_id"]
    assert len(shown(run("audit", "show", "audit.jsonl", "--run", run_id[4:10])[1])) == 10
    assert len(shown(run("audit", "show", "audit.jsonl", "--run", run_id[:12])[1])) == 10


def test_lines_are_there_as_they_are(run, made):
    assert run("audit", "show", "audit.jsonl", "--json")[1].encode() == made.read_bytes()


@pytest.mark.parametrize("bad", ["yesterday", "", "5x", "9" * 30 + "d"])
def test_an_invalid_time_is_reported(run, made, bad):
    code, _, err = run("audit", "show", "audit.jsonl", "--since", bad)
    assert code == 2
    assert "--since takes" in err


def test_follow_continues_in_the_next_file_of_the_log(here):
    log = AuditLog("audit.jsonl", max_bytes=4096)
    log.record("test", n=-1)
    log.flush()
    seen, reading = [], follow_records(here / "audit.jsonl")

    def read():
        for _, record in reading:
            if record["type"] == "test":
                seen.append(record["n"])
                if record["n"] == 49:
                    return

    reader = threading.Thread(target=read)
    reader.start()
    time.sleep(0.1)
    for n in range(50):
        log.record("test", n=n, pad="x" * 100)
        if n % 10 == 0:
            log.flush()
            time.sleep(0.25)
    log.close()
    reader.join(20)
    assert not reader.is_alive()
    assert seen[-1] == 49
    assert set(seen) <= set(range(50))


def test_on_a_narrow_screen_the_date_stands_above_the_rows_of_its_day(run, made, monkeypatch):
    monkeypatch.setattr("hookline.cli.output.PIPE_WIDTH", 80)
    day, _, clock = json.loads(made.read_bytes().splitlines()[-1])["time"].partition("T")
    out = run("audit", "show", "audit.jsonl", "--type", "run_end")[1].splitlines()
    assert out[1].strip() == day
    assert clock[:8] in out[2]
    assert day not in out[2]
    assert max(map(len, out)) <= 80


def test_changed_records_are_shown_too():
    for kind in ("model", "run_end", "tool", "verdict", "open", "lost", "stop", "own"):
        assert isinstance(describe({"type": kind, "duration_ms": "x", "tool_calls": 5, "cost": []}), str)


# --audit


def test_the_setting_writes_a_log_that_verifies(hookline, script, folder):
    done = hookline("run", "hi", "--audit", "logs/audit.jsonl", "--model", script("hello"))
    assert done.returncode == 0, done.stderr
    assert verify(folder / "logs" / "audit.jsonl").warnings == ()
    types = [json.loads(line)["type"] for line in (folder / "logs" / "audit.jsonl").read_bytes().splitlines()]
    assert types == ["open", "run_start", "task", "model", "stop", "run_end"]


def test_a_log_that_cannot_be_written_is_reported_and_the_run_continues(hookline, script):
    if sys.platform != "linux":
        pytest.skip("/dev/full")
    done = hookline("run", "hi", "--audit", "/dev/full", "--model", script("hello"))
    assert (done.returncode, done.stdout) == (0, "hello\n")
    assert "No space left" in done.stderr


def test_the_agent_may_not_write_its_own_log(hookline, script, folder):
    for name in ("audit.jsonl", "audit.jsonl.head", "audit-000001.jsonl"):
        turns = script({"tool": "write_file", "arguments": {"path": name, "content": "mine"}}, "done")
        hookline("run", "hi", "--audit", "audit.jsonl", "--write", "--model", turns)
    assert verify(folder / "audit.jsonl").findings == ()
    assert not (folder / "audit-000001.jsonl").exists()
    kinds = [json.loads(line).get("outcome") for line in (folder / "audit.jsonl").read_bytes().splitlines()]
    assert kinds.count("blocked") == 3


def test_nor_one_that_is_among_the_hooks(hookline, script, folder):
    (folder / "hookline.toml").write_text('hooks = [{ use = "AuditLogHook", args = { path = "a.jsonl" } }]')
    turns = script({"tool": "write_file", "arguments": {"path": "a.jsonl", "content": "mine"}}, "done")
    hookline("run", "hi", "--write", "--model", turns)
    assert verify(folder / "a.jsonl").findings == ()


# The index of the logs of all machines.


@pytest.fixture
def indexed(here, monkeypatch):
    """A project whose log is indexed, with a record of another machine."""
    monkeypatch.setenv("HOOKLINE_AUDIT", "audit.jsonl")
    monkeypatch.setenv("HOOKLINE_AUDIT_INDEX", "index.db")
    log = AuditLog("audit.jsonl", index="index.db")
    log.record("verdict", run_id="run_abcdef12", agent="bot", hook="Guard", verb="block", reason="no \x1b[31m")
    log.record("tool", run_id="run_abcdef12", agent="bot", tool="shell", outcome="ok")
    log.close()
    log.index.close()
    with monkeypatch.context() as machine:
        machine.setattr("hookline.stores.audit.index.gethostname", lambda: "other")
        other = AuditLog("elsewhere.jsonl", index="index.db")
        other.record("tool", run_id="run_99", agent="bot", tool="mail\x1b[31m", outcome="error")
        other.close()
        other.index.close()


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ((), ["open", "open", "tool", "tool", "verdict"]),
        (("--run", "abc"), ["tool", "verdict"]),
        (("--type", "verdict", "--type", "tool", "--verb", "block"), ["verdict"]),
        (("--hook", "Guard"), ["verdict"]),
        (("--tool", "shell"), ["tool"]),
        (("--decision", "error"), ["tool"]),
        (("--host", "other"), ["open", "tool"]),
        (("--since", "1h", "--agent", "bot"), ["tool", "tool", "verdict"]),
        (("--until", "2000-01-01"), []),
        (("--limit", "2"), 2),
    ],
)
def test_records_of_all_machines_are_searched_in_the_index(run, indexed, options, found):
    code, out, _ = run("audit", "search", "--json", *options)
    records = json.loads(out)
    assert code == 0
    assert len(records) == found if isinstance(found, int) else sorted(each["type"] for each in records) == found


def test_a_search_shows_rows_and_how_to_continue(run, indexed):
    code, out, _ = run("audit", "search", "--limit", "2")
    assert (code, "\x1b" in out) == (0, False)
    assert out.splitlines()[0].split()[:4] == ["number", "time", "(UTC)", "machine"]
    number = out.splitlines()[-1].removeprefix("There may be more: --before ")
    rest = json.loads(run("audit", "search", "--json", "--before", number)[1])
    assert len(rest) == 3
    assert run("audit", "search", "--tool", "none")[2] == "no matching records\n"


def test_the_logs_of_all_machines_are_listed(run, indexed, here):
    code, out, _ = run("audit", "logs", "--json")
    found = {log["host"]: (log["file"], log["seq"]) for log in json.loads(out)}
    assert (code, found["other"]) == (0, (str(here / "elsewhere.jsonl"), 2))
    assert len(found) == 2
    assert "elsewhere.jsonl" in run("audit", "logs")[1].replace("\n", "")


def test_verify_finds_with_the_index_that_the_log_was_cut_or_deleted(run, indexed, here):
    log = here / "audit.jsonl"
    assert run("audit", "verify")[0] == 0
    (here / "audit.jsonl.head").unlink()
    assert run("audit", "verify")[0] == 0
    log.write_bytes(log.read_bytes().splitlines(keepends=True)[0])
    code, out, _ = run("audit", "verify")
    assert (code, "the end was cut off" in out.replace("\n", " ")) == (1, True)
    assert run("audit", "verify", "--audit-index", "none")[0] == 3
    log.unlink()
    code, out, _ = run("audit", "verify")
    assert (code, "deleted" in out) == (1, True)
    code, out, _ = run("audit", "forget", "audit.jsonl")
    assert (code, out) == (0, "3 records deleted from the index\n")
    assert run("audit", "verify")[0] == 2
    assert len(json.loads(run("audit", "logs", "--json")[1])) == 1


@pytest.mark.parametrize("command", [("search",), ("logs",), ("forget", "--before", "1d")])
def test_without_an_index_there_is_advice(run, command):
    code, _, err = run("audit", *command)
    assert (code, "set database, or set audit_index" in err) == (2, True)


def test_forget_asks_what_to_forget(run, indexed):
    code, _, err = run("audit", "forget")
    assert (code, "say what to forget" in err) == (2, True)
    assert run("audit", "forget", "--before", "2000-01-01")[1] == "0 records deleted from the index\n"


def test_the_index_that_an_untrusted_file_names_is_not_used(run, made, here, monkeypatch):
    monkeypatch.delenv("HOOKLINE_TRUST")
    (here / "hookline.toml").write_text('audit_index = "planted.db"\n')
    code, _, err = run("audit", "verify", "audit.jsonl")
    assert (code, "the index of the log is not used" in err) == (0, True)
    assert not (here / "planted.db").exists()
    assert run("audit", "search")[0] == 2
    assert not (here / "planted.db").exists()


def test_the_log_of_a_project_is_indexed_where_the_settings_say(run, here):
    (here / "hookline.toml").write_text('audit = "log.jsonl"\naudit_index = "index.db"\n')
    (here / "model.json").write_text('["Hello."]')
    assert run("run", "Hi.", "--model", "scripted:model.json")[0] == 0

    def types():
        return {each["type"] for each in json.loads(run("audit", "search", "--json")[1])}

    block_until(lambda: "run_end" in types())
    (here / "hookline.toml").write_text(
        'audit = "none"\naudit_index = "index.db"\nhooks = [{ use = "AuditLogHook", args = { path = "own.jsonl" } }]\n'
    )
    assert run("run", "Hi.", "--model", "scripted:model.json")[0] == 0
    block_until(lambda: len(json.loads(run("audit", "logs", "--json")[1])) == 2)
