"""Names of runs and records: every command takes ``last``, an id, its beginning, a file and a folder."""

import json
import shutil

import pytest

RULES = """
from hookline import HookResult, guard

@guard("before_tool", tools="calculator")
def no_sums(ctx, call):
    return HookResult.block("no")
"""
SUM = {"tool": "calculator", "arguments": {"expression": "1 + 1"}}


@pytest.fixture
def runs(in_process, script, folder, monkeypatch):
    """Two recorded runs with tapes; the ids of the older and the newer one."""
    monkeypatch.chdir(folder)
    (folder / "hookline.toml").write_text('record = true\nrecords = "records"\ntapes = "tapes"\nruns = "runs.db"\n')
    (folder / "rules.py").write_text(RULES)
    for task in ("First.", "Second."):
        code, _, error = in_process("run", task, "-m", script(SUM, "Done."))
        assert code == 0, error
    _, listed, _ = in_process("record", "ls", "--json")
    newer, older = [run["run_id"] for run in json.loads(listed)]
    shutil.copytree(folder / "records", folder / "copy")
    return older, newer


def names_of(folder, id):
    return [id, id[:12], id.removeprefix("run_")[:8]]


@pytest.mark.parametrize(
    "command",
    [
        ("explain", "NAME", "--json"),
        ("record", "show", "NAME", "--json"),
        ("record", "ls", "NAME", "--json"),
        ("record", "export", "NAME"),
        ("diff", "NAME", "NAME", "--json"),
        ("backtest", "rules.py", "NAME", "--json"),
        ("coverage", "rules.py", "NAME", "--json"),
        ("replay", "NAME", "--show"),
        ("stats", "--run", "NAME", "--json"),
        ("audit", "show", "--run", "NAME", "--json"),
        ("audit", "search", "--run", "NAME", "--audit-index", "index.db", "--json"),
    ],
    ids=" ".join,
)
def test_every_command_takes_every_name_of_a_run(runs, in_process, folder, command):
    older, newer = runs
    (file,) = (folder / "copy").rglob("*.moments")
    tapes = "tapes" if command[0] == "replay" else None
    for name in (*names_of(folder, older), "last", tapes or str(file), tapes or "copy"):
        code, shown, error = in_process(*(name if word == "NAME" else word for word in command))
        assert code == 0, (name, error)
        assert shown, name


@pytest.mark.parametrize(
    "command",
    [
        ("stats", "--json", "--run"),
        ("audit", "show", "--json", "--run"),
        ("audit", "search", "--audit-index", "index.db", "--json", "--run"),
    ],
    ids=" ".join,
)
def test_a_name_selects_the_same_run_in_statistics_and_the_audit_log(runs, in_process, folder, command):
    older, newer = runs
    files = [file for file in (folder / "copy").rglob("*.moments") if older in file.read_text()]
    chosen = dict.fromkeys((*names_of(folder, older), *map(str, files[:1])), older)
    chosen |= dict.fromkeys((*names_of(folder, newer), "last", "copy"), newer)
    if all(newer in file.read_text() for file in files[:1]):  # the last run of a file with both
        chosen[str(files[0])] = newer
    for name, id in chosen.items():
        code, shown, error = in_process(*command, name)
        assert code == 0, (name, error)
        assert (id in shown, {older, newer}.difference([id]).pop() in shown) == (True, False), name


def test_a_search_of_the_audit_log_sees_every_line_that_was_written_before_it_began(runs, in_process, folder, script):
    search = ("audit", "search", "--audit-index", "index.db", "--json", "--type", "run_end", "--run")
    for _ in range(3):
        assert in_process("run", "Again.", "-m", script("Done."))[0] == 0  # without an index
        code, shown, error = in_process(*search, "last")
        assert code == 0, error
        (found,) = json.loads(shown)
        assert found["run_id"] == json.loads(in_process("runs", "--json", "-n", "1")[1])[0]["run_id"]
    (log,) = json.loads(in_process("audit", "logs", "--audit-index", "index.db", "--json")[1])
    assert log["seq"] == len(in_process("audit", "show", "--tail", "0", "--json")[1].splitlines())


