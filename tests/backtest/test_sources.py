"""Damaged and mixed input: what was skipped is counted with its place, and the rest is judged."""

import json
import os

import msgspec
import pytest

from hookline import AFTER_LLM, BEFORE_TOOL, HookResult, guard, hook
from hookline.backtest import backtest, sources
from hookline.backtest.sources import ChosenRuns
from hookline.records import RecordError
from hookline.records import format as fmt
from hookline.records.catalog import RunCatalog
from hookline.tape import TapeHook
from tests.backtest.recording import Writer, commands, kinds, record


@guard(BEFORE_TOOL, tools="shell")
def no_sudo(ctx, request):
    return HookResult.block("No sudo.") if "sudo" in request.arguments["command"] else None


NO_RUN = "the line belongs to a run that the file does not contain"


def skipped(report):
    return [(each.reason, each.count, each.first) for each in report.skipped]


@pytest.fixture
def writer(tmp_path):
    """Three runs with two calls each; the header is line 1, the runs begin in lines 2, 6 and 10."""
    made = Writer(tmp_path / "a.moments")
    for number in range(3):
        made.run(f"r{number}", "ls", "sudo x")
    return made


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"garbage", "the line is not JSON"),
        (b"\xff\xfe\x00", "the line is not JSON"),
        (b'{"a": 1}', "the line is not JSON"),
        (b'{"entry": "tape_began"}', "an entry of a tape in a file of moments"),
        (b'["before_tool","shell",0,7,0.1', "the line is not JSON"),
        (b'["before_tool","shell",0,7,0.1,0.0,{"id":"1","name":}]', "the line is not JSON"),
        (b'["before_tool","shell",0,7,0.1,0.0,{"name":"shell"}]', "the payload does not fit its point"),
        (b'["before_tool","shell",0,7,0.1,0.0,{"id":1,"name":"shell"}]', "the payload does not fit its point"),
        (b'["before_tool","shell"]', "the payload does not fit its point"),
        (b'["before_tool","shell",9,7,0.1,0.0,{"id":"1","name":"shell"}]', NO_RUN),
        (b'["label","shell",0,1,{"label":"unknown"}]', "the line has missing or invalid fields"),
        (b'["run",0]', "the line has missing or invalid fields"),
        (b'["hooks","abc"]', "the line has missing or invalid fields"),
        (b'["hookline",{"format":99}]', "a newer version of the format"),
        (b"[" * 100_000, "the line is not JSON"),
    ],
)  # fmt: skip
def test_a_damaged_line_is_skipped_and_reported(writer, line, why):
    writer.lines.insert(7, line)
    report = backtest([no_sudo], writer.write())
    assert skipped(report) == [(why, 1, 8)]
    assert report.runs == 3
    # A decision about a lost moment may differ, so what follows it in its run is a guess.
    is_moment = not line.startswith((b'["label', b'["run', b'["hook'))
    assert kinds(report) == {"newly_blocked": (2, 0, 1) if is_moment else (3, 0, 0)}


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"   ",
        b'["unknown_point","x",0,3,0.1,0.0,{}]',
        b'["before_tool","\xc3\xa4",0,2,0.1,0.0,{"id":"1","name":"\xc3\xa4"}]',
    ],
)
def test_unknown_points_and_tools_are_not_mistakes(writer, line):
    writer.lines.insert(7, line)
    assert skipped(backtest([no_sudo], writer.write())) == []


def test_damage_is_found_in_lines_that_no_rule_listens_to(writer):
    writer.lines[3] = b'["on_stop","",0,1,0.2,0.0,{"signals":['
    writer.lines.insert(9, b"!!")
    report = backtest([hook(AFTER_LLM)(lambda ctx, answer: None)], writer.write())
    assert sorted(skipped(report)) == [("the line is not JSON", 2, 4)]


def test_a_truncated_file_is_judged_up_to_its_last_line(writer):
    path = writer.write()
    path.write_bytes(path.read_bytes()[:-10])
    report = backtest([no_sudo], path)
    assert skipped(report) == [("the last line is incomplete", 1, 13)]
    assert kinds(report) == {"newly_blocked": (3, 0, 0)}


