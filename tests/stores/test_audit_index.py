"""AuditIndex: the records of the logs of all machines, and what it reveals about a changed log."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hookline import Agent, HookResult, ScriptedModel, call, guard, reply, tool
from hookline._base.own_files import protection_of
from hookline.hooks import AuditLogHook
from hookline.stores import AuditIndex, AuditLog, StoreError, verify_audit
from hookline.stores.audit import index as audit_index
from hookline.stores.audit.format import archive_paths
from hookline.stores.audit.index import LogIndexer, _file_id, _find
from tests.properties import examples
from tests.waiting import block_until


@pytest.fixture
def path(tmp_path):
    return tmp_path / "audit.jsonl"


@pytest.fixture
def index(tmp_path):
    made = AuditIndex(tmp_path / "index.db")
    yield made
    made.close()


def write(path, index, count=5, **options):
    log = AuditLog(path, index=index, fsync="never", **options)
    for n in range(count):
        log.record("test", n=n)
    log.close()
    return log


def lines(path):
    return path.read_bytes().splitlines(keepends=True)


def numbers(index, **chosen):
    return sorted(record.seq for record in index.records(10_000, **chosen))


def kinds(path, index):
    return sorted({finding.kind for finding in verify_audit(path, index=index).findings})


def update(index, path):
    LogIndexer(index, path).update()


# Its content.


def test_a_run_is_indexed_with_its_names_and_without_its_texts(path, index):
    @tool
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    @guard("before_tool")
    def no_big(ctx, request):
        return HookResult.block("too big") if request.arguments["a"] > 100 else None

    audit = AuditLogHook(AuditLog(path, index=index), content=True)
    turns = [[call("add", a=1, b=2), call("add", a=500, b=2)], reply("A secret reply.")]
    result = Agent("helper", llm=ScriptedModel(turns), tools=[add], hooks=[audit, no_big]).run("A secret task.")
    audit.log.close()
    records = index.records()
    assert [record.time for record in records] == sorted((record.time for record in records), reverse=True)
    raw = [json.loads(line) for line in lines(path)]
    found = [(record.seq, record.time, record.type) for record in sorted(records, key=lambda record: record.seq)]
    assert found == [(line["seq"], line["time"], line["type"]) for line in raw]
    assert {record.agent for record in records if record.type != "open"} == {"helper"}
    (blocked,) = index.records(verb="block")
    assert (blocked.type, blocked.hook, blocked.run_id, blocked.host) == (
        "verdict",
        "no_big",
        result.ids.run_id,
        os.uname().nodename,
    )
    assert blocked.file == str(path)
    outcomes = [(record.tool, record.decision) for record in index.records(types=["tool"])]
    assert sorted(outcomes) == [("add", "blocked"), ("add", "ok")]
    assert [record.decision for record in index.records(types=["run_end"])] == ["completed"]
    with index.db.transaction() as db:
        stored = repr(db.execute("SELECT * FROM records").fetchall())
    assert "secret" not in stored


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        ({}, [6, 5, 4, 3, 2, 1]),
        ({"types": ["verdict"]}, [4, 3]),
        ({"types": ["verdict", "tool"]}, [5, 4, 3]),
        ({"hook": "Guard"}, [3]),
        ({"verb": "block"}, [3]),
        ({"tool": "shell"}, [5]),
        ({"agent": "bot"}, [5, 4, 3, 2]),
        ({"run": "run_1"}, [4, 3, 2]),
        ({"run": "1"}, [4, 3, 2]),
        ({"run": "1", "verb": "cont"}, [4]),
        ({"decision": "error"}, [5]),
        ({"decision": "denied"}, [6]),
        ({"host": "elsewhere"}, []),
        ({"until": "2000-01-01"}, []),
        ({"since": "2000-01-01", "types": ["tool"]}, [5]),
    ],
)
def test_records_can_be_chosen_by_their_names(path, index, chosen, found):
    log = AuditLog(path, index=index)
    log.record("task", run_id="run_1", agent="bot")
    log.record("verdict", run_id="run_1", agent="bot", hook="Guard", verb="block")
    log.record("verdict", run_id="run_1", agent="bot", hook="Rewriter", verb="cont")
    log.record("tool", run_id="run_2", agent="bot", tool="shell", outcome="error")
    log.record("auth", decision="denied", hook=3, verb=["block"])  # names of other types are ignored
    log.close()
    assert numbers(index, **chosen) == found[::-1]


def test_pages_have_every_record_once_also_if_times_are_equal(path, index):
    write(path, index, 50)
    with index.db.transaction(write=True) as db:
        db.execute("UPDATE records SET time = '2026-11-15T10:00:00.000Z' WHERE seq > 10 AND seq < 40")
    found, before = [], 0
    while page := index.records(7, before=before, types=["test"]):
        found += page
        before = page[-1].number
    assert sorted(record.seq for record in found) == list(range(2, 52))
    assert [record.time for record in found] == sorted((record.time for record in found), reverse=True)


# Complete, whatever happens.


def test_records_of_a_killed_program_are_added_by_the_next_one(path, index):
    write(path, index, 2)
    code = "import sys; from hookline.stores import AuditLog; log = AuditLog(sys.argv[1]); log.record('test', n=1)\n"
    code += "log.flush(); import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    done = subprocess.run([sys.executable, "-c", code, path], check=False)
    assert done.returncode == -signal.SIGKILL
    assert numbers(index) == [1, 2, 3]
    write(path, index, 1)
    assert numbers(index) == list(range(1, 8))
    assert verify_audit(path, index=index).ok


def test_several_programs_with_one_log_add_each_record_once(path, index, tmp_path):
    code = "import sys; from hookline.stores import AuditLog; log = AuditLog(sys.argv[1], index=sys.argv[2])\n"
    code += "for n in range(200): log.record('test', n=n)\nlog.close()"
    command = [sys.executable, "-c", code, path, tmp_path / "index.db"]
    programs = [subprocess.Popen(command) for _ in range(3)]
    assert [program.wait() for program in programs] == [0, 0, 0]
    update(index, path)
    assert numbers(index) == list(range(1, 604))
    (log,) = index.logs()
    assert log.seq == 603
    assert verify_audit(path, index=index).ok


def test_rotated_files_are_read_to_their_end(path, index):
    log = AuditLog(path, index=index, max_bytes=4500, fsync="never")
    for n in range(200):
        log.record("test", n=n)
        if n % 50 == 0:
            log.close()
    log.close()
    assert len(list(path.parent.glob("audit-0*.jsonl"))) > 3
    assert numbers(index) == list(range(1, index.logs()[0].seq + 1))
    assert verify_audit(path, index=index).ok


def test_records_of_deleted_old_files_leave_the_index(path, index):
    log = AuditLog(path, index=index, max_bytes=4500, keep_files=2, fsync="never")
    for n in range(300):
        log.record("test", n=n)
        log.flush()
    log.close()
    first = json.loads(lines(min(path.parent.glob("audit-0*.jsonl")))[0])["seq"]
    assert first > 1
    assert numbers(index) == list(range(first, index.logs()[0].seq + 1))
    assert verify_audit(path, index=index).ok
    write(path, index, 1)
    assert len(index.logs()) == 1


def test_a_log_whose_old_files_are_deleted_before_they_are_indexed_stays_one_log(path, index, monkeypatch):
    monkeypatch.setattr("hookline.stores.audit.log.INDEX_SECONDS", 600)
    log = AuditLog(path, index=index, max_bytes=4500, keep_files=2, fsync="never")
    for count in (5, 200):
        for n in range(count):
            log.record("test", n=n)
        log.close()
    first = json.loads(lines(min(path.parent.glob("audit-0*.jsonl")))[0])["seq"]
    assert first > 10
    (indexed,) = index.logs()
    assert numbers(index) == list(range(first, indexed.seq + 1))
    assert verify_audit(path, index=index).ok


def test_a_record_that_is_written_during_an_update_of_the_index_is_not_missed(path, index, monkeypatch):
    monkeypatch.setattr("hookline.stores.audit.log.INDEX_SECONDS", 600)
    log = AuditLog(path, index=index)
    update, read, go_on = LogIndexer.update, threading.Event(), threading.Event()

    def slow(self):
        update(self)
        read.set()
        go_on.wait()

    monkeypatch.setattr(LogIndexer, "update", slow)
    for n in range(2):
        log.record("test", n=n)
        log.flush()
    log._indexing.write_now()
    read.wait()
    log.record("test", n=2)
    log.flush()
    go_on.set()
    log.close()
    assert numbers(index) == [1, 2, 3, 4]


@pytest.mark.sqlite
def test_a_database_that_is_away_delays_no_run_and_loses_nothing(path, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("hookline.stores.sqlite.BUSY_SECONDS", 0.2)
    place = tmp_path / "index.db"
    write(path, place, 1)
    blocker = sqlite3.connect(place, isolation_level=None)
    blocker.execute("BEGIN EXCLUSIVE")
    log = AuditLog(path, index=place)
    hook = AuditLogHook(log, on_failure="closed")
    result = Agent("a", llm=ScriptedModel(["Hello."]), hooks=[hook]).run("Hi.")
    assert (result.status, result.errors) == ("completed", ())
    assert log.lost == 0
    block_until(lambda: "cannot be written" in caplog.text)
    blocker.execute("ROLLBACK")
    blocker.close()
    index = AuditIndex(place)
    block_until(lambda: numbers(index) == list(range(1, len(lines(path)) + 1)))
    block_until(lambda: "can be written again, and is complete" in caplog.text)
    index.close()
    assert verify_audit(path, index=AuditIndex(place)).ok


def test_a_server_that_cannot_be_reached_delays_no_run(path, caplog):
    log = AuditLog(path, index="postgresql://nobody@127.0.0.1:1/none")
    result = Agent("a", llm=ScriptedModel(["Hello."]), hooks=[AuditLogHook(log, on_failure="closed")]).run("Hi.")
    assert (result.status, result.errors, log.lost) == ("completed", (), 0)
    block_until(lambda: "cannot be written" in caplog.text)
    log.index.close()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="not on Windows")
def test_a_pipe_is_not_indexed(tmp_path, index):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write(tmp_path / "pipe", index, 1)
    assert b'"test"' in os.read(reader, 10_000)
    os.close(reader)
    assert index.records() == []


@pytest.mark.sqlite
def test_the_file_of_the_index_is_one_that_tools_must_not_write(index, tmp_path):
    for name in ("index.db", "index.db-wal"):
        assert protection_of(str(tmp_path / name)) is not None


def test_an_index_needs_a_file(index):
    with pytest.raises(StoreError, match="needs the path of a file"):
        AuditLog(None, logger="audit", index=index)


# Changes that it reveals.


def cut_end(path):
    path.write_bytes(b"".join(lines(path)[:3]))


def delete_log(path):
    path.unlink()


def empty_log(path):
    path.write_bytes(b"")


def write_another(path):
    path.unlink()
    write(path, None, 20)


def rewrite(path):
    """Write a complete log with another content, its numbers as before."""
    count = len(lines(path))
    path.unlink()
    log = AuditLog(path)
    for n in range(count - 1):
        log.record("test", n=n, forged=True)
    log.close()


def cut_and_continue(path):
    cut_end(path)
    write(path, None, 20)


CHANGES = [cut_end, delete_log, empty_log, write_another, rewrite, cut_and_continue]


@pytest.mark.parametrize("indexed_again", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_a_log_that_was_cut_replaced_or_deleted_with_its_checkpoint_is_revealed(path, index, change, indexed_again):
    write(path, index, 9)
    assert verify_audit(path, index=index).ok
    (path.parent / "audit.jsonl.head").unlink()
    change(path)
    if indexed_again and path.exists():
        write(path, index, 20)
    assert kinds(path, index), "the change is not found"
    if path.exists() and change in (write_another, rewrite) and not indexed_again:
        assert verify_audit(path).unchanged  # without the index nothing is found


def test_a_deleted_log_is_a_finding_and_not_only_a_missing_file(path, index):
    write(path, index, 3)
    path.unlink()
    report = verify_audit(path, index=index)
    assert [(finding.kind, finding.text[:46]) for finding in report.findings] == [
        ("deleted", "the log is missing, but the index has records ")
    ]
    with pytest.raises(StoreError, match="there is no audit log"):
        verify_audit(path)
    index.forget(file=str(path))
    with pytest.raises(StoreError, match="there is no audit log"):
        verify_audit(path, index=index)


def test_a_new_log_in_place_of_a_deleted_one_is_indexed_too(path, index):
    write(path, index, 9)
    for file in path.parent.glob("audit.jsonl*"):
        file.unlink()
    write(path, index, 2)
    assert [log.seq for log in index.logs()] == [10, 3]
    assert len(index.records()) == 13
    assert kinds(path, index) == ["cut"]
    index.forget(file=str(path))
    write(path, index, 1)
    assert (numbers(index), kinds(path, index)) == ([1, 2, 3, 4, 5], [])


def test_the_index_proves_the_end_of_a_log_without_a_checkpoint(path, index):
    write(path, index)
    (path.parent / "audit.jsonl.head").unlink()
    assert not verify_audit(path).end_proven
    assert verify_audit(path, index=index).ok


def test_a_log_that_was_copied_elsewhere_is_found_by_its_records(path, index, tmp_path):
    write(path, index, 9)
    copy = tmp_path / "elsewhere" / "copied.jsonl"
    copy.parent.mkdir()
    shutil.copy(path, copy)
    assert verify_audit(copy, index=index).ok
    cut_end(copy)
    assert kinds(copy, index) == ["cut"]


def test_a_full_file_alone_is_not_compared_with_the_end_of_the_log(path, index):
    write(path, index, 100, max_bytes=4500)
    archive = min(path.parent.glob("audit-0*.jsonl"))
    assert verify_audit(archive, index=index).ok


def test_a_process_whose_log_is_cut_goes_on_and_the_gap_stays_visible(path, index):
    log = AuditLog(path, index=index)
    for _ in range(2):
        for n in range(9):
            log.record("test", n=n)
        log.close()
        cut_end(path)
    log.record("test", n=1)
    log.close()
    assert "missing" in kinds(path, index)
    assert index.logs()[-1].seq == json.loads(lines(path)[-1])["seq"]


def test_damaged_lines_are_left_out_and_the_index_goes_on(path, index):
    write(path, index, 3)
    raw = lines(path)
    path.write_bytes(b"".join([*raw, b"\xff not json\n", raw[1], b'{"seq": -1}\n', b"[" * 5000 + b"\n"]))
    write(path, index, 3)
    assert numbers(index)[:4] == [1, 2, 3, 4]
    assert len(numbers(index)) == 8
    assert kinds(path, index)


def test_a_file_that_is_rotated_while_it_is_read_is_read_to_its_end(path, index, monkeypatch):
    """The files are listed before they are opened, and may get other names in between."""
    write(path, None, 20)
    indexer, listed = LogIndexer(index, path), []
    real = LogIndexer._files

    def list_and_rotate(self):
        found = real(self)
        listed.append(found)
        if len(listed) in (1, 3, 5):
            os.rename(path, path.with_name(f"audit-{len(listed):06d}.jsonl"))
            write(path, None, 5)
        return found

    monkeypatch.setattr(LogIndexer, "_files", list_and_rotate)
    indexer.update()
    monkeypatch.undo()
    indexer.update()
    assert numbers(index) == list(range(1, 21 + 1 + 3 * 6))
    assert len(index.logs()) == 1


def test_a_file_that_is_rotated_while_the_files_are_listed_is_not_left_out(path, index, monkeypatch):
    write(path, None, 5)
    os.rename(path, path.with_name("audit-000001.jsonl"))
    write(path, None, 5)
    reading, read = [], LogIndexer._read

    def list_then_rotate(log):
        found = archive_paths(log)
        if reading == [1]:
            reading.append(2)
            os.rename(path, path.with_name("audit-000002.jsonl"))
            write(path, None, 5)
        return found

    monkeypatch.setattr(LogIndexer, "_read", lambda self: reading.append(1) or read(self))
    monkeypatch.setattr(audit_index, "archive_paths", list_then_rotate)
    update(index, path)
    assert numbers(index) == list(range(1, 19))


def test_a_log_that_was_cut_is_not_taken_for_a_new_one(path, index):
    write(path, index, 9)
    cut_end(path)
    update(index, path)
    assert [log.seq for log in index.logs()] == [10]
    assert len(index.records()) == 10


# Forgetting.


def test_many_records_are_deleted_in_several_transactions(path, index, monkeypatch):
    monkeypatch.setattr(audit_index, "_MAX_DELETED", 3)
    write(path, index, 20)
    assert index.forget(before="9999") == 21
    write(path, index, 6)
    assert index.forget(file=str(path)) == 7
    assert (index.records(), index.logs()) == ([], [])


def test_old_records_can_be_forgotten_without_forgetting_where_the_log_ends(path, index):
    write(path, index, 4)
    assert index.forget(before="2000-01-01T00:00:00.000Z") == 0
    assert index.forget(before="9999") == 5
    assert (index.records(), [log.seq for log in index.logs()]) == ([], [5])
    write(path, index, 1)
    assert numbers(index) == [6, 7]
    assert verify_audit(path, index=index).ok
    assert index.forget(host="elsewhere") == 0
    assert index.forget(host=os.uname().nodename) == 2
    assert index.logs() == []


# Finding a record in the files.


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_the_first_record_from_a_number_on_is_found_in_any_files(tmp_path, data):
    count = data.draw(st.integers(1, 30))
    seqs = sorted(data.draw(st.sets(st.integers(1, 60), min_size=1, max_size=count)))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(seqs)), max_size=3)))
    junk = data.draw(st.lists(st.booleans(), min_size=len(seqs), max_size=len(seqs)))
    parts = [seqs[a:b] for a, b in zip([0, *cuts], [*cuts, len(seqs)], strict=True)]
    paths = [tmp_path / f"{number}.jsonl" for number in range(len(parts))]
    dirty = dict(zip(seqs, junk, strict=True))
    for file, part in zip(paths, parts, strict=True):
        rows = []
        for seq in part:
            rows += [b"torn\n"] if dirty[seq] else []
            rows.append(b'{"seq":%d,"time":"t","type":"x","prev":"%b"}\n' % (seq, b"0" * data.draw(st.integers(0, 90))))
        file.write_bytes(b"".join(rows))
    wanted = data.draw(st.integers(1, 62))
    found, offset, entry = _find({path: _file_id(path.stat()) for path in paths}, wanted)
    expected = next((seq for seq in seqs if seq >= wanted), None)
    assert (entry and entry.line.seq) == expected
    if entry is not None:
        rest = found.read_bytes()[offset:].splitlines()
        assert next(line for line in rest if line != b"torn").startswith(b'{"seq":%d,' % expected)


def test_a_large_log_is_added_in_several_transactions(path, index, monkeypatch):
    monkeypatch.setattr(audit_index, "BATCH", 7)
    write(path, None, 50)
    update(index, path)
    assert numbers(index) == list(range(1, 52))