@pytest.mark.parametrize("command", [("backtest", "rules.py"), ("coverage", "rules.py")], ids=" ".join)
def test_a_run_that_is_named_is_the_only_one_that_is_read(runs, in_process, command):
    for names, count in (((), 2), (("last",), 1), ((runs[0],), 1), (runs, 2), (("copy",), 2), (("copy", "last"), 3)):
        code, shown, error = in_process(*command, *names, "--json")
        assert code == 0, error
        assert json.loads(shown)["runs"] == count, names


def test_the_list_shows_the_runs_of_a_folder_a_file_or_a_name(runs, in_process, folder):
    older, newer = runs
    for names, ids in (((), {older, newer}), (("copy",), {older, newer}), ((older,), {older}), (("last",), {newer})):
        _, shown, _ = in_process("record", "ls", *names, "--json")
        assert {run["run_id"] for run in json.loads(shown)} == ids


@pytest.mark.parametrize(
    "command",
    [("explain",), ("record", "show"), ("record", "ls"), ("record", "export"), ("backtest", "rules.py"), ("replay",)],
    ids=" ".join,
)
def test_a_name_that_does_not_exist_is_answered_with_those_that_do(runs, in_process, command):
    code, _, error = in_process(*command, "nothing")
    assert code == 2
    assert "no recorded run begins with 'nothing' in " in error
    assert f"(the newest are {runs[1]}, {runs[0]})" in error.replace("\n", " ")


def test_the_tape_of_a_run_that_has_only_a_record(runs, in_process, folder):
    shutil.rmtree(folder / "tapes")
    code, _, error = in_process("replay", "last")
    assert (code, f"the run {runs[1]} has a record, but no tape" in error) == (2, True)


def test_the_runs_of_the_database_have_the_same_names(runs, in_process):
    for name in (*names_of(None, runs[0]), "last"):
        code, shown, error = in_process("stats", "--run", name, "--json")
        assert code == 0, error
    code, _, error = in_process("stats", "--run", "nothing")
    assert code == 2
    assert f"the newest are {runs[1]}, {runs[0]}" in error.replace("\n", " ")


def test_the_audit_log_knows_the_last_run(runs, in_process):
    code, shown, error = in_process("audit", "show", "--run", "last", "--json")
    assert code == 0, error
    assert {json.loads(line)["run_id"] for line in shown.splitlines()} == {runs[1]}


@pytest.fixture
def unrecorded(runs, in_process, script, folder):
    """The id of a third run, which has neither a record nor a tape."""
    (folder / "hookline.toml").write_text('records = "records"\nruns = "runs.db"\n')
    assert in_process("run", "Third.", "-m", script(SUM, "Done."))[0] == 0
    return json.loads(in_process("runs", "--json")[1])[0]["run_id"]


def test_the_last_run_is_the_newest_one_also_if_it_has_no_record(runs, unrecorded, in_process):
    assert json.loads(in_process("explain", "last", "--json")[1])["id"] == unrecorded
    assert json.loads(in_process("stats", "--run", "last", "--json")[1])["run"]["run_id"] == unrecorded
    assert f"completed {unrecorded}" in in_process("diff", "last", "last", "--full")[1]
    code, shown, error = in_process("diff", runs[1], "last")
    assert (code, shown) == (2, "")
    assert f"the texts of {unrecorded} are not stored, so it cannot be compared with {runs[1]}" in error.replace(
        "\n", " "
    )
    # Records that the command line names are meant, and so is a recorded run of a program that is not in the list.
    assert json.loads(in_process("explain", "last", "--records", "copy", "--json")[1])["id"] == runs[1]
    assert json.loads(in_process("explain", "last", "--json", "--runs", "none")[1])["id"] == runs[1]


