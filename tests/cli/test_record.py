"""``hookline record``: list, show, label, export and delete recorded runs."""

import json
import os
import stat
import time

import pyarrow.parquet
import pytest

from hookline import BEFORE_TOOL, Agent, HookResult, ScriptedModel, call, guard, reply, tool
from hookline.cli.app import run_app
from hookline.cli.errors import report_error
from hookline.cli.text import parse_size
from hookline.records import Account, RecordHook, read_runs

EVIL = "evil\x1b[2J\x1b]0;X\x07"


@tool(effects=[])
def add(a: int, b: int = 2) -> int:
    """Add."""
    return a + b


@guard(BEFORE_TOOL)
def no_nines(ctx, request):
    return HookResult.block("no", reason=f"nines {EVIL}") if request.arguments.get("a") == 9 else None


@pytest.fixture
def records(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOOKLINE_RECORDS", str(tmp_path / "records"))
    return tmp_path / "records"


@pytest.fixture
def record(capsys, records):
    def run(*args):
        try:
            code = run_app(["record", *args])
        except Exception as error:
            code = report_error(error, args)
        return code, *capsys.readouterr()

    return run


def make(records, *tasks, turns=None, **options):
    hook = RecordHook(records, **options)
    for task in tasks:
        Agent(
            "x", llm=ScriptedModel(turns or [call("add", a=9), call("add", a=1), reply("done")]), tools=[add],
            hooks=[no_nines, hook],
        ).run(task)  # fmt: skip
    hook._files.close()


def test_the_runs_are_listed_newest_first(record, records):
    make(records, "first task", f"second {EVIL}")
    code, out, err = record("ls")
    head, *lines = out.splitlines()
    assert (code, err) == (0, "")
    assert head.split() == ["began", "run", "status", "steps", "moments", "blocked", "size", "task"]
    assert "second evil\\x1b" in lines[0]
    assert lines[1].split()[2:6] == ["completed", "3", "13", "1"]
    assert lines[1].endswith("first task")


def test_the_list_as_json_has_all_counts(record, records):
    make(records, "task")
    code, out, _ = record("ls", "--json")
    (run,) = json.loads(out)
    wanted = {"agent": "x", "task": "task", "status": "completed", "steps": 3, "moments": 13, "blocked": 1, "asked": 0}
    assert code == 0
    assert run | wanted == run
    assert run["size"] == sum(len(line) for line in next(records.glob("*.moments")).read_bytes().splitlines(True)[2:])


def test_the_list_is_limited_by_number_time_and_status(record, records):
    make(records, *(f"task {number}" for number in range(4)))
    assert [run["task"] for run in json.loads(record("ls", "-n", "2", "--json")[1])] == ["task 3", "task 2"]
    assert json.loads(record("ls", "--status", "failed", "--json")[1]) == []
    assert len(json.loads(record("ls", "--since", "1h", "--json")[1])) == 4
    assert record("ls", "--since", "1h", "--status", "failed")[1].startswith("No runs match.")
    assert record("ls", "--since", "soon")[0] == 2


def test_older_files_are_not_read_for_a_short_list(record, records):
    make(records, "old")
    (old,) = records.glob("*.moments")
    old.rename(records / "old.moments")
    old = records / "old.moments"
    old.write_bytes(old.read_bytes() + b"garbage\n")
    os.utime(old, (0, 1000))
    make(records, "new")
    code, out, err = record("ls", "-n", "1", "--json")
    assert [run["task"] for run in json.loads(out)] == ["new"]
    assert err == ""
    assert "old.moments: skipped 1: the line is not a line of a record" in record("ls")[2]


def test_a_run_that_was_cut_off_is_listed_as_interrupted(record, records):
    make(records, "first")
    (segment,) = records.glob("*.moments")
    other = records / "other.moments"
    lines = segment.read_bytes().splitlines(keepends=True)
    other.write_bytes(b"".join(lines[:-1]).replace(b'"first"', b'"other"') + b'["end",0,{"st')
    code, out, err = record("ls", "--json")
    statuses = {run["task"]: run["status"] for run in json.loads(out)}
    assert statuses == {"first": "completed", "other": "interrupted"}
    assert "the last line is incomplete" in err
    assert code == 0


def test_a_run_in_progress_is_listed_as_running(record, records):
    hook, seen = RecordHook(records), []

    @tool(effects=[])
    def look() -> str:
        """Look."""
        seen.append(record("ls", "--json")[1])
        return "ok"

    Agent("x", llm=ScriptedModel([call("look"), reply("done")]), tools=[look], hooks=[hook]).run("Look")
    (run,) = json.loads(seen[0])
    assert (run["status"], run["task"]) == ("running", "Look")


def test_an_empty_folder_explains_how_to_record(record):
    code, out, _ = record("ls")
    assert code == 0
    assert out.startswith("No runs are recorded in records yet.\n")
    assert "record = true" in out


def test_a_run_is_shown_with_its_moments_and_decisions(record, records):
    make(records, "the task")
    code, out, _ = record("show", "last")
    assert code == 0
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0].endswith("completed")
    assert any(line.startswith("3 ") and 'before_tool add {"a":9}' in line for line in lines)
    assert "no_nines blocked: nines evil\\x1b[2J\\x1b]0;X\\x07" in lines
    assert "\x1b" not in out


