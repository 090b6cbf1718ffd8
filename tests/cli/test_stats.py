"""``hookline stats``, and what the command line records."""

import json
import re
import sqlite3
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline import AFTER_TOOL, BEFORE_TOOL, HookResult, RunFailedError, call, guard, observer, reply, tool
from hookline.cli.app import run_app
from hookline.cli.errors import report_error
from hookline.cli.stats import spark
from hookline.cli.text import parse_since
from hookline.config.errors import ConfigError
from hookline.config.sources import load
from hookline.hooks import MetricsHook, ObservabilityHook, shadow
from hookline.stores.paths import default_runs_path
from hookline.testing import scripted_agent

from ..waiting import block_until

EVIL = "evil\x1b[2J\x1b]0;X\x07"


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@guard(BEFORE_TOOL)
def no_nines(ctx, request):
    if request.arguments.get("a") == 9:
        return HookResult.block("no", reason=f"nines {EVIL}")


@pytest.fixture
def stats(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOOKLINE_RUNS", str(tmp_path / "runs.db"))

    def run(*args):
        try:
            code = run_app(["stats", *args])
        except Exception as error:
            code = report_error(error, args)
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def recorded(tmp_path):
    """A few runs in the file."""
    recorder = ObservabilityHook(tmp_path / "runs.db")
    turns = [[call("add", a=9, b=1), call("add", a=1, b=1), call(EVIL)], reply("done", cost=0.5)]
    results = [scripted_agent(turns, tools=[add], hooks=[recorder, no_nines], name="helper").run("x")]
    with pytest.raises(RunFailedError):
        scripted_agent([TimeoutError("late")], hooks=[recorder], name="other").run("x")
    assert recorder.flush(10)
    recorder.store.close()
    return results


def test_statistics_are_complete_and_control_characters_are_escaped(stats, recorded):
    code, out, _ = stats()
    assert code == 0
    words = (
        "2 runs in runs.db",
        "completed 1",
        "failed 1",
        "$0.5000",
        "Models",
        "scripted",
        "Tools",
        "add",
        "Hooks",
        "no_nines",
        "┃ blocked 1",
        "Blocked by hooks",
        "nines",
        "Errors",
        "TimeoutError",
        "InvalidCall",
    )
    for word in words:
        assert word in out, word
    assert r"evil\x1b[2J" in out
    assert all(line.isprintable() for line in out.splitlines())


def test_the_same_is_there_as_json(stats, recorded):
    told = json.loads(stats("--json")[1])
    assert told["totals"]["runs"] == 2
    assert told["totals"]["statuses"] == {"completed": 1, "failed": 1}
    by_tool = {row["tool"]: row["outcomes"] for row in told["tools"]}
    assert by_tool["add"] == {"ok": 1, "blocked": 1}
    assert [row["type"] for row in told["errors"] if row["fatal"]] == ["TimeoutError"]


def test_a_hook_for_one_tool_is_not_counted_at_calls_of_others(stats, tmp_path):
    @guard(BEFORE_TOOL, tools="delete_*")
    def keeps(ctx, request):
        return HookResult.block("no") if request.arguments["name"] == "tax" else None

    @observer(AFTER_TOOL, tools=["delete_*"])
    async def watches(ctx, result):
        pass

    @tool
    def delete_note(name: str) -> str:
        """Delete a note."""
        return "ok"

    recorder, metrics = ObservabilityHook(tmp_path / "runs.db"), MetricsHook(every_call=True)
    asked = [call("delete_note", name="tax"), call("add", a=1, b=1), call("delete_note", name="old"), reply("done")]
    result = scripted_agent(asked, tools=[add, delete_note], hooks=[recorder, metrics, keeps, watches]).run("x")
    assert recorder.flush(10)
    facts = recorder.store.facts(result.ids.run_id)
    recorder.store.close()
    counted = {row["hook"]: row["calls"] for row in json.loads(stats("--json")[1])["hooks"]}
    assert (counted["keeps"], counted["watches"]) == (2, 2)
    assert not [
        fact for fact in facts if fact.tool == "add" and {gate.hook for gate in fact.gates} & {"keeps", "watches"}
    ]
    timed = [line for line in metrics.text().splitlines() if "hook_seconds_count" in line and "keeps" in line]
    assert [line.rsplit(" ", 1)[1] for line in timed] == ["2.0"]


def test_what_a_hook_would_have_done_in_shadow_mode_has_its_own_column(stats, tmp_path):
    recorder = ObservabilityHook(tmp_path / "runs.db")
    turns = [call("add", a=9, b=1), call("add", a=1, b=1), reply("done")]
    scripted_agent(turns, tools=[add], hooks=[recorder, shadow(no_nines)]).run("x")
    assert recorder.flush(10)
    recorder.store.close()
    shown = stats()[1].splitlines()
    head, line = (next(line for line in shown if line.strip().startswith(word)) for word in ("hook  ", "shadow("))
    assert line.index("┃ blocked 1") == head.index("would have")
    assert line.index("○ passed 2") == head.index("verdicts")
    (row,) = json.loads(stats("--json")[1])["hooks"]
    assert (row["verbs"], row["shadow"]) == ({"cont": 2}, {"block": 1})


def test_without_shadow_mode_there_is_no_column_for_it(stats, recorded):
    assert "would have" not in stats()[1]


def test_runs_are_chosen_by_agent_model_and_time(stats, recorded):
    assert json.loads(stats("--agent", "helper", "--json")[1])["totals"]["runs"] == 1
    assert json.loads(stats("--model", "scripted", "--json")[1])["totals"]["runs"] == 1  # the other one got no reply
    assert json.loads(stats("--since", "1h", "--json")[1])["totals"]["runs"] == 2
    code, out, _ = stats("--since", "2999-01-01")
    assert (code, out.splitlines()[0]) == (0, "No runs match.")


def test_the_last_runs_have_a_line_each(stats, recorded):
    lines = stats("--last", "5")[1].splitlines()
    assert [name in line for name, line in zip(("began", "other", "helper"), lines, strict=True)] == [True] * 3
    assert [row["agent"] for row in json.loads(stats("--last", "1", "--json")[1])] == ["other"]


def test_one_run_is_shown_call_by_call(stats, recorded):
    run_id = recorded[0].ids.run_id
    code, out, _ = stats("--run", run_id[:10])
    assert code == 0
    assert out.startswith(f"{run_id}  completed")
    for word in (
        "agent helper",
        "2 steps",
        "3 tool calls",
        "scripted",
        "blocked",
        "█",
        "Verdicts",
        "no_nines",
    ):
        assert word in out, word
    told = json.loads(stats("--run", run_id, "--json")[1])
    assert [call["kind"] for call in told["calls"]].count("tool") == 3
    assert "failed (TimeoutError)" in stats("--run", "last")[1]


def test_a_stopped_run_says_what_stopped_it(stats, tmp_path):
    recorder = ObservabilityHook(tmp_path / "runs.db")

    @guard("before_tool")
    def enough(ctx, request):
        return HookResult.stop("enough is enough")

    turns = [[call("add", a=1, b=1)], reply("done")]
    scripted_agent(turns, tools=[add], hooks=[recorder, enough], name="helper").run("x")
    assert recorder.flush(10)
    assert "stopped (stop_requested: enough is enough)" in stats("--run", "last")[1]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nowhere.db"], "no such file: 'nowhere.db'"),
        (["--run", "run_x"], "there is no run 'run_x'"),
        (["--since", "soon"], "--since: expected 30m, 24h, 7d, 2w or a date"),
        (["--last", "3", "--run", "x"], "--last cannot be combined"),
        (["--run", "x", "--agent", "a"], "--run cannot be combined"),
        (["--last", "0"], "greater than or equal to 1"),
    ],
)
def test_invalid_options_are_reported(stats, recorded, args, message):
    code, _, err = stats(*args)
    assert code == 2
    assert message in err