def test_the_last_run_is_the_one_of_the_list_also_if_another_one_has_a_record(runs, in_process, folder):
    older, newer = runs
    assert in_process("runs", "delete", "last")[0] == 0
    assert json.loads(in_process("explain", "last", "--json")[1])["id"] == older
    assert json.loads(in_process("stats", "--run", "last", "--json")[1])["run"]["run_id"] == older
    assert f"completed {older}" in in_process("diff", "last", "last", "--full")[1]
    (file,) = (folder / "copy").rglob("*.moments")
    for name in (newer, newer[:12], "copy", str(file)):
        assert json.loads(in_process("explain", name, "--json")[1])["id"] == newer, name
    code, shown, error = in_process("explain", "last", "--runs", "runs2.db")
    assert (code, shown) == (2, "")
    assert "there are no runs in the list" in error


@pytest.mark.parametrize(
    "command",
    [
        ("explain",), ("diff", "last"), ("record", "show"), ("record", "ls"), ("stats", "--run"),
        ("audit", "show", "--run"), ("runs", "resume"), ("runs", "delete"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_an_empty_name_is_refused_in_the_same_words(runs, in_process, command):
    code, _, error = in_process(*command, "")
    assert (code, error.split("\n")[0]) == (
        2,
        "error: the name of a run is empty: give its id, the beginning of its id, or last",
    )


def test_an_unknown_name_says_where_it_was_looked_up(runs, in_process):
    error = in_process("explain", "nothing")[2].replace("\n", " ")
    assert "no recorded run begins with 'nothing' in " in error
    assert "the list of runs does not have it either" in error


def test_the_beginning_of_several_ids_names_no_run_even_if_one_has_a_record(runs, unrecorded, in_process, folder):
    for file in (folder / "records").rglob("*.moments"):
        if runs[1].encode() not in file.read_bytes():
            file.unlink()
    for command in (("explain",), ("diff", "last"), ("stats", "--run")):
        code, _, error = in_process(*command, "run_")
        assert (code, "more than one run begins with 'run_'" in error, runs[1] in error) == (2, True, True), command
    assert json.loads(in_process("explain", unrecorded[:14], "--json")[1])["id"] == unrecorded
    assert json.loads(in_process("explain", runs[1][:14], "--json")[1])["id"] == runs[1]


@pytest.mark.parametrize(
    "command",
    [
        ("stats", "--run", "NAME", "--json"),
        ("explain", "NAME", "--json"),
        ("diff", "NAME", "NAME", "--json"),
        ("audit", "show", "--run", "NAME", "--json"),
    ],
    ids=" ".join,
)
def test_every_command_takes_a_name_from_another_list_of_runs(runs, in_process, script, monkeypatch, tmp_path, command):
    other = tmp_path / "other.db"
    assert in_process("run", "Elsewhere.", "-m", script(SUM, "Done."), "--no-record", "--runs", str(other))[0] == 0
    (listed,) = json.loads(in_process("runs", "--json", "--runs", str(other))[1])
    for name in ("last", listed["run_id"], listed["run_id"][:12]):
        words = [name if word == "NAME" else word for word in command]
        code, shown, error = in_process(*words, "--runs", str(other))
        assert code == 0, error
        assert listed["run_id"] in shown, name


@pytest.mark.sqlite
def test_statistics_and_the_doctor_take_another_list_of_runs(runs, in_process, script, tmp_path):
    other = tmp_path / "other.db"
    assert in_process("run", "Elsewhere.", "-m", script("Done."), "--runs", str(other))[0] == 0
    for command in (("stats", "--json", "--runs", str(other)), ("stats", str(other), "--json")):
        assert json.loads(in_process(*command)[1])["totals"]["runs"] == 1
    code, _, error = in_process("stats", str(other), "--runs", "runs.db")
    assert (code, "FILE and --runs both name the runs" in error) == (2, True)
    shown = in_process("doctor", "--no-model", "--no-sandbox", "--runs", "none")[1]
    assert "none (runs = none)" in shown


def test_the_audit_log_without_a_list_of_runs_says_that_it_does_not_know_the_last_run(runs, in_process):
    code, shown, error = in_process("audit", "show", "--run", "last", "--runs", "none")
    assert (code, shown) == (2, "")
    assert "the newest run is not known" in error