def test_a_run_is_found_by_the_beginning_of_its_id(record, records):
    make(records, "one", "two")
    for run in json.loads(record("ls", "--json")[1]):
        for name in (run["run_id"], run["run_id"].removeprefix("run_")[:8]):
            found = json.loads(record("show", name, "--json")[1])
            assert found[0]["info"]["task"] == run["task"]
    code, _, err = record("show", "nothing")
    assert code == 2
    assert "no recorded run begins with 'nothing'" in err


def test_show_without_records_says_so(record):
    code, _, err = record("show", "last")
    assert code == 2
    assert "the last run was not found: no runs are recorded in" in err


@pytest.mark.parametrize("name", ["call_0_0", "3"])
def test_a_label_is_kept_with_the_run(record, records, name):
    make(records, "task")
    code, out, _ = record("label", "last", name, "bad", "--note", "wrong number", "--by", "ann")
    assert code == 0
    assert out.startswith('labelled bad: add {"a":9} in ')
    (run,) = read_runs([records])
    (line,) = run.labels
    assert (line.tool, line.n, line.label.label, line.label.note, line.label.by) == (
        "add", 3, "bad", "wrong number", "ann",
    )  # fmt: skip
    assert line.label.is_bad
    assert stat.S_IMODE((records / "labels.jsonl").stat().st_mode) == 0o600
    assert "wrong number" in record("show", "last")[1]


def test_the_last_label_of_a_call_counts(record, records):
    make(records, "task")
    record("label", "last", "3", "bad")
    record("label", "last", "3", "good")
    (run,) = read_runs([records])
    assert [line.label.label for line in run.labels] == ["good"]


def test_a_label_is_good_or_bad(record, records):
    make(records, "task")
    code, _, err = record("label", "last", "3", "fine")
    assert code == 2
    assert "a label is good or bad, not 'fine'" in err


def test_only_calls_can_be_labelled(record, records):
    make(records, "task")
    code, _, err = record("label", "last", "0", "bad")
    assert code == 2
    assert "has no call '0'" in err


def test_a_line_that_is_not_a_label_is_reported(record, records):
    make(records, "task")
    (records / "labels.jsonl").write_text('{"label": "strange"}\n')
    account = Account()
    (run,) = read_runs([records], account=account)
    assert run.labels == []
    assert account.skipped == {(str(records / "labels.jsonl"), "the line is not a label"): 1}


def test_runs_are_exported_to_one_file(record, records, tmp_path):
    make(records, "one", "two", "three")
    two = next(run for run in read_runs([records]) if run.info.task == "two")
    code, out, err = record("export", two.id, "--out", "two.moments")
    assert (code, out, err) == (0, "", "exported 1 run to two.moments\n")
    (copy,) = read_runs([tmp_path / "two.moments"])
    assert copy.info == two.info
    assert [moment.line for moment in copy.moments] == [moment.line for moment in two.moments]
    assert copy.hooks == two.hooks
    assert copy.hooks
    assert stat.S_IMODE((tmp_path / "two.moments").stat().st_mode) == 0o600


def test_all_runs_are_exported_without_a_choice(record, records, tmp_path):
    make(records, "one")
    make(records, "two")
    record("export", "--out", "all.moments")
    account = Account()
    assert [run.info.task for run in read_runs([tmp_path / "all.moments"], account=account)] == ["one", "two"]
    assert not account


