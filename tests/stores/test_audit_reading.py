"""Reading an audit log from its end, and finding single records."""

import json
import os
from contextlib import closing

import pytest

from hookline.stores import AuditLog
from hookline.stores.audit import reading
from hookline.stores.audit.reading import LogReader, RecordFilter


@pytest.fixture
def path(tmp_path):
    return tmp_path / "audit.jsonl"


def write(path, count, **options):
    with closing(AuditLog(path, fsync="never", **options)) as log:
        for number in range(count):
            log.record("deploy", agent=f"a{number % 3}", run_id=f"run_{number:04}", note=f"Größe {number}", by="ada")


def numbers(lines):
    return [line.record["seq"] for line in lines]


def everything(reader, limit, wanted=None):
    found, more = [], ""
    while True:
        page = reader.page(limit, wanted, before=more)
        found += page.lines
        more = page.more
        if not more:
            return found


@pytest.mark.parametrize("limit", [1, 7, 200])
def test_the_pages_of_a_log_have_every_record_once_the_newest_first(path, limit):
    write(path, 40)
    assert numbers(everything(LogReader(path), limit)) == list(range(41, 0, -1))


def test_pages_go_on_in_the_archives_of_the_log(path):
    write(path, 100, max_bytes=4096)
    assert len(list(path.parent.glob("audit-*.jsonl"))) > 3
    found = numbers(everything(LogReader(path), 9))
    assert found == list(range(found[0], 0, -1))
    assert found[0] > 100


def test_a_page_goes_on_at_its_place_after_the_file_has_become_an_archive(path):
    write(path, 10)
    reader = LogReader(path)
    page = reader.page(4)
    write(path, 60, max_bytes=4096)
    assert path.with_name("audit-000001.jsonl").exists()
    assert numbers(reader.page(3, before=page.more).lines) == [7, 6, 5]


def test_lines_that_are_not_records_are_shown_where_they_are(path):
    write(path, 3)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"not a record\n", b'{"type": 3}\n', *lines[2:]]))
    types = [line.record["type"] for line in everything(LogReader(path), 2)]
    assert types == ["deploy", "deploy", "no record", "no record", "deploy", "open"]


def test_a_line_that_is_being_written_is_left_out(path):
    write(path, 2)
    with open(path, "ab") as file:
        file.write(b'{"v":1,"seq":4')
    assert numbers(LogReader(path).page(10).lines) == [3, 2, 1]


def test_a_line_longer_than_the_part_that_is_read_is_found(path):
    with closing(AuditLog(path, fsync="never")) as log:
        log.record("small", note="x")
        log.record("large", note=["y" * 200] * 900)
        log.record("large", note=["z" * 200] * 900)
        for _ in range(3):
            log.record("small", note="x")
    assert numbers(everything(LogReader(path), 2)) == [7, 6, 5, 4, 3, 2, 1]
    assert os.path.getsize(path) > reading._CHUNK


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"run": "run_0003"}, [5]),
        ({"run": "0003"}, [5]),
        ({"run": "run_000"}, list(range(11, 1, -1))),
        ({"agent": "a1"}, [12, 9, 6, 3]),
        ({"types": ("open",)}, [1]),
        ({"types": ("open", "deploy"), "agent": "a2"}, [10, 7, 4]),
        ({"text": "größe 4"}, [6]),
        ({"text": "GRÖSSE"}, []),
        ({"text": "GRÖßE 1"}, [12, 3]),
        ({"text": 'no "such" text'}, []),
        ({"caller": "ada", "run": "0001"}, [3]),
        ({"since": "2999-01-01T00:00:00.000Z"}, []),
        ({"until": "2001-01-01T00:00:00.000Z"}, []),
    ],
)
def test_a_filter_chooses_records(path, wanted, found):
    write(path, 11)
    assert numbers(everything(LogReader(path), 3, RecordFilter(**wanted))) == found


def test_a_range_of_time_begins_and_ends_in_the_middle_of_a_log(path):
    path.write_bytes(
        b"".join(
            json.dumps({"v": 1, "seq": n, "time": f"2026-01-01T00:{n:02}:00.000Z", "type": "x", "prev": ""}).encode()
            + b"\n"
            for n in range(1, 50)
        )
    )
    wanted = RecordFilter(since="2026-01-01T00:10:00.000Z", until="2026-01-01T00:20:30.000Z")
    assert numbers(everything(LogReader(path), 4, wanted)) == list(range(20, 9, -1))


def test_a_search_looks_through_a_limited_part_of_the_log_and_says_where_to_go_on(path, monkeypatch):
    monkeypatch.setattr(reading, "_CHUNK", 2000)
    monkeypatch.setattr(reading, "MAX_READ", 4000)
    write(path, 100)
    reader = LogReader(path)
    page = reader.page(10, RecordFilter(run="run_0002"))
    assert (page.lines, page.is_cut) == ([], True)
    assert numbers(everything(reader, 10, RecordFilter(run="run_0002"))) == [4]


def test_a_record_is_found_by_its_number_in_every_file(path):
    write(path, 60, max_bytes=4096)
    reader = LogReader(path)
    last = reader.page(1).lines[0].record["seq"]
    assert [reader.find(seq).record["seq"] for seq in range(1, last + 1)] == list(range(1, last + 1))
    assert reader.find(last + 1) is None
    assert reader.find(0) is None


def test_a_position_leads_to_its_line_and_the_one_after_it(path):
    write(path, 3)
    reader = LogReader(path)
    lines = everything(reader, 10)[::-1]
    line, following = reader.at(lines[1].position)
    assert (line, following) == (lines[1], lines[2])
    assert following.record["prev"] == line.hash
    assert reader.at(lines[3].position) == (lines[3], None)
    number, offset = lines[1].position.split("-")
    assert reader.at(f"{number}-{int(offset) + 1}") is None
    assert reader.at("7-0") is None
    assert reader.at("1-99999999") is None


def test_a_line_of_a_file_is_found_by_its_number(path):
    write(path, 60, max_bytes=4096)
    reader = LogReader(path)
    for name in ("audit-000001.jsonl", "audit.jsonl"):
        for number, line in enumerate(path.with_name(name).read_bytes().splitlines(), 1):
            assert reader.at(reader.position_of(name, number))[0].data == line
        assert reader.position_of(name, number + 1) is None
        assert reader.position_of(name, 0) is None
    assert reader.position_of("other.jsonl", 1) is None


def test_a_log_that_does_not_exist_yet_has_no_records(path):
    assert LogReader(path).page(10).lines == []
    assert LogReader(path).find(1) is None
