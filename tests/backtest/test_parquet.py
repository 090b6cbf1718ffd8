"""A backtest on Parquet files gives the same report as one on the files of moments that they were made from."""

import subprocess
import sys

import msgspec
import pyarrow
import pyarrow.parquet
import pytest

from hookline import AFTER_LLM, BEFORE_TOOL, Agent, HookResult, ScriptedModel, call, guard, hook, reply, tool
from hookline.backtest import backtest, parquet
from hookline.backtest.sources import Unit, UnitAccount, Wanted
from hookline.records import parquet as export
from hookline.records.format import Label
from hookline.records.hook import RecordHook
from hookline.records.parquet import export_parquet
from hookline.records.reading import record_files
from hookline.teams import Team


@tool
def shell(command: str) -> str:
    """Run a command."""
    return f"ran {command}"


@tool
def read(path: str) -> str:
    """Read a file."""
    return f"text of {path}"


@guard(BEFORE_TOOL, tools="shell")
def no_sudo(ctx, request):
    if request.arguments["command"].startswith("sudo"):
        return HookResult.block("Without sudo.", reason="rule 1")
    return None


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """One file with the records of 30 runs, some with a subagent, some with a label."""
    folder = tmp_path_factory.mktemp("records")
    recorder = RecordHook(folder / "parts")
    for number in range(30):
        turns = [call("read", path=f"file {number}"), call("shell", command=f"ls {number}")]
        turns += [call("shell", command="sudo ls"), call("delegate", to="inner", task="Who?"), reply("end")]
        team = Team()
        inner = Agent(
            "inner", llm=ScriptedModel([call("shell", command="rm x"), reply("me")]), tools=[shell], hooks=[recorder]
        )
        outer = Agent(
            f"outer {number % 2}", llm=ScriptedModel(turns), tools=[shell, read, team], hooks=[no_sudo, recorder]
        )
        team.add(outer)
        team.add(inner)
        outer.run(f"Task {number}")
    lines = []
    runs = 0
    for line in (line for file in record_files([folder / "parts"]) for line in file.read_bytes().splitlines(True)):
        if line.startswith(b'["before_tool","read"'):
            labelled = msgspec.json.decode(line)[6]["id"]
        elif line.startswith(b'["end",0,'):
            label = Label("good" if runs % 2 else "denied", labelled)
            lines.append(msgspec.json.encode(("label", "read", 0, -1, label)) + b"\n")
            runs += 1
        lines.append(line)
    (folder / "all.moments").write_bytes(b"".join(lines))
    return folder / "all.moments"


@pytest.fixture
def tables(records, tmp_path, monkeypatch):
    """The same runs as Parquet, with small row groups and units."""
    monkeypatch.setattr(export, "ROWS", 100)
    monkeypatch.setattr(parquet, "UNIT_ROWS", 200)
    monkeypatch.setattr(parquet, "_BATCH", 70)
    export_parquet([records], tmp_path / "all.parquet")
    return tmp_path / "all.parquet"


@guard(BEFORE_TOOL, tools="shell")
def one_tool(ctx, request):
    return HookResult.block("No.") if "7" in request.arguments["command"] else None


@guard(BEFORE_TOOL, tools="sh*")
def glob(ctx, request):
    return HookResult.ask("Really?") if "rm" in request.arguments["command"] else None


@guard(BEFORE_TOOL)
def every_tool(ctx, request):
    return HookResult.block("No.") if "file 3" in str(request.arguments) else None


@guard(BEFORE_TOOL, tools="shell")
def looks_back(ctx, request):
    before = [message.content for message in ctx.state.messages]
    return HookResult.block("No.") if any("file 2" in text for text in before) else None


@hook(AFTER_LLM)
def replies(ctx, request):
    return HookResult.retry("More.") if len(request.request.messages) > 8 else None


RULES = {rule.name: rule for rule in (one_tool, glob, every_tool, looks_back, replies, no_sudo)}


def content(report):
    """The report without file names and times."""
    cells = [
        cell.replace(examples=tuple(example.replace(file="") for example in cell.examples)) for cell in report.cells
    ]
    return report.replace(cells=cells, seconds=0, files=0)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("workers", [0, 2])
def test_the_report_is_the_same_as_for_files_of_moments(rule, workers, records, tables):
    expected = backtest([rule], [records])
    found = backtest([rule], [tables], workers=workers)
    assert expected.judged
    assert expected.labels.total == 30
    assert content(found) == content(expected)


def test_moments_that_no_hook_listens_to_are_not_read(tables):
    source = parquet.ParquetFiles([str(tables)])
    [*units] = source.units()
    assert len(units) > 1
    blocks = [
        block
        for unit in units
        for block in source.blocks(unit, Wanted({"before_tool": ("shell",)}), UnitAccount(unit.file))
    ]
    assert len(blocks) == 30
    lines = [line for block in blocks for line in block.data.splitlines()]
    assert {line.split(b'"')[1] for line in lines} == {b"run", b"end", b"label", b"before_tool"}
    assert all(block.left_out > 10 for block in blocks)