def test_an_export_of_nothing_fails_and_writes_no_file(record, records, tmp_path):
    make(records, "one")
    code, _, err = record("export", "--since", "2099-01-01", "--out", "none.moments")
    assert (code, err) == (1, "exported 0 runs\n")
    assert not list(tmp_path.rglob("none.moments*"))


def test_another_ending_is_rejected(record, records):
    make(records, "one")
    code, _, err = record("export", "--out", "x.csv")
    assert code == 2
    assert "--out: expected" in err
    assert not os.path.exists("x.csv")


def test_an_export_to_parquet_has_the_chosen_runs(record, records, tmp_path):
    make(records, "one", "two")
    code, _, err = record("export", "last", "--parquet", "history")
    assert code == 0
    assert err.startswith("exported 1 run to history (1 file, ")
    [file] = (tmp_path / "history").glob("*.parquet")
    table = pyarrow.parquet.read_table(file).to_pylist()
    tasks = [json.loads(row["line"])[2]["task"] for row in table if row["point"] == "run"]
    assert tasks == ["two"]


def test_an_export_goes_to_stdout(hookline, tmp_path):
    make(tmp_path / "r", "one")
    done = hookline("record", "export", "last", "--records", tmp_path / "r")
    assert done.returncode == 0
    kinds = [json.loads(line)[0] for line in done.stdout.splitlines()]
    assert kinds[:3] == ["hookline", "hooks", "run"]
    assert kinds[-1] == "end"


def old(records, *tasks):
    """Record runs, each in a file of its own, a day apart."""
    now = time.time()
    for age, task in enumerate(reversed(tasks), 1):
        make(records, task)
        (newest,) = [path for path in records.glob("*.moments") if path.stat().st_mtime > now - 3600]
        newest.rename(records / f"2026010{9 - age}T000000Z-1-00000{9 - age}.moments")
        os.utime(records / f"2026010{9 - age}T000000Z-1-00000{9 - age}.moments", (0, now - age * 86400 - 100))


def tasks(records):
    return sorted(run.info.task for run in read_runs([records]))


def test_old_files_are_deleted_by_age(record, records):
    old(records, "a", "b", "c")
    code, out, _ = record("prune", "--older", "2d", "--yes")
    assert code == 0
    assert tasks(records) == ["c"]
    assert out.count("20260") == 2
    assert out.splitlines()[-1].startswith("deleted 2 files")


def test_the_oldest_files_are_deleted_by_size(record, records):
    old(records, "a", "b", "c")
    size = max(path.stat().st_size for path in records.glob("*.moments"))
    assert record("prune", "--keep-size", f"{size * 2 + 10}B", "--yes")[0] == 0
    assert tasks(records) == ["b", "c"]


def test_nothing_is_deleted_without_yes_or_a_terminal(record, records):
    old(records, "a", "b")
    code, out, err = record("prune", "--older", "1d")
    assert code == 2
    assert "needs --yes" in err
    assert "20260" in out
    assert tasks(records) == ["a", "b"]


def test_prune_says_when_there_is_nothing_to_delete(record, records):
    old(records, "a")
    assert record("prune", "--older", "30d") == (0, "nothing to delete in records\n", "")


@pytest.mark.parametrize("args", [[], ["--older", "old"], ["--keep-size", "much"]])
def test_prune_needs_a_limit(record, args):
    assert record("prune", *args)[0] == 2


@pytest.mark.parametrize(
    ("text", "size"), [("500MB", 500_000_000), ("2 GB", 2_000_000_000), ("1.5k", 1500), ("10", 10), ("7b", 7)]
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MB", "1TB", "-1MB"])
def test_wrong_sizes_are_rejected(record, text):
    code, _, err = record("prune", f"--keep-size={text}")
    assert code == 2
    assert f"--keep-size: expected 500MB or 2GB; got {text!r}" in err


def test_the_program_records_with_a_flag(hookline, script):
    done = hookline("run", "Hi", "--model", script("Hello."), "--record", "--records", "r")
    assert done.returncode == 0
    runs = json.loads(hookline("record", "ls", "--records", "r", "--json").stdout)
    assert [(run["task"], run["status"]) for run in runs] == [("Hi", "completed")]