def test_an_empty_file_contains_nothing(tmp_path):
    (tmp_path / "a.moments").touch()
    report = backtest([no_sudo], tmp_path)
    assert (report.runs, report.moments, report.exact_share, report.skipped) == (0, 0, 1.0, ())


def test_a_file_of_a_newer_version_is_skipped_as_a_whole(writer, tmp_path):
    writer.write()
    Writer(tmp_path / "b.moments", version=99).write()
    report = backtest([no_sudo], tmp_path)
    (found,) = report.skipped
    assert found.file == str(tmp_path / "b.moments")
    assert "version 99" in found.reason
    assert report.runs == 3


def test_records_and_tapes_are_judged_together(writer, tmp_path):
    from hookline import Agent, ScriptedModel, reply
    from tests.backtest.recording import shell

    writer.write()
    model = ScriptedModel([*commands("ls", "sudo y"), reply("done")])
    Agent("a", llm=model, tools=[shell], hooks=[TapeHook(tmp_path / "b.tape")]).run("t")
    record(tmp_path / "more", commands("sudo z"))
    report = backtest([no_sudo], tmp_path)
    assert (report.runs, report.skipped) == (5, ())
    assert kinds(report) == {"newly_blocked": (5, 0, 0)}


def test_a_file_that_is_no_record_is_reported(writer, tmp_path):
    writer.write()
    (tmp_path / "b.moments").write_bytes(bytes(range(256)) * 100)
    report = backtest([no_sudo], tmp_path)
    assert report.runs == 3
    assert report.skipped_lines > 0


def test_a_very_long_line_is_skipped(writer, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "MAX_LINE", 1 << 20)
    writer.lines.insert(7, b'["before_tool","shell",0,7,0.1,0.0,{"id":"1","name":"' + b"x" * (5 << 20) + b'"}]')
    report = backtest([no_sudo], writer.write())
    assert skipped(report) == [("a line is longer than 64 MB", 1, 8)]
    assert report.runs == 3
    assert kinds(report) == {"newly_blocked": (3, 0, 0)}


def test_a_line_that_is_longer_than_a_block_is_judged(writer):
    writer.run("long", "sudo " + "x" * (1 << 20))
    report = backtest([no_sudo], writer.write())
    assert skipped(report) == []
    assert kinds(report) == {"newly_blocked": (4, 0, 0)}


def test_a_missing_record_is_an_error(tmp_path):
    with pytest.raises(RecordError, match="nowhere"):
        backtest([no_sudo], tmp_path / "nowhere")


@pytest.mark.parametrize("size", [100, 333, 1000, 5000])
def test_parts_of_a_file_contain_each_run_exactly_once(writer, monkeypatch, size):
    for number in range(30):
        writer.run(f"more{number}", *["sudo x"] * (number % 4))
        if number % 5 == 0:
            writer.add("hooks", f"digest{number}", ())
    path = writer.write()
    whole = backtest([no_sudo], path)
    monkeypatch.setattr(sources, "UNIT_BYTES", size)
    monkeypatch.setattr(sources, "_CHUNK", max(size, 64))
    parts = backtest([no_sudo], path)
    assert msgspec.structs.replace(parts, seconds=0) == msgspec.structs.replace(whole, seconds=0)
    assert parts.runs == 33


def test_hooks_are_found_although_their_line_is_in_another_part(tmp_path, monkeypatch):
    writer = Writer(tmp_path / "a.moments")
    at = {"before_tool": fmt.HookAtPoint("guard", 5)}
    writer.add(
        "hooks",
        "abc",
        (fmt.HookInfo("old", at), fmt.HookInfo("last", {"before_tool": fmt.HookAtPoint("guard", -5, order=1)})),
    )
    block = ([["old", "guard", "block", "", "No."]], ["block", "old", ""])
    for number in range(10):
        writer.run(f"r{number}", "sudo x", hooks="abc", decisions={"sudo x": block})
    monkeypatch.setattr(sources, "UNIT_BYTES", 300)
    report = backtest([guard(BEFORE_TOOL, name="old", priority=5)(lambda c, r: None)], writer.write())
    assert kinds(report) == {"no_longer_blocked": (0, 0, 10)}  # "last" was never called
    assert [(each.hook, each.count) for each in report.guesses] == [("last", 10)]