def test_a_file_of_another_program_is_reported(stats, tmp_path):
    with closing(sqlite3.connect(tmp_path / "other.db")) as db, db:
        db.execute("CREATE TABLE mine (x)")
    db.close()
    code, _, err = stats("other.db")
    assert (code, "not one of runs" in err) == (2, True)


def test_without_records_json_has_the_same_form(stats, recorded, tmp_path, monkeypatch):
    some = json.loads(stats("--json")[1])
    monkeypatch.setenv("HOOKLINE_RUNS", str(tmp_path / "none.db"))
    none = json.loads(stats("--json")[1])
    assert none.keys() == some.keys()
    assert (none["totals"]["runs"], none["hooks"], json.loads(stats("--last", "3", "--json")[1])) == (0, [], [])
    assert stats("--run", "last", "--json")[0] != 0
    assert not (tmp_path / "none.db").exists()


def test_without_records_stats_explains_recording_and_creates_no_file(stats, tmp_path, monkeypatch):
    code, out, _ = stats()
    assert code == 0
    assert "No runs recorded in runs.db yet." in out
    assert 'Agent(..., runs="runs.db")' in out
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("HOOKLINE_RUNS", "none")
    assert "Recording is off (runs = none)." in stats()[1]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_line_is_wider_than_the_terminal(stats, recorded, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    for args in ([], ["--last", "5"], ["--run", recorded[0].ids.run_id]):
        shown = re.sub(r"\x1b\[[0-9;]*m", "", stats(*args)[1])
        assert max(map(len, shown.splitlines())) <= width


def test_a_run_has_one_line_however_long_the_name_of_its_agent(stats, tmp_path, monkeypatch):
    recorder = ObservabilityHook(tmp_path / "runs.db")
    scripted_agent([reply("x")], hooks=[recorder], name="a-researcher-with-a-long-name").run("x")
    recorder.flush()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert len(stats("--last", "5")[1].splitlines()) == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [("30m", 1000 - 1800), ("24h", 1000 - 86400), ("2d", 1000 - 2 * 86400), ("1w", 1000 - 7 * 86400)],
)
def test_a_time_ago_counts_from_now(text, expected):
    assert parse_since(text, now=1000) == expected