def test_without_labels_only_the_calls_of_the_tool_are_read(records, tmp_path):
    unlabelled = [line for line in records.read_bytes().splitlines(True) if not line.startswith(b'["label"')]
    (tmp_path / "all.moments").write_bytes(b"".join(unlabelled))
    export_parquet([tmp_path / "all.moments"], tmp_path / "all.parquet")
    source = parquet.ParquetFiles([str(tmp_path / "all.parquet")])
    [unit] = source.units()
    blocks = source.blocks(unit, Wanted({"before_tool": ("shell",)}), UnitAccount(unit.file))
    lines = [line for block in blocks for line in block.data.splitlines() if line.startswith(b'["before_tool"')]
    assert {line.split(b'"')[3] for line in lines} == {b"shell"}
    assert content(backtest([one_tool], [tmp_path / "all.parquet"])) == content(
        backtest([one_tool], [tmp_path / "all.moments"])
    )


def test_parquet_and_moments_can_be_mixed(records, tables):
    both = backtest([one_tool], [records, tables])
    once = backtest([one_tool], [records])
    assert (both.runs, both.files) == (2 * once.runs, 2)
    assert both.total("newly_blocked").total == 2 * once.total("newly_blocked").total


def test_a_folder_with_an_export_of_its_own_records_is_not_counted_twice(records, tmp_path):
    (tmp_path / "a.moments").write_bytes(records.read_bytes())
    export_parquet([records], tmp_path / "history")
    assert backtest([one_tool], [tmp_path]).runs == 30
    assert backtest([one_tool], [tmp_path / "history"]).runs == 30


def test_a_file_that_is_not_an_export_is_reported_and_the_rest_is_judged(tables, tmp_path):
    (tmp_path / "torn.parquet").write_bytes(tables.read_bytes()[:1000])
    pyarrow.parquet.write_table(pyarrow.table({"x": [1]}), tmp_path / "other.parquet")
    report = backtest(
        [one_tool], [tables, tmp_path / "torn.parquet", tmp_path / "other.parquet", tmp_path / "no.parquet"]
    )
    assert report.runs == 30
    reasons = {each.file.rpartition("/")[2]: each.reason for each in report.skipped}
    assert set(reasons) == {"torn.parquet", "other.parquet", "no.parquet"}
    assert "not an export of records" in reasons["other.parquet"]


def test_a_damaged_part_is_reported_and_the_others_are_judged(tables):
    about = pyarrow.parquet.read_metadata(tables)
    column = about.row_group(about.num_row_groups // 2).column(about.schema.names.index("line"))
    data = bytearray(tables.read_bytes())
    start = column.data_page_offset
    data[start : start + column.total_compressed_size] = b"\x00" * column.total_compressed_size
    tables.write_bytes(data)
    report = backtest([one_tool], [tables])
    assert 0 < report.runs < 30
    [skipped] = report.skipped
    assert skipped.reason.startswith("a part of the file cannot be read")


def test_without_duckdb_the_error_says_what_to_install(tables):
    code = (
        "import sys; sys.modules['duckdb'] = None\n"
        "from hookline.backtest import backtest\n"
        "from hookline.errors import NotInstalledError\n"
        "from hookline import guard, BEFORE_TOOL\n"
        "@guard(BEFORE_TOOL)\n"
        "def nothing(ctx, request): return None\n"
        "try: backtest([nothing], sys.argv[1:])\n"
        "except NotInstalledError as error: print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", code, str(tables)], capture_output=True, text=True, check=True).stdout
    assert "duckdb is not installed" in said
    assert "[backtest]" in said


def test_a_process_that_uses_duckdb_prints_nothing_at_its_end(tables):
    code = (
        "import sys\n"
        "from hookline.backtest import backtest\n"
        "from hookline import guard, BEFORE_TOOL\n"
        "@guard(BEFORE_TOOL)\n"
        "def nothing(ctx, request): return None\n"
        "print(backtest([nothing], sys.argv[1:2], workers=int(sys.argv[2])).runs)\n"
    )
    for workers in ("0", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code, str(tables), workers], capture_output=True, text=True, check=True
        )
        assert (done.stdout, done.stderr) == ("30\n", "")


def test_a_unit_is_a_range_of_whole_run_trees(tables):
    units = parquet.ParquetFiles([str(tables)]).units()
    assert units[0].start == 0
    assert units[-1].end == -1
    assert all(isinstance(unit, Unit) and unit.size for unit in units)
    assert [unit.end for unit in units[:-1]] == [unit.start for unit in units[1:]]
