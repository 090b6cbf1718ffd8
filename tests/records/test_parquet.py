"""Records as Parquet: every line is a row, and DuckDB can query them."""

import stat
import subprocess
import sys

import msgspec
import pyarrow
import pyarrow.parquet
import pytest

from hookline import BEFORE_TOOL, Agent, HookResult, ScriptedModel, call, guard, reply, tool
from hookline.records import Account, RecordError, parquet
from hookline.records.hook import RecordHook
from hookline.records.parquet import COLUMNS, export_parquet
from hookline.records.reading import read_runs, record_files
from hookline.teams import Team


@tool
def shell(command: str) -> str:
    """Run a command."""
    return f"ran {command}"


@guard(BEFORE_TOOL, tools="shell")
def no_sudo(ctx, request):
    if request.arguments["command"].startswith("sudo"):
        return HookResult.block("Without sudo.", reason="rule 1")
    return None


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Records of five runs, one of which has a subagent."""
    folder = tmp_path_factory.mktemp("records")
    recorder = RecordHook(folder)
    for number in range(4):
        llm = ScriptedModel([call("shell", command=f"ls {number}"), call("shell", command="sudo ls"), reply("end")])
        Agent("bob", llm=llm, tools=[shell], hooks=[no_sudo, recorder]).run(f"Task {number}")
    team = Team()
    inner = Agent(
        "inner", llm=ScriptedModel([call("shell", command="id"), reply("me")]), tools=[shell], hooks=[recorder]
    )
    llm = ScriptedModel([call("delegate", to="inner", task="Who?"), reply("end")])
    outer = Agent("outer", llm=llm, tools=[team], hooks=[recorder])
    team.add(outer)
    team.add(inner)
    outer.run("Delegate")
    return folder


def recorded_lines(folder):
    return [line for file in record_files([folder]) for line in file.read_bytes().splitlines(keepends=True)]


def is_content(line):
    return not line.startswith((b'["hookline",', b'["hooks",'))


def rows(path):
    """The rows in the order of the lines."""
    return sorted(pyarrow.parquet.read_table(path).to_pylist(), key=lambda row: (row["block"], row["seq"]))


def test_every_line_of_the_records_is_a_row_in_the_same_order(records, tmp_path):
    done = export_parquet([records], tmp_path / "all.parquet")
    found = rows(tmp_path / "all.parquet")
    assert list(found[0]) == list(COLUMNS)
    lines = [bytes(row["line"]) for row in found]
    assert list(filter(is_content, lines)) == list(filter(is_content, recorded_lines(records)))
    assert {line for line in lines if line.startswith(b'["hooks"')} == {
        line for line in recorded_lines(records) if line.startswith(b'["hooks"')
    }
    assert done.runs == 5
    assert done.moments == sum(row["point"] not in ("run", "end", "hooks", "label") for row in found)
    assert done.files == (str(tmp_path / "all.parquet"),)


def test_the_columns_say_what_the_lines_contain(records, tmp_path):
    export_parquet([records], tmp_path / "all.parquet")
    found = rows(tmp_path / "all.parquet")
    blocked = [row for row in found if row["verb"] == "block"]
    assert len(blocked) == 4
    assert {(row["point"], row["tool"], row["agent"]) for row in blocked} == {("before_tool", "shell", "bob")}
    for row in found:
        line = msgspec.json.decode(row["line"])
        assert row["point"] == line[0]
        if row["n"] >= 0:
            assert [row["tool"], row["run"], row["n"]] == line[1:4]
    inner = [row for row in found if row["agent"] == "inner"]
    assert {row["run"] for row in inner} == {1}
    assert {row["block"] for row in inner} == {row["block"] for row in found if row["agent"] == "outer"}
    outermost = [row for row in found if row["point"] == "run" and row["run"] == 0]
    for row in outermost:
        same = [other for other in found if other["block"] == row["block"]]
        assert row["moments"] == sum(other["point"] not in ("run", "end", "hooks", "label") for other in same)
        assert all(other["time"] >= row["time"] for other in same if other["point"] != "hooks")


def test_a_row_group_contains_whole_run_trees(records, tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "ROWS", 20)
    export_parquet([records], tmp_path / "all.parquet")
    file = pyarrow.parquet.ParquetFile(tmp_path / "all.parquet")
    ranges = []
    for group in range(file.metadata.num_row_groups):
        about = file.metadata.row_group(group).column(0).statistics
        ranges.append((about.min, about.max))
    assert len(ranges) > 1
    assert all(first[1] < second[0] for first, second in zip(ranges, ranges[1:]))


def test_within_a_row_group_the_lines_that_most_rules_need_come_first(records, tmp_path):
    export_parquet([records], tmp_path / "all.parquet")
    points = [row["point"] for row in pyarrow.parquet.read_table(tmp_path / "all.parquet").to_pylist()]
    needed = [point in ("run", "end", "label", "hooks", "before_tool", "approval_decided") for point in points]
    assert needed == sorted(needed, reverse=True)
    assert not all(needed)


def test_an_export_to_a_folder_is_split_into_private_files_that_stand_alone(records, tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "FILE_ROWS", 20)
    done = export_parquet([records], tmp_path / "history")
    assert len(done.files) > 1
    assert done.size == sum((tmp_path / "history" / file).stat().st_size for file in done.files)
    for path in done.files:
        assert stat.S_IMODE((tmp_path / path).stat().st_mode) == 0o600
        found = rows(path)
        digests = {row["run_id"] for row in found if row["point"] == "hooks"}
        used = {msgspec.json.decode(row["line"])[2].get("hooks") for row in found if row["point"] == "run"}
        assert used <= digests


def test_runs_before_a_time_are_left_out(records, tmp_path):
    export_parquet([records], tmp_path / "all.parquet")
    starts = sorted(row["time"] for row in rows(tmp_path / "all.parquet") if row["point"] == "run" and not row["run"])
    done = export_parquet([records], tmp_path / "some.parquet", since=starts[2])
    assert done.runs == 3


def test_damaged_lines_are_counted_and_the_rest_is_exported(records, tmp_path):
    lines = recorded_lines(records)
    (tmp_path / "bad.moments").write_bytes(
        b"".join([*lines[:5], b"garbage\n", b'["before_tool","x",9,1,0,0,{}]\n', *lines[5:], b'["run'])
    )
    account = Account()
    done = export_parquet([tmp_path / "bad.moments"], tmp_path / "all.parquet", account=account)
    assert done.runs == 5
    assert {reason: count for (_, reason), count in account.skipped.items()} == {
        "the line is not a line of a record": 1,
        "the line belongs to a run that the file does not contain": 1,
        "the last line is incomplete": 1,
    }


def test_a_newer_format_is_reported_and_an_empty_export_writes_nothing(tmp_path):
    (tmp_path / "new.moments").write_bytes(b'["hookline",{"format":99}]\n["run",0,{}]\n')
    account = Account()
    done = export_parquet([tmp_path / "new.moments"], tmp_path / "out", account=account)
    assert done.files == ()
    assert not list((tmp_path / "out").iterdir())
    assert "use a newer version" in next(iter(account.skipped))[1]


def test_an_existing_file_is_not_replaced(records, tmp_path):
    (tmp_path / "mine.parquet").write_text("mine")
    with pytest.raises(RecordError, match="exists already"):
        export_parquet([records], tmp_path / "mine.parquet")
    assert (tmp_path / "mine.parquet").read_text() == "mine"


def test_without_pyarrow_the_error_says_what_to_install(records, tmp_path):
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from hookline.records.parquet import export_parquet\n"
        "from hookline.errors import NotInstalledError\n"
        "try: export_parquet(sys.argv[1:2], sys.argv[2])\n"
        "except NotInstalledError as error: print(error)\n"
    )
    command = [sys.executable, "-c", code, str(records), str(tmp_path / "x.parquet")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "pyarrow is not installed" in said
    assert "[backtest]" in said


def test_runs_can_be_read_back_from_a_file_that_is_named(records, tmp_path):
    export_parquet([records], tmp_path / "all.parquet")

    def outline(paths):
        return [
            (run.id, run.end, run.hooks, [(m.point, m.fields, m.verdict) for each in run.tree() for m in each.moments])
            for run in read_runs(paths)
        ]

    assert outline([tmp_path / "all.parquet"]) == outline([records])
    assert list(read_runs([tmp_path])) == []


def test_a_damaged_or_foreign_file_is_reported(records, tmp_path):
    export_parquet([records], tmp_path / "all.parquet")
    (tmp_path / "torn.parquet").write_bytes((tmp_path / "all.parquet").read_bytes()[:500])
    pyarrow.parquet.write_table(pyarrow.table({"x": [1]}), tmp_path / "other.parquet")
    account = Account()
    assert list(read_runs([tmp_path / "torn.parquet", tmp_path / "other.parquet"], account=account)) == []
    assert [reason.partition(":")[0] for _, reason in account.skipped] == ["the file is not an export of records"] * 2