def test_a_file_is_read_once_however_often_and_under_whatever_name_it_is_given(writer, tmp_path, monkeypatch):
    path = writer.write()
    os.link(path, tmp_path / "linked.moments")
    (tmp_path / "symbolic.moments").symlink_to(path)
    monkeypatch.chdir(tmp_path)
    assert backtest([no_sudo], [path, path.name, tmp_path, "."]).runs == 3


@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_that_is_deleted_meanwhile_is_reported(writer, tmp_path, workers):
    path = writer.write()
    other = Writer(tmp_path / "other.moments")
    other.run("r9", "sudo x")
    other.write()

    class Deleting(sources.Files):
        def units(self):
            units = super().units()
            path.unlink(missing_ok=True)
            return units

    report = backtest([no_sudo], Deleting([tmp_path]), workers=workers)
    assert [(os.path.basename(each.file), each.reason) for each in report.skipped] == [
        (path.name, "cannot be read: No such file or directory")
    ]
    assert kinds(report) == {"newly_blocked": (1, 0, 0)}


def test_a_file_whose_lines_another_program_has_reformatted_is_not_silently_empty(writer):
    path = writer.write()
    path.write_text("".join(json.dumps(json.loads(line)) + "\n" for line in path.read_text().splitlines()))
    report = backtest([no_sudo], path)
    (skipped,) = report.skipped
    assert skipped.count == report.runs == 3
    assert "spaces between the fields" in skipped.reason


def test_a_file_without_any_run_is_reported(writer):
    writer.lines = [line for line in writer.lines if not line.startswith(b'["run"')]
    report = backtest([hook(AFTER_LLM)(lambda ctx, answer: None)], writer.write())
    assert [each.reason for each in report.skipped] == ["it contains no run in the form that Hookline writes"]


@pytest.mark.parametrize("workers", [0, 2])
def test_runs_that_are_in_several_files_are_pointed_out(tmp_path, workers):
    record(tmp_path / "records", commands("sudo x"), hooks=[TapeHook(tmp_path / "tapes")])
    assert backtest([no_sudo], tmp_path / "records", workers=workers).notes == ()
    (note,) = backtest([no_sudo], [tmp_path / "records", tmp_path / "tapes"], workers=workers).notes
    assert note.startswith("1 run is in the records a second time")


@pytest.mark.parametrize("size", [sources._CHUNK, 300])
def test_single_runs_of_a_file_are_judged_alone(tmp_path, monkeypatch, size):
    monkeypatch.setattr(sources, "_CHUNK", size)
    ids = [record(tmp_path, commands(f"sudo {number}")).ids.run_id for number in range(5)]
    catalog = RunCatalog([tmp_path])
    places = [catalog.find(id) for id in ids]
    for number, place in enumerate(places):
        report = backtest([no_sudo], ChosenRuns([place]))
        assert (report.runs, report.total("newly_blocked").exact) == (1, 1)
        (cell,) = (cell for cell in report.cells if cell.examples)
        assert [example.subject for example in cell.examples] == [f"sudo {number}"]
    assert backtest([no_sudo], ChosenRuns(places[1:4])).runs == 3


def test_the_number_of_examples_of_a_file_can_be_chosen(tmp_path):
    record(tmp_path, commands(*(f"sudo {number}" for number in range(9))))
    (place,) = RunCatalog([tmp_path]).runs().values()
    for count in (1, 8, 50):
        cells = backtest([no_sudo], ChosenRuns([place]), examples=count).cells
        assert [len(cell.examples) for cell in cells if cell.kind == "newly_blocked"] == [min(count, 9)]