def test_a_date_starts_at_local_midnight():
    assert parse_since("2026-11-01") == datetime(2026, 11, 1).timestamp()
    assert parse_since("2026-11-01 12:30") == datetime(2026, 11, 1, 12, 30).timestamp()


@given(st.text(st.characters()) | st.text("0123456789mhdw-:T. "))
def test_any_other_text_is_refused_in_words(text):
    try:
        told = parse_since(text)
    except ConfigError as error:
        told = str(error)
    assert isinstance(told, float) or told.startswith("--since: expected")


@given(st.lists(st.integers(0, 10**12), max_size=80))
def test_a_row_of_blocks_is_as_long_as_its_numbers_and_highest_where_they_are(values):
    blocks = spark(values)
    assert len(blocks) == len(values)
    assert [block == "·" for block in blocks] == [value == 0 for value in values]
    if any(values):
        assert blocks[values.index(max(values))] == "█"


# Recording.


def files_of_runs(env):
    """The names of the files of runs in the user's data folder."""
    return sorted(path.name for path in Path(env["HOME"], ".local/share/hookline").glob("runs*.db"))


def test_a_run_is_recorded_in_the_users_data_folder(hookline, script, env, folder):
    assert hookline("run", "hi", "--model", script("hello")).returncode == 0
    assert files_of_runs(env) == [default_runs_path(folder).name]
    done = hookline("stats", "--last", "1", "--json")
    (row,) = json.loads(done.stdout)
    assert (row["status"], row["agent"], row["steps"]) == ("completed", "hookline", 1)


def test_stats_shows_only_the_runs_of_this_project(hookline, script, env, folder):
    (folder / "other").mkdir()
    (folder / "other" / "hookline.toml").write_text("")
    (folder / "other" / "sub").mkdir()
    model = script("hello").replace("scripted:", f"scripted:{folder}/")
    assert hookline("run", "hi", "--model", model).returncode == 0
    assert hookline("run", "hi", "--model", model, cwd=folder / "other" / "sub").returncode == 0
    assert hookline("run", "hi", "--model", model, cwd=folder / "other").returncode == 0
    assert len(files_of_runs(env)) == 2
    assert len(json.loads(hookline("stats", "--last", "9", "--json").stdout)) == 1
    assert len(json.loads(hookline("stats", "--last", "9", "--json", cwd=folder / "other").stdout)) == 2


def test_recording_uses_the_given_file_or_none(hookline, script, env, folder):
    model = script("hello")
    assert hookline("run", "hi", "--model", model, "--runs", "mine.db").returncode == 0
    assert (folder / "mine.db").exists()
    assert hookline("run", "hi", "--model", model, "--runs", "none").returncode == 0
    assert files_of_runs(env) == []


def test_an_unusable_file_is_noted_and_nothing_begins_because_it_has_the_stop_switch(hookline, script, folder):
    (folder / "bad.db").write_text("this is no database, and never was one" * 100)
    done = hookline("run", "hi", "--model", script("hello"), "--runs", "bad.db")
    assert (done.returncode, done.stdout) == (3, "")
    assert "note: this run is not recorded: " in done.stderr
    assert "is not a SQLite database" in done.stderr


def test_the_setting_is_relative_to_the_file_that_sets_it(tmp_path):
    (tmp_path / "hookline.toml").write_text('runs = "mine.db"')
    assert load(env={}, folder=tmp_path).settings.runs == str(tmp_path / "mine.db")
    (tmp_path / "hookline.toml").write_text('runs = "none"')
    assert load(env={}, folder=tmp_path).settings.runs is None
    (tmp_path / "hookline.toml").write_text("")
    assert load(env={}, folder=tmp_path).settings.runs == str(default_runs_path(tmp_path))


def test_a_killed_run_is_shown_as_interrupted(hookline, script, start, folder):
    (folder / "slow.py").write_text(
        "import time\nfrom hookline import tool\n@tool\ndef wait() -> str:\n    'Wait.'\n    time.sleep(60)\n"
    )
    model = script({"tool": "wait", "arguments": {}})
    process = start("run", "hi", "--model", model, "--tools", "slow.py", "--runs", "r.db")
    block_until(lambda: (folder / "r.db").exists() and "running" in hookline("stats", "r.db").stdout)
    process.kill()
    process.wait()
    assert "interrupted 1" in hookline("stats", "r.db").stdout
